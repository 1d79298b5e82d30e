"""Has a slow rank one price and one onset, whoever is asked? Real jobs, of which the truth is measured.

    python validation/one_price.py [--kinds work,sleep,data] [--repeat 1] [--load 0] [--keep DIR]
    python validation/one_price.py --again DIR

Each job runs on four ranks (gloo) under `kair capture run`, with a coordinator that samples it; from step 60 on a rank
computes more, sleeps, or waits for its input. The truth is what the job's mean step grew by, without sampled steps.
Each face is asked for the price and the onset of that rank, as its text or its JSON has them. A price counts as right
within a quarter of the truth, an onset within three steps. `--load` processes compute meanwhile on the same cores.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from captured_takes import KAIR, kept_takes, run
from history_job import Take

from kair.app.session import Session
from kair.app.step_history import history_of
from kair_capture.coordinator.step_log import read_all
from kair_capture.places import JobPlaces
from kair_capture.ring import UNFIT
from kair_engine.arrays import Floats
from kair_engine.triage.history.analysis import judge

HERE: Final = Path(__file__).parent
JOB: Final = "price"
ONSET: Final = 60
WITHIN, WITHIN_STEPS = 0.25, 3
KINDS: Final = ("work", "sleep", "data")
SETTLED: Final = 10
"""The first steps are left out of the truth."""
_MS: Final = re.compile(r"([\d.,]+)(?: of the [\d.,]+)? (µs|ms|s)\b")
_US: Final = {"µs": 1.0, "ms": 1e3, "s": 1e6}


@dataclass(frozen=True)
class Told:
    """What a face says of the slow rank; None where it says nothing."""

    us: float | None = None
    since: int | None = None
    has_onset: bool = True
    """Whether the face shows any."""
    is_price: bool = True
    """Whether it says what the job's step grew by, and not what the rank itself takes or a replay saves."""


def grown_us(take: Take, store: Path) -> tuple[float, float]:
    """Return by how much the mean step became longer at the onset, and its standard error.

    Without the longest and the shortest twentieth: a stall of the machine is among a few steps before the onset.
    """
    rows = read_all(JobPlaces(store, JOB).steps)
    rows = rows[((rows["flags"] & UNFIT) == 0) & (rows["step"] >= SETTLED) & (rows["rank"] == (take.victim + 1) % 4)]
    late = rows["step"] >= take.onset
    before, after = (_middle(rows["step_us"][of].astype(float)) for of in (~late, late))
    error = (before.var() / len(before) + after.var() / len(after)) ** 0.5
    return float(after.mean() - before.mean()), float(error)


def _middle(values: Floats) -> Floats:
    rare = math.ceil(len(values) / 20)
    return np.sort(values)[rare:-rare]


def asked(store: Path, *words: str) -> Any:  # noqa: ANN401
    """Return what a command answers as JSON."""
    command = [*KAIR, *words, "--json", "--store", str(store)]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    if outcome.returncode:
        raise SystemExit(f"{' '.join(words)}: {outcome.stderr}")
    return json.loads(outcome.stdout)["data"]


def in_text(text: str | None, rank: int) -> Told:
    """Return the first time that a sentence names after the rank, and `since step`."""
    about = (text or "").partition(f"rank {rank}")[2]
    time, since = _MS.search(about), re.search(r"(?:since|from) step (\d+)", about)
    us = None if time is None else float(time[1].replace(",", "")) * _US[time[2]]
    return Told(us, None if since is None else int(since[1]))


