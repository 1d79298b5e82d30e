"""Whether fixing the guilty rank in the replay saves what its fault really cost, in simulated jobs.

python validation/accuracy/prices.py
python validation/accuracy/prices.py --layouts dp8,3d64 --only gpu --seeds 3

The truth is the time of the job less that of the same job without the fault, in percentage points of the step.
A fix makes a rank like its peers also where it would have been slower than them without the fault, by a kernel that
took ten times as long once, say. What the same fix saves in the job without the fault is therefore taken off the price.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from compute_faults import SlowGpu, SlowKernel
from costs import Noise
from fault_model import Fault
from host_faults import GarbageCollection, HostBound, SlowInput, Stall
from layouts import STANDARD, JobLayout
from network_faults import SlowEdge, SlowLink
from scenarios import EDGE_DELAY_MS
from simulator import JobSpec, simulate
from table import write_table

from kair_engine.results.whatif import Fix
from kair_engine.trace.model import Trace
from kair_engine.whatif.analysis import model_of
from kair_engine.whatif.model import Baseline, ReplayedSteps
from kair_engine.whatif.prices import step_errors

LAYOUTS = ("dp8", "dp64", "3d64")


@dataclass(frozen=True)
class Case:
    """A fault, and the fix that takes it away."""

    name: str
    fault: Fault
    fix: Fix


@dataclass(frozen=True)
class Row:
    """One job's price, in percentage points of its step."""

    layout: str
    fault: str
    seed: int
    truth: float
    price: float
    usually: float
    """What the fix saves in the job without the fault."""
    replay_error: float
    seconds: float


def main() -> None:
    """Simulates, replays and prints a table with one line per layout and fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", default=",".join(LAYOUTS), help="separated by commas")
    parser.add_argument("--only", default="", help="faults whose name contains this")
    parser.add_argument("--seeds", type=int, default=4, help="jobs per layout and fault")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--spread", type=float, default=Noise().spread, help="of the GPUs' persistent speeds")
    options = parser.parse_args()
    errors = "mean error, pp | worst error, pp | replay error"
    print(f"| job | fault | truth, pp | price, pp | without the fault, pp | {errors} | CPU seconds |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|")
    for layout in options.layouts.split(","):
        rows = [row for seed in range(options.seeds) for row in _rows(layout, seed, options)]
        for fault in dict.fromkeys(row.fault for row in rows):
            print(_line([row for row in rows if row.fault == fault]), flush=True)


def _cases(layout: JobLayout, rank: int) -> Iterator[Case]:
    of_rank = Fix(ranks=(rank,))
    for factor in (1.1, 1.3):
        yield Case(f"slow GPU ×{factor}", SlowGpu(rank, factor), Fix(ranks=(rank,), kinds=("compute",)))
    yield Case("slow GPU ×1.1, all of the rank fixed", SlowGpu(rank, 1.1), of_rank)
    attention = Fix(ranks=(rank,), operators=("*flash_fwd*",))
    yield Case("slow kernel ×1.5", SlowKernel(rank, "attention", 1.5), attention)
    yield Case("slow input 15 %", SlowInput(rank, 0.15), Fix(ranks=(rank,), kinds=("input",)))
    of_host = Fix(ranks=(rank,), kinds=("host",))
    yield Case("host-bound 15 %", HostBound(rank, 0.15), of_host)
    yield Case("stall of 40 % in 30 % of the steps", Stall(rank, 0.3, 0.4), of_host)
    everybody = Fix(kinds=("host",))
    yield Case("garbage collection, invisible, all hosts fixed", GarbageCollection(0.07, 20.0), everybody)
    collection = GarbageCollection(0.07, 20.0, visible=True)
    yield Case("garbage collection, visible", collection, Fix(kinds=("gc",)))
    if layout.kind == "3d":
        ends = layout.rank_at(1, 2, 1), layout.rank_at(2, 2, 1)
        slow = SlowEdge(1, 2, 1, extra_ms=EDGE_DELAY_MS / (2 * layout.microbatches))
        yield Case("slow pipeline edge +8 ms", slow, Fix(ranks=ends, kinds=("communication",)))
        group = layout.dp_group(rank)
        yield Case("slow link ×4", SlowLink(rank, 4.0), Fix(ranks=group, kinds=("communication",)))


def _rows(name: str, seed: int, options: argparse.Namespace) -> Iterator[Row]:
    layout = STANDARD[name]
    rank = int(np.random.default_rng((seed, 1000)).integers(layout.ranks))
    for case in _cases(layout, rank):
        if options.only not in case.name:
            continue
        spec = JobSpec(layout, options.steps, seed, (case.fault,), Noise(spread=options.spread))
        faulty, healthy = simulate([spec, spec.healthy()])
        with TemporaryDirectory() as folder:
            usual = _replayed(write_table(healthy, Path(folder) / "healthy"), case.fix)
            trace = write_table(faulty, Path(folder) / "faulty")
            begin = time.process_time()
            found = _replayed(trace, case.fix)
            seconds = time.process_time() - begin
        share = 100 / faulty.step_time_ns
        truth = (faulty.step_time_ns - healthy.step_time_ns) * share
        price, usually = (float((one.times[0] - one.times[1]).mean()) * share for one in (found, usual))
        off = float(step_errors(found.times[0], found.measured).max())
        yield Row(name, case.name, seed, truth, price, usually, off, seconds)


def _replayed(trace: Trace, fix: Fix) -> ReplayedSteps:
    return model_of(trace).replay([Baseline.RECORDED, (fix,)])


def _line(rows: list[Row]) -> str:
    error = np.abs([row.price - row.usually - row.truth for row in rows])
    truth, price, usually, replay, seconds = (
        np.mean([getattr(row, field) for row in rows])
        for field in ("truth", "price", "usually", "replay_error", "seconds")
    )
    figures = f"{truth:.2f} | {price:.2f} | {usually:.2f} | {error.mean():.2f} | {error.max():.2f}"
    figures += f" | {replay:.0e} | {seconds:.2f}"
    return f"| {rows[0].layout} | {rows[0].fault} | {figures} |"


if __name__ == "__main__":
    main()
