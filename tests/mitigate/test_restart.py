"""A real job under torchrun that is ordered to leave, and one whose torchrun is killed: both go on, nothing is lost."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.patience import PATIENCE_S, wait_until

from kair_mitigate import orders
from kair_mitigate.audit import audit
from kair_mitigate.job_state import JobState, read_state
from kair_mitigate.plans import Plan

ROOT = Path(__file__).parents[2]
WRAPPER = """
import os, sys
from pathlib import Path
from kair_mitigate import running
sys.exit(running.run(sys.argv[2:], Path(sys.argv[1]), os.environ, failures=1))
"""
EPOCHS, SAMPLES = 4, 600
pytestmark = [pytest.mark.live, pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Two ranks that train in the folder, some 20 ms a step."""
    orders.make_key(tmp_path)
    train = [str(ROOT / "validation" / "mitigation" / "train.py"), "--checkpoint", str(tmp_path / "kept.pt")]
    train += ["--epochs", str(EPOCHS), "--per-sample-ms", "1", "--workers", "1"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", WRAPPER, str(tmp_path), *torchrun, *train],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    yield process
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def once(folder: Path, holds: Callable[[JobState], bool]) -> JobState:
    known = None

    def is_so() -> bool:
        nonlocal known
        known = read_state(folder)
        return known is not None and holds(known)

    wait_until(is_so, told=lambda: (folder / "log").read_text(errors="replace")[-2000:], every_s=0.1)
    assert known is not None
    return known


def test_it_leaves_where_it_is_ordered_to_and_goes_on_with_other_sizes(
    job: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    once(tmp_path, lambda known: known.state.step >= 8)
    orders.write_plan(tmp_path, Plan(1, 20, (12, 4), "leave"), orders.read_key(tmp_path))
    assert job.wait(PATIENCE_S) == 0
    left = int((tmp_path / "left-0").read_text())
    known = read_state(tmp_path)
    assert known is not None
    assert (known.attempt, known.state.plan.sizes) == (1, (12, 4))
    # The second attempt goes on at the step after the one that the first left at.
    first = (tmp_path / "trained" / "10000-0.jsonl").read_text().splitlines()[0]
    assert f'"step": {left + 1},' in first
    assert not (tmp_path / "left-1").exists()
    found = audit(sorted((tmp_path / "trained").iterdir()), SAMPLES, EPOCHS)
    assert (found.missing, found.twice) == ({}, {})


def test_no_worker_outlives_its_torchrun_and_no_sample_is_lost(job: subprocess.Popen[bytes], tmp_path: Path) -> None:
    once(tmp_path, lambda known: known.state.step >= 24)
    (torchrun,) = _children(job.pid)
    workers = _children(torchrun)
    os.kill(torchrun, signal.SIGKILL)
    status = job.wait(PATIENCE_S)
    assert status == 128 + signal.SIGKILL
    wait_until(lambda: not any(Path(f"/proc/{worker}/environ").exists() and _lives(worker) for worker in workers))


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False
