"""Profilers that began seconds apart: the others waited for the last one in their first step; nobody is at fault."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from support import kineto_builder as kb

from kair_engine.recording.opening import open_trace
from kair_engine.results.triage import TriageResult
from kair_engine.triage.analysis import triage
from kair_tui.render.warnings import warnings_in_words

STEPS = 40
OPENED = (0.0, 3.1, 0.8, 5.5, 15.7, 9.4, 2.2, 12.9)
"""When each rank's profiler is open, in s."""


def job(
    folder: Path, opened: Sequence[float], *, slow: int | None = None, ahead: Mapping[int, float] | None = None
) -> TriageResult:
    """Steps of six kernels of 1.5 ms and an all-reduce that all leave at once; `slow` computes a tenth longer.

    `ahead` puts ranks' clocks forward, in s.
    """
    rng, ranks = random.Random(4), range(len(opened))
    now, events = [1e6 * (1 + one) for one in opened], [list[kb.Event]() for _ in opened]
    for number in range(STEPS):
        begun = list(now)
        for rank in ranks:
            for at in range(6):
                link, length = 10 * number + at + 1, 1500 * rng.gauss(1, 0.01) * (1.1 if rank == slow else 1)
                launch, kernel = begun[rank] + 8 * at, now[rank] + 10
                events[rank] += [kb.launch(launch, 5, link), kb.kernel(f"gemm{at}", kernel, length, link)]
                now[rank] = kernel + length
        left = max(now) + 400
        for rank in ranks:
            link = 10 * number + 9
            group = {"Collective name": "allreduce", "Process Group Name": "0", "Group size": len(opened)}
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
            reduced = kb.kernel(name, now[rank], left - now[rank], link, stream=20, **group)
            wait = kb.launch(begun[rank] + 80, left - begun[rank] - 80, link + 100_000, name="cudaDeviceSynchronize")
            events[rank] += [kb.launch(begun[rank] + 60, 5, link), reduced, wait]
            events[rank].append(kb.step(number, begun[rank], left + 10 - begun[rank]))
            now[rank] = left + 20 + rng.uniform(0, 20)
    for rank in ranks:
        shift = 1e6 * (ahead or {}).get(rank, 0.0)
        moved = [{**one, "ts": one["ts"] + shift} for one in events[rank]]
        kb.write(folder / "job" / f"rank{rank}.json", kb.trace(moved, rank=rank, world=len(opened)))
    return triage(open_trace(folder / "job", cache=folder / "cache"))


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [{}, {4: 900.0, 1: -3.0}], ids=["one clock", "clocks apart"])
def test_a_late_profiler_is_named_and_the_rest_is_judged(tmp_path: Path, ahead: Mapping[int, float]) -> None:
    result = job(tmp_path, OPENED, ahead=ahead)
    assert (result.verdict, result.findings, result.steps) == ("no_straggler", (), tuple(range(1, STEPS)))
    (told,) = (one.message for one in warnings_in_words(result.warnings) if one.code == "profilers_began_apart")
    assert told.startswith("the profiler of rank 4 began 15.7 s after rank 0's")
    assert "giant_step" not in {one.code for one in result.warnings}


@pytest.mark.slow
def test_a_straggler_among_them_is_found_all_the_same(tmp_path: Path) -> None:
    result = job(tmp_path, OPENED, slow=2)
    assert (result.verdict, {rank for one in result.findings for rank in one.ranks}) == ("straggler", {2})


@pytest.mark.slow
def test_ranks_less_than_a_step_apart_begin_together(tmp_path: Path) -> None:
    """A step takes 9.6 ms."""
    result = job(tmp_path, [one / 2000 for one in OPENED])
    assert (result.verdict, result.steps) == ("no_straggler", tuple(range(STEPS)))
