"""What is replayed of a pipeline job otherwise than recorded: fixes, remedies, and no irregular delays.

Replays remedies where no rank is at fault: even pipeline stages, microbatches sorted across ranks.

Changes durations as fixes say: to the ideal among peers, or by a factor.

Finds irregular delays: pauses of the forward pass (garbage collection), transfers that flap [W §5].

Both are found by their pattern, and priced by a replay without their excess.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heapreplace

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, dense, order_by, present
from kair_engine.causes import FixKind
from kair_engine.results.whatif import FIX_KINDS, CommunicationFlapping, Fix, GarbageCollection, Remedy, SlowdownCause
from kair_engine.stats import binomial_tail, median_by
from kair_engine.trace.model import Job, host_of
from kair_engine.whatif.model import WORTH, IdealOfAll, Parts, Transplanted
from kair_engine.whatif.pipeline.rows import (
    COMMUNICATION,
    FORWARD_BACKWARD,
    GARBAGE,
    TRANSFERS,
    TYPES,
    Microbatches,
    PipelineRows,
    is_type,
    numbers,
)
from kair_engine.whatif.pipeline.times import PipelineTimes
from kair_engine.whatif.prices import nothing_fits, ratio


def remedies(times: PipelineTimes, replayed: Floats) -> Iterator[Remedy]:
    """Those that save more than a hundredth of the step, replayed; the largest saving first."""
    now = float(replayed.mean())
    found = [remedy for remedy in (_even_stages(times, now), _sorted_microbatches(times, now)) if remedy is not None]
    yield from sorted((one for one in found if one.saved_us * 1e3 > WORTH * now), key=lambda one: -one.saved_us)


def last_stage_excess(times: PipelineTimes) -> float | None:
    """How much longer the last stage computes than the mean of the stages, as a share; None of one stage."""
    excess = _stage_excess(times)
    return None if excess is None else float(excess[-1])


def _even_stages(times: PipelineTimes, now_ns: float) -> Remedy | None:
    """All stages compute as long as their mean: as if layers could be moved in any fraction."""
    computing = _stage_excess(times)
    if computing is None:
        return None
    rows, share = times.rows, 1 / (1 + computing) - 1
    computes = rows.of_type(*FORWARD_BACKWARD)
    durations = times.own_ns.copy()
    durations[computes] *= (1 + share)[rows.stage[computes]]
    after = float(times.steps_with(durations).mean())
    changes = dict(enumerate(share.tolist()))
    return Remedy("even_stages", after / 1e3, (now_ns - after) / 1e3, compute_change_by_stage=changes)


def without_collections(times: PipelineTimes, pauses: tuple[Ints, Floats]) -> tuple[Floats, float]:
    """Return (what each row takes without garbage collections, recorded or taken for such; the longest of them), ns."""
    durations, (paused, expected) = times.own_ns.copy(), pauses
    durations[paused] = expected
    durations[times.rows.of_type(GARBAGE)] = 0.0
    return durations, float((times.own_ns - durations).max())


def _stage_excess(times: PipelineTimes) -> Floats | None:
    """Return, per stage, what it computes over the stages' mean, less 1; None for one stage, or if any computes 0.

    Of a stage's data-parallel ranks the middle one (the lower of two) counts: a slow rank is no long stage.
    """
    rows = times.rows
    computes = rows.of_type(*FORWARD_BACKWARD)
    worker = rows.stage[computes] * rows.dp_size + rows.dp[computes]
    per_worker = np.bincount(worker, weights=times.own_ns[computes], minlength=rows.pp_size * rows.dp_size)
    per_stage = np.sort(per_worker.reshape(rows.pp_size, -1), axis=1)[:, (rows.dp_size - 1) // 2]
    return np.asarray(per_stage / per_stage.mean() - 1) if rows.pp_size > 1 and per_stage.all() else None


def _sorted_microbatches(times: PipelineTimes, now_ns: float) -> Remedy | None:
    """Return the same microbatches of each step, dealt to the ranks so that all compute about as long (greedy
    partition).
    """
    rows = times.rows
    dealt = dealt_microbatches(times)
    if dealt is None:
        return None
    computes, source = dealt
    durations = times.own_ns.copy()
    durations[computes] = times.own_ns[source]
    after = float(times.steps_with(durations).mean())
    return Remedy("sorted_microbatches", after / 1e3, (now_ns - after) / 1e3, dp_ranks=rows.dp_size)


def dealt_microbatches(times: PipelineTimes) -> tuple[Ints, Ints] | None:
    """(rows, rows whose durations they take): longest first, each to the rank with least so far that has room.

    Return None where there is one rank, or ranks do not compute the same microbatches.
    """
    rows = times.rows
    computes = rows.of_type(*FORWARD_BACKWARD)
    if rows.dp_size < 2 or not len(computes):
        return None
    batch = dense(np.stack((rows.step[computes], rows.dp[computes], numbers(rows, computes))))
    load = np.bincount(batch, weights=times.own_ns[computes])
    example = np.empty(len(load), dtype=np.int64)
    example[batch] = computes
    step, dp = rows.step[example], rows.dp[example]
    counts = np.bincount(step * rows.dp_size + dp, minlength=len(rows.steps) * rows.dp_size)
    if np.any(counts.reshape(-1, rows.dp_size) != counts.reshape(-1, rows.dp_size)[:, :1]):
        return None
    source_batch = np.arange(len(load))
    # In the order of their steps and ranks; of these each has as many.
    for batches in np.split(source_batch.copy(), np.flatnonzero(np.diff(step)) + 1):
        longest_first = batches[np.argsort(-load[batches], kind="stable")]
        to = greedy_partition(load[longest_first].astype(np.int64), rows.dp_size)
        source_batch[batches] = longest_first[np.argsort(to, kind="stable")]
    return _rows_of_batches(rows, computes, batch, source_batch)


def greedy_partition(lengths: Ints, ranks: int) -> Ints:
    """To which rank each goes: one after another to that with least so far, of those that do not yet have their share.

    All ranks get as many; of ranks with equal lengths so far the first is chosen.
    """
    keys: list[int] = []
    room = [len(lengths) // ranks - 1] * ranks
    # A rank's length so far and its number in one key: integers compare faster than pairs.
    least = list(range(ranks))
    for length in (lengths * ranks).tolist():
        keys.append(key := least[0])
        if room[key % ranks]:
            room[key % ranks] -= 1
            heapreplace(least, key + length)
        else:
            heappop(least)
    return np.array(keys, dtype=np.int64) % ranks


def _rows_of_batches(rows: PipelineRows, computes: Ints, batch: Ints, source_batch: Ints) -> tuple[Ints, Ints] | None:
    """For each computation the one of the microbatch that takes its place."""
    which = dense(np.stack((rows.type[computes], rows.stage[computes], rows.chunk[computes])))
    kinds = int(which.max()) + 1
    at = np.full((len(source_batch), kinds), NONE)
    at[batch, which] = computes
    source = at[source_batch[batch], which]
    complete: Bools = source != NONE
    return (computes, source) if complete.all() else None


@dataclass(frozen=True)
class FixedDurations:
    """A job's durations, ns, and what fixes make of them."""

    job: Job
    times: PipelineTimes
    rank_of: Mapping[tuple[int, int], int]
    """(dp rank, stage) → rank."""

    def fitting(self, fix: Fix) -> Bools:
        """Per row whether the fix is about it. Raises UsageError where it is about none."""
        if fix.scopes:
            raise nothing_fits(fix, "the recording has no scopes, but operation types: op=forward-compute")
        mask = self._mask(fix)
        if not mask.any():
            raise nothing_fits(fix)
        return mask

    def _mask(self, fix: Fix) -> Bools:
        rows = self.times.rows
        mask = np.ones(len(rows), dtype=bool)
        if fix.ranks or fix.hosts:
            mask &= np.isin(rows.ranks(self.rank_of), self._ranks(fix))
        if fix.stages:
            mask &= np.isin(rows.stage, fix.stages)
        types = [
            code for code, name in enumerate(TYPES) if fix.named(name) and (not fix.kinds or kind_of(name) in fix.kinds)
        ]
        return mask & np.isin(rows.type, types)

    def of(self, fixes: Sequence[Fix]) -> Floats:
        """Per row, with all of `fixes` made. Raises UsageError where one fits nothing."""
        durations = self.times.own_ns
        named = {rank for fix in fixes if fix.ranks or fix.hosts for rank in self._ranks(fix)}
        for fix in fixes:
            mask = self._mask(fix) if isinstance(fix, IdealOfAll) else self.fitting(fix)
            if isinstance(fix, IdealOfAll):
                durations = np.where(mask, self.times.ideal_ns, durations)
            elif fix.even:
                # The mean of its type over all rows of its stage.
                cell = self.times.rows.type * self.times.rows.pp_size + self.times.rows.stage
                mean = np.bincount(cell, durations) / np.maximum(np.bincount(cell), 1)
                durations = np.where(mask, mean[cell], durations)
            elif fix.scale is not None:
                durations = np.where(mask, durations * fix.scale, durations)
            else:
                of_stage = bool(fix.stages) and not (fix.ranks or fix.hosts)
                ideal = self.times.ideal_ns if of_stage else self.peers_ideal(named)
                durations = np.where(mask, np.minimum(durations, ideal), durations)
        return durations

    def excess_ns(self) -> dict[int, float]:
        """Per rank by how much its operations exceed their peers' ideal in sum, of the mean step."""
        rows = self.times.rows
        over = np.maximum(self.times.own_ns - self.peers_ideal(), 0.0)
        worker = rows.dp * rows.pp_size + rows.stage
        of_worker = np.bincount(worker, weights=over, minlength=rows.dp_size * rows.pp_size) / len(rows.steps)
        return {rank: float(of_worker[dp * rows.pp_size + stage]) for (dp, stage), rank in self.rank_of.items()}

    def parts(self) -> Parts:
        """Every operation of every step is a part."""
        rows = self.times.rows
        kinds = np.array([FIX_KINDS.index(kind_of(name)) for name in TYPES])
        return Parts(
            step=np.array(rows.steps, dtype=np.int64)[rows.step],
            at=np.arange(len(rows)) - np.searchsorted(rows.step, rows.step),
            rank=rows.ranks(self.rank_of),
            operator=rows.type.astype(np.int64),
            kind=kinds[rows.type],
            which=np.stack((np.zeros(len(rows), dtype=np.int64), rows.turn.astype(np.int64))),
            delay=np.zeros(len(rows), dtype=bool),
            transfer=np.asarray(self.times.graph.group),
            value_ns=self.times.own_ns,
            operators=dict(enumerate(TYPES)),
        )

    def transplanted(self, of: Transplanted) -> Floats:
        """Per row, with some as long as in another recording."""
        rows, durations = self.times.rows, self.times.own_ns.copy()
        for begin, step in zip(np.searchsorted(rows.step, np.arange(len(rows.steps))), rows.steps, strict=True):
            for at, longer in of.of_step(step):
                durations[begin + at] += longer
        return durations

    def peers_ideal(self, named: Collection[int] = ()) -> Floats:
        """Return, per row, what the other ranks of its stage take for its type: no rank is part of its own ideal.

        It is the lower middle one of the others' means (of communications: medians); of those that are not `named` if
        any are left. A rank that is alone in its stage is compared with itself; no garbage pause is ideal.
        """
        rows, typical = self.times.rows, self._typical
        is_named = np.zeros((rows.pp_size, rows.dp_size), dtype=bool)
        for (dp, stage), rank in self.rank_of.items():
            is_named[stage, dp] = rank in named
        others = _middle_of_others(typical, ~np.tile(is_named, (len(TYPES), 1)))
        of_all = _middle_of_others(typical, np.ones_like(typical, dtype=bool))
        ideal = np.where(np.isfinite(others), others, np.where(np.isfinite(of_all), of_all, typical))
        ideal[TYPES.index(GARBAGE) * rows.pp_size :][: rows.pp_size] = 0.0
        return np.asarray(ideal[rows.type * rows.pp_size + rows.stage, rows.dp])

    @cached_property
    def _typical(self) -> Floats:
        """(types · stages × dp ranks): the mean of a rank's operations of a type, of communications the median."""
        rows, own = self.times.rows, self.times.own_ns
        cell = (rows.type * rows.pp_size + rows.stage) * rows.dp_size + rows.dp
        result = np.full(len(TYPES) * rows.pp_size * rows.dp_size, np.inf)
        order = order_by(cell)
        cells, begins = np.unique(cell[order], return_index=True)
        for code, values in zip(cells.tolist(), np.split(own[order], begins[1:]), strict=True):
            is_transfer = TYPES[code // (rows.pp_size * rows.dp_size)] in COMMUNICATION
            result[code] = np.median(values) if is_transfer else values.mean()
        return result.reshape(-1, rows.dp_size)

    def _ranks(self, fix: Fix) -> list[int]:
        return [
            rank
            for rank in self.rank_of.values()
            if (not fix.ranks or rank in fix.ranks) and (not fix.hosts or host_of(self.job, rank) in fix.hosts)
        ]


def _middle_of_others(values: Floats, counts: Bools) -> Floats:
    """Per row and column the lower middle one of the row's other finite values that count; infinite where none does."""
    counts = counts & np.isfinite(values)
    kept = np.where(counts, values, np.inf)
    order = kept.argsort(axis=1, kind="stable")
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.broadcast_to(np.arange(values.shape[1]), order.shape), axis=1)
    others = counts.sum(axis=1, keepdims=True) - counts
    middle = (others - 1) // 2
    # What comes after the column itself moves up by one place when it is left out.
    at = np.clip(middle + (counts & (place <= middle)), 0, values.shape[1] - 1)
    return np.where(others > 0, np.take_along_axis(kept, order, axis=1)[np.arange(len(kept))[:, None], at], np.inf)


