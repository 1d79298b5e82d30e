"""Does triage name what became slow from the history of steps alone? Drawn takes of real jobs under capture.

    python validation/history.py --takes 60 [--seed 1] [--healthy 20] [--healthy-steps 2000] [--keep DIR]
    python validation/history.py --again DIR

Real jobs of three or four ranks (gloo) run under `kair capture run` with a coordinator, and nothing of them is sampled.
To start a job takes longer than a take, so each job goes through several of them: 100 healthy steps, 60 with a fault.
The rows of each are put into a store of its own, on which `kair triage` is run. A take counts as named where a finding
accuses exactly the slow rank, as false where any accuses another one. Every take counts. `--again` asks kept stores.
Of what is named the price is held against what the step really grew by at the onset.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "real"))

from captured_takes import kept_takes, options, recorded, run, split, told, wait_for  # noqa: E402
from cpu_groups import CpuGroup  # noqa: E402  (of the folder beside this one)
from history_job import FROM_OUTSIDE, KINDS, Take  # noqa: E402

from kair_capture.coordinator.step_log import read_all  # noqa: E402
from kair_capture.places import JobPlaces  # noqa: E402
from kair_engine.triage.history.rows import WARM_UP  # noqa: E402

ONSET, WITHIN = 100, 60
JOB = "history"


def drawn(seed: int, kind: str, ranks: int, steps: int) -> Take:
    """The take of a seed: a step of about 10 to 30 ms, and a fault of a third of that or more."""
    chosen = random.Random(f"{seed} {kind}")
    device_ms = chosen.uniform(3, 8) if kind.endswith("healthy") else chosen.uniform(8, 20)
    fault_ms = max(chosen.uniform(0.35, 0.8) * (device_ms + 5), 5.0)
    onset = steps if kind.endswith("healthy") else ONSET
    return Take(seed, kind, ranks, chosen.randrange(ranks), round(device_ms, 1), round(fault_ms, 1), steps, onset)


def alike(take: Take) -> tuple[int, bool]:
    """What the takes of a job have in common: as many ranks, pipelines by themselves."""
    return take.ranks, take.kind.startswith("stage")


def record(takes: list[Take], places: JobPlaces, folder: Path, into: Path) -> Iterator[tuple[Take, Path]]:
    """Trains the takes of a job, and keeps the rows of each."""
    run(takes, places, folder, HERE / "history_job.py", from_outside=FROM_OUTSIDE, fault=fault_from_outside)
    return split(takes, places, into)


@contextmanager
def fault_from_outside(take: Take, folder: Path, job: subprocess.Popen[bytes]) -> Iterator[None]:
    """Begins the fault once the victim waits at the onset, and ends it."""
    at = folder / f"pid-{take.name}"
    wait_for(at, job)
    with ExitStack() as stack:
        if take.kind == "quota":
            group = CpuGroup.make(f"kair-history-{os.getpid()}", stack)
            group.limit(8_000, 100_000)
            group.add(int(at.read_text(encoding="ascii")))
        else:
            for _ in range(4):
                spin = subprocess.Popen(["taskset", "-c", "1", sys.executable, "-c", "while True: pass"])
                stack.callback(spin.wait)
                stack.callback(spin.kill)
        at.unlink()
        yield


def judged(take: Take, data: dict[str, Any]) -> str:
    """`named`, `missed`, `false` or `quiet`."""
    accused = {tuple(one["ranks"]) for one in data["findings"] if one["ranks"]}
    if any(take.is_healthy or take.victim not in ranks for ranks in accused):
        return "false"
    if data["verdict"] == "error":
        return "error"
    if take.is_healthy:
        return "quiet with a bound" if data["unseen"] else "quiet"
    return "named" if (take.victim,) in accused else "missed"


def grown_ms(take: Take, store: Path, since: int | None) -> float:
    """By how much the mean step with the fault is longer than that before it, the first 40 steps left out.

    What is told of all steps, as what comes and goes is, is spread over all.
    """
    rows = read_all(JobPlaces(store, JOB).steps)
    rows = rows[rows["step"] >= WARM_UP]
    late = rows["step"] >= take.onset
    grown = float(rows["step_us"][late].mean() - rows["step_us"][~late].mean()) / 1e3
    return grown if since is not None else grown * float(late.mean())


def report(take: Take, store: Path, counts: dict[str, Counter[str]], ratios: dict[str, list[float]]) -> None:
    """A line for it."""
    data = told(store, JOB)
    outcome = judged(take, data)
    if outcome == "named":
        found = next(one for one in data["findings"] if one["ranks"] == [take.victim])
        grown = grown_ms(take, store, found["since"])
        ratios.setdefault(take.kind, []).append(found["time_lost_us_per_step"] / 1e3 / grown)
    counts.setdefault(take.kind, Counter())[outcome] += 1
    causes = [(one["ranks"], one["cause"], one["scope"], one["since"]) for one in data["findings"]]
    print(json.dumps({**asdict(take), "outcome": outcome, "findings": causes, "summary": data["summary"]}), flush=True)


def main() -> int:
    """Runs them; 0."""
    parser = options(__doc__, 16, KINDS)
    parser.add_argument("--healthy", type=int, default=0)
    parser.add_argument("--healthy-steps", type=int, default=2000)
    given = parser.parse_args()
    kinds, random_of = given.kinds.split(","), random.Random(given.seed)
    takes = [drawn(given.seed + at, "healthy", 3 + at % 2, given.healthy_steps) for at in range(given.healthy)]
    takes += [
        drawn(given.seed + at, kinds[at % len(kinds)], random_of.choice((3, 4)), ONSET + WITHIN)
        for at in range(given.takes)
    ]
    counts: dict[str, Counter[str]] = {}
    ratios: dict[str, list[float]] = {}
    some = kept_takes(given.again, Take) if given.again else recorded(takes, alike, JOB, given.keep, record)
    for take, kept in some:
        report(take, kept / "store", counts, ratios)
    for kind, of in sorted(counts.items()):
        print(f"{kind:8} {dict(of)}", *(f"{one:.2f}" for one in ratios.get(kind, ())))
    if ratios:
        off = [abs(math.log(max(one, 1e-3))) for some in ratios.values() for one in some]
        print(f"price / growth of the step: off by {math.exp(sum(off) / len(off)) - 1:.0%} in the geometric mean")
    return 0


if __name__ == "__main__":
    sys.exit(main())
