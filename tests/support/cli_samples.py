"""Hand-made results, one of each kind, small enough to check by eye; and a trace whose names are hostile."""

import contextlib
import io
import json
import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, wraps
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from support.answers import shared_cache
from support.evidence_made import evidence_of

from kair.app.jobs import JobSource
from kair.app.question import Given
from kair_engine.results.blame import (
    BlamePath,
    BlameResult,
    MadeLate,
    PathNode,
    RankBlame,
    RankWaiting,
    RoleInPath,
    RootCause,
)
from kair_engine.results.collectives import (
    CollectivesResult,
    GroupTransfers,
    MatrixProducts,
    ProductShape,
    RankRates,
)
from kair_engine.results.evidence_kinds import ShownBy
from kair_engine.results.localize import GroupScore, JobPattern, LocalizeResult, OperatorScore, RankScore
from kair_engine.results.pinpoint import Outlier, PinpointResult
from kair_engine.results.query import Cell, QueryColumn, QueryResult
from kair_engine.results.rank import CurveDistance, CurvePoint, PartOfStep, RankProfileResult, SubgraphTime
from kair_engine.results.sensitivity import (
    DetectableFault,
    LongerRecording,
    MoreSteps,
    NoSiblings,
    SensitivityResult,
    TooDifferent,
)
from kair_engine.results.ticket import DrainCommand, Fingerprint, TicketResult, TimelinePicture
from kair_engine.results.timeline import (
    TimelineCollective,
    TimelineDelay,
    TimelineOperation,
    TimelineResult,
    TimelineRow,
    TimelineStop,
)
from kair_engine.results.triage import Finding, RankedRank, TriageResult
from kair_engine.results.views import (
    ClockInfo,
    DegradedRegion,
    DegradedWindow,
    FrequencyResult,
    InfoResult,
    OperatorsResult,
    OperatorTime,
    OperatorUse,
    RankCounts,
    StepsResult,
    StepSummary,
    StepTime,
    TypeTime,
)
from kair_engine.results.whatif import FixPrice, PartEffect, Remedy, SlowWorkers, StepPrice, WhatifResult
from kair_engine.trace.model import Job, KairWarning, Layout, StepTimes, Trace
from kair_tui.render.sensitivity import sensitivity_in_words
from kair_tui.render.ticket import ticket_of
from kair_tui.render.triage import triage_in_words
from kair_tui.render.whatif import whatif_in_words

HOSTILE = "\x1b[2J\x1b]0;owned\x07[red]evil[/red] \u202egnp.exe\x9b31m\r\n:smile:"
KERNEL = "void at::native::elementwise_kernel<128, 4, at::native::Add<float, float> >(int, at::native::Add<float>)"

TIMES = StepTimes((0, 1), (40, 40), (0, 0), (100_000_000, 110_000_000), (10, 10))


def job(name: str = "job123") -> Job:
    return Job(
        name=name,
        source=f"/traces/{name}",
        format="kineto",
        world_size=3,
        ranks=(0, 1),
        hosts={0: "node0", 1: "node1"},
        layout=Layout(dp=2),
        device="A100",
        has_device=True,
        absolute_time=True,
        steps=(40, 41, 42),
        step_times=TIMES,
        operations=20,
        warnings=(KairWarning("missing_ranks", "rank 2 of 3 left no trace"),),
    )


def trace(name: str = "job123") -> Trace:
    made = job(name)
    return Trace(made, (), made.steps)


def localize(name: str = "compute") -> LocalizeResult:
    scores = (
        RankScore(1, "node1", "all", 8.25, 0.0004, True, {name: 5200.0, "host": -12.5}),
        RankScore(0, "node0", "all", -0.5, 1.0, False, {name: -10.0, "host": 3.0}),
    )
    groups = (GroupScore("node1", (1,), 8.25, 8.25, 1), GroupScore("node0", (0,), -0.5, -0.5, 0))
    uneven = JobPattern("stage_imbalance", (1,), (40, 41, 42), 15_000.0, {"stage 0": 50_000.0, name: 80_000.0})
    matrix = ((0.0, 0.25), (0.25, 0.0))
    slow_operator = OperatorScore(1, name, 5150.0, 0.0003)
    return LocalizeResult(
        "robust", scores, groups, (), (uneven,), matrix, (40, 41, 42), (), (slow_operator,), 105_000.0
    )


