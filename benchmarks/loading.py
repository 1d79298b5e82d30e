"""Loading a large Kineto file on one core: MB/s and peak memory, beside HolisticTraceAnalysis where it is given.

    python benchmarks/loading.py ../shared/traces/megatron-tp8/megatron_kineto_0.json.gz --peer-python PYTHON

The large files are made from a real trace of one step by make_large_trace.py. PYTHON is the interpreter of an
environment with HolisticTraceAnalysis. `kair` reads each file into a fragment on disk, every operation with its step,
stage and launch; `kair-tables` keeps the same in memory; `kair-parse` stops where the JSON has become records in
memory. Of the peer, which writes no file, `hta` is all of that, into a DataFrame, and `hta-parse` the JSON alone. On
the largest file all take turns: ratios are medians of the rounds'. MB/s are of CPU time, which other processes on the
machine disturb least. Without its compiled scan, or with --decode, Kair decodes the events.
"""

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measuring import Row, report, run_child, say

HERE = Path(__file__).parent
SIZES_MB = (75, 300, 600)
MINE = ("kair", "kair-tables", "kair-parse")
PAIRS = (("kair-parse", "hta-parse"), ("kair", "hta-parse"), ("kair", "hta"), ("kair-tables", "hta"))
"""What is compared: the same work, with and without Kair's file, and all of Kair's with the peer's parsing alone."""


@dataclass(frozen=True)
class Loads:
    """One reader's runs on one file."""

    reader: str
    megabytes: float
    cpu_s: list[float]
    wall_s: list[float]
    peak_mb: float
    operations: int

    @property
    def speed(self) -> float:
        """Of the median run, in MB/s of CPU time."""
        return self.megabytes / statistics.median(self.cpu_s)

    def row(self) -> Row:
        return {
            "reader": self.reader,
            "MB": round(self.megabytes),
            "runs": len(self.cpu_s),
            "MB/s": self.speed,
            "slowest": self.megabytes / max(self.cpu_s),
            "fastest": self.megabytes / min(self.cpu_s),
            "wall MB/s": self.megabytes / statistics.median(self.wall_s),
            "peak MB": self.peak_mb,
            "operations": self.operations,
        }


def load(file: Path, reader: str, python: str, *, decode: bool) -> dict[str, Any]:
    """What load_once.py says of a run on one core."""
    command = [python, str(HERE / "load_once.py"), reader, str(file)]
    took = run_child([*command, *(["--decode"] if decode else [])], cores=1)
    found: dict[str, Any] = json.loads(took.stdout.splitlines()[-1])
    say(f"{reader}: {file.name} in {found['cpu_s']:.2f} s CPU, {found['wall_s']:.2f} s")
    return found


def together(file: Path, runs: list[dict[str, Any]]) -> Loads:
    return Loads(
        reader=runs[0]["reader"],
        megabytes=file.stat().st_size / 1e6,
        cpu_s=[run["cpu_s"] for run in runs],
        wall_s=[run["wall_s"] for run in runs],
        peak_mb=max(run["peak_mb"] for run in runs),
        operations=runs[0]["operations"],
    )


def in_turns(file: Path, pythons: dict[str, str], runs: int, *, decode: bool) -> dict[str, Loads]:
    """Each reader's runs on one file, every round in another order."""
    taken: dict[str, list[dict[str, Any]]] = {reader: [] for reader in pythons}
    for number in range(runs):
        readers = list(pythons)
        for reader in readers[number % len(readers) :] + readers[: number % len(readers)]:
            taken[reader].append(load(file, reader, pythons[reader], decode=decode and reader in MINE))
    return {reader: together(file, of_reader) for reader, of_reader in taken.items()}


def measure(options: argparse.Namespace, work: Path) -> list[dict[str, Loads]]:
    """By size: each reader's runs, the peer's on the largest file only."""
    found = []
    for size in sorted(options.megabytes):
        file = work / f"{size:g}.json"
        say(f"making {file.name} MB")
        make = [sys.executable, str(HERE / "make_large_trace.py"), str(options.source), str(file)]
        run_child([*make, "--megabytes", str(size)])
        pythons = dict.fromkeys(MINE, sys.executable)
        if options.peer_python and size == max(options.megabytes):
            pythons |= dict.fromkeys(("hta-parse", "hta"), options.peer_python)
        found.append(in_turns(file, pythons, options.runs, decode=options.decode))
        file.unlink()
    return found


def notes(found: list[dict[str, Loads]]) -> list[str]:
    small, large = found[0]["kair"], found[-1]["kair"]
    times, memory = large.megabytes / small.megabytes, large.peak_mb / small.peak_mb
    said = [f"kair: {times:.1f} times the text, {memory:.2f} times the memory"]
    for mine, peer in PAIRS:
        if peer in found[-1]:
            one, other = found[-1][mine], found[-1][peer]
            ratios = sorted(theirs / ours for ours, theirs in zip(one.cpu_s, other.cpu_s, strict=True))
            middle, share = statistics.median(ratios), one.peak_mb / other.peak_mb
            spread = f"{ratios[0]:.1f} to {ratios[-1]:.1f} in {len(ratios)} rounds"
            said.append(f"{mine} is {middle:.1f} times as fast as {peer} ({spread}), with {share:.0%} of its memory")
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a Kineto trace of one step, .json or .json.gz")
    parser.add_argument("--peer-python", help="interpreter of an environment with HolisticTraceAnalysis")
    parser.add_argument("--megabytes", type=float, nargs="+", default=SIZES_MB)
    parser.add_argument("--runs", type=int, default=9, help="of each reader on each file")
    parser.add_argument("--decode", action="store_true", help="as where the scan is not compiled")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        found = measure(options, Path(work))
    rows = [loads.row() for of_size in found for loads in of_size.values()]
    report("loading, one core", rows, as_json=options.json, notes=notes(found))


if __name__ == "__main__":
    main()
