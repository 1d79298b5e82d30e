"""Jobs with devices are read rank by rank, all steps at once: what comes of it is what whole steps come to."""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compute_faults import SlowGpu
from layouts import STANDARD, JobLayout
from support.simulated_files import simulated
from support.trace_builder import trace

from kair_engine.comparison.profile import profile_of
from kair_engine.localize import by_rank, unnamed_collectives
from kair_engine.localize.analysis import localize
from kair_engine.localize.excess import job_excess
from kair_engine.timeline import some_ranks
from kair_engine.trace import batches
from kair_engine.trace.loading import Cells
from kair_engine.trace.model import Trace
from kair_engine.views.collectives import collectives
from kair_engine.views.operator_times import operator_times
from kair_engine.views.overview import info
from kair_engine.views.rank_profile import rank_profile

WHOLE = 10**9


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that fit into memory are read whole, however they would be read otherwise."""
    monkeypatch.setattr(unnamed_collectives, "_READ_ONCE", 0)


@pytest.fixture(params=[STANDARD["dp16"], JobLayout("3d", dp=4, pp=2, tp=2, microbatches=4)], ids=["dp", "3d"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Trace:
    """A file for every three ranks, one of which is slow."""
    return simulated(tmp_path, request.param, SlowGpu(5, 1.1))


def differences(one: Any, other: Any, place: str = "") -> Iterator[str]:  # noqa: ANN401
    """Yield where two results differ, in the last bit or in their order."""
    if isinstance(one, np.ndarray):
        if not np.array_equal(one, other, equal_nan=one.dtype.kind == "f"):
            yield place
    elif is_dataclass(one):
        for field in fields(one):
            yield from differences(getattr(one, field.name), getattr(other, field.name), f"{place}.{field.name}")
    elif isinstance(one, dict):
        if list(one) != list(other):
            yield place
        for key in one.keys() & other.keys():
            yield from differences(one[key], other[key], f"{place}[{key}]")
    elif isinstance(one, tuple) and len(one) == len(other):
        for at, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{place}[{at}]")
    elif one != other:
        yield place


@pytest.mark.slow
@pytest.mark.parametrize("at_a_time", [1, 1_000, WHOLE])
def test_the_excesses_are_those_of_whole_steps_to_the_last_bit(
    job: Trace, at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(some_ranks, "ROWS_AT_A_TIME", WHOLE)
    whole = job_excess(job)
    monkeypatch.setattr(some_ranks, "ROWS_AT_A_TIME", 0)
    monkeypatch.setattr(some_ranks, "AT_A_TIME", at_a_time)
    some = job_excess(job)
    assert not list(differences(some, whole))


@pytest.mark.slow
def test_windows_of_steps_change_no_answer(job: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(asked: Trace) -> list[Any]:
        """Return what is asked of whole steps, and of the second and the third of three."""
        some, rank = replace(asked.select(asked.steps[1:3]), known={}), partial(rank_profile, rank=5)
        views: tuple[Callable[[Trace], Any], ...] = (operator_times, collectives, rank, profile_of)
        return [question(asked) for question in (localize, info, *views)] + [question(some) for question in views]

    monkeypatch.setattr(some_ranks, "ROWS_AT_A_TIME", WHOLE)
    whole = ask(job)
    monkeypatch.setattr(some_ranks, "ROWS_AT_A_TIME", 0)
    for module in (by_rank, some_ranks):
        monkeypatch.setattr(module, "WINDOW", max(batches.operations_of_steps(job).values()) * 2)
    assert ask(replace(job, known={})) == whole
    monkeypatch.setattr(some_ranks, "AT_A_TIME", 1)
    assert ask(replace(job, known={})) == whole


@pytest.mark.slow
def test_a_step_in_which_no_device_took_part_is_told_as_a_whole(job: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    read = by_rank._part

    def without_devices(cells: Cells) -> Any:  # noqa: ANN401
        part = read(cells)
        return replace(part, on_stream=part.on_stream & (part.step != job.steps[2]))

    monkeypatch.setattr(some_ranks, "ROWS_AT_A_TIME", WHOLE)
    whole = job_excess(job)
    monkeypatch.setattr(some_ranks, "ROWS_AT_A_TIME", 0)
    monkeypatch.setattr(by_rank, "_part", without_devices)
    assert not list(differences(job_excess(job), whole))


def test_views_read_a_step_without_devices_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = """
        step 0: 0+100
        0 main | mm 0+10 | launch 12+2 ^1
        0 gpu7 | gemm 20+80 ^1
        1 main | mm 0+10 | launch 12+2 ^1
        1 gpu7 | gemm 20+60 ^1
        step 1: 200+100
        0 main | mm 210+30
        1 main | mm 210+50
        step 2: 400+100
        0 main | launch 412+2 ^2
        0 gpu7 | gemm 420+30 ^2
        1 main | launch 412+2 ^2
        1 gpu7 | gemm 420+30 ^2
    """
    job = trace(tmp_path, table)
    assert job.steps == (0, 1, 2)
    whole = operator_times(job, by_rank=True)
    assert {one.type for one in whole.operators} >= {"compute", "idle"}
    monkeypatch.setattr(some_ranks, "ROWS_AT_A_TIME", 0)
    assert operator_times(replace(job, known={}), by_rank=True) == whole


def test_last_steps_without_communication_are_read_rank_by_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = """
        step 0: 0+100
        0 main | launch 2+2 ^1 | launch 32+2 ^2
        0 gpu7 | gemm 10+20 ^1 | allreduce@dp#1 40+50 ^2
        1 main | launch 2+2 ^1 | launch 32+2 ^2
        1 gpu7 | gemm 10+40 ^1 | allreduce@dp#1 60+30 ^2
        step 1: 200+100
        0 main | launch 212+2 ^3
        0 gpu7 | gemm 220+40 ^3
        1 main | launch 212+2 ^3
        1 gpu7 | gemm 220+30 ^3
    """
    job = trace(tmp_path, table)
    assert job.steps == (0, 1)
    monkeypatch.setattr(some_ranks, "ROWS_AT_A_TIME", 0)
    (alone,) = some_ranks.some_ranks_each(job, lambda _: None, [0])
    assert (alone.rank.tolist(), alone.step.tolist()) == ([0, 0], [0, 1])
    waited = alone.wait_ns[alone.ops.communication]
    assert waited.tolist() == [20_000], "the transfer is what the shortest member takes, 30 of 50 µs"
