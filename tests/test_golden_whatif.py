"""The public production traces and the answers published with them, field by field."""

import json
from pathlib import Path
from typing import Any

import pytest

from kair_engine.opening import open_trace
from kair_engine.whatif.analysis import whatif
from kair_engine.whatif.fixes import parse_fix, parse_scale
from kair_engine.whatif.result import WhatifResult

FOLDER = Path(__file__).parent.parent / "../shared/traces/bytedance"
NAMES = ("ST", "SE")
CLOSE = 1e-4

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the public what-if traces are not beside the checkout")

Answer = tuple[str, WhatifResult, dict[str, Any]]


@pytest.fixture(scope="module", params=NAMES)
def answer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Answer:
    trace = open_trace(FOLDER / f"trace-{request.param}.parquet", cache=tmp_path_factory.mktemp("cache"))
    published = json.loads((FOLDER / f"result-{request.param}.json").read_text())
    return request.param, whatif(trace), published


def same(ours: dict[Any, float], published: dict[str, float]) -> None:
    assert {str(key): value for key, value in ours.items()} == pytest.approx(published, rel=CLOSE)
    assert list(ours.values()) == sorted(ours.values(), reverse=True)


def test_the_step_times_are_the_published_ones(answer: Answer) -> None:
    _, ours, published = answer
    of_step = {str(step.step): step for step in ours.per_step}
    for field, name in (("measured_us", "base"), ("replayed_us", "nodelay"), ("ideal_us", "noblk")):
        seconds = {step: getattr(one, field) / 1e6 for step, one in of_step.items()}
        assert seconds == pytest.approx(published[f"step_t_{name}"], rel=CLOSE)


def test_the_slowdowns_are_the_published_ones(answer: Answer) -> None:
    _, ours, published = answer
    assert ours.slowdown == pytest.approx(published["blocking_slowdown"], rel=CLOSE)
    assert ours.launch_slowdown == pytest.approx(published["launch_slowdown"], rel=CLOSE)
    steps = {str(step.step): step for step in ours.per_step}
    of_step = {number: step.slowdown for number, step in steps.items()}
    assert of_step == pytest.approx(published["blocking_step_slowdown"], rel=CLOSE)
    launch = {number: step.measured_us / step.replayed_us for number, step in steps.items()}
    assert launch == pytest.approx(published["launch_step_slowdown"], rel=CLOSE)


def test_the_attributions_are_the_published_ones(answer: Answer) -> None:
    _, ours, published = answer
    same(ours.by_operator_type, published["blocking_decompose_by_optype"])
    same(ours.by_dp_rank, published["blocking_decompose_by_dp_rank"])
    same(ours.by_stage, published["blocking_decompose_by_stage"])
    assert ours.launch_by_operator_type is published["launch_decompose_by_optype"] is None


def test_the_attributions_of_each_step_are_the_published_ones(answer: Answer) -> None:
    _, ours, published = answer
    for step in ours.per_step:
        same(step.by_operator_type, published["blocking_decompose_by_optype_per_step"][str(step.step)])
        same(step.by_dp_rank, published["blocking_decompose_by_dp_rank_per_step"][str(step.step)])
        same(step.by_stage, published["blocking_decompose_by_stage_per_step"][str(step.step)])


def test_m_w_and_m_s_are_the_published_ones(answer: Answer) -> None:
    name, ours, _ = answer
    assert ours.m_w == pytest.approx(json.loads((FOLDER / f"mw-{name}.json").read_text())["Mw"], rel=CLOSE)
    assert ours.m_s == pytest.approx(json.loads((FOLDER / f"ms-{name}.json").read_text())["Ms"], rel=CLOSE)


def test_the_verdicts_blame_no_machine(answer: Answer) -> None:
    name, ours, _ = answer
    causes = ours.verdict.partition(": ")[2]
    if name == "SE":
        assert causes.startswith("sequence-length imbalance")
        assert "second stage imbalance" in causes
        assert ours.remedies[0].remedy == "sorted_microbatches"
    else:
        assert causes.startswith("stage imbalance")
        assert ours.pattern == "one_stage"
        assert ours.remedies[0].remedy == "even_stages"
    assert "slow worker" not in causes


def test_the_correlations_are_what_was_measured_on_these_traces(answer: Answer) -> None:
    name, ours, _ = answer
    correlation, variation = {"ST": (0.863, 0.029), "SE": (0.993, 0.219)}[name]
    assert ours.forward_backward_correlation == pytest.approx(correlation, abs=0.001)
    assert ours.forward_variation == pytest.approx(variation, abs=0.001)


def test_with_launch_delays_the_replay_is_the_recording(answer: Answer) -> None:
    _, ours, _ = answer
    assert ours.simulation_error < 1e-9
    assert ours.warnings == ()


def test_the_worker_that_costs_most_is_the_dp_rank_and_stage_that_cost_most(answer: Answer) -> None:
    _, ours, _ = answer
    assert next(iter(ours.by_rank)) in list(ours.by_rank_approximate)[:2]


def test_fixing_a_part_saves_no_more_than_fixing_the_whole(tmp_path: Path) -> None:
    trace = open_trace(FOLDER / "trace-ST.parquet", cache=tmp_path)
    fixes = [parse_fix("stage=3"), parse_fix("kind=compute"), parse_scale("op=*-compute:0.5")]
    stage, compute, half, together = whatif(trace, fixes, gpu_cost=2.0).fixes
    assert stage.saved_us > 0
    assert compute.saved_us < half.saved_us <= together.saved_us
    assert stage.gpu_hours_per_day == pytest.approx(stage.saved_share * 8 * 24)
    assert stage.cost_per_day == pytest.approx(2 * stage.gpu_hours_per_day)
