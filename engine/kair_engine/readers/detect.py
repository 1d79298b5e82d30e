"""The format of a file, told by content."""

from pathlib import Path

from kair_engine.errors import InputError
from kair_engine.readers.formats import FORMATS, UNSUPPORTED, Format
from kair_engine.readers.magic import read_head


class NotATraceError(InputError):
    """The file was read, and is something else. In a folder with traces it is passed over in silence."""


class UnsupportedFormatError(InputError):
    """The file is a recording in a format that is known and not read; the hint says how to convert it."""


def detect_format(path: Path) -> Format | None:
    """The format `path` is read as, or None where its first bytes already say that it is not a trace.

    Raises UnsupportedFormatError where it is of a format that is only recognised, OSError where it cannot be read.
    """
    head = read_head(path)
    found = next((form for form in FORMATS if form.matches(head)), None)
    if found is None:
        for known in UNSUPPORTED:
            if known.matches(head):
                raise UnsupportedFormatError(f"{path.name} is {known.words}: not read", known.way_out)
    return found
