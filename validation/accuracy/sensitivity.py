"""Whether `kair sensitivity` is right: a healthy job is recorded and asked, then recorded again with such faults.

The job recorded again has the same GPUs and other noise. Of faults of the size that is said to be found with 95 %
probability, about that share should be found; of smaller ones fewer, of larger ones more.

python validation/accuracy/sensitivity.py --layouts dp8,dp64 --jobs 40
"""

import argparse
import json
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
from compute_faults import SlowGpu, SlowKernel
from fault_model import Fault
from host_faults import SlowInput, Stalls
from layouts import STANDARD, JobLayout
from network_faults import SlowLink
from programs import program_of
from report import Bounded, Share, Table, markdown
from scoring import answer_of, score
from simulator import JobSpec, simulate
from table import write_table
from timeline import nominal_step_ns

from kair_engine.localize.links import SLOWER_BY
from kair_engine.results.sensitivity import DetectableFault, SensitivityResult
from kair_engine.sensitivity.analysis import sensitivity
from kair_engine.sensitivity.injection import STALL_LENGTH
from kair_engine.triage.analysis import triage

HELD_OUT = 1000
FACTORS = (0.8, 1.0, 1.25)
Hits = dict[tuple[str, float], bool]


def main() -> None:
    """Simulates, asks, and prints how many are found."""
    options = _options()
    # Before any process starts: two processes with a thread each do not get in each other's way.
    os.environ |= {"POLARS_MAX_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    seeds = range(0 if options.tuning else HELD_OUT, (0 if options.tuning else HELD_OUT) + options.jobs)
    rows = []
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        for layout in options.layouts.split(","):
            ask = partial(one_job, layout, options.steps, options.draws, options.other_gpus)
            rows += _rows(layout, options.steps, list(pool.map(ask, seeds)))
    if options.json:
        print(json.dumps([{key: str(value) for key, value in row.items()} for row in rows], indent=1))
    else:
        title = "Faults of the smallest size, times a factor, that triage finds in another recording"
        print(markdown([Table(title, "Right rank and cause, nobody else accused; 95 % intervals.", rows)]))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", default="dp8,dp64", help=f"separated by commas, of {', '.join(STANDARD)}")
    parser.add_argument("--jobs", type=int, default=40, help="per layout")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--draws", type=int, default=100, help="of each sensitivity")
    parser.add_argument("--other-gpus", action="store_true", help="faults in other jobs, not in the same one again")
    parser.add_argument("--tuning", action="store_true", help=f"seeds below {HELD_OUT}")
    parser.add_argument("--workers", type=int, default=2, help="processes, each with one thread")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


def one_job(layout: str, steps: int, draws: int, other_gpus: bool, seed: int) -> tuple[SensitivityResult, Hits]:
    """What a healthy job's recording is said to show, and which faults times which factors are found in another."""
    shape = STANDARD[layout]
    with TemporaryDirectory(prefix="kair-sensitivity-") as folder:
        healthy = JobSpec(shape, steps, seed, devices=seed)
        said = sensitivity(write_table(simulate([healthy])[0], Path(folder)), draws=draws)
    hits: Hits = {}
    for number, (fault, factor) in enumerate((fault, factor) for fault in said.faults for factor in FACTORS):
        random = np.random.default_rng((seed, 2000))
        for made in _made(fault, factor, shape, int(random.integers(shape.ranks)), steps):
            again = 10_000 * (1 + number) + seed
            spec = JobSpec(shape, steps, again, (made,), devices=again if other_gpus else seed)
            recording = simulate([spec])[0]
            with TemporaryDirectory(prefix="kair-sensitivity-") as folder:
                answer = answer_of(triage(write_table(recording, Path(folder))))
            hits[fault.fault, factor] = bool(score(recording.truths, answer).exact)
    return said, hits


def _made(fault: DetectableFault, factor: float, layout: JobLayout, rank: int, steps: int) -> Iterator[Fault]:
    """The simulator's fault of that size times `factor`; none where no size is found."""
    if fault.smallest_us_per_step is None:
        return
    program, cost_ns = program_of(layout), factor * fault.smallest_us_per_step * 1e3
    # Later stages' pauses can hide in what they wait for the first microbatch.
    in_first_stage = rank % layout.ranks_per_stage
    own = 1 + factor * ((fault.smallest_own_slowdown or 1.0) - 1)
    if fault.fault == "slow_device":
        yield SlowGpu(rank, own)
    elif fault.fault == "slow_operator" and fault.operator:
        yield SlowKernel(rank, fault.operator, own)
    elif fault.fault == "slow_input":
        yield SlowInput(rank, cost_ns / nominal_step_ns(program))
    elif fault.fault == "slow_host":
        yield Stalls(in_first_stage, steps, cost_ns / nominal_step_ns(program))
    elif fault.fault == "stall" and fault.stalled_steps:
        count = min(max(round(factor * fault.stalled_steps), 1), steps)
        yield Stalls(in_first_stage, count, STALL_LENGTH)
    elif fault.fault == "slow_link":
        operations = program.stages[layout.place(rank)[0]]
        transfers_ns = sum(one.nominal_ns for one in operations if one.dimension == "dp")
        yield SlowLink(rank, 1 + max(cost_ns / transfers_ns, factor * SLOWER_BY))


def _rows(layout: str, steps: int, jobs: list[tuple[SensitivityResult, Hits]]) -> list[dict[str, str | int | Bounded]]:
    rows = []
    for at, fault in enumerate(jobs[0][0].faults):
        smallest = [said.faults[at].smallest_share_of_step for said, _ in jobs]
        known = [share for share in smallest if share is not None]
        if not known:
            continue
        low, middle, high = min(known), median(known), max(known)
        row: dict[str, str | int | Bounded] = {"fault": fault.fault, "layout": layout, "steps": steps}
        row |= {"jobs": len(known), "smallest, of the step": f"{middle:.1%} ({low:.1%}–{high:.1%})"}
        for factor in FACTORS:
            found = [hits[fault.fault, factor] for _, hits in jobs if (fault.fault, factor) in hits]
            row[f"found at {factor:g} ×"] = Bounded(Share(sum(found), len(found)))
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
