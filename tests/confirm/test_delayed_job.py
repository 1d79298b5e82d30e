"""A training job whose ranks are delayed: only in planned steps, and what it computes is the same to the last bit."""

import json
import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kair_capture.agent.ring_reader import TrainerRings, trainers_in
from kair_capture.agent.step_rows import Rows
from kair_capture.delays import DEFAULT_SHARES, Arm, Mode, Order, Place, arm_of, dose_of, to_json
from kair_capture.ring import StepFlag

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(find_spec("torch") is None, reason="training needs torch: pip install 'kair[record]'"),
]
SCRIPT = Path(__file__).parents[1] / "support" / "delayed_job.py"
ORDER = Order(5, 11, 85, 120, Place.BEFORE_FORWARD, Mode.ARMS, (2_000_000,), (1,), DEFAULT_SHARES[Mode.ARMS])


def trained(folder: Path, order: Order | None) -> tuple[list[dict[str, Any]], list[Rows]]:
    """What each of two ranks saw, and its rows."""
    folder.mkdir()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    shared |= {"KAIR_RUN_DIR": str(folder / "run"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), str(folder), to_json(order) if order else "-"]
    ranks = [subprocess.Popen(command, env={**shared, "RANK": str(rank)}) for rank in range(2)]
    assert [one.wait(300) for one in ranks] == [0, 0]
    rows = {}
    for trainer, names in trainers_in(os.listdir(folder / "run")).items():  # noqa: PTH208
        rings = TrainerRings(folder / "run", trainer)
        for name in names:
            rings.add(name)
        drained = rings.peek(to_the_end=True)
        assert drained is not None and drained.rows is not None
        rows[trainer.rank] = drained.rows
        rings.close(remove=False)
    return [json.loads((folder / f"seen-{rank}.json").read_text()) for rank in range(2)], [rows[0], rows[1]]


def test_a_delayed_job_computes_the_same_and_sleeps_in_planned_steps_alone(tmp_path: Path) -> None:
    plain, undelayed = trained(tmp_path / "plain", None)
    delayed, rows = trained(tmp_path / "delayed", ORDER)
    for rank in range(2):
        assert delayed[rank]["losses"] == plain[rank]["losses"]
        planned = [dose_of(ORDER, int(step), rank) // 1000 for step in rows[rank]["step"]]
        inserted = rows[rank]["inserted_us"]
        # A step that took three times as long ends the order on its rank: a machine may be that busy.
        followed = np.flatnonzero(inserted > 0)
        assert len(followed)
        assert set(followed) <= set(np.flatnonzero(planned))
        assert (inserted[followed] >= 2000).all()
        assert delayed[rank]["slept"] == len(followed)
        assert plain[rank]["slept"] == 0
        assert plain[rank]["hooks"] == delayed[rank]["hooks"]
        marked = {int(one["step"]) for one in rows[rank] if one["flags"] & StepFlag.DELAYED}
        covered = {
            step for step in range(80, 125) if any(arm_of(ORDER, one) is not Arm.NONE for one in (step, step - 1))
        }
        assert marked <= covered
        assert {int(rows[rank]["step"][at]) for at in followed} <= marked
        assert not undelayed[rank]["inserted_us"].any()
        assert not (undelayed[rank]["flags"] & StepFlag.DELAYED).any()