def kind_of(name: str) -> FixKind:
    """Return the kind of time that an operation type is."""
    if name == GARBAGE:
        return "gc"
    return "communication" if name in COMMUNICATION else "compute"


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
"""A transfer must recur this often for a separate median."""


def irregular_causes(
    times: PipelineTimes,
    pauses: tuple[Ints, Floats],
    rank_of: Mapping[tuple[int, int], int],
    *,
    replayed_ns: float,
    ideal_ns: float,
) -> Iterator[SlowdownCause]:
    """Of each pattern that the recording shows, what its removal takes away; it may be little."""
    if replayed_ns <= ideal_ns:
        return
    for of_pauses, (rows, expected) in ((True, pauses), (False, flapping_transfers(times))):
        if not len(rows):
            continue
        durations = times.own_ns.copy()
        durations[rows] = expected
        without = float(times.steps_with(durations).mean())
        share = ratio(replayed_ns - without, replayed_ns - ideal_ns)
        ranks, steps = _ranks(times.rows, rows, rank_of), len(present(times.rows.step[rows]))
        if of_pauses:
            yield GarbageCollection(ranks=ranks, share=share, paused_forwards=len(rows), steps=steps)
            continue
        types = tuple(sorted({TYPES[code] for code in times.rows.type[rows].tolist()}))
        yield CommunicationFlapping(
            ranks=ranks,
            share=share,
            operation_types=types,
            flapping_transfers=len(rows),
            steps=steps,
            over_median_ratio=FLAP,
        )


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
    """One computation of each microbatch, relative to the median of its worker and chunk."""

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
    """Return the rows that take much longer than expected, and what is expected of them."""
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
