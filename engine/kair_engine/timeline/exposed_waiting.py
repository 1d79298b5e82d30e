"""How long devices waited in collectives for late ranks, and did nothing else meanwhile."""

import numpy as np

from kair_engine.arrays import Floats, is_one_of
from kair_engine.timeline.clocks import Synchronisation
from kair_engine.timeline.spans import Clock, Spans
from kair_engine.trace.operations import COMPUTE, MEMORY


def exposed_waiting_ns(sync: Synchronisation, ranks: int) -> Floats | None:
    """(ranks of the step): the time in which a rank waits in a collective and its device computes nothing.

    A wait that computing hides costs nothing: gradients that are reduced while the backward pass goes on are waited for
    as long as the slowest rank computes, in one collective after another.

    None where that does not tell who comes late: not all `ranks` of the job meet in every collective (who waits for a
    late rank is late for others), threads communicate (they do not leave together), or what ranks compute is not at
    hand, as of steps that are too large to be held.
    """
    collectives, ops = sync.collectives, sync.collectives.ops
    rows = collectives.row
    if not len(rows) or collectives.rejected or (collectives.sizes < ranks).any() or not ops.on_stream[rows].all():
        return None
    computing = np.flatnonzero(is_one_of(ops.kind, (COMPUTE, MEMORY)) & ops.on_stream)
    if not len(computing):
        return None
    clock = Clock.of(ops)
    begin = clock.at(ops.rank[rows], ops.start_ns[rows])
    waits = Spans.united(begin, begin + collectives.wait_ns)
    computes = Spans.united(
        clock.at(ops.rank[computing], ops.start_ns[computing]), clock.at(ops.rank[computing], ops.end_ns[computing])
    )
    exposed = waits.length_ns - computes.within(waits.begin, waits.end)
    return waits.by_rank(clock, len(ops.ranks), exposed)
