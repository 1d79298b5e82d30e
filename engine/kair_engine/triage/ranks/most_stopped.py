"""Accuses whom most waiting is for, where its threads stood still far oftener than its peers' did.

Stops are found within a rank, against what its operations usually take. Unlike an excess over peers they show which of
two ranks it is, and what a rank loses in most of its steps does not pass for its noise.
"""

import numpy as np

from kair_engine.localize.anomalies import (
    FALSE_ALARM_RATE,
    FEWEST_STEPS,
    SHARES,
    STALL_SIZES,
    Anomaly,
    Events,
    StoodStill,
    chance_of,
)
from kair_engine.localize.excess import CLASSES
from kair_engine.localize.localization import Localization, also_slow
from kair_engine.localize.noise import TOP_BY_CHANCE
from kair_engine.ranks import Position
from kair_engine.results.blame import BlameResult
from kair_engine.triage.ranks.most_awaited import most_awaited
from kair_engine.whatif.model import StoppedSteps

LONGER_STILL = 0.08
"""Of the step: how much longer than its median peer it must stand still; of two healthy ranks one does by 0.06."""
_OF_THREADS = [CLASSES.index("compute"), CLASSES.index("host")]
"""Where stops of threads show: in the middle of operators, and between them."""


def with_most_stopped(found: Localization, blamed: BlameResult, stopped: StoppedSteps | None) -> Localization:
    """`found`, with an anomaly more where most waiting is for a rank that stood still, and that no test has found."""
    if stopped is None or len(stopped.steps) < FEWEST_STEPS or not np.array_equal(stopped.ranks, found.job.ranks):
        return found
    place = most_awaited(found, blamed)
    slow = None if place is None else _oftener(found, place, stopped)
    return found if slow is None else also_slow(found, slow)


def _oftener(found: Localization, place: Position, stopped: StoppedSteps) -> Anomaly | None:
    """What the stops of the rank at `place` say of it beside those of its role."""
    job = found.job
    peers = np.setdiff1d(np.flatnonzero(job.role == job.role[place]), [place])
    if not len(peers):
        return None
    of_step = float(np.median(stopped.length_ns))
    of_rank = stopped.stopped_ns.mean(axis=0)
    lost = float(of_rank[place] - np.median(of_rank[peers]))
    if lost <= LONGER_STILL * of_step:
        return None
    everybody = range(len(job.role))
    of_size = [Events.of(stopped.stopped_ns > size * of_step, size) for size in STALL_SIZES]
    tests = len(job.role) * len(STALL_SIZES) / SHARES["intermittent"]
    p = min(1.0, tests * min(chance_of(place, events, job, everybody) for events in of_size))
    # Of two ranks it is known whom the waiting is for: the other one is no second thing that was tried.
    if p >= (TOP_BY_CHANCE if len(peers) == 1 else FALSE_ALARM_RATE):
        return None
    hit = of_size[0].hit
    stood = StoodStill(
        steps=tuple(np.array(stopped.steps)[hit[:, place]].tolist()),
        of_steps=len(stopped.steps),
        peers_events=int(hit[:, peers].sum()),
        own_ns=float(of_rank[place]),
        peers_ns=float(np.median(of_rank[peers])),
    )
    in_class = np.nan_to_num(job.by_step_ns[:, _OF_THREADS, place], nan=0.0).mean(axis=0)
    row = _OF_THREADS[int(np.argmax(in_class))]
    return Anomaly("intermittent", (place,), row, p, lost, stood_still=stood)
