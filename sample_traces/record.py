"""Record a small training job with a known fault: a torch.profiler trace for each rank, and truth.json.

python sample_traces/record.py --fault slow_operator --rank 2 --out DIR
python sample_traces/record.py --fault slow_host --host 1 --world-size 8 --hosts 2 --layers 2 --stretch 2 --out DIR
python sample_traces/record.py --fault upgrade --host 1 --world-size 8 --hosts 2 --layers 2 --stretch 2 --out DIR
python sample_traces/record.py --fault slow_operator --rank 1 --world-size 6 --stages 2 --layers 1 --out DIR
python sample_traces/record.py --fault slow_operator --rank 17 --world-size 24 --hosts 4 --stretch 8 --out DIR
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import NoReturn

from faults import FAULTS, FaultPlan
from job import EARLIEST_RECORDED_STEP, Job

FAILED = 1
WRONG_USAGE = 2
OF_HOSTS = ("slow_host", "upgrade")
INTERRUPTED = 130


def main() -> int:
    """Record what the command line asks for; 0, or 1 if a rank failed, or 130 if interrupted."""
    options = parse_arguments()
    job = Job(options.world_size, options.hosts, options.stages, options.layers, options.stretch)
    try:
        from recording import ProcessException, record  # loads torch, which a wrong command line needs not wait for

        try:
            record(job, fault_plan(options, job), options.out, command(options))
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
    parser.add_argument("--rank", type=int, help="the guilty rank; needed unless the fault is none or a host's")
    parser.add_argument("--host", type=int, help="the guilty host's number, for slow_host and upgrade")
    parser.add_argument("--severity", type=float, help="time lost in an affected step, in healthy steps")
    parser.add_argument("--world-size", type=int, default=4, help="how many ranks (default 4)")
    parser.add_argument("--hosts", type=int, default=1, help="how many hosts they are divided among (default 1)")
    parser.add_argument("--stages", type=int, default=1, help="how many pipeline stages they form (default 1)")
    parser.add_argument("--layers", type=int, default=3, help="how many layers a rank trains (default 3)")
    parser.add_argument("--stretch", type=int, default=1, help="how much longer emulated times are (default 1)")
    earliest = EARLIEST_RECORDED_STEP
    parser.add_argument("--first-step", type=int, default=earliest, help=f"the first to record (default {earliest})")
    parser.add_argument("--steps", type=int, default=12, help="how many steps to record (default 12)")
    parser.add_argument("--seed", type=int, default=0, help="of the data, and of the choice of stalled steps")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write to")
    options = parser.parse_args()
    problem = mistake_in_job(options) or mistake_in_fault(options)
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


def mistake_in_job(options: argparse.Namespace) -> str | None:
    """What is wrong with the job that the command line describes, if anything."""
    world, hosts, stages = options.world_size, options.hosts, options.stages
    checks = (
        (world < 2, "--world-size: a rank can only be compared with another, so 2 at least"),
        (hosts < 1 or world % max(hosts, 1), f"--hosts {hosts}: does not divide {world} ranks evenly"),
        (hosts > 1 and world < 2 * hosts, f"--hosts {hosts}: with {world} ranks, one each; 2 at least"),
        (stages < 1 or world % max(stages, 1), f"--stages {stages}: does not divide {world} ranks evenly"),
        (stages > 1 and world < 2 * stages, f"--stages {stages}: with {world} ranks, one each; 2 at least"),
        (hosts > 1 and stages > 1, "--stages: a pipeline is recorded on one host"),
        (options.layers < 1, "--layers: 1 at least"),
        (options.stretch < 1, "--stretch: 1 at least"),
        (options.first_step < EARLIEST_RECORDED_STEP, f"--first-step: {EARLIEST_RECORDED_STEP} at least"),
        (options.steps < 1, "--steps: 1 at least"),
        (any(options.out.glob("*.pt.trace.json.gz")), f"--out {options.out}: already holds traces"),
    )
    return next((message for wrong, message in checks if wrong), None)


def mistake_in_fault(options: argparse.Namespace) -> str | None:
    """What is wrong with the fault, in a job that is right, if anything."""
    fault, rank, host, severity = options.fault, options.rank, options.host, options.severity
    healthy, of_host = fault == "none", fault in OF_HOSTS
    last_rank, last_host = options.world_size - 1, options.hosts - 1
    checks = (
        (healthy and rank is not None, "--rank: a recording without a fault has no guilty rank"),
        (healthy and severity is not None, "--severity: a recording without a fault has none"),
        (of_host and rank is not None, "--rank: a slow host is named by --host"),
        (of_host and options.hosts < 2, "--hosts: a host can only be compared with another, so 2 at least"),
        (of_host and host is None, f"--host is missing: --fault {fault} needs it"),
        (not of_host and host is not None, f"--host: --fault {fault} has none"),
        (not healthy and not of_host and rank is None, f"--rank is missing: --fault {fault} needs it"),
        (rank is not None and not 0 <= rank <= last_rank, f"--rank {rank}: the ranks are 0 to {last_rank}"),
        (host is not None and not 0 <= host <= last_host, f"--host {host}: the hosts are 0 to {last_host}"),
        (severity is not None and not 0 < severity <= 10, "--severity: above 0 and at most 10 healthy steps"),
    )
    return next((message for wrong, message in checks if wrong), None)


def fault_plan(options: argparse.Namespace, job: Job) -> FaultPlan:
    """The fault on its ranks, in the steps that are recorded."""
    steps = range(options.first_step, options.first_step + options.steps)
    guilty = () if options.rank is None else (options.rank,)
    if options.host is not None:
        guilty = tuple(job.ranks_on(options.host))
    return FaultPlan(options.fault, guilty, options.severity, options.seed, steps)


def command(options: argparse.Namespace) -> str:
    """The command line that repeats this recording from the project's root, with every default spelt out."""
    # An absolute path tells of this machine, and nothing to whoever repeats the recording elsewhere.
    out = options.out.name if options.out.is_absolute() else str(options.out)
    named = {"fault": options.fault, "rank": options.rank, "host": options.host}
    named |= {"severity": None if options.fault == "none" else options.severity}
    named |= {"world-size": options.world_size, "hosts": options.hosts, "stages": options.stages}
    named |= {"layers": options.layers, "stretch": options.stretch}
    named |= {"first-step": None if options.first_step == EARLIEST_RECORDED_STEP else options.first_step}
    named |= {"steps": options.steps, "seed": options.seed, "out": out}
    words = [word for name, value in named.items() if value is not None for word in (f"--{name}", str(value))]
    return shlex.join(["python", "sample_traces/record.py", *words])


if __name__ == "__main__":
    sys.exit(main())