def pinpoint(name: str = KERNEL) -> PinpointResult:
    outlier = Outlier(40, name, "forward", 3, None, 7.5, 7.5, 1e-9, 1500.0, 5400.0, 1350.0)
    return PinpointResult(1, "robust", (outlier,), 120, 4, ())


def node(rank: int, name: str, role: RoleInPath) -> PathNode:
    return PathNode(rank, name, "compute", 1500.0, 5400.0, 310.0, role)


def rank(name: str = "node1") -> RankProfileResult:
    parts = (
        PartOfStep("compute", 60_000.0, 0.6, 59_000.0),
        PartOfStep("communication", 5_000.0, 0.05, 10_000.0),
        PartOfStep("waiting", 0.0, 0.0, 21_000.0),
        PartOfStep("input", 30_000.0, 0.3, 3_000.0),
        PartOfStep("host", 4_500.0, 0.045, 5_000.0),
        PartOfStep("rest", 500.0, 0.005, 0.0),
    )
    curve = (
        CurvePoint(25_000.0, 0.0, 0.2, 0.25, 0.3, 0.25),
        CurvePoint(50_000.0, 0.25, 0.7, 0.75, 0.8, 0.75),
        CurvePoint(75_000.0, 0.5, 0.8, 0.9, 0.95, 0.9),
        CurvePoint(100_000.0, 1.0, 1.0, 1.0, 1.0, 1.0),
    )
    farthest = CurveDistance(0, 0.5, 50_000.0, 0.25, 0.75)
    scopes = (
        SubgraphTime("forward", "phase", 1.0, 30_000.0, 29_000.0, None, None),
        SubgraphTime(name, "scope", 2.0, 20_000.0, 19_000.0, 25_000.0, 24_000.0),
    )
    return RankProfileResult(
        1, name, "all", 3, 100_000.0, 99_000.0, parts, scopes, curve, farthest, 0.45, (40, 41, 42), ()
    )


def blame(name: str = KERNEL) -> BlameResult:
    symptom = node(0, "ncclDevKernel_AllReduce", "victim")
    path = BlamePath(symptom, (symptom, node(1, name, "culprit")), "compute", 5100.0, 40)
    cause = RootCause(1, name, "compute", False, 5100.0, 0.75, (40,), 1)
    ranks = (RankBlame(1, 5100.0, 0.75, 1), RankBlame(0, 0.0, 0.0, 0))
    waiting = (RankWaiting(0, 1, 5000.0, 1), RankWaiting(None, 1, 100.0, 2))
    late = (MadeLate(1, 1, name, "compute", False, 5100.0, 1),)
    return BlameResult(40, (40,), "robust", (path,), (cause,), ranks, waiting, late, 6800.0, 5100.0, 1700.0, 2, ())


def waiting_for(culprits: tuple[int, ...], ranks: int) -> BlameResult:
    """Every rank waits for every other, for the culprits a thousand times as long."""
    waiting = tuple(
        RankWaiting(rank, late, 1000.0 if late in culprits else 1.0, 1)
        for late in range(ranks)
        for rank in range(ranks)
        if rank != late
    )
    total = sum(row.waited_us for row in waiting)
    blamed = {late: sum(row.waited_us for row in waiting if row.for_rank == late) for late in range(ranks)}
    late = tuple(MadeLate(rank, rank, "aten::mm", "compute", False, us, 9) for rank, us in blamed.items())
    causes = tuple(RootCause(r, "aten::mm", "compute", False, us, us / total, (7,), 9) for r, us in blamed.items())
    by_rank = tuple(RankBlame(rank, us, us / total, 9) for rank, us in blamed.items())
    return BlameResult(7, (7,), "robust", (), causes, by_rank, waiting, late, total, total, 0.0, 9, ())


