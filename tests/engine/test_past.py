"""What became slow within a recording is told by its own past: links, ranks without peers, roles, and whole steps."""

import importlib.util
import sys
from pathlib import Path

import pytest
from support.one_forward_one_backward import Compute, Delay, logs
from support.trace_builder import trace

from kair_engine.recording.opening import open_trace
from kair_engine.results.triage import TriageResult
from kair_engine.results.warning_kinds import GroupsDiffer
from kair_engine.trace.model import Trace
from kair_engine.triage.analysis import triage
from kair_tui.render.verdict import summary
from kair_tui.render.warnings import warnings_in_words

pytestmark = pytest.mark.slow

CONVERTER = Path(__file__).parents[3] / "shared" / "tools" / "pipemorph.py"
needs_converter = pytest.mark.skipif(not CONVERTER.is_file(), reason=f"the converter is not at {CONVERTER}")
ITERATIONS, ONSET = 16, 9


def converted(folder: Path, delay: Delay = lambda *_: 2.0, compute: Compute = lambda *_: 1.0) -> Trace:
    """A made log of a pipeline through the converter of real ones, which leaves the first iterations out."""
    spec = importlib.util.spec_from_file_location("pipemorph", CONVERTER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    of_stage = logs(ITERATIONS, delay, compute)
    module.git = lambda _, *arguments: of_stage[int(arguments[-1].split("/GPU")[1][0])]
    arguments, sys.argv = sys.argv, ["pipemorph.py", "nowhere", "made", str(folder / "made")]
    try:
        module.main()
    finally:
        sys.argv = arguments
    return open_trace(folder / "made", cache=folder / "cache")


def step_us(made: Trace, steps: range) -> float:
    """The mean length of some steps, as whoever reads the log would take it."""
    lengths = dict(zip(made.steps, made_lengths(made), strict=True))
    return sum(lengths[step] for step in steps) / len(steps)


def made_lengths(made: Trace) -> list[float]:
    from kair_engine.localize.excess import job_excess

    return [step.step_time_ns / 1e3 for step in job_excess(made).steps]


def lost_while_slow_us(result: TriageResult) -> float:
    (told,) = [one for one in result.findings[0].evidence if one.kind == "while_slow"]
    return told.lost_us


@needs_converter
@pytest.mark.parametrize(("lower", "delay_ms"), [(2, 60.0), (0, 60.0), (1, 25.0)])
def test_a_pipeline_names_the_link_that_became_slow_and_what_it_costs_since(
    tmp_path: Path, lower: int, delay_ms: float
) -> None:
    made = converted(tmp_path, lambda step, low, _: delay_ms if step >= ONSET and low == lower else 2.0)
    result = triage(made)
    assert result.verdict == "straggler"
    first, *others = result.findings
    assert (first.cause, first.ranks, first.since) == ("communication", (lower, lower + 1), ONSET)
    assert first.edge is not None
    assert {f"rank {lower} → rank {lower + 1}", f"rank {lower + 1} → rank {lower}"} <= {*first.edge.split(", ")}
    assert not [one for one in others if one.pattern != "job_wide"]
    grew = step_us(made, range(ONSET, ITERATIONS)) - step_us(made, range(3, ONSET))
    assert lost_while_slow_us(result) == pytest.approx(grew, rel=0.2)
    assert first.time_lost_us_per_step == pytest.approx(lost_while_slow_us(result) * 7 / 13)
    assert first.steps == tuple(range(ONSET, ITERATIONS))


@needs_converter
def test_a_stage_that_became_slow_is_named_with_its_onset_and_its_end(tmp_path: Path) -> None:
    result = triage(converted(tmp_path, compute=lambda step, stage: 1.4 if stage == 2 and 7 <= step < 12 else 1.0))
    assert result.verdict == "straggler"
    (first,) = [one for one in result.findings if one.pattern != "job_wide"]
    assert (first.cause, first.pattern, first.ranks, first.since) == ("compute", "persistent", (2,), 7)
    assert first.steps == tuple(range(7, 12))


@needs_converter
def test_devices_that_warm_up_together_and_healthy_pipelines_accuse_nobody(tmp_path: Path) -> None:
    healthy = triage(converted(tmp_path / "even"))
    warming = triage(converted(tmp_path / "warm", compute=lambda step, _: 1.07 if step >= 5 else 1.0))
    assert [one.findings for one in (healthy, warming)] == [(), ()]
    assert not {one.kind for one in healthy.open} & {"changed", "groups_differ"}


@needs_converter
def test_steps_that_become_longer_on_all_ranks_leave_the_verdict_open(tmp_path: Path) -> None:
    result = triage(converted(tmp_path, compute=lambda step, _: 2.0 if step >= 8 else 1.0))
    assert result.verdict == "inconclusive"
    (item,) = [one for one in result.open if one.kind == "changed"]
    assert (item.steps[0], item.cause) == (8, "compute")
    assert item.took_us == pytest.approx(2 * (item.usual_us or 0.0), rel=0.05)
    assert "since step 8" in summary(result)


def groups(slow: float, groups: int = 2, steps: int = 8) -> str:
    """Groups of two ranks, as of tensor parallelism; each computes for 600 µs, then reduces for about 60 µs."""
    lines = []
    for step in range(steps):
        begin = step * 1000
        took = [slow if group == 1 else 60.0 + (step + group) % 3 for group in range(groups)]
        end = begin + 600 + max(took) + 30
        lines.append(f"step {step}: {begin}+{end - begin}")
        for group, reduces in enumerate(took):
            over = begin + 600 + reduces
            work = f"gemm {begin}+600 | allreduce@tp{group}#{step} {begin + 600}+{reduces}"
            lines.append(
                f"{2 * group}-{2 * group + 1} gpu7 | {work} | barrier@world#{step} {over}+{end - over} :collective"
            )
    return "\n".join(lines)


@pytest.mark.parametrize("number", [2, 3])
def test_of_two_or_three_groups_one_that_is_slow_leaves_the_verdict_open(tmp_path: Path, number: int) -> None:
    result = triage(trace(tmp_path, groups(180, number)))
    assert result.verdict == "inconclusive"
    (told,) = [one for one in result.warnings if isinstance(one, GroupsDiffer)]
    assert (told.ranks, told.links) == ((2, 3), number)
    assert told.own_us - told.other_us == pytest.approx(119, abs=2)
    (words,) = [one.message for one in warnings_in_words(result.warnings) if one.code == "groups_differ"]
    assert "ranks 2-3" in words


def test_groups_that_are_alike_are_not_open(tmp_path: Path) -> None:
    result = triage(trace(tmp_path, groups(63)))
    assert result.verdict == "no_straggler"
