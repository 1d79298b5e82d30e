"""Ask triage about healthy jobs under noise as it is, and write how often it accuses a rank.

python validation/accuracy/noise.py [--jobs 100] [--sizes 4x8,8x20] [--only burst,pairs] [--answers FILE] [--write FILE]

Seeds below 3000 were looked at while tuning; those from 3000 on are reported. What is asked takes the place of the same
in FILE, and the page is of all that is in it: the sizes need not be asked in one go.
"""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from noise_models import MODELS, healthy, write_job
from report import Share
from scoring import lowest_p

from kair_engine.localize.analysis import localize
from kair_engine.triage.analysis import triage

REPORTED = 3000
"""The first seed that is."""


@dataclass(frozen=True)
class Job:
    """One to draw."""

    model: str
    ranks: int
    steps: int
    seed: int


LEVELS = (0.01, 0.05, 0.1)
SLOWER = 0.02
"""By so much of its peers' median a rank must have worked longer for its noise to have made it a slow one."""


@dataclass(frozen=True)
class Said:
    """What triage says of it."""

    accused: bool
    measured: bool
    """Whether each accused rank did work longer than its peers, in the mean of the recorded steps."""
    others: tuple[str, ...]
    """Causes that it finds on all ranks, and whether it leaves the verdict open."""
    lowest_p: float
    """Of all that was tried."""
    lowest_measured: bool
    """Whether the rank that has it did work longer than its peers."""


@dataclass(frozen=True)
class Row:
    """What triage says of the jobs of one model and size."""

    model: str
    ranks: int
    steps: int
    jobs: int
    accused: int
    measured: int
    """Of them, those whose rank did work longer."""
    others: dict[str, int]
    """How many jobs of which no rank is accused were told what else."""
    lowest: tuple[int, ...]
    """How many have a p-value up to each of LEVELS."""
    lowest_by_chance: tuple[int, ...]
    """Of them, those whose rank did not work longer."""