def frequency(name: str = "aten::add") -> FrequencyResult:
    counts = (RankCounts(0, (4, 4, 4, 4)), RankCounts(1, (4, 0, 2, 4)))
    degraded = (
        DegradedWindow(1, 1, 25_000.0, 0, 4.0, "missing"),
        DegradedWindow(1, 2, 50_000.0, 2, 4.0, "degraded"),
    )
    region = DegradedRegion(1, 25_000.0, 50_000.0, 2, 8.0, "degraded", "aten::mul")
    return FrequencyResult(name, 25_000.0, 4, counts, degraded, (), (region,))


def operators(name: str = KERNEL) -> OperatorsResult:
    types = (
        TypeTime("compute", 360_000.0, 0.6, 60_000.0, 59_000.0, 61_000.0, 1),
        TypeTime("idle", 120_000.0, 0.2, 20_000.0, 20_000.0, 20_000.0, 0),
    )
    rows = (
        OperatorTime(name, "compute", 360_000.0, 0.6, 2.5, 2, 60_000.0, 59_000.0, 61_000.0, 1, (59_000.0, 61_000.0)),
        OperatorTime(None, "idle", 120_000.0, 0.2, 0.0, 2, 20_000.0, 20_000.0, 20_000.0, 0, (20_000.0, 20_000.0)),
    )
    return OperatorsResult((0, 1), (40, 41, 42), 100_000.0, 480_000.0, types, rows, 3, 0.0, (), 600_000.0)


def collectives(name: str = "tp") -> CollectivesResult:
    sizes = {"size_class_bytes": 33_554_432, "message_bytes": 5e7, "calls": 8.0}
    speed = {"transfer_us": 500.0, "transfer_us_per_step": 4000.0, "algorithm_gb_per_s": 100.0, "bus_gb_per_s": 100.0}
    beside = {"siblings": 7, "ratio": 0.61, "p_value": 2e-5, "slow": True}
    group = GroupTransfers(name, "all_reduce", (0, 1), 2, 1, **sizes, **speed, **beside)
    unknown = {"size_class_bytes": None, "message_bytes": None, "algorithm_gb_per_s": None, "bus_gb_per_s": None}
    alone = {"calls": 1.0, "transfer_us": 90.0, "transfer_us_per_step": 90.0, "siblings": 0}
    link = GroupTransfers(None, "send_recv", (1, 0), 2, None, **unknown, **alone, ratio=None, p_value=None, slow=False)
    rates = RankRates(1, 5000.0, 600.0, 1250.0, 0.75, 171.0, 0.82, 0.0002, True)
    products = MatrixProducts(
        "device", 209.0, 171.0, 1, 0.66, (ProductShape(32, 64, 16, 8, 4.0, 90.0, 209.0, 171.0, 1),), 1
    )
    return CollectivesResult(
        (0, 1), (40, 41, 42), 100_000.0, (group, link), 3, 10, 0.75, 1200.0, 1250.0, 1, (rates,), products, ()
    )


def timeline(name: str = "aten::add") -> TimelineResult:
    slow = TimelineOperation(1, name, name, "compute", name, 10.0, 10.0, 60.0, 60.0, 20.0, 40.0, 0.0, 0.0, None, None)
    rows = (
        TimelineRow(0, 0, 0, 1, name, None, 0.0, "rccwwwwthh", "...a......", 0.0),
        TimelineRow(1, 1, 3, 3, name, None, 0.0, "rccccccthh", ".......l..", 120.0),
        TimelineRow(1, 1, 3, 3, name, name, 0.0, ".ccoiusc..", "..........", 120.0),
    )
    return TimelineResult(
        step=7,
        around=TimelineDelay(slow, "compute", False, name, 1, 120.0),
        begin_us=0.0,
        end_us=100.0,
        step_us=200.0,
        window_us=10.0,
        windows=10,
        rows=rows,
        collectives=(TimelineCollective(name, 30.0, 70.0, 1, 80.0, 4, 120.0),),
        collectives_in_view=1,
        path=(TimelineStop(0, name, 30.0, 70.0, "victim"), TimelineStop(1, name, 10.0, 70.0, "culprit")),
        under=(slow,),
        clock_residual_us=0.1,
        warnings=(),
    )


