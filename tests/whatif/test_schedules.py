"""Jobs of every shape, small enough for their replayed and ideal step times to be worked out by hand."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.pipeline_builder import (
    Cost,
    Row,
    one_chunk_after_another,
    one_f_one_b,
    pipeline_job,
    recorded_step,
    written,
)

from kair_engine.recording.opening import open_trace
from kair_engine.results.warning_kinds import InexactReplay
from kair_engine.results.whatif import WhatifResult
from kair_engine.whatif.analysis import whatif


def asked(folder: Path, rows: list[Row]) -> WhatifResult:
    return whatif(open_trace(written(folder, rows), cache=folder / "cache"))


def times(slow: Callable[[int, int, int], bool] = lambda *_: False, **took: float) -> Cost:
    """What operations take, 1 s unless told; `slow` (data-parallel rank, chunk, microbatch) forwards take `slow_F`."""

    def cost(operation: str, _step: int, dp: int, chunk: int, microbatch: int) -> float:
        name = f"slow_{operation}" if slow(dp, chunk, microbatch) else operation
        return took.get(name, took.get(operation, 1.0))

    return cost


def seconds(result: WhatifResult) -> tuple[float, float]:
    """Replayed without launch delays, and ideal."""
    return result.step_time_us / 1e6, result.ideal_step_time_us / 1e6


def test_one_worker_has_nobody_to_wait_for(tmp_path: Path) -> None:
    # Four microbatches of 1 + 2 s, one backward of 6 s, clip and optimizer. The ideal backward takes 12 / 4 s.
    cost = times(lambda _dp, _chunk, microbatch: microbatch == 2, B=2.0, slow_B=6.0)
    result = asked(tmp_path, pipeline_job(cost=cost))
    assert seconds(result) == pytest.approx((4 + 12 + 2, 4 + 4 * 3 + 2))
    assert result.slowdown == pytest.approx(1.0)
    assert result.m_s is None


def test_one_worker_is_no_straggler_among_others(tmp_path: Path) -> None:
    # Its communication takes as long as it does at times: without the rare slow one the step is shorter.
    def cost(operation: str, step: int, *_: int) -> float:
        return 8.0 if step == 1 and operation not in {"F", "B"} else 1.0

    result = asked(tmp_path, pipeline_job(steps=(0, 1, 2), cost=cost))
    assert result.slowdown > 1.05
    assert result.m_w is None
    assert [one.kind for one in result.causes if one.ranks] == []


def test_a_job_without_pipeline(tmp_path: Path) -> None:
    # Gather, 4 · (1 + 2) s on one rank and twice that on the other, scatter, clip, optimizer. Ideal: 4 · (1.5 + 3).
    cost = times(lambda dp, *_: dp == 1, B=2.0, slow_F=2.0, slow_B=4.0)
    result = asked(tmp_path, pipeline_job(dp=2, cost=cost))
    assert seconds(result) == pytest.approx((1 + 24 + 3, 1 + 18 + 3))
    assert result.by_rank == pytest.approx({1: 28 / 22, 0: 1.0})
    assert result.m_s is None


def test_a_job_without_data_parallelism(tmp_path: Path) -> None:
    # The first stage: F0 0-1, F1 1-2, B0, B1. The last: F0 1.25-2.25, B0 2.25-4.25, F1 4.25-7.25 (3 s), B1 7.25-9.25.
    # The first stage's B1 begins at 9.5, ends at 11.5; clip, optimizer: 13.5.
    # Ideal, with F = 1.5: F0 1.75-3.25, B0 -5.25, F1 -6.75, B1 -8.75; B1 9-11; 13.
    cost = times(lambda _, chunk, microbatch: (chunk, microbatch) == (1, 1), B=2.0, send=0.25, slow_F=3.0, slow_B=2.0)
    result = asked(tmp_path, pipeline_job(pp=2, microbatches=2, cost=cost))
    assert seconds(result) == pytest.approx((13.5, 13.0))
    assert set(result.by_dp_rank) == {0}


def interleaved(*, slow: bool = True, empty_transfers: bool = False) -> list[Row]:
    """Two stages of two chunks, two microbatches: F 2 s, B 4 s; the second microbatch's F of chunk 1 takes 6 s."""
    cost = times(
        lambda _, chunk, microbatch: slow and (chunk, microbatch) == (1, 1), F=2.0, B=4.0, slow_F=6.0, slow_B=4.0
    )
    order = one_chunk_after_another
    return pipeline_job(pp=2, chunks=2, microbatches=2, cost=cost, order=order, empty_transfers=empty_transfers)


