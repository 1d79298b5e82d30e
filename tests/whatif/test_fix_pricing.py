"""Fixes priced alone: the same figures as with all that else costs, asked once or again and again."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.answers import recorded
from support.cli_samples import kair, store_variables
from support.cli_samples import triage as triage_sample
from support.cli_samples import whatif as whatif_sample
from support.pipeline_builder import pipeline_job, written
from support.places import SAMPLES

from kair.app.candidates import candidates, workers
from kair_engine.errors import UsageError
from kair_engine.recording.opening import open_trace
from kair_engine.results.fixes import fix_text, parse_fix, parse_scale
from kair_engine.trace.model import Trace
from kair_engine.whatif.analysis import Questions, model_of, price_fixes, whatif

SAME = ("slowdown", "waste", "step_time_us", "measured_step_time_us", "ideal_step_time_us", "simulation_error")
"""Fields that do not depend on who costs what."""


@pytest.fixture
def sample() -> Trace:
    return recorded(SAMPLES / "pipeline_slow_operator").select([4, 5, 6])


@pytest.fixture
def pipeline(tmp_path: Path) -> Trace:
    return open_trace(written(tmp_path, pipeline_job(dp=2, pp=2, steps=(0, 1))), cache=tmp_path / "cache")


@pytest.mark.parametrize("recording", ["sample", "pipeline"])
def test_the_figures_are_those_of_the_whole_analysis(recording: str, request: pytest.FixtureRequest) -> None:
    trace: Trace = request.getfixturevalue(recording)
    fixes = [parse_fix("rank=1"), parse_fix("kind=compute"), parse_scale("stage=0+kind=compute:0.5")]
    whole, alone = whatif(trace, fixes, gpu_cost=2.0), price_fixes(model_of(trace), fixes, gpu_cost=2.0)
    assert alone.fixes == whole.fixes
    assert {name: getattr(alone, name) for name in SAME} == {name: getattr(whole, name) for name in SAME}
    assert (alone.gpu_hours_per_day, alone.cost_per_day) == (whole.gpu_hours_per_day, whole.cost_per_day)
    assert whole.cost_per_day == pytest.approx(whole.waste * trace.job.world_size * 24 * 2.0)
    assert [step.slowdown for step in alone.per_step] == [step.slowdown for step in whole.per_step]
    assert alone.warnings == tuple(one for one in whole.warnings if one.code not in ("upper_bound", "too_many_workers"))
    assert not alone.by_rank
    assert not alone.heatmap
    asked = Questions(model_of(trace, keep=True))
    assert asked.whatif(fixes, gpu_cost=2.0) == whole
    assert asked.whatif() == replace(whole, fixes=(), cost_per_day=None)
    with pytest.raises(UsageError, match="nothing in the chosen steps fits rank=77"):
        asked.whatif([parse_fix("rank=77")])


@pytest.mark.slow
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("recording", ["sample", "pipeline"])
def test_questions_to_one_model_are_answered_as_if_each_were_the_only_one(
    recording: str, keep: bool, request: pytest.FixtureRequest
) -> None:
    trace: Trace = request.getfixturevalue(recording)
    rank, kind = parse_fix("rank=1"), parse_fix("kind=compute")
    model = model_of(trace, keep=keep)
    both = price_fixes(model, [rank, kind]).fixes
    assert both == whatif(trace, [rank, kind]).fixes
    assert price_fixes(model, [kind]).fixes == both[1:2]
    assert price_fixes(model, [rank, kind]).fixes == both
    assert price_fixes(model, []).fixes == ()
    for _ in range(2):
        with pytest.raises(UsageError, match="nothing in the chosen steps fits rank=77"):
            price_fixes(model, [rank, parse_fix("rank=77")])


def test_without_any_fix_the_command_says_what_to_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store_variables(monkeypatch, tmp_path)
    outcome = kair("whatif", str(SAMPLES / "healthy"), "--only-fixes")
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.splitlines()[0] == "kair: error: there is no fix to price"


@pytest.mark.slow
def test_the_command_prints_the_fixes_and_no_attribution(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store_variables(monkeypatch, tmp_path)
    question = ("whatif", str(SAMPLES / "healthy"), "--fix", "kind=compute", "--only-fixes")
    text = kair(*question).out
    assert text.splitlines()[0].endswith("times slower than without any straggler; only fixes were priced")
    assert "kind=compute" in text
    assert "kind of time" not in text
    data = json.loads(kair(*question, "--json").out)["data"]
    assert (data["by_rank"], data["heatmap"], data["pattern"]) == ({}, [], "unknown")


def test_candidates_are_findings_then_the_costliest_parts_none_twice() -> None:
    found = replace(triage_sample().findings[0], fix=(parse_fix("rank=1"),))
    result = replace(
        whatif_sample(),
        saved_by_operator_type_us={"forward-compute": 25_000.0, "forward-pp-comm": 10_000.0, "communication": 1_000.0},
        saved_by_stage_us={1: 20_000.0, 0: 10.0},
        saved_by_host_us={"a+b": 20_000.0, "node1": 10_000.0},
        saved_by_rank_us={
            1: 20_000.0,
            0: 10_000.0,
            2: 1_000.0,
            3: 999.0,
            **{4 + at: 900.0 - 50 * at for at in range(5)},
        },
    )
    proposed = candidates(result, [found, replace(found, fix=())])
    assert [fix_text(*one.fixes) for one in proposed] == [
        *("rank=1", "op=forward-compute", "op=communication", "stage=1", "host=node1", "rank=0", "rank=4", "rank=5")
    ], "ranks 2 and 3 share what their fixes save"
    assert (proposed[0].finding, proposed[0].cause) == (1, found.cause)
    assert proposed[1].costs == pytest.approx(0.25)


def test_a_worker_that_was_not_replayed_costs_at_most_what_it_exceeds_its_peers_by() -> None:
    result = replace(
        whatif_sample(), saved_by_rank_us={3: 5_000.0, 0: -10.0}, saved_by_rank_at_most_us={1: 7_000.0, 2: 100.0}
    )
    found = workers(result)
    assert [(one.rank, one.costs_us, one.exact) for one in found] == [
        *((3, 5_000, True), (0, 0, True), (1, 7_000, False), (2, 100, False))
    ]
    assert found[0].costs == pytest.approx(5_000 / result.step_time_us), "of the recorded step"
    step = replace(result.per_step[0], saved_by_rank_us={1: 2_000.0})
    assert [(one.rank, one.costs) for one in workers(result, step)] == [(1, pytest.approx(2_000 / step.replayed_us))]
