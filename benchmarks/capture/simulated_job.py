"""A training job without a framework: ranks that step together, each with its own rings and its windows' traces.

Every rank works for a time of its own and then waits for the slowest. Those times are drawn from the step's number, so
that ranks in different processes need not speak to each other to agree on them.

    python benchmarks/capture/simulated_job.py --ranks 0-3 --world 4 --steps 300 --step-ms 50 --slow 2:0.2:100
"""

import argparse
import json
import os
import random
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from kair_capture.job.session import write_identity
from kair_capture.job.windows import ControlWords, Window
from kair_capture.ring import Kind, NameWriter, RingProducer, StepFlag
from kair_capture.settings import settings_of

_ONE_MOMENT_NS = 500_000
PHASES = (("forward", 0.3), ("backward", 0.5), ("optimizer", 0.2))


@dataclass(frozen=True)
class Plan:
    """What the job does."""

    world: int
    step_ms: float
    slow_rank: int = -1
    slow_by: float = 0.0
    slow_from: int = 0
    noise: float = 0.02
    seed: int = 1

    def work_ns(self, rank: int, step: int) -> int:
        """How long a rank works in a step."""
        chance = random.Random(f"{self.seed}.{rank}.{step}")
        slow = self.slow_by if rank == self.slow_rank and step >= self.slow_from else 0.0
        return round(self.step_ms * 1e6 * (1 + abs(chance.gauss(0, self.noise))) * (1 + slow))

    @lru_cache(maxsize=8)  # noqa: B019  (a plan lives as long as its process)
    def step_ns(self, step: int) -> int:
        """How long the step takes for all."""
        return max(self.work_ns(rank, step) for rank in range(self.world)) + 200_000


class SimulatedRank:
    """One rank's rings, names, control words and traces."""

    def __init__(self, plan: Plan, rank: int, run_dir: Path) -> None:
        self.plan, self.rank, self.run_dir = plan, rank, run_dir
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        (run_dir / "windows").mkdir(mode=0o700, exist_ok=True)
        stem = run_dir / f"rank-{rank}-{os.getpid()}"
        self.names = NameWriter(stem.with_name(f"{stem.name}.names"))
        self.ring = RingProducer(stem.with_name(f"{stem.name}-0.ring"))
        self.control = ControlWords(run_dir / f"rank-{rank}.control")
        self.wanted: Window | None = None
        self.sampled = False
        """The last step was."""
        self.begun: list[tuple[int, int]] = []
        self.progress = -1
        """A file that has every committed step's number, for who checks that none is lost."""
        write_identity(settings_of(), rank, plan.world, {"framework": "simulated"})

    def step(self, step: int, begin: int) -> None:
        """The records of a step that began then (CLOCK_MONOTONIC) and is over now: what capture does in a job."""
        work, length = self.plan.work_ns(self.rank, step), self.plan.step_ns(step)
        asked = self.control.asked()
        if asked is not None and asked.first > step:
            self.wanted = asked
        self.sampled = self.wanted is not None and self.wanted.first <= step <= self.wanted.last
        at = begin
        for phase, share in PHASES:
            self.ring.emit(Kind.SCOPE, at, round(work * share), step, self.names.number(phase), 0)
            at += round(work * share)
        self.ring.emit(Kind.COLLECTIVE, begin + work, length - work, step, self.names.number("all_reduce"))
        self.ring.emit(Kind.STEP, begin, length, step, 0, 0, StepFlag.SAMPLED if self.sampled else 0)
        self.ring.emit(Kind.CLOCK, time.monotonic_ns(), time.time_ns(), step)
        self.ring.commit(step)

    def keep(self, step: int, begin: int) -> None:
        """What the simulation itself writes once a step is over: its number, and what a profiler would leave."""
        if self.progress >= 0:
            os.write(self.progress, step.to_bytes(4, "little"))
        if self.sampled and self.wanted is not None:
            self.begun.append((step, begin))
            if step == self.wanted.last:
                self._write_trace(self.wanted)
                self.wanted, self.begun = None, []

    def _write_trace(self, window: Window) -> None:
        shift = time.time_ns() - time.monotonic_ns()
        events = [one for step, begin in self.begun for one in self._events(step, (begin + shift) / 1000)]
        info = {"backend": "nccl", "rank": self.rank, "world_size": self.plan.world}
        document = {"schemaVersion": 1, "distributedInfo": info, "traceEvents": events}
        path = self.run_dir / "windows" / f"rank-{self.rank}-{self.begun[0][0]}-{window.last}.json"
        path.with_suffix(".json.tmp").write_text(json.dumps(document))
        path.with_suffix(".json.tmp").replace(path)

    def _events(self, step: int, begin: float) -> list[dict[str, Any]]:
        """Twenty operators of which the slow rank's are all slower, then an all-reduce that ends for all at once."""
        work, length = self.plan.work_ns(self.rank, step) / 1000, self.plan.step_ns(step) / 1000

        def event(name: str, cat: str, ts: float, dur: float, tid: int, **args: object) -> dict[str, Any]:
            return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": dur, "args": args}

        found = [event(f"ProfilerStep#{step}", "user_annotation", begin, length, 1)]
        each = (work - 500) / 20
        for at in range(20):
            ts, number = begin + 10 + at * 20, step * 100 + at
            found.append(event(f"aten::op{at % 5}", "cpu_op", ts, 15, 1))
            found.append(event("cudaLaunchKernel", "cuda_runtime", ts + 2, 5, 1, correlation=number))
            found.append(event(f"kernel{at % 5}", "kernel", begin + 480 + at * each, each, 2, correlation=number))
        number, name = step * 100 + 99, "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
        found.append(event("cudaLaunchKernel", "cuda_runtime", begin + 450, 4, 1, correlation=number))
        found.append(event(name, "kernel", begin + work, length - work - 20, 3, correlation=number))
        wait = length - 500 - 10
        found.append(event("cudaDeviceSynchronize", "cuda_runtime", begin + 500, wait, 1))
        return found


