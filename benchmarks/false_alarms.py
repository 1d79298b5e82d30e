"""How often stage 1 accuses a rank of a simulated healthy job, and how often it finds a slow one.

The simulation is of the small table stage 1 tests (class × rank excesses per step), not of a job: each rank has a
persistent speed of its own, noise in every step, and in some steps a benign delay. What comes before that table
(reading, matching, self times) is not exercised here.

    python benchmarks/false_alarms.py --jobs 300
"""

import argparse
import json

import numpy as np

from kair_engine.excess import CLASSES, JobExcess, LateArrivals, StepExcess
from kair_engine.stages.localize import conclude

STEP_NS = 1e8
NOISE = 0.005
"""Of the step, in every step and rank."""
DELAYS = 0.02
"""Share of (rank, step) with a benign delay; it takes 10 % of the step in the mean (exponential)."""
NO_ARRIVALS = LateArrivals(*(np.zeros(0, dtype=np.int64) for _ in range(4)))
LAYOUTS = ((4, 1), (8, 1), (64, 1), (64, 4))


def simulated(seed: int, *, ranks: int, roles: int, steps: int, spread: float, slow: float) -> JobExcess:
    """A job's excesses; `spread` is the ranks' persistent deviation, `slow` what rank 1 takes longer, of the step."""
    rng = np.random.default_rng(seed)
    role = np.arange(ranks) * roles // ranks
    base = rng.normal(0, spread, ranks)
    base[1] += slow
    table = []
    for step in range(steps):
        compute = base + rng.normal(0, NOISE, ranks) + (rng.random(ranks) < DELAYS) * rng.exponential(0.1, ranks)
        host = np.abs(rng.normal(0, NOISE / 2, ranks))
        by_class = np.zeros((len(CLASSES), ranks))
        for row, values in ((0, compute), (2, host)):
            for code in range(roles):
                members = role == code
                by_class[row, members] = STEP_NS * (values[members] - np.median(values[members]))
        table.append(StepExcess(step, by_class, STEP_NS, NO_ARRIVALS, 0, 0))
    names = {rank: f"stage {code}" for rank, code in enumerate(role)}
    return JobExcess(np.arange(ranks), role, names, tuple(table))


def rates(jobs: int, *, ranks: int, roles: int, steps: int, spread: float, slow: float) -> tuple[float, float]:
    """(share of jobs in which an innocent rank is accused, share in which rank 1 is)."""
    innocent = guilty = 0
    for seed in range(jobs):
        job = simulated(seed, ranks=ranks, roles=roles, steps=steps, spread=spread, slow=slow)
        accused = {rank for anomaly in conclude(job).anomalies for rank in anomaly.ranks}
        guilty += 1 in accused
        innocent += bool(accused - {1}) if slow else bool(accused)
    return innocent / jobs, guilty / jobs


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=300, help="simulated jobs per row")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    rows = []
    for ranks, roles in LAYOUTS:
        for spread in (0.0, 0.005, 0.01):
            for steps in (1, 20):
                where = {"ranks": ranks, "roles": roles, "steps": steps, "spread": spread}
                healthy, _ = rates(options.jobs, **where, slow=0.0)
                _, found = rates(options.jobs, **where, slow=0.05)
                rows.append({**where, "healthy_accused": healthy, "slow_5_percent_found": found})
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{'ranks':>5} {'roles':>5} {'steps':>5} {'spread':>7} {'healthy accused':>16} {'+5 % found':>11}")
    for row in rows:
        print(
            f"{row['ranks']:5} {row['roles']:5} {row['steps']:5} {row['spread']:7.1%} {row['healthy_accused']:16.1%} "
            f"{row['slow_5_percent_found']:11.1%}"
        )


if __name__ == "__main__":
    main()
