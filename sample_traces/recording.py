"""A recording: every rank run in a process of its own, their traces published, the truth written beside them."""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from faults import FaultPlan
from job import Job
from model import healthy_step_s
from torch.multiprocessing.spawn import ProcessException, start_processes
from training_job import COMPILED, run_rank

__all__ = ["ProcessException", "record"]

# Torch takes three seconds of CPU to load: forked ranks have it already, and share one copy. No thread of torch runs
# here before they are forked. On macOS its libraries do not survive a fork.
START = "spawn" if sys.platform == "darwin" else "fork"


def record(job: Job, plan: FaultPlan, out: Path, command: str) -> None:
    """Run the job and fill the folder `out`, which stays empty unless every rank succeeds.

    Raises:
        ProcessException: a rank failed; the message holds its traceback.
    """
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(job, plan, folder)
        for trace in Path(folder).glob("*.pt.trace.json"):
            publish(trace, out)
        compiled = Path(folder) / COMPILED
        compiled_s = float(compiled.read_text(encoding="utf-8")) if compiled.exists() else None
    truth = plan.truth(healthy_step_s(job), job, compiled_s) | job.truth()
    truth |= {"torch": torch.__version__, "command": command}
    (out / "truth.json").write_text(as_text(truth), encoding="utf-8")


def run_ranks(job: Job, plan: FaultPlan, folder: str) -> None:
    """Run every rank in a process of its own, none of which outlives this call."""
    # For the ranks: the first silences two lines from each of them, the second spares gloo a look-up of the host's
    # own name, which fails where there is no resolver.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    ranks = start_processes(run_rank, (job, folder, plan), job.world_size, join=False, start_method=START)  # type: ignore[no-untyped-call]
    try:
        while not ranks.join():
            pass
    finally:
        for process in ranks.processes:
            process.kill()
            process.join()


def publish(trace: Path, out: Path) -> None:
    """Compress the JSON file `trace` into `out`, less the machine's name and the file's path here."""
    alias = trace.name.partition("_")[0]
    text = trace.read_text(encoding="utf-8")
    text = re.sub(r'"host_name": "[^"]*"', f'"host_name": "{alias}"', text)
    text = re.sub(r'"traceName": "[^"]*"', f'"traceName": "{trace.name}"', text)
    # No time in the header: the same trace is the same file.
    (out / f"{trace.name}.gz").write_bytes(gzip.compress(text.encode("utf-8"), mtime=0))


def as_text(truth: Mapping[str, object]) -> str:
    """JSON with a line for each of the truth's fields."""
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in truth.items())
    return f"{{\n{lines}\n}}\n"
