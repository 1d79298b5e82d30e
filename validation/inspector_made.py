"""Do logs of NCCL's Inspector alone name whom they should? Made jobs, by seed, and the truth of each.

    python validation/inspector_made.py --healthy 200 --faulty 200 [--seed 1] [--verbose]
    python validation/inspector_made.py --ranks 2048 --into FOLDER

Each job is simulated (`tests/support/inspector_logs.py`), its logs are written as the Inspector's source says, and
opened as `kair triage FOLDER` does. Jobs have 8 to 32 ranks in DP and TP groups, 80 to 200 steps, noise of 0.5 to 5 %
of a layer, ranks that differ for good by 0.1 to 0.5 %, stalls, gradients reduced beside computing or not, logs dumped
every tenth of a second, or with the kernels' times. A third of the faulty jobs has a rank that is 8 to 25 % slower in
all steps, a third one that became so, a third a TP group whose transfers take 1.6 to 2.5 times as long. A fault counts
as named where a finding accuses exactly its ranks and no finding accuses others; its price counts as right within a
quarter, or a twentieth of a millisecond, of what the same job without it saves. `--ranks` writes the logs of one large
job with one late rank.
"""

import argparse
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from support.inspector_logs import MadeJob

from kair.app.question import Question
from kair.app.session import Session
from kair_engine.results.triage import TriageResult

FAULTS = ("late", "since", "group")
WITHIN, AT_LEAST_US = 0.25, 50.0


@dataclass(frozen=True)
class Truth:
    """What is wrong with a made job, and what it costs."""

    fault: str
    ranks: tuple[int, ...]
    costs_us: float


def made(seed: int, fault: str | None) -> tuple[MadeJob, Truth | None]:
    """Return a job, and what is true of it."""
    chance = np.random.default_rng([seed, 0 if fault is None else 1 + FAULTS.index(fault)])
    tp = 2 if fault == "group" else int(chance.choice([1, 2]))
    how: dict[str, Any] = {
        "dp": int(chance.choice([8, 16])),
        "tp": tp,
        "steps": int(chance.integers(80, 200)),
        "layers": int(chance.integers(2, 6)),
        "layer_us": float(chance.uniform(2_000, 12_000)),
        "transfer_us": float(chance.uniform(1_000, 6_000)),
        "noise": float(np.exp(chance.uniform(np.log(0.005), np.log(0.05)))),
        "uneven": float(chance.uniform(0.001, 0.005)),
        "stalls": float(chance.choice([0.0, 0.0005, 0.003])),
        "overlaps": bool(chance.random() < 0.5),
        "world": bool(chance.random() < 0.7),
        "dump_us": None if chance.random() < 0.5 else 100_000,
        "clock_us": float(chance.uniform(0, 100_000)),
        "seed": seed,
    }
    if fault is None:
        return MadeJob(**how), None
    healthy = MadeJob(**how).step_us
    count = how["dp"] * tp
    victim = int(chance.integers(count))
    if fault == "group":
        group = victim // tp
        # A group is told from others by what it takes: transfers are a good part of these steps.
        how |= {"slow_group": group, "slower": float(chance.uniform(1.6, 2.5)), "transfer_us": how["transfer_us"] * 4}
        healthy = MadeJob(**{**how, "slow_group": None}).step_us
        ranks = tuple(range(group * tp, (group + 1) * tp))
    else:
        how |= {"late": {victim: float(chance.uniform(1.08, 1.25))}}
        ranks = (victim,)
    if fault == "since":
        how["since"] = int(how["steps"] * chance.uniform(0.4, 0.7))
    job = MadeJob(**how)
    share = 1 - how.get("since", 0) / how["steps"]
    return job, Truth(fault, ranks, (job.step_us - healthy) / share)


def triaged(job: MadeJob) -> TriageResult:
    """Return the verdict on the logs of a made job."""
    with tempfile.TemporaryDirectory() as folder:
        found = Session.open(job.write(Path(folder) / "logs")).ask(Question.of("triage")).result
    assert isinstance(found, TriageResult)
    return found


def is_named(found: TriageResult, truth: Truth) -> bool:
    """Whether exactly the true ranks are accused."""
    accused = {rank for one in found.findings for rank in one.ranks}
    return accused == set(truth.ranks)


def is_priced(found: TriageResult, truth: Truth) -> bool:
    """Whether the first finding costs what the fault does."""
    off = abs(found.findings[0].time_lost_us_per_step - truth.costs_us)
    return off <= max(WITHIN * truth.costs_us, AT_LEAST_US)


def main(arguments: list[str]) -> None:
    """Count what is named, and who is accused falsely."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--healthy", type=int, default=0)
    parser.add_argument("--faulty", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--into", type=Path)
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args(arguments)
    if given.ranks:
        MadeJob(dp=given.ranks // 8, tp=8, layers=6, late={given.ranks // 3: 1.1}).write(given.into)
        return
    counts: Counter[str] = Counter()
    for seed in range(given.seed, given.seed + given.healthy):
        found = triaged(made(seed, None)[0])
        counts["healthy"] += 1
        counts["accused"] += bool(found.findings)
        counts["open"] += found.verdict == "inconclusive"
        if given.verbose and found.verdict != "no_straggler":
            print(
                seed,
                found.verdict,
                [(one.ranks, one.cause) for one in found.findings],
                [one.kind for one in found.open],
            )
    for seed in range(given.seed, given.seed + given.faulty):
        job, truth = made(seed, FAULTS[seed % len(FAULTS)])
        assert truth is not None
        found, share = triaged(job), truth.costs_us / job.step_us
        kind = f"{truth.fault}{'' if share >= 0.02 else ' below 2 % of the step'}"
        named = is_named(found, truth)
        counts[kind] += 1
        counts[f"{kind}, named"] += named
        counts[f"{kind}, others accused"] += bool(found.findings) and not named
        counts[f"{kind}, priced"] += named and is_priced(found, truth)
        if given.verbose and not (named and is_priced(found, truth)):
            cost = [round(one.time_lost_us_per_step) for one in found.findings]
            accused = [one.ranks for one in found.findings]
            print(
                seed, kind, truth.ranks, round(truth.costs_us), found.verdict, accused, cost, f"overlaps={job.overlaps}"
            )
    for what, count in sorted(counts.items()):
        print(f"{what}: {count}")


if __name__ == "__main__":
    main(sys.argv[1:])
