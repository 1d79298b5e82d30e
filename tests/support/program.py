"""How tests start the program: a warning of Python is an error, in it and in the processes that it reads files with."""

import sys
from typing import Final

# Typer imports them; -W takes no patterns.
_TYPERS: Final = [
    f"ignore:'click.utils.get_{kind}_stream' is deprecated:DeprecationWarning" for kind in ("binary", "text")
]
STRICT: Final = (sys.executable, *(part for rule in ("error", *_TYPERS) for part in ("-W", rule)))
"""Python as it is started."""
KAIR: Final = (*STRICT, "-m", "kair_tui")
