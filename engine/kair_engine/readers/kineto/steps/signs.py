"""Signs of steps in recordings that mark none: the optimizer's step, its zero_grad, the next batch."""

import re
from collections import defaultdict
from typing import Final

import numpy as np
import numpy.typing as npt

from kair_engine.frozen import dataclass
from kair_engine.readers.kineto.classify import NameClass

Int64s = npt.NDArray[np.int64]
_SIGNS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (r"optimizer\.step#", r"optimizer\.zero_grad#", r"enumerate\(dataloader\)")
)
"""The best first: gradients may be zeroed, and batches be fetched, several times a step."""
SIGN_CLASSES: Final = (NameClass.OPTIMIZER, NameClass.DATA_LOADER)
_FEWEST: Final = 3
"""Times that a sign must be seen: between them lie two steps."""
_WHOLE: Final = 1.5
"""Of the median step: what came before the first sign is a step where it is no longer than that."""


@dataclass(frozen=True)
class InferredSteps:
    """Begins and ends, in order, the track of the sign that tells them, and its name."""

    begin: Int64s
    end: Int64s
    track: int
    sign: str


class StepSigns:
    """Collects signs while a recording passes by."""

    def __init__(self) -> None:
        self._seen: dict[str, list[tuple[int, int, int]]] = defaultdict(list)

    def see(self, name: str, start: int, end: int, track: int) -> None:
        """Takes in an operation of one of SIGN_CLASSES."""
        if any(sign.match(name) for sign in _SIGNS):
            self._seen[name].append((start, end, track))

    def steps(self, extent: tuple[int, int]) -> InferredSteps | None:
        """The steps between the best of the signs, numbered from 0; None where there is none.

        A step ends with the optimizer's; gradients are zeroed and a batch is fetched where one begins. Of several
        optimizers the one that steps least often tells.
        """
        for at, sign in enumerate(_SIGNS):
            names = sorted(name for name, seen in self._seen.items() if sign.match(name) and len(seen) >= _FEWEST)
            if names:
                name = min(names, key=lambda one: len(self._seen[one]))
                return _between(name, sorted(self._seen[name]), extent, ends=at == 0)
        return None


def _between(name: str, seen: list[tuple[int, int, int]], extent: tuple[int, int], *, ends: bool) -> InferredSteps:
    bounds = [end if ends else start for start, end, _ in seen]
    usual = float(np.median(np.diff(bounds)))
    if ends and bounds[0] - extent[0] <= _WHOLE * usual:
        bounds.insert(0, extent[0])
    if not ends and extent[1] - bounds[-1] <= _WHOLE * usual:
        bounds.append(extent[1])
    edges = np.array(bounds, np.int64)
    return InferredSteps(edges[:-1], edges[1:], seen[0][2], name)
