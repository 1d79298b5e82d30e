"""Finds irregular delays: pauses of the forward pass (garbage collection), transfers that flap [W §5].

Both are found by their pattern, and priced by a replay without their excess.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints, dense, present
from kair_engine.results.whatif import CauseName, SlowdownCause
from kair_engine.stats import binomial_tail, median_by
from kair_engine.whatif.pipeline.microbatches import Microbatches
from kair_engine.whatif.pipeline.rows import TRANSFERS, TYPES, PipelineRows, is_type
from kair_engine.whatif.pipeline.times import PipelineTimes
from kair_engine.whatif.ratios import ratio

PAUSE = 0.3
"""A forward computation this much above what is expected of it paused; on production traces without pauses the largest
of 23,000 is 0.11 above."""
BACKWARD_PAUSES = 0.1
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
    times: PipelineTimes,
    batches: Microbatches,
    rank_of: Mapping[tuple[int, int], int],
    *,
    replayed_ns: float,
    ideal_ns: float,
) -> Iterator[SlowdownCause]:
    """Of each pattern that the recording shows, what its removal takes away; it may be little."""
    if replayed_ns <= ideal_ns:
        return
    shown: dict[CauseName, tuple[Ints, Floats]] = {
        "garbage_collection": forward_pauses(times, batches),
        "communication_flapping": flapping_transfers(times),
    }
    shown = {name: found for name, found in shown.items() if len(found[0])}
    for name, (rows, expected) in shown.items():
        durations = times.own_ns.copy()
        durations[rows] = expected
        without = float(times.steps_with(durations).mean())
        share = ratio(replayed_ns - without, replayed_ns - ideal_ns)
        yield _cause(name, times.rows, rows, _ranks(times.rows, rows, rank_of), share)


def forward_pauses(times: PipelineTimes, batches: Microbatches) -> tuple[Ints, Floats]:
    """(rows of forward computations that paused, what they take without it, ns); none where the pattern is another.

    Expected of a computation is its worker's median for that chunk, times the largest of 1, what its microbatch's
    other direction took over its own median (long sequences), and what is usual at this place in the step: so neither
    slow workers, nor long sequences, nor slow first microbatches are pauses.
    """
    directions = [_Direction(times, rows) for rows in (batches.forward, batches.backward)]
    (forward, expected), (backward, usual) = (_above(times, *of) for of in (directions, directions[::-1]))
    excess, of_backward = (
        float((times.own_ns[rows] - of).sum()) for rows, of in ((forward, expected), (backward, usual))
    )
    nothing = np.zeros(0, dtype=np.int64), np.zeros(0)
    return (forward, expected) if of_backward <= BACKWARD_PAUSES * excess and _scattered(times, forward) else nothing


class _Direction:
    """One computation of each microbatch, beside the median of its worker and chunk."""

    def __init__(self, times: PipelineTimes, of_batch: Ints) -> None:
        rows = times.rows
        self.of_batch = of_batch
        """Row, or NONE."""
        self.rows = of_batch[of_batch != NONE]
        own = times.own_ns[self.rows]
        worker = np.stack((rows.dp[self.rows], rows.stage[self.rows], rows.chunk[self.rows]))
        self.typical = median_by(dense(worker), own)
        self.ratio = own / np.maximum(self.typical, 1.0)


def _above(times: PipelineTimes, own: _Direction, other: _Direction) -> tuple[Ints, Floats]:
    """The rows that take much longer than expected, and what is expected of them."""
    rows = times.rows
    length = np.ones(len(own.of_batch))
    length[other.of_batch != NONE] = other.ratio
    place = dense(np.stack((rows.stage[own.rows], rows.turn[own.rows])))
    usual = np.maximum(length[own.of_batch != NONE], median_by(place, own.ratio))
    expected = own.typical * np.maximum(usual, 1.0)
    paused = times.own_ns[own.rows] > expected * (1 + PAUSE)
    return own.rows[paused], expected[paused]


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

    Their self time is what is left once all members have come, so late arrival explains none of it. The same transfer:
    of one sender to one receiver, or of one group the n-th collective of its type. Those whose other members are not
    recorded may only have waited for them, and are left out.
    """
    rows = times.rows
    chosen = np.flatnonzero(times.whole)
    kind = rows.type[chosen]
    turn = np.where(is_type(kind, *TRANSFERS), 0, rows.turn[chosen])
    same = dense(np.stack((rows.dp[chosen], rows.stage[chosen], kind, turn)))
    own, often = times.own_ns[chosen], np.bincount(same)[same] >= SAMPLES
    typical = median_by(same, own)
    flaps = often & (typical > 0) & (own > FLAP * typical)
    return chosen[flaps], typical[flaps]


def _ranks(rows: PipelineRows, chosen: Ints, rank_of: Mapping[tuple[int, int], int]) -> tuple[int, ...]:
    places = {
        divmod(place, rows.pp_size) for place in present(rows.dp[chosen] * rows.pp_size + rows.stage[chosen]).tolist()
    }
    return tuple(sorted(rank_of[place] for place in places if place in rank_of))


def _cause(name: CauseName, rows: PipelineRows, chosen: Ints, ranks: tuple[int, ...], share: float) -> SlowdownCause:
    steps = len(present(rows.step[chosen]))
    if name == "garbage_collection":
        return SlowdownCause(name, ranks, share, {"paused_forwards": len(chosen), "steps": steps})
    figures = {"flapping_transfers": len(chosen), "steps": steps, "over_median_ratio": FLAP}
    types = tuple(sorted({TYPES[code] for code in rows.type[chosen].tolist()}))
    return SlowdownCause(name, ranks, share, figures, operation_types=types)
