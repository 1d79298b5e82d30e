"""Is the ledger right? Real jobs with a slow rank that is mended midway: what was predicted, and what came.

    python validation/evidence/ledger.py [--takes 20] [--seed 1] [--kinds work,sleep] [--keep DIR]
    python validation/evidence/ledger.py --again DIR

Jobs of three or four ranks (gloo) run under `kair capture run` with a coordinator (validation/history.py). Of each take
100 steps are healthy, 120 have a fault, and 120 are healthy again. The rows until the fault is lifted are put into a
store of its own, on which `kair triage` predicts; then come the others, and `kair ledger` says what came true. The
ledger is right where it has the victim's prediction, notices within 15 steps that the fault is gone, and tells of what
a step became shorter by what the takes' own figures do, which know the steps of the fault, but for the noise of both.
Every take counts. `--again` asks kept stores.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "real")]

from captured_takes import KAIR, kept_takes, options, recorded  # noqa: E402
from history import JOB, ONSET, alike, drawn, record  # noqa: E402  (of the folder above)
from history_job import KINDS, Take  # noqa: E402

from kair_capture.agent.step_rows import Rows  # noqa: E402
from kair_capture.coordinator.step_log import read_all, write_part  # noqa: E402
from kair_capture.places import JobPlaces  # noqa: E402

FAULTY, AFTER, SOON = 120, 120, 15
SETTLED = 10
"""Steps after each change that the takes' own figures leave out."""


def takes_of(number: int, seed: int, kinds: list[str]) -> list[Take]:
    """The drawn takes, of three ranks and four by turns."""
    steps = ONSET + FAULTY + AFTER
    lifted = ONSET + FAULTY
    return [replace(drawn(seed + at, kinds[at % len(kinds)], 3 + at % 2, steps), lifted=lifted) for at in range(number)]


def asked(*words: str) -> dict[str, Any]:
    """What a command says. Raises SystemExit where it fails."""
    ran = subprocess.run([*KAIR, *words, "--json"], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"kair {' '.join(words)}: {ran.stderr.strip()[-500:]}")
    data: dict[str, Any] = json.loads(ran.stdout)["data"]
    return data


def entries_of(kept: JobPlaces, take: Take, store: Path) -> list[dict[str, Any]]:
    """What the ledger says after the fault is lifted of what triage predicted before."""
    places = JobPlaces(store, JOB)
    places.steps.mkdir(parents=True)
    places.capture.mkdir()
    shutil.copy(kept.status, places.status)
    rows = read_all(kept.steps)
    is_before = rows["step"] < (take.lifted or 0)
    write_part(places.steps / "part-00000001.parquet", rows[is_before])
    asked("triage", JOB, "--store", str(store))
    write_part(places.steps / "part-00000002.parquet", rows[~is_before])
    entries: list[dict[str, Any]] = asked("ledger", "--store", str(store))["entries"]
    return entries


def saved_us(rows: Rows, take: Take) -> tuple[float, float]:
    """(what a step became shorter by when the fault was lifted, by how much that may be off), knowing its steps."""
    steps = np.unique(rows["step"])
    times = np.array([np.median(rows["step_us"][rows["step"] == step]) for step in steps])
    lifted = take.lifted or 0
    had = times[(steps >= take.onset + SETTLED) & (steps < lifted)]
    lacks = times[steps >= lifted + SETTLED]
    spread = [1.2533 * 1.4826 * np.median(np.abs(side - np.median(side))) / np.sqrt(len(side)) for side in (had, lacks)]
    return float(np.median(had) - np.median(lacks)), 2 * float(np.hypot(*spread))


def judged(take: Take, entries: list[dict[str, Any]], truth: tuple[float, float]) -> str:
    """`right`, or what is wrong."""
    of_victim = [one for one in entries if one["ranks"] == [take.victim]]
    if not of_victim:
        return "no prediction"
    one = of_victim[0]
    if one["from_step"] is None:
        return "not noticed"
    if abs(one["from_step"] - (take.lifted or 0)) > SOON:
        return "other step"
    if one["actual_us"] is None:
        return f"not comparable: {one['why']}"
    return "right" if abs(one["actual_us"] - truth[0]) <= (one["noise_us"] or 0.0) + truth[1] else "other saving"


def report(take: Take, kept: JobPlaces, counts: Counter[str]) -> list[dict[str, Any]]:
    """A line for a take; its entries."""
    with tempfile.TemporaryDirectory(prefix="kair-ledger-") as store:
        entries = entries_of(kept, take, Path(store))
    truth = saved_us(read_all(kept.steps), take)
    outcome = judged(take, entries, truth)
    counts[outcome] += 1
    names = ("ranks", "about", "predicted_us", "actual_us", "noise_us", "came", "why", "from_step", "priced_by")
    told = [{name: one[name] for name in names} for one in entries]
    print(json.dumps({**asdict(take), "outcome": outcome, "saved_us": truth, "entries": told}), flush=True)
    return entries


def main() -> int:
    """Runs them; 0 where the ledger is right on all takes that had a prediction."""
    given = options(__doc__, 20, KINDS).parse_args()
    takes = takes_of(given.takes, given.seed, given.kinds.split(","))
    some = kept_takes(given.again, Take) if given.again else recorded(takes, alike, JOB, given.keep, record)
    counts, entries = Counter[str](), list[dict[str, Any]]()
    for take, kept in some:
        entries += report(take, JobPlaces(kept / "store", JOB), counts)
    came = [one for one in entries if one["came"] in ("came_true", "less", "more")]
    within = sum(one["came"] == "came_true" for one in came)
    print(f"ledger: {dict(counts)}")
    print(f"predictions: {len(entries)}, of which {len(came)} came about, {within} within 10 %")
    return 0 if set(counts) <= {"right", "no prediction"} else 1


if __name__ == "__main__":
    sys.exit(main())
