"""A cold `kair triage` of one step of several ranks beside TraceLens' report of their collectives, as whole commands.

    python benchmarks/beside_tracelens.py TRACES --pattern 'megatron_kineto_*.json.gz' --tracelens BIN

TRACES is a folder of one recording, BIN `TraceLens_generate_multi_rank_collective_report_pytorch` of an environment
with TraceLens (its GitHub repository, AMD-AGI/TraceLens). Its report tells by how much each rank is the last to come to
collectives; triage finds the rank, the operator and what it costs. Both take turns, and each of Kair's runs has an
empty cache.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from measuring import Row, Took, report, run_child, say


def kair(program: Path, traces: Path) -> Took:
    with tempfile.TemporaryDirectory() as cache:
        return run_child([str(program), "triage", str(traces), "--json"], environment={"KAIR_CACHE": cache})


def tracelens(program: Path, traces: Path, pattern: str) -> Took:
    ranks = len(list(traces.glob(pattern)))
    with tempfile.TemporaryDirectory() as out:
        where = ["--trace_pattern", str(traces / pattern), "--world_size", str(ranks), "--output_csvs_dir", out]
        return run_child([str(program), *where])


def row(name: str, runs: list[Took]) -> Row:
    seconds = [took.cpu_s for took in runs]
    return {
        "program": name,
        "runs": len(runs),
        "CPU s": statistics.median(seconds),
        "least": min(seconds),
        "most": max(seconds),
        "peak MB": max(took.peak_mb for took in runs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--pattern", default="*.json.gz", help="the files' names, a * where the rank stands")
    parser.add_argument("--tracelens", type=Path, required=True)
    beside = Path(sys.executable).with_name("kair")
    parser.add_argument("--kair", type=Path, default=beside, help="the program (default: beside this interpreter)")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ours, theirs = [], []
    for _ in range(options.runs):
        ours.append(kair(options.kair, options.traces))
        theirs.append(tracelens(options.tracelens, options.traces, options.pattern))
        say(f"kair {ours[-1].cpu_s:.2f} s, TraceLens {theirs[-1].cpu_s:.2f} s")
    ratios = sorted(one.cpu_s / other.cpu_s for one, other in zip(ours, theirs, strict=True))
    middle = statistics.median(ratios)
    note = f"kair takes {middle:.2f} of TraceLens' CPU ({ratios[0]:.2f} to {ratios[-1]:.2f} in {len(ratios)} rounds)"
    report("beside TraceLens", [row("kair triage", ours), row("TraceLens", theirs)], as_json=options.json, notes=[note])


if __name__ == "__main__":
    main()
