"""What is set while a job runs: by whom it may be, and what it does in the coordinator, the agent and the ranks."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.captured import rows_for
from support.cli_samples import kair
from support.live_status import STATUS
from support.patience import PATIENCE_S

from kair_capture import attaching
from kair_capture.control import EVERYTHING, RankControl, options_in, options_of
from kair_capture.coordinator.control import DEFAULT, KEYS, Control, SettingError
from kair_capture.coordinator.coordinator import Coordinator, CoordinatorSettings
from kair_capture.coordinator.sampling import Budget, Sampler
from kair_capture.coordinator.summary import summary_of
from kair_capture.cupti import PlainJob
from kair_capture.job.session import Session
from kair_capture.job.windows import ControlWords, Periodic, Window
from kair_capture.places import JobPlaces
from kair_capture.ring import Kind as RecordKind
from kair_capture.settings import settings_of
from kair_capture.wire import Beat, Capture, Datagram, Host, Kind, Values, read_key, sealed, unsealed

FEW = settings(max_examples=60, deadline=None)
SETTINGS = {
    "capture": "off", "level": "0", "max-overhead": "2%", "sample-every": "500", "slow-rank": "5%",
    "longer-steps": "10%", "stalled-after": "60",
}  # fmt: skip


@contextmanager
def coordinating(store: Path) -> Iterator[Coordinator]:
    """A coordinator of the job `job` in this process, which answers."""
    coordinator = Coordinator(CoordinatorSettings(JobPlaces(store, "job"), ("127.0.0.1", 0)))
    thread = threading.Thread(target=coordinator.run)
    thread.start()
    try:
        yield coordinator
    finally:
        coordinator.stop()
        thread.join()


def set_in(store: Path, *values: str) -> tuple[int, str, str]:
    told = kair("capture", "set", "job", *values, "--store", str(store))
    return told.status, told.out, told.err


def test_what_is_set_is_shown_kept_over_a_restart_and_taken_back(tmp_path: Path) -> None:
    with coordinating(tmp_path):
        status, out, _ = set_in(tmp_path)
        assert status == 0
        assert [line.split()[0] for line in out.splitlines()] == list(KEYS)
        status, out, err = set_in(tmp_path, *(f"{key}={value}" for key, value in SETTINGS.items()))
        assert status == 0, err
        assert [line.split()[:2] for line in out.splitlines()] == [list(pair) for pair in SETTINGS.items()]
    with coordinating(tmp_path) as coordinator:
        assert dict(coordinator._memory.control) == SETTINGS
        assert coordinator._sampler.budget.share == 0.02
        assert coordinator._watching.stalled_after_s == 60
        assert (coordinator._watching.least.rank, coordinator._watching.least.steps) == (0.05, 0.1)
        assert not coordinator._watching.samples
        assert coordinator.on_beat(1, Beat()).control == RankControl(False, 0, 0.02).packed()
        assert "capture is off" in coordinator.on_capture(Capture(4)).why_not
        taken_back = ("max_overhead", "level", "stalled-after")
        status, out, _ = set_in(tmp_path, "capture=on", *(f"{key}=default" for key in taken_back))
        assert out.splitlines()[2].split()[:2] == ["max-overhead", "1%"]
        coordinator._write_status(time.monotonic())
        assert coordinator.status is not None
        assert coordinator.status.control == {
            "capture": "on", "sample-every": "500", "slow-rank": "5%", "longer-steps": "10%",
        }  # fmt: skip
        assert coordinator.status.sampling.max_overhead == 0.01


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("color=red", "there is no setting 'color': capture, level, max-overhead"),
        ("capture=maybe", "capture must be on or off, or default; got 'maybe'"),
        ("max-overhead=2x", "max-overhead must be a share such as 1%"),
        ("max-overhead=nan", "max-overhead must be a share such as 1%"),
        ("sample-every=-5", "sample-every must be a number of steps"),
        ("slow-rank=0", "slow-rank must be a share such as 8%"),
        ("stalled-after=inf", "stalled-after must be seconds, 1 or more"),
        ("level=2", "level must be 0 or 1"),
        ("capture", "settings are key=value, got 'capture'"),
    ],
)
def test_what_cannot_be_set_is_refused_in_one_line(tmp_path: Path, word: str, said: str) -> None:
    told = kair("capture", "set", "job", "level=1", word, "--store", str(tmp_path))
    assert told.status == 2
    assert said in told.err.splitlines()[0]


def test_a_job_without_a_coordinator_and_no_job_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "has no coordinator" in set_in(tmp_path, "capture=off")[2]
    assert set_in(tmp_path, "capture=off")[0] == 3
    monkeypatch.delenv("KAIR_JOB", raising=False)
    told = kair("capture", "set", "capture=off", "--store", str(tmp_path))
    assert told.status == 2
    assert "which job?" in told.err


def test_the_coordinator_changes_nothing_where_one_of_several_settings_cannot_be(tmp_path: Path) -> None:
    with coordinating(tmp_path) as coordinator:
        answer = coordinator.on_control(Values({"capture": "off", "max-overhead": "much"}))
        assert answer.why_not.startswith("max-overhead must be")
        assert coordinator._memory.control == {}


def test_settings_that_are_recorded_and_sent_again_or_signed_otherwise_change_nothing(tmp_path: Path) -> None:
    with coordinating(tmp_path) as coordinator, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(PATIENCE_S)
        sock.connect(("127.0.0.1", coordinator.endpoint.port))
        key, sender = read_key(JobPlaces(tmp_path, "job").key, "job"), secrets.randbits(64)

        def asked(sequence: int, epoch: int, value: str, by: bytes = key) -> bytes:
            return sealed(by, Datagram(Kind.CONTROL, epoch, sender, sequence, Values({"capture": value}).packed()))

        sock.send(asked(1, 0, "off"))
        reply = unsealed(key, sock.recv(2000))
        assert reply.kind == Kind.EPOCH_REPLY
        assert coordinator._memory.control == {}
        epoch = reply.epoch
        recorded = asked(2, epoch, "off")
        for data in (recorded, asked(3, epoch, "on")):
            sock.send(data)
            assert unsealed(key, sock.recv(2000)).kind == Kind.CONTROL_REPLY
        sock.send(recorded)
        sock.send(asked(4, epoch, "off", by=b"x" * 32))
        sock.send(asked(5, epoch, "on"))
        assert unsealed(key, sock.recv(2000)).sequence == 5
        assert coordinator._memory.control == {"capture": "on"}
        assert coordinator.endpoint.refused["replay"] == coordinator.endpoint.refused["signature"] == 1


@pytest.mark.slow
@FEW
@given(st.dictionaries(st.text(max_size=20) | st.sampled_from(list(KEYS)), st.text(max_size=20), max_size=9))
def test_what_a_file_remembers_is_taken_as_far_as_it_can_be(values: dict[str, str]) -> None:
    control = Control.remembered(values)
    assert set(control.values) <= set(KEYS)
    control.of_ranks.packed()
    assert 0 <= control.value("max-overhead", 0.01) <= 1
    with pytest.raises(SettingError):
        control.changed({"": ""})
    assert control.changed(dict.fromkeys(KEYS, DEFAULT)).values == {}


@FEW
@given(
    st.builds(
        RankControl,
        st.none() | st.booleans(),
        st.none() | st.integers(0, 2**32 - 1),
        st.none() | st.integers(0, 10**6).map(lambda parts: parts / 10**6),
    ),
    st.integers(0, 2**64 - 1),
)
def test_what_ranks_are_told_fits_one_word(control: RankControl, any_word: int) -> None:
    assert RankControl.read(control.packed()) == control
    assert control.packed() < 2**64
    read = RankControl.read(any_word)
    assert read.max_overhead is None or 0 <= read.max_overhead <= 1
    assert options_of(options_in(any_word).names) == options_in(any_word)


def test_a_lower_threshold_finds_the_rank_that_the_usual_one_leaves(tmp_path: Path) -> None:
    def slow(**control: str) -> set[int]:
        coordinator = Coordinator(CoordinatorSettings(JobPlaces(tmp_path / str(len(control)), "job"), ("127.0.0.1", 0)))
        coordinator.on_control(Values({key.replace("_", "-"): value for key, value in control.items()}))
        chance = np.random.default_rng(1)
        for rank in range(8):
            rows = rows_for(rank, range(400), step_us=50_000)
            rows["self_us"] = 40_000 * (1 + np.abs(chance.normal(0, 0.002, 400)))
            rows["self_us"][200:] = rows["self_us"][200:] * (1.065 if rank == 3 else 1.0)
            coordinator._table.add(rows)
        coordinator._watching.turn(time.monotonic(), muted=True)
        for until in range(20, 400, 5):
            coordinator._watching._look(until, muted=False)
        coordinator.stop()
        coordinator.run()
        return coordinator._watching.slow

    assert slow() == set()
    assert slow(slow_rank="5%") == {3}


# In the rank.


def steps_told(folder: Path) -> list[int]:
    from kair_capture.agent.ring_reader import RingReader

    found: list[int] = []
    for ring in folder.glob("rank-*.ring"):
        records = RingReader(ring).peek()
        found += records[records["kind"] == RecordKind.STEP]["step"].tolist()
    return found


def steps(session: Session, count: int) -> None:
    for _ in range(count):
        session.recorder.scope("forward", 1)
        session.steps.step()


def test_a_rank_that_is_off_counts_its_steps_and_records_nothing_until_it_is_on(tmp_path: Path) -> None:
    session = Session(settings_of({"KAIR_RUN_DIR": str(tmp_path), "RANK": "3"}), PlainJob(), begin=5)
    agent = ControlWords(tmp_path / "rank-3.control")
    steps(session, 3)
    agent.tell_control(RankControl(is_on=False).packed())
    steps(session, 5)  # the first of them ends, and then it is off
    agent.tell_control(RankControl(is_on=True).packed())
    steps(session, 3)
    session.close()
    assert steps_told(tmp_path) == [0, 1, 2, 3, 9, 10]


def test_what_ranks_sample_unasked_follows_what_is_set(tmp_path: Path) -> None:
    """By a rank that was started without, and back."""
    environment = {"KAIR_RUN_DIR": str(tmp_path), "RANK": "3"}
    session = Session(settings_of(environment), PlainJob(), begin=5)
    agent = ControlWords(tmp_path / "rank-3.control")
    steps(session, 1)
    agent.tell_control(RankControl(True, 50, 1.0).packed())
    steps(session, 1)
    periodic = session._windows._periodic
    assert isinstance(periodic, Periodic)
    assert [step for step in range(200) if periodic.is_due(step)] == [0, 50, 100, 150]
    agent.tell_control(RankControl(True, 0).packed())
    steps(session, 1)
    assert not any(periodic.is_due(step) for step in range(200))
    session.close()


def test_options_of_a_window_reach_the_rank_and_cost_no_other_window_its_length(tmp_path: Path) -> None:
    agent, rank = (ControlWords(tmp_path / "rank-3.control") for _ in range(2))
    agent.ask(Window(5, 2, int(EVERYTHING)))
    assert rank.asked() == Window(5, 2, int(EVERYTHING))
    agent.ask(Window(9, 2))
    assert rank.asked() == Window(9, 2)
    sampler = Sampler(Budget(0.01))
    assert sampler.order_by_hand((0, 1), 4, 10, 1000.0, options=1).options == 1
    sampler.settle(1e6)
    assert sampler.step_cost_us is None
    sampler.order_by_hand((0, 1), 4, 10, 1000.0)
    sampler.settle(4000)
    assert sampler.step_cost_us == 1000


# Attaching.

_WITHOUT = "import sys\nsys.modules |= dict.fromkeys(('torch', 'jax', 'tensorflow'))\n"
_TRAINS = f"""{_WITHOUT}
from kair_capture.job import api
api.start()
print("ready", flush=True)
for line in sys.stdin:
    api.step()
    print("step", flush=True)
