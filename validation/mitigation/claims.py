"""Claims compared with even batches and with each-step in real jobs of four gloo ranks, in turns (A B A B).

    python validation/mitigation/claims.py [--rounds 6] [--calm 6] [--seed 1]

In each round every way trains the same steps: the spells of its ranks are drawn by round. A rank is in a spell, of 5 to
24 steps, a third of the time: then some rank is in one four fifths of the time, as in the simulated jobs of 16 ranks.
It computes 1.5 to 4 times as long then. In calm rounds there are none. Computing is a sleep, so that the cores, which
other programs use, are no part of it. each-step decides by the ranks' own times in each step, and its sizes hold 8
steps later, as in the simulation, or in the next step. A step is timed from its first batch to the optimizer's end;
the first ten of a turn, in which ways change, are left out.
"""

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from kair_mitigate.plans import Plan
from kair_mitigate.policy.policies import EachStep, View
from kair_mitigate.policy.rates import Rates
from kair_mitigate.policy.simulation import DELAY_STEPS, HIGHEST, LOWEST
from kair_mitigate.training_loader import Loader

RANKS, BATCH, BATCHES = 4, 16, 4
STEPS, SETTLING = 60, 10
SAMPLE_S, BATCH_S = 0.004, 0.001
SPELL_SHARE, SPELL_STEPS, SPELL_TIMES = 1 / 3, (5, 24), (1.5, 4.0)
WAYS = ("static", "each-step, 8 steps late", "each-step, no delay", "claims")
LONGEST_S = 3600


class Ordered(Loader):
    """A loader whose plans come from this program, at the same step on all ranks."""

    version = 0

    def order(self, sizes: Sequence[int], *, late: int = 0, claims: bool = False) -> None:
        """Have sizes, or claims, hold from a step on."""
        self.version += 1
        plan = Plan(self.version, self._state.step + late, tuple(sizes), claims=claims)
        self._state, self._ahead = self._state.heard(plan), self._ahead.heard(plan)


class Sizes:
    """Each-step's sizes of one delay, from turn to turn."""

    def __init__(self, late: int) -> None:
        self.late, self.policy, self.sizes = late, EachStep(), np.full(RANKS, BATCH)

    def decide(self, step: int, compute_s: np.ndarray, done: np.ndarray) -> None:
        """Take in a step."""
        bounds = np.full(RANKS, LOWEST), np.full(RANKS, HIGHEST * BATCH)
        view = View(step, 1, self.sizes, False, *bounds, Rates(RANKS), compute_s, done)
        action = self.policy.decide(view)
        self.sizes = self.sizes if action.sizes is None else action.sizes


def spells(drawn: random.Random) -> Iterator[float]:
    """Yield how many times as long a rank computes, step by step."""
    mean = sum(SPELL_STEPS) / 2
    while True:
        for _ in range(1 + int(drawn.expovariate(SPELL_SHARE / (1 - SPELL_SHARE) / mean))):
            yield 1.0
        times = drawn.uniform(*SPELL_TIMES)
        for _ in range(drawn.randint(*SPELL_STEPS)):
            yield times


class Job:
    """One rank's part."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = DistributedDataParallel(torch.nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        rows = [(torch.zeros(8), torch.zeros(1))] * (1 << 20)
        self.loader = Ordered(rows, BATCH, accumulate=BATCHES, uneven_accumulation=True)
        self.batches = iter(self.loader)
        self.ways = {"each-step, 8 steps late": Sizes(DELAY_STEPS), "each-step, no delay": Sizes(0)}

    def turn(self, way: str, paces: Sequence[float]) -> list[float]:
        """Train some steps; seconds of each."""
        sizes, times = self.ways.get(way), list[float]()
        self.loader.order((BATCH,) * RANKS if sizes is None else sizes.sizes.tolist(), claims=way == "claims")
        for pace in paces:
            begun = time.perf_counter()
            computed, done = self.step(pace)
            times.append(time.perf_counter() - begun)
            told = torch.zeros(2, RANKS, dtype=torch.float64)
            told[:, dist.get_rank()] = torch.tensor([computed, done], dtype=torch.float64)
            dist.all_reduce(told)
            if sizes is not None:
                sizes.decide(self.loader.step, told[0].numpy(), told[1].numpy())
                self.loader.order(sizes.sizes.tolist(), late=sizes.late)
        return times

    def step(self, pace: float) -> tuple[float, int]:
        """Return for how long this rank has computed, and how many samples."""
        computed, done, is_last = 0.0, 0, False
        while not is_last:
            inputs, wanted = next(self.batches)
            begun = time.perf_counter()
            time.sleep(pace * (BATCH_S + SAMPLE_S * self.loader.counted))
            computed, done = computed + time.perf_counter() - begun, done + self.loader.counted
            with self.loader.accumulating(self.model):
                (torch.nn.functional.mse_loss(self.model(inputs), wanted) / BATCHES).backward()
            is_last = self.loader.is_last_of_step
        self.optimizer.step()
        self.optimizer.zero_grad()
        return computed, done


def rounds(job: Job, ways: Sequence[str], count: int, seed: int, *, calm: bool) -> np.ndarray:
    """Print a line for each round; mean seconds a step (rounds × ways)."""
    found = np.zeros((count, len(ways)))
    for number in range(count):
        drawn = spells(random.Random(f"{seed} {number} {dist.get_rank()}"))
        paces = [1.0 if calm else next(drawn) for _ in range(STEPS)]
        for at in range(len(ways)):
            way = (at + number) % len(ways)  # nobody is always first
            found[number, way] = np.mean(job.turn(ways[way], paces)[SETTLING:])
        if dist.get_rank() == 0:
            print(
                f"| {'calm' if calm else number} | {' | '.join(f'{1e3 * one:.0f}' for one in found[number])} |",
                flush=True,
            )
    return found


def train(options: argparse.Namespace) -> None:
    """As one rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    job, says = Job(), dist.get_rank() == 0
    job.turn("static", [1.0] * SETTLING)
    for ways, count, calm in ((WAYS, options.rounds, False), (("static", "claims"), options.calm, True)):
        if says:
            print(f"\n| {'calm' if calm else 'spells'}, ms a step | {' | '.join(ways)} |\n{'|---' * (len(ways) + 1)}|")
        found = rounds(job, ways, count, options.seed, calm=calm) if count else np.zeros((0, len(ways)))
        for way, times in zip(ways[:-1], found[:, :-1].T, strict=True):
            if says and count:
                ratios = times / found[:, -1]
                whole = times.sum() / found[:, -1].sum()
                print(f"\nclaims are {whole:.2f} times as fast as {way} ({ratios.min():.2f} to {ratios.max():.2f})")
    dist.destroy_process_group()


def main() -> int:
    """Run the job, and print its tables; its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6, help="with spells")
    parser.add_argument("--calm", type=int, default=6, help="rounds without")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if "RANK" in os.environ:
        train(options)
        return 0
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*command, *sys.argv], env=environment, timeout=LONGEST_S, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
