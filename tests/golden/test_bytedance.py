"""Two production jobs of the what-if paper: their stages differ, none of their machines is slow."""

from pathlib import Path

import pytest
from support.answers import once, recorded, triaged
from support.places import BYTEDANCE

from kair_engine.blame.analysis import blame
from kair_engine.localize import analysis as localizing
from kair_engine.timeline.roles import roles
from kair_engine.trace.model import Trace
from kair_engine.views import overview
from kair_tui.render.verdict import summary

pytestmark = pytest.mark.skipif(not BYTEDANCE.is_dir(), reason=f"the real traces are not at {BYTEDANCE}")

localize, info = once(localizing.localize), once(overview.info)
JOBS = {"ST": (8, 4, 32), "SE": (64, 2, 43)}
"""Workers, pipeline stages and steps."""


@pytest.fixture(scope="module", params=JOBS)
def job(request: pytest.FixtureRequest) -> tuple[str, Trace]:
    return request.param, recorded(source(request.param))


def source(name: str) -> Path:
    return BYTEDANCE / f"trace-{name}.parquet"


@pytest.mark.slow
def test_the_roles_are_the_pipelines_stages(job: tuple[str, Trace]) -> None:
    name, trace = job
    workers, stages, steps = JOBS[name]
    role_of = roles(trace)
    assert len(role_of) == workers
    assert {role.stage for role in role_of.values()} == set(range(stages))
    sizes = {role: list(role_of.values()).count(role) for role in role_of.values()}
    assert set(sizes.values()) == {workers // stages}
    assert len(trace.steps) == len(info(trace).steps) == steps


@pytest.mark.slow
def test_uneven_work_is_named_and_no_machine_is_accused(job: tuple[str, Trace]) -> None:
    name, trace = job
    result = triaged(source(name))
    causes = [finding.cause for finding in result.findings]
    assert causes == {"ST": ["stage_imbalance"], "SE": ["sequence_imbalance", "stage_imbalance"]}[name]
    assert {finding.pattern for finding in result.findings} == {"job_wide"}
    last = max(JOBS[name][1] - 1, 0)
    uneven = next(finding for finding in result.findings if finding.cause == "stage_imbalance")
    assert uneven.seen_on == tuple(rank for rank, role in roles(trace).items() if role.stage == last)
    assert (result.verdict, uneven.ranks) == ("job_wide", ())
    assert not any(score.flagged for score in localize(trace).scores)


def test_all_waiting_is_accounted_for(job: tuple[str, Trace]) -> None:
    _, trace = job
    result = blame(trace.select(trace.steps[:3]))
    assert result.waiting_us > 0
    assert result.bubble_us + result.attributed_us + result.unattributed_us == pytest.approx(result.waiting_us)
    known = [cause for cause in result.root_causes if cause.cause != "unknown"]
    assert sum(cause.blamed_us for cause in known) == pytest.approx(result.attributed_us)
    assert sum(cause.share for cause in known) == pytest.approx(result.attributed_us / result.waiting_us)


def test_every_collective_finds_its_members(job: tuple[str, Trace]) -> None:
    _, trace = job
    looked_at = info(trace)
    assert looked_at.matched_collectives == looked_at.collectives > 0


@pytest.mark.slow
def test_the_first_line_accuses_no_rank_of_what_is_no_rank_s_fault(job: tuple[str, Trace]) -> None:
    name, _ = job
    causes = {"SE": ("sequence imbalance", "stage imbalance"), "ST": ("stage imbalance",)}[name]
    verdict, _, said = summary(triaged(source(name))).partition(": ")
    assert verdict == "job-wide"
    told, _, whose = said.partition("; ")
    assert [part.partition(" on ")[0] for part in told.split(" and ")] == [*causes]
    assert whose.startswith("no rank is to blame: ")