def faces(take: Take, store: Path, log: str) -> Iterator[tuple[str, Told]]:
    """Ask each."""
    rank = take.victim

    def of(findings: list[dict[str, Any]]) -> Told:
        mine = [one for one in findings if one["ranks"] == [rank]]
        return Told(mine[0]["time_lost_us_per_step"], mine[0]["since"]) if mine else Told()

    triage = asked(store, "triage", JOB)
    yield "triage", of(triage["findings"])
    yield "triage, in a sentence", in_text(triage["summary"], rank)
    job = Session.open(JOB, store=store).trace.job
    history = history_of(job)
    found = judge(history, job)[0] if history is not None else ()
    yield "history", of([{**vars(one), "ranks": [*one.ranks]} for one in found])
    yield "ticket", in_text(asked(store, "ticket", JOB)["summary"], rank)
    (listed,) = asked(store, "jobs")["jobs"]
    yield "jobs", in_text(listed["last_summary"], rank)
    (fleet,) = asked(store, "fleet")["jobs"]
    if len(triage["findings"]) == 1:  # else it has the price of all of them together
        yield "fleet", Told(fleet["waste"] * triage["step_time_us"], has_onset=False)
    whatif = asked(store, "whatif", JOB)
    yield "whatif", of(whatif["measured"])
    watch = asked(store, "watch", JOB)
    yield "watch", of((watch.get("triage") or {"slow": []})["slow"])
    yield "summary", in_text(" ".join(line for line in log.splitlines() if "kair: triage: " in line), rank)
    # Other quantities, in other words.
    yield "replay of sampled steps", Told(whatif["saved_by_rank_us"].get(str(rank)), is_price=False)
    row = next((one for one in watch["ranks"] if one["rank"] == rank), {"excess_us": None})
    yield "own time, last 20 steps", Told(row["excess_us"], is_price=False)


def report(take: Take, kept: Path, counts: dict[str, Counter[str]]) -> None:
    """Print what each says of a take, and count who is right."""
    truth, error = grown_us(take, kept / "store")
    grew = f"the step grew by {truth / 1e3:.2f} ms ± {error / 1e3:.2f}"
    print(f"{take.name}: rank {take.victim}, {take.fault_ms} ms from step {take.onset}; {grew}")
    for face, told in faces(take, kept / "store", (kept / "log").read_text(encoding="utf-8")):
        ratio = math.nan if told.us is None else told.us / truth
        is_right = abs(ratio - 1) <= WITHIN
        price = "-" if told.us is None else f"{told.us / 1e3:6.2f} ms {ratio:5.2f}"
        mark = "" if is_right or not told.is_price else "   off"
        print(f"  {face:24} {price:18} {'' if told.since is None else f'since {told.since}'}{mark}", flush=True)
        if not told.is_price:
            continue
        of = counts.setdefault(face, Counter())
        of += Counter(jobs=1, price=int(is_right))
        if told.has_onset:
            of += Counter(onset=int(told.since is not None and abs(told.since - take.onset) <= WITHIN_STEPS))


def record(take: Take, load: int, keep: Path) -> Path:
    """Train a job, and keep its store and what its coordinator said."""
    with tempfile.TemporaryDirectory(prefix=f"kair-{JOB}-", ignore_cleanup_errors=True) as name, ExitStack() as stack:
        folder = Path(name)
        for _ in range(load):
            spin = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(spin.wait)
            stack.callback(spin.kill)
        places = JobPlaces(folder / "store", JOB)
        run(
            [take], places, folder, HERE / "history_job.py",
            from_outside=(), fault=lambda *_: nullcontext(), sampling="1%",
        )  # fmt: skip
        kept = keep / f"{take.name}-load-{load}"
        shutil.copytree(places.store, kept / "store")
        shutil.copy(folder / "log", kept / "log")
        (kept / "take.json").write_text(json.dumps(asdict(take)), encoding="utf-8")
    return kept


def main() -> int:
    """Runs them; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--load", type=int, default=0)
    parser.add_argument("--steps", type=int, default=260)
    parser.add_argument("--device-ms", type=float, default=30.0)
    parser.add_argument("--fault-ms", type=float, default=9.3)
    parser.add_argument("--keep", type=Path, help="a folder for what each job left")
    parser.add_argument("--again", type=Path, help="such a folder: nothing is run")
    given = parser.parse_args()
    counts: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory(prefix=f"kair-{JOB}-") as folder:
        if given.again is None:
            for at in range(given.repeat):
                for kind in given.kinds.split(","):
                    take = Take(at, kind, 4, 2, given.device_ms, given.fault_ms, given.steps, ONSET)
                    report(take, record(take, given.load, given.keep or Path(folder)), counts)
        else:
            for take, kept in kept_takes(given.again, Take):
                report(take, kept, counts)
    for face, of in counts.items():
        onset = f", onset right of {of['onset']}" if "onset" in of else ""
        print(f"{face:24} price right of {of['price']} of {of['jobs']}{onset}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
