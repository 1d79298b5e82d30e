"""What-if analyses of simulated jobs of many ranks: CPU time and memory, every rank priced by itself.

python validation/accuracy/whatif_scale.py --layouts dp256,3d256 --steps 20
"""

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

# A script finds the modules of its own folder by itself; measuring.py is in the one above.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from compute_faults import SlowGpu
from layouts import STANDARD
from measuring import Row, forget_peak, in_fresh_process, peak_mb, report
from simulator import JobSpec, simulate
from table import write_table

from kair_engine.trace.model import Trace
from kair_engine.whatif.analysis import whatif

GUILTY, FACTOR = 7, 1.3


def analysed(trace: Trace) -> Row:
    """What the analysis took, and what it says of the rank with the slow GPU."""
    forget_peak()
    begin = time.process_time()
    result = whatif(trace)
    took = time.process_time() - begin
    return {
        "ranks priced": len(result.by_rank),
        "first": next(iter(result.by_rank)),
        "S": result.slowdown,
        "CPU s": took,
        "peak MB": peak_mb(),
    }


def main() -> None:
    """Simulates, analyses and prints a row per layout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", default="dp256,3d256", help="separated by commas")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for name in options.layouts.split(","):
        (recording,) = simulate([JobSpec(STANDARD[name], options.steps, 0, (SlowGpu(GUILTY, FACTOR),))])
        with TemporaryDirectory() as folder:
            trace = write_table(recording, Path(folder))
            found = in_fresh_process(analysed, trace)
        rows.append({"job": name, "steps": options.steps, "operations": trace.job.operations, **found})
    notes = [f"rank {GUILTY}'s GPU is {FACTOR} times slower"]
    report("what-if of many ranks", rows, as_json=options.json, notes=notes)


if __name__ == "__main__":
    main()
