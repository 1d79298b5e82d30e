"""A job that stands still or loses a rank: who is named, where, and who is never disturbed for it."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.captured import rings_of, rows_for
from support.cli_samples import kair
from support.live_status import STATUS, write_status

from kair_capture.agent.dumps import Asked, Dumper, phase_of, where_of
from kair_capture.agent.endings import ending, frames_in
from kair_capture.agent.ring_reader import Trainer
from kair_capture.coordinator.alert_text import in_words
from kair_capture.coordinator.endpoint import Hosts
from kair_capture.coordinator.hangs import Hangs, verdict_of
from kair_capture.coordinator.sampling import Budget, Sampler
from kair_capture.coordinator.status import Remembered, status_of
from kair_capture.coordinator.step_table import Roles, StepTable
from kair_capture.coordinator.watching import Watching
from kair_capture.places import JobPlaces
from kair_capture.wire import BadMessageError, Beat, Host, Standing
from kair_engine.results.evidence_kinds import StandsAt
from kair_engine.results.watch import Alert, Hang, JobState, StandingRank
from kair_engine.triage.hangs.ending import ending_of
from kair_tui.render.verdict import summary

TRAINS = """
import ctypes, os, sys
for name in ("torch", "jax", "tensorflow"):  # one that is there would be loaded: seconds for each process
    sys.modules[name] = None
import kair_capture as kair
kair.start(job="alone")
def wait_for_data():
    print("trained", flush=True)
    return sys.stdin.read()
for _ in range(3):
    kair.step()
with kair.scope("augment"):
    pass
exec(wait_for_data())
"""


@contextmanager
def training(folder: Path, *, before: str = "") -> Iterator[subprocess.Popen[str]]:
    """A process of the job in its fourth step, that reads what to do until this ends."""
    environment = {**os.environ, "KAIR_RUN_DIR": str(folder), "RANK": "0"}
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    (script := folder.parent / "train.py").write_text(before + TRAINS)
    with subprocess.Popen([sys.executable, str(script)], env=environment, text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "trained\n"
        yield process
        process.kill()
        process.communicate()


def watched(folder: Path, process: subprocess.Popen[str]) -> tuple[Dumper, Trainer, Asked, dict[str, str]]:
    """An agent's dumper that has seen the process, and what it delivers, by name."""
    delivered: dict[str, str] = {}
    dumper = Dumper(folder, lambda file, name: delivered.update({name: file.read_text()}))
    trainer = Trainer(0, process.pid)
    rings = rings_of(folder, trainer)
    dumper.watch(trainer)
    return dumper, trainer, Asked(trainer, *rings.place()), delivered


def told(dumper: Dumper) -> Standing:
    for thread in threading.enumerate():
        if thread.name == "dumps":
            thread.join()
    return dumper.reports.popleft()


# In the job, and on its host.


def test_a_rank_that_is_asked_says_where_it_stands_and_goes_on(tmp_path: Path) -> None:
    with training(tmp_path / "run") as process:
        dumper, _, asked, delivered = watched(tmp_path / "run", process)
        assert (asked.step, asked.after.partition(",")[0]) == (3, "augment")
        for hang in (1, 2):
            dumper.ask(hang, [asked])
            place = told(dumper)
            assert (place.rank, place.hang, place.lives) == (0, hang, True)
            # It may be asked before it is through with saying that it trained.
            assert re.search(r"/train\.py:[89] wait_for_data$", place.where)
        assert list(delivered) == ["hangs/1/rank-0.stacks", "hangs/2/rank-0.stacks"]
        assert delivered["hangs/2/rank-0.stacks"].count("most recent call first") == 1
        out, error = process.communicate("print('goes on')")
        assert (out, error, process.returncode) == ("goes on\n", "", 0)


