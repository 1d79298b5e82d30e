"""What holds for any step whatever, likely or not: sums, shares, finite numbers, no exceptions."""

import dataclasses
import math
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.trace_builder import Row, Spans, build

from kair_engine.blame.analysis import blame
from kair_engine.localize.analysis import localize
from kair_engine.pinpoint import pinpoint
from kair_engine.results.blame import BlameResult
from kair_engine.results.rank import RankProfileResult
from kair_engine.trace.model import Trace
from kair_engine.triage.analysis import triage
from kair_engine.views.frequency import frequency
from kair_engine.views.overview import info, steps
from kair_engine.views.rank_profile import rank_profile

PROPERTY = settings(deadline=None, derandomize=True, max_examples=8, suppress_health_check=[HealthCheck.too_slow])
Table = tuple[list[Row], Spans]

LANES = ("main", "th2", "gpu7", "gpu20")
KINDS = (None, None, None, "collective", "collective", "send", "recv", "memory", "input", "sync", "gc", "scope")


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Any operations at all: crossing, doubled, unmatched, nested, of no length, outside their step."""
    ranks, count = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    rows = draw(
        st.lists(
            st.builds(
                Row,
                rank=st.integers(0, ranks - 1),
                lane=st.sampled_from(LANES),
                name=st.sampled_from(("a", "b", "c")),
                start=st.integers(0, 1200),
                duration=st.sampled_from((0, 1, 5, 40, 300, 2000)),
                step=st.integers(0, count - 1),
                kind=st.sampled_from(KINDS),
                phase=st.sampled_from((None, "forward", "backward", "input")),
                group=st.sampled_from((None, "dp", "tp")),
                seq=st.sampled_from((None, None, 1, 2)),
                correlation=st.sampled_from((None, 1, 2, 3)),
            ),
            max_size=40,
        )
    )
    length = draw(st.sampled_from((0, 100, 1000)))
    present = [(r, s) for r in range(ranks) for s in range(count)]
    lacking = draw(st.sets(st.sampled_from(present), max_size=len(present) - 1))
    spans = {cell: (cell[1] * 1000.0, float(length)) for cell in present if cell not in lacking}
    return [row for row in rows if (row.rank, row.step) in spans], spans


@st.composite
def programs(draw: st.DrawFn) -> Table:
    """Ranks that run one program, each as fast as it likes, and leave their collectives together."""
    ranks, calls = draw(st.integers(2, 6)), draw(st.integers(1, 4))
    length = st.integers(1, 200)
    rows, at = [], [0.0] * ranks
    for call in range(calls):
        for rank in range(ranks):
            pause, compute = draw(st.integers(0, 50)), draw(length)
            rows.append(Row(rank, "main", "launch", at[rank] + pause, 2, correlation=call))
            rows.append(Row(rank, "gpu7", "gemm", at[rank] + pause + 5, compute, correlation=call))
            at[rank] += pause + 5 + compute
        done = max(at) + draw(length)
        rows += [
            Row(rank, "gpu7", "allreduce", at[rank], done - at[rank], group="dp", seq=call) for rank in range(ranks)
        ]
        at = [done] * ranks
    return rows, {(rank, 0): (0, at[0]) for rank in range(ranks)}


def check_blame(result: BlameResult) -> None:
    close = {"rel": 1e-9, "abs": 1e-6}
    assert result.bubble_us + result.attributed_us + result.unattributed_us == pytest.approx(result.waiting_us, **close)
    known = sum(cause.blamed_us for cause in result.root_causes if cause.cause != "unknown")
    assert known == pytest.approx(result.attributed_us, **close)
    laid = sum(cause.blamed_us for cause in result.root_causes)
    assert laid <= result.waiting_us * (1 + 1e-9)
    assert sum(rank.blamed_us for rank in result.by_rank) == pytest.approx(laid, **close)
    assert sum(row.waited_us for row in result.waiting) == pytest.approx(laid, **close)
    assert sum(row.blamed_us for row in result.made_late) == pytest.approx(laid, **close)
    assert all(0 <= one.share <= 1 + 1e-9 for one in (*result.root_causes, *result.by_rank))
    assert all(one.blamed_us >= 0 for one in (*result.root_causes, *result.by_rank))
    assert list(result.root_causes) == sorted(result.root_causes, key=lambda cause: -cause.blamed_us)
    for path in result.paths:
        assert path.chain[-1].role_in_path in {"culprit", "edge"}
        assert {node.role_in_path for node in path.chain[:-1]} <= {"victim"}


def numbers(value: object) -> Iterator[float]:
    if isinstance(value, dict):
        yield from (found for one in value.values() for found in numbers(one))
    elif isinstance(value, (list, tuple)):
        yield from (found for one in value for found in numbers(one))
    elif isinstance(value, float):
        yield value


def check_plain(result: object) -> None:
    """Only plain values, all finite, as JSON needs them."""
    assert dataclasses.is_dataclass(result) and not isinstance(result, type)
    assert all(math.isfinite(number) for number in numbers(dataclasses.asdict(result)))


def check_profile(profile: RankProfileResult) -> None:
    check_plain(profile)
    assert all(part.own_us >= 0 for part in profile.parts)
    assert sum(part.own_us for part in profile.parts) == pytest.approx(profile.step_time_us)
    shares = [point.completed for point in profile.curve]
    assert shares == sorted(shares) and 0 <= shares[0] <= shares[-1] <= 1 + 1e-9


def check_everything(made: Trace) -> None:
    blamed = blame(made)
    check_blame(blamed)
    found = triage(made)
    check_plain(found)
    assert [row.rank for row in found.ranking] != [] and len(found.ranking) == len(made.job.ranks)
    of_ranks = [finding for finding in found.findings if finding.pattern != "job_wide"]
    assert (found.verdict == "straggler") <= bool(of_ranks)
    assert (found.verdict == "job_wide") <= (bool(found.findings) and not of_ranks)
    assert (found.verdict == "no_straggler") <= (not found.findings)
    for finding in found.findings:
        assert 0 <= finding.time_lost_us_per_step <= found.step_time_us
        assert finding.slowdown >= 1
    for result in (blamed, localize(made), localize(made, method="paper", matrix=True), info(made), steps(made)):
        check_plain(result)
    for rank in made.job.ranks[:2]:
        check_plain(pinpoint(made, rank=rank))
        check_plain(pinpoint(made, rank=rank, method="paper"))
        check_plain(blame(made, rank=rank, method="paper"))
        check_profile(rank_profile(made, rank=rank))
    if set(info(made).operations_by_kind) - {"scope"}:
        check_plain(frequency(made, windows=7))


@pytest.mark.slow
@PROPERTY
@given(table=tables())
@example(table=([Row(0, "main", "a", 0, 1)], {(rank, 0): (0, 0) for rank in range(4)}))  # a step of no duration
def test_any_table_is_answered(table: Table, tmp_path_factory: pytest.TempPathFactory) -> None:
    check_everything(build(tmp_path_factory.mktemp("t"), *table))


@pytest.mark.slow
@PROPERTY
@given(table=programs())
@example(
    table=([Row(r, "gpu7", "allreduce", 0, 1 + r, group="dp") for r in range(2)], {(0, 0): (0, 9), (1, 0): (0, 9)})
)
def test_any_program_is_answered(table: Table, tmp_path_factory: pytest.TempPathFactory) -> None:
    made = build(tmp_path_factory.mktemp("t"), *table)
    check_everything(made)
    result = blame(made)
    # All members of one collective leave at the same time, so what they waited can be counted from the table.
    arrivals: dict[int | None, list[float]] = {}
    for row in table[0]:
        if row.group is not None and row.seq is not None:
            arrivals.setdefault(row.seq, []).append(row.start)
    if arrivals:
        waited = sum(max(times) - one for times in arrivals.values() for one in times)
        assert result.waiting_us == pytest.approx(waited)
