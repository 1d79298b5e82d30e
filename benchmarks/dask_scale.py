"""Triage on a Dask cluster of this machine: whether CPU time grows with the operations, and memory does not.

    python benchmarks/dask_scale.py --steps 20 60 200

Jobs of 64 ranks with 500 thousand operations a step (make_big_table.py), one rank's kernels 10 % slower, on a
LocalCluster of two workers with one thread each. CPU time is the command's and the workers' together; the answer has to
be the one of `kair triage` without a cluster.
"""

import argparse
import json
import os
import resource
import sys
import tempfile
from pathlib import Path

from big_table import first_found
from distributed import Client, LocalCluster
from measuring import Row, forget_peak, peak_mb, report, run_child, say

HERE = Path(__file__).parent
RANKS, OPERATIONS, SLOW_RANK = 64, 7_812, 42
WORKERS, STEPS_PER_FILE = 2, 20


def make(folder: Path, steps: int) -> int:
    """The job of so many steps; returns how many operations it has."""
    # As capture leaves them: a file for each window of a rank.
    options = (
        "--steps-per-file",
        STEPS_PER_FILE,
        "--ranks",
        RANKS,
        "--steps",
        steps,
        "--operations",
        OPERATIONS,
        "--slow-rank",
        SLOW_RANK,
    )
    took = run_child([sys.executable, str(HERE / "make_big_table.py"), str(folder), *map(str, options)])
    say(f"{steps} steps: {took.stdout.strip()} made in {took.wall_s:.0f} s")
    return int(took.stdout.split()[0])


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(folder: Path, steps: int, *, against_local: bool) -> Row:
    """One triage on a cluster of its own."""
    operations = make(folder, steps) if not folder.exists() else RANKS * steps * OPERATIONS
    command = [sys.executable, "-m", "kair_tui", "triage", str(folder), "--json"]
    with (
        LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.run(forget_peak)
        before = sum(client.run(cpu_s).values())
        took = run_child([*command, "--engine", "dask", "--scheduler", cluster.scheduler_address])
        on_workers, peaks = sum(client.run(cpu_s).values()) - before, client.run(peak_mb)
    say(f"{steps} steps: {took.wall_s:.0f} s")
    same = None
    if against_local:
        same = json.loads(run_child(command).stdout)["data"] == json.loads(took.stdout)["data"]
    return {
        "steps": steps,
        "operations": operations,
        "wall s": took.wall_s,
        "client CPU s": took.cpu_s,
        "workers CPU s": on_workers,
        "CPU s per 10⁷": (took.cpu_s + on_workers) * 1e7 / operations,
        "client MB": took.peak_mb,
        "largest worker MB": max(peaks.values()),
        "right": first_found(json.loads(took.stdout)["data"]) == [SLOW_RANK],
        "as local": same,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs="+", default=(20, 60))
    parser.add_argument("--work", type=Path, help="where jobs are made, and found again; default: a folder of its own")
    parser.add_argument("--against-local", action="store_true", help="also without a cluster, whose answer must be it")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    # Workers find the modules beside this file, which they run functions of.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    with tempfile.TemporaryDirectory() as own:
        work = options.work or Path(own)
        rows = [measure(work / f"{steps}", steps, against_local=options.against_local) for steps in options.steps]
    report(f"triage on {WORKERS} Dask workers, {RANKS} ranks", rows, as_json=options.json)


if __name__ == "__main__":
    main()