def test_the_agent_sees_that_a_rank_is_stopped(tmp_path: Path) -> None:
    with training(tmp_path / "run") as process:
        dumper, _, asked, _ = watched(tmp_path / "run", process)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        dumper.ask(1, [asked])
        assert told(dumper).signal == signal.SIGSTOP


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ("os._exit(7)", (0, 7, "")),
        ("os.kill(os.getpid(), 9)", (signal.SIGKILL, -1, "")),
        ("ctypes.string_at(0)", (signal.SIGSEGV, -1, "")),
        ("raise ValueError('no\\x1b[31m data')", (0, 1, "ValueError: no�[31m data")),
        ("pass", (0, 0, "")),
    ],
)
def test_how_a_rank_ended_is_told_by_the_system_and_by_itself(
    tmp_path: Path, ends: str, expected: tuple[int, int, str]
) -> None:
    with training(tmp_path / "run") as process:
        dumper, trainer, asked, _ = watched(tmp_path / "run", process)
        assert process.stdin is not None
        process.stdin.write(ends)
        process.stdin.close()
        process.stdin = None
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        dumper.ended(trainer, asked.step, asked.after)
        found = dumper.reports.popleft()
        assert (found.signal, found.exit_status, found.error) == expected
        assert (found.lives, found.step, found.known_by) == (False, 3, "kernel")
        assert (found.where != "") == ("string_at" in ends or "raise" in ends)
        assert [
            path.name for path in (tmp_path / "run").glob(f"rank-0-{process.pid}.*") if path.suffix != ".names"
        ] == []


def test_a_rank_that_lets_go_for_long_is_told_to_end_by_its_exception_before_it_is_gone(tmp_path: Path) -> None:
    # What is registered first runs last.
    with training(tmp_path / "run", before="import atexit, signal; atexit.register(signal.pause)\n") as process:
        dumper, trainer, asked, _ = watched(tmp_path / "run", process)
        assert process.stdin is not None and process.stderr is not None
        assert not dumper.is_ending(trainer)
        process.stdin.write("raise KeyError(3)  # lets_go")
        process.stdin.close()
        process.stdin = None
        while "KeyError" not in process.stderr.readline():
            pass
        end = tmp_path / "run" / f"rank-0-{process.pid}.end"
        while not end.exists():
            assert process.poll() is None
        assert dumper.is_ending(trainer)
        dumper.ends(trainer, asked.step, asked.after)
        assert not dumper.is_ending(trainer)  # told once
        found = dumper.reports.popleft()
        assert (found.exit_status, found.error, found.known_by) == (1, "KeyError: 3", "itself")


def test_where_the_system_does_not_tell_an_end_the_process_does_or_nobody(tmp_path: Path) -> None:
    fault, end, gone = tmp_path / "fault", tmp_path / "end", 2**22 + 1
    assert ending(None, gone, 1, fault, end, kills=(0, 1))[:3] == (0, -1, "")
    end.write_text('{"how": "end"}')
    assert ending(None, gone, 1, fault, end, kills=(0, 0))[:3] == (0, 0, "itself")
    end.write_text('{"how": "exception", "error": "KeyError: 3", "frames": [["train.py", "x", 1]], "at_ns": 1e400}')
    assert ending(None, gone, 1, fault, end, kills=(0, 0))[1:4] == (1, "itself", "KeyError: 3")
    fault.write_text("Fatal Python error: Bus error\n\nThread 0x7f (most recent call first):\n  File")
    assert ending(None, gone, 1, fault, end, kills=(0, 0))[:3] == (signal.SIGBUS, -1, "fault")
    end.unlink()
    end.symlink_to("/dev/zero")
    assert ending(None, gone, 1, fault, end, kills=(0, 0)).error == ""


def test_a_process_that_catches_no_signal_is_sent_none(tmp_path: Path) -> None:
    """Whoever says so in the rank's file: the signal would end it."""
    run = tmp_path / "run"
    with training(run) as process, subprocess.Popen(["sleep", "100"]) as other:
        stated = json.loads((run / "rank-0.json").read_text())
        (run / "rank-0.json").write_text(json.dumps({**stated, "pid": other.pid}))
        dumper = Dumper(run, lambda _, __: None)
        dumper.watch(Trainer(0, other.pid))
        dumper.ask(1, [Asked(Trainer(0, other.pid), 3, "")])
        assert told(dumper).where == ""
        assert other.poll() is None
        assert process.poll() is None
        other.kill()


def test_a_job_that_has_faults_told_elsewhere_keeps_that(tmp_path: Path) -> None:
    with training(tmp_path / "run", before="import faulthandler; faulthandler.enable()\n") as process:
        assert "Segmentation fault" in process.communicate("ctypes.string_at(0)")[1]


STACKS = """Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 3 in wait

Current thread 0x00007f02 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2810 in all_reduce
  File "/home/me/train.py", line 33 in loss_of
  File "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1775 in _call_impl
  File "/home/me/train.py", line ??? in <module>
"""


