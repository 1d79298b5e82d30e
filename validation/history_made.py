"""Does the history of steps name whom it should, when it should? Made rows, by seed, and the truth of each.

    python validation/history_made.py --healthy 200 --faulty 120 [--seed 1] [--thinned 16] [--verbose]
    python validation/history_made.py --hits 3,4,5,6,8 [--faulty 60] [--seed 1]

Healthy jobs have noise of their own kind each: stalls of single steps, spells of a busy host, drift of all ranks, an
evaluation or a checkpoint every so many steps on all ranks (no two of them equally long), collections of garbage at
equal distances on every rank at moments of its own. Whoever is accused in them is accused falsely. Faulty jobs have
the same, and one rank that is slow: for good since a step (`since`), for a time (`passed`), or every so many steps
(`every`). It is named where a finding accuses exactly that rank. Its first and last step count as right within three
steps, its period where it is the same, its price within a quarter of what the steps became longer by. `--hits`: how
often a rank is named that is late so many times, every 40 steps by twice to fifteen times its step, in a quiet and a
busy job, in which every rank stalls in so many of the steps.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.ranks import Rank
from kair_engine.results.triage import Finding
from kair_engine.trace.model import Job, StepTimes
from kair_engine.triage.history.analysis import judge
from kair_engine.triage.history.changed import longer_steps
from kair_engine.triage.history.rows import COLUMNS, WARM_UP, StepHistory, step_history
from kair_engine.triage.open_items import LEAVES_OPEN

FAULTS = ("since", "passed", "every")
HABITS = ("none", "evaluation", "checkpoint", "drift", "collections", "spells")
RECORDED_AT_TIMES = ("forward", "backward", "optimizer", "input", "cpu", "delay")
WITHIN = 3
"""Steps that a first or last one may be off."""


@dataclass
class Made:
    """One job: its rows, and what is true of them."""

    seed: int
    fault: str | None
    own: Floats
    """(steps × ranks), µs."""
    habit: str
    rank: int = 0
    size_us: float = 0.0
    begin: int = 0
    end: int = 0
    every: int = 0
    hit: Floats = field(default_factory=lambda: np.zeros(0))
    """(steps): what the fault adds."""
    thinned: int = 1
    """Of how many steps one records its parts, which stand for those of the next ones."""

    @property
    def name(self) -> str:
        """What it is called in a line."""
        if self.fault is None:
            return f"{self.seed} healthy, {self.habit}"
        when = f"steps {self.begin} to {self.end}, every {self.every}"
        return f"{self.seed} {self.fault} on rank {self.rank}, {self.habit}: {self.size_us / 1e3:.1f} ms, {when}"

    def history(self) -> StepHistory:
        """The rows, as capture would have them: who is not last waits in backward."""
        own = self.own.copy()
        own[:, self.rank] += self.hit if len(self.hit) else 0.0
        us = {name: np.zeros(own.shape) for name in COLUMNS}
        us |= {"self": own, "cpu": 0.8 * self.own, "delay": 0.02 * own, "forward": 0.4 * own, "input": 0.02 * own}
        us["step"] = np.repeat(own.max(axis=1)[:, None] + 2000.0, own.shape[1], axis=1)
        us["waited"] = us["step"] - own
        us["backward"] = us["waited"] + 0.5 * own
        is_thinned = np.arange(len(own)) % self.thinned != self.seed % self.thinned
        if is_thinned.any():
            steps = np.arange(len(own))
            last = np.maximum.accumulate(np.where(is_thinned, 0, steps))
            shorter = np.minimum(us["step"] / us["step"][last], 1.0)
            us |= {name: us[name][last] * shorter for name in RECORDED_AT_TIMES}
        step, rank = np.indices(own.shape)
        columns = {name: of.ravel() for name, of in us.items()}
        return step_history(rank.ravel(), step.ravel(), columns, thinned=np.flatnonzero(is_thinned))

    def truth_us(self) -> float:
        """By how much the mean step is longer, the first ones left out."""
        own, with_fault = self.own[WARM_UP:], self.own[WARM_UP:].copy()
        with_fault[:, self.rank] += self.hit[WARM_UP:]
        longer = with_fault.max(axis=1) - own.max(axis=1)
        first = max(self.begin - WARM_UP, 0) if self.fault == "since" else 0
        return float(longer[first:].mean())


def made(seed: int, fault: str | None) -> Made:
    """The job of a seed."""
    random = np.random.default_rng((seed, FAULTS.index(fault) + 1 if fault else 0))
    ranks, steps = int(random.choice([3, 4, 8])), int(random.integers(160, 1200))
    usual, habit = random.uniform(10e3, 100e3), str(random.choice(HABITS))
    own = usual * (1 + random.normal(0, random.choice([0.01, 0.03, 0.1]), (steps, ranks)))
    own *= 1 + random.normal(0, 0.003, ranks)
    own += usual * random.exponential(0.5, own.shape) * (random.random(own.shape) < random.choice([0.0, 0.01, 0.05]))
    own += _habit(random, habit, own.shape, usual)
    own = np.maximum(own, 0.3 * usual)
    job = Made(seed, fault, own, habit)
    if fault is None:
        return job
    job.rank, job.size_us = int(random.integers(ranks)), usual * random.uniform(0.15, 0.5)
    job.begin, job.end = int(random.integers(60, steps // 2)), steps - 1
    job.hit = np.zeros(steps)
    if fault == "passed":
        job.end = job.begin + int(random.uniform(0.15, 0.7) * (steps - job.begin))
    if fault == "every":
        job.every, job.begin = int(random.choice([10, 20, 25, 40, 50])), 0
        if habit in ("evaluation", "checkpoint"):
            job.every += 3  # not that of all ranks
        job.size_us = usual * random.uniform(1.5, 15)
    job.hit[job.begin : job.end + 1 : max(job.every, 1)] = job.size_us
    job.hit[job.hit > 0] *= 1 + random.normal(0, 0.1, np.count_nonzero(job.hit))
    return job


def late_at_times(seed: int, hits: int, stalls: float) -> Made:
    """A job of four ranks, of which one evaluates so many times."""
    random = np.random.default_rng((seed, hits))
    steps, usual = WARM_UP + 40 * hits, random.uniform(10e3, 100e3)
    own = usual * (1 + random.normal(0, 0.03, (steps, 4)))
    own += usual * random.exponential(0.5, own.shape) * (random.random(own.shape) < stalls)
    job = Made(seed, "every", np.maximum(own, 0.3 * usual), "none", int(random.integers(4)), end=steps - 1, every=40)
    job.size_us, job.hit = usual * random.uniform(2, 15), np.zeros(steps)
    job.hit[WARM_UP + 20 :: 40] = job.size_us
    return job


def _habit(random: np.random.Generator, habit: str, shape: tuple[int, int], usual: float) -> Floats:
    """What all ranks have besides."""
    steps, ranks = shape
    more, at = np.zeros(shape), np.arange(steps)
    if habit in ("evaluation", "checkpoint"):
        hit = at % int(random.choice([20, 40, 50])) == 0
        length = usual * random.uniform(2, 15) * (1 + random.normal(0, random.choice([0.02, 0.2]), shape))
        more[hit] = np.maximum(length, 0)[hit]
    elif habit == "drift":
        more += (usual * random.uniform(-0.2, 0.4) * at / steps)[:, None]
    elif habit == "collections":
        every, length = int(random.integers(15, 40)), usual * random.uniform(0.2, 1.0)
        for rank in range(ranks):
            hit = (at + int(random.integers(every))) % every == 0
            more[hit, rank] += length * (1 + random.normal(0, 0.1, np.count_nonzero(hit)))
    elif habit == "spells":
        for _ in range(int(random.integers(1, 6))):
            begin, rank = int(random.integers(steps)), int(random.integers(ranks))
            more[begin : begin + int(random.integers(2, 12)), rank] += usual * random.uniform(0.2, 1.0)
    return more


def job_of(history: StepHistory) -> Job:
    """The job that the rows are of."""
    ranks = tuple(map(Rank, history.ranks.tolist()))
    return Job(
        "made", "made", "steps", len(ranks), ranks, dict.fromkeys(ranks, "node"), None, None, False, True, (),
        StepTimes((), (), (), (), ()), 0, (),
    )  # fmt: skip


def right(job: Made, found: Finding) -> Counter[str]:
    """What of a finding about the right rank is right."""
    told = Counter({"named": 1, "priced": int(abs(found.time_lost_us_per_step / job.truth_us() - 1) <= 0.25)})
    if job.fault == "every":
        return told + Counter({"period": int(found.every == job.every)})
    onset = found.since is not None and abs(found.since - job.begin) <= WITHIN
    is_open = job.fault == "since"
    end = found.until is None if is_open else found.until is not None and abs(found.until - job.end) <= WITHIN
    return told + Counter({"first step": int(onset), "last step": int(end)})


def main() -> int:
    """Judges them; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--healthy", type=int, default=200)
    parser.add_argument("--faulty", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--thinned", type=int, default=1, help="one of so many steps records its parts")
    parser.add_argument("--hits", help="so many times each, instead")
    given = parser.parse_args()
    for hits in map(int, given.hits.split(",") if given.hits else ()):
        for stalls in (0.0, 0.01, 0.05):
            jobs = [late_at_times(given.seed + at, hits, stalls) for at in range(given.faulty)]
            found = [judge(history := job.history(), job_of(history))[0] for job in jobs]
            named = sum((job.rank,) in {one.ranks for one in some} for job, some in zip(jobs, found, strict=True))
            print(f"late {hits} times, stalls in {stalls:.0%} of steps: named {named} of {len(jobs)}")
    if given.hits:
        return 0
    jobs = [made(given.seed + at, None) for at in range(given.healthy)]
    jobs += [made(given.seed + at, FAULTS[at % len(FAULTS)]) for at in range(given.faulty)]
    counts: dict[str, Counter[str]] = {}
    for job in jobs:
        job.thinned = given.thinned
        history = job.history()
        found, _ = judge(history, job_of(history))
        of = counts.setdefault(job.fault or "healthy", Counter())
        mine = [one for one in found if job.fault is not None and one.ranks == (job.rank,)]
        others = [one for one in found if one not in mine]
        longer = [one for one in longer_steps(history, found) if one.share_of_step >= LEAVES_OPEN]
        of += Counter(jobs=1, false=int(bool(others)), longer=len(longer))
        if given.verbose and longer:
            print(job.name, f"steps longer since {longer[0].steps[0]}: {longer[0].share_of_step:.1%}")
        told = right(job, mine[0]) if mine else Counter[str]()
        of += told
        if given.verbose and (others or (job.fault and (sum(told.values()) < 3 + (job.fault != "every")))):
            print(job.name, dict(told), f"truth {job.truth_us() / 1e3:.2f} ms" if job.fault else "")
            for one in found:
                steps = f"{one.since}-{one.until}, {len(one.steps)} steps, every {one.every}"
                print("   ", one.ranks, one.cause, one.pattern, steps, f"{one.time_lost_us_per_step / 1e3:.2f} ms")
    for kind, of in counts.items():
        print(f"{kind:8}", ", ".join(f"{name} {count}" for name, count in of.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
