"""How often does evidence explain what is not there? Innocent ranks of healthy takes, accused at random.

    python validation/evidence/calibrate.py STORE... [--windows 1000] [--seed 1]

Each STORE holds captured jobs without a fault, with the telemetry that was sampled beside them. A rank, a stretch of 20
to 60 s, a cause and an excess of 5 to 50 % of the step are drawn, and the rank is accused of it. Whatever is said to
explain that is wrong. Of the placebo p it is told how often a part fires with a p that small or smaller: no more often
than p, if it is calibrated.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from kair.app.evidence import evidence_of
from kair.app.identities import identities_of
from kair.app.step_history import course_of_job, unsampled
from kair_engine.evidence.case import Known
from kair_engine.evidence.course import Course
from kair_engine.evidence.deciding import with_explanations
from kair_engine.evidence.joining import Joins
from kair_engine.ranks import Rank
from kair_engine.results.triage import Finding, RankedRank, TriageResult

CAUSES = ("contention", "host", "input", "compute", "unknown", "garbage_collection", "periodic_pause")
LEVELS = (0.01, 0.02, 0.05, 0.1, 0.2)
BEGIN_S = 10.0
"""The first seconds are the job's start, which no verdict is made of either."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("stores", nargs="+", type=Path)
    arguments.add_argument("--windows", type=int, default=1000)
    arguments.add_argument("--seed", type=int, default=1)
    options = arguments.parse_args()
    chosen = random.Random(options.seed)
    jobs = [one for store in options.stores for one in known_of(store)]
    if not jobs:
        raise SystemExit("no captured job with telemetry in these stores")
    words: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    told: list[float] = []
    asked = fired = 0
    for _ in range(options.windows):
        known = chosen.choice(jobs)
        result = accused(known, chosen)
        part_of = part_course(known, result)
        for one in with_explanations(result, part_of).findings[0].explanations:
            asked += one.p_value is not None
            words[one.word] += 1
            if one.word in ("explains", "consistent"):
                wrong[f"{one.part} {one.word}"] += 1
            if one.p_value is not None:
                told.append(one.p_value)
            fired += one.word in ("explains", "consistent")
    print(f"{options.windows} innocent ranks and times of {len(jobs)} healthy takes; parts by what was said of them:")
    print("  " + ", ".join(f"{word} {count}" for word, count in words.most_common()))
    print(f"  wrong: {sum(wrong.values())} ({', '.join(f'{name} {count}' for name, count in wrong.most_common(8))})")
    looked = sum(words.values())
    for level in LEVELS:
        share = sum(p <= level for p in told) / max(looked, 1)
        print(f"  p ≤ {level:g} and not excluded: {share:.4f} of what was looked at")


def known_of(store: Path) -> Iterator[Known]:
    """Each job of a store that has telemetry."""
    for folder in sorted(path for path in store.iterdir() if path.is_dir() and not path.name.startswith(".")):
        trace = unsampled(folder)
        if trace is None:
            continue
        evidence, _ = evidence_of(trace.job, ())
        identities, course = identities_of(trace.job), course_of_job(trace.job)
        if course is not None and len(evidence.table):
            yield Known(
                evidence, Joins(identities, trace.job.hosts, evidence.devices), course, identities, trace.job.has_device
            )


def accused(known: Known, chosen: random.Random) -> TriageResult:
    course = known.course
    first, last = float(course.begin_ns.min()) + BEGIN_S * 1e9, float(course.end_ns.max())
    length = min(chosen.uniform(20, 60) * 1e9, (last - first) / 2)
    begin = chosen.uniform(first, last - length)
    steps = course.steps[(course.begin_ns >= begin) & (course.begin_ns < begin + length)]
    rank, excess = Rank(int(chosen.choice(course.ranks.tolist()))), chosen.uniform(0.05, 0.5) * course.step_us
    finding = Finding(
        cause=chosen.choice(CAUSES), pattern="persistent", ranks=(rank,), hosts=(), operator=None, edge=None,
        steps=tuple(steps.tolist()), p_value=1e-9, time_lost_us_per_step=excess, slowdown=1.1, evidence=(),
    )  # fmt: skip
    ranking = tuple(
        RankedRank(Rank(one), None, "all", 0.0, one == rank, excess if one == rank else 0.0, 0.0)
        for one in course.ranks.tolist()
    )
    return TriageResult("straggler", (finding,), ranking, course.step_us, 0.0, 0.0, finding.steps, ())


def part_course(known: Known, result: TriageResult) -> Known:
    """The same job, as if its steps were those of the finding alone."""
    course = known.course
    kept = np.isin(course.steps, result.steps)
    part = Course(
        course.ranks, course.steps[kept], course.begin_ns[kept], course.end_ns[kept],
        None if course.own_us is None else course.own_us[kept], course.step_us, course.spent,
    )  # fmt: skip
    return replace(known, course=part)


if __name__ == "__main__":
    main()