def test_stacks_tell_the_place_in_the_script_and_what_it_is_in() -> None:
    frames = frames_in(STACKS)
    assert (phase_of(frames), where_of(frames)) == ("collective", "me/train.py:33 loss_of")
    assert (phase_of(frames[1:]), phase_of(frames[3:])) == ("forward", "")
    assert frames_in("nothing of the kind") == []
    assert frames_in(STACKS.replace("Current t", "T"))[0][1] == 2810


def test_where_a_rank_stands_crosses_the_wire_cut_and_printable() -> None:
    one = Standing(3, 1, 5, 41, where="x" * 300, error="a\x1b[2Jb")
    read = Standing.read(one.packed())
    assert read == Standing(3, 1, 5, 41, where="x" * 255, error="a�[2Jb")
    for cut in range(len(one.packed())):
        with pytest.raises(BadMessageError):
            Standing.read(one.packed()[:cut])


# The coordinator.


def dump(number: int, *, members: int = 3, operation: str = "all_reduce", is_open: bool = True) -> str:
    """Of PyTorch's Flight Recorder: a rank that has made so many calls."""
    calls = [
        {
            "collective_seq_id": at,
            "is_p2p": False,
            "process_group": ["0", "default_pg"],
            "profiling_name": f"gloo:{operation if at == number else 'all_reduce'}",
            "state": "scheduled",
            "retired": at < number or not is_open,
            "time_created_ns": 10**18 + at,
        }
        for at in range(1, number + 1)
    ]
    ranks = str([*range(members)])
    status = {"last_completed_collective": str(number - is_open), "last_enqueued_collective": str(number)}
    return json.dumps({"entries": calls, "pg_config": {"": {"desc": "", "ranks": ranks}}, "pg_status": {"0": status}})


class Watched:
    """A job of three ranks on one host that has told 40 steps, and its coordinator's part for hangs."""

    def __init__(self, folder: Path) -> None:
        self.places, self.table, self.hosts = JobPlaces(folder, "job"), StepTable(), Hosts()
        self.places.folder.mkdir(parents=True)
        self.hosts.introduce(Host("node-1", 3, (0, 1, 2)), 7, 0.0)
        self.hosts.hear(7, Beat(ranks=3), 0.0)
        for rank in range(3):
            self.table.add(rows_for(rank, range(40)))
        self.hangs = Hangs(self.places, self.table, self.hosts, None)

    def lives(self, rank: int, *, calls: str | None = None, **known: Any) -> None:  # noqa: ANN401
        """The rank answers."""
        number = self.hangs.number
        if calls is not None:
            self.places.hang(number).mkdir(parents=True, exist_ok=True)
            (self.places.hang(number) / f"rank-{rank}.json").write_text(calls)
        self.hangs.hear(Standing(rank, number, 10**18, 40, **known))

    def dies(self, rank: int, at_ms: int = 0, **how: Any) -> None:  # noqa: ANN401
        """Its end is told."""
        self.hangs.hear(Standing(rank, 0, 10**18 + at_ms * 10**6, 40, lives=False, **how))

    def named(self, *, is_stalled: bool = False, after_s: float = 3.0) -> Hang:
        """What is told once it is known."""
        assert self.hangs.turn(100.0, is_stalled=is_stalled) is None
        assert self.hangs.turn(100.0 + after_s, is_stalled=is_stalled) is None
        assert self.hangs._answer is not None
        self.hangs._answer.result()
        found = self.hangs.turn(100.0 + after_s, is_stalled=is_stalled)
        assert found is not None
        return found


def test_a_stalled_job_names_who_has_not_called_what_others_wait_in(tmp_path: Path) -> None:
    job = Watched(tmp_path)
    assert job.hangs.turn(99.0, is_stalled=True) is None
    job.lives(0, calls=dump(5), phase="backward")
    job.lives(1, calls=dump(4, is_open=False), phase="forward", where="train.py:33 loss_of")
    job.lives(2, calls=dump(5), phase="backward")
    hang = job.named(is_stalled=True)
    assert (hang.kind, hang.number, hang.missing) == ("stalled", 1, (1,))
    stuck = "stuck in step 40, in forward, at train.py:33 loss_of; 2 ranks wait in all_reduce number 5"
    assert hang.told == f"rank 1 on node-1 is {stuck}"
    assert summary(verdict_of(job.places, hang)) == f"straggler: rank 1 (hang, {stuck})", "triage says the same"
    assert job.hangs.is_open
    assert job.hangs.turn(200.0, is_stalled=True) is None  # told once
    for rank in range(3):
        job.table.add(rows_for(rank, range(40, 45)))
    over = job.hangs.turn(201.0, is_stalled=False)
    assert over is not None and over.over and not job.hangs.is_open


