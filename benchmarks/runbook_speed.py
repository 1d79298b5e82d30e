"""A runbook of ten commands beside ten `kair` processes, about one simulated job of many ranks.

    python benchmarks/runbook_speed.py --layout dp64 --steps 20

The runbook's own document tells how often the job was read. Both find the traces parsed; the fastest of `--runs`
counts, by CPU and by the clock on the wall, taken in turns. The answers must be the same.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

# The simulator stands in a folder of its own.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "validation" / "accuracy"))

from compute_faults import SlowGpu
from kineto import write_kineto
from layouts import STANDARD
from measuring import Row, Took, report, run_child
from simulator import JobSpec, simulate

GUILTY, FACTOR = 7, 1.3
RUNBOOK = """\
info
steps
worst = localize
use rank $worst.rank
rank
pinpoint
blame
blame --step last
use rank all
blame
localize --by host
frequency
"""
KAIR = (sys.executable, "-m", "kair_tui")


def statements(book: Path, job: Path, environment: dict[str, str]) -> dict[str, Any]:
    """What the runbook says it did. Raises SystemExit where it is not ten commands about a job that was read once."""
    command = [*KAIR, "run", str(book), str(job), "-o", "json", "--quiet"]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, check=True)
    data: dict[str, Any] = json.loads(done.stdout)["data"]
    asked = [one for one in data["statements"] if one["command"]]
    if len(asked) != 10 or data["jobs_read"] != 1:
        raise SystemExit(f"{len(asked)} commands, {data['jobs_read']} jobs read")
    for one in asked:
        alone = [*KAIR, *shlex.split(one["command"])[1:], "--json"]
        said = subprocess.run(alone, env={**os.environ, **environment}, capture_output=True, check=True).stdout
        if json.loads(said) != one["result"]:
            raise SystemExit(f"{one['command']} answers something else alone")
    return data


def together(parts: list[Took]) -> Took:
    """Processes one after the other."""
    wall, cpu = sum(one.wall_s for one in parts), sum(one.cpu_s for one in parts)
    return Took(wall, cpu, max(one.peak_mb for one in parts), "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", default="dp64", choices=STANDARD)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    (recording,) = simulate([JobSpec(STANDARD[options.layout], options.steps, 0, (SlowGpu(GUILTY, FACTOR),))])
    with tempfile.TemporaryDirectory() as folder:
        job, book = Path(folder) / "job", Path(folder) / "ten.kair"
        write_kineto(recording, job)
        book.write_text(RUNBOOK)
        environment = {"KAIR_CACHE": str(Path(folder) / "cache")}
        data = statements(book, job, environment)
        commands = [shlex.split(one["command"])[1:] for one in data["statements"] if one["command"]]
        alone, as_one = [], []
        for _ in range(options.runs):
            alone.append(together([run_child([*KAIR, *words], environment=environment) for words in commands]))
            as_one.append(run_child([*KAIR, "run", str(book), str(job)], environment=environment))
    rows: list[Row] = []
    best = {"ten processes": alone, "one runbook": as_one}
    ten_wall, ten_cpu = min(one.wall_s for one in alone), min(one.cpu_s for one in alone)
    for name, took in best.items():
        wall = min(one.wall_s for one in took)
        cpu = min(one.cpu_s for one in took)
        ratios: Row = {"CPU ratio": ten_cpu / cpu, "wall ratio": ten_wall / wall}
        rows.append({"run": name, "CPU s": cpu, "wall s": wall, **ratios})
    report(f"ten commands about {options.layout}", rows, as_json=options.json)


if __name__ == "__main__":
    main()
