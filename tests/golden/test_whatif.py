"""The public production traces and the answers published with them: every field of every file, of every trace there is.

A field that this test does not know fails it, and so does a further trace whose figures differ.
"""

import json
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any

import pytest
from support.answers import recorded
from support.places import BYTEDANCE
from support.prices import delayed_error

from kair_engine.results.fixes import parse_fix, parse_scale
from kair_engine.results.whatif import PartEffect, StepPrice, WhatifResult
from kair_engine.trace.model import Trace
from kair_engine.whatif.analysis import whatif
from kair_engine.whatif.pipeline.rows import read_pipeline
from kair_engine.whatif.pipeline.times import THRESHOLD
from kair_tui.render.whatif import darker_from, verdict_in_words

FOLDER = BYTEDANCE
NAMES = sorted(path.stem.removeprefix("trace-") for path in FOLDER.glob("trace-*.parquet"))
CLOSE = 1e-4

pytestmark = pytest.mark.skipif(not NAMES, reason="the public what-if traces are not beside the checkout")

Answer = tuple[Trace, WhatifResult]
Answers = Callable[[str], Answer]


def published(kind: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{kind}-{name}.json").read_text())
    return found


FIELDS = [(kind, name, field) for name in NAMES for kind in ("result", "mw", "ms") for field in published(kind, name)]


@pytest.fixture(scope="module")
def answers() -> Answers:
    @cache
    def answer(name: str) -> Answer:
        trace = recorded(FOLDER / f"trace-{name}.parquet")
        return trace, whatif(trace)

    return answer


@pytest.fixture(params=NAMES)
def named(request: pytest.FixtureRequest, answers: Answers) -> tuple[str, WhatifResult]:
    return request.param, answers(request.param)[1]


def of_steps(of: Callable[[StepPrice], object]) -> Callable[[WhatifResult], object]:
    return lambda ours: {step.step: of(step) for step in ours.per_step}


PARTS = {"optype": "by_operator_type", "dp_rank": "by_dp_rank", "stage": "by_stage"}
RESULT: dict[str, Callable[[WhatifResult], object]] = {
    "step_t_base": of_steps(lambda step: step.measured_us / 1e6),
    "step_t_nodelay": of_steps(lambda step: step.replayed_us / 1e6),
    "step_t_noblk": of_steps(lambda step: step.ideal_us / 1e6),
    "launch_slowdown": lambda ours: ours.launch_slowdown,
    "blocking_slowdown": lambda ours: ours.slowdown,
    "blocking_step_slowdown": of_steps(lambda step: step.slowdown),
    "launch_step_slowdown": of_steps(lambda step: step.measured_us / step.replayed_us),
}
for part, attribute in PARTS.items():
    for effect, prefix in (("blocking", ""), ("launch", "launch_")):
        get = attrgetter(prefix + attribute)
        RESULT[f"{effect}_decompose_by_{part}"] = get
        RESULT[f"{effect}_decompose_by_{part}_per_step"] = of_steps(get)
EFFECT: dict[str, Callable[[WhatifResult, PartEffect], float]] = {
    "trem": lambda _, part: part.step_time_removed_us / 1e6,
    "tadd": lambda _, part: part.step_time_alone_us / 1e6,
    "tori": lambda ours, _: ours.step_time_us / 1e6,
    "tideal": lambda ours, _: ours.ideal_step_time_us / 1e6,
    "rem": lambda _, part: part.share_removed,
    "add": lambda _, part: part.share_alone,
}


def flat(value: object, *path: str) -> dict[tuple[str, ...], float]:
    """The figures in nested objects, by their paths."""
    if isinstance(value, dict):
        return {key: one for name, inner in value.items() for key, one in flat(inner, *path, str(name)).items()}
    assert isinstance(value, int | float)
    return {path: value}


@pytest.mark.parametrize(("kind", "name", "field"), FIELDS)
def test_a_published_field_is_ours(kind: str, name: str, field: str, answers: Answers) -> None:
    trace, ours = answers(name)
    theirs = published(kind, name)[field]
    if field == "job_meta":
        same_job(trace, name, theirs)
    elif kind == "result":
        found = RESULT[field](ours)
        if theirs is None:
            below = ours.launch_slowdown if field.startswith("launch") else ours.slowdown
            assert below < THRESHOLD  # the published analyzer takes apart no less
        else:
            assert flat(found) == pytest.approx(flat(theirs), rel=CLOSE)
    else:
        part = ours.slowest_workers if kind == "mw" else ours.last_stage
        assert part is not None
        if field in {"Mw", "Ms"}:
            assert {"Mw": ours.m_w, "Ms": ours.m_s}[field] == pytest.approx(theirs, rel=CLOSE)
        else:
            assert EFFECT[field](ours, part) == pytest.approx(theirs, rel=CLOSE)


def same_job(trace: Trace, name: str, theirs: dict[str, Any]) -> None:
    layout, rows = trace.job.layout, read_pipeline(trace)
    assert layout is not None
    chunks = int(rows.chunk[rows.of_type("forward-compute")].max()) + 1
    sizes = {"dp_size": layout.dp, "pp_size": layout.pp, "tp_size": layout.tp, "world_size": trace.job.world_size}
    workers = layout.dp * layout.pp * (layout.tp or 1)
    sizes |= {"dsp_size": trace.job.world_size // workers, "vpp_size": chunks // layout.pp}
    assert theirs == {"trial_name": name, "run_id": 0, **sizes}


def test_attributions_are_largest_first(named: tuple[str, WhatifResult]) -> None:
    _, ours = named
    for one in (ours, *ours.per_step):
        for attribute in PARTS.values():
            values = list(getattr(one, attribute).values())
            assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("name", ["ST", "SE"])
def test_the_verdicts_blame_no_machine(name: str, answers: Answers) -> None:
    _, ours = answers(name)
    causes = verdict_in_words(ours).partition(": ")[2]
    if name == "SE":
        assert causes.startswith("sequence-length imbalance")
        assert "second stage imbalance" in causes
        assert ours.remedies[0].remedy == "sorted_microbatches"
    else:
        assert causes.startswith("stage imbalance")
        assert ours.pattern == "one_stage"
        assert ours.remedies[0].remedy == "even_stages"
    assert "slow_workers" not in {cause.kind for cause in ours.causes}


@pytest.mark.parametrize(("name", "correlation", "variation"), [("ST", 0.863, 0.029), ("SE", 0.993, 0.219)])
def test_the_correlations_are_what_was_measured_on_these_traces(
    name: str, correlation: float, variation: float, answers: Answers
) -> None:
    _, ours = answers(name)
    assert ours.forward_backward_correlation == pytest.approx(correlation, abs=0.001)
    assert ours.forward_variation == pytest.approx(variation, abs=0.001)


@pytest.mark.parametrize("name", NAMES)
def test_the_simulation_error_is_the_papers_and_with_launch_delays_there_is_none(name: str, answers: Answers) -> None:
    trace, ours = answers(name)
    off = {"ST": 0.0189, "SE": 0.0051, "AR": 0.0067}
    assert delayed_error(trace) < 1e-9
    assert ours.simulation_error == pytest.approx(1 - 1 / ours.launch_slowdown)
    assert ours.simulation_error == pytest.approx(off[name], abs=5e-5)
    assert not any(one.code == "simulation_error" for one in ours.warnings)


def darkest(ours: WhatifResult) -> set[tuple[int, int]]:
    """(stage, dp rank) of the cells that are drawn darkest."""
    limit = darker_from(one for row in ours.heatmap for one in row)[-1]
    return {(stage, dp) for stage, row in enumerate(ours.heatmap) for dp, one in enumerate(row) if one - 1 >= limit}


@pytest.mark.skipif(not {"ST", "SE"} <= {*NAMES}, reason="the traces are not here")
def test_the_heat_map_is_the_papers(answers: Answers) -> None:
    """Of ST the last stage is dark, of SE every worker of the last stage, and none of the others is blank."""
    ours = answers("ST")[1]
    assert darkest(ours) == {(3, 0), (3, 1)}
    assert ours.heatmap[3] == pytest.approx((1.2272, 1.2319), abs=1e-4)
    assert max(map(max, ours.heatmap[:3])) < 1.02
    ours = answers("SE")[1]
    assert {stage for stage, _ in darkest(ours)} == {1}
    assert len(darkest(ours)) >= 31
    assert min(map(min, ours.heatmap)) > 1.01


def test_the_worker_that_costs_most_is_the_dp_rank_and_stage_that_cost_most(named: tuple[str, WhatifResult]) -> None:
    _, ours = named
    assert next(iter(ours.by_rank)) in list(ours.by_rank_approximate)[:2]


def test_fixing_a_part_saves_no_more_than_fixing_the_whole() -> None:
    trace = recorded(FOLDER / "trace-ST.parquet")
    fixes = [parse_fix("stage=3"), parse_fix("kind=compute"), parse_scale("op=*-compute:0.5")]
    stage, compute, half, together = whatif(trace, fixes, gpu_cost=2.0).fixes
    assert stage.saved_us > 0
    assert compute.saved_us < half.saved_us <= together.saved_us
    assert stage.gpu_hours_per_day == pytest.approx(stage.saved_share * 8 * 24)
    assert stage.cost_per_day == pytest.approx(2 * stage.gpu_hours_per_day)
