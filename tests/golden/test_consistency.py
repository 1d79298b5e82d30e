"""One number, one definition: what docs/reference/figures.md defines is the same in every command's answer.

Over all samples and real traces; each is analysed once, by each analysis.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from job_folder import write_job_folder
from layouts import JobLayout
from simulator import JobSpec, simulate
from support import chrome_builder, nsys_builder, xplane_builder
from support.answers import once, recorded, triaged
from support.pauses_builder import table
from support.places import BYTEDANCE, MEGATRON, SAMPLES
from support.tensor_parallel import write_tensor_parallel
from support.trace_builder import trace

from kair_engine.blame.analysis import blame
from kair_engine.causes import CAUSES
from kair_engine.localize.analysis import localize
from kair_engine.localize.anomalies import FEWEST_STEPS
from kair_engine.pinpoint import pinpoint
from kair_engine.results.blame import BlameResult
from kair_engine.results.localize import LocalizeResult
from kair_engine.results.triage import TriageResult
from kair_engine.results.views import InfoResult, StepsResult
from kair_engine.results.whatif import WhatifResult
from kair_engine.sensitivity.analysis import sensitivity
from kair_engine.trace.model import Trace
from kair_engine.triage.analysis import triage
from kair_engine.views.operator_times import operator_times
from kair_engine.views.overview import info, steps
from kair_engine.views.rank_profile import rank_profile
from kair_engine.whatif.analysis import whatif
from kair_tui.render.triage import facts, triage_in_words
from kair_tui.render.verdict import cause_in_words

pytestmark = pytest.mark.slow

RECORDINGS = (
    *sorted({path.parent for path in SAMPLES.glob("*/*.json.gz")}),
    MEGATRON,
    BYTEDANCE / "trace-ST.parquet",
    BYTEDANCE / "trace-SE.parquet",
    *sorted((Path(__file__).parents[1] / "recordings" / "xplane").glob("*/")),
)
UNKNOWN = "void house_kernels::push<__nv_bfloat16, 8>(int*)"
"""Communicates, which its name does not tell."""


def _3d(folder: Path) -> Path:
    layout = JobLayout("3d", dp=2, pp=2, tp=2, microbatches=4)
    return write_job_folder(simulate([JobSpec(layout, 3, 1, ())])[0], folder)


def _ascend(folder: Path) -> Path:
    for rank in range(4):
        chrome_builder.ascend(folder, rank, late=150 * (rank == 2))
    return folder


MADE: dict[str, Callable[[Path], Path]] = {
    "unknown communication": lambda folder: write_tensor_parallel(folder, collective=UNKNOWN, slow={1: 1.3}),
    "simulated pipeline": _3d,
    "ascend": _ascend,
    "horovod": lambda folder: chrome_builder.horovod(folder / "timeline.json", slow=2),
    "nsys": lambda folder: nsys_builder.write_job(folder, range(4), slow=2),
    "xplane pod": lambda folder: xplane_builder.write_pod(folder, slow=2),
}
"""Recordings that are written for this: of names and formats that no sample has."""
same = pytest.approx


@dataclass(frozen=True)
class Answers:
    """Of all commands about one recording."""

    trace: Trace
    triage: TriageResult
    localize: LocalizeResult
    blame: BlameResult
    whatif: WhatifResult
    info: InfoResult
    steps: StepsResult


@cache
def answers(source: Path) -> Answers:
    job, found = recorded(source), triaged(source)
    fixes = [fix for finding in found.findings for fix in finding.fix]
    return Answers(
        job, found, once(localize)(job), once(blame)(job), once(whatif)(job, fixes), once(info)(job), once(steps)(job)
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def written(name: str) -> Path:
        folder = tmp_path_factory.mktemp("made") / "job"
        folder.mkdir()
        return MADE[name](folder)

    return written


@pytest.fixture(params=[*RECORDINGS, *MADE], ids=lambda one: one.stem if isinstance(one, Path) else one)
def of(request: pytest.FixtureRequest, made: Callable[[str], Path]) -> Answers:
    if isinstance(request.param, str):
        return answers(made(request.param))
    if not request.param.exists():
        pytest.skip("the real traces are not beside this checkout")
    return answers(request.param)


def test_all_samples_are_held_to_it() -> None:
    assert len(RECORDINGS) == 18


def test_the_step_time(of: Answers) -> None:
    assert of.localize.step_time_us == same(of.triage.step_time_us)
    assert of.steps.step_time_us == same(of.triage.step_time_us)
    if of.trace.job.format != "whatif":
        assert of.whatif.measured_step_time_us == same(of.triage.step_time_us)
        assert of.whatif.step_time_us == of.whatif.measured_step_time_us
        assert of.whatif.peer_slowdown == of.whatif.slowdown
    else:
        # What was published counts from the first rank's begin to the last one's end.
        ends: dict[int, list[float]] = defaultdict(list)
        begins: dict[int, list[float]] = defaultdict(list)
        for row in of.steps.steps:
            begins[row.step].append(row.begin_us)
            ends[row.step].append(row.begin_us + row.duration_us)
        whole = [max(ends[step]) - min(begins[step]) for step in of.trace.steps]
        assert of.whatif.measured_step_time_us == same(sum(whole) / len(whole), rel=1e-6)


def test_operations_and_collectives(of: Answers) -> None:
    chosen = set(of.trace.steps)
    assert of.info.operations == sum(row.operations for row in of.steps.steps if row.step in chosen)
    assert of.info.operations == sum(of.info.operations_by_kind.values())
    assert of.blame.collectives == of.info.matched_collectives <= of.info.collectives


def test_waiting(of: Answers) -> None:
    number = len(of.trace.steps)
    assert of.triage.waiting_us_per_step == same(of.blame.waiting_us / number)
    assert of.triage.unattributed_us_per_step == same(of.blame.unattributed_us / number)
    assert of.blame.bubble_us + of.blame.attributed_us + of.blame.unattributed_us == same(of.blame.waiting_us)
    known = [row.blamed_us for row in of.blame.root_causes if row.cause != "unknown"]
    assert sum(known) == same(of.blame.attributed_us)
    laid = sum(row.blamed_us for row in of.blame.root_causes)
    assert sum(row.waited_us for row in of.blame.waiting) == same(laid)
    assert sum(row.blamed_us for row in of.blame.made_late) == same(laid)
    by_rank = {row.rank: row.blamed_us for row in of.blame.by_rank}
    for row in of.triage.ranking:
        assert row.wait_imposed_us == same(by_rank.get(row.rank, 0.0) / number)


def test_the_bar_of_a_step(of: Answers) -> None:
    bar = of.triage.bar
    assert bar is not None
    assert sum(one.share for one in bar.parts) == same(1)
    assert sum(one.us for one in bar.parts) == same(bar.step_time_us)
    one_role = len({row.role for row in of.triage.ranking}) == 1
    assert bar.bubble_from == ("one_program" if one_role else "replay")
    if one_role:
        assert bar.share("bubble") == of.blame.bubble_us == 0, "ranks that run one program have no bubble"
    if of.trace.job.format != "whatif":
        # It has what nothing covers of all waiting.
        waited = bar.waiting_share * bar.step_time_us * len(of.trace.job.ranks) * bar.steps
        assert waited <= of.blame.waiting_us * 1.001
    shown = {one.part: one.us for one in bar.parts}
    for row in of.triage.parts:
        assert shown.get(row.part, row.own_us) == same(row.own_us), "of one rank alone triage tells the parts, too"


def test_excess_and_score(of: Answers) -> None:
    ranked = [(row.rank, row.score, row.self_time_excess_us) for row in of.triage.ranking]
    scores = [(row.rank, row.score, same(sum(row.excess_us.values()))) for row in of.localize.scores]
    if len(of.trace.steps) < FEWEST_STEPS:
        # In too few steps for any test whoever is waited for longest comes first, of one role.
        imposed = [row.wait_imposed_us for row in of.triage.ranking]
        assert imposed == sorted(imposed, reverse=True) or len({row.role for row in of.triage.ranking}) > 1
        ranked, scores = sorted(ranked), sorted(scores, key=lambda row: row[0])
    assert ranked == scores
    for finding in of.triage.findings:
        assert {row.rank for row in of.triage.ranking if row.flagged} >= set(finding.ranks)


def test_prices(of: Answers) -> None:
    assert of.whatif.slowdown == same(of.whatif.step_time_us / of.whatif.ideal_step_time_us)
    assert of.whatif.waste == same(1 - of.whatif.ideal_step_time_us / of.whatif.step_time_us)
    fixes = iter(of.whatif.fixes)
    for finding in of.triage.findings:
        assert finding.slowdown == same(1 + finding.throughput_gain)
        if finding.priced_by != "replay":
            continue
        after = of.whatif.step_time_us - finding.time_lost_us_per_step
        assert finding.slowdown == same(of.whatif.step_time_us / after)
        (told,) = (one.figures for one in finding.evidence if one.kind == "replayed")
        if told.pop("others_fixed", 0):
            # What is left of it once the others are fixed; by itself the fix may save more.
            assert told["before_us"] - told["after_us"] == same(finding.time_lost_us_per_step)
            assert next(fixes).saved_us > 0
            continue
        assert told == {"before_us": same(of.whatif.step_time_us), "after_us": same(after)}
        remedies = {one.remedy: one.saved_us for one in of.whatif.remedies}
        if (remedy := CAUSES[finding.cause].remedy) is not None:
            assert remedies[remedy] == same(finding.time_lost_us_per_step)
        elif len(finding.fix) == 1:
            assert next(fixes).saved_us == same(finding.time_lost_us_per_step)
    lost = [finding.costs_us for finding in of.triage.findings]
    assert lost == sorted(lost, reverse=True)


def test_evidence_has_the_figures_of_the_command_it_names(of: Answers) -> None:
    step_us = of.triage.step_time_us
    patterns = {one.cause: one for one in of.localize.patterns}
    for finding in of.triage.findings:
        for one in finding.evidence:
            if "excess_us_per_step" in one.figures and "share_of_step" in one.figures:
                assert one.figures["share_of_step"] == same(one.figures["excess_us_per_step"] / step_us)
            if one.kind == "came_last":
                assert one.figures["collectives"] == of.info.matched_collectives
            if one.kind == "uneven_stages":
                assert one.figures["share_of_step"] == same(patterns["stage_imbalance"].lost_us / step_us)
                assert one.figures["self_us"] - one.figures["mean_us"] == same(patterns["stage_imbalance"].lost_us)


def test_the_sentence_names_the_culprit_first_and_says_what_costs_more(of: Answers) -> None:
    told = triage_in_words(of.triage).summary
    findings = of.triage.findings
    accused = [one for one in findings if one.pattern != "job_wide"]
    if accused:
        assert (" costs more: " in told) == bool(findings[: findings.index(accused[0])])
        told, findings = told.partition("; ")[0], tuple(accused[:1])
    places = [told.index(cause_in_words(finding.cause)) for finding in findings]
    assert places == sorted(places)


def test_a_ranks_parts_are_its_step(of: Answers) -> None:
    for rank in sorted(of.trace.job.ranks)[:1]:
        profile = rank_profile(of.trace, rank=rank)
        assert sum(part.own_us for part in profile.parts) == same(profile.step_time_us)
        own = [row.duration_us for row in of.steps.steps if row.rank == rank and row.step in set(profile.steps)]
        assert profile.step_time_us == same(sum(own) / len(own))


def test_sensitivity_knows_who_is_accused_in_too_few_steps(tmp_path: Path) -> None:
    one = trace(tmp_path, table(1, 20, {3: [2, 5, 7, 11, 13, 17]}))
    found, limits = triage(one), sensitivity(one)
    assert found.verdict == "straggler"
    assert limits.corrected_ranks == found.findings[0].ranks == (3,)
    assert limits.step_time_us == same(found.step_time_us)
    assert any(line.startswith("at times within the step, step 0") for line in facts(found.findings[0]))


def test_what_ranks_wait_in_is_communication_to_all(made: Callable[[str], Path]) -> None:
    """Rank 1 is slow, and its group waits for it in a kernel of no known name: no command lays that at the group."""
    of = answers(made("unknown communication"))
    for told in (of.triage, of.localize, of.blame, of.whatif, of.info):
        assert [UNKNOWN in one.message for one in told.warnings if one.code == "unknown_communication"] == [True]
    assert [row.rank for row in of.localize.scores if row.flagged] == [1]
    assert [row.rank for row in of.blame.by_rank] == [1]
    assert of.whatif.slowest_ranks == (1,)
    victim = rank_profile(of.trace, rank=2)
    largest = max(victim.parts, key=lambda part: part.own_us - (part.typical_us or 0))
    assert (largest.part, largest.own_us > 400) == ("waiting", True)
    outlying = {rank: {one.operator for one in pinpoint(of.trace, rank=rank).outliers} for rank in (1, 2)}
    assert outlying == {1: {"gemm"}, 2: set()}
    times = operator_times(of.trace)
    assert {one.type for one in times.operators if one.operator == UNKNOWN} == {"communication", "waiting"}
    assert sensitivity(of.trace, draws=20, chosen=("slow_link",)).corrected_ranks == (1,)
