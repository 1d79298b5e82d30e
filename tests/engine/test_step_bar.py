"""Where the GPU-time of a step goes: parts that add up, and a bubble that is nobody's fault."""

from dataclasses import replace
from pathlib import Path

import pytest
from compute_faults import SlowGpu
from costs import Noise
from hypothesis import given
from hypothesis import strategies as st
from job_folder import write_job_folder
from layouts import JobLayout
from simulator import JobSpec, simulate
from support.answers import recorded, triaged
from support.pipeline_builder import pipeline_job, written
from support.places import BYTEDANCE, MEGATRON, SAMPLES
from support.trace_builder import trace

from kair_engine.comparison.analysis import compare
from kair_engine.recording.opening import open_trace
from kair_engine.results.step_bar import BAR_PARTS, JOB_WIDE_PARTS, PartOfBar, PartOfJobWide, StepBar
from kair_engine.step_bar import bar_of, bar_of_jobs
from kair_engine.trace import large_steps
from kair_engine.trace.model import Trace
from kair_engine.triage.analysis import triage
from kair_engine.views.rank_profile import rank_profile
from kair_tui.render.bar import apportioned, drawn, in_one_line, legend_lines, waiting_in_words

same = pytest.approx
RECORDINGS = (
    *sorted({path.parent for path in SAMPLES.glob("*/*.json.gz")}),
    MEGATRON,
    BYTEDANCE / "trace-ST.parquet",
    BYTEDANCE / "trace-SE.parquet",
)
STAGES, BATCHES = 4, 8
LAYOUT = JobLayout("3d", dp=2, pp=STAGES, tp=2, microbatches=BATCHES)
SILENT = Noise(operation=0, spread=0, fetch=0, tail_probability=0)


def shares(bar: StepBar | None) -> dict[str, float]:
    """Of the parts that take anything."""
    assert bar is not None
    return {one.part: one.share for one in bar.parts if one.us > 0}


def pipeline(folder: Path, *, slow: float = 1.0, steps: int = 3) -> Trace:
    """One forward, one backward on each of the stages, nothing else; rank 1 takes `slow` times as long."""

    def cost(operation: str, _step: int, _dp: int, stage: int, _microbatch: int) -> float:
        return {"F": 1.0, "B": 2.0}.get(operation, 0.0) * (slow if stage == 1 else 1.0)

    rows = pipeline_job(pp=STAGES, microbatches=BATCHES, steps=range(steps), cost=cost)
    return open_trace(written(folder, rows), cache=folder / "cache")


STRAGGLER = "".join(
    f"""
    step {step}: {step}000+1000
    0-2 gpu7 | mlp {step}000+500 | allreduce@dp#{step} {step}500+450
    3   gpu7 | mlp {step}000+800 | allreduce@dp#{step} {step}800+150
    0-3 main | launch {step}000+5
    """
    for step in range(1, 5)
)


def test_ranks_that_run_one_program_wait_for_stragglers_and_for_no_bubble(tmp_path: Path) -> None:
    bar = triage(trace(tmp_path, STRAGGLER)).bar
    # Three ranks of four wait 300 of 1000 µs; the transfer takes 150, and nothing is launched in the last 50.
    assert bar is not None
    assert (bar.bubble_from, bar.share("bubble"), bar.steps) == ("one_program", 0.0, 4)
    assert bar.share("stragglers") == same(0.225)
    assert bar.share("compute") == same(0.575)
    assert [row.rank for row in bar.ranks][-1] == 3, "who is waited for waits for nobody"


LAUNCHES = """
    step 0: 0+100
    0,1 main | launch 0+2 ^1 | fetch 22+18 :input | launch 60+2 ^2
    0,1 gpu7 | gemm 2+20 ^1 | gemm 62+38 ^2
"""


def test_what_waits_for_launches_and_input_is_job_wide(tmp_path: Path) -> None:
    bar = triage(trace(tmp_path, LAUNCHES)).bar
    assert bar is not None
    # The device computes 58 of 100 µs; 18 it idles while input is fetched, 20 for want of a launch.
    assert bar.share("compute") == same(0.58)
    assert {one.part: one.us for one in bar.job_wide} == same({"input": 18.0, "host": 20.0})
    assert bar.share("job_wide") == same(0.38)