def test_without_recorded_calls_who_is_in_no_collective_is_named(tmp_path: Path) -> None:
    job = Watched(tmp_path)
    job.hangs.turn(99.0, is_stalled=True)
    for rank in (0, 2):
        job.lives(rank, phase="collective", where="train.py:9 main", calls="[")
    job.lives(1, where="train.py:5 read")
    assert job.named(is_stalled=True).missing == (1,)


def test_a_rank_that_does_not_answer_is_waited_for_and_named(tmp_path: Path) -> None:
    """One whose interpreter is held in C for ever, or that is stopped."""
    job = Watched(tmp_path)
    job.hangs.turn(99.0, is_stalled=True)
    for rank in (0, 2):
        job.lives(rank, calls=dump(5), phase="backward")
    assert job.hangs.turn(103.0, is_stalled=True) is None
    hang = job.named(is_stalled=True, after_s=10.0)
    assert (hang.missing, hang.ranks[1].state) == ((1,), "untold")


def test_a_stopped_rank_is_said_to_be_stopped(tmp_path: Path) -> None:
    job = Watched(tmp_path)
    job.hangs.turn(99.0, is_stalled=True)
    for rank in (0, 2):
        job.lives(rank, calls=dump(5), phase="backward")
    job.lives(1, signal=signal.SIGSTOP, after="augment, 9 s ago")
    hang = job.named(is_stalled=True)
    assert hang.missing == (1,)
    assert hang.told == (
        "rank 1 on node-1 is stuck in step 40, after augment, stopped by SIGSTOP; 2 ranks wait in all_reduce number 5"
    )
    [finding] = verdict_of(job.places, hang).findings
    assert StandsAt(40.0, ranks=(1,), about="after augment, stopped by SIGSTOP") in finding.evidence


def test_a_silent_hosts_ranks_are_named_and_not_those_that_lost_their_peer(tmp_path: Path) -> None:
    job = Watched(tmp_path)
    job.hosts.introduce(Host("node-2", 4, (3,)), 8, 0.0)
    job.hosts.hear(8, Beat(ranks=1), 0.0)
    job.hosts.hear(7, Beat(ranks=3), 99.0)
    job.hosts.listen(100.0, 1.0)
    for rank in range(3):
        job.dies(rank, rank, exit_status=1, error="RuntimeError: Connection closed by peer")
    hang = job.named()
    assert hang.missing == (3,)
    assert hang.told == "rank 3 on node-2 is on a host that does not report"


def test_who_died_first_is_named_and_not_whom_that_took_along(tmp_path: Path) -> None:
    job = Watched(tmp_path)
    job.dies(0, 1, exit_status=1, error="RuntimeError: [..] Connection closed by peer [127.0.0.1]:7862")
    job.dies(2, 5, signal=signal.SIGTERM)
    job.dies(1, 90, signal=signal.SIGSEGV, known_by="kernel", phase="forward", where="train.py:3 f")
    hang = job.named()
    assert (hang.kind, hang.missing) == ("rank_died", (1,))
    assert hang.told == "rank 1 on node-1 died of SIGSEGV in step 40, in forward, at train.py:3 f"
    assert json.loads((job.places.hang(1) / "ranks.json").read_text())[1]["signal"] == signal.SIGSEGV
    # The same heard again, by a coordinator that starts again, is no news.
    again = Hangs(job.places, job.table, job.hosts, replace(hang, over=True))
    again.hear(Standing(1, 0, 10**18 + 90 * 10**6, 40, lives=False, signal=signal.SIGSEGV))
    assert again.turn(1.0, is_stalled=False) is None and not again.is_open


DIED = StandingRank(1, "node-1", "died", 40, at_ns=10**18)


@pytest.mark.parametrize(
    ("others", "named"),
    [
        ([], 1),
        ([replace(DIED, rank=0, at_ns=10**18 - 10**8, error="E: Broken pipe", exit_status=1)], 1),
        ([replace(DIED, rank=0, at_ns=10**18 + 30 * 10**9, signal=signal.SIGKILL, known_by="kernel")], 1),
        ([replace(DIED, rank=0, at_ns=10**18 - 10**8, signal=signal.SIGABRT, known_by="fault")], 1),
        ([replace(DIED, rank=0, at_ns=10**18 - 10**9, exit_status=3, known_by="kernel")], 0),
    ],
)
def test_of_several_ends_the_one_that_others_follow_from(others: list[StandingRank], named: int) -> None:
    one = replace(DIED, error="ValueError: bad", exit_status=1, known_by="kernel")
    assert [found.rank for found in ending_of([*others, one]).ranks] == [named]


