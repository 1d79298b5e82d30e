"""Profilers that count their steps each from its own begin: what ranks meet in tells which steps are the same."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from support import kineto_builder as kb

from kair_engine.recording.opening import open_trace
from kair_engine.trace.model import Job

RECORDED, BEGAN = 12, 1.75e15
"""Steps, of 10 ms; µs since 1970."""


def job(folder: Path, opened: Sequence[int], *, seq: bool) -> Job:
    """A running job, of which each rank records steps from the one in which its profiler was `opened`, as 0, 1, …."""
    rng, ranks = random.Random(2), range(len(opened))
    events, now = [list[kb.Event]() for _ in ranks], BEGAN
    for number in range(max(opened) + RECORDED):
        over = now + 10_000 * rng.uniform(0.9, 1.1)
        for rank in ranks:
            own = number - opened[rank]
            if 0 <= own < RECORDED:
                about = {"Collective name": "allreduce", "Process Group Name": "0", "Group size": len(opened)}
                about |= {"Seq": number} if seq else {}
                come = over - 500 - rng.uniform(0, 300)
                events[rank] += [
                    kb.step(own, now, over - now),
                    kb.launch(now + 10, 5, 2 * own + 1),
                    kb.kernel("gemm", now + 20, come - now - 30, 2 * own + 1),
                    kb.launch(now + 20, 5, 2 * own + 2),
                    kb.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", come, over - come, 2 * own + 2, **about),
                ]
        now = over
    for rank in ranks:
        kb.write(folder / "job" / f"rank{rank}.json", kb.trace(events[rank], rank=rank, world=len(opened)))
    return open_trace(folder / "job", cache=folder / "cache").job


@pytest.mark.slow
@pytest.mark.parametrize("seq", [True, False], ids=["numbered", "by their ends"])
def test_steps_that_all_recorded_are_compared(tmp_path: Path, seq: bool) -> None:
    """Rank 1 began four steps late and rank 2 two: eight steps are common to all."""
    found = job(tmp_path, [0, 4, 2, 0], seq=seq)
    assert (found.step_shift, found.steps) == ({1: -4, 2: -2}, tuple(range(4, 12)))
    assert "steps_matched" in {one.code for one in found.warnings}


def test_a_rank_that_recorded_none_of_the_others_steps_is_held_against_nobody(tmp_path: Path) -> None:
    found = job(tmp_path, [0, 0, 40, 0], seq=True)
    assert found.steps == tuple(range(12))
    assert found.step_shift == {2: -12}


def test_ranks_that_began_together_keep_their_numbers(tmp_path: Path) -> None:
    found = job(tmp_path, [0, 0, 0, 0], seq=True)
    assert (found.step_shift, found.steps) == ({}, tuple(range(12)))
