"""Which steps of ranks belong together where nothing numbers them."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from support.trace_builder import trace

from kair_engine.recording.alignment import aligned

TAKES = (90, 110, 95, 120, 100, 85, 105, 98, 112, 91)
"""What the job's steps take, in µs: no two alike."""


def recorded(
    folder: Path,
    first: Mapping[int, int],
    groups: Mapping[int, tuple[str, ...]],
    *,
    seq: bool,
    takes: tuple[int, ...] = TAKES,
) -> tuple[Path, ...]:
    """The job's steps from a rank's `first` on, counted from 0: two all-reduces in each of its groups."""
    lines = []
    for step in range(len(takes)):
        lines.append(f"step {step}: {sum(takes[:step])}+{takes[step]}")
        for rank, begun in first.items():
            job_step = step + begun
            if job_step >= len(takes):
                continue
            end = sum(takes[: job_step + 1])
            calls = [
                f"allreduce@{group}{number(job_step, turn) if seq else ''} {end - 40 + 10 * at + 20 * turn}+{5 + rank}"
                for at, group in enumerate(groups[rank])
                for turn in range(2)
            ]
            lines.append(f"{rank} gpu7 | " + " | ".join(calls))
    return trace(folder, "\n".join(lines), apart=True).fragments


def number(step: int, turn: int) -> str:
    return f"#{10 * step + turn}"


DATA = dict.fromkeys(range(3), ("dp",))
MESH = {0: ("tp0", "dp0"), 1: ("tp0", "dp1"), 2: ("tp1", "dp0"), 3: ("tp1", "dp1")}


@pytest.mark.parametrize("seq", [True, False])
@pytest.mark.parametrize("groups", [DATA, MESH], ids=["one group", "a mesh"])
def test_ranks_are_matched_by_the_collectives_of_groups_that_they_share(
    groups: Mapping[int, tuple[str, ...]], seq: bool, tmp_path: Path
) -> None:
    first = {0: 2, 1: 0, 2: 3, 3: 1}
    of_ranks = {rank: first[rank] for rank in groups}
    found = aligned(recorded(tmp_path, of_ranks, groups, seq=seq), groups.keys(), set(), {})
    assert found.more == {rank: -begun for rank, begun in of_ranks.items()}
    assert found.matched_by == {"the numbers of collectives (Seq)" if seq else "when their collectives end"}


def test_ranks_with_numbered_steps_keep_them(tmp_path: Path) -> None:
    found = aligned(recorded(tmp_path, {0: 0, 1: 2, 2: 0}, DATA, seq=True), {1}, {0, 2}, {})
    assert found.more == {1: -2}


@pytest.mark.parametrize(
    ("clocks", "more"),
    [
        ({0: "node0", 1: "node0"}, {0: 0, 1: -2}),
        ({0: "", 1: ""}, {0: 0, 1: -2}),
        # Of clocks that nothing is known of, nothing is told.
        ({}, {0: 0}),
    ],
)
def test_steps_that_all_take_as_long_are_matched_by_the_clock(
    clocks: Mapping[int, str], more: Mapping[int, int], tmp_path: Path
) -> None:
    fragments = recorded(tmp_path, {0: 0, 1: 2}, DATA, seq=False, takes=(100,) * 10)
    assert aligned(fragments, {0, 1}, set(), clocks).more == more


def test_ranks_that_share_no_group_are_not_matched(tmp_path: Path) -> None:
    fragments = recorded(tmp_path, {0: 0, 1: 2}, {0: ("tp0",), 1: ("tp1",)}, seq=True)
    assert aligned(fragments, {0, 1}, set(), {0: "node0", 1: "node0"}).more == {0: 0}
