"""How often `kair compare` is right about simulated pairs of runs.

python validation/accuracy/compare_runs.py --layouts dp8,3d64 --pairs 200 --changed 20
"""

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

# A script finds the modules of its own folder by itself; measuring.py is in the one above.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from compute_faults import UpgradedKernel
from layouts import STANDARD
from measuring import Row, report, say
from recording import Recording
from simulator import JobSpec, simulate
from table import write_table

from kair_engine.comparison.analysis import compare
from kair_engine.results.compare import CompareResult

FACTOR = 1.2
KERNEL = "attention_backward"


@dataclass(frozen=True)
class Upgrade:
    """What a comparison says of a run in which one kernel became slower, beside what is true."""

    named: bool
    """The kernel, on all ranks, and nothing else."""
    ratio: float
    share: float
    """Of the base's step."""
    true_share: float
    """The same job with and without the slower kernel, over the base's step."""


def healthy(layout: str, steps: int, same_devices: bool, seed: int) -> str | None:
    """What a comparison of two healthy runs says beyond `no change`; None where it says that."""
    devices = seed if same_devices else None
    specs = [JobSpec(STANDARD[layout], steps, 2 * seed + run, devices=devices) for run in range(2)]
    found = _compared(*simulate(specs))
    if found.verdict == "no_change":
        return None
    names = [(one.operator, one) for one in found.changes] + [(f"pool {one.kind}", one) for one in found.pools]
    changes = ", ".join(f"{name} {one.base_us:.0f} → {one.new_us:.0f} µs" for name, one in names)
    return f"seed {seed}: step {found.step_change_share:+.1%}; {changes or 'no operator'}"


def upgraded(layout: str, steps: int, seed: int) -> Upgrade:
    """A healthy run against one with other noise, and one kernel slower on all ranks."""
    base = JobSpec(STANDARD[layout], steps, 2 * seed)
    new = replace(base, seed=2 * seed + 1, faults=(UpgradedKernel(KERNEL, FACTOR),))
    before, after, without = simulate([base, new, new.healthy()])
    found = _compared(before, after)
    first = found.changes[0] if found.changes else None
    kernels = {one.name for stage in before.program.stages for one in stage if one.label == KERNEL}
    return Upgrade(
        named=len(found.changes) == 1 and first is not None and first.operator in kernels and not first.ranks,
        ratio=(first.ratio or 0.0) if first else 0.0,
        share=(first.share_of_step or 0.0) if first else 0.0,
        true_share=(after.step_time_ns - without.step_time_ns) / 1e3 / found.base.step_time_us,
    )


def _compared(before: Recording, after: Recording) -> CompareResult:
    with TemporaryDirectory() as first, TemporaryDirectory() as second:
        return compare(write_table(before, Path(first)), write_table(after, Path(second)))


def _rows(options: argparse.Namespace, pool: ProcessPoolExecutor) -> Iterator[Row]:
    for layout in options.layouts.split(","):
        for same in (True, False):
            ask = partial(healthy, layout, options.steps, same)
            wrong = [said for said in pool.map(ask, range(options.pairs), chunksize=4) if said]
            say("\n".join(wrong))
            yield {
                "job": layout,
                "pair": "healthy, the same devices" if same else "healthy, other devices",
                "pairs": options.pairs,
                "right": options.pairs - len(wrong),
                "error of its factor": None,
                "of its share of the step, points": None,
            }
        found = list(pool.map(partial(upgraded, layout, options.steps), range(options.changed)))
        if found:
            yield {
                "job": layout,
                "pair": f"{KERNEL} × {FACTOR}",
                "pairs": len(found),
                "right": sum(one.named for one in found),
                "error of its factor": max(abs(one.ratio - FACTOR) for one in found),
                "of its share of the step, points": 100 * max(abs(one.share - one.true_share) for one in found),
            }


def main() -> None:
    """Simulates, compares and prints a row per layout and kind of pair."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", default="dp8,3d64", help="separated by commas")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=200, help="of healthy runs")
    parser.add_argument("--changed", type=int, default=20, help="pairs with a slower kernel")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with ProcessPoolExecutor(options.workers) as pool:
        rows = list(_rows(options, pool))
    report(
        "two runs compared", rows, as_json=options.json, notes=[f"{options.steps} steps each; errors are the largest"]
    )


if __name__ == "__main__":
    main()
