"""Decides whether events are scanned by compiled code: if numba is installed and there is enough text to pay off.

numba takes half a second of CPU time to import and load its compiled code, and about ten, once, to compile it.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kair_engine.readers.blocks import text_size

if TYPE_CHECKING:
    from kair_engine.readers.kineto.event_stream import Scan
    from kair_engine.readers.kineto.tables import EventTables

PAYS_FROM: Final = 128 << 20
"""Bytes of text that one process reads."""
_TOO_SMALL: Final = 1 << 20
_SCANNER: Final = "kair_engine.readers.kineto.compiled.scanner"
_MATRICES: Final = "scipy.linalg"


def pays(text: int) -> bool:
    """Return whether this many bytes of text are worth compiled code."""
    return text >= PAYS_FROM and find_spec("numba") is not None


def load(*, for_nothing_else: bool = False) -> None:
    """Load the compiled code if numba can; otherwise events are decoded as usual.

    `for_nothing_else`: in a process that only reads, numba starts without scipy's matrices, which saves a fifth of its
    start.
    """
    # Fails with a numba too old for its NumPy, a read-only folder, a full disk.
    with suppress(Exception), _without(_MATRICES) if for_nothing_else else nullcontext():
        import_module(_SCANNER).warm_up()


@contextmanager
def _without(module: str) -> Iterator[None]:
    """Act as if the module were not installed, unless it is loaded."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]  # makes imports of it fail
    try:
        yield
    finally:
        del sys.modules[module]


def scanner_for(source: Path, tables: "EventTables") -> "Scan | None":
    """Return the scan of a file's events; None if decoding them is as good."""
    size = text_size(source)
    if pays(size):
        load()
    scanner = sys.modules.get(_SCANNER)
    if scanner is None or not scanner.is_ready or size < _TOO_SMALL:
        return None
    scan: Scan = scanner.Scanner(tables).records
    return scan
