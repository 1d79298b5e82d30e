"""The paper's stages [K III.B] against their formulas written out with plain loops."""

import bisect
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st
from support.trace_builder import Row, Spans, build, trace

from kair_engine.blame.analysis import blame
from kair_engine.errors import UsageError
from kair_engine.localize.analysis import localize
from kair_engine.localize.paper import ks_scores
from kair_engine.pinpoint import pinpoint
from kair_engine.results.blame import RootCause
from kair_engine.results.localize import LocalizeResult
from kair_engine.trace.model import Trace
from kair_tui.render.blame_paths import blame_headline, blame_totals
from kair_tui.render.warnings import warnings_in_words

PROPERTY = settings(deadline=None, derandomize=True, max_examples=12)
WINDOWS = 100
Table = tuple[list[Row], Spans]


@st.composite
def tables(draw: st.DrawFn, ranks: st.SearchStrategy[int] = st.integers(2, 5)) -> Table:  # noqa: B008
    """Ranks with a few steps of their own length, and a few operations in each; some lack a step."""
    count, steps = draw(ranks), draw(st.integers(1, 3))
    length = st.integers(50, 400)
    spans: Spans = {}
    rows: list[Row] = []
    for rank in range(count):
        for step in range(steps):
            if rank > 1 and steps > 1 and draw(st.integers(0, 9)) == 0:
                continue
            begin = step * 1000 + draw(st.integers(0, 300))
            spans[rank, step] = (begin, draw(length))
            for name in draw(st.lists(st.sampled_from("abc"), max_size=8)):
                start = begin + draw(st.integers(0, 300))
                rows.append(Row(rank, "gpu7", name, start, draw(st.integers(0, 120)), step))
            rows.append(Row(rank, "main", "layer", begin, 30, step, kind="scope"))
    return rows, spans


def scores_by_formula(table: Table, *, normalized: bool) -> tuple[list[float], list[list[float]]]:
    """S_A = mean over B ≠ A of max_k |F_A(t_k) − F_B(t_k)|, then over steps; and D as a matrix, per step too."""
    rows, spans = table
    ranks = sorted({rank for rank, _ in spans})
    scores: dict[int, list[float]] = {rank: [] for rank in ranks}
    distances: dict[tuple[int, int], list[float]] = {pair: [] for pair in itertools.product(ranks, ranks)}
    for step in sorted({step for _, step in spans}):
        present = [rank for rank in ranks if (rank, step) in spans]
        window = max(spans[rank, step][1] for rank in present) / WINDOWS
        curve = {}
        for rank in present:
            begin = spans[rank, step][0]
            frequency = [0] * WINDOWS
            for row in rows:
                if (row.rank, row.step) == (rank, step) and row.kind != "scope":
                    k = math.floor((row.start + row.duration - begin) / window)
                    frequency[min(k, WINDOWS - 1)] += 1
            total = sum(frequency) or 1
            curve[rank] = [f / (total if normalized else 1) for f in itertools.accumulate(frequency)]
        for a in present:
            apart = {b: max(abs(x - y) for x, y in zip(curve[a], curve[b], strict=True)) for b in present}
            scores[a].append(sum(apart.values()) / max(len(present) - 1, 1))
            for b in present:
                distances[a, b].append(apart[b])
    mean = {pair: sum(found) / len(found) if found else 0.0 for pair, found in distances.items()}
    return [sum(scores[a]) / len(scores[a]) for a in ranks], [[mean[a, b] for b in ranks] for a in ranks]


def by_rank(result: LocalizeResult) -> list[float]:
    return [score.score for score in sorted(result.scores, key=lambda score: score.rank)]


