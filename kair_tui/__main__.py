"""`python -m kair_tui` is `kair`."""

import sys

from kair_tui.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
