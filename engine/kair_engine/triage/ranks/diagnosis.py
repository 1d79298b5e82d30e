"""What a reason is, and whom and when it is about: the ranks' peers, the steps in which they are slow.

Ranks whose device or host idles: for the profiler, for launches, for a batch, for a collection of garbage.

Ranks whose threads stand still for longer than their peers': the processor that they run on, whatever it slows.
"""

from collections.abc import Mapping

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.causes import Cause
from kair_engine.frozen import dataclass
from kair_engine.localize.compared import Compared
from kair_engine.localize.excess import CLASSES
from kair_engine.results import evidence_kinds as kinds
from kair_engine.results.blame import BlameResult
from kair_engine.results.evidence_kinds import Evidence, ShownBy
from kair_engine.results.whatif import HostStops
from kair_engine.stats import TRIM, median, trimmed_mean
from kair_engine.step_bar import StepPartsTally
from kair_engine.timeline.account import KINDS
from kair_engine.timeline.host_activity import CALLS, HOST_KINDS

MIN_EXPLAINED = 0.5
"""More calls, or stops, must make up this part of what a rank loses to be called its cause."""
MOST_STEPS = 0.75
"""A rank that stalls in more than this share of the steps is slow persistently."""


@dataclass(frozen=True)
class Diagnosis:
    """A rank's cause, with the operator that it comes from where there is one, and what speaks for it."""

    cause: Cause
    operator: str | None = None
    evidence: tuple[Evidence, ...] = ()


def held_by_profiler(of: Compared) -> Diagnosis | None:
    """Of ranks that their profiler holds up for longer than their peers' does, by most of what they lose."""
    mine, usual = of.means(of.job.profiling_ns)
    if mine - usual < MIN_EXPLAINED * of.largest.excess_ns or mine <= 0:
        return None
    return Diagnosis("profiler", None, (kinds.Profiler(mine / 1e3, usual / 1e3, ranks=of.ranks),))


def held_by_calls(of: Compared) -> Diagnosis | None:
    """Return the cause of ranks whose hosts compile, or allocate, for longer than peers' by most of what they lose."""
    for kind in CALLS:
        mine, usual = of.means(of.job.activity_ns[:, HOST_KINDS.index(kind)])
        if mine > usual and mine - usual >= MIN_EXPLAINED * of.largest.excess_ns:
            return Diagnosis(kind, None, (kinds.InCalls(mine / 1e3, usual / 1e3, ranks=of.ranks, about=kind),))
    return None


def slower_launches(of: Compared, parts: StepPartsTally) -> Diagnosis | None:
    """Return that a device idles between launches for longer than its peers', by most of what it loses."""
    mine, usual = of.means(parts.by_step_ns(KINDS, ("launches",)), parts.divided)
    if mine - usual < MIN_EXPLAINED * of.largest.excess_ns:
        return None
    return Diagnosis("launch_bound", None, (kinds.SlowerLaunches(mine / 1e3, usual / 1e3, ranks=of.ranks),))


def idle_host(of: Compared, blamed: BlameResult) -> Diagnosis:
    """Garbage collection where blame saw that behind the host's gaps, the input where batches are fetched in them."""
    host = [c for c in blamed.root_causes if c.rank in of.ranks and c.cause in {"host", "garbage_collection"}]
    collected = sum(c.blamed_us for c in host if c.cause == "garbage_collection")
    if host and collected * 2 > sum(c.blamed_us for c in host):
        return Diagnosis("garbage_collection")
    return _of_unmarked_input(of) or Diagnosis("host")


def _of_unmarked_input(of: Compared) -> Diagnosis | None:
    """Ranks that are idle in every step where a batch is fetched, by most of what they lose."""
    if of.largest.kind == "intermittent" or not of.peers:
        return None  # what comes now and then may be what is meant to, as checkpoints are
    idle_ns = of.job.fetching_ns[of.later]
    mine, usual = float(np.median(idle_ns[:, of.mine].mean(axis=1))), float(np.median(idle_ns[:, of.peers]))
    if mine - usual < MIN_EXPLAINED * of.largest.excess_ns:
        return None
    return Diagnosis("unmarked_input", None, (kinds.UnmarkedInput(mine / 1e3, usual / 1e3, ranks=of.ranks),))


MOSTLY_ONE = 0.8
"""What a rank loses is not all over if more of it than this part is in one operator, between operators, or on links."""


def all_over(of: Compared, stops: HostStops | None) -> Diagnosis | None:
    """Return the stops, in operators and between them, of a rank that is slow in most steps and not in one place
    mostly.

    Whatever it is slowest in: a rank without a core is late with all that it does.
    """
    job, largest = of.job, of.largest
    often = largest.kind == "persistent" or largest.events[0] > MOST_STEPS * len(job.steps)
    if largest.kind == "group" or not often or not of.peers:
        return None

    def lost(per_step: Floats) -> float:
        return float(trimmed_mean(per_step[:, of.mine[0]] - median(per_step[:, of.peers], axis=1), TRIM))

    of_class = np.nan_to_num(job.by_step_ns, nan=0.0)
    everything = lost(of_class.sum(axis=1))
    outside = [lost(of_class[:, CLASSES.index(name)]) for name in ("host", "communication")]
    mostly = max(outside + [lost(job.operator_ns(name)[0]) for name in job.operators])
    if everything <= 0 or mostly > MOSTLY_ONE * everything:
        return None
    found = None if stops is None else more_stops(of, stops.by_rank_us, everything, between=1)
    return None if found is None else Diagnosis("contention", None, (found,))


def stopped(of: Compared, stops: HostStops | None) -> Diagnosis | None:
    """Return the stops in the middle of operators, where the ranks have so many more than their peers."""
    found = None if stops is None else more_stops(of, stops.inside_by_rank_us, of.largest.excess_ns)
    return None if found is None else Diagnosis("contention", None, (found,))


def more_stops(
    of: Compared, of_rank_us: Mapping[int, float], lost_ns: float, *, between: int | None = None
) -> kinds.Stopped | None:
    """Return what the ranks stand still for a step, where that is longer than their peers by most of what they lose."""
    still = np.array([of_rank_us.get(rank, 0.0) for rank in of.job.ranks.tolist()])
    mine, usual = float(still[of.mine].mean()), float(np.median(still[of.peers])) if of.peers else 0.0
    if (mine - usual) * 1e3 < MIN_EXPLAINED * lost_ns:
        return None
    return kinds.Stopped(mine, usual, between, shown_by=ShownBy("whatif"), ranks=of.ranks)