# Chunk and microbatch; transfers of 1 s begin when the receiver is through with its F, or B, before:
#   stage 0: F0.0 0-2, F0.1 2-4, F2.0 6-8, F2.1 9-11, B2.0 19-23, B2.1 24-28, B0.0 29-33, B0.1 34-38, 40 in the end.
#   stage 1: F1.0 3-5, F1.1 6-8, F3.0 9-11, F3.1 12-14, B3.0 14-18, B3.1 18-22, B1.0 24-28, B1.1 29-33.
# With F1.1 of 6 s F2.1 and F3.0 begin 4 s later, and so does all that follows: 44.
# Ideal, F = (7 · 2 + 6) / 8 = 2.5: F0.0, F1.0, F1.1, F2.1 and F3.1 follow one another: 40 + 5 · 0.5.
HEALTHY, SLOW, IDEAL = 40.0, 44.0, 42.5


def test_virtual_stages(tmp_path: Path) -> None:
    assert recorded_step(interleaved(slow=False)) == HEALTHY
    result = asked(tmp_path, interleaved())
    assert seconds(result) == pytest.approx((SLOW, IDEAL))
    assert result.simulation_error < 1e-9
    assert result.warnings == ()


# The published ideal of a transfer is its type's median, also where it takes nothing since nobody is at the other end:
# the first stage's first receive is one of 1 s, and all else begins 1 s later.
IDEAL_OF_EMPTY = IDEAL + 1


def test_transfers_with_nobody_wait_for_nobody(tmp_path: Path) -> None:
    rows = interleaved(empty_transfers=True)
    assert len(rows) > len(interleaved())
    result = asked(tmp_path, rows)
    assert seconds(result) == pytest.approx((SLOW, IDEAL_OF_EMPTY))
    assert result.warnings == ()


@pytest.mark.parametrize("unknown", [("gmc",), ("gmc", "mc")])
def test_chunks_need_not_be_numbered_through_the_model(tmp_path: Path, unknown: tuple[str, ...]) -> None:
    # Without either number there is one chunk on each stage.
    cost = times(lambda _, chunk, microbatch: (chunk, microbatch) == (1, 1), B=2.0, send=0.25, slow_F=3.0, slow_B=2.0)
    rows = interleaved() if unknown == ("gmc",) else pipeline_job(pp=2, microbatches=2, cost=cost)
    result = asked(tmp_path, [row | dict.fromkeys(unknown, -1) for row in rows])
    assert seconds(result) == pytest.approx((SLOW, IDEAL) if unknown == ("gmc",) else (13.5, 13.0))
    assert result.warnings == ()


def test_the_first_receive_may_be_missing(tmp_path: Path) -> None:
    # Of the first stage, from nobody: the profiler does not always see it. The others are numbered on from it.
    rows = interleaved(empty_transfers=True)
    lost = next(row for row in rows if row["stage"] == 0 and row["optype"] == "forward-recv")
    result = asked(tmp_path, [row for row in rows if row is not lost])
    assert seconds(result) == pytest.approx((SLOW, IDEAL))
    assert result.warnings == ()


def test_transfers_that_were_recorded_but_never_launched(tmp_path: Path) -> None:
    # A receive after the last computation of its direction has begun, a send before the first one has ended.
    rows = pipeline_job(pp=2, microbatches=2, cost=times(B=2.0, send=0.25))
    of_last = {"stage": 1, "rank": 1, "step": 0, "dp_rank": 0, "mc": -1, "gmc": -1, "mb_id": -1}
    rows += [
        {**of_last, "optype": "forward-recv", "start_ts": 6.0, "duration": 0.5, "seq_id": 2},
        {**of_last, "optype": "backward-send", "start_ts": 0.5, "duration": 0.0, "seq_id": 2},
    ]
    # As recorded: the last stage's B1 ends at 7.25, the first stage's at 9.5.
    assert seconds(asked(tmp_path, rows)) == pytest.approx((11.5, 11.5))


def reduced(*, overlapped: bool) -> list[Row]:
    """Two ranks of two stages of two chunks, one microbatch; the second rank's B of chunk 0 takes 12 instead of 4 s."""
    cost = times(lambda dp, chunk, _: (dp, chunk) == (1, 0), F=2.0, B=4.0, scatter=3.0, slow_F=2.0, slow_B=12.0)
    order = one_chunk_after_another
    return pipeline_job(dp=2, pp=2, chunks=2, microbatches=1, cost=cost, order=order, overlapped=overlapped)


