"""The yardstick of kinds of situations: its truths are what it does to a job, and right answers score as such."""

from dataclasses import replace
from pathlib import Path

import pytest
from kind_situations import KINDS, draw
from kinds import answer, score
from kinds import triage as run

from kair_engine.recording.opening import open_trace

pytestmark = pytest.mark.slow


def test_the_same_seed_is_the_same_job(tmp_path: Path) -> None:
    truths = [draw("device", 5, 1, tmp_path / name) for name in ("one", "other")]
    assert truths[0] == truths[1]
    one, other = (sorted((tmp_path / name).iterdir()) for name in ("one", "other"))
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in other]


def test_a_file_for_each_rank_but_the_missing_one(tmp_path: Path) -> None:
    truth = draw("missing_culprit", 5, 0, tmp_path)
    ranks = open_trace(tmp_path, cache=tmp_path / "cache", workers=1).job
    (missing,) = ranks.missing_ranks
    assert truth.ranks == ()
    assert truth.told == (rf"\brank {missing}\b",)


@pytest.mark.parametrize("kind", ["device", "healthy"])
def test_a_plain_job_is_answered_right(kind: str) -> None:
    scored = answer(kind, 5, 0, None)
    assert scored.right
    assert not scored.innocents
    assert scored.ratio is None or scored.ratio == pytest.approx(1.0, abs=0.1)


def test_whoever_else_is_accused_is_innocent(tmp_path: Path) -> None:
    truth = draw("device", 5, 0, tmp_path)
    result = run(open_trace(tmp_path, cache=tmp_path / "cache", workers=1))
    guilty = truth.ranks[0]
    wrong = score("device", "", replace(truth, ranks=(guilty + 1,)), result)
    assert (wrong.right, wrong.right_verdict, wrong.innocents) == (False, True, True)


def test_a_fault_costs_what_was_asked_for(tmp_path: Path) -> None:
    """All that are drawn cost at least 3 % of the step; what a queue absorbs costs nothing."""
    culprit = draw("end_every", 5, 0, tmp_path / "culprit")
    absorbed = draw("healthy_side_work", 5, 0, tmp_path / "absorbed")
    assert culprit.ms >= 0.03 * culprit.step_ms
    assert absorbed.ms <= 0.004 * absorbed.step_ms
    assert {"healthy", "device", "ladder", "rollout"} <= set(KINDS)