def steps() -> StepsResult:
    rows = (StepTime(40, 0, 0.0, 100_000.0, 10, True), StepTime(40, 1, 0.0, 110_000.0, 10, True))
    return StepsResult((StepSummary(40, 2, 105_000.0, 110_000.0, 1, True, False),), rows, 105_000.0, ())


def info(name: str = "node1") -> InfoResult:
    return InfoResult(
        format="kineto",
        world_size=3,
        ranks=(0, 1),
        missing_ranks=(2,),
        hosts={"node0": (0,), name: (1,)},
        layout=Layout(dp=2),
        roles={"all": (0, 1)},
        device="A100",
        steps=(40, 41, 42),
        operations=20,
        operations_by_kind={"compute": 16, "collective": 4},
        collectives=2,
        matched_collectives=2,
        clock=ClockInfo("collectives", 12.5, 340.0),
        warnings=(),
        operators=(OperatorUse(name, 16, ("forward",)), OperatorUse("gloo:all_reduce", 4, ())),
    )


def triage(name: str = KERNEL) -> TriageResult:
    finding = Finding(
        cause="compute",
        pattern="persistent",
        ranks=(1,),
        hosts=(name[:40],),
        operator=name,
        edge=None,
        steps=(40, 41, 42),
        p_value=0.0004,
        time_lost_us_per_step=5100.0,
        slowdown=1.051,
        evidence=(
            evidence_of(
                "slow_operator",
                {"excess_us_per_step": 5200.0, "share_of_step": 0.05},
                ShownBy("localize"),
                ranks=(1,),
                about=name,
            ),
            evidence_of("group_not_rank"),
        ),
    )
    ranking = (
        RankedRank(1, "node1", "all", 8.25, True, 5200.0, 5100.0),
        RankedRank(0, "node0", "all", -0.5, False, -10.0, 0.0),
    )
    result = TriageResult(
        verdict="straggler",
        findings=(finding,),
        ranking=ranking,
        step_time_us=105_000.0,
        waiting_us_per_step=6800.0,
        unattributed_us_per_step=1700.0,
        steps=(40, 41, 42),
        warnings=(KairWarning("few_steps", f"only 3 steps of {name}"),),
    )
    return triage_in_words(result)


def ticket(name: str = KERNEL) -> TicketResult:
    def ask(*words: str) -> str:
        return shlex.join(["kair", *words, name])

    fingerprint = Fingerprint(name, f"/traces/{name}", "0" * 32, name, (0, 1), 3, (40, 41, 42), 0, 10**9, (name,))
    drain = DrainCommand("node1", "kubectl cordon node1", said=name)
    made = ticket_of(triage(name), 1, ask, fingerprint, TimelinePicture(ask("timeline")))
    return replace(made, drain=(drain,))


def sensitivity(name: str = KERNEL) -> SensitivityResult:
    longer = (LongerRecording(6, 3000.0, 0.03, None), LongerRecording(15, 2000.0, 0.02, None))
    stalls = (LongerRecording(6, 12_500.0, 0.125, 3), LongerRecording(15, None, None, None))
    slower = DetectableFault(
        fault="slow_operator",
        cause="compute",
        operator=name,
        smallest_us_per_step=4000.0,
        smallest_share_of_step=0.04,
        own_us_per_step=20_000.0,
        smallest_own_slowdown=1.2,
        spread_us_per_step=310.0,
        longer=longer,
        limited_by="steps",
        because=MoreSteps(steps=15, recorded_steps=3, share_of_step=0.02),
    )
    stall = DetectableFault(
        fault="stall",
        cause=None,
        smallest_us_per_step=16_600.0,
        smallest_share_of_step=0.166,
        stalled_steps=2,
        longer=stalls,
        limited_by="ranks",
        because=TooDifferent(),
    )
    link = DetectableFault(fault="slow_link", cause="communication", because=NoSiblings(siblings=3))
    result = SensitivityResult((slower, stall, link), 0.95, 0.01, 100_000.0, (1,), (name,), 100, 0, (40, 41, 42), ())
    return sensitivity_in_words(result)


