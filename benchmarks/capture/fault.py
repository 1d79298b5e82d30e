"""A rank that becomes slow in a running job: when it is noticed and sampled, what is kept of it, and what triage says.

Runs `ddp_job.py` on four ranks under `kair capture run`, with a coordinator, once with a rank that works 20 % longer
from step 100 on, and once healthy; nobody does anything in between.

    python benchmarks/capture/fault.py --repeat 3
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from kair_capture.places import JobPlaces
from kair_engine.recording.job_file import open_job_folder

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SLOW_RANK, FROM_STEP = 2, 100


def ddp_job(steps: int, slow: str, options: Sequence[str]) -> list[str]:
    """The command that starts `ddp_job.py` on four ranks."""
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "4"]
    script = [str(HERE / "ddp_job.py"), "--steps", str(steps), *options, *(["--slow", slow] if slow else [])]
    return [*torchrun, *script]


def watched(job: Sequence[str], folder: Path, leave_after_s: int = 5, sampling: str = "1%") -> JobPlaces:
    """The job that a command starts, from its begin to its end; what capture kept of it.

    `sampling` may take so much of its time.
    """
    places = JobPlaces(folder / "store", "fault")
    own = {
        "KAIR_STORE": str(places.store),
        "KAIR_JOB": places.job,
        "KAIR_RUN_DIR": str(folder / "run"),
        "KAIR_SPOOL_DIR": str(folder / "spool"),
        "KAIR_AGENT_IDLE": "3",
        "OMP_NUM_THREADS": "1",
    }
    environment = {**os.environ, **own}
    kair = [sys.executable, "-m", "kair_tui"]
    listening = ["--job", places.job, "--listen", "127.0.0.1:0", "--max-overhead", sampling]
    with (folder / "coordinator.log").open("w") as log:
        coordinator = subprocess.Popen(
            [*kair, "coordinator", *listening, "--leave-after", str(leave_after_s)],
            env=environment,
            cwd=ROOT,
            stderr=log,
        )
    try:
        command = [*kair, "capture", "run", "--job", places.job, "--", *job]
        run = subprocess.run(command, env=environment, cwd=ROOT, check=False, capture_output=True, text=True)
        if run.returncode:
            raise SystemExit(f"the job ended with status {run.returncode}:\n{run.stderr[-4000:]}")
        coordinator.wait(timeout=240)
    finally:
        coordinator.kill()
        coordinator.wait()
    return places


def told(places: JobPlaces) -> dict[str, Any]:
    """What was noticed, sampled and concluded."""
    status = json.loads(places.status.read_bytes())
    alerts = [(one["kind"], one["step"], one["ranks"]) for one in status["alerts"] if not one["over"]]
    windows = [(one["first_step"], one["last_step"], one["state"]) for one in status["sampling"]["windows"]]
    noticed = next((step for kind, step, ranks in alerts if kind == "slow_rank" and ranks == [SLOW_RANK]), None)
    found: dict[str, Any] = {
        "steps": status["step"] + 1,
        "alerts": alerts,
        "windows": windows,
        "noticed_after": None if noticed is None else noticed - FROM_STEP,
        "sampled_after": windows[0][1] - FROM_STEP if windows else None,
        "overhead": round(status["sampling"]["overhead"], 4),
    }
    if (places.folder / "job.json").exists():
        fragments = list(open_job_folder(places.folder).fragments)
        found["events"] = sum(pq.read_metadata(one).num_rows for one in fragments)
        found["bytes_per_event"] = round(sum(one.stat().st_size for one in fragments) / max(found["events"], 1), 2)
        command = [sys.executable, "-m", "kair_tui", "triage", places.job, "--store", str(places.store), "--json"]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        data = json.loads(run.stdout)["data"]
        found["verdict"] = data["verdict"]
        found["accused"] = sorted({rank for one in data["findings"] for rank in one["ranks"]})
        found["first_in_ranking"] = data["ranking"][0]["rank"]
        found["summary"] = re.sub(r"\s+", " ", data["summary"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--healthy-steps", type=int, default=2000)
    parser.add_argument("--slow-by", type=float, default=0.2)
    parser.add_argument("--products", type=int, default=2)
    parser.add_argument("--product-size", type=int, default=256)
    parser.add_argument("--device-ms", type=float, default=40.0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="what the job computes on")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep what capture stored, one folder a run")
    given = parser.parse_args()
    job = ["--products", str(given.products), "--product-size", str(given.product_size)]
    job += ["--device-ms", str(given.device_ms), "--device", given.device]
    slow = f"{SLOW_RANK}:{given.slow_by}:{FROM_STEP}"
    for number in range(given.repeat):
        for case, steps, fault in (("fault", given.steps, slow), ("healthy", given.healthy_steps, "")):
            if steps:
                with tempfile.TemporaryDirectory(prefix="kair-fault-") as folder:
                    places = watched(ddp_job(steps, fault, job), Path(folder))
                    found = told(places)
                    if given.keep is not None:
                        shutil.copytree(places.store, given.keep / f"{case}-{number}")
                print(json.dumps({"run": number, "case": case, **found}), flush=True)


if __name__ == "__main__":
    main()