def main() -> None:
    """Prints the table, and writes it where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100, help="of each model and size (default 100)")
    parser.add_argument("--sizes", default="4x8,8x20,64x20", help="ranks x steps")
    parser.add_argument("--only", default=",".join(MODELS), help="models")
    parser.add_argument("--tuning", action="store_true", help=f"seeds below {REPORTED}")
    parser.add_argument("--workers", type=int, default=2, help="processes, each with one thread")
    parser.add_argument("--answers", type=Path, metavar="FILE", help="keep the answers there, beside those of before")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to write")
    options = parser.parse_args()
    sizes = [(int(size.partition("x")[0]), int(size.partition("x")[2])) for size in options.sizes.split(",")]
    first = 0 if options.tuning else REPORTED
    jobs = [
        Job(model, *size, seed)
        for model in options.only.split(",")
        for size in sizes
        for seed in range(first, first + options.jobs)
    ]
    os.environ |= {"POLARS_MAX_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        answers = zip(jobs, pool.map(ask, jobs, chunksize=10), strict=True)
        rows = [row_of([said for _, said in of], *key) for key, of in groupby(answers, lambda one: _of(one[0]))]
    if options.answers is not None:
        rows = kept(options.answers, rows)
    text = "\n".join(page(rows))
    print(text)
    if options.write is not None:
        options.write.write_text(text + "\n", encoding="utf-8")


def ask(job: Job) -> Said:
    """Draws the job and asks."""
    costs = healthy(job.model, job.ranks, job.steps, job.seed)
    with TemporaryDirectory(prefix="kair-noise-") as folder:
        trace = write_job(costs, Path(folder))
        result, tested = triage(trace), localize(trace)
    worked = costs.work.sum(axis=2).mean(axis=0)
    slower = set(np.flatnonzero(worked > (1 + SLOWER) * np.median(worked)).tolist())
    accused = {rank for one in result.findings for rank in one.ranks}
    wide = {one.cause for one in result.findings if not one.ranks}
    others = wide | ({"inconclusive"} if result.verdict == "inconclusive" else set())
    least = min(tested.scores, key=lambda row: 1.0 if row.p_value is None else row.p_value)
    return Said(
        accused=bool(accused),
        measured=bool(accused) and accused <= slower,
        others=tuple(sorted(others)),
        lowest_p=lowest_p(tested),
        lowest_measured=least.rank in slower,
    )


def row_of(answers: Sequence[Said], model: str, ranks: int, steps: int) -> Row:
    """Counts them."""
    others = Counter(one for said in answers if not said.accused for one in said.others)
    accused, measured = (sum(getattr(said, what) for said in answers) for what in ("accused", "measured"))
    lowest, by_chance = (
        tuple(
            sum(said.lowest_p <= level and not (chance and said.lowest_measured) for said in answers)
            for level in LEVELS
        )
        for chance in (False, True)
    )
    return Row(model, ranks, steps, len(answers), accused, measured, dict(others.most_common()), lowest, by_chance)


def kept(path: Path, rows: Sequence[Row]) -> list[Row]:
    """The rows of the file with these in the place of the same; written, in the order of models and sizes."""
    before = [Row(**row) for row in json.loads(path.read_text("utf-8"))] if path.exists() else []
    by_key = {(row.model, row.ranks, row.steps): row for row in (*before, *rows)}
    order = list(MODELS)
    found = sorted(by_key.values(), key=lambda row: (order.index(row.model), row.ranks, row.steps))
    path.write_text(json.dumps([asdict(row) for row in found], indent=0) + "\n", encoding="utf-8")
    return found


def page(rows: Sequence[Row]) -> Iterator[str]:
    """The page's lines."""
    sizes = sorted({(row.ranks, row.steps) for row in rows})
    jobs = sorted({row.jobs for row in rows})
    yield "# Healthy jobs under noise as it is"
    yield ""
    each = " or ".join(map(str, jobs))
    yield "Written by `validation/accuracy/noise.py`; `noise_models.py` says what each is. Nobody made a rank slow"
    yield f"in any of these jobs, {each} of each kind and size. Jobs with a rank accused: of all sizes, with"
    yield "the 95 % interval, and of each size (ranks × steps). *Of them measured*: noise alone can make a rank"
    yield f"work longer than its peers for as long as was recorded; so many of the accused did, by {SLOWER:.0%} and"
    yield "more. Last, what was said of the others: causes that all ranks have, or that the verdict is open."
    yield ""
    sizes_named = " | ".join(f"{ranks} × {steps}" for ranks, steps in sizes)
    yield f"| model | a rank accused | of them measured | {sizes_named} | otherwise |"
    yield "|---|---|---|" + "---|" * len(sizes) + "---|"
    by_model = [(model, list(of)) for model, of in groupby(rows, lambda row: row.model)]
    for model, of in by_model:
        yield _line(model, of, sizes)
    yield ""
    yield "## P-values"
    yield "The smallest p-value of all that triage tried in a job, corrected for that: in how many jobs it is as small"
    yield f"(95 % interval). Where noise alone made the rank that has it work {SLOWER:.0%} longer than its peers, it is"
    yield "no chance: those jobs stand in brackets, beside the others. The others' share may not lie above its level."
    yield ""
    yield "| model | jobs | " + " | ".join(f"p ≤ {level}" for level in LEVELS) + " |"
    yield "|---|---|" + "---|" * len(LEVELS)
    for model, of in by_model:
        yield _p_values(model, of)


def _p_values(model: str, rows: Sequence[Row]) -> str:
    jobs, cells = sum(row.jobs for row in rows), []
    for at in range(len(LEVELS)):
        by_chance = Share(sum(row.lowest_by_chance[at] for row in rows), jobs)
        low, high = by_chance.interval
        others = sum(row.lowest[at] for row in rows) - by_chance.hits
        cells.append(
            f"{by_chance.hits}: {by_chance.hits / jobs:.1%} ({low:.1%}–{high:.1%})"
            + (f" [+ {others}]" if others else "")
        )
    return f"| {model} | {jobs} | {' | '.join(cells)} |"


def _line(model: str, rows: Sequence[Row], sizes: Sequence[tuple[int, int]]) -> str:
    accused = Share(sum(row.accused for row in rows), sum(row.jobs for row in rows))
    low, high = accused.interval
    by_size = {(row.ranks, row.steps): str(row.accused) for row in rows}
    others: Counter[str] = sum((Counter(row.others) for row in rows), Counter())
    said = "; ".join(f"{name.replace('_', ' ')} {count / accused.jobs:.0%}" for name, count in others.most_common())
    cells = " | ".join(by_size.get(size, "–") for size in sizes)
    measured = str(sum(row.measured for row in rows)) if accused.hits else ""
    share = f"{accused.hits} of {accused.jobs}: {accused.hits / max(accused.jobs, 1):.1%} ({low:.1%}–{high:.1%})"
    return f"| {model} | {share} | {measured} | {cells} | {said} |"


def _of(job: Job) -> tuple[str, int, int]:
    return job.model, job.ranks, job.steps


if __name__ == "__main__":
    sys.exit(main())