def whatif(name: str = "forward-compute") -> WhatifResult:
    step = StepPrice(
        40,
        105_000.0,
        100_000.0,
        80_000.0,
        1.25,
        {name: 1.25},
        {1: 1.2, 0: 1.0},
        {0: 1.25},
        {1: 1.2, 0: 1.0},
        {"first-op": 1.04},
        {1: 1.05},
        {0: 1.05},
        {name: 15_000.0},
        {1: 12_000.0, 0: 0.0},
        {0: 15_000.0},
        {1: 12_000.0, 0: 0.0},
    )
    result = WhatifResult(
        slowdown=1.25,
        waste=0.2,
        step_time_us=100_000.0,
        measured_step_time_us=105_000.0,
        ideal_step_time_us=80_000.0,
        peer_slowdown=1.3,
        peer_ideal_step_time_us=76_923.0,
        by_operator_type={name: 1.25},
        by_dp_rank={1: 1.2, 0: 1.0},
        by_stage={0: 1.25},
        by_rank={1: 1.2, 0: 1.0},
        by_rank_approximate={1: 1.2, 0: 1.0},
        heatmap=((1.0, 1.2),),
        saved_by_operator_type_us={name: 15_000.0},
        saved_by_dp_rank_us={1: 12_000.0, 0: 0.0},
        saved_by_stage_us={0: 15_000.0},
        saved_by_rank_us={1: 12_000.0, 0: 0.0},
        saved_heatmap_us=((0.0, 12_000.0),),
        m_w=0.9,
        slowest_ranks=(1,),
        slowest_workers=PartEffect(0.9, 0.95, 82_000.0, 99_000.0),
        m_s=None,
        last_stage=None,
        forward_backward_correlation=0.5,
        forward_variation=0.01,
        simulation_error=0.04,
        delay_share=0.04,
        launch_slowdown=1.05,
        launch_by_operator_type={"first-op": 1.04, name: 1.01},
        launch_by_dp_rank={1: 1.05, 0: 1.0},
        launch_by_stage={0: 1.05},
        pattern="one_worker",
        causes=(SlowWorkers(ranks=(1,), share=0.9, host=name),),
        fixes=(FixPrice(f"op={name}", 90_000.0, 10_000.0, 0.1, 0.111, 7.2, 14.4),),
        remedies=(Remedy("even_stages", 85_000.0, 15_000.0, {0: -0.2, 1: 0.2}),),
        per_step=(step,),
        steps=(40,),
        warnings=(),
    )
    return whatif_in_words(result)


def query(name: str = KERNEL) -> QueryResult:
    columns = (QueryColumn("name", "text"), QueryColumn("us", "number"), QueryColumn("n", "integer"))
    rows: tuple[dict[str, Cell], ...] = ({"name": name, "us": 1.5, "n": 3}, {"name": None, "us": None, "n": 0})
    return QueryResult("SELECT name, us, n FROM operations", columns, rows, 2)


RESULTS: dict[str, Any] = {
    "triage": triage(),
    "localize": localize(),
    "pinpoint": pinpoint(),
    "rank": rank(),
    "blame": blame(),
    "frequency": frequency(),
    "operators": operators(),
    "collectives": collectives(),
    "timeline": timeline(),
    "steps": steps(),
    "info": info(),
    "sensitivity": sensitivity(),
    "whatif": whatif(),
    "query": query(),
}
HOSTILE_RESULTS: dict[str, Any] = {
    "triage": triage(HOSTILE),
    "ticket": ticket(HOSTILE),
    "localize": localize(HOSTILE),
    "pinpoint": pinpoint(HOSTILE),
    "rank": rank(HOSTILE),
    "blame": blame(HOSTILE),
    "frequency": frequency(HOSTILE),
    "operators": operators(HOSTILE),
    "collectives": collectives(HOSTILE),
    "timeline": timeline(HOSTILE),
    "info": info(HOSTILE),
    "sensitivity": sensitivity(HOSTILE),
    "whatif": whatif(HOSTILE),
    "query": query(HOSTILE),
}
ARGUMENTS = {
    "pinpoint": ("--rank", "1"),
    "rank": ("--rank", "1"),
    "sensitivity": ("--draws", "20"),
    "query": ("SELECT * FROM steps",),
}


