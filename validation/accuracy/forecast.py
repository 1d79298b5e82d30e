"""Whether `kair forecast` is right: four ranks of a simulated healthy job are recorded, and more of them are run.

python validation/accuracy/forecast.py [--jobs 40] [--steps 20] [--only burst,pairs] [--tuning] [--write FILE]

Of the noise models the ranks that are run are others than those recorded, under the same noise: what is waited is known
from their costs, and not measured by what is asked. Of the layouts jobs of 4, 8 and 64 ranks are simulated, and what is
waited on the larger ones is measured in their recordings. Seeds below 7000 were looked at while tuning.
"""

import argparse
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
from costs import Noise
from layouts import JobLayout
from noise_models import MODELS, TRANSFER_NS, Costs, healthy, let_run, write_job
from report import Share
from simulator import JobSpec, simulate
from table import write_table

from kair_engine.errors import UsageError
from kair_engine.forecast.analysis import forecast
from kair_engine.forecast.meetings import meetings_of
from kair_engine.trace.model import Trace

REPORTED = 7000
"""The first seed that is."""
RECORDED, SIZES, RUN_STEPS = 4, (8, 64), 100
DRAWS, PIPELINES = 100, 12
"""Draws of each interval; pipelines of each noise."""
KINDS = ("dp", "fsdp")
LAYOUT_NOISE = {"": Noise(), " noisy": Noise(operation=0.15, spread=0.01, tail_probability=2e-3)}
UNKNOWABLE = {"hetero": "one of all ranks is noisy", "hetero_pre": "one of all ranks is preempted"}
"""What four ranks cannot tell of: it is shown, and not counted."""


@dataclass(frozen=True)
class Asked:
    """One forecast of one job: shares of the step."""

    model: str
    ranks: int
    simulated: float
    lost: float | None
    least: float | None
    most: float | None

    @property
    def within(self) -> bool:
        """Whether what was simulated lies in the interval."""
        return self.least is not None and self.most is not None and self.least <= self.simulated <= self.most