def test_a_healthy_pipeline_waits_for_its_bubble_alone(tmp_path: Path) -> None:
    bar = triage(pipeline(tmp_path)).bar
    assert shares(bar) == same({"compute": 8 / 11, "bubble": 3 / 11})
    assert bar is not None
    assert bar.bubble_from == "replay"


@pytest.mark.slow
def test_a_slow_stage_makes_others_wait_beyond_the_bubble(tmp_path: Path) -> None:
    healthy, slow = tmp_path / "healthy", tmp_path / "slow"
    healthy.mkdir()
    slow.mkdir()
    told = shares(triage(pipeline(slow, slow=1.5)).bar)
    assert told["stragglers"] > 0.1
    assert "stragglers" not in shares(triage(pipeline(healthy)).bar)


@pytest.mark.slow
def test_the_bubble_of_a_simulated_job_is_that_of_its_schedule(tmp_path: Path) -> None:
    quiet = simulated(tmp_path / "quiet", Noise())
    bar = triage(quiet).bar
    assert bar is not None
    # Of what a stage takes for its microbatches; what comes after them in a step is none of the schedule's.
    whole = bar.share("compute") + bar.share("bubble") + bar.share("communication")
    assert bar.share("bubble") / whole == same((STAGES - 1) / (BATCHES + STAGES - 1), abs=0.03)
    assert bar.share("stragglers") < 0.03
    told = waiting_in_words(bar)
    assert "in the pipeline's bubble" in told


@pytest.mark.slow
def test_a_slow_gpu_among_stages_adds_to_the_waiting_for_stragglers_and_not_to_the_bubble(tmp_path: Path) -> None:
    bars = [simulated(tmp_path / str(slow), SILENT, slow=slow) for slow in (1.0, 1.3)]
    healthy, slow = (bar_of(one) for one in bars)
    assert healthy is not None
    assert slow is not None
    assert healthy.share("stragglers") < 0.002
    assert slow.share("stragglers") > 0.05
    in_us = [bar.share("bubble") * bar.step_time_us for bar in (healthy, slow)]
    assert in_us[1] == same(in_us[0], rel=0.03)


def simulated(folder: Path, noise: Noise, *, slow: float = 1.0) -> Trace:
    faults = (SlowGpu(5, slow),) if slow > 1 else ()
    folder.mkdir()
    return open_trace(
        write_job_folder(simulate([JobSpec(LAYOUT, 3, 1, faults, noise)])[0], folder), cache=folder / "cache"
    )