@dataclass(frozen=True)
class Outcome:
    """What a run of `kair` left: its exit status and both streams."""

    status: int
    out: str
    err: str


class _Stream(io.TextIOWrapper):
    def __init__(self, *, terminal: bool) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", newline="", write_through=True)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def text(self) -> str:
        self.seek(0)
        return self.read()


def kair(*arguments: str, terminal: bool = False) -> Outcome:
    """Runs `kair` in this process; how far it is it says never, which it would on a machine that is busy."""
    from kair_tui.cli import output
    from kair_tui.cli.main import main

    out, err = _Stream(terminal=terminal), _Stream(terminal=False)
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(output, "_PATIENCE_S", math.inf)
        try:
            status = main(arguments)
        except SystemExit as leaving:
            status = int(leaving.code or 0)
    return Outcome(status, out.text(), err.text())


@contextlib.contextmanager
def answering(
    monkeypatch: pytest.MonkeyPatch, results: dict[str, Any] | None = None, opened: Trace | None = None
) -> Iterator[list[dict[str, Any]]]:
    """Lets every analysis answer with `results`, whatever the job; yields what they were asked."""
    from kair.app import question
    from kair.app.question import Answer, Question
    from kair_tui.cli import asking
    from kair_tui.cli.registry import Entry

    asked: list[dict[str, Any]] = []
    find = question.answering
    answers = results or RESULTS

    def stand_in(command: str) -> Any:  # noqa: ANN401
        run = find(command)
        if command not in answers or command in question.ABOUT_STORE:
            return run

        @wraps(run)
        def answer(given: Given, **arguments: Any) -> Any:  # noqa: ANN401
            asked.append({"steps": given.trace.steps, "progress": given.progress, **arguments})
            return answers[command]

        return answer

    def words(answer: Answer) -> Answer:
        return answer if answer.question.command in answers else put_in_words(answer)

    load, put_in_words = Entry.load, asking.in_words

    def loaded(entry: Entry) -> Any:  # noqa: ANN401
        run = load(entry)
        if entry.name not in answers or entry.needs != "trace" or run.__annotations__["return"] is Question:
            return run

        def answer(_: object, **__: object) -> Any:  # noqa: ANN401
            return answers[entry.name]

        answer.__wrapped__, answer.__annotations__ = run, run.__annotations__  # type: ignore[attr-defined]
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(question, "answering", stand_in)
        patch.setattr(asking, "in_words", words)
        patch.setattr(Entry, "load", loaded)
        patch.setattr("kair.app.jobs.open_source", lambda *_, **__: opened or trace())
        found = JobSource("job123", Path("job123"), stored=False)
        patch.setattr("kair_tui.cli.wanted.locate", lambda *_, **__: found)
        yield asked


def printed(command: str) -> dict[str, Any]:
    """What a `kair …` line answers: the `data` of its JSON."""
    outcome = kair(*shlex.split(command)[1:], "--json")
    assert outcome.status == 0, outcome.err
    data: dict[str, Any] = json.loads(outcome.out)["data"]
    return data


def store_variables(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A store of the test's own, no job in use, and the cache that all tests share."""
    monkeypatch.setenv("KAIR_STORE", str(folder / "store"))
    monkeypatch.setenv("KAIR_CACHE", str(shared_cache()))
    monkeypatch.delenv("KAIR_JOB", raising=False)
    for name in ("NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def assert_valid(document: dict[str, Any], command: str) -> None:
    """Holds `document` against what `kair schema <command>` prints."""
    _validator(command).validate(document)


@cache
def _validator(command: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads(kair("schema", command).out))
