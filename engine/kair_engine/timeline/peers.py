"""Logical operators: the same operation on the ranks of one role, and statistics over those peers."""

from collections.abc import Iterator

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.stats import MAD_TO_SIGMA
from kair_engine.trace.operations import KIND_NAMES, PHASE_NAMES, Operations


def logical_keys(ops: Operations, role_of_rank: Ints) -> Ints:
    """One number per row, equal for the same logical operator (role, phase, kind, name, occurrence) on its peers.

    `role_of_rank` holds a role code per position in `ops.ranks`.
    """
    names = int(ops.name.max(initial=0)) + 1
    occurrences = int(ops.occurrence.max(initial=0)) + 1
    phases = len(PHASE_NAMES) + 1
    role = role_of_rank[ops.rank] if len(ops) else ops.rank
    # torch.compile gives a host operator and its kernel one name; occurrences are counted by kind.
    which = (role * phases + ops.phase - NONE) * len(KIND_NAMES) + ops.kind
    return (which * names + ops.name) * occurrences + ops.occurrence


@dataclass(frozen=True)
class PeerGroups:
    """Rows grouped by logical operator.

    `rows` lists the rows group after group; `starts` and `sizes` cut it into groups.
    """

    rows: Ints
    starts: Ints
    sizes: Ints

    @classmethod
    def of(cls, keys: Ints, selected: Ints) -> "PeerGroups":
        """Groups the `selected` rows by their key."""
        order = selected[np.argsort(keys[selected], kind="stable")]
        ordered = keys[order]
        starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1]))) if len(order) else order
        return cls(order, starts, np.diff(np.concatenate((starts, [len(order)]))))

    def blocks(self, smallest: int = 1) -> Iterator[Ints]:
        """Rows as (groups × peers) matrices, one for each group size of at least `smallest`."""
        for size in np.unique(self.sizes):
            if size >= smallest:
                begin = self.starts[self.sizes == size]
                yield self.rows[begin[:, None] + np.arange(size)]


def split_off(ops: Operations, block: Ints, rank: int) -> tuple[Ints, Ints]:
    """Of a (groups × peers) block the groups the rank (a position) is part of: its rows, and the others'.

    Returns shapes (groups,) and (groups, peers − 1).
    """
    mine = ops.rank[block] == rank
    once = mine.sum(axis=1) == 1
    block, mine = block[once], mine[once]
    return block[mine], block[~mine].reshape(len(block), block.shape[1] - 1)


def robust_sigma(data: Floats) -> Floats:
    """1.4826 · MAD of each row of (groups × peers)."""
    deviation = np.abs(data - np.median(data, axis=1, keepdims=True))
    return np.asarray(MAD_TO_SIGMA * np.median(deviation, axis=1))


def main_lane_rows(ops: Operations) -> Bools:
    """True for rows on their rank's main thread."""
    return ops.lane == ops.main_lane[ops.rank] if len(ops) else np.zeros(0, dtype=bool)