def test_a_job_that_somebody_ends_is_told_without_an_alert(tmp_path: Path) -> None:
    job = Watched(tmp_path)
    for rank in range(3):
        job.dies(rank, rank, signal=signal.SIGTERM)
    assert job.hangs.is_undecided
    hang = job.named()
    assert (hang.kind, hang.missing) == ("ended", ())
    assert hang.told == "the job was ended from outside (SIGTERM on all ranks)"
    assert job.hangs.is_open and not job.hangs.is_undecided
    watching = Watching(job.table, job.hosts, Sampler(Budget(0.01)), Roles(()))
    watching.tell_hang(hang)
    assert not watching.alerts


def test_a_rank_that_leaves_is_named_though_all_others_died_of_it(tmp_path: Path) -> None:
    job = Watched(tmp_path)
    job.dies(1, 90, exit_status=0)  # it is seen to be gone later than the others' exceptions
    for rank in (0, 2):
        job.dies(rank, rank, exit_status=1, error="RuntimeError: Read error: Connection reset by peer")
    hang = job.named()
    assert (hang.kind, hang.missing) == ("rank_died", (1,))
    assert hang.told == "rank 1 on node-1 ended in order in step 40, before the others"


def test_a_silence_is_said_after_a_third_of_the_time_that_makes_a_hang(tmp_path: Path) -> None:
    job = Watched(tmp_path)
    job.hosts.hear(7, Beat(ranks=3), 0.0)
    watching = Watching(job.table, job.hosts, Sampler(Budget(0.01)), Roles(()), stalled_after_s=30.0)
    watching.turn(100.0)
    assert (watching.silent_s(109.0), watching.silent_s(112.0)) == (0.0, 12.0)
    watching.wait(112.0)  # steps cannot be stored: whether any ends is not known
    assert watching.silent_s(115.0) == 0.0
    watching.stalled_after_s = 3.0
    assert watching.silent_s(115.0) == 3.0


def test_nobody_reports_the_job_over_before_it_is_known_who_died(tmp_path: Path) -> None:
    """Followers of `kair watch` leave once it is over."""
    job = Watched(tmp_path)
    watching, memory = Watching(job.table, job.hosts, sampler := Sampler(Budget(0.01)), Roles(())), Remembered()
    job.hosts.hear(7, Beat(ranks=3), 99.0)
    job.hosts.hear(7, Beat(ranks=0), 100.0)

    def state() -> str:
        known = {"hang": job.hangs.last, "is_undecided": job.hangs.is_undecided}
        return status_of(
            "job", job.table, job.hosts, watching, sampler=sampler, memory=memory, refused={}, now=100.0, **known
        ).state

    assert state() == "over"
    job.dies(1, signal=signal.SIGSEGV, known_by="kernel")
    assert state() == "stalled"  # the coordinator has not turned yet
    assert job.hangs.turn(100.0, is_stalled=False) is None
    assert state() == "stalled"
    for rank in (0, 2):
        job.dies(rank, 5, exit_status=1, error="RuntimeError: Connection reset by peer")
    hang = job.hangs.turn(103.0, is_stalled=False)
    while hang is None:
        time.sleep(0.01)
        hang = job.hangs.turn(103.0, is_stalled=False)
    assert (hang.missing, state()) == ((1,), "failed")


def test_all_that_end_in_order_are_no_hang_however_long_the_last_evaluation_took(tmp_path: Path) -> None:
    job = Watched(tmp_path)
    job.hangs.turn(99.0, is_stalled=True)
    for rank in range(3):
        job.lives(rank, where="train.py:80 evaluate")
    assert job.named(is_stalled=True).missing == ()
    for rank in range(3):
        job.dies(rank, rank, exit_status=0)
    over = job.hangs.turn(300.0, is_stalled=True)
    assert over is not None and over.over


# What a person sees.

