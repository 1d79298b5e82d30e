"""Triage of ten million operations: time, peak memory, and whether it finds the rank that is slow.

    python benchmarks/big_table.py --shapes 64x20 1024x2

Makes a job of ranks × steps with make_big_table.py, one rank's kernels 10 % slower, and runs the commands on it
as a person would, each in a process of its own.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measuring import Row, report, run_child, say

HERE = Path(__file__).parent
OPERATIONS = 10_000_000
SLOWDOWN = 1.1
COMMANDS = {
    "triage": ["triage"],
    "localize": ["localize"],
    "localize-paper": ["localize", "--method", "paper"],
}
ABOUT_PAPER = (
    "localize-paper is here for its cost: it compares how many operations the ranks have completed over time, and"
    " ranks that wait for the slow one in every collective complete them at its pace"
)


@dataclass(frozen=True)
class Job:
    folder: Path
    ranks: int
    steps: int

    @property
    def slow_rank(self) -> int:
        return self.ranks * 2 // 3

    @property
    def megabytes(self) -> float:
        return sum(file.stat().st_size for file in self.folder.rglob("*.parquet")) / 1e6


def make(job: Job, ranks_per_file: int) -> None:
    options = {
        "--ranks": job.ranks,
        "--steps": job.steps,
        "--operations": OPERATIONS // (job.ranks * job.steps),
        "--slow-rank": job.slow_rank,
        "--slowdown": SLOWDOWN,
        "--ranks-per-file": ranks_per_file,
    }
    arguments = [str(part) for option in options.items() for part in option]
    took = run_child([sys.executable, str(HERE / "make_big_table.py"), str(job.folder), *arguments])
    say(f"{job.ranks} ranks × {job.steps} steps: {took.stdout.strip()} made in {took.wall_s:.0f} s")


def measure(job: Job, command: str) -> Row:
    took = run_child([sys.executable, "-m", "kair_tui", *COMMANDS[command], str(job.folder), "--json"])
    say(f"{command}: {took.wall_s:.1f} s")
    found = first_found(json.loads(took.stdout)["data"])
    return {
        "command": command,
        "ranks": job.ranks,
        "steps": job.steps,
        "file MB": round(job.megabytes),
        "wall s": took.wall_s,
        "CPU s": took.cpu_s,
        "peak MB": took.peak_mb,
        "first found": ", ".join(map(str, found)),
        "right": found == [job.slow_rank],
    }


def first_found(data: dict[str, Any]) -> list[int]:
    """The ranks of triage's costliest finding, or the one that localize puts first."""
    if "scores" in data:
        return [data["scores"][0]["rank"]]
    return [rank for finding in data["findings"][:1] for rank in finding["ranks"]]


def compare(shapes: Sequence[str], commands: Sequence[str], ranks_per_file: int, work: Path) -> list[Row]:
    rows = []
    for shape in shapes:
        ranks, steps = map(int, shape.split("x"))
        job = Job(work / shape, ranks, steps)
        make(job, ranks_per_file)
        rows += [measure(job, command) for command in commands]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=("64x20", "1024x2"), metavar="RANKSxSTEPS")
    parser.add_argument("--ranks-per-file", type=int, default=1)
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        rows = compare(options.shapes, options.commands, options.ranks_per_file, Path(work))
    report(f"{OPERATIONS // 10**6} million operations", rows, as_json=options.json, notes=[ABOUT_PAPER])


if __name__ == "__main__":
    main()
