"""One price: what a fix saves of the recorded job, and where its time goes, are the same in every command's answer.

Over samples, real traces and simulated jobs with three sorts of parallelism. Each is analysed once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from compute_faults import SlowGpu
from layouts import JobLayout
from simulator import JobSpec, simulate
from support.answers import once, recorded, triaged
from support.places import BYTEDANCE, MEGATRON, SAMPLES
from table import write_table

from kair_engine.blame.analysis import blame
from kair_engine.fleet import cost_of, saved_share
from kair_engine.results.blame import BlameResult
from kair_engine.results.store import StragglerCost
from kair_engine.results.triage import Finding, TriageResult
from kair_engine.results.views import OperatorsResult, StepsResult
from kair_engine.results.whatif import FIX_KINDS, Fix, WhatifResult
from kair_engine.trace.model import Trace
from kair_engine.triage.analysis import triage
from kair_engine.views.operator_times import operator_times
from kair_engine.views.overview import steps
from kair_engine.views.rank_profile import rank_profile
from kair_engine.whatif.analysis import whatif
from kair_engine.whatif.pipeline.rows import TYPES
from kair_tui.render.answer import JobInfo
from kair_tui.render.report.triage import Found, triage_report
from kair_tui.render.triage import triage_in_words
from kair_tui.render.units import duration, one_decimal
from kair_tui.render.whatif import parts_of, whatif_in_words

pytestmark = pytest.mark.slow

RECORDINGS = (
    *sorted({path.parent for path in SAMPLES.glob("*/*.json.gz")}),
    MEGATRON,
    BYTEDANCE / "trace-ST.parquet",
    BYTEDANCE / "trace-SE.parquet",
)
PARALLEL = {
    "3d8": JobLayout("3d", dp=2, pp=2, tp=2, microbatches=4),
    "3d16": JobLayout("3d", dp=4, pp=2, tp=2, microbatches=4),
}
same = pytest.approx


@dataclass(frozen=True)
class Answers:
    """Of all commands about one job."""

    trace: Trace
    triage: TriageResult
    whatif: WhatifResult
    """With the fixes of triage's findings."""
    blame: BlameResult
    operators: OperatorsResult
    steps: StepsResult
    cost: StragglerCost
    """As `kair fleet` and `kair jobs --whatif` have it."""


def _answers(job: Trace, found: TriageResult) -> Answers:
    fixes = [fix for finding in found.findings for fix in finding.fix]
    return Answers(
        job,
        found,
        once(whatif)(job, fixes),
        once(blame)(job),
        once(operator_times)(job, limit=10_000),
        once(steps)(job),
        cost_of(job, found),
    )


@cache
def of_recording(source: Path) -> Answers:
    return _answers(recorded(source), triaged(source))


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Answers]:
    @cache
    def answers(name: str) -> Answers:
        (job,) = simulate([JobSpec(PARALLEL[name], steps=8, seed=1, faults=(SlowGpu(3, 1.3),))])
        made = write_table(job, tmp_path_factory.mktemp("simulated"))
        return _answers(made, triage(made))

    return answers


@pytest.fixture(params=[*RECORDINGS, *PARALLEL], ids=lambda one: one.stem if isinstance(one, Path) else one)
def of(request: pytest.FixtureRequest, simulated: Callable[[str], Answers]) -> Answers:
    if isinstance(request.param, str):
        return simulated(request.param)
    if not request.param.exists():
        pytest.skip("the real traces are not beside this checkout")
    return of_recording(request.param)


def test_a_part_costs_what_its_fix_saves(of: Answers) -> None:
    """A row of `kair whatif` is the price of `kair whatif --fix` of the same part."""
    found = of.whatif
    published = of.trace.job.format == "whatif"
    asked = {Fix(ranks=(rank,)): saved for rank, saved in [*found.saved_by_rank_us.items()][:3]}
    asked |= {Fix(hosts=(host,)): saved for host, saved in found.saved_by_host_us.items()}
    asked |= {Fix(stages=(stage,)): saved for stage, saved in found.saved_by_stage_us.items()}
    # Pairs of types (forward-pp-comm) go by no name of an operation, and a kind that nobody spent time on has no fix.
    kinds = [(one, us) for one, us in found.saved_by_operator_type_us.items() if us > 0 and one in (*TYPES, *FIX_KINDS)]
    asked |= {Fix(operators=(kind,)) if published else Fix(kinds=(kind,)): saved for kind, saved in kinds}  # type: ignore[arg-type]
    prices = whatif(of.trace, [*asked]).fixes[: len(asked)]
    assert [price.saved_us for price in prices] == [same(saved, abs=1e-6) for saved in asked.values()]
    assert published or {*found.saved_by_operator_type_us} == {*FIX_KINDS}
    assert [*found.saved_by_rank_us.values()] == sorted(found.saved_by_rank_us.values(), reverse=True)


def test_hours_of_a_part_are_those_of_its_fix(of: Answers) -> None:
    told = parts_of(of.whatif)["rank"][0]
    priced = whatif(of.trace, [Fix(ranks=told.ranks[:1])]).fixes[0]  # a row of several has the costliest one's figures
    assert told.saved_us == same(priced.saved_us, abs=1e-6)
    assert told.saved == same(priced.saved_share, abs=1e-9)
    assert told.gpu_hours_per_day == same(priced.gpu_hours_per_day, abs=1e-6)


