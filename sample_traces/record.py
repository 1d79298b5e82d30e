"""Record a small training job with a known fault: a torch.profiler trace for each rank, and truth.json.

python sample_traces/record.py --fault slow_operator --rank 2 --out DIR
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import torch
from faults import FAULTS, FaultPlan
from torch.multiprocessing.spawn import ProcessException, spawn
from training_job import FIRST_RECORDED_STEP, HOST_ALIAS, run_rank

FAILED = 1
WRONG_USAGE = 2
INTERRUPTED = 130


def main() -> int:
    """Record what the command line asks for; 0, or 1 if a rank failed, or 130 if interrupted."""
    options = parse_arguments()
    try:
        record(options)
    except (ProcessException, OSError) as failure:
        print(f"record.py: error: {failure}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def parse_arguments() -> argparse.Namespace:
    """The checked command line, the severity filled in; exits with 2 and one line when it is wrong."""
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", required=True, choices=FAULTS)
    parser.add_argument("--rank", type=int, help="the guilty rank; needed unless the fault is none")
    parser.add_argument("--world-size", type=int, default=4, help="how many ranks (default 4)")
    parser.add_argument("--steps", type=int, default=12, help="how many steps to record (default 12)")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write to")
    parser.add_argument("--severity", type=float, help="time lost in an affected step, in healthy steps")
    parser.add_argument("--seed", type=int, default=0, help="of the data, and of the choice of stalled steps")
    options = parser.parse_args()
    problem = mistake(options)
    if problem:
        parser.error(problem)
    if options.severity is None:
        options.severity = FAULTS[options.fault].severity
    return options


class OneLineParser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Print `message` and exit."""
        self.exit(WRONG_USAGE, f"record.py: error: {message}\n")


def mistake(options: argparse.Namespace) -> str | None:
    """What is wrong with the command line beyond its types, if anything."""
    healthy, rank, severity = options.fault == "none", options.rank, options.severity
    last_rank = options.world_size - 1
    checks = (
        (last_rank < 1, "--world-size: a rank can only be compared with another, so 2 at least"),
        (options.steps < 1, "--steps: 1 at least"),
        (healthy and rank is not None, "--rank: a recording without a fault has no guilty rank"),
        (healthy and severity is not None, "--severity: a recording without a fault has none"),
        (not healthy and rank is None, f"--rank is missing: --fault {options.fault} needs it"),
        (rank is not None and not 0 <= rank <= last_rank, f"--rank {rank}: the ranks are 0 to {last_rank}"),
        (severity is not None and not 0 < severity <= 10, "--severity: above 0 and at most 10 healthy steps"),
        (any(options.out.glob("*.pt.trace.json.gz")), f"--out {options.out}: already holds traces"),
    )
    return next((message for wrong, message in checks if wrong), None)


def record(options: argparse.Namespace) -> None:
    """Run the job and fill the folder options.out, which stays empty unless every rank succeeds."""
    options.out.mkdir(parents=True, exist_ok=True)
    steps = range(FIRST_RECORDED_STEP, FIRST_RECORDED_STEP + options.steps)
    plan = FaultPlan(options.fault, options.rank, options.severity, options.seed, steps)
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(plan, options.world_size, folder)
        for trace in Path(folder).glob("*.pt.trace.json"):
            publish(trace, options.out)
    environment = {"torch": torch.__version__, "command": command(options)}
    truth = plan.truth() | {"world_size": options.world_size} | environment
    (options.out / "truth.json").write_text(json.dumps(truth, indent=2) + "\n", encoding="utf-8")


def run_ranks(plan: FaultPlan, world_size: int, folder: str) -> None:
    """Run every rank in a process of its own, none of which outlives this call.

    Raises:
        ProcessException: a rank failed; the message holds its traceback.
    """
    # The ranks read these as they load torch: the first silences two lines from each of them, the second
    # spares gloo a look-up of the host's own name, which fails where there is no resolver.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    ranks = spawn(run_rank, (world_size, folder, plan), nprocs=world_size, join=False)  # type: ignore[no-untyped-call]
    try:
        while not ranks.join():
            pass
    finally:
        for process in ranks.processes:
            process.kill()
            process.join()


def publish(trace: Path, out: Path) -> None:
    """Compress the JSON file `trace` into `out`, less the machine's name and the file's path here."""
    text = trace.read_text(encoding="utf-8")
    text = re.sub(r'"host_name": "[^"]*"', f'"host_name": "{HOST_ALIAS}"', text)
    text = re.sub(r'"traceName": "[^"]*"', f'"traceName": "{trace.name}"', text)
    # No time in the header: the same trace is the same file.
    (out / f"{trace.name}.gz").write_bytes(gzip.compress(text.encode("utf-8"), mtime=0))


def command(options: argparse.Namespace) -> str:
    """The command line that repeats this recording from the project's root, with every default spelt out."""
    # An absolute path tells of this machine, and nothing to whoever repeats the recording elsewhere.
    out = options.out.name if options.out.is_absolute() else str(options.out)
    guilty = {} if options.rank is None else {"rank": options.rank, "severity": options.severity}
    named = {"fault": options.fault} | guilty
    named |= {"world-size": options.world_size, "steps": options.steps, "seed": options.seed, "out": out}
    words = [word for name, value in named.items() for word in (f"--{name}", str(value))]
    return shlex.join(["python", "sample_traces/record.py", *words])


if __name__ == "__main__":
    sys.exit(main())
