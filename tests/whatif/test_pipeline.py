"""What-if analyses of small pipeline jobs whose times are worked out one operation at a time."""

from pathlib import Path

import pytest
from support.pipeline_builder import Cost, Row, costs, pipeline_job, recorded_step, written

from kair_engine.errors import UsageError
from kair_engine.recording.opening import open_trace
from kair_engine.results.fixes import parse_fix, parse_scale
from kair_engine.results.whatif import Fix, WhatifResult
from kair_engine.whatif.analysis import whatif
from kair_tui.render.whatif import remedy_in_words, verdict_in_words


def asked(folder: Path, rows: list[Row], *fixes: Fix, gpu_cost: float | None = None) -> WhatifResult:
    return whatif(open_trace(written(folder, rows), cache=folder / "cache"), fixes, gpu_cost=gpu_cost)


def slow(factor: float, **where: int) -> Cost:
    """Costs where the operations of a worker, step or microbatch take `factor` times as long."""

    def cost(operation: str, step: int, dp: int, stage: int, microbatch: int) -> float:
        at = {"step": step, "dp": dp, "stage": stage, "microbatch": microbatch}
        hit = operation in {"F", "B"} and all(at[key] == value for key, value in where.items())
        return costs(operation, step, dp, stage, microbatch) * (factor if hit else 1.0)

    return cost


def codes(result: WhatifResult) -> list[str]:
    return [warning.code for warning in result.warnings]


LAYOUTS = [(1, 1), (1, 4), (3, 1), (2, 2), (4, 3)]


@pytest.mark.parametrize(("dp", "pp"), LAYOUTS)
def test_an_unchanged_replay_is_the_recording(tmp_path: Path, dp: int, pp: int) -> None:
    rows = pipeline_job(dp=dp, pp=pp, steps=(3, 4), cost=slow(1.5, dp=0, stage=pp - 1, step=4))
    result = asked(tmp_path, rows)
    assert [step.step for step in result.per_step] == [3, 4]
    for step in result.per_step:
        assert step.measured_us == pytest.approx(recorded_step(rows, step.step) * 1e6)
        assert step.replayed_us == pytest.approx(step.measured_us)
    assert result.simulation_error < 1e-9
    assert result.warnings == ()


@pytest.mark.parametrize(("dp", "pp"), LAYOUTS)
def test_a_job_without_stragglers_has_nothing_to_gain(tmp_path: Path, dp: int, pp: int) -> None:
    result = asked(tmp_path, pipeline_job(dp=dp, pp=pp))
    assert result.slowdown == pytest.approx(1.0)
    assert result.pattern == "none"
    assert result.m_w is None
    assert set(result.by_rank.values()) == {1.0}


def test_a_slow_worker_costs_what_the_job_loses_to_it(tmp_path: Path) -> None:
    rows = pipeline_job(dp=8, pp=2, cost=slow(1.5, dp=3, stage=1))
    result = asked(tmp_path, rows, parse_fix("rank=7"))
    assert next(iter(result.by_rank)) == 7
    assert result.pattern == "one_worker"
    assert result.slowest_ranks == (7,)
    assert result.m_w == pytest.approx(1.0, abs=0.05)
    assert "all delays of rank 7 cost " in verdict_in_words(result)
    # Its peers' mean has the slow worker in it: fixed, it still is a little slower than without the fault.
    (fixed,) = result.fixes
    lost = recorded_step(rows) - recorded_step(pipeline_job(dp=8, pp=2))
    assert fixed.saved_us == pytest.approx(lost * 1e6, rel=0.15)


def test_exact_prices_of_workers_do_not_depend_on_how_they_are_worked_out(tmp_path: Path) -> None:
    rows = pipeline_job(dp=3, pp=2, steps=(0, 1), cost=slow(1.7, dp=1, stage=0, microbatch=2))
    alike = asked(tmp_path, rows)
    # One more operation on one rank, of no duration: the ranks do not run alike any more.
    extra = dict(rows[0], optype="gc", start_ts=rows[0]["start_ts"], duration=0.0, seq_id=0)
    (tmp_path / "other").mkdir()
    different = asked(tmp_path / "other", [*rows, extra])
    assert different.by_rank == pytest.approx(alike.by_rank)
    assert different.by_dp_rank == pytest.approx(alike.by_dp_rank)


def test_steps_may_have_different_numbers_of_microbatches(tmp_path: Path) -> None:
    rows = [*pipeline_job(dp=2, pp=2, steps=(0,)), *pipeline_job(dp=2, pp=2, steps=(1,), microbatches=6)]
    result = asked(tmp_path, rows)
    assert [step.replayed_us for step in result.per_step] == pytest.approx(
        [recorded_step(rows, 0) * 1e6, recorded_step(rows, 1) * 1e6]
    )


def test_a_slow_stage_is_a_matter_of_the_stages(tmp_path: Path) -> None:
    result = asked(tmp_path, pipeline_job(dp=4, pp=4, cost=slow(1.8, stage=3)))
    assert result.pattern == "one_stage"
    assert next(iter(result.by_stage)) == 3
    assert "stage imbalance" in verdict_in_words(result)
    assert result.remedies[0].remedy == "even_stages"
    assert "stage 3 -33 %" in remedy_in_words(result.remedies[0])


