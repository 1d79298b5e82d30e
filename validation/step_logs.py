"""How well logs of steps are judged: on logs that are generated, healthy ones and ones with a fault.

    python validation/step_logs.py healthy --count 1000 --seed 66 --into healthy.json
    python validation/step_logs.py faults --count 1000 --seed 66 --into faults.json
    python validation/step_logs.py healthy --count 1000 --seed 66 --steps 15-39
    python validation/step_logs.py real REPOSITORY

Each generated log is text as a trainer prints it, and read and judged as `kair triage LOG` does: 300 to 2,000 steps
(healthy ones as many as `--steps` says) with warm-up, evaluations, spikes and noise of 0.2 to 10 % (normal, Student's t
with 3 degrees of freedom, or log-normal) that has up to 0.8 in common with that of the step before; a quarter drifts
besides. A fault adds 3 to 100 % to the steps since some step, or between two, or to every n-th. Numbers are printed as
JSON.

`real` judges the logs of PipeMorph: REPOSITORY is a clone of github.com/wutianyuan1/PipeMorph that holds commit
a500b85b. Its log of 1,200 iterations on 128 GPUs has nine labelled slow periods, and the short ones of `experiments/`
are slow from the delay's begin in their trace file to its end. Logs are read from there and nothing of them is kept.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.results.steplog import LogOfSteps
from kair_engine.steplog.analysis import judge
from kair_engine.steplog.reading import read_steps

REVISION = "a500b85b3b9b1ae0b0846f4ba82bf149a7ab2744"
LONG = (300, 2000)
"""Fewest and most steps of a generated log."""
NEAR = 3
"""Steps within which an onset is right."""


@dataclass
class Made:
    """One generated log: its times in seconds, and what was put in."""

    seconds: Floats
    noise: float
    alike: float
    periods: list[tuple[int, float]] = field(default_factory=list)
    """Length and extra share of evaluations and checkpoints."""
    drifts: bool = False
    fault: str = ""
    """`onset`, `bout` or `period`; empty of a healthy log."""
    share: float = 0.0
    since: int = 0
    until: int = 0
    every: int = 0

    @property
    def of_mean(self) -> float:
        """Return what means of steps vary by, times the root of their number."""
        return self.noise * float(np.sqrt((1 + self.alike) / (1 - self.alike)))


def noise_of(chance: np.random.Generator, count: int, spread: float, alike: float) -> Floats:
    """Return logarithms of steps: noise of a kind, alike from step to step."""
    kind = chance.integers(3)
    if kind == 0:
        own = chance.standard_normal(count)
    elif kind == 1:
        own = chance.standard_t(3, count) / np.sqrt(3)
    else:
        own = np.exp(0.5 * chance.standard_normal(count))
        own = (own - np.exp(0.125)) / np.sqrt((np.exp(0.25) - 1) * np.exp(0.25))
    result = np.empty(count)
    before = own[0]
    for at, one in enumerate(own.tolist()):
        before = alike * before + np.sqrt(1 - alike**2) * one if at else one
        result[at] = before
    return np.asarray(spread * result)


def healthy(chance: np.random.Generator, steps: tuple[int, int] = LONG) -> Made:
    """Return a log without a fault, of as many steps as lie between the two."""
    count = int(chance.integers(steps[0], steps[1] + 1))
    spread = float(np.exp(chance.uniform(np.log(0.002), np.log(0.1))))
    alike = float(chance.choice([0.0, 0.0, 0.3, 0.6, 0.8]))
    y = noise_of(chance, count, spread, alike)
    made = Made(y, spread, alike)
    if chance.random() < 0.25:
        made.drifts = True
        walk = np.cumsum(chance.standard_normal(count))
        ways = [np.linspace(0, 1, count), np.sin(np.linspace(0, 3, count) * np.pi), walk / np.ptp(walk)]
        y += chance.uniform(0.01, 0.06) * ways[chance.integers(3)]
    if chance.random() < 0.7:
        warm = int(chance.integers(1, min(16, count // 4 + 1)))
        y[:warm] += np.log1p(chance.uniform(0.3, 10)) * np.exp(-np.arange(warm) / max(warm / 3, 1))
    for _ in range(int(chance.integers(0, 3))):
        every, extra = int(chance.choice([8, 20, 25, 50, 100, 200])), float(chance.uniform(0.2, 4))
        if all(every != other for other, _ in made.periods):
            y[every - 1 :: every] += np.log1p(extra)
            made.periods.append((every, extra))
    spikes = chance.integers(0, count, int(chance.integers(0, 8)))
    y[spikes] += np.log1p(chance.uniform(0.2, 5, len(spikes)))
    made.seconds = float(np.exp(chance.uniform(np.log(0.1), np.log(20)))) * np.exp(y)
    return made


def faulty(chance: np.random.Generator) -> Made:
    """Return a log with one fault."""
    made = healthy(chance)
    while made.drifts:
        made = healthy(chance)
    count = len(made.seconds)
    made.share = float(np.exp(chance.uniform(np.log(0.03), np.log(1.0))))
    made.fault = str(chance.choice(["onset", "onset", "bout", "period"]))
    if made.fault == "period":
        made.every = int(chance.choice([7, 16, 32, 64]))
        made.share = max(made.share, 0.05)
        made.since = int(chance.integers(made.every))
        made.seconds[made.since :: made.every] *= 1 + made.share
        return made
    made.since = int(chance.integers(80, count - 60))
    made.until = count
    if made.fault == "bout":
        made.until = int(min(made.since + chance.integers(30, max(count // 2, 31)), count - 30))
        made.until = max(made.until, made.since + 20)
    made.seconds[made.since : made.until] *= 1 + made.share
    return made


def as_megatron(seconds: Floats) -> str:
    """Return the times as Megatron-LM prints them."""
    return "using world size: 64, data-parallel size: 64\n" + "".join(
        f" iteration {at:8d}/  500000 | consumed samples: {at * 256:12d} | elapsed time per iteration (ms): "
        f"{1e3 * one:.1f} | learning rate: 1.0E-04 | global batch size:   256 | lm loss: 2.0E+00 | number of skipped "
        "iterations:   0 | number of nan iterations:   0 |\n"
        for at, one in enumerate(seconds.tolist(), 1)
    )


def as_maxtext(seconds: Floats) -> str:
    """Return the times as MaxText prints them."""
    return "".join(
        f"completed step: {at}, seconds: {one:.3f}, TFLOP/s/device: 100.0, loss: 2.0\n"
        for at, one in enumerate(seconds.tolist(), 1)
    )


def as_deepspeed(seconds: Floats) -> str:
    """Return the times as DeepSpeed prints them, with stamps."""
    now = 1_780_000_000.0 + np.cumsum(seconds)
    return "".join(
        f"[{np.datetime64(int(1e3 * when), 'ms')}] [INFO] [Rank 0] epoch=0/micro_step={at}/global_step={at}, "
        f"RunningAvgSamplesPerSec=1.0, CurrSamplesPerSec={256 / one:.6f}, MemAllocated=1GB\n".replace("T", " ", 1)
        for at, (one, when) in enumerate(zip(seconds.tolist(), now.tolist(), strict=True), 1)
    )


WRITERS: list[Callable[[Floats], str]] = [as_megatron, as_megatron, as_maxtext, as_deepspeed]


def judged(made: Made, chance: np.random.Generator, folder: Path) -> LogOfSteps:
    """Write a log, read it and return what is said of it."""
    writer = WRITERS[chance.integers(len(WRITERS))]
    path = folder / "train.log"
    path.write_text(writer(made.seconds), encoding="utf-8")
    lines = read_steps([path])
    assert lines is not None
    return judge(lines)


def of_healthy(options: argparse.Namespace) -> dict[str, Any]:
    """Count what is said of healthy logs and should not be."""
    steps = slower = slow_starts = drifts = false_periods = found_periods = true_periods = 0
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.count):
            chance = np.random.default_rng([options.seed, number])
            made = healthy(chance, options.steps)
            found = judged(made, chance, Path(folder))
            steps += len(made.seconds)
            false = [one for one in found.changes if one.kind in ("slower", "faster")]
            slower += len(false)
            slow_starts += sum(one.kind == "slow_start" for one in found.changes)
            drifts += sum(one.kind == "drift" for one in found.changes)
            lengths = {one.every for one in found.periods}
            shown = {
                every
                for every, extra in made.periods
                if len(made.seconds) // every >= 4 and np.log1p(extra) > 4 * made.noise
            }
            hidden = {every for every, _ in made.periods}
            true_periods += len(shown)
            found_periods += sum(any(not every % one or not one % every for one in lengths) for every in shown)
            false_periods += sum(all(one % every and every % one for every in hidden) for one in lengths)
            if false:
                wrong.append([number, made.noise, made.alike, made.drifts, [(o.kind, o.since, o.share) for o in false]])
    return {
        "logs": options.count,
        "steps": steps,
        "slower_or_faster": slower,
        "per_1000_steps": 1000 * slower / steps,
        "slow_starts": slow_starts,
        "drifts": drifts,
        "periods_found": [found_periods, true_periods],
        "false_periods": false_periods,
        "wrong": wrong,
    }


def of_faults(options: argparse.Namespace) -> dict[str, Any]:
    """Count onsets, ends and periods that were found, and how wrong prices are."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.count):
            chance = np.random.default_rng([options.seed, 1, number])
            made = faulty(chance)
            rows.append(row_of(number, made, judged(made, chance, Path(folder))))
    clear = [row for row in rows if row["share"] >= 0.05 and row["in_noise"] >= 2]
    return {
        "logs": options.count,
        "all_of_5_percent": shares([row for row in rows if row["share"] >= 0.05]),
        "of_5_percent_and_twice_the_noise": shares(clear),
        "missed": [row for row in clear if not row["found"]],
    }


