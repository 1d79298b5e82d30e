"""Stage 1 as the paper states it, exactly, for many ranks: CPU time and memory of the pairwise distances.

    python benchmarks/localize_scale.py --ranks 2048 8192
    python benchmarks/localize_scale.py --ranks 16384 --windows 1000 --methods kair --runs 1

Kair's `ks_scores`, tile by tile, beside scipy's pdist and squareform on the same curves (ranks × 100 windows of
cumulative counts), each in a process of its own. Their scores must agree. Memory is what the scoring adds to the
process; what is loaded on first use is a column of its own.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from measuring import Row, forget_peak, in_fresh_process, peak_mb, report
from scipy.spatial.distance import pdist, squareform

from kair_engine.localize.paper import ks_scores

Floats = npt.NDArray[np.float64]

OPERATIONS_PER_WINDOW = 80


@dataclass(frozen=True)
class Scored:
    scores: Floats
    start_cpu_s: float
    cpu_s: float
    wall_s: float
    added_mb: float


def curves(ranks: int, windows: int) -> Floats:
    """Cumulative counts of completed operations; every rank runs as many in all, each at a pace of its own."""
    random = np.random.default_rng(ranks)
    counts = random.poisson(OPERATIONS_PER_WINDOW, (ranks, windows)).cumsum(axis=1)
    return np.asarray(np.minimum(counts, OPERATIONS_PER_WINDOW * windows), dtype=np.float64)


def pairwise(values: Floats) -> Floats:
    """The same scores by way of every pair's distance, held at once."""
    return np.asarray(squareform(pdist(values, "chebyshev")).sum(axis=1) / (len(values) - 1))


METHODS: dict[str, Callable[[Floats], Floats]] = {
    "kair": ks_scores,
    "scipy pdist": pairwise,
}


def score(method: str, ranks: int, windows: int, runs: int) -> Scored:
    """The fastest of `runs`."""
    values, function = curves(ranks, windows), METHODS[method]
    begin = time.process_time()
    function(values[:2])  # loads what is loaded on first use
    start = time.process_time() - begin
    cpu, wall = [], []
    forget_peak()
    before = peak_mb()
    for _ in range(runs):
        cpu_begin, wall_begin = time.process_time(), time.perf_counter()
        scores = function(values)
        cpu.append(time.process_time() - cpu_begin)
        wall.append(time.perf_counter() - wall_begin)
    return Scored(scores, start, min(cpu), min(wall), peak_mb() - before)


def compare(methods: list[str], ranks: int, windows: int, runs: int) -> list[Row]:
    """One row for each method. Raises SystemExit where their scores differ."""
    found = {name: in_fresh_process(score, name, ranks, windows, runs) for name in methods}
    first = next(iter(found.values()))
    if not all(np.allclose(first.scores, scored.scores, rtol=1e-12) for scored in found.values()):
        raise SystemExit(f"the scores of {ranks} ranks differ")
    return [
        {
            "method": name,
            "ranks": ranks,
            "windows": windows,
            "start CPU s": scored.start_cpu_s,
            "CPU s": scored.cpu_s,
            "wall s": scored.wall_s,
            "added MB": scored.added_mb,
            "N × N MB": ranks * ranks * 8 / 1e6,
            "CPU ratio": scored.cpu_s / first.cpu_s,
        }
        for name, scored in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=(2048, 8192))
    parser.add_argument("--windows", type=int, default=100)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [row for ranks in options.ranks for row in compare(options.methods, ranks, options.windows, options.runs)]
    report("exact pairwise Kolmogorov-Smirnov scores", rows, as_json=options.json)


if __name__ == "__main__":
    main()