@pytest.mark.slow
@PROPERTY
@given(table=tables(), normalized=st.booleans())
def test_localize_is_the_formula(table: Table, normalized: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    made = build(tmp_path_factory.mktemp("t"), *table)
    result = localize(made, method="paper", normalized=normalized, matrix=True)
    scores, matrix = scores_by_formula(table, normalized=normalized)
    assert by_rank(result) == pytest.approx(scores)
    assert result.matrix is not None
    assert np.array(result.matrix) == pytest.approx(np.array(matrix))
    assert [score.score for score in result.scores] == sorted(by_rank(result), reverse=True)
    assert not any(score.flagged or score.p_value is not None for score in result.scores)
    assert [warning.code for warning in result.warnings] == ["score_only"]


@pytest.mark.slow
@PROPERTY
@given(table=tables(), normalized=st.booleans())
def test_localize_of_the_whole_run_is_one_long_step(
    table: Table, normalized: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows, spans = table
    result = localize(
        build(tmp_path_factory.mktemp("t"), *table), method="paper", whole_run=True, normalized=normalized
    )
    begin = {rank: min(spans[cell][0] for cell in spans if cell[0] == rank) for rank, _ in spans}
    end = {rank: max(sum(spans[cell]) for cell in spans if cell[0] == rank) for rank, _ in spans}
    joined = [Row(row.rank, row.lane, row.name, row.start, row.duration, kind=row.kind) for row in rows]
    whole = {(rank, 0): (begin[rank], end[rank] - begin[rank]) for rank in begin}
    assert by_rank(result) == pytest.approx(scores_by_formula((joined, whole), normalized=normalized)[0])


@pytest.mark.slow
def test_the_normalized_distance_is_that_of_kolmogorov_and_smirnov(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    # Each operation ends in the middle of a window of 10 µs, so that binning loses nothing.
    ends = [10 * random.integers(0, 100, size) + 5 for size in (40, 60)]
    rows = [Row(rank, "gpu7", "a", float(end), 0) for rank, of_rank in enumerate(ends) for end in of_rank]
    made = build(tmp_path, rows, {(0, 0): (0, 1000), (1, 0): (0, 1000)})
    expected = scipy.stats.ks_2samp(*ends).statistic
    assert by_rank(localize(made, method="paper", normalized=True)) == pytest.approx([expected, expected])


def test_raw_counts_by_hand(tmp_path: Path) -> None:
    # Windows of 10 µs. Rank 1 is 100 µs late with its second, rank 2 does both at once.
    made = trace(
        tmp_path,
        """
        step 0: 0+1000
        0 gpu7 | a 0+105 | a 200+105
        1 gpu7 | a 0+105 | a 300+105
        2 gpu7 | a 0+105 | a 1+105
        """,
    )
    result = localize(made, method="paper", matrix=True)
    assert result.matrix == ((0, 1, 1), (1, 0, 1), (1, 1, 0))
    assert by_rank(result) == [1, 1, 1]


def test_ranks_are_not_held_to_a_common_clock(tmp_path: Path) -> None:
    table = "step 0: 0+1000\n0-2 gpu7 | a 0+105 | a 200+105\n3 gpu7 | a 0+105 | a 300+105"
    plain = localize(trace(tmp_path / "plain", table), method="paper")
    assert localize(trace(tmp_path / "moved", table, shift={2: 5000}), method="paper") == plain
    assert [score.rank for score in plain.scores] == [3, 0, 1, 2]


def test_on_the_jobs_clock_a_rank_that_begins_late_is_late(tmp_path: Path) -> None:
    # All leave the all-reduce together, which tells the clocks; rank 2 begins its step 300 µs after the others.
    rows = [Row(rank, "gpu7", "allreduce", 900, 50, group="dp", seq=1) for rank in range(12)]
    rows += [Row(rank, "gpu7", "a", 400.0 if rank == 2 else 100.0, 105) for rank in range(12)]
    spans = {(rank, 0): (300, 700) if rank == 2 else (0, 1000) for rank in range(12)}
    job = build(tmp_path, rows, spans, shift={5: 4000})

    top, *others = localize(job, method="paper", clock="job").scores
    # What they leave together, all leave at once.
    assert (top.rank, top.score, others[0].score) == (2, 1, pytest.approx(1 / 11))
    late = [one.operator for one in pinpoint(job, rank=2, method="paper", clock="job").outliers]
    assert "a" in late
    assert "a" not in [one.operator for one in pinpoint(job, rank=2, method="paper").outliers]
    assert "a" in [one.operator for one in blame(job, rank=2, method="paper", clock="job").root_causes]


def test_blame_by_the_paper_speaks_of_no_waiting(tmp_path: Path) -> None:
    result = blame(chain_of(tmp_path, {"b": 300}, {}), method="paper")
    assert (result.waiting_us, result.collectives) == (0.0, 0)
    assert blame_headline(result).startswith("rank 7: ")
    assert not any("waited" in text for text in (blame_headline(result), blame_totals(result)))


def test_a_rank_that_lacks_a_step_is_scored_over_its_own(tmp_path: Path) -> None:
    made = trace(
        tmp_path,
        """
        step 0: 0+1000
        0-2 gpu7 | a 100+100
        3   gpu7 | a 500+100
        step 1: 1000+1000
        0-2 gpu7 | a 1100+100
        """,
    )
    result = localize(made, method="paper", matrix=True)
    assert by_rank(result) == pytest.approx([(1 / 3 + 0) / 2] * 3 + [1])
    assert result.matrix is not None
    assert result.matrix[0] == (0, 0, 0, 1)  # ranks 0 and 3 share one step, and are 1 apart in it


def test_many_ranks_are_scored_in_tiles() -> None:
    curves = np.random.default_rng(1).integers(0, 3, (600, 20)).cumsum(axis=1).astype(float)
    expected = scipy.spatial.distance.cdist(curves, curves, "chebyshev").sum(axis=1) / 599
    assert ks_scores(curves) == pytest.approx(expected)
    assert ks_scores(curves[:1]).tolist() == [0]


def test_hosts_are_scored_by_their_ranks(tmp_path: Path) -> None:
    table = "step 0: 0+1000\n0-2 gpu7 | a 100+100\n3 gpu7 | a 500+100"
    made = trace(tmp_path, table, hosts={0: "a", 1: "a", 2: "b", 3: "b"})
    groups = localize(made, method="paper", by="host").groups
    assert [(group.group, group.ranks) for group in groups] == [("b", (2, 3)), ("a", (0, 1))]
    assert [group.mean_score for group in groups] == pytest.approx([(1 / 3 + 1) / 2, 1 / 3])
    assert [group.max_score for group in groups] == pytest.approx([1, 1 / 3])


def test_the_papers_options_belong_to_its_method(tmp_path: Path) -> None:
    made = trace(tmp_path, "0-1 gpu7 | a 0+10")
    for option in ("whole_run", "normalized", "matrix"):
        with pytest.raises(UsageError, match="belong to the paper's method"):
            localize(made, **{option: True})


def z_scores_by_formula(table: Table) -> dict[tuple[int, int, str, int], tuple[float, float]]:
    """(rank, step, name, occurrence) → z of start offset and of duration, over all ranks, population SD."""
    rows, spans = table
    cells: dict[tuple[int, str, int], dict[int, tuple[float, float]]] = {}
    for rank, step in spans:
        starts: dict[str, list[tuple[float, float]]] = {}
        for row in rows:
            if (row.rank, row.step) == (rank, step) and row.kind != "scope":
                bisect.insort(starts.setdefault(row.name, []), (row.start, row.duration))
        for name, found in starts.items():
            for occurrence, (start, duration) in enumerate(found):
                cells.setdefault((step, name, occurrence), {})[rank] = (start - spans[rank, step][0], duration)
    return {
        (rank, step, name, occurrence): (z(of_rank, rank, 0), z(of_rank, rank, 1))
        for (step, name, occurrence), of_rank in cells.items()
        for rank in of_rank
    }


def z(of_rank: dict[int, tuple[float, float]], rank: int, which: int) -> float:
    values = [value[which] for value in of_rank.values()]
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
    return (of_rank[rank][which] - mean) / deviation if deviation else 0.0


@st.composite
def wide_tables(draw: st.DrawFn) -> Table:
    """Twelve to sixteen ranks that mostly do the same, so that single values can lie 3 σ out.

    No two starts tie; the ranks' steps begin at different times.
    """
    ranks, steps = draw(st.integers(12, 16)), draw(st.integers(1, 2))
    begin = [17 * rank % 40 for rank in range(ranks)]
    rows = []
    odd = st.sampled_from((0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 40, 80))
    for rank, step, call in itertools.product(range(ranks), range(steps), range(3)):
        start = step * 1000 + begin[rank] + call * 200 + draw(odd)
        rows.append(Row(rank, "gpu7", "ab"[call % 2], start, 50 + draw(odd), step))
    return rows, {(rank, step): (step * 1000 + begin[rank], 900) for rank in range(ranks) for step in range(steps)}


@pytest.mark.slow
@PROPERTY
@given(table=wide_tables(), rank=st.integers(0, 11))
def test_pinpoint_is_the_formula(table: Table, rank: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    result = pinpoint(build(tmp_path_factory.mktemp("t"), *table), rank=rank, method="paper", limit=1000)
    mine = {cell[1:]: found for cell, found in z_scores_by_formula(table).items() if cell[0] == rank}
    # Right at 3 the last digit decides.
    assert not any(abs(max(map(abs, found)) - 3) < 1e-9 for found in mine.values())
    expected = {cell: found for cell, found in mine.items() if max(map(abs, found)) > 3}
    found = {(o.step, o.operator, o.occurrence): (o.start_z, o.duration_z) for o in result.outliers}
    assert found.keys() == expected.keys()
    for cell, (start_z, duration_z) in expected.items():
        assert found[cell] == pytest.approx((start_z, duration_z), abs=1e-9)
    assert result.tested == len(mine)
    highest = sorted((max(map(abs, found)) for found in expected.values()), reverse=True)
    assert [o.score for o in result.outliers] == pytest.approx(highest)


def ring(folder: Path, ranks: int, lengths: dict[int, float]) -> Trace:
    """Each rank runs one kernel of 100 µs, or of what `lengths` says, then another of 10."""
    rows = []
    for rank in range(ranks):
        length = lengths.get(rank, 100)
        rows += [Row(rank, "gpu7", "gemm", 0, length), Row(rank, "gpu7", "relu", length, 10)]
    return build(folder, rows, {(rank, 0): (0, 1000) for rank in range(ranks)})


def test_three_sigma_cannot_fire_among_ten_ranks(tmp_path: Path) -> None:
    for ranks, highest in ((8, "2.65"), (10, "3.00")):
        result = pinpoint(ring(tmp_path / str(ranks), ranks, {3: 900}), rank=3, method="paper")
        assert result.outliers == ()
        (warning,) = warnings_in_words(result.warnings)
        assert warning.code == "z_cannot_fire"
        assert (
            warning.message == f"with {ranks} ranks no |z| can exceed √(N−1) = {highest}: the paper's z > 3 cannot fire"
        )
    result = pinpoint(ring(tmp_path / "11", 11, {3: 900}), rank=3, method="paper")
    assert result.warnings == ()
    # The kernel lasted, and the one after it began, as far out as one among eleven can lie.
    assert [(o.operator, o.score) for o in result.outliers] == [
        ("gemm", pytest.approx(math.sqrt(10))),
        ("relu", pytest.approx(math.sqrt(10))),
    ]
    first = result.outliers[0]
    assert (first.duration_us, first.expected_duration_us) == (900, pytest.approx((900 + 10 * 100) / 11))
    assert (first.start_z, first.p_value) == (0, None)


def test_several_slow_ranks_hide_one_another(tmp_path: Path) -> None:
    made = ring(tmp_path, 20, dict.fromkeys((4, 9, 13), 900))
    # Three of twenty reach √(17/3) = 2.4.
    assert pinpoint(made, rank=4, method="paper").outliers == ()
    assert {o.operator for o in pinpoint(made, rank=4).outliers} == {"gemm"}


def test_the_paper_takes_fast_for_abnormal_too(tmp_path: Path) -> None:
    (first, *_) = pinpoint(ring(tmp_path, 12, {5: 10}), rank=5, method="paper").outliers
    assert first.duration_z is not None and first.duration_z == pytest.approx(-math.sqrt(11))


def causes(found: tuple[RootCause, ...]) -> list[tuple[int, str | None, str, bool]]:
    return [(cause.rank, cause.operator, cause.cause, cause.is_edge) for cause in found]


def chain_of(folder: Path, slow: dict[str, float], gap: dict[str, float]) -> Trace:
    """Twelve ranks run a → b → c on a stream; on rank 7 the named ones take longer, or start after idling."""
    rows = []
    for rank in range(12):
        at = 0.0
        for name in "abc":
            length = 100 + (slow.get(name, 0) if rank == 7 else rank % 3)
            at += 5 + (gap.get(name, 0) if rank == 7 else 0)
            rows.append(Row(rank, "gpu7", name, at, length))
            at += length
    return build(folder, rows, {(rank, 0): (0, 2000) for rank in range(12)})


def test_blame_stops_at_an_abnormal_duration(tmp_path: Path) -> None:
    result = blame(chain_of(tmp_path, {"b": 300}, {}), rank=7, method="paper")
    assert causes(result.root_causes) == [(7, "b", "compute", False)]
    # b is its own cause, c started late because of b.
    assert {tuple(node.operator for node in path.chain) for path in result.paths} == {("b",), ("c", "b")}
    assert {path.chain[-1].role_in_path for path in result.paths} == {"culprit"}


def test_blame_walks_back_over_late_ones_to_the_slow_one(tmp_path: Path) -> None:
    result = blame(chain_of(tmp_path, {"a": 300}, {}), rank=7, method="paper")
    assert {tuple(node.operator for node in path.chain) for path in result.paths} == {
        ("a",),
        ("b", "a"),
        ("c", "b", "a"),
    }
    assert causes(result.root_causes) == [(7, "a", "compute", False)]


def test_blame_takes_the_edge_where_the_predecessor_was_on_time(tmp_path: Path) -> None:
    result = blame(chain_of(tmp_path, {}, {"b": 300}), rank=7, method="paper")
    assert causes(result.root_causes) == [(7, "b", "host", True)]
    assert {tuple(node.operator for node in path.chain) for path in result.paths} == {("b",), ("c", "b")}
    assert {path.chain[-1].role_in_path for path in result.paths} == {"edge"}


@st.composite
def streams(draw: st.DrawFn) -> Table:
    """Twelve ranks that run a → b → c → d on a stream, rank 7 with pauses and lengths of its own."""
    rows = []
    odd = st.sampled_from((0, 0, 0, 200, -60))
    for rank in range(12):
        at = 0
        for name in "abcd":
            at += 80 + rank % 2 + (draw(odd) if rank == 7 else 0)
            length = 100 + rank % 3 + (draw(odd) if rank == 7 else 0)
            rows.append(Row(rank, "gpu7", name, at, length))
            at += length
    return rows, {(rank, 0): (0, 3000) for rank in range(12)}


@pytest.mark.slow
@PROPERTY
@given(table=streams())
def test_blame_is_the_papers_walk(table: Table, tmp_path_factory: pytest.TempPathFactory) -> None:
    found = {cell[2]: scores for cell, scores in z_scores_by_formula(table).items() if cell[0] == 7}
    slow = {name: abs(duration) > 3 for name, (_, duration) in found.items()}
    late = {name: abs(start) > 3 for name, (start, _) in found.items()}
    roots = set()
    for symptom in "abcd":
        at = "abcd".index(symptom)
        if not slow[symptom] and not late[symptom]:
            continue
        while not slow["abcd"[at]]:
            before = "abcd"[at - 1] if at else None
            if before is None or (not slow[before] and not late[before]):
                break
            at -= 1
        roots.add(("abcd"[at], not slow["abcd"[at]]))
    result = blame(build(tmp_path_factory.mktemp("t"), *table), rank=7, method="paper")
    assert {(cause.operator, cause.is_edge) for cause in result.root_causes} == roots
    assert sum(cause.share for cause in result.root_causes) == pytest.approx(1 if roots else 0)


def test_blame_starts_from_the_rank_that_stage_1_put_first(tmp_path: Path) -> None:
    made = chain_of(tmp_path, {"b": 300}, {})
    assert localize(made, method="paper").scores[0].rank == 7
    assert blame(made, method="paper").root_causes == blame(made, rank=7, method="paper").root_causes
    assert blame(made, rank=3, method="paper").root_causes == ()


def test_blame_says_that_it_stays_on_one_rank(tmp_path: Path) -> None:
    result = blame(ring(tmp_path, 8, {3: 900}), method="paper")
    assert (result.method, result.root_causes) == ("paper", ())
    assert {warning.code for warning in result.warnings} == {"one_rank_walk", "z_cannot_fire"}


def test_blame_takes_a_culprits_short_collective_for_a_root_cause(tmp_path: Path) -> None:
    # What METHOD 4 warns of: the straggler's collective is abnormally short, for it came last.
    rows = []
    for rank in range(12):
        length = 500 if rank == 7 else 100
        rows += [
            Row(rank, "gpu7", "gemm", 0, length),
            Row(rank, "gpu7", "allreduce", length, 550 - length, group="dp", seq=1),
        ]
    made = build(tmp_path, rows, {(rank, 0): (0, 1000) for rank in range(12)})
    assert set(causes(blame(made, rank=7, method="paper").root_causes)) == {
        (7, "gemm", "compute", False),
        (7, "allreduce", "communication", False),
    }
    assert causes(blame(made).root_causes) == [(7, "gemm", "compute", False)]


def test_blame_can_be_narrowed_to_an_operator(tmp_path: Path) -> None:
    made = chain_of(tmp_path, {"a": 300}, {})
    assert causes(blame(made, rank=7, method="paper", operator="a").root_causes) == [(7, "a", "compute", False)]
    assert blame(made, rank=7, method="paper", operator="c").root_causes == ()
