"""Loss against time, end to end: real jobs with a slow rank, with even batches and under a policy, to the same loss.

    python validation/mitigation/loss.py --jobs 4 [--policies continuous deterministic] [--steps 800] [--seed 1]

Each job of train.py has four ranks, one of which computes two to five times as long from the start. With even batches
it trains a given number of steps; the loss that it then has (the mean of the last 50 steps, all samples of a step) is
what the same job, controlled by `kair mitigate control --auto --policy …`, has to reach. Time counts from before the
first step and has in it all that planning costs.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

HERE = Path(__file__).parent
RANKS, BATCH, SMOOTHED = 4, 16, 50
LONGEST_S = 900
KAIR = (sys.executable, "-m", "kair_tui")


class Drawn(NamedTuple):
    """Which rank computes how many times as long, and what ranks take for a sample and besides, ms."""

    slow: str
    per_sample_ms: float
    fixed_ms: float

    def __str__(self) -> str:
        return f"{self.slow}, {self.per_sample_ms:.1f} ms, {self.fixed_ms:.1f} ms"


class Curve(NamedTuple):
    """What a job wrote down: when each step ended, s, and the mean loss of the last steps."""

    end_s: np.ndarray
    loss: np.ndarray

    def reached(self, target: float) -> int | None:
        """Return the first step, from 0, from which on the loss is no higher; None where it never is."""
        found = np.flatnonzero(self.loss <= target)
        return int(found[0]) if len(found) else None


def trained(store: Path, job: str, policy: str | None, drawn: Drawn, steps: int) -> Curve:
    """Run one job to its end."""
    environment = {**os.environ, "KAIR_STORE": str(store), "OMP_NUM_THREADS": "1"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    losses, log = store / f"{job}.txt", store / f"{job}.log"
    train = [
        str(HERE / "train.py"),
        "--epochs",
        "100000",
        "--checkpoint",
        str(store / f"{job}.pt"),
        "--every",
        "100000",
    ]
    train += ["--batch", str(BATCH), "--slow", drawn.slow, "--fixed-ms", f"{drawn.fixed_ms:.2f}"]
    train += ["--per-sample-ms", f"{drawn.per_sample_ms:.2f}", "--losses", str(losses), "--steps", str(steps)]
    train += ["--lr", "0.002"]
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS))
    beside = [subprocess.Popen([*KAIR, "coordinator", "--job", job], **quiet)]  # type: ignore[call-overload]
    process = subprocess.Popen(
        [*KAIR, "mitigate", "run", "--job", job, "--", sys.executable, *launcher, *train],
        start_new_session=True,
        stdout=log.open("w"),
        stderr=subprocess.STDOUT,
        env=environment,
    )
    if policy is not None:
        control = [*KAIR, "mitigate", "control", job, "--auto", "--policy", policy]
        beside.append(subprocess.Popen(control, **quiet))  # type: ignore[call-overload]
    try:
        if process.wait(LONGEST_S):
            raise SystemExit(f"{job} ended with status {process.returncode}\n{log.read_text()[-4000:]}")
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{job} did not end within {LONGEST_S} s") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 15)
            process.wait()
        for one in beside:
            one.terminate()
            one.wait()
    _, end_s, loss = np.loadtxt(losses, unpack=True)
    return Curve(end_s[SMOOTHED - 1 :], np.convolve(loss, np.full(SMOOTHED, 1 / SMOOTHED), mode="valid"))


def main() -> int:
    """Print a line for each job and policy; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policies", nargs="+", default=["continuous", "deterministic"])
    options = parser.parse_args()
    drawn = random.Random(options.seed)
    print(
        "| slow rank: times; a sample, besides | policy | loss | even: steps, s | with the policy: steps, s | ratio |"
    )
    print("|---|---|---|---|---|---|")
    ratios: dict[str, list[float]] = {policy: [] for policy in options.policies}
    for number in range(options.jobs):
        slow = f"{drawn.randrange(RANKS)}:{drawn.uniform(2, 5):.2f}"
        what = Drawn(slow, drawn.uniform(0.8, 2), drawn.uniform(0, 8))
        with tempfile.TemporaryDirectory() as store:
            even = trained(Path(store), f"even{number}", None, what, options.steps)
            target = float(even.loss[-1])
            even_s, even_steps = float(even.end_s[-1]), len(even.end_s) + SMOOTHED - 1
            for policy in options.policies:
                found = trained(Path(store), f"{policy}{number}", policy, what, options.steps + SMOOTHED)
                at = found.reached(target)
                told = "not reached | –"
                if at is not None:
                    ratio = float(found.end_s[at]) / even_s
                    ratios[policy].append(ratio)
                    told = f"{at + SMOOTHED}, {found.end_s[at]:.1f} s | {ratio:.2f}"
                print(f"| {what} | {policy} | {target:.4f} | {even_steps}, {even_s:.1f} s | {told} |", flush=True)
    for policy, found in ratios.items():
        if found:
            print(f"\n{policy}: {np.mean(found):.2f} of the time ({min(found):.2f} to {max(found):.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