def main() -> None:
    """Prints the page, and writes it where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=40, help="of each model and layout (default 40)")
    parser.add_argument("--steps", type=int, default=20, help="that are recorded (default 20)")
    parser.add_argument("--only", default=",".join((*MODELS, *_layouts())), help="models and layouts")
    parser.add_argument("--tuning", action="store_true", help=f"seeds below {REPORTED}")
    parser.add_argument("--workers", type=int, default=2, help="processes, each with one thread")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to write")
    options = parser.parse_args()
    first = 0 if options.tuning else REPORTED
    seeds = range(first, first + options.jobs)
    jobs = [(model, seed, options.steps) for model in options.only.split(",") for seed in seeds]
    os.environ |= {"POLARS_MAX_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        asked = [one for of in pool.map(ask, jobs, chunksize=5) for one in of]
        asked_of = [(noise, seed, options.steps) for noise in LAYOUT_NOISE for seed in seeds[:PIPELINES]]
        pipelines = list(pool.map(pipeline, asked_of))
    text = "\n".join((*page(asked, options.steps), *page_of_pipelines(pipelines)))
    print(text)
    if options.write is not None:
        options.write.write_text(text + "\n", encoding="utf-8")


def _layouts() -> list[str]:
    return [kind + of for kind in KINDS for of in LAYOUT_NOISE]


def ask(job: tuple[str, int, int]) -> list[Asked]:
    """Records four ranks, asks, and lets more run."""
    model, seed, steps = job
    with TemporaryDirectory(prefix="kair-forecast-") as folder:
        if model in MODELS:
            costs = healthy(model, RECORDED + max(SIZES), RUN_STEPS, seed)
            recorded = write_job(_part(costs, steps, slice(0, RECORDED)), Path(folder))
            lost = {n: lost_share(_part(costs, RUN_STEPS, slice(RECORDED, RECORDED + n))) for n in SIZES}
        else:
            recorded = _simulated(model, RECORDED, steps, seed, Path(folder) / "recorded")
            lost = {n: _measured(_simulated(model, n, steps, seed + 500, Path(folder) / f"{n}")) for n in SIZES}
        return list(_compared(model, recorded, lost))


def _compared(model: str, recorded: Trace, lost: dict[int, float]) -> Iterator[Asked]:
    try:
        result = forecast(recorded, ranks=SIZES, draws=DRAWS)
    except UsageError:
        yield from (Asked(model, n, share, None, None, None) for n, share in lost.items())
        return
    for one in result.forecasts:
        yield Asked(model, one.ranks, lost[one.ranks], one.lost_share, one.least_share, one.most_share)


def _part(costs: Costs, steps: int, ranks: slice) -> Costs:
    return Costs(costs.work[:steps, ranks], costs.idle[:steps, ranks])


def lost_share(costs: Costs) -> float:
    """Of the step, how long the mean rank waits for others."""
    begin, arrival, met = let_run(costs)
    waited = (met[:, :, None] - TRANSFER_NS - arrival).sum()
    ended = float((begin[-1, :, -1] + costs.work[-1, :, -1]).mean())
    return float(waited) / costs.work.shape[1] / ended


def _simulated(model: str, ranks: int, steps: int, seed: int, folder: Path) -> Trace:
    kind, _, noise = model.partition(" ")
    layout = JobLayout("fsdp" if kind == "fsdp" else "dp", ranks)
    spec = JobSpec(layout, steps, seed, noise=LAYOUT_NOISE[f" {noise}" if noise else ""])
    return write_table(simulate([spec])[0], folder)


def pipeline(job: tuple[str, int, int]) -> tuple[float, float]:
    """By what share the step of a pipeline grows from 8 ranks to 64, simulated and as forecast by own times."""
    noise, seed, steps = job
    small, large = (JobLayout("3d", dp, pp=2, tp=2, microbatches=4) for dp in (2, 16))
    with TemporaryDirectory(prefix="kair-forecast-") as folder:
        recorded = simulate([JobSpec(small, steps, seed, noise=LAYOUT_NOISE[noise])])[0]
        run = simulate([JobSpec(large, steps, seed + 500, noise=LAYOUT_NOISE[noise])])[0]
        result = forecast(write_table(recorded, Path(folder)), ranks=(large.ranks,), draws=DRAWS)
    told = result.forecasts[0].step_time_us or result.step_time_us
    return run.step_time_ns / recorded.step_time_ns - 1, told / result.step_time_us - 1


def page_of_pipelines(grown: Sequence[tuple[float, float]]) -> Iterator[str]:
    """What is said of jobs in whose collectives not all ranks meet."""
    simulated, told = (median(one[at] for one in grown) for at in (0, 1))
    parts = [of / is_so for is_so, of in grown]
    yield ""
    yield "Pipelines (2 stages, tensor groups of 2; not all ranks meet): from 8 ranks to 64 the step grows by"
    yield f"{simulated:.1%} in the median of {len(grown)} jobs, and by {told:.1%} as forecast by own times once a step:"
    yield f"{median(parts):.2f} of it ({np.quantile(parts, 0.1):.2f}–{np.quantile(parts, 0.9):.2f})."
    yield "A lower bound."


def _measured(trace: Trace) -> float:
    found = meetings_of(trace)
    return found.waited_ns / found.step_ns


def page(asked: Sequence[Asked], steps: int) -> Iterator[str]:
    """The page's lines."""
    yield "# Noise forecasts"
    yield ""
    yield f"Written by `validation/accuracy/forecast.py`: {RECORDED} ranks of a healthy job are recorded for {steps}"
    yield "steps, and asked what it would lose on more ranks; as many others are run under the same noise. *Lost* is"
    yield "the share of the step that the mean rank waits for others: simulated, as forecast, the median of forecast"
    yield "over simulated with its middle 80 %. *Within*: how many of the simulated lie in the interval, whose level is"
    yield "90 % (95 % interval of that share). Models are those of `noise_models.py`; layouts are simulated whole."
    yield ""
    yield "| model | ranks | jobs | lost, simulated | lost, forecast | ratio | within |"
    yield "|---|---|---|---|---|---|---|"
    key = lambda one: (one.model, one.ranks)  # noqa: E731
    for (model, ranks), of in groupby(sorted(asked, key=key), key):
        yield _line(model, ranks, list(of))
    yield ""
    counted = [one for one in asked if one.model not in UNKNOWABLE]
    for ranks in SIZES:
        yield f"All on {ranks} ranks: {_told([one for one in counted if one.ranks == ranks])}."
    yield ""
    yield "Not counted there: " + "; ".join(f"`{name}` ({why})" for name, why in UNKNOWABLE.items()) + "."


def _line(model: str, ranks: int, of: Sequence[Asked]) -> str:
    known = [(one.lost, one.simulated) for one in of if one.lost is not None]
    lost = f"{median(lost for lost, _ in known):.1%}" if known else "–"
    ratios = [lost / max(simulated, 1e-9) for lost, simulated in known]
    middle = f"{median(ratios):.2f} ({np.quantile(ratios, 0.1):.2f}–{np.quantile(ratios, 0.9):.2f})" if ratios else "–"
    simulated = f"{median(one.simulated for one in of):.1%}"
    return f"| {model} | {ranks} | {len(of)} | {simulated} | {lost} | {middle} | {_within(of)} |"


def _within(of: Sequence[Asked]) -> str:
    known = [one for one in of if one.lost is not None]
    if not known:
        return "no forecast"
    share = Share(sum(one.within for one in known), len(known))
    low, high = share.interval
    return f"{share.hits / len(known):.0%} ({low:.0%}–{high:.0%})"


def _told(of: Sequence[Asked]) -> str:
    ratios = [one.lost / max(one.simulated, 1e-9) for one in of if one.lost is not None]
    if not ratios:
        return "no forecast"
    return f"forecast over simulated {median(ratios):.2f} in the median; within the interval {_within(of)}"


if __name__ == "__main__":
    main()
