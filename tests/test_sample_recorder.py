"""sample_traces/record.py makes traces that are what their truth.json says, from a real training job."""

from __future__ import annotations

import gzip
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="recording needs torch: pip install 'kair[record]'")

RECORDER = Path(__file__).parents[1] / "sample_traces" / "record.py"
GUILTY = 1
STEPS = 3

Event = dict[str, Any]


@dataclass(frozen=True)
class Recording:
    folder: Path
    truth: dict[str, Any]
    # By rank: the whole of its file.
    traces: dict[int, dict[str, Any]]

    def in_steps(self, rank: int, steps: list[int]) -> list[list[Event]]:
        """For each of `steps`, the rank's complete events on its training thread, by their start."""
        events = [event for event in self.traces[rank]["traceEvents"] if event["ph"] == "X"]
        found = []
        for number in steps:
            (step,) = (event for event in events if event["name"] == f"ProfilerStep#{number}")
            end = step["ts"] + step["dur"]
            inside = [e for e in events if e["tid"] == step["tid"] and step["ts"] < e["ts"] < end]
            found.append(sorted(inside, key=lambda event: event["ts"]))
        return found


def record(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(RECORDER), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module", params=["slow_operator", "intermittent_stall"])
def recording(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    folder = tmp_path_factory.mktemp("recording") / request.param
    # A fault as long as a whole step, so that no noise of a busy machine comes near it.
    size = ["--world-size", "2", "--steps", str(STEPS), "--severity", "1"]
    done = record("--fault", request.param, "--rank", str(GUILTY), *size, "--out", str(folder))
    assert done.returncode == 0, done.stderr
    files = [json.loads(gzip.decompress(path.read_bytes())) for path in folder.glob("*.pt.trace.json.gz")]
    truth = json.loads((folder / "truth.json").read_text())
    return Recording(folder, truth, {file["distributedInfo"]["rank"]: file for file in files})


def test_there_is_one_file_for_each_rank_and_the_truth(recording: Recording) -> None:
    assert sorted(recording.traces) == [0, 1]
    assert len(list(recording.folder.iterdir())) == 3
    for trace in recording.traces.values():
        assert trace["distributedInfo"]["world_size"] == 2


def test_every_step_that_the_truth_names_is_in_every_trace(recording: Recording) -> None:
    assert len(recording.truth["steps"]) == STEPS
    for trace in recording.traces.values():
        names = {event["name"] for event in trace["traceEvents"] if "ProfilerStep" in event["name"]}
        assert names == {f"ProfilerStep#{step}" for step in recording.truth["steps"]}


def test_every_rank_runs_the_same_operators_and_all_reduces(recording: Recording) -> None:
    steps = recording.truth["steps"]
    guilty, innocent = ([[e["name"] for e in step] for step in recording.in_steps(r, steps)] for r in (1, 0))
    assert guilty == innocent
    assert all(step.count("c10d::allreduce_") >= 2 for step in guilty)


def test_the_trace_does_not_tell_whose_machine_it_is(recording: Recording) -> None:
    for trace in recording.traces.values():
        text = json.dumps(trace)
        assert f'"{socket.gethostname()}"' not in text
        assert not Path(trace["traceName"]).is_absolute()


def test_the_fault_is_where_the_truth_says(recording: Recording) -> None:
    truth = recording.truth
    assert truth["rank"] == GUILTY
    assert set(truth["affected_steps"]) <= set(truth["steps"])
    measure = longest_gap if truth["operator"] is None else longest(truth["operator"])
    lost = [sum(map(measure, recording.in_steps(rank, truth["affected_steps"]))) for rank in (0, 1)]
    assert lost[GUILTY] > 3 * lost[0]


def longest(operator: str) -> Callable[[list[Event]], float]:
    """A measure of a step: the longest call of `operator`, in microseconds."""
    return lambda events: max(event["dur"] for event in events if event["name"] == operator)


def longest_gap(events: list[Event]) -> float:
    """The longest time in the forward pass without an operator, in microseconds."""
    forward = next(event for event in events if event["name"] == "DistributedDataParallel.forward")
    busy_until, gap = forward["ts"], 0.0
    for event in events:
        if forward["ts"] < event["ts"] < forward["ts"] + forward["dur"]:
            gap = max(gap, event["ts"] - busy_until)
            busy_until = max(busy_until, event["ts"] + event["dur"])
    return gap


@pytest.mark.parametrize("arguments", [["--rank", "2"], ["--rank", "-1"], []])
def test_a_rank_that_is_not_in_the_job_is_wrong_usage(tmp_path: Path, arguments: list[str]) -> None:
    done = record("--fault", "slow_input", *arguments, "--world-size", "2", "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert done.stderr.startswith("record.py: error: --rank")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
