"""Replays remedies where no rank is at fault: even pipeline stages, microbatches sorted across ranks."""

from collections.abc import Iterator
from heapq import heappop, heapreplace

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, dense
from kair_engine.results.whatif import Remedy
from kair_engine.whatif.pipeline.microbatches import numbers
from kair_engine.whatif.pipeline.rows import FORWARD_BACKWARD, PipelineRows
from kair_engine.whatif.pipeline.times import PipelineTimes

WORTH = 0.01
"""Of the step: what a remedy must save to be named."""


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
    after = _step_time(times, durations)
    changes = dict(enumerate(share.tolist()))
    return Remedy("even_stages", after / 1e3, (now_ns - after) / 1e3, compute_change_by_stage=changes)


def _stage_excess(times: PipelineTimes) -> Floats | None:
    """Per stage what it computes over the stages' mean, less 1; None where there is one, or one computes nothing.

    Of a stage's data-parallel ranks the middle one (the lower of two) tells: a slow rank is no long stage.
    """
    rows = times.rows
    computes = rows.of_type(*FORWARD_BACKWARD)
    worker = rows.stage[computes] * rows.dp_size + rows.dp[computes]
    per_worker = np.bincount(worker, weights=times.own_ns[computes], minlength=rows.pp_size * rows.dp_size)
    per_stage = np.sort(per_worker.reshape(rows.pp_size, -1), axis=1)[:, (rows.dp_size - 1) // 2]
    return np.asarray(per_stage / per_stage.mean() - 1) if rows.pp_size > 1 and per_stage.all() else None


def _sorted_microbatches(times: PipelineTimes, now_ns: float) -> Remedy | None:
    """The same microbatches of each step, dealt to the ranks so that all compute about as long (greedy partition)."""
    rows = times.rows
    dealt = dealt_microbatches(times)
    if dealt is None:
        return None
    computes, source = dealt
    durations = times.own_ns.copy()
    durations[computes] = times.own_ns[source]
    after = _step_time(times, durations)
    return Remedy("sorted_microbatches", after / 1e3, (now_ns - after) / 1e3, dp_ranks=rows.dp_size)


def dealt_microbatches(times: PipelineTimes) -> tuple[Ints, Ints] | None:
    """(rows, rows whose durations they take): longest first, each to the rank with least so far that has room.

    None where there is one rank, or ranks do not compute the same microbatches.
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


def _step_time(times: PipelineTimes, durations: Floats) -> float:
    return float(times.steps_with(durations).mean())
