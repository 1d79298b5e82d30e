"""`python -m kair_tui` is `kair`."""

import sys

from kair_tui.cli.main import run

if __name__ == "__main__":
    sys.exit(run())