def run(
    plan: Plan,
    ranks: list[int],
    steps: int,
    run_dir: Path,
    *,
    start_ns: int,
    first: int = 0,
    progress: Path | None = None,
    until: Path | None = None,
) -> float:
    """Steps together from `start_ns` (CLOCK_MONOTONIC) on; returns how long the records of one took at most, ms.

    That is what capture costs; what the simulation itself writes to its files comes after it, and is not in it.
    """
    simulated = [SimulatedRank(plan, rank, run_dir) for rank in ranks]
    for one in simulated if progress else ():
        one.progress = os.open(f"{progress}/rank-{one.rank}-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    end, worst = start_ns, 0
    for step in range(steps):
        begin, end = end, end + plan.step_ns(step)
        if step < first or end < time.monotonic_ns() - 10**9:
            continue  # before a rank that was restarted
        if until is not None and until.exists():
            break
        pause = end - time.monotonic_ns()
        if pause > 0:
            time.sleep(pause / 1e9)
        before = _ran_ns()
        for one in simulated:
            one.step(step, begin)
        worst = max(worst, _ran_ns() - before)
        for one in simulated:
            one.keep(step, begin)
    return worst / 1e6


def _ran_ns() -> int:
    """The time without that in which this thread was ready and others had the processor: that is nobody's pause.

    Both are read at one moment: asked again where the thread lost the processor between them.
    """
    while True:
        now, delayed = time.monotonic_ns(), _run_delay_ns()
        if time.monotonic_ns() - now < _ONE_MOMENT_NS:
            return now - delayed


def _run_delay_ns() -> int:
    """How long this thread has been ready and did not run."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1])


def ranks_of(text: str) -> list[int]:
    """`0-3` or `5`."""
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ranks", default="0")
    parser.add_argument("--world", type=int, default=1)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--step-ms", type=float, default=50.0)
    parser.add_argument("--slow", default="", help="RANK:SHARE:FROM_STEP")
    parser.add_argument("--noise", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start-ns", type=int, default=0)
    parser.add_argument("--progress", type=Path)
    parser.add_argument("--until", type=Path)
    given = parser.parse_args()
    plan = Plan(given.world, given.step_ms, noise=given.noise, seed=given.seed)
    if given.slow:
        rank, share, first = given.slow.split(":")
        plan = Plan(given.world, given.step_ms, int(rank), float(share), int(first), given.noise, given.seed)
    start = given.start_ns or time.monotonic_ns() + 200_000_000
    worst = run(
        plan,
        ranks_of(given.ranks),
        given.steps,
        settings_of().run_dir,
        start_ns=start,
        first=given.first,
        progress=given.progress,
        until=given.until,
    )
    print(json.dumps({"longest_pause_ms": round(worst, 3)}))


if __name__ == "__main__":
    main()
