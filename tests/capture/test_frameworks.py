"""Real JAX and TensorFlow jobs under capture, whose scripts know nothing of it.

Where this Python has no such framework, KAIR_TEST_JAX and KAIR_TEST_TENSORFLOW may name another that has.
"""

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.patience import PATIENCE_S

from kair_capture.agent.ring_reader import RingReader
from kair_capture.agent.step_rows import Rows, rows_of
from kair_capture.job.launch import SITE
from kair_capture.ring import NameReader, StepFlag
from kair_engine.recording.opening import open_trace
from kair_engine.trace.columns import read_columns

pytestmark = pytest.mark.live
ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "tests" / "support"
STEPS, SLOW = 12, 1


def python_with(framework: str) -> str:
    named = os.environ.get(f"KAIR_TEST_{framework.upper()}")
    if named is None and find_spec(framework) is None:
        pytest.skip(f"needs {framework}: pip install 'kair[{framework}]'")
    return named or sys.executable


def free_port() -> int:
    """Of two that follow each other."""
    for _ in range(20):
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port: int = one.getsockname()[1]
            try:
                two.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
    pytest.fail("no free ports")


@dataclass(frozen=True)
class Job:
    folder: Path

    def losses(self, rank: int) -> list[str]:
        seen: list[str] = json.loads((self.folder / f"rank-{rank}.json").read_text())["losses"]
        return seen

    def rows(self, rank: int) -> Rows:
        """The steps that a rank's rings tell."""
        (ring,) = (self.folder / "run").glob(f"rank-{rank}-*-0.ring")
        names = NameReader(ring.with_name(ring.name.rsplit("-", 1)[0] + ".names"))
        records = RingReader(ring).peek()
        return rows_of(rank, records, {int(name): names.text(int(name)) for name in np.unique(records["name"])})

    def names(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "run" / "windows").iterdir())