@pytest.fixture(params=RECORDINGS, ids=lambda path: path.stem)
def source(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    if not path.exists():
        pytest.skip("the real traces are not beside this checkout")
    return path


@pytest.mark.slow
def test_the_parts_of_every_recording_add_up_to_all_of_its_time(source: Path) -> None:
    bar = triaged(source).bar
    assert bar is not None
    assert [one.part for one in bar.parts] == list(BAR_PARTS)
    assert sum(one.share for one in bar.parts) == same(1)
    assert sum(one.us for one in bar.parts) == same(bar.step_time_us)
    assert sum(one.us for one in bar.job_wide) == same(dict(shares_us(bar))["job_wide"])
    for row in bar.ranks:
        assert sum(one.share for one in row.parts) == same(1)


def shares_us(bar: StepBar) -> dict[str, float]:
    return {one.part: one.us for one in bar.parts}


@pytest.mark.slow
def test_a_ranks_bar_is_that_of_its_parts_and_the_same_in_triage(source: Path) -> None:
    row = next(iter(triaged(source).bar.ranks), None)  # type: ignore[union-attr]
    if row is None:
        return
    profile = rank_profile(recorded(source), rank=row.rank)
    assert profile.bar is not None
    parts = {one.part: one.own_us for one in profile.parts}
    own = shares_us(profile.bar)
    assert own["compute"] == same(parts["compute"])
    assert own["bubble"] + own["stragglers"] == same(parts["waiting"])
    assert own["job_wide"] == same(parts["input"] + parts["host"])
    if recorded(source).job.format != "whatif":
        assert own == same({one.part: one.us for one in row.parts}, rel=0.02, abs=50)


@pytest.mark.slow
def test_both_runs_of_a_comparison_have_one() -> None:
    base, new = (recorded(SAMPLES / name) for name in ("two_hosts_healthy", "two_hosts_slow_input"))
    found = compare(base, new)
    before, now = shares(found.base.bar), shares(found.new.bar)
    assert now["job_wide"] > before["job_wide"]
    assert found.new.bar == replace(bar_of(new), names_straggler=True)  # localize flags the rank whose input is slow


def a_bar(**shares_of: float) -> StepBar:
    parts = tuple(PartOfBar(part, 100 * shares_of.get(part, 0.0), shares_of.get(part, 0.0)) for part in BAR_PARTS)
    wide = tuple(PartOfJobWide(part, 0.0, 0.0) for part in JOB_WIDE_PARTS)
    return StepBar(100.0, parts, wide, "replay", 1)


def test_in_a_fleet_every_device_counts_alike() -> None:
    small, large = a_bar(compute=1.0), a_bar(compute=0.5, bubble=0.5)
    both = bar_of_jobs([(small, 1), (large, 3)])
    assert shares(both) == same({"compute": 0.625, "bubble": 0.375})
    assert bar_of_jobs([]) is None


@given(st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e9)), min_size=1, max_size=8), st.integers(1, 1000))
def test_what_is_printed_adds_up(weights: list[float], whole: int) -> None:
    numbers = apportioned(weights, whole)
    assert sum(numbers) == (whole if sum(weights) > 0 else 0)
    for number, weight in zip(numbers, weights, strict=True):
        assert abs(number - weight / max(sum(weights), 1e-9) * whole) <= 1


def test_a_bar_is_as_wide_as_it_is_told_to_be_and_its_legend_is_never_cut() -> None:
    bar = a_bar(compute=1 / 3, bubble=1 / 3, stragglers=1 / 3)
    parts = drawn(bar, 50, ascii_only=True)
    assert sum(one.cells for one in parts) == 50
    assert sum(one.tenths for one in parts) == 1000
    assert len({one.sign for one in parts}) == 3, "told apart without colour"
    assert all(one.sign.isascii() for one in parts)
    lines = legend_lines(bar, 40, ascii_only=False)
    assert len(lines) == 3
    assert in_one_line(bar) == "useful compute 33.4 %, pipeline bubble 33.3 %, waiting for the last rank 33.3 %"


def test_ranks_wait_for_stragglers_only_where_the_verdict_names_one() -> None:
    bar = a_bar(compute=0.5, stragglers=0.5)
    accusing = replace(bar, names_straggler=True)
    told = [drawn(one, 10, ascii_only=True)[1] for one in (bar, accusing, replace(accusing, bubble_from=None))]
    assert [(one.name, one.short_name) for one in told] == [
        ("waiting for the last rank", "last rank"),
        ("waiting for stragglers", "stragglers"),
        ("waiting for others, bubble included", "waiting"),
    ]
    assert waiting_in_words(bar) == "ranks wait 50.0 % of their time for the last rank"
    assert waiting_in_words(accusing) == "ranks wait 50.0 % of their time for stragglers"


@pytest.mark.slow
def test_of_steps_that_are_not_held_whole_it_is_about_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = simulated(tmp_path / "job", Noise())
    whole = bar_of(job)
    monkeypatch.setattr(large_steps, "LARGE", 1)
    in_parts = bar_of(simulated(tmp_path / "again", Noise()))
    assert whole is not None
    assert in_parts is not None
    assert in_parts.share("compute") == same(whole.share("compute"), abs=0.01)
    assert in_parts.share("job_wide") == same(whole.share("job_wide"), abs=0.01)
    # Which part of the exposed communication is transfer nobody looked at.
    assert in_parts.waiting_share == same(whole.waiting_share, abs=0.06)
    assert sum(one.share for one in in_parts.parts) == same(1)
