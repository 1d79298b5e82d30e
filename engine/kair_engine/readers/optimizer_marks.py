"""Steps told by what a training loop does once in each: the optimizer's step, its zero_grad, the next batch."""

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from kair_engine.readers.columns import Int64s
from kair_engine.readers.step_marks import Mark, Steps

_SIGNS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (r"optimizer\.step#", r"optimizer\.zero_grad#", r"enumerate\(dataloader\)")
)
"""The best first: gradients may be zeroed, and batches be fetched, several times a step."""
_FEWEST: Final = 3
"""Times that a mark must be seen: between them lie two steps."""
_WHOLE: Final = 1.5
"""Of the usual step: what lies at the recording's edge is a step only where it holds no more than that."""


def between_optimizers(marks: Sequence[Mark], work: Int64s, extent: tuple[int, int]) -> Steps | None:
    """The steps between the best of the marks, numbered from 0; None where there is none.

    A step ends with the optimizer's; gradients are zeroed and a batch is fetched where one begins. Of several
    optimizers the one that steps least often tells. `work` are the moments at which something was called, launched or
    run, in order: what lies before the first mark, or after the last, is a step where it holds as much as one.
    """
    for at, sign in enumerate(_SIGNS):
        seen: dict[str, list[Mark]] = {}
        for mark in marks:
            if sign.match(mark.name):
                seen.setdefault(mark.name, []).append(mark)
        names = sorted(name for name, some in seen.items() if len(some) >= _FEWEST)
        if names:
            name = min(names, key=lambda one: len(seen[one]))
            return _between(name, seen[name], work, extent, ends=at == 0)
    return None


def _between(name: str, seen: Sequence[Mark], work: Int64s, extent: tuple[int, int], *, ends: bool) -> Steps:
    inner = sorted(mark.end if ends else mark.begin for mark in seen)
    edges = np.array([extent[0], *inner] if ends else [*inner, extent[1] + 1], np.int64)
    held = np.diff(np.searchsorted(work, edges))
    edge, whole = (held[0], held[1:]) if ends else (held[-1], held[:-1])
    if not whole.min() <= edge <= _WHOLE * np.median(whole):
        edges = edges[1:] if ends else edges[:-1]
    return Steps(np.arange(len(edges) - 1), edges[:-1], edges[1:], name)
