"""Whom does the rap sheet tell of? Stores without a slow device, looked at after every job; and stores with one.

    python validation/evidence/rap_sheet.py [--stores 1000] [--jobs 20] [--seed 1]

Devices of a store are dealt to the ranks of its jobs at random. In a job each takes longer than its peers by what it
differs by for good, a fifth of a hundredth of the step, and by that job's noise, drawn anew for each: 0.1 % to 1.5 %
of the step, normal, or with tails (Student's t of 2 degrees of freedom). Looked at is after each job, and a device
counts as told if it ever was. In stores with a slow device that takes 3 % of the step longer in 8 of 10 jobs.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt

from kair_engine.ledger.rap_sheet import records_of
from kair_engine.results.ledger import JobRun, RunOfRank

SLOWER, OFTEN, FOR_GOOD = 0.03, 0.8, 0.002
LEAST_NOISE, MOST_NOISE = 0.001, 0.015
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Kind:
    """What a store is like."""

    devices: int
    ranks: int
    tails: bool


KINDS = (Kind(8, 8, False), Kind(8, 8, True), Kind(16, 8, False), Kind(64, 64, False), Kind(64, 64, True))


def run_of(
    number: int, kind: Kind, random: np.random.Generator, slow: str | None, own: npt.NDArray[np.float64]
) -> JobRun:
    """One job of a store; `slow` is the UUID of its slow device, `own` (devices) what each differs by for good."""
    noise = random.uniform(LEAST_NOISE, MOST_NOISE)
    drawn = random.standard_t(2, kind.ranks) if kind.tails else random.normal(size=kind.ranks)
    dealt = random.permutation(kind.devices)[: kind.ranks]
    devices = [f"GPU-{at:08x}" for at in dealt]
    excess = noise * drawn + own[dealt]
    if slow in devices and random.random() < OFTEN:
        excess[devices.index(slow)] += SLOWER
    excess -= np.median(excess)
    ranks = tuple(
        RunOfRank(
            rank=rank,
            role="all",
            host=f"node-{int(device[4:], 16) // 8}",
            device=device,
            nics=(),
            driver="570",
            excess_share=float(share),
            accused=False,
        )
        for rank, (device, share) in enumerate(zip(devices, excess, strict=True))
    )
    return JobRun(
        job=f"job{number}",
        run=f"{number:032x}",
        at=(BEGIN + timedelta(days=number)).isoformat(),
        world_size=kind.ranks,
        framework="torch",
        samples=None,
        operations=None,
        step_time_us=1e5,
        noise_us=None,
        steps=10,
        ranks=ranks,
    )


def told_in(kind: Kind, jobs: int, random: np.random.Generator, slow: str | None) -> dict[str, int]:
    """Name → after how many jobs it was told first."""
    runs, told = list[JobRun](), dict[str, int]()
    own = FOR_GOOD * random.normal(size=kind.devices)
    for number in range(jobs):
        runs.append(run_of(number, kind, random, slow, own))
        for record in records_of(runs):
            told.setdefault(record.name, number + 1)
    return told


def main() -> int:
    """Prints both; 0 where no more than 1 % of devices, and of stores, were told of without reason."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    random, wrong_stores, wrong, units = np.random.default_rng(given.seed), 0, 0, 0
    per_kind = max(given.stores // len(KINDS), 1)
    for kind in KINDS:
        false = [told_in(kind, given.jobs, random, None) for _ in range(per_kind)]
        wrong_stores += sum(map(bool, false))
        wrong += sum(map(len, false))
        units += per_kind * (kind.devices + -(-kind.devices // 8))
        seen, after, others = 0, [], 0
        for at in range(max(per_kind // 4, 1)):
            slow = f"GPU-{at % kind.devices:08x}"
            told = told_in(kind, given.jobs, random, slow)
            seen += slow in told
            after += [told[slow]] if slow in told else []
            others += len(set(told) - {slow, f"node-{int(slow[4:], 16) // 8}"})
        usual = f"after {np.median(after):.0f} jobs" if after else "never"
        print(
            f"{kind.devices} devices, jobs of {kind.ranks} ranks, {'tails' if kind.tails else 'normal'}: "
            f"{sum(map(len, false))} told in {per_kind} healthy stores; "
            f"slow by 3 %: told in {seen} of {max(per_kind // 4, 1)} stores, {usual}, others in them {others}",
            flush=True,
        )
    stores = per_kind * len(KINDS)
    print(f"healthy: {wrong} of {units} devices and hosts told, in {wrong_stores} of {stores} stores")
    return 0 if wrong <= 0.01 * units and wrong_stores <= 0.01 * stores else 1


if __name__ == "__main__":
    sys.exit(main())
