"""How often Kair accuses somebody of a healthy job, and finds the rank and the cause of a fault, in simulated jobs.

python validation/accuracy/run.py                            all of it, on held-out seeds
python validation/accuracy/run.py --write validation/reports/simulated.md
    the same, as the summary there and the pages beside it
python validation/accuracy/run.py --answers kept.jsonl       the same, going on where it was stopped
python validation/accuracy/run.py --costs --scale 0.2        what faults cost, alone
python validation/accuracy/run.py --tuning --only gpu --layouts dp8,3d64 --jobs 20 --misses
python validation/accuracy/run.py --only ahead               jobs whose hosts run ahead of their devices, alone
"""

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from ahead_report import ahead_tables
from kept_trials import KeptTrials
from layouts import STANDARD
from report import IN_OVERVIEW, Results, Table, costs, markdown, misses, overview, pages, plain, tables
from scenarios import Scenario, scenarios
from trials import Batch, Trial, run_batch

HELD_OUT = 1000
"""Seeds below this are for tuning; figures that are reported come from those above."""
BEGIN, END = "<!-- begin of what run.py writes -->", "<!-- end of what run.py writes -->"
_SMALL_RANKS, _MIDDLE_RANKS = 64, 256


def main() -> None:
    """Simulates, asks and prints."""
    options = _options()
    begin = time.perf_counter()
    chosen = _chosen(options)
    results = _run(chosen, options)
    minutes = (time.perf_counter() - begin) / 60
    made, cost = [*tables(results), *ahead_tables(results)], costs(results)
    if options.costs:
        made = []
    jobs = sum(len(trials) for _, trials in results)
    summary = f"{jobs:,} jobs with seeds from {_first_seed(options)}, {minutes:.0f} min on {options.workers} processes."
    if options.misses:
        print(*misses(results), sep="\n", file=sys.stderr)
    if options.json:
        print(json.dumps({"jobs": jobs, "minutes": minutes, "tables": plain([*made, *cost])}, indent=1))
    else:
        print(f"{summary}\n\n{markdown([*made, *cost])}")
    if options.write:
        write(options.write, made, cost, summary)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="scenarios whose name contains one of these, separated by commas")
    parser.add_argument("--layouts", help=f"separated by commas, of {', '.join(STANDARD)}")
    parser.add_argument("--steps", type=int, help="only recordings of so many steps")
    parser.add_argument("--jobs", type=int, help="jobs per scenario, instead of each one's own number")
    parser.add_argument("--scale", type=float, default=1.0, help="times each scenario's own number")
    parser.add_argument("--tuning", action="store_true", help=f"seeds below {HELD_OUT}, to look at while tuning")
    parser.add_argument("--costs", action="store_true", help="only what faults cost: recordings of 20 steps, alone")
    parser.add_argument("--alone", action="store_true", help="triage only: no other methods, no calibration")
    parser.add_argument("--workers", type=int, default=2, help="processes, each with one thread")
    kept = "keep each answer there, and ask nothing again that is there; one file for one state of the project"
    parser.add_argument("--answers", type=Path, metavar="FILE", help=kept)
    parser.add_argument("--misses", action="store_true", help="list the jobs that were answered wrongly, on stderr")
    parser.add_argument("--json", action="store_true", help="print JSON")
    written = "also write the tables as pages beside FILE, and the summary between its markers"
    parser.add_argument("--write", type=Path, metavar="FILE", help=written)
    return parser.parse_args()


def _chosen(options: argparse.Namespace) -> list[Scenario]:
    names = options.only.lower().split(",") if options.only else [""]
    layouts = options.layouts.split(",") if options.layouts else list(STANDARD)
    if unknown := set(layouts) - set(STANDARD):
        raise SystemExit(f"no layout {', '.join(sorted(unknown))}; there are {', '.join(STANDARD)}")
    chosen = [
        scenario
        for scenario in scenarios()
        if scenario.layout in layouts
        and any(name.strip() in scenario.name.lower() for name in names)
        and options.steps in (None, scenario.steps)
        and (not options.costs or (scenario.kind == "guilty" and scenario.steps == 20 and not scenario.runs_ahead))
    ]
    if not chosen:
        raise SystemExit(f"no scenario matches; there are {'; '.join(dict.fromkeys(one.name for one in scenarios()))}")
    return chosen


def _first_seed(options: argparse.Namespace) -> int:
    return 0 if options.tuning else HELD_OUT


def _run(chosen: Sequence[Scenario], options: argparse.Namespace) -> Results:
    # Before any process starts: two processes with a thread each do not get in each other's way.
    os.environ |= {"POLARS_MAX_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    # The largest jobs first, so that no process is left with one at the end.
    ordered = sorted(chosen, key=lambda scenario: -STANDARD[scenario.layout].ranks)
    batches = [batch for scenario in ordered for batch in _batches(scenario, options)]
    kept = KeptTrials(options.answers)
    of: dict[str, list[Trial]] = defaultdict(list)
    total, done, told = sum(len(batch.seeds) for batch in batches), 0, 0
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        futures = {}
        for batch in batches:
            if (known := kept.get(batch)) is None:
                futures[pool.submit(run_batch, batch)] = batch
            else:
                of[batch.key] += known
                done += len(batch.seeds)
        for future in as_completed(futures):
            batch = futures[future]
            kept.keep(batch, future.result())
            of[batch.key] += future.result()
            done += len(batch.seeds)
            if done * 20 // total > told:
                told = done * 20 // total
                print(f"{done:,} of {total:,} jobs", file=sys.stderr, flush=True)
    return [(scenario, sorted(of[scenario.key], key=lambda trial: trial.seed)) for scenario in chosen]


def _batches(scenario: Scenario, options: argparse.Namespace) -> Iterator[Batch]:
    first = _first_seed(options)
    seeds = range(first, first + _scaled(scenario.jobs, options))
    asked = 0 if options.alone or options.costs else 1
    compared = frozenset(seeds[: asked * _scaled(scenario.compared, options)])
    calibrated = frozenset(seeds[: asked * _scaled(scenario.calibrated, options)])
    size = _batch_size(scenario)
    for begin in range(0, len(seeds), size):
        part = tuple(seeds[begin : begin + size])
        yield Batch(scenario.key, part, compared & set(part), calibrated & set(part))


def _scaled(jobs: int, options: argparse.Namespace) -> int:
    if not jobs:
        return 0
    return max(1, round(jobs * options.scale)) if options.jobs is None else int(options.jobs)


def _batch_size(scenario: Scenario) -> int:
    """Simulating several at once is faster, and takes memory."""
    layout = STANDARD[scenario.layout]
    if layout.ranks < _SMALL_RANKS:
        return 8
    return 4 if layout.ranks < _MIDDLE_RANKS else 1


def write(path: Path, verdicts: Sequence[Table], costs: Sequence[Table], run: str) -> None:
    """The summary of the verdicts into `path`, and every table onto its page beside it.

    Pages of tables that were not made stay as they are, and without any that the summary is of so does the summary.
    Raises SystemExit where `path` lacks the markers.
    """
    before, found, rest = path.read_text().partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (found and ended):
        raise SystemExit(f"{path} lacks the lines {BEGIN} and {END}, between which the summary belongs")
    if any(table.page in IN_OVERVIEW for table in verdicts):
        path.write_text(f"{before}{BEGIN}\n{overview(verdicts, run)}\n{END}{after}")
    for name, text in pages([*verdicts, *costs], run).items():
        path.with_name(name).write_text(text)


if __name__ == "__main__":
    main()
