"""Batches that are left undone at a step's deadline: gradients are of what was done, and the rest comes again."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.ranks import run_ranks

JOB = Path(__file__).parent / "jobs" / "deadline.py"


pytestmark = [pytest.mark.live, pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of three ranks has found."""
    out = tmp_path_factory.mktemp("deadline") / "found.json"
    run_ranks(JOB, 3, str(out))
    every: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))
    return every


@pytest.mark.parametrize("way", ["0 workers", "2 workers", "batches by plan"])
def test_gradients_are_of_what_was_done_and_every_sample_is_trained_once(found: list[dict[str, Any]], way: str) -> None:
    one = found[0][way]
    assert one["gradient"] < 1e-12
    assert one["exactly_once"]
    assert (one["short"] > 5) == (way != "batches by plan")


def test_fewer_samples_are_a_smaller_step_and_the_rate_is_put_back(found: list[dict[str, Any]]) -> None:
    assert found[0]["2 workers"]["rate"] < 1e-12
    assert found[0]["2 workers"]["rate_after"] == 0.05


def test_a_plan_gives_each_rank_its_number_of_batches(found: list[dict[str, Any]]) -> None:
    assert [set(rank["batches by plan"]["batches"]) for rank in found] == [{2}, {1}, {6}]


def test_a_rank_leaves_off_before_a_batch_that_would_end_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    from kair_mitigate import deadline

    now = [0.0]
    monkeypatch.setattr(deadline.time, "perf_counter", lambda: now[0])

    def done(batch_s: float, deadline_ms: int, pace: deadline.Pace) -> int:
        for at in range(8):
            if pace.is_last(at, 1000 * deadline_ms):
                return at + 1
            now[0] += batch_s
        return 8

    pace = deadline.Pace()
    assert done(0.010, 90, pace) == 8  # the eighth ends after 80 ms
    assert done(0.020, 90, pace) == 4
    assert done(0.200, 90, pace) == 1 + 1  # nobody knew before it was over
    assert done(0.200, 90, pace) == 1
    # It never sees how long its only batch takes, and tries once in a while whether it is fast again.
    assert max(done(0.010, 90, pace) for _ in range(20)) == 8


def test_a_loop_that_does_not_ask_when_to_meet_is_told() -> None:
    from kair_mitigate import training_loader

    loader = training_loader.Loader([0.0] * 8, 4, accumulate=2, uneven_accumulation=True)
    batches = iter(loader)
    next(batches)
    with pytest.raises(RuntimeError, match="accumulating"):
        next(batches)
