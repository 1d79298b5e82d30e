"""A rank that has less to do is told from one whose recording lacks a part: its time is covered. Times in µs."""

from pathlib import Path

import numpy as np
import pytest
from support.trace_builder import trace

from kair_engine.localize.analysis import localize
from kair_engine.timeline.coverage import COUNTED, coverage
from kair_engine.trace.model import Trace
from kair_engine.views.overview import info

PASS = ("embed", "attend", "project")
STEPS = 6


def two_ranks(folder: Path, *, passes: int, recorded: int, apart: int = 0) -> Trace:
    """Of a forward pass of 900 µs rank 1 runs three, rank 0 `passes`, of which `recorded` are in its recording.

    Both then run six other operators of 100 µs, meet in a collective for 100, and update for 50. They number it by so
    much `apart`.
    """
    lines = []
    for step in range(STEPS):
        begin = step * 10_000
        after = {0: begin + 900 * passes, 1: begin + 2700}
        met = max(after.values()) + 600
        lines.append(f"step {step}: {begin}+{met + 150 - begin}")
        for rank, kept in ((0, recorded), (1, 3)):
            forward = [f"{name} {begin + 300 * at}+300" for at, name in enumerate(PASS * kept)]
            others = [f"grad{at} {after[rank] + 100 * at}+100" for at in range(6)]
            lines.append(f"{rank} main | {' | '.join(forward + others)}")
            lines.append(
                f"{rank} th2 | allreduce@dp#{step + rank * apart} {after[rank] + 600}+{met + 100 - after[rank] - 600}"
            )
            lines.append(f"{rank} main | update {met + 100}+50")
    return trace(folder, "\n".join(lines))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("passes", "recorded", "lacks"),
    [(3, 3, False), (1, 1, False), (2, 2, False), (3, 1, True), (3, 2, True)],
    ids=["the same", "one pass", "two passes", "two passes lost", "one pass lost"],
)
def test_fewer_passes_are_told_from_passes_that_were_lost(
    tmp_path: Path, passes: int, recorded: int, lacks: bool
) -> None:
    made = two_ranks(tmp_path, passes=passes, recorded=recorded)
    assert [one.ranks for one in localize(made).warnings if one.code == "fewer_recorded"] == [(0,)] * lacks
    assert {row.rank: "fewer_recorded" in row.odd for row in info(made).by_rank} == {0: lacks, 1: False}


@pytest.mark.parametrize(("passes", "recorded", "lacks"), [(1, 1, False), (3, 1, True)])
def test_waiting_of_which_the_other_end_is_not_found_counts(
    tmp_path: Path, passes: int, recorded: int, lacks: bool
) -> None:
    made = two_ranks(tmp_path, passes=passes, recorded=recorded, apart=100)
    assert [one.ranks for one in localize(made).warnings if one.code == "fewer_recorded"] == [(0,)] * lacks


def test_single_steps_of_busy_hosts_say_nothing_of_who_did_less() -> None:
    """Rank 0 computes for 20 % of the step less in five of seven steps; in three of those it is idle 15 % longer."""
    told = {
        "operations": ([80] * 7, [100] * 7),
        "communication": ([3] * 7, [3] * 7),
        "matched": ([3] * 7, [3] * 7),
        "of_most_operators": ([0.8] * 7, [1] * 7),
        "computed_less": ([0.2] * 5 + [0] * 2, [0] * 7),
        "idle_longer": ([0.15] * 3 + [0] * 4, [0] * 7),
        "waited_longer": ([0.2] * 7, [0] * 7),
    }
    assert tuple(told) == COUNTED
    counts = np.array(list(told.values()), dtype=float).transpose(0, 2, 1)
    ranks = np.arange(2)
    assert coverage(ranks, np.zeros(2, dtype=int), counts) == []
    # What it computes less left a hole in every step.
    counts[COUNTED.index("idle_longer"), :, 0] = 0.2
    assert [one.ranks for one in coverage(ranks, np.zeros(2, dtype=int), counts)] == [(0,)]
