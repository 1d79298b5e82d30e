"""What a policy takes to decide at many ranks, and what a controller holds after many steps.

    python benchmarks/mitigate_policies.py [--ranks 2048]

Each decision is that of a fresh policy in a job with one slow rank, once at the sizes it began with and once after a
plan came into force within the window. Then a controller looks at a job that goes on, as `kair mitigate control` does.
All times are of the CPU, which neighbours do not lengthen.
"""

import argparse
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from measuring import Row, report

from kair_capture.agent.step_rows import ROW
from kair_capture.coordinator.step_log import StepLog
from kair_capture.places import JobPlaces
from kair_mitigate.controller import Controller
from kair_mitigate.job_state import StateWriter
from kair_mitigate.plans import Plan, State
from kair_mitigate.policy.policies import Policy, View
from kair_mitigate.policy.rates import LONG_WINDOW, Rates
from kair_mitigate.policy.table import POLICIES
from kair_mitigate.records import Records

TIMES, STEPS_A_LOOK, FIRST_LOOKS, LOOKS = 15, 20, 20, 60
Sizes = npt.NDArray[np.int64]


def computed(rng: np.random.Generator, sizes: Sizes) -> npt.NDArray[np.float64]:
    """Seconds of a step; rank 7 takes three times as long."""
    result = 0.005 * sizes * np.exp(0.03 * rng.standard_normal(len(sizes)))
    result[7] *= 3
    return np.asarray(result)


def view(rates: Rates, sizes: Sizes, compute_s: npt.NDArray[np.float64]) -> View:
    """What a policy sees."""
    low, high = np.full(len(sizes), 2), np.full(len(sizes), 20)
    return View(0, 100_000, sizes, False, low, high, rates, compute_s, sizes, 60.0)


def seen(rng: np.random.Generator, plans: list[tuple[int, Sizes]]) -> View:
    """A job after so many steps of each plan."""
    rates, step = Rates(len(plans[0][1])), 0
    for steps, sizes in plans:
        for _ in range(steps):
            rates.add(step, compute_s := computed(rng, sizes), sizes, 0.02)
            step += 1
    return view(rates, sizes, compute_s)


def median_ms(make: Callable[[], Policy], job: View) -> float:
    """Of decisions of fresh policies."""
    took = []
    for _ in range(TIMES):
        policy, begun = make(), time.process_time()
        policy.decide(job)
        took.append(1e3 * (time.process_time() - begun))
    return statistics.median(took)


def watched(store: Path, ranks: int, rng: np.random.Generator) -> tuple[list[float], list[float]]:
    """After each look of a controller: what this process holds, MB; and what the look took, ms."""
    places, even = JobPlaces(store, "job"), np.full(ranks, 16)
    records, log = Records(places.folder / "mitigate"), StepLog(places.steps)
    controller = Controller(places, records, POLICIES["continuous"], restart_s=60.0)
    held, took = list[float](), list[float]()
    for first in range(0, LOOKS * STEPS_A_LOOK, STEPS_A_LOOK):
        self_s = np.array([computed(rng, even) for _ in range(STEPS_A_LOOK)])
        rows, step = np.zeros(self_s.size, ROW), np.repeat(np.arange(first, first + STEPS_A_LOOK), ranks)
        rows["rank"], rows["step"], rows["self_us"] = (
            np.tile(np.arange(ranks), STEPS_A_LOOK),
            step,
            1e6 * self_s.ravel(),
        )
        rows["step_us"] = np.repeat(1e6 * (self_s.max(axis=1) + 0.02), ranks)
        newest = first + STEPS_A_LOOK - 1
        rows["begin_us"] = 1e6 * time.time() - 100_000 * (newest - step)
        log.append(rows)
        log.pack()
        plan = Plan(0, 0, tuple(even.tolist()))
        StateWriter(records.folder, 0).write(State(1, 0, 0, newest, plan), 1 << 30, 0)
        begun = time.process_time()
        controller.look()
        took.append(1e3 * (time.process_time() - begun))
        held.append(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6)
    return held, took


def main() -> int:
    """Measure, and print; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2048)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ranks, rng, rows = options.ranks, np.random.default_rng(0), list[Row]()
    even = np.full(ranks, 16)
    other = even.copy()
    other[7], other[8:18] = 6, 17
    for name, plans in (
        ("even sizes", [(LONG_WINDOW + 50, even)]),
        ("a plan within the window", [(LONG_WINDOW, even), (50, other)]),
    ):
        job = seen(rng, plans)
        rows += [_row(f"{policy}, {name}", median_ms(make, job)) for policy, make in POLICIES.items()]
    with tempfile.TemporaryDirectory() as folder:
        held, took = watched(Path(folder), ranks, rng)
    rows.append(_row(f"the controller's look at {STEPS_A_LOOK} new steps", statistics.median(took)))
    note = f"the process holds {held[FIRST_LOOKS - 1]:.0f} MB after {FIRST_LOOKS} looks, {held[-1]:.0f} after {LOOKS}"
    report(f"{ranks} ranks, medians of {TIMES} decisions and {LOOKS} looks", rows, as_json=options.json, notes=[note])
    return 0


def _row(what: str, took_ms: float) -> Row:
    return {"what": what, "CPU ms": took_ms}


if __name__ == "__main__":
    sys.exit(main())