def test_uneven_microbatches_are_dealt_to_the_ranks(tmp_path: Path) -> None:
    def cost(operation: str, step: int, dp: int, stage: int, microbatch: int) -> float:
        # In each step another rank has only long ones, the others short ones.
        length = 3.0 if operation in {"F", "B"} and dp == step else 1.0
        return costs(operation, step, dp, stage, microbatch) * length

    result = asked(tmp_path, pipeline_job(dp=4, pp=1, steps=range(4), cost=cost))
    (remedy,) = result.remedies
    # 16 microbatches, of 9 and 3 s: 36 and three times 12 s become 18 s each.
    assert (remedy.remedy, remedy.dp_ranks) == ("sorted_microbatches", 4)
    assert remedy.saved_us == pytest.approx(18e6)


@pytest.mark.parametrize("stage", [0, 3])
def test_a_slow_worker_is_no_long_stage_and_no_long_batch(tmp_path: Path, stage: int) -> None:
    result = asked(tmp_path, pipeline_job(dp=4, pp=4, steps=range(3), cost=slow(2.5, dp=1, stage=stage)))
    assert [cause.kind for cause in result.causes] == ["slow_workers"]
    assert result.remedies == ()


@pytest.mark.parametrize("dp", [2, 4])
def test_a_slow_worker_is_no_part_of_its_own_ideal(tmp_path: Path, dp: int) -> None:
    healthy = pipeline_job(dp=dp, pp=2)
    slowed = pipeline_job(dp=dp, pp=2, cost=slow(3.0, dp=1, stage=0))
    texts = ("rank=2", "rank=2+kind=compute", "kind=compute", "rank=2,3", "stage=0")
    result = asked(tmp_path, slowed, *map(parse_fix, texts))
    right = recorded_step(healthy) * 1e6
    *fixed, of_stage, _ = (one.step_time_us for one in result.fixes)
    assert fixed == pytest.approx([right] * 4)
    assert of_stage > right
    assert result.peer_ideal_step_time_us == pytest.approx(right)
    assert result.peer_slowdown == pytest.approx(recorded_step(slowed) / recorded_step(healthy))
    # What was published stays: its mean has the slow worker in it.
    assert result.slowdown < result.peer_slowdown


def test_a_send_whose_receive_was_not_recorded_waits_for_nobody(tmp_path: Path) -> None:
    rows = pipeline_job(dp=2, pp=2)
    lost = next(row for row in rows if row["optype"] == "backward-recv" and row["seq_id"] == 3)
    result = asked(tmp_path, [row for row in rows if row is not lost])
    assert "unpaired_transfers" in codes(result)
    assert result.slowdown == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rank=99", "nothing in the chosen steps fits rank=99"),
        ("rank", "is no fix"),
        ("colour=red", "is no fix"),
        ("rank=x", "is no number"),
        ("kind=magic", "no kind magic"),
        ("rank=1+host=", "is no fix"),
    ],
)
def test_fixes_that_mean_nothing_are_turned_down(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        asked(tmp_path, pipeline_job(dp=2), parse_fix(text))


@pytest.mark.parametrize("text", ["op=x", "op=x:fast", "op=x:-1", "op=x:inf", "op=x:nan", "op=x:1e308"])
def test_scales_need_a_factor(text: str) -> None:
    with pytest.raises(UsageError, match="names no factor"):
        parse_scale(text)


def test_fixes_name_ranks_stages_types_and_kinds(tmp_path: Path) -> None:
    rows = pipeline_job(dp=2, pp=2, cost=slow(1.5, dp=1))
    texts = ("rank=2-3", "rank=2,3+kind=compute", "op=forward-*", "kind=communication", "stage=0+rank=2")
    whole, computing, forward, communication, one = asked(tmp_path, rows, *map(parse_fix, texts)).fixes[:5]
    assert whole.saved_us == computing.saved_us > forward.saved_us > 0
    assert communication.saved_us == pytest.approx(0.0, abs=1.0)
    assert 0 <= one.saved_us <= whole.saved_us


def test_a_fix_costs_nothing_to_a_healthy_job_and_halving_everything_halves_it(tmp_path: Path) -> None:
    rows = pipeline_job(dp=2, pp=2)
    fix, half = asked(tmp_path, rows, parse_fix("rank=0"), parse_scale("op=*:0.5"), gpu_cost=3.0).fixes[:2]
    assert fix.saved_us == 0
    assert half.saved_share == pytest.approx(0.5)
    assert half.throughput_gain == pytest.approx(1.0)
    assert half.gpu_hours_per_day == pytest.approx(0.5 * 4 * 24)
    assert half.cost_per_day == pytest.approx(3 * 0.5 * 4 * 24)


@pytest.mark.parametrize("cost", [-1.0, float("nan"), float("inf")])
def test_a_price_of_a_gpu_is_a_number(tmp_path: Path, cost: float) -> None:
    with pytest.raises(UsageError, match="GPU"):
        asked(tmp_path, pipeline_job(dp=2), parse_fix("rank=0"), gpu_cost=cost)