def test_no_fix_of_triage_has_two_prices(of: Answers) -> None:
    prices = {one.fix: one for one in of.whatif.fixes}
    for finding in of.triage.findings:
        if finding.priced_by != "replay" or len(finding.fix) != 1 or _is_left_over(finding):
            continue
        price = next(one for one in prices.values() if one.saved_us == same(finding.time_lost_us_per_step))
        assert price.gpu_hours_per_day == same(finding.gpu_hours_per_day)
        assert price.throughput_gain == same(finding.throughput_gain)
        assert finding.gpu_hours_per_day <= of.whatif.gpu_hours_per_day * 1.05, "S is without any straggler"


def _is_left_over(finding: Finding) -> bool:
    """Whether it is priced by what is left of it once others are fixed."""
    return any(one.figures.get("others_fixed", 0) for one in finding.evidence if one.kind == "replayed")


def test_a_fleet_counts_what_fixes_save(of: Answers) -> None:
    devices = of.trace.job.world_size * 24
    assert of.cost.waste == same(saved_share(of.triage))
    assert of.cost.gpu_hours_per_day == same(of.cost.waste * devices)
    assert of.cost.slowdown == same(of.whatif.slowdown)
    if not of.triage.findings:
        assert (of.cost.waste, of.cost.gpu_hours_per_day) == (0, 0), "however far S is from 1"
    elif of.triage.together is not None:
        assert of.cost.gpu_hours_per_day >= of.triage.together.gpu_hours_per_day - 1e-6
    else:
        most = max(finding.gpu_hours_per_day for finding in of.triage.findings)
        assert of.cost.gpu_hours_per_day == same(most, rel=1e-6)


def test_the_head_of_a_report_has_the_price_of_the_first_finding_and_s_by_its_name(of: Answers) -> None:
    job = of.trace.job
    info = JobInfo(job.source, job.source, job.world_size, job.ranks, of.trace.steps)
    found = Found(info, triage_in_words(of.triage), (), of.blame, whatif_in_words(of.whatif), ())
    facts = dict(triage_report(found, lambda *words: " ".join(words), "now").facts.pairs)
    assert facts["without any straggler"].startswith(f"S {of.whatif.slowdown:.4f}")
    assert ("a fix saves" in facts) == bool(of.triage.findings)
    for finding in of.triage.findings[:1]:
        assert facts["a fix saves"].endswith(f"{one_decimal(finding.gpu_hours_per_day)} GPU-hours a day")


def test_ranks_spend_no_more_than_they_have(of: Answers) -> None:
    """`kair operators`, `steps` and `rank` divide one time, and none of it twice."""
    table = of.operators
    chosen = set(of.trace.steps)
    took = sum(row.duration_us for row in of.steps.steps if row.step in chosen)
    assert table.ranks_time_us == same(took, rel=1e-6)
    assert table.step_time_us == same(of.steps.step_time_us)
    assert sum(row.share for row in table.by_type) <= 1 + 1e-9
    for row in table.by_type:
        assert 0 <= row.background_us <= row.total_us + 1e-6
        assert row.share == same((row.total_us - row.background_us) / table.ranks_time_us, abs=1e-9)
        assert row.min_us <= row.median_us <= row.max_us
    for kind in {row.type for row in table.operators}:
        total = next(row.total_us for row in table.by_type if row.type == kind)
        assert sum(row.total_us for row in table.operators if row.type == kind) == same(total)


def test_a_rank_that_waits_for_nobody_is_the_least(of: Answers) -> None:
    waiting = next((row for row in of.operators.by_type if row.type == "waiting"), None)
    parts = [
        {part.part: part.own_us for part in rank_profile(of.trace, rank=rank).parts} for rank in of.trace.job.ranks[:8]
    ]
    if waiting is not None:
        for own in parts:
            # Means over the steps that each rank recorded.
            assert waiting.min_us - 1e-3 <= own["waiting"] <= waiting.max_us + 1e-3


def test_waiting_is_one_sum(of: Answers) -> None:
    """What `operators` has of waiting, in the background too, is what `blame` lays at causes, known ones or not."""
    waited = sum(row.total_us for row in of.operators.by_type if row.type == "waiting")
    assert waited == same(of.blame.waiting_us, rel=1e-6, abs=1.0)
    unknown = sum(row.blamed_us for row in of.blame.root_causes if row.cause == "unknown")
    laid = sum(row.blamed_us for row in of.blame.root_causes)
    assert of.blame.unattributed_us == same(unknown + of.blame.waiting_us - of.blame.bubble_us - laid, abs=1.0), (
        "a pipeline's bubble is laid at nobody"
    )
    assert duration(of.triage.unattributed_us_per_step) == duration(of.blame.unattributed_us / len(of.trace.steps))


def test_threads_that_serve_the_program_are_no_late_host(of: Answers) -> None:
    served = [row for row in of.blame.root_causes if row.is_edge and (row.operator or "").startswith("gloo:")]
    assert not [row for row in served if row.cause == "host"]


def test_a_slow_operator_is_what_others_waited_for() -> None:
    """The demo's fault is one operator of rank 2: its threads that communicate have no part in it."""
    first = of_recording(SAMPLES / "slow_operator").blame.root_causes[0]
    assert (first.rank, first.operator, first.cause) == (2, "kair_sample::mlp", "compute")
    assert first.share > 0.95