"""


@contextmanager
def training(folder: Path, **variables: str) -> Iterator[tuple[int, Callable[[int], None]]]:
    """A process that ends a step each time that it is told to: its number, and a function that does."""
    environment = {**os.environ, "KAIR_RUN_DIR": str(folder), "KAIR_JOB": "late", "RANK": "0", **variables}
    with subprocess.Popen(
        [sys.executable, "-c", _TRAINS], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        stdin, stdout = process.stdin, process.stdout
        assert stdout.readline() == "ready\n"

        def go_on(count: int) -> None:
            for _ in range(count):
                stdin.write("\n")
                stdin.flush()
                stdout.readline()

        try:
            yield process.pid, go_on
        finally:
            stdin.close()
            process.wait()


def test_a_process_that_waits_for_it_records_from_its_next_step_on_under_its_own_number(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with training(folder, KAIR_CAPTURE_ATTACHABLE="1") as (pid, go_on):
        go_on(4)
        assert steps_told(folder) == []
        told = kair("capture", "attach", str(pid), "--no-agent", "--store", str(tmp_path))
        assert told.status == 0, told.err
        assert "job late is recorded from now on (rank 0 on this host)" in told.err
        go_on(3)
        assert steps_told(folder) == [5, 6]
        told = kair("capture", "attach", str(pid), "--store", str(tmp_path))
        assert "is recorded already, as job late" in told.err
        told = kair("capture", "attach", str(pid), "--job", "other", "--store", str(tmp_path))
        assert told.status == 3
        assert "belongs to job late" in told.err


def test_what_a_process_without_capture_needs_is_said(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        told = kair("capture", "attach", str(process.pid), "--store", str(tmp_path))
        process.send_signal(signal.SIGKILL)
    assert told.status == 3
    assert f"process {process.pid}" in told.err
    assert "kair capture run" in told.err and "KAIR_CAPTURE_ATTACHABLE=1" in told.err and "py-spy" in told.err
    assert "there is no process" in kair("capture", "attach", str(process.pid), "--store", str(tmp_path)).err
    assert kair("capture", "attach", "me", "--store", str(tmp_path)).status == 2


def test_a_rank_among_several_is_not_let_in_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attaching, "_python_of", lambda _: (3, 14))
    with pytest.raises(attaching.AttachError, match="number their steps differently"):
        attaching._let_in(os.getpid(), {"WORLD_SIZE": "8"}, "job", tmp_path)


def test_python_from_3_14_on_runs_what_starts_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own way in is stood in for: the script that it is given runs in a process of its own."""
    monkeypatch.setattr(attaching, "_python_of", lambda _: (3, 14))
    monkeypatch.setattr(attaching.sys, "version_info", (3, 14, 0))
    monkeypatch.setattr(attaching, "default_run_dir", lambda job: tmp_path / job)
    ran: list[subprocess.Popen[str]] = []

    def run(_: int, script: str) -> None:
        code = f"{_WITHOUT}exec(open({script!r}).read())\nprint('ready', flush=True)\ninput()"
        command = [sys.executable, "-c", code]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        ran.append(process)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        place = {"KAIR_RUN_DIR": str(tmp_path / "x")}
        monkeypatch.setattr(attaching, "_rank_of", lambda *_: original(process.pid, place))

    original = attaching._rank_of
    monkeypatch.setattr(attaching, "remote_exec", run)
    found = attaching._let_in(1, {}, "x", tmp_path)
    assert (found.job, found.run_dir, found.was_recording) == ("x", tmp_path / "x", False)
    ran[0].communicate("\n")

    def refuse(_: int, __: str) -> None:
        raise PermissionError("not permitted")

    monkeypatch.setattr(attaching, "remote_exec", refuse)
    with pytest.raises(attaching.AttachError, match="does not let process 1 be entered: not permitted"):
        attaching._let_in(1, {}, "x", tmp_path)


