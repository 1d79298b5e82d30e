"""sample_traces/record.py makes traces that are what their truth.json says, from a real training job."""

from __future__ import annotations

import gzip
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.patience import PATIENCE_S
from support.places import SAMPLES

# Looked for and not imported: that takes two seconds, and the recorder does it by itself.
pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="recording needs torch: pip install 'kair[record]'")

RECORDER = SAMPLES / "record.py"
STEPS = 3

Event = dict[str, Any]


@dataclass(frozen=True)
class Case:
    arguments: tuple[str, ...]
    guilty: tuple[int, ...]
    ranks: int = 2


# Faults as long as a whole step or several, so that hardly any noise comes near them. Rank 0 is an innocent peer.
# Each layout and each kind of fault once.
CASES = {
    "stall": Case(("--fault", "intermittent_stall", "--rank", "1", "--severity", "4"), (1,)),
    "slow host": Case(("--fault", "slow_host", "--host", "1", "--hosts", "2", "--severity", "4"), (2, 3), 4),
    "pipeline": Case(("--fault", "slow_operator", "--rank", "1", "--stages", "2", "--severity", "1"), (1,), 4),
}


# Loading torch takes three seconds of CPU, which the recordings share: each is made by a fork of one that has it.
IN_TURN = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import record, recording
for line in json.loads(sys.argv[2]):
    if not (child := os.fork()):
        sys.argv[1:] = line
        os._exit(record.main())
    if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        sys.exit(status)
"""


@dataclass(frozen=True)
class Recording:
    case: Case
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
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recording of each case."""
    folder = tmp_path_factory.mktemp("recordings")
    size = ["--layers", "2", "--steps", str(STEPS)]
    lines = [
        [*case.arguments, *size, "--world-size", str(case.ranks), "--out", str(folder / name)]
        for name, case in CASES.items()
    ]
    command = [sys.executable, "-c", IN_TURN, str(SAMPLES), json.dumps(lines)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module", params=[pytest.param(name, marks=pytest.mark.live) for name in CASES])
def recording(request: pytest.FixtureRequest, recorded: Path) -> Recording:
    folder, case = recorded / request.param, CASES[request.param]
    files = [json.loads(gzip.decompress(path.read_bytes())) for path in folder.glob("*.pt.trace.json.gz")]
    truth = json.loads((folder / "truth.json").read_text())
    return Recording(case, folder, truth, {file["distributedInfo"]["rank"]: file for file in files})


def test_there_is_one_file_for_each_rank_and_the_truth(recording: Recording) -> None:
    assert sorted(recording.traces) == list(range(recording.case.ranks))
    assert len(list(recording.folder.iterdir())) == recording.case.ranks + 1
    for trace in recording.traces.values():
        assert trace["distributedInfo"]["world_size"] == recording.truth["world_size"] == recording.case.ranks


def test_the_ranks_of_a_host_carry_its_name(recording: Recording) -> None:
    of_host: dict[str, list[int]] = {}
    for rank, trace in sorted(recording.traces.items()):
        of_host.setdefault(trace["host_name"], []).append(rank)
        assert trace["traceName"].startswith(f"{trace['host_name']}_")
    assert of_host == recording.truth["hosts"]


def test_the_process_groups_are_those_of_the_layout(recording: Recording) -> None:
    layout = recording.truth["layout"]
    assert layout["dp"] * layout["pp"] == recording.case.ranks
    listed = {group["pg_desc"]: group["ranks"] for group in recording.traces[0]["distributedInfo"]["pg_config"]}
    if layout["pp"] > 1:
        assert (listed["mesh_pp"], listed["mesh_dp"]) == ([0, 2], [0, 1])
    elif len(recording.truth["hosts"]) > 1:
        assert (listed["mesh_on_host"], listed["mesh_across_hosts"]) == ([0, 1], [0, 2])
    else:
        assert list(listed) == ["default_pg"]


def test_every_step_that_the_truth_names_is_in_every_trace(recording: Recording) -> None:
    assert len(recording.truth["steps"]) == STEPS
    for trace in recording.traces.values():
        names = {event["name"] for event in trace["traceEvents"] if "ProfilerStep" in event["name"]}
        assert names == {f"ProfilerStep#{step}" for step in recording.truth["steps"]}


def test_the_guilty_rank_runs_the_operators_and_all_reduces_of_its_peer(recording: Recording) -> None:
    steps = recording.truth["steps"]
    ranks = (recording.case.guilty[0], 0)
    guilty, innocent = ([[e["name"] for e in step] for step in recording.in_steps(rank, steps)] for rank in ranks)
    assert guilty == innocent
    assert all(step.count("c10d::allreduce_") >= 2 for step in guilty)


def test_the_trace_does_not_tell_whose_machine_it_is(recording: Recording) -> None:
    for trace in recording.traces.values():
        text = json.dumps(trace)
        assert f'"{socket.gethostname()}"' not in text
        assert not Path(trace["traceName"]).is_absolute()


def test_the_fault_is_where_the_truth_says(recording: Recording) -> None:
    truth = recording.truth
    assert tuple(truth["ranks"]) == recording.case.guilty
    assert set(truth["affected_steps"]) <= set(truth["steps"])
    (innocent,) = least(recording, [0])
    assert min(least(recording, truth["ranks"])) > 3 * innocent


def least(recording: Recording, ranks: list[int]) -> list[float]:
    """For each of `ranks` the least of the fault's measure over the affected steps: a busy machine only lengthens."""
    truth, operator = recording.truth, recording.truth["operator"]
    slow = longest(operator) if operator else shortest("kair_sample::attention")
    measure = longest_gap if truth["cause"] == "host" else slow
    return [min(map(measure, recording.in_steps(rank, truth["affected_steps"]))) for rank in ranks]


def longest(operator: str) -> Callable[[list[Event]], float]:
    """A measure of a step: the longest call of `operator`, of which a fault may slow one alone, in microseconds."""
    return lambda events: max(event["dur"] for event in events if event["name"] == operator)


def shortest(operator: str) -> Callable[[list[Event]], float]:
    """A measure of a step: the shortest call of `operator`, in microseconds; a slow device slows every one."""
    return lambda events: min(event["dur"] for event in events if event["name"] == operator)


def longest_gap(events: list[Event]) -> float:
    """The longest time in the forward pass without an operator, in microseconds."""
    forward = next(event for event in events if event["name"] == "DistributedDataParallel.forward")
    busy_until, gap = forward["ts"], 0.0
    for event in events:
        if forward["ts"] < event["ts"] < forward["ts"] + forward["dur"]:
            gap = max(gap, event["ts"] - busy_until)
            busy_until = max(busy_until, event["ts"] + event["dur"])
    return gap


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ("--fault slow_input --rank 2", "--rank"),
        ("--fault slow_input --rank -1", "--rank"),
        ("--fault slow_input", "--rank"),
        ("--fault slow_host --hosts 2 --world-size 4 --rank 1", "--rank"),
        ("--fault slow_host --hosts 2 --world-size 4 --host 2", "--host"),
        ("--fault slow_host --host 0", "--hosts"),
        ("--fault none --stages 3", "--stages"),
        ("--fault none --hosts 2", "--hosts"),
    ],
)
def test_what_cannot_be_recorded_is_wrong_usage(tmp_path: Path, arguments: str, wrong: str) -> None:
    done = record("--world-size", "2", *arguments.split(), "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert done.stderr.startswith(f"record.py: error: {wrong}")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
