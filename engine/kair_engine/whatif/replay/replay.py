"""Replays a dependency graph with other durations, many scenarios at once [W §3].

A node starts when all nodes it depends on have ended. A node of its own ends its duration later; the nodes of a
communication end once all of them have started, each after its own transfer time.
"""

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.whatif.replay.plan import Plan, Starts


def replay(
    order: Plan, durations: Floats, *, delays: Floats | None = None, lanes: int = 1, across: Bools | None = None
) -> None:
    """Puts when every node ends into the place of the durations (transfer times where nodes communicate).

    All arrays are (the plan's places × scenarios), in one unit. `delays` come between the last predecessor's end and a
    node's start, which is 0 without predecessors; nodes that wait for one another in a circle end at NaN.

    Of several `lanes` (the scenarios are those of the first, then of the second …) all run the graph, each with its
    own durations; the communications of the nodes `across` begin when the members of all lanes have come.
    """
    ends, joined = durations, 0
    came = np.empty((sum(level.joining.count for level in order.levels), durations.shape[1]))

    def ready(starts: Starts, places: Ints | slice) -> Floats:
        at = _last_end(starts, ends)
        if delays is not None:
            at += delays[places]
        return at

    for level in order.levels:
        until = level.begin + level.alone.count
        if level.alone.count:
            ends[level.begin : until] += ready(level.alone, slice(level.begin, until))
        if level.joining.count:
            came[joined : joined + level.joining.count] = ready(level.joining, level.joins)
            joined += level.joining.count
        for members in level.members:
            begins, until = until, until + members.size
            # Not reduceat, which takes ten times as long.
            arrived = came[members].max(axis=1)
            if across is not None:
                _meet(arrived.reshape(len(members), lanes, -1), across[begins : until : members.shape[1]])
            ends[begins:until].reshape(*members.shape, -1)[:] += arrived[:, None]
    ends[order.ended :] = np.nan


def _last_end(starts: Starts, ends: Floats) -> Floats:
    """(nodes × scenarios): when the last of each node's predecessors ended; 0 without any."""
    if not starts.before:
        return np.zeros((starts.count, ends.shape[1]))
    at = ends[starts.before[0]]
    for before in starts.before[1:]:
        part = at[: len(before)]
        np.maximum(part, ends[before], out=part)
    return at


def _meet(arrived: Floats, across: Bools) -> None:
    """Communications (× lanes × scenarios) that are across lanes begin when the last lane has come."""
    if across.any():
        arrived[across] = arrived[across].max(axis=1, keepdims=True)
