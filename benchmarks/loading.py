"""Loading a large Kineto file on one core: MB/s and peak memory, beside HolisticTraceAnalysis where it is given.

    python benchmarks/loading.py ../shared/traces/megatron-tp8/megatron_kineto_0.json.gz --peer-python PYTHON

The large files are made from a real trace of one step by make_large_trace.py. PYTHON is the interpreter of an
environment with HolisticTraceAnalysis. Kair reads each file into a fragment on disk, every operation with its step,
stage and launch. Of the peer, `hta` is the same, into a DataFrame; `hta-parse` stops where the JSON has become one.
MB/s are of CPU time, which other processes on the machine disturb least.
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
PEER_READERS = ("hta-parse", "hta")


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


def load(file: Path, reader: str, python: str, runs: int) -> list[dict[str, Any]]:
    """What load_once.py says of each run on one core."""
    found = []
    for _ in range(runs):
        took = run_child([python, str(HERE / "load_once.py"), reader, str(file)], cores=1)
        found.append(json.loads(took.stdout.splitlines()[-1]))
        say(f"{reader}: {file.name} in {found[-1]['cpu_s']:.1f} s CPU, {found[-1]['wall_s']:.1f} s")
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


def compare(
    source: Path, work: Path, sizes: list[float], runs: int, peer: str | None
) -> tuple[list[Loads], list[Loads]]:
    """(Kair on every size, the peer on the largest). Some of Kair's runs there come after the peer's."""
    mine, others = [], []
    for size in sorted(sizes):
        file = work / f"{size:g}.json"
        say(f"making {file.name} MB")
        make = [sys.executable, str(HERE / "make_large_trace.py"), str(source), str(file)]
        run_child([*make, "--megabytes", str(size)])
        after = runs // 2 if peer and size == max(sizes) else 0
        of_file = load(file, "kair", sys.executable, runs - after)
        if peer and size == max(sizes):
            others += [together(file, load(file, reader, peer, 1)) for reader in PEER_READERS]
        mine.append(together(file, of_file + load(file, "kair", sys.executable, after)))
        file.unlink()
    return mine, others


def notes(mine: list[Loads], others: list[Loads]) -> list[str]:
    small, large = mine[0], mine[-1]
    times, memory = large.megabytes / small.megabytes, large.peak_mb / small.peak_mb
    said = [f"{large.reader}: {times:.1f} times the text, {memory:.2f} times the memory"]
    for peer in others:
        faster, share = large.speed / peer.speed, large.peak_mb / peer.peak_mb
        said.append(f"{large.reader} is {faster:.1f} times as fast as {peer.reader}, with {share:.0%} of its memory")
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a Kineto trace of one step, .json or .json.gz")
    parser.add_argument("--peer-python", help="interpreter of an environment with HolisticTraceAnalysis")
    parser.add_argument("--megabytes", type=float, nargs="+", default=SIZES_MB)
    parser.add_argument("--runs", type=int, default=3, help="of Kair, on each file; the peer has one")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        mine, others = compare(options.source, Path(work), options.megabytes, options.runs, options.peer_python)
    rows = [loads.row() for loads in mine + others]
    report("loading, one core", rows, as_json=options.json, notes=notes(mine, others))


if __name__ == "__main__":
    main()