HANG = Hang(
    1,
    "2026-01-01T10:00:00.000+00:00",
    "rank_died",
    150,
    (2,),
    "rank 2 on node-1 died of SIGSEGV in step 151, in forward, at train.py:3 f",
    (
        *(StandingRank(rank, "node-1", "lives", 151, "collective", "train.py:9 main") for rank in (0, 1, 3)),
        StandingRank(2, "node-1", "died", 151, "forward", "train.py:3 f", signal=11, known_by="kernel"),
    ),
)


@pytest.mark.parametrize(
    ("state", "said"), [("stalled", "it hangs: no step"), ("failed", "it hung until its last report")]
)
def test_of_a_job_that_stood_still_info_and_watch_do_not_say_that_it_ended(
    tmp_path: Path, state: JobState, said: str
) -> None:
    stuck = replace(HANG, kind="stalled", told="rank 2 on node-1 is stuck in step 151")
    write_status(tmp_path, replace(STATUS, state=state, hang=stuck))
    info, watch = (
        kair(*words, "--store", str(tmp_path)).out for words in (("info", "job123"), ("watch", "job123", "--once"))
    )
    assert said in watch and said in info
    assert re.search(rf"stands +{stuck.told}", info)


def test_watch_and_triage_say_who_died_where_and_by_what(tmp_path: Path) -> None:
    alert = Alert(HANG.at, "rank_died", 150, (2,), ("node-1",), None, None, told=HANG.told)
    write_status(tmp_path, replace(STATUS, state="failed", hang=HANG, alerts=(alert,)))
    watch = kair("watch", "job123", "--once", "--store", str(tmp_path))
    first = watch.out.splitlines()[0]
    assert first.startswith(f"job123: {HANG.told}; it ended abnormally, step 150")
    assert f"step 150: a rank died: {HANG.told}" in watch.out
    assert kair("watch", "job123", "--once", "--fail-on", "rank_died", "--store", str(tmp_path)).status == 10
    triage = kair("triage", "job123", "--store", str(tmp_path), "--fail-on", "straggler")
    assert triage.status == 10
    assert "straggler: rank 2 (hang, rank 2 died in step 151 of SIGSEGV)" in triage.out
    told = " ".join(triage.out.split())
    oneline = kair("triage", "job123", "-o", "oneline", "--store", str(tmp_path)).out
    ticket = kair("ticket", "job123", "--store", str(tmp_path)).out
    assert all("rank 2 died in step 151 of SIGSEGV" in one for one in (oneline, ticket))
    assert "rank 2 was in step 151, in forward, at train.py:3 f" in told
    assert "ranks 0-1, 3 are in step 151, in collective, at train.py:9 main" in told


def test_an_alert_that_is_over_says_so() -> None:
    alert = Alert(HANG.at, "rank_died", 160, (2,), ("node-1",), None, None, over=True, told=HANG.told)
    assert in_words(alert) == "step 160: rank 2 trains again"


@pytest.mark.parametrize("has_steps", [True, False])
def test_before_the_first_step_triage_says_so_and_where_ranks_are(tmp_path: Path, has_steps: bool) -> None:
    ranks = tuple(replace(one, step=-1) for one in STATUS.ranks)
    write_status(tmp_path, replace(STATUS, state="waiting", step=-1, ranks=ranks, alerts=(), hang=None))
    if has_steps:
        JobPlaces(tmp_path, "job123").steps.mkdir(parents=True)
    else:
        hang = replace(
            HANG, kind="ended", missing=(), told="", ranks=tuple(replace(HANG.ranks[3], signal=15) for _ in "ab")
        )
        write_status(tmp_path, replace(STATUS, state="waiting", step=-1, ranks=ranks, alerts=(), hang=hang))
    triage = kair("triage", "job123", "--store", str(tmp_path))
    assert triage.status == 0
    assert "no step has ended yet: rank" in triage.out
    assert "in step 0" in triage.out
    write_status(tmp_path, replace(STATUS, state="waiting", step=-1, ranks=ranks[:3], alerts=(), hang=None))
    assert "; 1 of 4 ranks did not begin one" in kair("triage", "job123", "--store", str(tmp_path)).out
    assert has_steps or "the job was ended from outside (SIGTERM on all ranks)" in triage.out


@pytest.mark.live
@pytest.mark.parametrize("situation", ["forward", "kill", "leave", "skip", "cancel", "interrupt"])
def test_in_real_jobs_the_right_rank_is_named_within_15_seconds(tmp_path: Path, situation: str) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "validation"))
    import hangs

    found = hangs.run(situation, tmp_path, 6.0)
    assert found.is_right, found
