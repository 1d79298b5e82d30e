"""Count what the tests would find if the trace showed each rank's own time in every step as it was measured.

python benchmarks/real/oracle.py TAKES [--seeds 0:700] [--cache DIR] [--jobs 2]

What is missed then, no test of how long ranks take can find at that rate of false alarms: healthy ranks differ as much,
or the steps are too few. What they spend it on can tell more: an operator, input, how much work there is.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from drawing import AnyTake
from evaluate import open_take, recorded
from take_report import aligned, share
from take_scoring import ENOUGH_STEPS, LARGE, NOTABLE, Scored, score
from truth import step_parts

from kair_engine.blame.analysis import blame
from kair_engine.errors import KairError
from kair_engine.localize.excess import JobExcess, job_excess
from kair_engine.localize.localization import conclude
from kair_engine.stats import role_medians
from kair_engine.triage.ranks.top_waited_rank import with_top_waited_rank


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("takes", type=Path, help="the folder that record.py filled")
    parser.add_argument("--seeds", default="0:700", help="FIRST:STOP")
    parser.add_argument("--cache", type=Path, help="where read traces are kept (default: a temporary folder)")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args()
    folders = recorded(options.takes, options.seeds)
    with tempfile.TemporaryDirectory() as temporary, ProcessPoolExecutor(options.jobs) as processes:
        asked = processes.map(partial(of_take, cache=options.cache or Path(temporary)), folders, chunksize=4)
        takes = [take for take in asked if take is not None]
    print(aligned(list(table(takes))))


def of_take(folder: Path, cache: Path) -> Scored | None:
    """How the accused compare with the truth; None for takes that are not read or too short."""
    document = json.loads((folder / "take.json").read_text(encoding="utf-8"))
    try:
        trace = open_take(folder, cache)
        job, blamed = job_excess(trace), blame(trace, limit=0)
    except KairError:
        return None
    own = np.array([[parts.own for parts in step_parts(document, rank)] for rank in range(len(job.ranks))]).T
    first = job.steps[0].step if document["take"].get("captured") else AnyTake.lead_steps
    places = [step.step - first for step in job.steps]
    if len(own) <= max(places, default=len(own)):
        return None
    found = with_top_waited_rank(conclude(as_measured(job, own[places].astype(float))), blamed)
    accused = [[int(job.ranks[at]) for at in anomaly.positions] for anomaly in found.anomalies]
    findings = [{"ranks": ranks, "cause": "unknown"} for ranks in accused]
    return score(document, {"verdict": "", "findings": findings})


def as_measured(job: JobExcess, own: np.ndarray) -> JobExcess:
    """The job's excesses, with (steps × ranks) of own time as all its compute, and nothing in other classes."""
    excess = own - role_medians(own, job.role)
    steps = []
    for step, of_step, beyond in zip(job.steps, own, excess, strict=True):
        by_class, work = np.zeros_like(step.by_class_ns), np.zeros_like(step.work_ns)
        by_class[0], work[0] = beyond, of_step
        steps.append(replace(step, by_class_ns=by_class, work_ns=work, operators={}, links={}))
    return replace(job, steps=tuple(steps))


def table(takes: Sequence[Scored]) -> Iterator[tuple[str, str]]:
    """Rows of (what, share with its 95 % interval)."""
    yield "what was recorded", "share (95 % interval)"
    for load, of in (("no load", {"none"}), ("under load", {"steady", "bursts", "other_job"})):
        healthy = [take for take in takes if take.kind == "healthy" and take.load in of]
        yield f"healthy, {load}: a rank accused", share(sum(bool(one.accused) for one in healthy), len(healthy))
    for least in (NOTABLE, LARGE):
        large = [
            take
            for take in takes
            if take.kind in {"fault", "two"} and take.severity >= least and take.steps >= ENOUGH_STEPS
        ]
        what = f"fault of ≥ {100 * least:.0f} % of the step, ≥ {ENOUGH_STEPS} steps: right rank"
        yield what, share(sum(one.right_rank for one in large), len(large))


if __name__ == "__main__":
    main()