def row_of(number: int, made: Made, found: LogOfSteps) -> dict[str, Any]:
    """Score one log."""
    row: dict[str, Any] = {
        "number": number,
        "fault": made.fault,
        "share": made.share,
        "in_noise": float(np.log1p(made.share)) / made.of_mean,
        "noise": made.noise,
        "alike": made.alike,
    }
    if made.fault == "period":
        beside = {every for every, _ in made.periods}
        lengths = [one.every for one in found.periods]
        repeats = len(made.seconds) // made.every
        row["found"] = any(not one % made.every or not made.every % one for one in lengths) or made.every in beside
        row |= {"repeats": repeats, "lengths": lengths, "every": made.every}
        return row
    slower = [one for one in found.changes if one.kind == "slower"]
    onset = min((abs(one.since - 1 - made.since) for one in slower), default=10**6)
    nearest = min(slower, key=lambda one: abs(one.since - 1 - made.since), default=None)
    row |= {"onset_off": onset, "found": onset <= NEAR}
    row["kinds"] = [(one.kind, one.since, one.until, round(one.share, 3)) for one in found.changes]
    row["since"], row["until"], row["count"] = made.since + 1, made.until, len(made.seconds)
    if nearest is not None:
        row["within"] = nearest.since_range[0] - 1 <= made.since <= nearest.since_range[1] - 1
        row["price_off"] = nearest.share / made.share - 1
    if made.fault == "bout":
        ends = [abs(one.until - made.until) for one in slower if one.until is not None]
        row["end_off"] = min(ends, default=10**6)
    return row


