"""Choosing fixes of simulated jobs one after another: the first price, and then one more fix each time.

python validation/accuracy/fix_choice.py --layouts dp64,3d64,3d256 --steps 20
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

# A script finds the modules of its own folder by itself; measuring.py is in the one above.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from compute_faults import SlowGpu
from layouts import STANDARD
from measuring import Row, forget_peak, in_fresh_process, peak_mb, report
from simulator import JobSpec, simulate
from table import write_table

from kair_engine.results.whatif import Fix
from kair_engine.trace.model import Trace
from kair_engine.whatif.analysis import model_of, price_fixes

GUILTY, FACTOR, CHOSEN = 7, 1.3, 8


def priced(trace: Trace) -> Row:
    """What the first fix took, and each of those that were chosen in addition."""
    forget_peak()
    fixes = [Fix(ranks=(rank,), kinds=("compute",)) for rank in range(GUILTY, GUILTY + CHOSEN)]
    model = model_of(trace, keep=True)
    took, saved = [], 0.0
    for many in range(1, CHOSEN + 1):
        begin = time.process_time()
        saved = price_fixes(model, fixes[:many]).fixes[-1].saved_us
        took.append(time.process_time() - begin)
    return {
        "saved ms": saved / 1e3,
        "first, CPU s": took[0],
        "one more, CPU s": median(took[1:]),
        "peak MB": peak_mb(),
    }


def main() -> None:
    """Simulates, prices and prints a row per layout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", default="dp64,3d64,3d256", help="separated by commas")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for name in options.layouts.split(","):
        (recording,) = simulate([JobSpec(STANDARD[name], options.steps, 0, (SlowGpu(GUILTY, FACTOR),))])
        with TemporaryDirectory() as folder:
            trace = write_table(recording, Path(folder))
            found = in_fresh_process(priced, trace)
        rows.append({"job": name, "steps": options.steps, "operations": trace.job.operations, **found})
    report("fixes chosen one after another", rows, as_json=options.json, notes=[f"{CHOSEN} fixes are chosen"])


if __name__ == "__main__":
    main()
