"""Jobs with devices are read rank by rank, all steps at once: what comes of it is what whole steps come to."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compute_faults import SlowGpu
from layouts import STANDARD, JobLayout
from support.simulated_files import simulated

from kair_engine.localize import by_rank
from kair_engine.localize.analysis import localize
from kair_engine.localize.excess import job_excess
from kair_engine.trace import batches
from kair_engine.trace.model import Trace
from kair_engine.views.overview import info

WHOLE = 10**9


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


@pytest.mark.parametrize("at_a_time", [1, 1_000, WHOLE])
def test_the_excesses_are_those_of_whole_steps_to_the_last_bit(
    job: Trace, at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_rank, "ROWS_AT_A_TIME", WHOLE)
    whole = job_excess(job)
    monkeypatch.setattr(by_rank, "ROWS_AT_A_TIME", 0)
    monkeypatch.setattr(by_rank, "AT_A_TIME", at_a_time)
    some = job_excess(job)
    assert not list(differences(some, whole))


def test_windows_of_steps_change_no_answer(job: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = (localize, info)
    monkeypatch.setattr(by_rank, "ROWS_AT_A_TIME", WHOLE)
    whole = [question(job) for question in asked]
    monkeypatch.setattr(by_rank, "ROWS_AT_A_TIME", 0)
    monkeypatch.setattr(by_rank, "WINDOW", max(batches.operations_of_steps(job).values()) * 2)
    assert [question(replace(job, known={})) for question in asked] == whole


def test_a_step_in_which_no_device_took_part_is_told_as_a_whole(job: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    read = by_rank._read

    def without_devices(trace: Trace) -> Any:  # noqa: ANN401
        part, met = read(trace)
        return replace(part, on_stream=part.on_stream & (part.step != job.steps[2])), met

    monkeypatch.setattr(by_rank, "ROWS_AT_A_TIME", WHOLE)
    whole = job_excess(job)
    monkeypatch.setattr(by_rank, "ROWS_AT_A_TIME", 0)
    monkeypatch.setattr(by_rank, "_read", without_devices)
    assert not list(differences(job_excess(job), whole))
