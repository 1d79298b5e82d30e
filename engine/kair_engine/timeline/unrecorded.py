"""How long recorded ranks wait for ranks that left no trace.

Members of a collective leave together, so the last recorded one to arrive is there for the transfer alone. Where it is
there longer than the same collective ever took, it waits for a member that is not recorded.
"""

import re
from collections import defaultdict
from typing import Final

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints, is_one_of
from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank
from kair_engine.timeline.clocks import Synchronisation, synchronise
from kair_engine.timeline.spans import Clock, Spans
from kair_engine.trace.loading import each_step
from kair_engine.trace.model import Trace
from kair_engine.trace.operations import COLLECTIVE, COMPUTE, MEMORY, Operations

USUAL_QUANTILE: Final = 0.02
"""Of the times that one collective took at one size: what it takes without waiting, but for single odd ones."""
FEWEST_ALIKE: Final = 8
"""Collectives of one name and size: of fewer nothing is known of what one takes without waiting."""
FEWEST_IN_STEP: Final = 2
"""The same in one step: whoever is late once a step is as late in each, and only after a first one are others free of
waiting."""
_LISTED: Final = re.compile(r"\[\s*\d{1,9}(?:\s*,\s*\d{1,9})*\s*\]$")


@dataclass(frozen=True)
class Unrecorded:
    """What recorded ranks wait for ranks that are not recorded, at least."""

    ranks: tuple[Rank, ...]
    """Those that left no trace, and are members of what is waited in."""
    waited_ns: float
    """Per step, the mean over recorded ranks and steps, of time in which nothing is computed."""
    in_doubt_ns: float
    """The same of collectives whose transfer time is unknown: all of it may be waiting, or nothing."""
    at_most_ns: float
    """The same if all of it were waiting that goes by in collectives with such a member."""


_Key = tuple[str, int]


def unrecorded(trace: Trace) -> Unrecorded | None:
    """Return what is waited for the ranks that left no trace; None where no rank is missing, or no step has devices.

    It is a lower bound: a wait that every collective of a size has looks like its transfer. If a step has a single one
    of a size, transfer and waiting cannot be separated, and it is in doubt. Reads all steps.
    """
    missing: set[int] = set(trace.job.missing_ranks)
    if not missing or not trace.job.has_device:
        return None
    alike: dict[_Key, list[tuple[Floats, Floats]]] = defaultdict(list)
    members: set[int] = set()
    steps = 0
    for ops in each_step(trace):
        steps += 1
        for key, own, exposed, lacking in _of_step(ops, synchronise(ops), missing):
            alike[key].append((own, exposed))
            members |= lacking
    waited = in_doubt = at_most = 0.0
    for parts in alike.values():
        own, exposed = (np.concatenate(of) for of in zip(*parts, strict=True))
        at_most += float(exposed.sum())
        if len(own) < max(FEWEST_ALIKE, FEWEST_IN_STEP * steps):
            in_doubt += float(exposed.sum())
        else:
            waited += float(np.minimum(np.maximum(own - np.quantile(own, USUAL_QUANTILE), 0.0), exposed).sum())
    ranks = tuple(Rank(rank) for rank in sorted(members or missing))
    return Unrecorded(ranks, *(of / max(steps, 1) for of in (waited, in_doubt, at_most)))


def _of_step(ops: Operations, sync: Synchronisation, missing: set[int]) -> list[tuple[_Key, Floats, Floats, set[int]]]:
    """Return per name and size (self times, exposed times, missing members) of collectives that lack a member."""
    collectives = sync.collectives
    if not len(collectives):
        return []
    first = collectives.row[collectives.starts]
    lacking = {
        code: missing_members(ops.group_text.get(code), missing) for code in np.unique(ops.group[first]).tolist()
    }
    chosen = np.array([bool(lacking[code]) for code in ops.group[first].tolist()]) & (ops.kind[first] == COLLECTIVE)
    exposed = _exposed_ns(ops, sync)
    size = np.full(len(ops), NONE) if ops.message_bytes is None else ops.message_bytes
    result: dict[_Key, list[int]] = defaultdict(list)
    for instance in np.flatnonzero(chosen).tolist():
        row = int(first[instance])
        result[ops.operator(row), int(size[row])].append(instance)
    own = sync.own_ns.astype(float)
    return [
        (key, own[of], exposed[of], set().union(*(lacking[int(ops.group[first[at]])] for at in of)))
        for key, of in result.items()
    ]


def missing_members(group: str | None, missing: set[int]) -> set[int]:
    """Return the missing ranks that a group lists; all of them where it lists nobody: any may be a member."""
    listed = None if group is None else _LISTED.search(group)
    return missing if listed is None else missing & {int(rank) for rank in re.findall(r"\d+", listed[0])}


def _exposed_ns(ops: Operations, sync: Synchronisation) -> Floats:
    """Return per instance how long its transfer runs while nothing is computed, the mean over its members."""
    collectives = sync.collectives
    rows, instance = collectives.row, collectives.instance
    computing = np.flatnonzero(is_one_of(ops.kind, (COMPUTE, MEMORY)) & ops.on_stream)
    clock = Clock.of(ops)
    own = np.minimum(sync.own_ns[instance], collectives.duration_ns)
    end = clock.at(ops.rank[rows], ops.end_ns[rows])
    computes = Spans.united(*(clock.at(ops.rank[computing], of[computing]) for of in (ops.start_ns, ops.end_ns)))
    exposed: Ints = own - computes.within(end - own, end)
    return np.asarray(np.bincount(instance, weights=exposed) / collectives.sizes)
