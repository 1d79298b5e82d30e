"""Where in a program a call was made: of its stack the innermost frame that is of no library."""

import re
from collections.abc import Sequence
from typing import Final

_LONGEST: Final = 200
_TORCH: Final = re.compile(r"(^|/)torch/(distributed|nn|autograd|optim|utils|cuda|fx|_\w+)/|^<|\.(cpp|cc|cu|h|so)$")
_LIBRARIES: Final = re.compile(r"(^|/)(site-packages|dist-packages|lib/python[\d.]+)/")

Frame = tuple[str, int, str]
"""File, line, function."""


def location_in(frames: Sequence[Frame]) -> str:
    """`train.py:120 step` of frames from the inside out: the first of no library, else beside PyTorch.

    Of a path the last two parts are told, which tell files of one name apart; nothing where all frames are PyTorch's.
    """
    beside_torch = [frame for frame in frames if frame[0] and not _TORCH.search(frame[0])]
    own = [frame for frame in beside_torch if not _LIBRARIES.search(frame[0])]
    if not beside_torch:
        return ""
    file, line, function = (own or beside_torch)[0]
    where = "/".join(file.split("/")[-2:])
    return f"{where}{f':{line}' if line >= 0 else ''} {function}".strip()[:_LONGEST]
