"""Orders that are forged, replayed, stale or damaged change nothing; restarts are made as often as they are ordered."""

import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.patience import PATIENCE_S

from kair_mitigate import orders, restarts, running
from kair_mitigate.plans import Plan

KEY = bytes(range(32))
PLAN = Plan(3, 40, (10, 4, 10))


def test_a_plan_comes_through_whole() -> None:
    assert orders.unsealed(orders.sealed(PLAN, KEY), KEY) == PLAN


@given(st.binary(max_size=200))
def test_noise_is_no_plan(data: bytes) -> None:
    with pytest.raises(ValueError, match="no plan"):
        orders.unsealed(data, KEY)


@given(at=st.integers(0, 10_000), to=st.integers(0, 255))
def test_a_byte_that_is_changed_makes_it_none(at: int, to: int) -> None:
    data = bytearray(orders.sealed(PLAN, KEY))
    at %= len(data)
    if data[at] == to:
        return
    data[at] = to
    try:
        assert orders.unsealed(bytes(data), KEY) == PLAN  # a space, say, beside the signed text
    except ValueError:
        return


def test_a_strangers_plan_is_none() -> None:
    with pytest.raises(ValueError, match="signature"):
        orders.unsealed(orders.sealed(PLAN, bytes(32)), KEY)


@pytest.mark.parametrize(
    "document", [[], 1, {"plan": 1, "signature": 2}, {"plan": "{}", "signature": "é"}, {"plan": {}}]
)
def test_documents_of_another_kind_are_none(document: object) -> None:
    with pytest.raises(ValueError, match="no plan"):
        orders.unsealed(json.dumps(document).encode(), KEY)


def test_a_key_that_others_can_read_or_that_is_a_link_is_refused(tmp_path: Path) -> None:
    orders.make_key(tmp_path)
    orders.make_key(tmp_path)
    assert len(orders.read_key(tmp_path)) == 32
    (tmp_path / "key").chmod(0o640)
    with pytest.raises(orders.RunKeyError, match="chmod 600"):
        orders.read_key(tmp_path)
    (tmp_path / "key").rename(tmp_path / "other")
    (tmp_path / "key").symlink_to(tmp_path / "other")
    with pytest.raises(orders.RunKeyError):
        orders.read_key(tmp_path)


ATTEMPT = """
import os, pathlib
from kair_mitigate import restarts
folder = pathlib.Path(os.environ["KAIR_MITIGATE_RUN"])
with (folder / "seen").open("a") as file:
    file.write(os.environ["KAIR_MITIGATE_ATTEMPT"] + " ")
"""


def seen_of(tmp_path: Path, code: str, **options: object) -> tuple[int, str]:
    status = running.run([sys.executable, "-c", ATTEMPT + code], tmp_path, os.environ, host="a", **options)  # type: ignore[arg-type]
    return status, (tmp_path / "seen").read_text()


@pytest.mark.slow
def test_an_attempt_that_left_as_ordered_is_followed_by_the_next(tmp_path: Path) -> None:
    code = "if restarts.attempt() < 2: restarts.say_left(30)"
    assert seen_of(tmp_path, code) == (0, "0 1 2 ")
    # Started anew by a scheduler, its number goes on.
    assert seen_of(tmp_path, "") == (0, "0 1 2 3 ")


def test_a_failed_attempt_is_repeated_as_often_as_was_said(tmp_path: Path) -> None:
    assert seen_of(tmp_path, "raise SystemExit(4)", failures=2) == (4, "0 1 2 ")


@pytest.mark.parametrize(
    ("command", "is_static"),
    [
        ("torchrun --master-port 29500 --max-restarts 3 train.py", True),
        ("python -m torch.distributed.run --max_restarts=3 --nnodes 2 --rdzv_backend static train.py", True),
        ("torchrun --standalone --max-restarts 3 train.py", False),
        ("torchrun --nnodes 2 --rdzv-backend=c10d --rdzv-endpoint a:1 --max-restarts 3 train.py", False),
        ("torchrun --master-port 29500 train.py --max-restarts 3", False),
        ("torchrun --max-restarts 0 train.py", False),
        ("python train.py --max-restarts 3", False),
    ],
)
def test_a_static_rendezvous_with_restarts_in_place_is_warned_of(command: str, is_static: bool) -> None:
    assert running.is_static(command.split()) is is_static


def test_the_warning_comes_before_the_command(tmp_path: Path) -> None:
    said: list[str] = []
    (torchrun := tmp_path / "torchrun").symlink_to("/bin/true")
    assert running.run([str(torchrun), "--max-restarts", "3", "a.py"], tmp_path, os.environ, say=said.append) == 0
    assert said[0] == running.STATIC


def test_a_host_that_is_left_out_starts_no_further_attempt(tmp_path: Path) -> None:
    running.leave_out(tmp_path, "a")
    assert seen_of(tmp_path, "restarts.say_left(30)") == (0, "0 ")


_STARTS = """
import os, subprocess, sys
print(os.getpid(), flush=True)
subprocess.run([sys.executable, "-c", *sys.argv[1:]], env={**os.environ, "TORCHELASTIC_RUN_ID": "7"})
"""
"""Starts a process as a torchrun does its workers, and these theirs."""


def test_a_worker_that_has_no_loader_yet_dies_with_its_torchrun_and_what_it_started_itself_does_not(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", _STARTS, _STARTS, "print(input(), flush=True); print(input(), flush=True)"]
    environment = running.environment_of(tmp_path, 0, os.environ)
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as torchrun:
        assert torchrun.stdin is not None and torchrun.stdout is not None
        _, worker = int(torchrun.stdout.readline()), os.pidfd_open(int(torchrun.stdout.readline()))
        torchrun.stdin.write("begun\n")
        assert torchrun.stdout.readline() == "begun\n"
        torchrun.kill()
        assert select.select([worker], [], [], PATIENCE_S)[0]
        torchrun.stdin.write("lives on\n")
        assert torchrun.stdout.readline() == "lives on\n"
        os.close(worker)


def test_an_old_attempt_replaces_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(restarts.RUN_FOLDER, str(tmp_path))
    monkeypatch.setenv(restarts.ATTEMPT, "1")
    monkeypatch.setattr("socket.gethostname", lambda: "a")
    written = tmp_path / "new"
    written.write_text("of attempt 1")
    restarts.attempt_file(tmp_path, "a").write_text("1")
    assert restarts.commit_checkpoint(written, tmp_path / "checkpoint")
    written.write_text("of attempt 1, later")
    restarts.attempt_file(tmp_path, "a").write_text("2")
    assert not restarts.commit_checkpoint(written, tmp_path / "checkpoint")
    assert (tmp_path / "checkpoint").read_text() == "of attempt 1"
