"""Says of the parts of steps which they are, so that the same ones of another recording can be found."""

from collections.abc import Sequence

import numpy as np

from kair_engine.arrays import NONE, Ints
from kair_engine.timeline.self_time import INPUT_PHASE
from kair_engine.trace.operations import Operations
from kair_engine.whatif.model import Parts
from kair_engine.whatif.operators.dependencies import OperatorDependencies


def parts_told(of: OperatorDependencies, steps: Sequence[Operations]) -> Parts:
    """The parts of some steps that were joined in one graph; what runs within an input fetch is the fetch's."""
    parts = of.parts
    count = len(parts.node)
    at, rank, number = (np.zeros(count, dtype=np.int64) for _ in range(3))
    operator, phase, call = (np.full(count, NONE, dtype=np.int64) for _ in range(3))
    for place, ops in enumerate(steps):
        mine = np.flatnonzero(parts.step == place)
        at[mine], number[mine], rank[mine] = np.arange(len(mine)), ops.step, ops.ranks[parts.rank[mine]]
        mine = mine[parts.row[mine] != NONE]
        row = _fetch(ops)[parts.row[mine]]
        operator[mine], phase[mine], call[mine] = ops.name[row], ops.phase[row], ops.occurrence[row]
    group = of.graph.group[parts.node]
    return Parts(
        step=number,
        at=at,
        rank=rank,
        operator=operator,
        kind=parts.kind.astype(np.int64),
        which=np.stack((phase, call)),
        delay=parts.delay,
        transfer=np.where(parts.own, group, NONE),
        value_ns=parts.value_ns,
        operators=steps[0].name_text,
    )


def _fetch(ops: Operations) -> Ints:
    """Per operation the outermost one of the input phase around it; of all others themselves."""
    owner, parent = np.arange(len(ops)), ops.nesting.parent
    in_phase = ops.phase == INPUT_PHASE
    while (inside := in_phase[owner] & (parent[owner] != NONE) & in_phase[parent[owner]]).any():
        owner = np.where(inside, parent[owner], owner)
    return owner
