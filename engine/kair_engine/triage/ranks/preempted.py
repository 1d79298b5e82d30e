"""Accuses whom most waiting is for, where its threads stood still far oftener than its peers' did.

Stops are found within a rank, against what its operations usually take. Unlike an excess over peers they show which of
two ranks it is, and what a rank loses in most of its steps does not pass for its noise.
"""

from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np

from kair_engine.localize.anomalies import FALSE_ALARM_RATE, FEWEST_STEPS, SHARES, Anomaly, Preemption
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.localize.large_delays import STALL_SIZES, Events, chance_of
from kair_engine.localize.localization import Localization, also_slow
from kair_engine.localize.noise import TOP_BY_CHANCE, above_peers, steady_by_chance
from kair_engine.ranks import Position, Rank, rank_at
from kair_engine.results.blame import BlameResult
from kair_engine.stats import TRIM, trimmed_mean
from kair_engine.triage.ranks.top_waited_rank import MIN_ROLE_SIZE, top_waited_rank
from kair_engine.triage.waiting import MOST_OF_WAITING
from kair_engine.whatif.model import StoppedSteps

MIN_EXTRA_STOPPED = 0.08
"""A rank must stand still longer than its median peer by this share of the step; of two healthy ones one has 0.06."""
STEADY_WAITING_SHARE = 0.5
"""A rank that stands still in step after step is examined if it causes this share of all waiting."""
STEADY_EXCESS = 0.03
"""A rank that stands still in step after step must surely lose more than its peers by this share of the step."""
STEADY_BY_CHANCE = 0.001
"""The chance that one of the ranks is on top of its peers as often as that must be lower than this."""
STOPS_EXPLAIN = 0.5
"""Stops explain what a rank loses if they make up this part of it."""
_OF_THREADS = [CLASSES.index("compute"), CLASSES.index("host")]
"""Where stops of threads show: in the middle of operators, and between them."""


def with_preempted(
    found: Localization,
    blamed: BlameResult,
    stopped: StoppedSteps | None,
    oversubscribed: Sequence[Sequence[Rank]] = (),
) -> Localization:
    """`found`, with an anomaly more where most waiting is for a rank that stood still, and that no test has found.

    Ranks of `oversubscribed` share a core that others do not: what they have in common is no one's own.
    """
    if stopped is None or len(stopped.steps) < FEWEST_STEPS or not np.array_equal(stopped.ranks, found.job.ranks):
        return found
    for most_of_waiting, test in ((MOST_OF_WAITING, _oftener), (STEADY_WAITING_SHARE, _steadily)):
        place = top_waited_rank(found, blamed, most_of_waiting=most_of_waiting)
        if place is None or (slow := test(found, place, stopped)) is None:
            continue
        mates = {rank for some in oversubscribed if rank_at(found.job.ranks, place) in some for rank in some}
        if slow.kind != "persistent" or _longer_than(found.job, place, mates, stopped):
            return also_slow(found, slow)
    return found


def _oftener(found: Localization, place: Position, stopped: StoppedSteps) -> Anomaly | None:
    """What the stops of the rank at `place` say of it beside those of its role."""
    job = found.job
    peers = np.setdiff1d(np.flatnonzero(job.role == job.role[place]), [place])
    if not len(peers):
        return None
    of_step = float(np.median(stopped.length_ns))
    of_rank = stopped.stopped_ns.mean(axis=0)
    lost = float(of_rank[place] - np.median(of_rank[peers]))
    # Stops that make it no later than the other one are not what is waited for.
    own = np.nan_to_num(job.by_step_ns[:, :, [place, *peers]], nan=0.0).sum(axis=1)
    if lost <= MIN_EXTRA_STOPPED * of_step or float(above_peers(own, 0).mean()) <= 0:
        return None
    everybody = range(len(job.role))
    of_size = Events.of_sizes(stopped.stopped_ns, lambda size: np.full(len(stopped.steps), size * of_step))
    tests = len(job.role) * len(STALL_SIZES) / SHARES["intermittent"]
    p = min(1.0, tests * min(chance_of(place, events, job, everybody) for events in of_size))
    # Of two ranks it is known whom the waiting is for: the other one is no second thing that was tried.
    if p >= (TOP_BY_CHANCE if len(peers) == 1 else FALSE_ALARM_RATE):
        return None
    return preempted_anomaly("intermittent", found, place, stopped, p, lost)


def _steadily(found: Localization, place: Position, stopped: StoppedSteps) -> Anomaly | None:
    """Whether the rank at `place` stands still for longer than its peers in step after step, and is later by it.

    Ranks that share cores differ in how long they stand still, but take turns at it.
    """
    job = found.job
    members = np.flatnonzero(job.role == job.role[place])
    if len(members) < MIN_ROLE_SIZE:
        return None
    at, of_step = int(np.searchsorted(members, place)), float(np.median(stopped.length_ns))
    still, total = stopped.stopped_ns[:, members], np.nan_to_num(job.by_step_ns[:, :, members], nan=0.0).sum(axis=1)
    stands, loses = (float(trimmed_mean(above_peers(values, at), TRIM)) for values in (still, total))
    p = steady_by_chance(still, at, STEADY_EXCESS * of_step)
    if p >= STEADY_BY_CHANCE and stands >= STOPS_EXPLAIN * loses:
        p = steady_by_chance(total - np.median(total, axis=1)[:, None], at, STEADY_EXCESS * job.step_time_ns)
    return preempted_anomaly("persistent", found, place, stopped, p, stands) if p < STEADY_BY_CHANCE else None


def _longer_than(job: JobExcess, place: Position, mates: Collection[Rank], stopped: StoppedSteps) -> bool:
    """Whether it surely loses more than those that share its cores, as it must than its peers; so, too, without any."""
    alike = [at for at in np.flatnonzero(np.isin(job.ranks, sorted(mates))) if at != place]
    if not alike:
        return True
    total = np.nan_to_num(job.by_step_ns, nan=0.0).sum(axis=1)
    beyond = total[:, place] - np.median(total[:, alike], axis=1)
    return float(trimmed_mean(beyond, TRIM)) > STEADY_EXCESS * float(np.median(stopped.length_ns))


def preempted_anomaly(  # noqa: PLR0917  (each of another type, but for two)
    kind: Literal["persistent", "intermittent"],
    found: Localization,
    place: Position,
    stopped: StoppedSteps,
    p: float,
    lost_ns: float,
) -> Anomaly:
    """What is told of the rank at `place`; its events are steps of which a tenth and more went by in stops."""
    job = found.job
    peers = np.setdiff1d(np.flatnonzero(job.role == job.role[place]), [place])
    hit = stopped.stopped_ns > STALL_SIZES[0] * float(np.median(stopped.length_ns))
    of_rank = stopped.stopped_ns.mean(axis=0)
    stood = Preemption(
        steps=tuple(np.array(stopped.steps)[hit[:, place]].tolist()),
        of_steps=len(stopped.steps),
        longer=int(np.count_nonzero(above_peers(stopped.stopped_ns[:, [place, *peers]], 0) > 0)),
        peers_events=int(hit[:, peers].sum()),
        own_ns=float(of_rank[place]),
        peers_ns=float(np.median(of_rank[peers])),
    )
    in_class = np.nan_to_num(job.by_step_ns[:, _OF_THREADS, place], nan=0.0).mean(axis=0)
    row = _OF_THREADS[int(np.argmax(in_class))]
    return Anomaly(kind, (place,), row, p, lost_ns, preemption=stood)