# The end.


def test_a_job_that_is_over_is_summed_up_in_three_lines() -> None:
    slow, gone = STATUS.alerts[0], replace(STATUS.alerts[0], ranks=(1,), step=40)
    lines = summary_of(replace(STATUS, state="over", alerts=(gone, replace(gone, step=90, over=True), slow)))
    assert lines == [
        "job job123 is over: 4 ranks on 1 host came to step 150, 60 ms a step at the end (median of 20)",
        "rank 2 on node-1 was slow from step 124 on, its own time is 20% longer; "
        "rank 1 on node-1 was slow from step 40 to step 90, its own time is 20% longer",
        "8 steps were sampled lately; kair triage job123 and kair watch job123 show more",
    ]
    quiet = replace(STATUS, state="failed", alerts=(), sampling=replace(STATUS.sampling, windows=()))
    assert summary_of(quiet)[0].startswith("job job123 ended abnormally: ")
    assert summary_of(quiet)[1:] == [
        "no rank was slow", "nothing was sampled lately; kair triage job123 and kair steps job123 show more",
    ]  # fmt: skip


def test_the_coordinator_sums_up_once_when_the_job_is_over(tmp_path: Path) -> None:
    said: list[str] = []
    settings = CoordinatorSettings(JobPlaces(tmp_path, "job"), ("127.0.0.1", 0), leave_after_s=0)
    coordinator = Coordinator(settings, said.append)
    coordinator._hosts.introduce(Host("node-1", 1, (0,)), 7, time.monotonic())
    coordinator._table.add(rows_for(0, range(40)))
    coordinator._hosts.hear(7, Beat(), time.monotonic())
    coordinator.run()
    assert [line for line in said if line.startswith("job job is over: 1 rank on 1 host came to step 39")] == said[1:2]
