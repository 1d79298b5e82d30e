"""Who left no trace, and is waited for."""

from pathlib import Path

import pytest
from support.places import CASES2

from kair_engine.recording.opening import open_trace
from kair_engine.timeline.unrecorded import missing_members, unrecorded


@pytest.mark.parametrize(
    ("group", "members"),
    [
        ("1 [0, 1, 2, 3]", {3}),
        ("2 [4, 5, 6, 7]", {5}),
        ("3 [0, 4]", set()),
        ("dp", {3, 5}),
        (None, {3, 5}),
    ],
)
def test_a_group_that_lists_its_ranks_tells_which_of_the_missing_are_in_it(
    group: str | None, members: set[int]
) -> None:
    assert missing_members(group, {3, 5}) == members


@pytest.mark.slow
@pytest.mark.skipif(not CASES2.is_dir(), reason="the cases are not beside the checkout")
def test_a_lost_trace_is_waited_for_and_a_whole_recording_for_nobody(tmp_path: Path) -> None:
    lost = unrecorded(open_trace(CASES2 / "culprit_trace_missing" / "input", cache=tmp_path, workers=1))
    assert lost is not None
    assert lost.ranks == (3,)
    assert 6e6 < lost.waited_ns <= lost.at_most_ns
    whole = open_trace(CASES2 / "two_slow_ranks_price" / "input", cache=tmp_path, workers=1)
    assert unrecorded(whole) is None
    # Without a rank that nobody waits for, next to nothing goes by in waiting for it.
    assert (unrecorded(whole.of_ranks([rank for rank in whole.job.ranks if rank != 3])) or lost).waited_ns < 6e6