def run(framework: str, folder: Path, *says: str, ranks: int = 2, captured: bool = True) -> Job:
    """All ranks of a job to their end; every fourth step is sampled."""
    python, port = python_with(framework), str(free_port())
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(SITE)}
    if captured:
        environment |= {"KAIR_CAPTURE": "1", "KAIR_RUN_DIR": str(folder / "run"), "KAIR_SAMPLE_EVERY": "4"}
        environment["KAIR_MAX_OVERHEAD"] = "100%"
    script = str(SUPPORT / f"captured_{framework}.py")
    processes = [
        subprocess.Popen(
            [python, script, str(rank), str(ranks), port, str(STEPS), str(SLOW), str(folder), *says],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    for process in processes:
        _, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, said
        assert "kair:" not in said
    return Job(folder)


def check_that_the_slow_rank_shows(job: Job) -> None:
    """In level 0 by its self time, in the windows by who waits for whom."""
    for rank in (0, 1):
        rows = job.rows(rank)
        assert rows["step"].tolist() == list(range(STEPS))
        sampled = [4, 8]
        assert [int(one) for one in rows["step"][rows["flags"] & StepFlag.SAMPLED > 0]] == sampled
        own = rows["self_us"][5:-1].astype(np.int64)
        assert (own > 60_000).all() if rank == SLOW else (own < 30_000).all()
    assert job.names() == [f"rank-{rank}-{step}-{step}.xplane.pb" for rank in (0, 1) for step in (4, 8)]
    trace = open_trace(job.folder / "run" / "windows", cache=job.folder / "cache")
    assert (trace.job.ranks, tuple(trace.steps), trace.job.absolute_time) == ((0, 1), (4, 8), True)
    rows = read_columns(trace, ["rank", "kind", "phase", "duration_ns"])
    kinds, phases = rows.text("kind"), set(rows.text("phase"))
    assert {"forward", "backward", "input"} <= phases
    waited = [0, 0]
    for rank, kind, length in zip(rows.of["rank"], kinds, rows.of["duration_ns"], strict=True):
        if kind == "collective":
            waited[rank] += length
    assert waited[0] > 2 * 50_000_000
    assert not list((job.folder / "run").glob("profile-*"))


def test_a_jax_job_of_two_processes(tmp_path: Path) -> None:
    job, plain = run("jax", tmp_path / "job"), run("jax", tmp_path / "plain", captured=False)
    check_that_the_slow_rank_shows(job)
    assert [job.losses(rank) for rank in (0, 1)] == [plain.losses(rank) for rank in (0, 1)]
    seen = json.loads((tmp_path / "job" / "rank-0.json").read_text())
    assert (seen["lowers"], seen["name"]) == (True, "train_step")
    identity = json.loads((tmp_path / "job" / "run" / "rank-1.json").read_text())
    assert (identity["framework"], identity["rank"], identity["world_size"]) == ("jax", 1, 2)


def test_a_jax_scripts_own_marks_and_profile_go_before_captures(tmp_path: Path) -> None:
    job = run("jax", tmp_path / "job", "marks", "profiles", ranks=1)
    rows = job.rows(0)
    assert rows["step"].tolist() == list(range(STEPS))
    assert job.names() == ["rank-0-4-4.xplane.pb", "rank-0-8-8.xplane.pb"]
    assert list((tmp_path / "job" / "own-0").rglob("*.xplane.pb"))
    trace = open_trace(tmp_path / "job" / "run" / "windows", cache=tmp_path / "cache")
    assert tuple(trace.steps) == (4, 8)


def test_a_tensorflow_job_of_two_processes(tmp_path: Path) -> None:
    job = run("tensorflow", tmp_path / "job")
    plain = run("tensorflow", tmp_path / "plain", captured=False)
    check_that_the_slow_rank_shows(job)
    assert [job.losses(rank) for rank in (0, 1)] == [plain.losses(rank) for rank in (0, 1)]


@pytest.mark.parametrize("loop", ["keras", "eager"])
def test_loops_of_keras_and_loops_without_compilation(tmp_path: Path, loop: str) -> None:
    job = run("tensorflow", tmp_path / "job", loop, ranks=1)
    rows: Any = job.rows(0)
    assert rows["step"].tolist() == list(range(STEPS))
    if loop == "eager":
        assert all((rows[f"{phase}_us"][1:] > 0).all() for phase in ("input", "backward", "optimizer"))
    trace = open_trace(tmp_path / "job" / "run" / "windows", cache=tmp_path / "cache")
    assert tuple(trace.steps) == (4, 8)
    assert "compute" in read_columns(trace, ["kind"]).text("kind")


def test_from_a_jax_job_to_the_store_to_a_verdict(tmp_path: Path) -> None:
    python, store, out = python_with("jax"), tmp_path / "store", tmp_path / "out"
    out.mkdir()
    environment = {
        **os.environ,
        "KAIR_JOB": "chain",
        "KAIR_STORE": str(store),
        "KAIR_RUN_DIR": str(tmp_path / "run"),
        "KAIR_SPOOL_DIR": str(tmp_path / "spool"),
        "KAIR_AGENT_IDLE": "3",
        "KAIR_SAMPLE_EVERY": "2",
        "KAIR_MAX_OVERHEAD": "100%",
    }
    kair = [sys.executable, "-m", "kair_tui"]
    coordinator = subprocess.Popen(
        [*kair, "coordinator", "--listen", "127.0.0.1:0", "--leave-after", "2", "--quiet"], env=environment, cwd=ROOT
    )
    script = f"{python} {SUPPORT}/captured_jax.py $rank 2 {free_port()} 24 {SLOW} {out}"
    command = f"for rank in 0 1; do PYTHONPATH={SITE} {script} & done; wait"
    try:
        ran = [*kair, "capture", "run", "--", "sh", "-c", command]
        subprocess.run(ran, env=environment, cwd=ROOT, check=True, capture_output=True, timeout=PATIENCE_S)
        coordinator.wait(timeout=PATIENCE_S)
    finally:
        coordinator.kill()
        coordinator.wait()
    done = subprocess.run(
        [*kair, "triage", "chain", "--json"], env=environment, cwd=ROOT, check=True, capture_output=True
    )
    found = json.loads(done.stdout)["data"]
    assert found["verdict"] == "straggler"
    (accused,) = (finding for finding in found["findings"] if finding["ranks"] == [SLOW])
    assert (accused["cause"], accused["operator"]) == ("input", "load_batch")
