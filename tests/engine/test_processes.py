"""Processes that answer: they end with who started them, say nothing, and run nothing that lies about."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import kineto_builder as kb
from support.patience import PATIENCE_S

from kair_engine.recording.opening import open_trace
from kair_engine.recording.processes import answers

ANSWERING = """
import ctypes, os, signal, sys

def told(message):
    print("not an answer", flush=True)
    print("not for a person", file=sys.stderr, flush=True)
    if message == b"die":
        os.kill(os.getpid(), signal.SIGKILL)
    if message == b"fail":
        raise ValueError
    if message == b"pid":
        return str(os.getpid()).encode()
    if message == b"wait":
        ctypes.PyDLL(None).pause()  # no other thread runs any more
    return b"heard " + message
"""


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that says what processes answer."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "answering_for_tests.py").write_text(ANSWERING)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    return "answering_for_tests:told"


@pytest.mark.slow
def test_answers_come_in_order_and_lack_where_a_process_ended(told: str, capfd: pytest.CaptureFixture[str]) -> None:
    messages = [b"a", b"die", b"", b"fail", b"x" * 300_000]
    found = list(answers(messages, 3, told, order=[4, 3, 2, 1, 0]))
    assert found == [b"heard a", None, b"heard ", None, b"heard " + messages[-1]]
    assert capfd.readouterr() == ("", "")


def test_who_cannot_start_processes_gets_no_answers(told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(answers([b"die", b"a"], 1, told)) == [None, None]
    monkeypatch.setattr(sys, "executable", "/no/such/program")
    assert list(answers([b"a"], 1, told)) == [None]


@pytest.mark.slow
def test_nothing_in_the_current_folder_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recordings come from others, and so may a module beside them that is named as one of the library's."""
    job = kb.write_job(tmp_path / "job", [0, 1])
    for name in ("multiprocessing", "selectors", "queue", "threading", "msgspec", "kair_engine"):
        (job / f"{name}.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'w')")
    monkeypatch.chdir(job)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    assert len(open_trace(job, cache=tmp_path / "cache", workers=2).job.ranks) == 2
    assert not (tmp_path / "was_run").exists()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="another's process is waited for by its descriptor")
def test_a_process_at_work_ends_with_who_started_it(told: str) -> None:
    program = (
        "import sys; from kair_engine.recording.processes import answers\n"
        f"for answer in answers([b'pid', b'wait'], 1, {told!r}): print(answer.decode(), flush=True)"
    )
    places = os.pathsep.join(place for place in sys.path if place)
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": places},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as starter:
        assert starter.stdout is not None
        assert starter.stderr is not None
        worker = os.pidfd_open(int(starter.stdout.readline()))
        try:
            starter.send_signal(signal.SIGKILL)
            gone, _, _ = select.select([worker], [], [], PATIENCE_S)
        finally:
            os.close(worker)
        assert gone
        assert starter.stderr.read() == b""
