"""Does triage name what became slow from the history of steps alone? Drawn takes of real jobs under capture.

    python validation/history.py --takes 60 [--seed 1] [--healthy 20] [--healthy-steps 2000] [--keep DIR]
    python validation/history.py --again DIR

Real jobs of three or four ranks (gloo) run under `kair capture run` with a coordinator, and nothing of them is sampled.
To start a job takes longer than a take, so each job goes through several of them: 100 healthy steps, 60 with a fault.
The rows of each are put into a store of its own, on which `kair triage` is run. A take counts as named where a finding
accuses exactly the slow rank, as false where any accuses another one. Every take counts. `--again` asks kept stores.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "real"))

from cpu_groups import CpuGroup  # noqa: E402  (of the folder beside this one)
from history_job import FROM_OUTSIDE, KINDS, Take  # noqa: E402

from kair_capture.coordinator.step_log import read_all, write_part  # noqa: E402
from kair_capture.places import JobPlaces  # noqa: E402

ONSET, WITHIN, MOST_OF_A_JOB = 100, 60, 12
KAIR = (sys.executable, "-m", "kair_tui")
JOB = "history"


def drawn(seed: int, kind: str, ranks: int, steps: int) -> Take:
    """The take of a seed: a step of about 10 to 30 ms, and a fault of a third of that or more."""
    chosen = random.Random(f"{seed} {kind}")
    device_ms = chosen.uniform(3, 8) if kind.endswith("healthy") else chosen.uniform(8, 20)
    fault_ms = max(chosen.uniform(0.35, 0.8) * (device_ms + 5), 5.0)
    onset = steps if kind.endswith("healthy") else ONSET
    return Take(seed, kind, ranks, chosen.randrange(ranks), round(device_ms, 1), round(fault_ms, 1), steps, onset)


def jobs_of(takes: list[Take]) -> Iterator[list[Take]]:
    """The takes of each job: of as many ranks, pipelines by themselves."""
    groups: dict[tuple[int, bool], list[Take]] = {}
    for take in takes:
        groups.setdefault((take.ranks, take.kind.startswith("stage")), []).append(take)
    for some in groups.values():
        yield from (some[at : at + MOST_OF_A_JOB] for at in range(0, len(some), MOST_OF_A_JOB))


def run(takes: list[Take], places: JobPlaces, folder: Path) -> None:
    """Trains a job beside a coordinator; what capture keeps is in the store. Raises SystemExit where the job fails."""
    own = {
        "KAIR_STORE": str(places.store),
        "KAIR_JOB": JOB,
        "KAIR_RUN_DIR": str(folder / "run"),
        "KAIR_SPOOL_DIR": str(folder / "spool"),
        "KAIR_AGENT_IDLE": "3",
        "OMP_NUM_THREADS": "1",
    }
    environment, plan = {**os.environ, **own}, folder / "plan.json"
    plan.write_text(json.dumps([asdict(take) for take in takes]), encoding="utf-8")
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node"]
    script = [*torchrun, str(takes[0].ranks), str(HERE / "history_job.py"), str(plan), str(folder)]
    with (folder / "log").open("w") as log, ExitStack() as stack:
        listening = ["--job", JOB, "--listen", "127.0.0.1:0", "--leave-after", "5", "--max-overhead", "0"]
        coordinator = subprocess.Popen([*KAIR, "coordinator", *listening], env=environment, stderr=log)
        stack.callback(coordinator.kill)
        command = [*KAIR, "capture", "run", "--job", JOB, "--", *script]
        job = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        stack.callback(job.kill)
        for take in takes:
            if take.kind in FROM_OUTSIDE:
                with fault_from_outside(take, folder, job):
                    wait_for(folder / f"done-{take.kind}-{take.seed}", job)
        if job.wait(timeout=3600):
            raise SystemExit(f"a job failed:\n{(folder / 'log').read_text()[-3000:]}")
        coordinator.wait(timeout=120)


@contextmanager
def fault_from_outside(take: Take, folder: Path, job: subprocess.Popen[bytes]) -> Iterator[None]:
    """Begins the fault once the victim waits at the onset, and ends it."""
    at = folder / f"pid-{take.kind}-{take.seed}"
    wait_for(at, job)
    with ExitStack() as stack:
        if take.kind == "quota":
            group = CpuGroup.make(f"kair-history-{os.getpid()}", stack)
            group.limit(8_000, 100_000)
            group.add(int(at.read_text(encoding="ascii")))
        else:
            for _ in range(4):
                spin = subprocess.Popen(["taskset", "-c", "1", sys.executable, "-c", "while True: pass"])
                stack.callback(spin.wait)
                stack.callback(spin.kill)
        at.unlink()
        yield


def wait_for(path: Path, job: subprocess.Popen[bytes]) -> None:
    """Until a rank has left it, or the job is over."""
    while not path.exists() and job.poll() is None:
        time.sleep(0.05)


def split(takes: list[Take], places: JobPlaces, into: Path) -> Iterator[tuple[Take, Path]]:
    """A store for each take, with the rows of its steps alone."""
    rows, first = read_all(places.steps), 0
    for take in takes:
        own = rows[(rows["step"] >= first) & (rows["step"] < first + take.steps)].copy()
        own["step"] -= first
        first += take.steps
        kept = into / f"{take.kind}-{take.seed}-{take.steps}"
        of = JobPlaces(kept / "store", JOB)
        of.steps.mkdir(parents=True)
        of.capture.mkdir()
        write_part(of.steps / "part-00000001.parquet", own)
        status = json.loads(places.status.read_bytes())
        of.status.write_text(json.dumps({**status, "alerts": []}), encoding="utf-8")
        (kept / "take.json").write_text(json.dumps(asdict(take)), encoding="utf-8")
        yield take, kept


def told(store: Path) -> dict[str, Any]:
    """What triage says."""
    command = [*KAIR, "triage", JOB, "--store", str(store), "--json"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        return {"verdict": "error", "findings": [], "summary": run.stderr.strip()[-300:]}
    data: dict[str, Any] = json.loads(run.stdout)["data"]
    return data


def judged(take: Take, data: dict[str, Any]) -> str:
    """`named`, `missed`, `false` or `quiet`."""
    accused = {tuple(one["ranks"]) for one in data["findings"] if one["ranks"]}
    is_healthy = take.onset >= take.steps
    if any(is_healthy or take.victim not in ranks for ranks in accused):
        return "false"
    if data["verdict"] == "error":
        return "error"
    if is_healthy:
        return "quiet with a bound" if data["unseen"] else "quiet"
    return "named" if (take.victim,) in accused else "missed"


def report(take: Take, store: Path, counts: dict[str, Counter[str]]) -> None:
    """A line for it."""
    data = told(store)
    outcome = judged(take, data)
    counts.setdefault(take.kind, Counter())[outcome] += 1
    causes = [(one["ranks"], one["cause"], one["scope"], one["since"]) for one in data["findings"]]
    print(json.dumps({**asdict(take), "outcome": outcome, "findings": causes, "summary": data["summary"]}), flush=True)


def main() -> int:
    """Runs them; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--takes", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--healthy", type=int, default=0)
    parser.add_argument("--healthy-steps", type=int, default=2000)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--keep", type=Path, help="a folder for the rows of each take")
    parser.add_argument("--again", type=Path, help="such a folder: nothing is run")
    given = parser.parse_args()
    counts: dict[str, Counter[str]] = {}
    if given.again is not None:
        for file in sorted(given.again.glob("*/take.json")):
            report(Take(**json.loads(file.read_text(encoding="utf-8"))), file.parent / "store", counts)
    else:
        kinds, random_of = given.kinds.split(","), random.Random(given.seed)
        takes = [
            drawn(given.seed + at, kinds[at % len(kinds)], random_of.choice((3, 4)), ONSET + WITHIN)
            for at in range(given.takes)
        ]
        takes = [
            *(drawn(given.seed + at, "healthy", 3 + at % 2, given.healthy_steps) for at in range(given.healthy)),
            *takes,
        ]
        for some in jobs_of(takes):
            with tempfile.TemporaryDirectory(prefix="kair-history-") as folder:
                places = JobPlaces(Path(folder) / "store", JOB)
                run(some, places, Path(folder))
                for take, kept in split(some, places, given.keep or Path(folder) / "kept"):
                    report(take, kept / "store", counts)
    for kind, of in sorted(counts.items()):
        print(f"{kind:8} {dict(of)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
