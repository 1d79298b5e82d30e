"""Time by operator: what each took on all ranks, by type, and how ranks differ in it."""

from pathlib import Path

import pytest
from support.answers import recorded
from support.places import SAMPLES
from support.trace_builder import trace

from kair_engine.results.views import OperatorsResult, OperatorTime
from kair_engine.views.operator_times import operator_times

# Rank 1 computes for longer, so that rank 0 waits 30 µs for it; the transfer takes 10.
UNEVEN = """step 0: 0+100
0 gpu7 | gemm 0+40 | memcpy 40+5 :memory | all_reduce 50+45 :collective
1 gpu7 | gemm 0+70 | memcpy 70+5 :memory | all_reduce 80+15 :collective"""


def row(result: OperatorsResult, operator: str | None, of_type: str) -> OperatorTime:
    return next(one for one in result.operators if (one.operator, one.type) == (operator, of_type))


def test_a_collective_is_told_apart_into_transfer_and_waiting(tmp_path: Path) -> None:
    result = operator_times(trace(tmp_path, UNEVEN), by_rank=True)
    assert row(result, "all_reduce", "communication").by_rank_us == (15, 15)
    assert row(result, "all_reduce", "waiting").by_rank_us == (30, 0)
    gemm = row(result, "gemm", "compute")
    assert (gemm.total_us, gemm.calls, gemm.ranks) == (110, 1, 2)
    assert (gemm.min_us, gemm.median_us, gemm.max_us, gemm.max_rank) == (40, 55, 70, 1)
    assert row(result, "memcpy", "memory").total_us == 10
    assert [one.type for one in result.by_type][:3] == ["compute", "communication", "waiting"]
    assert result.ranks_time_us == 200
    assert sum(one.share for one in result.by_type) == pytest.approx(0.95), "who idles for 5 of 100 µs is not known"
    waiting = next(one for one in result.by_type if one.type == "waiting")
    assert (waiting.min_us, waiting.median_us, waiting.max_us, waiting.max_rank) == (0, 15, 30, 0), (
        "rank 1 waits for none"
    )
    assert sum(one.total_us for one in result.operators) == pytest.approx(result.total_us)
    assert result.step_time_us == 100


def test_a_moment_of_a_rank_counts_once_and_the_rest_is_in_the_background(tmp_path: Path) -> None:
    """Rank 0 computes until 60 while its collective waits from 20 on, for rank 1, which comes at 70."""
    table = """step 0: 0+100
    0 main | c10d::all_reduce 10+5 :host | aten::mm 20+40
    0 th2 | allreduce@dp#1 20+60
    1 main | aten::mm 0+65 | c10d::all_reduce 66+2 :host
    1 th2 | allreduce@dp#1 70+10"""
    result = operator_times(trace(tmp_path, table))
    of = {one.type: one for one in result.by_type}
    waiting, compute = of["waiting"], of["compute"]
    assert row(result, "allreduce", "waiting").total_us == waiting.total_us == 50
    assert (waiting.background_us, waiting.share) == (40, pytest.approx(10 / 200)), "60 to 70 nothing else runs"
    assert (compute.background_us, compute.share) == (0, pytest.approx(105 / 200))
    assert sum(one.share for one in result.by_type) <= 1


@pytest.mark.slow
def test_what_is_asked_for_is_listed_and_the_rest_is_told() -> None:
    job = recorded(SAMPLES / "slow_operator")
    result = operator_times(job, limit=3)
    listed_us = [one.total_us for one in result.operators]
    assert listed_us == sorted(listed_us, reverse=True)
    assert sum(listed_us) + result.unlisted_us == pytest.approx(result.total_us)
    assert result.total_operators > 3 and not result.operators[0].by_rank_us
    # The sample's fault: rank 2 takes longer for one operator.
    mlp = operator_times(job, operator="sample::mlp", only="compute")
    assert {one.operator for one in mlp.operators} == {"kair_sample::mlp", "kair_sample::mlp_backward"}
    slow = row(mlp, "kair_sample::mlp", "compute")
    assert slow.max_rank == 2 and slow.max_us > 2 * slow.median_us
    assert mlp.by_type == result.by_type and mlp.total_us == result.total_us