def shares(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Summarise scored logs."""
    onsets = [row for row in rows if "onset_off" in row]
    ends = [row for row in rows if "end_off" in row]
    periods = [row for row in rows if row["fault"] == "period"]
    prices = [abs(row["price_off"]) for row in onsets if row["found"] and "price_off" in row]
    return {
        "onsets_within_3": [sum(row["onset_off"] <= NEAR for row in onsets), len(onsets)],
        "onset_in_its_interval": [sum(row.get("within", False) for row in onsets), len(onsets)],
        "ends_within_3": [sum(row["end_off"] <= NEAR for row in ends), len(ends)],
        "periods": [sum(row["found"] for row in periods), len(periods)],
        "price_error_median_and_p90": [float(np.median(prices)), float(np.quantile(prices, 0.9))] if prices else [],
    }


LARGE = "experiments/large-scale/superpod"


def git(repository: Path, *words: str) -> str:
    """Return what git prints of the repository."""
    command = ["git", "-C", str(repository), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def of_real(options: argparse.Namespace) -> dict[str, Any]:
    """Compare what is said of PipeMorph's long log with its labels, and count what is said of its short ones."""
    repository = options.repository
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.txt"
        log.write_text(git(repository, "show", f"{REVISION}:{LARGE}/1F1B/log.txt"), encoding="utf-8")
        labels = git(repository, "show", f"{REVISION}:{LARGE}/large-scale.trace")
        long = compared(log, labels)
        names = git(repository, "ls-tree", "-r", "--name-only", REVISION, "experiments").splitlines()
        short = [name for name in names if name.endswith("log.txt") and not name.startswith(LARGE)]
        rows = []
        for name in short:
            log.write_text(git(repository, "show", f"{REVISION}:{name}"), encoding="utf-8")
            rows.append({"log": name, **of_short(log)})
    found = [row for row in rows if row["slower_since"]]
    by_first = Counter(min(row["slower_since"]) for row in found)
    return {"long": long, "short": {"logs": len(rows), "slower": len(found), "since": dict(sorted(by_first.items()))}}


def compared(log: Path, labels: str) -> dict[str, Any]:
    """Return begin, end and price of each labelled period, those that were said, and what was said besides."""
    lines = read_steps([log])
    assert lines is not None
    judged_log = judge(lines)
    marks = [line.split(";") for line in labels.split() if line]
    delays = [(int(first[0]), int(last[0])) for first, last in pairwise(marks) if first[2] not in ("0.00", "inf")]
    # Of an attempt that was started again the first lines count.
    times = dict(zip(lines.step[::-1].tolist(), (lines.value[::-1] / 1e3).tolist(), strict=True))
    said = [one for one in judged_log.changes if one.kind in ("slower", "slow_start", "faster")]
    rows = []
    for begin, end in delays:
        near = [one for one in said if one.share > 0 and abs(one.since - begin) <= 10]
        inside = [s for n, s in times.items() if begin + 5 <= n <= end - 5]
        healthy = [s for n, s in times.items() if all(n < b - 1 or n > e + 2 for b, e in delays) and n > 20]
        price = float(np.mean(inside) - np.median(healthy)) * 1e6
        row: dict[str, Any] = {"label": [begin, end], "said": [[one.since, one.until] for one in near]}
        if near and near[0].extra_us_per_step is not None:
            row["price_off"] = near[0].extra_us_per_step / price - 1
        rows.append(row)
    matched = {
        one.since for row, (begin, _) in zip(rows, delays, strict=True) for one in said if abs(one.since - begin) <= 10
    }
    return {
        "periods": rows,
        "others": [[one.kind, one.since, one.until, one.share] for one in said if one.since not in matched],
    }


def of_short(log: Path) -> dict[str, Any]:
    """Return since which steps a short log is slower."""
    lines = read_steps([log])
    if lines is None:
        return {"slower_since": []}
    return {"slower_since": [one.since for one in judge(lines).changes if one.kind == "slower"]}


def span(text: str) -> tuple[int, int]:
    """Return the two numbers of `15-39`; raises ValueError where there are not two."""
    least, most = map(int, text.split("-"))
    return least, most


def main() -> int:
    """Run one part and print its figures."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("part", choices=("healthy", "faults", "real"))
    options.add_argument("repository", type=Path, nargs="?")
    options.add_argument("--count", type=int, default=1000)
    options.add_argument("--seed", type=int, default=66)
    options.add_argument("--steps", type=span, default=LONG, help="of healthy logs, as 15-39")
    options.add_argument("--into", type=Path)
    chosen = options.parse_args()
    figures = {"healthy": of_healthy, "faults": of_faults, "real": of_real}[chosen.part](chosen)
    text = json.dumps(figures, indent=1)
    if chosen.into:
        chosen.into.write_text(text + "\n", encoding="utf-8")
    shown = {name: value for name, value in figures.items() if name not in ("wrong", "missed")}
    print(json.dumps(shown, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
