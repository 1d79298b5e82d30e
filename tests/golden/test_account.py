"""The account of a step: rows that add up exactly, and that bar and `kair rank` read."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import polars as pl
import pytest
from support import answers
from support.places import CASES, CASES2, MEGATRON, SAMPLES
from support.trace_builder import trace

from kair_engine.step_bar import bar_of
from kair_engine.timeline.account import KINDS, account
from kair_engine.trace.model import Trace
from kair_engine.views.overview import steps
from kair_engine.views.rank_profile import rank_profile

RUN_AHEAD = CASES / "run_ahead" / "healthy" / "input"
RECORDINGS = {
    **{folder.name: folder for folder in sorted({path.parent for path in SAMPLES.glob("*/*.json.gz")})},
    **{name: CASES2 / name / "input" for name in ("end_of_step_host", "cuda_free_on_all", "two_ranks_counted_twice")},
    "megatron-tp8": MEGATRON,
    "run_ahead": RUN_AHEAD,
}
HOST_PARTS = ("garbage_collection", "compilation", "allocator", "profiler", "host", "synchronising")


@dataclass(frozen=True)
class Recorded:
    source: Path

    @cached_property
    def trace(self) -> Trace:
        return answers.recorded(self.source)

    @cached_property
    def account(self) -> pl.DataFrame:
        return account(self.trace)


@pytest.fixture(scope="module", params=list(RECORDINGS))
def recorded(request: pytest.FixtureRequest) -> Recorded:
    if not RECORDINGS[request.param].is_dir():
        pytest.skip("the recording is not beside the checkout")
    return Recorded(RECORDINGS[request.param])


def shares(frame: pl.DataFrame) -> dict[str, float]:
    whole = int(frame["ns"].sum())
    of_kind = dict(frame.group_by("kind").agg(pl.col("ns").sum()).iter_rows())
    return {kind: of_kind.get(kind, 0) / whole for kind in KINDS}


@pytest.mark.slow
def test_rows_add_up_to_the_steps_exactly(recorded: Recorded) -> None:
    sums = recorded.account.group_by("rank", "step").agg(pl.col("ns").sum())
    lengths = {(rank, step): ns for rank, step, ns in sums.iter_rows()}
    times = recorded.trace.job.times_of
    assert lengths
    assert all(times[cell][1] == ns for cell, ns in lengths.items())


@pytest.mark.slow
def test_ranks_looked_at_one_by_one_have_the_same_rows(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    of_all = recorded.account
    for module in ("kair_engine.timeline.account", "kair_engine.trace.operations"):
        monkeypatch.setattr(f"{module}.ROWS_TOGETHER", 1)
    assert account(replace(recorded.trace, memory=None)).equals(of_all)


@pytest.mark.slow
def test_the_bar_is_the_account(recorded: Recorded) -> None:
    bar, of = bar_of(recorded.trace), shares(recorded.account)
    assert bar is not None
    known = {part.part: part.share for part in bar.parts}
    step_us = bar.step_time_us
    host = sum(of[kind] for kind in HOST_PARTS)
    for mine, theirs in (
        (of["compute"] + of["copies"], known["compute"]),
        (of["transfer"], known["communication"]),
        (of["waiting"], known["bubble"] + known["stragglers"]),
        (of["input"] + host, known["job_wide"]),
    ):
        assert step_us * mine == pytest.approx(step_us * theirs, abs=1.0)


@pytest.mark.slow
def test_a_rank_s_profile_is_its_account(recorded: Recorded) -> None:
    rank = recorded.trace.job.ranks[0]
    of = shares(recorded.account.filter(pl.col("rank") == rank))
    parts = {part.part: part.share for part in rank_profile(recorded.trace, rank=rank).parts}
    assert parts["compute"] == pytest.approx(of["compute"] + of["copies"], abs=1e-6)
    assert parts["waiting"] == pytest.approx(of["waiting"], abs=1e-6)
    assert parts["input"] == pytest.approx(of["input"], abs=1e-6)


def test_every_row_says_what_it_was_and_for_whom(tmp_path: Path) -> None:
    """Rank 1 computes 30 µs longer, and logs for 20 µs at the end of its step."""
    frame = account(
        trace(
            tmp_path,
            """
            step 0: 0+100
            0 main | launch 0+2 ^1 | launch 2+2 ^2
            1 main | launch 0+2 ^1 | launch 2+2 ^2 | log 80+20
            0 gpu7 | gemm 10+20 ^1 | all_reduce@dp#1 30+50 ^2
            1 gpu7 | gemm 10+50 ^1 | all_reduce@dp#1 60+20 ^2
            """,
        )
    )
    rows = {tuple(row) for row in frame.select("rank", "kind", "when", "operator", "owner", "ns").iter_rows()}
    assert rows == {
        (0, "launching", "launches", None, None, 2_000),
        (0, "begins", "within", None, None, 8_000),
        (0, "compute", "within", "gemm", None, 20_000),
        (0, "waiting", "within", "all_reduce", 1, 30_000),
        (0, "transfer", "within", "all_reduce", None, 20_000),
        (0, "host", "after", None, None, 20_000),
        (1, "launching", "launches", None, None, 2_000),
        (1, "begins", "within", None, None, 8_000),
        (1, "compute", "within", "gemm", None, 50_000),
        (1, "transfer", "within", "all_reduce", None, 20_000),
        (1, "host", "after", "log", None, 20_000),
    }


def per_step_us(frame: pl.DataFrame, kinds: set[str], *, when: str | None = None) -> pl.DataFrame:
    """What each rank spends on some kinds, µs of each step (step, rank, us)."""
    of_kinds = pl.col("kind").cast(pl.String).is_in(kinds)
    chosen = of_kinds if when is None else of_kinds & (pl.col("when") == when)
    ns = pl.when(chosen).then(pl.col("ns")).otherwise(0)
    return frame.group_by("step", "rank").agg((ns.sum() / 1e3).alias("us"))


@pytest.mark.slow
def test_what_triage_says_of_hosts_is_the_account(recorded: Recorded) -> None:
    """To the microsecond, whatever of it a recording has: of the median rank, or of whom is accused."""
    frame, result = recorded.account, answers.triaged(recorded.source)
    if result.steps != recorded.trace.steps:
        pytest.skip("some steps are not judged")
    every = {rank for (rank,) in frame.select("rank").unique().iter_rows()}
    for finding in result.findings:
        shown = {one.kind: one for one in finding.evidence}
        healthy = every - {rank for one in result.findings for rank in one.ranks}
        if "in_calls" in shown and not finding.ranks:
            spent = per_step_us(frame, {str(shown["in_calls"].about)}).filter(pl.col("rank").is_in(healthy))
            of_steps = spent.group_by("step").agg(pl.col("us").quantile(0.5, "lower"), pl.col("us").max().alias("most"))
            (usual, most) = of_steps.select(pl.col("us").mean(), pl.col("most").mean()).row(0)
            assert shown["in_calls"].figures["idle_us_per_step"] == pytest.approx(usual, abs=1.0)
            assert finding.time_lost_us_per_step == pytest.approx(most, abs=1.0)
        if "at_step_end" in shown:
            ended = per_step_us(frame, set(KINDS), when="after")
            mine = ended.filter(pl.col("rank").is_in(finding.ranks)).select(pl.col("us").mean()).item()
            assert shown["at_step_end"].figures["after_us_per_step"] == pytest.approx(mine, abs=1.0)


@pytest.mark.slow
def test_the_account_s_steps_are_those_that_kair_steps_lists(recorded: Recorded) -> None:
    sums = recorded.account.group_by("step", "rank").agg(pl.col("ns").sum() / 1e3)
    lengths = {(step, rank): us for step, rank, us in sums.iter_rows()}
    listed = {(one.step, one.rank): one.duration_us for one in answers.once(steps)(recorded.trace).steps}
    assert lengths == pytest.approx(listed, abs=1.0)
