"""Ask triage about healthy jobs under noise as it is, and write how often it accuses a rank.

python benchmarks/accuracy/noise.py [--jobs 100] [--sizes 4x8,8x20] [--only burst,pairs] [--write FILE]

Seeds below 1000 were looked at while tuning; those from 1000 on are reported.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from noise_models import MODELS, healthy, write_job
from report import Share

from kair_engine.triage.analysis import triage

REPORTED = 1000
"""The first seed that is."""


@dataclass(frozen=True)
class Job:
    """One to draw."""

    model: str
    ranks: int
    steps: int
    seed: int


@dataclass(frozen=True)
class Said:
    """What triage says of it."""

    job: Job
    verdict: str
    accused: bool
    job_wide: tuple[str, ...]
    """Causes that it finds on all ranks."""


def main() -> None:
    """Prints the table, and writes it where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100, help="of each model and size (default 100)")
    parser.add_argument("--sizes", default="4x8,8x20,64x20", help="ranks x steps")
    parser.add_argument("--only", default=",".join(MODELS), help="models")
    parser.add_argument("--tuning", action="store_true", help=f"seeds below {REPORTED}")
    parser.add_argument("--workers", type=int, default=2, help="processes, each with one thread")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to write")
    options = parser.parse_args()
    sizes = [(int(size.partition("x")[0]), int(size.partition("x")[2])) for size in options.sizes.split(",")]
    first = 0 if options.tuning else REPORTED
    jobs = [
        Job(model, *size, seed)
        for size in sizes
        for model in options.only.split(",")
        for seed in range(first, first + options.jobs)
    ]
    os.environ |= {"POLARS_MAX_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        answers = list(pool.map(ask, jobs, chunksize=10))
    text = "\n".join(page(answers, sizes, options.only.split(","), options.jobs))
    print(text)
    if options.write is not None:
        options.write.write_text(text + "\n", encoding="utf-8")


def ask(job: Job) -> Said:
    """Draws the job and asks."""
    with TemporaryDirectory(prefix="kair-noise-") as folder:
        result = triage(write_job(healthy(job.model, job.ranks, job.steps, job.seed), Path(folder)))
    wide = tuple(sorted({one.cause for one in result.findings if not one.ranks}))
    return Said(job, result.verdict, any(one.ranks for one in result.findings), wide)


def page(answers: Sequence[Said], sizes: Sequence[tuple[int, int]], models: Sequence[str], jobs: int) -> Iterator[str]:
    """The page's lines."""
    yield "# Healthy jobs under noise as it is"
    yield ""
    yield "Written by `benchmarks/accuracy/noise.py`; `noise_models.py` says what each is. No rank is slow in any"
    yield f"of these jobs, {jobs} of each kind and size. Shares of jobs with a rank accused (95 % interval); after it,"
    yield "where something else is said: `inconclusive`, or what all ranks have."
    yield ""
    yield "| model | " + " | ".join(f"{ranks} ranks × {steps} steps" for ranks, steps in sizes) + " |"
    yield "|---|" + "---|" * len(sizes)
    for model in models:
        cells = (_cell([one for one in answers if _of(one.job) == (model, *size)]) for size in sizes)
        yield f"| {model} | " + " | ".join(cells) + " |"


def _of(job: Job) -> tuple[str, int, int]:
    return job.model, job.ranks, job.steps


def _cell(answers: Sequence[Said]) -> str:
    accused = Share(sum(one.accused for one in answers), len(answers))
    low, high = accused.interval
    others = Counter(cause for one in answers if not one.accused for cause in (*one.job_wide, *_open(one)))
    said = "".join(f"; {name.replace('_', ' ')} {count / len(answers):.0%}" for name, count in others.most_common())
    return f"{accused.hits / max(accused.jobs, 1):.0%} ({low:.0%}–{high:.0%}){said}"


def _open(one: Said) -> tuple[str, ...]:
    return ("inconclusive",) if one.verdict == "inconclusive" else ()


if __name__ == "__main__":
    sys.exit(main())
