"""The whole investigation on small jobs: the verdict, the findings, and what they are said to cost."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from support.trace_builder import Row, build, trace

from kair_engine.blame.analysis import blame
from kair_engine.errors import UsageError
from kair_engine.localize.analysis import localize
from kair_engine.results.triage import Finding, TriageResult
from kair_engine.trace.model import Trace
from kair_engine.triage import replays as sampling
from kair_engine.triage.analysis import triage
from kair_engine.whatif.operators import model
from kair_tui.render.sentences import sentence_of
from kair_tui.render.triage import suggestion_of
from kair_tui.render.verdict import summary

KERNELS = {"embed": 40, "attention": 150, "mlp": 250, "norm": 60, "head": 100}
SETTLE = 50


def training(
    folder: Path,
    *,
    seed: int,
    slow: dict[int, float] | None = None,
    stalls: dict[tuple[int, int], float] | None = None,
    ranks: int = 8,
    steps: int = 20,
    shift: dict[int, float] | None = None,
    hosts: dict[int, str] | None = None,
) -> Trace:
    """Data-parallel steps: five kernels of 3 % lognormal noise, launched ahead of time, then an all-reduce.

    `slow` multiplies a rank's kernels; `stalls` (rank, step) delays the launch of its third.
    """
    random = np.random.default_rng(seed)
    rows: list[Row] = []
    begin = 0.0
    spans = {}
    for step in range(steps):
        arrivals = []
        for rank in range(ranks):
            at = begin + 20
            for call, (name, length) in enumerate(KERNELS.items()):
                launch = begin + 2 * call
                if name == "mlp" and (stall := (stalls or {}).get((rank, step))):
                    launch = at + stall
                    at = launch + 5
                rows.append(Row(rank, "main", "launch", launch, 1, step, correlation=call))
                took = length * random.lognormal(0, 0.03) * (slow or {}).get(rank, 1)
                rows.append(Row(rank, "gpu7", name, at, took, step, correlation=call))
                at += took
            arrivals.append(at)
        end = max(arrivals) + SETTLE
        for rank, at in enumerate(arrivals):
            rows.append(Row(rank, "gpu7", "allreduce", at, end - at, step, group="dp", seq=step))
            spans[rank, step] = (begin, end - begin)
        begin = end
    return build(folder, rows, spans, shift=shift, hosts=hosts)


def test_a_healthy_job_has_no_straggler(tmp_path: Path) -> None:
    result = triage(training(tmp_path, seed=0))
    assert (result.verdict, result.findings) == ("no_straggler", ())
    assert (
        summary(result) == "no straggler: 8 ranks, 20 steps of 685 µs; each unexplained part is below 1 % of the step"
    )
    assert sorted(row.rank for row in result.ranking) == list(range(8))
    assert not any(row.flagged for row in result.ranking)
    assert result.steps == tuple(range(20))
    assert result.warnings == ()


# How often a healthy job is accused and a slow GPU missed, of hundreds of jobs, is what validation/accuracy counts.


@pytest.mark.parametrize("guilty", [0, 5])
def test_a_rank_that_is_a_tenth_slower_is_found(tmp_path: Path, guilty: int) -> None:
    (finding,) = triage(training(tmp_path, seed=guilty, slow={guilty: 1.1})).findings
    assert (finding.ranks, finding.cause, finding.pattern) == ((guilty,), "compute", "persistent")


@pytest.mark.slow
def test_a_finding_says_what_it_costs(tmp_path: Path) -> None:
    result = triage(
        training(tmp_path, seed=1, slow={5: 1.5}, hosts=dict.fromkeys(range(4), "a") | dict.fromkeys(range(4, 8), "b"))
    )
    (finding,) = result.findings
    assert result.verdict == "straggler"
    assert (finding.ranks, finding.hosts, finding.cause) == ((5,), ("b",), "compute")
    # Half as long again is 300 of a step of 50 + 900 µs, less the slowest peer's noise.
    assert finding.time_lost_us_per_step == pytest.approx(300, rel=0.1)
    assert finding.priced_by == "replay"
    step = result.step_time_us
    # The mean step; step_time_us is the median one.
    assert finding.slowdown == pytest.approx(step / (step - finding.time_lost_us_per_step), rel=0.01)
    assert finding.throughput_gain == pytest.approx(finding.slowdown - 1)
    assert finding.gpu_hours_per_day == pytest.approx(8 * 24 * (1 - 1 / finding.slowdown))
    assert finding.cost_per_day is None
    assert result.together is None
    assert finding.p_value is not None and finding.p_value < 0.02
    assert finding.steps == tuple(range(20))
    assert (finding.operator, finding.edge) == (None, None)  # all five operators are slow
    assert any("rank 5 spends" in sentence_of(one) for one in finding.evidence)
    assert "rank 5" in suggestion_of(finding)
    first = result.ranking[0]
    assert (first.rank, first.host, first.flagged) == (5, "b", True)
    assert first.self_time_excess_us == pytest.approx(300, rel=0.1)
    assert first.wait_imposed_us == pytest.approx(7 * 300, rel=0.1)
    assert result.waiting_us_per_step == pytest.approx(7 * 300, rel=0.15)
    assert result.unattributed_us_per_step == 0


def test_one_slow_operator_is_named(tmp_path: Path) -> None:
    table = "".join(
        f"""
        step {s}: {s}000+900
        0-2 gpu7 | embed {s}000+100 | mlp {s}100+{200 + s} | allreduce@dp#{s} {s}400+300
        3   gpu7 | embed {s}000+101 | mlp {s}101+350       | allreduce@dp#{s} {s}451+249
        """
        for s in range(1, 8)
    )
    (finding,) = triage(trace(tmp_path, table)).findings
    assert (finding.ranks, finding.cause, finding.operator, finding.edge) == ((3,), "compute", "mlp", None)


@pytest.mark.slow
def test_the_largest_steps_are_priced_by_the_excess(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = training(tmp_path, seed=1, slow={5: 1.5})
    per_step = sum(made.job.step_times.operations) // 20
    monkeypatch.setattr(model, "MOST_OPERATIONS", per_step - 1)
    (finding,) = triage(made).findings
    assert (finding.ranks, finding.priced_by) == ((5,), "excess")
    assert finding.time_lost_us_per_step == pytest.approx(300, rel=0.1)
    assert finding.evidence[-1].kind == "estimated"
    monkeypatch.setattr(model, "MOST_OPERATIONS", per_step)
    assert triage(made).findings[0].priced_by == "replay"


@pytest.mark.slow
def test_findings_are_ordered_by_what_they_cost(tmp_path: Path) -> None:
    stalls = {(2, step): 400.0 for step in (1, 4, 6, 9, 13, 17)} | {(6, step): 900.0 for step in (0, 3, 8, 11, 15)}
    result = triage(training(tmp_path, seed=2, stalls=stalls))
    assert [(finding.ranks, finding.cause, finding.pattern) for finding in result.findings] == [
        ((6,), "host", "intermittent"),
        ((2,), "host", "intermittent"),
    ]
    costs = [finding.time_lost_us_per_step for finding in result.findings]
    # Mean over all twenty steps: 5 · 900 / 20 and 6 · 400 / 20, less the slowest peer's noise.
    assert costs == pytest.approx([225, 120], rel=0.2)
    assert result.findings[0].steps == (0, 3, 8, 11, 15)
    assert result.findings[0].operator == "launch"
    assert result.findings[0].edge == "idle before launch"


@pytest.mark.slow
def test_a_slow_host_is_one_finding(tmp_path: Path) -> None:
    hosts = {rank: "good" if rank < 9 else "bad" for rank in range(12)}
    result = triage(training(tmp_path, seed=3, ranks=12, slow={9: 1.3, 10: 1.3, 11: 1.3}, hosts=hosts))
    costly = result.findings[0]
    assert (costly.pattern, costly.ranks, costly.hosts, costly.cause) == ("group", (9, 10, 11), ("bad",), "compute")
    assert len(result.findings) == 1
    assert costly.time_lost_us_per_step == pytest.approx(180, rel=0.25)


def test_garbage_collection_is_told_from_other_pauses(tmp_path: Path) -> None:
    table = "".join(
        f"""
        step {s}: {s}0000+9000
        0-3 main | launch {s}0000+5 ^1 | launch {s}0010+5 ^2
        4   main | launch {s}0000+5 ^1 | launch {s}3010+5 ^2
        4   th2  | gc {s}0050+2900 :gc
        0-3 gpu7 | gemm {s}0020+1000 ^1 | relu {s}1020+500 ^2 | allreduce@dp#{s} {s}1520+2500
        4   gpu7 | gemm {s}0020+1000 ^1 | relu {s}3020+500 ^2 | allreduce@dp#{s} {s}3520+500
        """
        for s in range(1, 6)
    )
    (finding,) = triage(trace(tmp_path, table)).findings
    assert (finding.ranks, finding.cause) == ((4,), "garbage_collection")
    assert "gc" in suggestion_of(finding)


@pytest.mark.slow
def test_one_rank_proves_nothing(tmp_path: Path) -> None:
    result = triage(training(tmp_path, seed=4, ranks=1))
    assert (result.verdict, result.findings) == ("inconclusive", ())
    assert [warning.code for warning in result.warnings] == ["one_rank"]
    assert "no peer to compare it with" in summary(result)


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "verdict"), [(1, "inconclusive"), (2, "inconclusive"), (3, "straggler")])
def test_a_slow_rank_is_not_told_from_a_slow_moment_in_two_steps(tmp_path: Path, steps: int, verdict: str) -> None:
    result = triage(training(tmp_path, seed=3, steps=steps, slow={3: 1.5}))
    assert result.verdict == verdict
    assert result.ranking[0].rank == 3
    if verdict == "inconclusive":
        assert [warning.code for warning in result.warnings] == ["few_steps"]
        assert "rank 3" in summary(result)


@pytest.mark.slow
def test_one_healthy_step_accuses_nobody(tmp_path: Path) -> None:
    verdicts = {triage(training(tmp_path / str(seed), seed=seed, steps=1)).verdict for seed in range(5)}
    assert "straggler" not in verdicts


def test_an_operation_of_one_rank_alone_is_its_doing(tmp_path: Path) -> None:
    rows = []
    for rank in range(6):
        own = [("save", 28_000)] if rank == 0 else []
        for step in range(5):
            at = step * 100_000.0
            for name, length in [*[("view", 90)] * 60, ("forward", 20_000), *own, ("hook", 1000)]:
                rows.append(Row(rank, "main", name, at, length, step))
                at += length
            end = step * 100_000 + 70_000
            rows.append(Row(rank, "th2", "allreduce", at - 500, end - at + 500, step, group="dp"))
            rows.append(Row(rank, "main", "optimizer", end, 5000, step))
    spans = {(rank, step): (step * 100_000, 80_000) for rank in range(6) for step in range(5)}
    (finding,) = triage(build(tmp_path, rows, spans)).findings
    assert (finding.ranks, finding.cause, finding.operator) == ((0,), "uneven_work", "save")
    assert finding.time_lost_us_per_step == pytest.approx(28_000)


def test_without_a_step_there_is_no_answer(tmp_path: Path) -> None:
    made = training(tmp_path, seed=5, steps=2)
    with pytest.raises(UsageError, match="no complete step"):
        triage(made.select([]))


def test_nothing_can_cost_more_than_the_step(tmp_path: Path) -> None:
    # Without a collective nothing holds the others back: three ranks take 100 µs, rank 3 takes 500.
    table = "".join(
        f"step {s}: {s}000+100\n0-3 gpu7 | gemm {s}000+{100 + s}\n4 step | {s}000+500\n4 gpu7 | gemm {s}000+500\n"
        for s in range(1, 9)
    )
    result = triage(trace(tmp_path, table))
    (finding,) = result.findings
    assert finding.ranks == (4,)
    assert finding.time_lost_us_per_step <= result.step_time_us
    assert 1 <= finding.slowdown <= 10


def without_clocks(result: TriageResult) -> dict:
    return dataclasses.asdict(result)


@pytest.mark.slow
def test_a_clock_that_is_ahead_changes_no_answer(tmp_path: Path) -> None:
    for name, guilty in (("healthy", None), ("slow", {5: 1.2})):
        plain = training(tmp_path / name / "plain", seed=6, slow=guilty, steps=6)
        moved = training(tmp_path / name / "moved", seed=6, slow=guilty, steps=6, shift={2: 5000, 5: -3000})
        for answer in (triage, blame, localize):
            expected, found = (dataclasses.asdict(answer(made)) for made in (plain, moved))
            assert found == approximately(expected)


def approximately(value: object) -> object:
    """The same value, floats to nine digits."""
    if isinstance(value, dict):
        return {key: approximately(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(approximately(one) for one in value)
    return pytest.approx(value, rel=1e-9, abs=1e-6) if isinstance(value, float) else value


@pytest.mark.slow
def test_a_sample_prices_what_is_slow_in_all_steps_and_what_stalls_in_a_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stalls = dict.fromkeys([(1, step) for step in (3, 8, 14, 17)], 900.0)
    job = training(tmp_path, seed=1, slow={5: 1.3}, stalls=stalls)
    whole = _by_ranks(triage(job))
    assert whole.keys() == {(5,), (1,)}
    assert not any("steps" in one.figures for of in whole.values() for one in of.evidence if one.kind == "replayed")
    monkeypatch.setattr(sampling, "MOST_REPLAYED", 700)  # operations: of five steps or so
    some = _by_ranks(triage(job))
    assert some.keys() == whole.keys()
    for ranks, finding in some.items():
        told = next(one for one in finding.evidence if one.kind == "replayed")
        assert 2 <= told.figures["replayed_steps"] < told.figures["steps"] == 20
        assert "of 20 steps were replayed" in sentence_of(told)
        off = abs(finding.time_lost_us_per_step - whole[ranks].time_lost_us_per_step)
        assert off <= told.figures["plus_minus_us"]
        assert off < 0.25 * whole[ranks].time_lost_us_per_step


def _by_ranks(result: TriageResult) -> dict[tuple[int, ...], Finding]:
    return {finding.ranks: finding for finding in result.findings}


def test_in_one_step_the_rank_that_is_waited_for_most_leads_and_is_named(tmp_path: Path) -> None:
    """Ranks 1 and 3 take longer where nobody waits for them."""
    table = """
        step 1: 0+6000
        0-7 main | launch 0+5 ^1 | launch 10+5 ^2 | launch 20+5 ^3
        0-6 gpu7 | gemm 20+1000 ^1
        7   gpu7 | gemm 20+1600 ^1
        0-6 gpu7 | allreduce@dp#1 1020+700 ^2
        7   gpu7 | allreduce@dp#1 1620+100 ^2
        0,2,4-7 gpu7 | tail 1720+2000 ^3
        1,3 gpu7 | tail 1720+4000 ^3
        """
    result = triage(trace(tmp_path, table))
    assert (result.verdict, result.ranking[0].rank) == ("inconclusive", 7)
    assert "the others wait 600 µs of the 6.00 ms step (10.0 %) for rank 7" in summary(result)
