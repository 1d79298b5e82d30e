"""One step of Megatron on 8 × A100, recorded by others: what shared/traces/README.md measured of it, found again."""

from collections import Counter

import polars as pl
import pytest
from support.answers import recorded, triaged
from support.places import MEGATRON

from kair_engine.blame.analysis import blame
from kair_engine.localize.analysis import localize
from kair_engine.results.blame import BlameResult
from kair_engine.results.triage import TriageResult
from kair_engine.trace.model import Trace

pytestmark = pytest.mark.skipif(not MEGATRON.is_dir(), reason=f"the real traces are not at {MEGATRON}")
CULPRITS = {0, 6}


@pytest.fixture(scope="module")
def megatron() -> Trace:
    return recorded(MEGATRON)


@pytest.fixture(scope="module")
def found() -> TriageResult:
    return triaged(MEGATRON)


@pytest.fixture(scope="module")
def blamed(megatron: Trace) -> BlameResult:
    return blame(megatron, limit=100)


@pytest.fixture(scope="module")
def arrivals(megatron: Trace) -> pl.DataFrame:
    """By hand: per collective its last rank (the shortest kernel), and what the others waited in it, in µs."""
    rows = megatron.scan().filter(pl.col("kind").cast(pl.String) == "collective").sort("rank")
    own = pl.col("duration_ns").min()
    return (
        rows.group_by("group_seq")
        .agg(
            last=pl.col("rank").sort_by("duration_ns", maintain_order=True).first(),
            waited=(pl.col("duration_ns") - own).sum() / 1e3,
        )
        .collect()
    )


@pytest.mark.slow
def test_two_ranks_lead_the_ranking(megatron: Trace, found: TriageResult) -> None:
    assert {row.rank for row in found.ranking[:2]} == CULPRITS
    assert {score.rank for score in localize(megatron).scores[:2]} == CULPRITS


def test_what_all_ranks_hosts_lose_is_the_finding_and_no_rank_is_accused(found: TriageResult) -> None:
    assert found.verdict == "job_wide"
    (contention,) = found.findings
    assert (contention.cause, contention.pattern, contention.ranks) == ("contention", "job_wide", ())
    assert contention.seen_on == tuple(range(8))
    assert not any(row.flagged for row in found.ranking)
    assert found.together is None


def test_threads_of_all_ranks_stood_still(megatron: Trace, found: TriageResult) -> None:
    # By hand: calls of CPU operators that mostly take microseconds, and once in a while 10 to 45 ms.
    calls = (
        megatron.scan()
        .filter(pl.col("kind").cast(pl.String) == "host", pl.col("lane").cast(pl.String).str.starts_with("thread"))
        .with_columns(usual=pl.col("duration_ns").median().over("name"))
        .filter(pl.col("usual") < 100_000, pl.col("duration_ns") > 10_000_000)
        .group_by("rank")
        .agg(calls=pl.len(), longest=pl.col("duration_ns").max() / 1e3)
        .collect()
    )
    assert len(calls) == 8 and calls["calls"].min() >= 5
    figures = found.findings[0].evidence[0].figures
    assert 10_000 < figures["median_us"] < figures["longest_us"] < 45_000
    assert figures["longest_us"] == pytest.approx(calls["longest"].max(), rel=0.1)


def test_without_the_stops_the_step_is_little_more_than_its_compute(found: TriageResult) -> None:
    # 131–134 ms of compute on every rank: no fix of its hosts makes the step shorter.
    (contention,) = found.findings
    left = found.step_time_us - contention.time_lost_us_per_step
    assert 131_000 < left < 1.25 * 134_000
    assert contention.slowdown == pytest.approx(found.step_time_us / left)
    # What the replay saves is no more than what the rank lost that stood still longest.
    assert contention.time_lost_us_per_step < contention.evidence[0].figures["slowest_rank_us"]


def test_the_waiting_is_what_was_measured(blamed: BlameResult, arrivals: pl.DataFrame) -> None:
    seconds = {rank.rank: rank.blamed_us / 1e6 for rank in blamed.by_rank}
    assert seconds[0] == pytest.approx(1.53, rel=0.05)
    assert seconds[6] == pytest.approx(1.22, rel=0.05)
    assert seconds[2] == pytest.approx(0.17, rel=0.05)
    assert seconds[3] == pytest.approx(0.014, rel=0.05)
    assert blamed.waiting_us / 1e6 == pytest.approx(2.94, rel=0.005)
    assert (seconds[0] + seconds[6]) / blamed.waiting_us * 1e6 == pytest.approx(0.936, abs=0.001)
    assert blamed.waiting_us == pytest.approx(arrivals["waited"].sum())
    assert blamed.attributed_us + blamed.unattributed_us == pytest.approx(blamed.waiting_us)
    known = [cause.blamed_us for cause in blamed.root_causes if cause.cause != "unknown"]
    assert sum(known) == pytest.approx(blamed.attributed_us)


def test_the_last_to_arrive_are_who_was_measured(blamed: BlameResult, arrivals: pl.DataFrame) -> None:
    last = {rank.rank: rank.arrived_last for rank in blamed.by_rank}
    assert blamed.collectives == sum(last.values()) == 84
    assert last[0] == 32
    assert 25 <= last[6] <= 28
    assert 13 <= last[3] <= 15
    assert last == Counter(arrivals["last"].to_list())


def test_the_costliest_paths_lead_to_a_culprits_host(megatron: Trace) -> None:
    paths = blame(megatron.select([3]), limit=10).paths
    for path in paths[:3]:
        assert path.symptom.kind == path.chain[0].kind == "collective"
        assert path.symptom.operator == path.chain[0].operator
        assert path.symptom.operator.startswith("ncclDevKernel_AllReduce")
        culprit = path.chain[0].rank
        assert culprit in CULPRITS and path.symptom.rank != culprit
        assert path.symptom.duration_us > 10 * path.chain[0].duration_us
        assert {node.rank for node in path.chain} == {culprit}
        assert path.chain[-1].role_in_path in {"culprit", "edge"}
    # Rank 0 was 25 ms late already when its step began; the next two were lost in operators of its host.
    assert (paths[0].cause, paths[0].chain[-1].kind) == ("unknown", "input")
    assert [(path.cause, path.chain[-1].kind) for path in paths[1:3]] == [("host", "host")] * 2
    assert all(path.chain[-1].operator.startswith("aten::") for path in paths[1:3])


def test_nobodys_kernels_are_slow(megatron: Trace, found: TriageResult) -> None:
    # 131–134 ms of compute on every rank.
    excess = [score.excess_us["compute"] / 1e3 for score in localize(megatron).scores]
    assert max(excess) - min(excess) < 4
    assert not any(finding.cause == "compute" for finding in found.findings)
