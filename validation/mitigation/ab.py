"""Predicted and measured: real jobs whose plans alternate, A B A B, since a machine's load drifts.

    python validation/mitigation/ab.py --jobs 6 [--seed 1]

Each job of train.py has a rank that computes two to five times as long. It runs under capture and `kair mitigate run`;
after a plan half way, which tells what of a step no batch changes, the best sizes are predicted, and then ordered in
turns with even ones. Measured are capture's step times, in the mean over the steps of each plan.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kair_mitigate.controller import Steps, stepped
from kair_mitigate.job_state import JobState, read_state
from kair_mitigate.policy.prices import replayed_s
from kair_mitigate.policy.rates import Rates
from kair_mitigate.policy.split import half_way, split
from kair_mitigate.records import Records

HERE = Path(__file__).parent
RANKS, BATCH, STEPS, SETTLED = 3, 16, 40, 6
LONGEST_S = 600


class Measured(NamedTuple):
    """One job; seconds a step."""

    slow: str
    sizes: tuple[int, ...]
    even_s: float
    resized_s: float
    predicted_s: float


def measured(job: str, store: Path, drawn: random.Random) -> Measured:
    """Runs one job to the end of its turns, and ends it."""
    factor, per_sample, fixed = drawn.uniform(2, 5), drawn.uniform(0.8, 2), drawn.uniform(0, 8)
    slow = f"{drawn.randrange(RANKS)}:{factor:.2f}"
    environment = {**os.environ, "KAIR_STORE": str(store), "OMP_NUM_THREADS": "1"}
    kair = [sys.executable, "-m", "kair_tui"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    coordinator = subprocess.Popen([*kair, "coordinator", "--job", job], **quiet)  # type: ignore[call-overload]
    command = [*kair, "mitigate", "run", "--job", job, "--", sys.executable, "-m", "torch.distributed.run"]
    command += ["--standalone", "--nproc-per-node", str(RANKS), str(HERE / "train.py"), "--epochs", "100000"]
    command += ["--checkpoint", str(store / f"{job}.pt"), "--every", "100000", "--batch", str(BATCH), "--slow", slow]
    command += ["--per-sample-ms", f"{per_sample:.2f}", "--fixed-ms", f"{fixed:.2f}"]
    process = subprocess.Popen(command, start_new_session=True, **quiet)  # type: ignore[call-overload]
    try:
        return _turns(f"{slow}, {per_sample:.1f} ms, {fixed:.1f} ms", store / job)
    finally:
        os.killpg(process.pid, 15)
        process.wait()
        coordinator.terminate()
        coordinator.wait()


def _turns(slow: str, folder: Path) -> Measured:
    known = _after(folder, STEPS)
    records, even = Records(folder / "mitigate"), known.state.plan.sizes
    rates = _rates(folder, known)
    first = _best(rates, even)
    records.order(tuple(half_way(np.array(even), first).tolist()), "ab")
    known = _after(folder, known.state.step + 2 * STEPS)
    rates = _rates(folder, known)
    wanted = tuple(_best(rates, even).tolist())
    fit = rates.fitted()
    predicted = replayed_s(rates.recent(STEPS), np.array(wanted), fit.fixed_samples)
    spans: dict[tuple[int, ...], list[float]] = {even: [], wanted: []}
    for sizes in (even, wanted) * 2:
        records.order(sizes, "ab")
        begun = _in_force(folder, sizes)
        known = _after(folder, begun + STEPS)
        numbers, _, step_s, _ = _steps(folder, known)
        chosen = (numbers >= begun + SETTLED) & (numbers < begun + STEPS)
        spans[sizes].append(float(step_s[:, chosen].max(axis=0).mean()))
    return Measured(slow, wanted, float(np.mean(spans[even])), float(np.mean(spans[wanted])), predicted)


def _best(rates: Rates, even: tuple[int, ...]) -> np.ndarray:
    fit, whole = rates.fitted(), sum(even)
    bounds = np.full(len(even), 2), np.full(len(even), whole)
    return split(fit.fixed_s, fit.slope_s, whole, *bounds)


def _rates(folder: Path, known: JobState) -> Rates:
    rates = Rates(RANKS)
    numbers, self_s, step_s, _ = _steps(folder, known)
    for at, number in enumerate(numbers.tolist()):
        if (plan := known.plan_at(number)) is not None:
            rest = max(float(step_s[:, at].max() - self_s[:, at].max()), 0.0)
            rates.add(number, self_s[:, at], np.array(plan.sizes), rest)
    return rates


def _steps(folder: Path, known: JobState) -> Steps:
    told = stepped(folder / "steps", known)
    if told is None:
        raise SystemExit(f"capture told no step of {folder.name}")
    return told


def _after(folder: Path, step: int) -> JobState:
    return _until(folder, lambda known: known.state.step >= step)


def _in_force(folder: Path, sizes: tuple[int, ...]) -> int:
    known = _until(folder, lambda known: known.state.plan.sizes == sizes)
    return known.in_force[-1].from_step


def _until(folder: Path, holds: object) -> JobState:
    end = time.monotonic() + LONGEST_S
    while time.monotonic() < end:
        known = read_state(folder / "mitigate")
        if known is not None and holds(known):  # type: ignore[operator]
            return known
        time.sleep(0.2)
    raise SystemExit(f"{folder.name} did not come so far within {LONGEST_S} s")


def main() -> int:
    """Print a line for each job, and what they have in common; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    drawn, every = random.Random(options.seed), list[Measured]()
    print("| slow rank: times; a sample, besides | sizes | even | resized | step | predicted | of the saving |")
    print("|---|---|---|---|---|---|---|")
    for number in range(options.jobs):
        with tempfile.TemporaryDirectory() as store:
            one = measured(f"job{number}", Path(store), drawn)
        every.append(one)
        saved = one.even_s - one.resized_s
        step, away = one.resized_s / one.even_s - 1, one.predicted_s / one.resized_s - 1
        of_saving = (one.even_s - one.predicted_s) / saved - 1
        times = (
            f"{1e3 * one.even_s:.1f} ms | {1e3 * one.resized_s:.1f} ms | {step:+.0%} | {away:+.1%} | {of_saving:+.0%}"
        )
        print(f"| {one.slow} | {','.join(map(str, one.sizes))} | {times} |", flush=True)
    close = sum(abs(one.predicted_s / one.resized_s - 1) <= 0.07 for one in every)
    print(f"\nwithin 7 % of the step: {close} of {len(every)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
