"""Chooses operations for a scenario, by what they are and not by when they ran."""

from collections.abc import Callable

import numpy as np

from kair_engine.arrays import Bools
from kair_engine.whatif.pipeline.rows import FORWARD, TRANSFERS, TYPES, PipelineRows

Choice = Callable[[PipelineRows], Bools]
"""A mask over rows, by all that alike steps have in common: dp rank, stage, type and turn."""
_MERGED = {
    **dict.fromkeys(TRANSFERS[:2], "forward-pp-comm"),
    **dict.fromkeys(TRANSFERS[2:], "backward-pp-comm"),
}


def everything(rows: PipelineRows) -> Bools:
    """All operations."""
    return np.ones(len(rows), dtype=bool)


def first_operations(rows: PipelineRows) -> Bools:
    """What a step begins with: the first stage's first forward computation, the other stages' first receive."""
    computes = (rows.type == TYPES.index(FORWARD)) & (rows.stage == 0)
    receives = (rows.type == TYPES.index("forward-recv")) & (rows.stage > 0)
    return np.asarray((computes | receives) & (rows.turn == 0))


def of_stage(stage: int) -> Choice:
    """Those of a pipeline stage."""
    return lambda rows: rows.stage == stage


def of_dp_rank(dp: int) -> Choice:
    """Those of a data-parallel rank."""
    return lambda rows: rows.dp == dp


def of_types(rows: PipelineRows) -> dict[str, Choice]:
    """Operation type → those of it; sends and receives of one direction count together [W]."""
    names = dict.fromkeys(_MERGED.get(TYPES[code], TYPES[code]) for code in np.flatnonzero(np.bincount(rows.type)))
    return {name: _of_type(name) for name in names}


def both(one: Choice, other: Choice) -> Choice:
    """Those that both choose."""
    return lambda rows: one(rows) & other(rows)


def all_but(choice: Choice) -> Choice:
    """Those that it does not choose."""
    return lambda rows: ~choice(rows)


def _of_type(name: str) -> Choice:
    chosen = np.array([_MERGED.get(one, one) == name for one in TYPES])
    return lambda rows: chosen[rows.type]
