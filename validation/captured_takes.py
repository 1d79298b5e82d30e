"""Takes of real jobs under capture, several in each job: drawn, trained beside a coordinator, kept, asked about.

To start a job takes longer than a take, so each job goes through several of them, of as many ranks. `history.py`,
`evidence/real.py` and `evidence/ledger.py` say what a take is, what is done to its job, and what is asked of it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from history_job import AnyTake

from kair_capture.coordinator.step_log import read_all, write_part
from kair_capture.places import JobPlaces

KAIR = (sys.executable, "-m", "kair_tui")
MOST_OF_A_JOB = 12
Take = TypeVar("Take", bound=AnyTake)


def options(doc: str | None, takes: int, kinds: tuple[str, ...]) -> argparse.ArgumentParser:
    """Those of all of them."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--takes", type=int, default=takes)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(kinds))
    parser.add_argument("--keep", type=Path, help="a folder for what each take left")
    parser.add_argument("--again", type=Path, help="such a folder: nothing is run")
    return parser


def kept_takes(folder: Path, of: type[Take]) -> Iterator[tuple[Take, Path]]:
    """Those of earlier, and the folder of each."""
    for file in sorted(folder.glob("*/take.json")):
        yield of(**json.loads(file.read_text(encoding="utf-8"))), file.parent


def recorded(
    takes: Iterable[Take],
    alike: Callable[[Take], Hashable],
    job: str,
    keep: Path | None,
    record: Callable[[list[Take], JobPlaces, Path, Path], Iterator[tuple[Take, Path]]],
) -> Iterator[tuple[Take, Path]]:
    """Each take and the folder that it is kept in; `record` trains those of one job, and keeps them."""
    groups: dict[Hashable, list[Take]] = {}
    for take in takes:
        groups.setdefault(alike(take), []).append(take)
    for group in groups.values():
        for at in range(0, len(group), MOST_OF_A_JOB):
            with tempfile.TemporaryDirectory(prefix=f"kair-{job}-") as name:
                folder = Path(name)
                places = JobPlaces(folder / "store", job)
                yield from record(group[at : at + MOST_OF_A_JOB], places, folder, keep or folder / "kept")


def run(
    takes: list[Take],
    places: JobPlaces,
    folder: Path,
    script: Path,
    *,
    from_outside: Sequence[str],
    fault: Callable[[Take, Path, subprocess.Popen[bytes]], AbstractContextManager[None]],
    sampling: str = "0",
) -> None:
    """Trains a job beside a coordinator; what capture keeps is in the store. Raises SystemExit where the job fails.

    `fault` begins and ends what happens to the job in takes of the kinds `from_outside`; `sampling` may take so much of
    its time.
    """
    own = {
        "KAIR_STORE": str(places.store),
        "KAIR_JOB": places.job,
        "KAIR_RUN_DIR": str(folder / "run"),
        "KAIR_SPOOL_DIR": str(folder / "spool"),
        "KAIR_AGENT_IDLE": "5",
        "OMP_NUM_THREADS": "1",
    }
    environment, plan = {**os.environ, **own}, folder / "plan.json"
    plan.write_text(json.dumps([asdict(take) for take in takes]), encoding="utf-8")
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node"]
    training = [*torchrun, str(takes[0].ranks), str(script), str(plan), str(folder)]
    with (folder / "log").open("w") as log, ExitStack() as stack:
        listening = ["--job", places.job, "--listen", "127.0.0.1:0", "--leave-after", "8", "--max-overhead", sampling]
        coordinator = subprocess.Popen([*KAIR, "coordinator", *listening], env=environment, stderr=log)
        stack.callback(coordinator.kill)
        command = [*KAIR, "capture", "run", "--job", places.job, "--", *training]
        job = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        stack.callback(job.kill)
        for take in takes:
            if take.kind in from_outside:
                with fault(take, folder, job):
                    wait_for(folder / f"done-{take.name}", job)
        if job.wait(timeout=7200):
            raise SystemExit(f"a job failed:\n{(folder / 'log').read_text()[-3000:]}")
        coordinator.wait(timeout=120)


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    """Until somebody has left it, or the process is over."""
    while not path.exists() and process.poll() is None:
        time.sleep(0.05)


def split(takes: list[Take], places: JobPlaces, into: Path) -> Iterator[tuple[Take, Path]]:
    """A folder for each take, in which is a store with the rows of its steps alone."""
    rows, first = read_all(places.steps), 0
    # The coordinator's alerts are of all takes.
    status = json.dumps({**json.loads(places.status.read_bytes()), "alerts": []})
    for take in takes:
        own = rows[(rows["step"] >= first) & (rows["step"] < first + take.steps)].copy()
        own["step"] -= first
        first += take.steps_until_next
        kept = into / f"{take.name}-{take.steps}"
        of = JobPlaces(kept / "store", places.job)
        of.steps.mkdir(parents=True)
        of.capture.mkdir()
        write_part(of.steps / "part-00000001.parquet", own)
        of.status.write_text(status, encoding="utf-8")
        (kept / "take.json").write_text(json.dumps(asdict(take)), encoding="utf-8")
        yield take, kept


def told(store: Path, job: str) -> dict[str, Any]:
    """What triage says."""
    command = [*KAIR, "triage", job, "--store", str(store), "--json"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        return {"verdict": "error", "findings": [], "summary": run.stderr.strip()[-300:]}
    data: dict[str, Any] = json.loads(run.stdout)["data"]
    return data
