"""A slow rank that was never compared with its peers is no healthy one: what is wrong with its file is told."""

from pathlib import Path

import pytest
from support.altered import (
    Change,
    altered,
    counted_from_1000,
    nothing,
    on_another_host,
    renamed,
    searching_less,
    silent,
    thinned,
    undistributed,
    unmarked,
    without_a_third,
    without_step_marks,
)
from support.answers import shared_cache

from kair_engine.localize.analysis import localize
from kair_engine.recording.opening import open_trace
from kair_engine.results.triage import TriageResult
from kair_engine.timeline.coverage import NOT_COMPARED
from kair_engine.triage.analysis import triage
from kair_engine.views.overview import info
from kair_tui.render.verdict import summary

pytestmark = pytest.mark.slow


def triaged(folder: Path) -> TriageResult:
    return triage(open_trace(folder, cache=shared_cache(), workers=1))


def codes_about(result: TriageResult, rank: int) -> set[str]:
    return {warning.code for warning in result.warnings if rank in warning.ranks} & NOT_COMPARED


def elsewhere(*changes: Change) -> Change:
    def change(content: dict[str, object]) -> None:
        for one in (*changes, on_another_host):
            one(content)

    return change


@pytest.mark.parametrize(
    ("change", "kept", "code", "said"),
    [
        (renamed, 1.0, "no_peer", "rank 2 has no peer: no other rank communicates alike"),
        (silent, 1.0, "fewer_recorded", "rank 2 recorded 0 communication calls a step where its peers have 3"),
        (elsewhere(counted_from_1000), 1.0, "no_common_step", "rank 2 recorded none of the steps"),
        (nothing, 0.6, "fewer_recorded", "rank 2 recorded 1 communication calls a step where its peers have 3"),
    ],
)
def test_a_slow_rank_that_was_not_compared_leaves_the_verdict_open(
    tmp_path: Path, change: Change, kept: float, code: str, said: str
) -> None:
    trace = open_trace(altered(tmp_path / "job", {2: change}, kept=kept), cache=shared_cache(), workers=1)
    result = triage(trace)
    assert result.verdict == "inconclusive"
    assert codes_about(result, 2) == {code}
    assert said in summary(result)
    assert result.findings == ()
    if change is renamed:
        assert {row.rank: row.compared for row in localize(trace).scores} == {0: True, 1: True, 2: False, 3: True}
        assert "the others may wait 15.1 of the 95.0 ms step (15.9 %) for it" in summary(result)
    records = {row.rank: row for row in info(trace).by_rank}
    assert {rank: row.odd for rank, row in records.items()} == {0: (), 1: (), 2: (code,), 3: ()}
    assert {row.files for row in records.values()} == {1}
    if kept < 1:
        assert (records[2].steps, records[0].steps) == (7, 12)
        assert {row.role for row in result.ranking} == {"all"}  # a cut file's rank runs what its peers do


@pytest.mark.parametrize("change", [thinned, counted_from_1000, undistributed, without_step_marks])
def test_a_slow_rank_is_found_where_its_peers_are_seen_to_wait_for_it(tmp_path: Path, change: Change) -> None:
    recorded = open_trace(altered(tmp_path / "job", {2: change}), cache=shared_cache(), workers=1)
    result = triage(recorded)
    assert (result.verdict, [finding.ranks for finding in result.findings]) == ("straggler", [(2,)])
    assert codes_about(result, 2) == ({"fewer_recorded"} if change is thinned else set())
    if change is without_step_marks:
        assert len(result.steps) == 12
        (told,) = [one.message for one in recorded.job.warnings if one.code == "steps_inferred"]
        assert "marks no steps (ProfilerStep#N); its 12 steps are found by Optimizer.step#" in told
    if change is undistributed:
        # The process group is that of its peers, so that the price is what it is with a whole file.
        assert result.findings[0].time_lost_us_per_step == pytest.approx(22_300, rel=0.02)


def test_a_healthy_rank_without_its_collectives_is_not_accused(tmp_path: Path) -> None:
    result = triaged(altered(tmp_path / "job", {1: silent}, sample="healthy"))
    assert (result.verdict, result.findings) == ("inconclusive", ())
    assert codes_about(result, 1) == {"fewer_recorded"}


@pytest.mark.parametrize("ranks", [(0, 1), (0, 1, 2), (0, 1, 2, 3)])
def test_nobody_does_more_than_a_rank_of_whose_steps_a_third_is_lost(ranks: tuple[int, ...], tmp_path: Path) -> None:
    damaged = altered(tmp_path / "job", {1: without_a_third}, sample="healthy", ranks=ranks)
    result = triaged(damaged)
    assert (result.verdict, result.findings) == ("inconclusive", ())
    assert codes_about(result, 1) == {"fewer_recorded"}


def test_a_rank_that_runs_a_few_operators_less_often_is_compared(tmp_path: Path) -> None:
    trace = open_trace(altered(tmp_path / "job", {1: searching_less}, sample="healthy"), cache=shared_cache())
    records = {row.rank: row for row in info(trace).by_rank}
    assert records[1].operations < 0.94 * records[0].operations
    assert records[1].odd == ()
    result = triage(trace)
    assert result.verdict == "no_straggler"
    assert codes_about(result, 1) == set()


def test_steps_that_nothing_marks_are_told_by_the_operators_that_repeat(tmp_path: Path) -> None:
    trace = open_trace(altered(tmp_path / "job", dict.fromkeys(range(4), unmarked)), cache=shared_cache(), workers=1)
    result = triage(trace)
    assert (result.verdict, [finding.ranks for finding in result.findings]) == ("straggler", [(2,)])
    assert result.step_time_us == pytest.approx(94_500, rel=0.01)
    (told,) = [one.message for one in trace.job.warnings]
    assert "marks no steps (ProfilerStep#N); its 12 steps are found by what repeats up to aten::_fused_sgd_" in told


def test_steps_that_one_rank_on_another_host_does_not_mark_are_matched_by_its_collectives(tmp_path: Path) -> None:
    """Its clock is an hour ahead, and nothing says which of its steps is which."""
    trace = open_trace(altered(tmp_path / "job", {2: elsewhere(unmarked)}), cache=shared_cache(), workers=1)
    result = triage(trace)
    assert (result.verdict, [finding.ranks for finding in result.findings]) == ("straggler", [(2,)])
    assert result.findings[0].time_lost_us_per_step == pytest.approx(22_300, rel=0.02)
    assert trace.job.step_shift == {2: -min(trace.steps)}
    (told,) = [one.message for one in trace.job.warnings if one.code == "steps_matched"]
    assert told.endswith("their steps are matched by when their collectives end")
