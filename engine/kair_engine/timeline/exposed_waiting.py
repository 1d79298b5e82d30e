"""How long devices waited in collectives for late ranks, and did nothing else meanwhile."""

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints, is_one_of
from kair_engine.frozen import dataclass
from kair_engine.timeline.clocks import Synchronisation
from kair_engine.timeline.spans import Clock, Spans
from kair_engine.trace.operations import COMPUTE, MEMORY, Operations


@dataclass(frozen=True)
class Computing:
    """When devices compute while they communicate: per span its rank (a position), begin and end, rank after rank."""

    rank: Ints
    begin_ns: Ints
    end_ns: Ints
    known: Bools
    """Per rank, whether its device computes at all."""

    @classmethod
    def of(cls, ops: Operations) -> "Computing":
        """Return the spans that communication overlaps; those of one rank neither touch nor overlap."""
        rows = np.flatnonzero(is_one_of(ops.kind, (COMPUTE, MEMORY)) & ops.on_stream)
        known = np.bincount(ops.rank[rows], minlength=len(ops.ranks)) > 0
        clock, meets = Clock.of(ops), np.flatnonzero(ops.communication)
        computes, communicates = (
            Spans.united(*(clock.at(ops.rank[some], of[some]) for of in (ops.start_ns, ops.end_ns)))
            for some in (rows, meets)
        )
        both = communicates.within(computes.begin, computes.end) > 0
        begin, end = computes.begin[both], computes.end[both]
        rank = clock.rank(begin)
        of_axis = clock.low[rank] - clock.begin[rank]
        return cls(rank, begin + of_axis, end + of_axis, known)


def exposed_waiting_ns(sync: Synchronisation, ranks: int, computing: Computing | None = None) -> Floats | None:
    """(ranks of the step): the time in which a rank waits in a collective and its device computes nothing.

    A wait that computing hides costs nothing: gradients that are reduced while the backward pass goes on are waited for
    as long as the slowest rank computes, in one collective after another.

    Return None if that does not show who comes late: some `ranks` of the job miss some collectives (a rank that waits
    for a late one is late for others), threads communicate (they do not leave together), or it is unknown when ranks
    compute, as in steps too large to be held. `computing` has these times if `sync` covers only what they meet in.
    """
    collectives, ops = sync.collectives, sync.collectives.ops
    rows = collectives.row
    if not len(rows) or collectives.rejected or (collectives.sizes < ranks).any() or not ops.on_stream[rows].all():
        return None
    computing = Computing.of(ops) if computing is None else computing
    if not computing.known.any():
        return None
    clock = Clock.of(ops)
    begin = clock.at(ops.rank[rows], ops.start_ns[rows])
    waits = Spans.united(begin, begin + collectives.wait_ns)
    computes = Spans.united(*(clock.at(computing.rank, of) for of in (computing.begin_ns, computing.end_ns)))
    exposed = waits.length_ns - computes.within(waits.begin, waits.end)
    return waits.by_rank(clock, len(ops.ranks), exposed)
