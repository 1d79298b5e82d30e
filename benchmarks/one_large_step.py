"""Triage of one step of very many operations: time and peak memory against operations per rank.

    python benchmarks/one_large_step.py --shapes 1000x5000 1000x50000

Makes a job of ranks × operations in a step with make_big_table.py, one rank's kernels 10 % slower, and runs the command
as a person would, in a process of its own. Of a single step the verdict is inconclusive: that rank must come first.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from measuring import Row, report, run_child, say

HERE = Path(__file__).parent
SLOWDOWN = 1.1
COMMANDS = ("triage", "localize", "rank", "timeline")


def make(folder: Path, ranks: int, operations: int, steps: int, collectives: int) -> None:
    """Writes the job, a file for each rank."""
    options = {
        "--ranks": ranks,
        "--steps": steps,
        "--operations": operations,
        "--collectives": collectives,
        "--slow-rank": ranks * 2 // 3,
        "--slowdown": SLOWDOWN,
    }
    arguments = [str(part) for option in options.items() for part in option]
    took = run_child([sys.executable, str(HERE / "make_big_table.py"), str(folder), *arguments])
    say(f"{ranks} ranks × {steps} steps: {took.stdout.strip()} made in {took.wall_s:.0f} s")


def measure(folder: Path, ranks: int, operations: int, steps: int, command: str) -> Row:
    """What one command on the job takes."""
    slow = ranks * 2 // 3
    of_rank = ["--rank", str(slow)] if command == "rank" else []
    took = run_child([sys.executable, "-m", "kair_tui", command, str(folder), "--json", *of_rank])
    say(f"{command}: {took.wall_s:.1f} s")
    data = json.loads(took.stdout)["data"]
    return {
        "command": command,
        "ranks": ranks,
        "operations": operations,
        "steps": steps,
        "file MB": round(sum(file.stat().st_size for file in folder.rglob("*.parquet")) / 1e6),
        "wall s": took.wall_s,
        "CPU s": took.cpu_s,
        "CPU µs an operation": took.cpu_s * 1e6 / (ranks * operations * steps),
        "peak MB": took.peak_mb,
        "verdict": data.get("verdict"),
        "right rank first": _first(command, data) == slow,
    }


def _first(command: str, data: dict[str, Any]) -> int | None:
    """The rank that the answer is about."""
    if command == "timeline":
        return int(data["around"]["operation"]["rank"])
    if command == "rank":
        worst = max(data["parts"], key=lambda part: part["own_us"] - part["typical_us"])
        return int(data["rank"]) if worst["part"] == "compute" else None
    return int((data["ranking"] if command == "triage" else data["scores"])[0]["rank"])


def main() -> None:
    """Makes and measures one shape after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=("1000x5000", "1000x50000"), metavar="RANKSxOPERATIONS[xSTEPS]")
    parser.add_argument("--collectives", type=int, default=100, help="of each rank in a step")
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=("triage",))
    parser.add_argument("--folder", type=Path, help="where to make the jobs, which stay there; default: they go")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows: list[Row] = []
    for shape in options.shapes:
        ranks, operations, *steps = map(int, shape.split("x"))
        with tempfile.TemporaryDirectory() as work:
            folder = (options.folder or Path(work)) / shape
            if not folder.exists():
                make(folder, ranks, operations, steps[0] if steps else 1, options.collectives)
            rows += [
                measure(folder, ranks, operations, steps[0] if steps else 1, command) for command in options.commands
            ]
    report("a step of very many operations", rows, as_json=options.json, notes=[])


if __name__ == "__main__":
    main()
