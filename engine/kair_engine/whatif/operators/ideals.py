"""Works out the ideal of every part of a step: what it would take if its rank were like its peers."""

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, order_by
from kair_engine.results.fix import FIX_KINDS
from kair_engine.whatif.operators.parts import NodeParts


def ideal_ns(parts: NodeParts, role_size: Ints, among: Bools | None = None) -> Floats:
    """Per part the median over the ranks of its role in its step, in ns; `role_size` counts those, per part.

    The lower of two middle ones: of two ranks, or where half of a role is slow, the peers' ideal is that of the faster
    half. Ranks that do not run the operation spend nothing on it, and count with that. But a rank that runs another
    kernel instead (of another name, say) saves nothing by leaving that out: what only few ranks run is ideally nothing
    to the extent that its rank does not lack what most of them run.

    Of some ranks only: of those whose parts are `among`, which `role_size` then counts.
    """
    order = order_by(parts.step, parts.key)
    key, step = parts.key[order], parts.step[order]
    starts = np.flatnonzero(np.concatenate(([True], (key[1:] != key[:-1]) | (step[1:] != step[:-1]))))
    sizes = np.diff(np.concatenate((starts, [len(order)])))
    value, counted = parts.value_ns[order], sizes
    if among is not None:
        # The others come last.
        value = np.where(among[order], value, np.inf)
        counted = np.add.reduceat(among[order], starts, dtype=np.int64)
    peers = np.maximum(role_size[order[starts]], counted)
    middle = (peers - 1) // 2 - (peers - counted)
    common = (middle >= 0) & (counted > 0)
    typical = np.where(common, _smallest(value, starts, sizes, np.maximum(middle, 0)), 0.0)
    group = np.empty(len(order), dtype=np.int64)
    group[order] = np.repeat(np.arange(len(starts)), sizes)
    ideal = typical[group]
    rare = ~common[group]
    if rare.any():
        ideal[rare] = (parts.value_ns * _replacing(parts, typical, group, ideal, rare))[rare]
    return ideal


def _smallest(values: Floats, starts: Ints, sizes: Ints, place: Ints) -> Floats:
    """Per group of consecutive values the one that would be at `place` if the group were sorted.

    Groups of one size are looked at together: most have as many members as there are ranks.
    """
    result = np.empty(len(starts))
    for size in np.unique(sizes).tolist():
        groups = np.flatnonzero(sizes == size)
        members = values[starts[groups][:, None] + np.arange(size)]
        for at in np.unique(place[groups]).tolist():
            chosen = place[groups] == at
            result[groups[chosen]] = np.partition(members[chosen], at, axis=1)[:, at]
    return result


def _replacing(parts: NodeParts, typical: Floats, group: Ints, ideal: Floats, rare: Bools) -> Floats:
    """Per part the share of what its rank alone runs, in its step and kind, that it runs instead of what others do."""
    kinds, ranks, roles = len(FIX_KINDS) + 1, int(parts.rank.max()) + 1, int(parts.role.max()) + 1
    kind = parts.kind.astype(np.int64) - NONE
    member = np.empty(len(typical), dtype=np.int64)
    member[group] = np.arange(len(group))
    # Delays before the same operation can be the host's on one rank only: the kind that most of them are of counts.
    usual = np.bincount(group * kinds + kind, minlength=len(typical) * kinds).reshape(-1, kinds).argmax(axis=1)
    role = parts.step.astype(np.int64) * roles + parts.role
    expected = np.bincount(role[member] * kinds + usual, weights=typical, minlength=(int(role.max()) + 1) * kinds)
    cell = (parts.step.astype(np.int64) * ranks + parts.rank) * kinds + kind
    present = np.bincount(cell, weights=ideal)
    alone = np.bincount(cell, weights=np.where(rare, parts.value_ns, 0.0))
    lacking = np.maximum(expected[role * kinds + kind] - present[cell], 0.0)
    return np.where(alone[cell] > 0, np.minimum(lacking / np.maximum(alone[cell], 1.0), 1.0), 0.0)