# Gather 0-1, F of chunks 0 to 3 and the way between them 1-12, B of chunks 3 to 1 12-26, of chunk 0 27-31 or 27-39.
# Reduced at the end: two scatters of 3 s, clip, optimizer: 39 + 8. Meanwhile: the upper chunk's is through by then, and
# what is separate takes 1 s: 39 + 3 + 1 + 2. Ideal: B = (7 · 4 + 12) / 8 = 5: 4 s later than 31 instead of 8.
@pytest.mark.parametrize(("overlapped", "slow", "ideal"), [(False, 47.0, 43.0), (True, 45.0, 41.0)])
def test_gradients_are_reduced_meanwhile_or_at_the_end(
    tmp_path: Path, overlapped: bool, slow: float, ideal: float
) -> None:
    rows = reduced(overlapped=overlapped)
    result = asked(tmp_path, rows)
    assert recorded_step(rows) == slow
    assert seconds(result) == pytest.approx((slow, ideal))
    assert ("separate-grads-all-reduce" in result.by_operator_type) == overlapped


def test_128_data_parallel_ranks(tmp_path: Path) -> None:
    # One number more than a signed byte holds. Ideal: 4 · (1 + 2) · 129 / 128.
    cost = times(lambda dp, *_: dp == 100, B=2.0, slow_F=2.0, slow_B=4.0)
    result = asked(tmp_path, pipeline_job(dp=128, cost=cost))
    assert seconds(result) == pytest.approx((1 + 24 + 3, 1 + 12 * 129 / 128 + 3))
    assert next(iter(result.by_rank)) == 100
    assert len(result.by_dp_rank) == 128


def all_forward_first(_stage: int, _stages: int, microbatches: int) -> list[tuple[str, int]]:
    return [(kind, microbatch) for kind in "FB" for microbatch in range(microbatches)]


def test_ranks_and_steps_keep_their_own_schedules(tmp_path: Path) -> None:
    # F 1 s, B 2 s, transfers 0.25 s, after a gather of 1 s. 1F1B computes until 10.5. All forward first: the last stage
    # F0 2.25-3.25, F1 3.5-4.5, B0 -6.5, B1 -8.5; the first B0 6.75-8.75, B1 9-11. Both then scatter, clip, optimizer.
    cost = times(B=2.0, send=0.25)
    rows = pipeline_job(dp=2, pp=2, microbatches=2, cost=cost)
    rows += pipeline_job(dp=2, pp=2, microbatches=2, cost=cost, steps=(1,), orders={1: all_forward_first})
    rows += pipeline_job(
        dp=2, pp=2, microbatches=2, cost=cost, steps=(2,), order=all_forward_first, orders={0: one_f_one_b}
    )
    result = asked(tmp_path, rows)
    assert [step.replayed_us / 1e6 for step in result.per_step] == pytest.approx([13.5, 14.0, 14.0])
    assert [step.ideal_us / 1e6 for step in result.per_step] == pytest.approx([13.5, 14.0, 14.0])
    assert result.simulation_error < 1e-9


def test_launch_delays_are_taken_apart_step_by_step(tmp_path: Path) -> None:
    # The first rank's first forward begins 2 s late in the second of two steps: 1 + 12 + 3 s, and 18.
    rows = pipeline_job(dp=2, steps=(0, 1), cost=times(B=2.0))
    for row in rows:
        if row["step"] == 1 and (row["optype"] in {"optimizer-clip-main-grad", "optimizer"} or row["dp_rank"] == 0):
            row["start_ts"] += 0.0 if row["optype"] == "params-all-gather" else 2.0
        if row["step"] == 1 and row["optype"] == "grads-reduce-scatter" and row["dp_rank"] == 1:
            row["duration"] += 2.0
    result = asked(tmp_path, rows)
    assert result.delay_share == pytest.approx(2 / 34)
    assert result.launch_by_dp_rank == pytest.approx({0: 17 / 16, 1: 1.0})
    assert result.launch_by_operator_type is not None
    assert next(iter(result.launch_by_operator_type)) == "first-op"
    assert [step.launch_by_dp_rank for step in result.per_step] == [
        pytest.approx({0: 1.0, 1: 1.0}),
        pytest.approx({0: 18 / 16, 1: 1.0}),
    ]
    assert result.simulation_error == pytest.approx(2 / 34)
    (off,) = [one for one in result.warnings if isinstance(one, InexactReplay)]
    assert (off.off, off.worst_step) == (pytest.approx(2 / 34), 1)
