"""Where in a program a call was made: of its stack the innermost frame that is of no library."""

import re
from collections.abc import Sequence
from typing import Final

_LONGEST: Final = 200
_LIBRARIES: Final = re.compile(r"(^|/)(site-packages|dist-packages|torch|lib/python[\d.]+)/|^<|\.(cpp|cc|h|so)$")

Frame = tuple[str, int, str]
"""File, line, function."""


def location_in(frames: Sequence[Frame]) -> str:
    """`train.py:120 step` of frames from the inside out: the first that is of no library; empty where none is.

    Of a path the last two parts are told, which tell files of one name apart.
    """
    own = next((frame for frame in frames if frame[0] and not _LIBRARIES.search(frame[0])), None)
    if own is None:
        return ""
    file, line, function = own
    where = "/".join(file.split("/")[-2:])
    return f"{where}{f':{line}' if line >= 0 else ''} {function}".strip()[:_LONGEST]
