"""What-if analyses show what they know before they are whole: true figures, the same answer, and no more replays."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.answers import recorded
from support.places import BYTEDANCE, SAMPLES

from kair_engine.progress import telling
from kair_engine.results.whatif import WhatifResult
from kair_engine.whatif.analysis import model_asked_of, whatif_of
from kair_engine.whatif.model import Model

JOBS = (SAMPLES / "pipeline_slow_operator", SAMPLES / "slow_host", SAMPLES / "healthy", BYTEDANCE / "trace-ST.parquet")
FINAL = ("slowdown", "waste", "step_time_us", "measured_step_time_us", "ideal_step_time_us", "host_stops")
"""Known from the first look on; other figures that are no table are not shown."""


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many variants of the job each replay was asked for that was not known."""
    counts: list[int] = []
    replay = Model.replay

    def counting(self: Model, asked: Sequence[Any], *rest: Any) -> Any:  # noqa: ANN401
        known = len(self._known)
        done = replay(self, asked, *rest)
        counts.append(len(self._known) - known)
        return done

    monkeypatch.setattr(Model, "replay", counting)
    return counts


def tables(result: WhatifResult) -> dict[str, Mapping[Any, float]]:
    """Return the figures of parts, those that are known."""
    found = {one.name: getattr(result, one.name) for one in fields(result)}
    return {name: of for name, of in found.items() if isinstance(of, Mapping) and of}


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.stem)
def test_what_is_shown_first_is_what_the_answer_says_in_the_end(job: Path, replayed: list[int]) -> None:
    if not job.exists():
        pytest.skip("no such recording here")
    alone = whatif_of(model_asked_of(recorded(job), keep=True))
    needed, seen = sum(replayed), list[WhatifResult]()
    replayed.clear()
    with telling(lambda *_: None, seen.append):
        answer = whatif_of(model_asked_of(recorded(job), keep=True))
    assert answer == alone
    assert sum(replayed) == needed
    assert len(seen) >= 2
    for shown in seen:
        assert [getattr(shown, name) for name in FINAL] == [getattr(answer, name) for name in FINAL]
        assert tables(shown) == {name: tables(answer)[name] for name in tables(shown)}
    # Rows come one after another, and stay.
    assert all(tables(before).keys() <= tables(after).keys() for before, after in pairwise(seen))
    assert "by_rank" in tables(seen[-1]) or "by_rank" not in tables(answer)


@pytest.mark.slow
def test_steps_that_are_not_kept_are_made_ready_no_more_often(
    monkeypatch: pytest.MonkeyPatch, replayed: list[int]
) -> None:
    monkeypatch.setattr("kair_engine.whatif.operators.batches._ROWS_AT_ONCE", 1)
    job, seen = recorded(SAMPLES / "slow_host"), list[WhatifResult]()
    answer = whatif_of(model_asked_of(job))
    often = len([count for count in replayed if count])
    replayed.clear()
    with telling(lambda *_: None, seen.append):
        assert whatif_of(model_asked_of(job)) == answer
    assert len([count for count in replayed if count]) == often
    (shown,) = seen
    assert shown.by_rank == answer.by_rank and not shown.saved_by_rank_us
