"""What happens only at times: pauses of the forward pass (garbage collection), transfers that flap [W §5].

Both are found by their pattern, and priced by a replay without their excess.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.collectives import dense
from kair_engine.stats import binomial_tail, median_by
from kair_engine.whatif.attribution import by_microbatch, ratio
from kair_engine.whatif.pipeline_model import whole_groups
from kair_engine.whatif.pipeline_rows import BACKWARD, FORWARD, TRANSFERS, TYPES, PipelineRows
from kair_engine.whatif.pipeline_times import PipelineTimes, step_times
from kair_engine.whatif.replay import replay
from kair_engine.whatif.result import Cause, CauseName

PAUSE = 0.3
"""A forward computation this much above what is expected of it paused; on production traces without pauses the largest
of 23,000 is 0.11 above."""
FORWARD_ONLY = 0.1
"""Backward is launched by C++ threads, which do not collect garbage: its pauses are at most this share of forward's."""
PLACES = 3
"""On so many workers (or all, where there are fewer) and in so many steps: below nothing is scattered."""
CONCENTRATED, CHANCE = 0.25, 0.01
"""One worker, or stage, has this share of all pauses above its fair one, and chance would do that as rarely."""
FLAP = 3.0
"""A transfer that takes this many times its own median flaps; one in 100 of production transfers takes 1.1 to 2.2."""
SAMPLES = 5
"""A transfer must recur this often for a median of its own."""


def irregular_causes(
    times: PipelineTimes, rank_of: Mapping[tuple[int, int], int], *, replayed_ns: float, ideal_ns: float
) -> Iterator[Cause]:
    """Of each pattern that the recording shows, what its removal takes away; it may be little."""
    if replayed_ns <= ideal_ns:
        return
    shown: dict[CauseName, tuple[Ints, Floats]] = {
        "garbage_collection": forward_pauses(times),
        "communication_flapping": flapping_transfers(times),
    }
    shown = {name: found for name, found in shown.items() if len(found[0])}
    if not shown:
        return
    durations = np.repeat(times.own_ns[:, None], len(shown), axis=1)
    for at, (rows, expected) in enumerate(shown.values()):
        durations[rows, at] = expected
    removed = step_times(times.rows, replay(times.order, durations)).mean(axis=1).tolist()
    for (name, (rows, _)), without in zip(shown.items(), removed, strict=True):
        ranks, steps = _ranks(times.rows, rows, rank_of), np.unique(times.rows.step[rows]).size
        share = ratio(replayed_ns - without, replayed_ns - ideal_ns)
        yield Cause(name, _text(name, times.rows, rows, f"on {len(ranks)} ranks in {steps} steps"), ranks, share)


def forward_pauses(times: PipelineTimes) -> tuple[Ints, Floats]:
    """(rows of forward computations that paused, what they take without it, ns); none where the pattern is another.

    Expected of a computation is its worker's median for that chunk, times the largest of 1, what its microbatch's
    other direction took over its own median (long sequences), and what is usual at this place in the step: so neither
    slow workers, nor long sequences, nor slow first microbatches are pauses.
    """
    forward, expected = _above(times, FORWARD, BACKWARD)
    backward, usual = _above(times, BACKWARD, FORWARD)
    excess, of_backward = (
        float((times.own_ns[rows] - of).sum()) for rows, of in ((forward, expected), (backward, usual))
    )
    nothing = np.zeros(0, dtype=np.int64), np.zeros(0)
    return (forward, expected) if of_backward <= FORWARD_ONLY * excess and _scattered(times, forward) else nothing


def _above(times: PipelineTimes, direction: str, other: str) -> tuple[Ints, Floats]:
    rows = times.rows
    (own, key), (others, other_key) = (by_microbatch(rows, name) for name in (direction, other))
    typical, ratio = _own_ratio(times, own)
    length = np.ones(len(own))
    _, left, right = np.intersect1d(key, other_key, assume_unique=True, return_indices=True)
    length[left] = _own_ratio(times, others)[1][right]
    place = dense(np.stack((rows.stage[own], rows.turn[own])))
    expected = typical * np.maximum.reduce((np.ones(len(own)), length, median_by(place, ratio)))
    paused = times.own_ns[own] > expected * (1 + PAUSE)
    return own[paused], expected[paused]


def _own_ratio(times: PipelineTimes, chosen: Ints) -> tuple[Floats, Floats]:
    """Per computation the median of its worker and chunk, and how many times as long it took."""
    rows, own = times.rows, times.own_ns[chosen]
    typical = median_by(dense(np.stack((rows.dp[chosen], rows.stage[chosen], rows.chunk[chosen]))), own)
    return typical, own / np.maximum(typical, 1.0)


def _scattered(times: PipelineTimes, paused: Ints) -> bool:
    """Whether many workers pause in many steps, no worker and no stage by far most."""
    rows = times.rows
    worker, workers = rows.dp[paused] * rows.pp_size + rows.stage[paused], rows.dp_size * rows.pp_size
    several = np.unique(worker).size >= min(PLACES, workers) and np.unique(rows.step[paused]).size >= PLACES
    return several and not _concentrated(worker, workers) and not _concentrated(rows.stage[paused], rows.pp_size)


def _concentrated(place: Ints, places: int) -> bool:
    most, count = int(np.bincount(place).max()), len(place)
    if places < 2 or most / count - 1 / places <= CONCENTRATED:
        return False
    return places * binomial_tail(most, count, 1 / places) < CHANCE


def flapping_transfers(times: PipelineTimes) -> tuple[Ints, Floats]:
    """(rows of communications that flap, their own medians, ns).

    Their own time is what is left once all members have come, so late arrival explains none of it. The same transfer:
    of one sender to one receiver, or of one group the n-th collective of its type. Those whose other members are not
    recorded may only have waited for them, and are left out.
    """
    rows = times.rows
    chosen = np.flatnonzero(whole_groups(rows, times.model.graph.group))
    turn = np.where(np.isin(rows.type, [TYPES.index(name) for name in TRANSFERS]), 0, rows.turn)
    same = dense(np.stack((rows.dp, rows.stage, rows.type, turn))[:, chosen])
    own, often = times.own_ns[chosen], np.bincount(same)[same] >= SAMPLES
    typical = median_by(same, own)
    flaps = often & (typical > 0) & (own > FLAP * typical)
    return chosen[flaps], typical[flaps]


def _ranks(rows: PipelineRows, chosen: Ints, rank_of: Mapping[tuple[int, int], int]) -> tuple[int, ...]:
    places = {divmod(place, rows.pp_size) for place in np.unique(rows.dp[chosen] * rows.pp_size + rows.stage[chosen])}
    return tuple(sorted(rank_of[place] for place in places if place in rank_of))


def _text(name: CauseName, rows: PipelineRows, chosen: Ints, where: str) -> str:
    if name == "garbage_collection":
        return f"garbage collection ({len(chosen)} forward computations pause {where}, backward does not)"
    types = ", ".join(sorted({TYPES[code] for code in rows.type[chosen].tolist()}))
    return f"communication flapping ({len(chosen)} transfers take over {FLAP:.0f} times their median {where}: {types})"
