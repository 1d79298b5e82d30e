"""What the benchmark of kills measures is capture's."""

import os
from pathlib import Path

import pytest
import simulated_job
from simulated_job import Plan, run

from kair_capture.job.windows import ControlWords, Window


def test_a_ranks_pause_is_captures_and_not_what_the_simulation_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 10**9

    def pass_time(ns: int) -> None:
        nonlocal now
        now += ns

    write, write_text = os.write, Path.write_text

    def slow_write(handle: int, content: bytes) -> int:
        pass_time(10**8 if len(content) == 4 else 0)  # a step's number; names are capture's
        return write(handle, content)

    def slow_text(path: Path, text: str) -> int:
        pass_time(10**8)
        return write_text(path, text)

    monkeypatch.setattr(simulated_job.time, "monotonic_ns", lambda: now)
    monkeypatch.setattr(simulated_job.time, "sleep", lambda seconds: pass_time(round(seconds * 1e9)))
    monkeypatch.setattr(simulated_job, "_run_delay_ns", lambda: 0)
    monkeypatch.setattr(os, "write", slow_write)
    monkeypatch.setattr(Path, "write_text", slow_text)
    monkeypatch.setenv("KAIR_RUN_DIR", str(tmp_path))
    asked: list[ControlWords] = []

    def ask() -> None:
        if not asked:
            asked.append(ControlWords(tmp_path / "rank-0.control"))
            asked[0].ask(Window(4, 2))

    class Until:
        def exists(self) -> bool:
            ask()
            return False

    paused = run(Plan(1, 500), [0], 10, tmp_path, start_ns=now, progress=tmp_path, until=Until())  # type: ignore[arg-type]
    assert paused < 1
    (steps,) = (path for path in tmp_path.glob("rank-0-*") if path.suffix == "")
    assert steps.stat().st_size == 40
    assert [path.name for path in (tmp_path / "windows").iterdir()] == ["rank-0-4-5.json"]


def test_what_other_processes_had_of_the_processor_is_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where they had it between the two readings."""
    now, delayed, interruptions = 10**9, 0, [10**9, 2 * 10**9]

    def run_delay() -> int:
        nonlocal now, delayed
        if interruptions:
            delayed += interruptions[0]
            now += interruptions.pop(0)
        return delayed

    monkeypatch.setattr(simulated_job.time, "monotonic_ns", lambda: now)
    monkeypatch.setattr(simulated_job, "_run_delay_ns", run_delay)
    before = simulated_job._ran_ns()
    now += 7
    interruptions.append(10**9)
    assert simulated_job._ran_ns() - before == 7
