"""Extracts the recorded order of a pipeline job: what of its times decides who waits for whom."""

from dataclasses import dataclass

import numpy as np

from kair_engine.arrays import NONE, Bools, Codes, Ints, order_by, whole_parts
from kair_engine.whatif.pipeline.rows import BACKWARD, FORWARD_BACKWARD, GATHER, SCATTER, TRANSFERS, PipelineRows

CLOCK_NS = 50_000.0
"""Clocks agree within this: a transfer that begins later than the last computation of its kind belongs to none."""
_AT_ONCE = 1 << 18
"""Operations."""


@dataclass(frozen=True)
class RecordedOrder:
    """Per row what its worker-step's order says of it."""

    turn: Codes
    """Of computations the how many-th to start, of gathers and scatters too; of others 0."""
    launched: Bools
    """Of transfers whether a computation of their direction can belong to them: the profiler records more."""
    last: Bools
    """The computation that ends last."""
    last_of_chunk: Bools
    """The backward computation that ends last of its chunk."""

    def take(self, rows: slice | Ints) -> "RecordedOrder":
        """Of some of them."""
        return RecordedOrder(self.turn[rows], self.launched[rows], self.last[rows], self.last_of_chunk[rows])


def recorded_order(rows: PipelineRows) -> RecordedOrder:
    """Of every row."""
    result = RecordedOrder(np.zeros(len(rows), dtype=np.int32), *(np.zeros(len(rows), dtype=bool) for _ in range(3)))
    begins = np.searchsorted(rows.step, np.arange(len(rows.steps) + 1))
    # Few steps at a time need little memory.
    for first, last in whole_parts(begins, _AT_ONCE):
        own = slice(begins[first], begins[last])
        _find(rows.take(own), result.take(own))
    return result


def _find(rows: PipelineRows, order: RecordedOrder) -> None:
    for names in (FORWARD_BACKWARD, (GATHER, SCATTER)):
        chosen = rows.of_type(*names)
        by_start = chosen[order_by(rows.worker_step[chosen], rows.start_ns[chosen].astype(np.int64), rows.turn[chosen])]
        order.turn[by_start] = turns(rows.worker_step[by_start])
    workers = int(rows.worker_step.max(initial=NONE)) + 1
    for name, (send, receive) in zip(FORWARD_BACKWARD, (TRANSFERS[:2], TRANSFERS[2:]), strict=True):
        computes, sends, receives = rows.of_type(name), rows.of_type(send), rows.of_type(receive)
        of = rows.worker_step[computes]
        last_start, first_end = np.full(workers, -np.inf), np.full(workers, np.inf)
        np.maximum.at(last_start, of, rows.start_ns[computes])
        np.minimum.at(first_end, of, rows.end_ns[computes])
        order.launched[sends] = rows.end_ns[sends] >= first_end[rows.worker_step[sends]] - CLOCK_NS
        order.launched[receives] = rows.start_ns[receives] <= last_start[rows.worker_step[receives]] + CLOCK_NS
    computes, backwards = rows.of_type(*FORWARD_BACKWARD), rows.of_type(BACKWARD)
    order.last[_last_to_end(rows, computes, rows.worker_step[computes])] = True
    chunk = rows.chunk_of_stage(backwards)
    of_chunk = rows.worker_step[backwards] * (int(chunk.max(initial=0)) + 1) + chunk
    order.last_of_chunk[_last_to_end(rows, backwards, of_chunk)] = True


def _last_to_end(rows: PipelineRows, chosen: Ints, of: Ints) -> Ints:
    """Of each the row that ends last; of equal ones the last."""
    end = rows.end_ns[chosen]
    latest = np.full(int(of.max(initial=NONE)) + 1, -np.inf)
    np.maximum.at(latest, of, end)
    at = end == latest[of]
    result = np.full(len(latest), NONE)
    # The last of those written stays.
    result[of[at]] = chosen[at]
    return np.asarray(result[result != NONE])


def turns(worker_step: Ints) -> Ints:
    """The place of each within its run of equal ones."""
    begins = np.flatnonzero(np.diff(worker_step, prepend=NONE))
    return np.arange(len(worker_step)) - np.repeat(begins, np.diff(begins, append=len(worker_step)))
