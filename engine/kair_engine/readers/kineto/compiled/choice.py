"""Whether a file's events are scanned by machine code."""

import os
from pathlib import Path

from kair_engine.readers.kineto.event_stream import Scan
from kair_engine.readers.kineto.tables import EventTables


def scanner_for(source: Path, tables: EventTables) -> Scan | None:
    """The scan of a file, None where decoding it is as good, or numba is not installed."""
    if os.environ.get("NOSCAN"):
        return None
    from kair_engine.readers.kineto.compiled.scanner import Scanner

    return Scanner(tables).records
