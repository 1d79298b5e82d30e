"""Several processes of one host: each rank is one of them, and what all of them meet is told once."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from kair_capture.agent.ring_reader import trainers_in
from kair_capture.cupti import PlainJob
from kair_capture.job.session import Session
from kair_capture.settings import settings_of

TRAINS = """
import sys
for name in ("torch", "jax", "tensorflow"):  # one that is there would be loaded: seconds for each process
    sys.modules[name] = None
import kair_capture as kair
kair.start(job="alone")
for _ in range(3):
    with kair.scope("part"):
        pass
    kair.step()
print("trained", flush=True)
sys.stdin.read()
"""


@contextmanager
def training(folder: Path, rank: int = 0) -> Iterator[subprocess.Popen[str]]:
    """A process of the job that has trained three steps, and lives until this ends."""
    environment = {**os.environ, "KAIR_RUN_DIR": str(folder), "RANK": str(rank)}
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", TRAINS], env=environment, text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "trained\n"
        yield process
        process.communicate()


def warned(process: subprocess.Popen[str]) -> list[str]:
    """What the process wrote to stderr; it ends."""
    return process.communicate()[1].splitlines()


@pytest.mark.slow
def test_a_second_process_of_a_rank_records_nothing_and_says_so_once_a_host(tmp_path: Path) -> None:
    """A job of the same name, a sub-process with the variables of its rank, or an attempt whose predecessor lives."""
    run = tmp_path / "run"
    with training(run) as first, training(run, 1) as other:
        with training(run) as second, training(run, 1) as third:
            (line,) = [*warned(second), *warned(third)]
        expected = f"kair: warning: capture is off, training goes on: rank 0 is process {first.pid} already, in {run}"
        assert line.startswith(expected)
        recorded = {trainer.pid for trainer in trainers_in(os.listdir(run))}  # noqa: PTH208  (names alone)
        assert recorded == {first.pid, other.pid}
        assert json.loads((run / "rank-0.json").read_text())["pid"] == first.pid
        first.kill()
        first.wait()
        # Its place is free, however it ended.
        with training(run) as later:
            assert warned(later) == []
        assert later.pid in {trainer.pid for trainer in trainers_in(os.listdir(run))}  # noqa: PTH208  (names alone)


def test_what_a_rank_forked_does_not_keep_its_place(tmp_path: Path) -> None:
    """Loaders' workers may outlive the process that they were forked from."""
    session = Session(settings_of({"KAIR_RUN_DIR": str(tmp_path / "run"), "RANK": "3"}), PlainJob(), begin=5)
    ended, end = os.pipe()
    worker = os.fork()
    if worker == 0:
        os.close(end)
        os.read(ended, 1)
        os._exit(0)
    session.close()
    with training(tmp_path / "run", 3) as again:
        assert warned(again) == []
    os.close(end)
    os.waitpid(worker, 0)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
@pytest.mark.parametrize("left", [0, 8192])
def test_memory_that_is_full_ends_no_rank_and_is_told_once_a_host(tmp_path: Path, left: int) -> None:
    """Also where there is room for a control word, and none for a ring."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "x", str(tmp_path)]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("may not mount")
    try:
        with (tmp_path / "filler").open("wb", buffering=0) as filler, suppress(OSError):
            while filler.write(bytes(4096)):
                pass
        os.truncate(tmp_path / "filler", (tmp_path / "filler").stat().st_size - left)
        with training(tmp_path / "run") as first, training(tmp_path / "run", 1) as second:
            (line,) = [*warned(first), *warned(second)]
        assert line.startswith("kair: warning: capture is off, training goes on: OSError: [Errno 28] No space left")
        assert line.endswith(f": {tmp_path / 'run'} is full; no other rank of this host says so")
        assert (first.returncode, second.returncode) == (0, 0)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
