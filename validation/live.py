"""How well does the watch of a running job name who is slow? Step times are drawn, or those of kept takes are replayed.

    python validation/live.py [--ranks 4,8,64] [--seeds 4] [--models usual,preempt] [--steps 1000]
    python validation/live.py --takes DIR     (what `history.py --keep DIR` left)
    python validation/live.py --cpu           (what a test of 8 to 4,096 ranks takes)

The times pass through the coordinator's own table and tests, five steps at a time. Printed per model and number of
ranks: alerts in healthy jobs, and of faults of some sizes that begin in the middle how many are named, after how many
steps (the median), and how many alerts name another rank.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "accuracy"), str(HERE / "real")]

from noise_models import MODELS, healthy  # noqa: E402  (of the folder beside this one)

from kair_capture.agent.step_rows import ROW, Rows  # noqa: E402
from kair_capture.coordinator.endpoint import Hosts  # noqa: E402
from kair_capture.coordinator.sampling import Budget, Sampler  # noqa: E402
from kair_capture.coordinator.step_log import read_all  # noqa: E402
from kair_capture.coordinator.step_table import Roles, StepTable  # noqa: E402
from kair_capture.coordinator.watching import Watching  # noqa: E402
from kair_capture.places import JobPlaces  # noqa: E402
from kair_capture.wire import Communication  # noqa: E402

Floats = npt.NDArray[np.float64]
SIZES = "0.1,0.15,0.2,0.3,0.5"
AT_ONCE = 5
WAITS_US = 500.0


@dataclass(frozen=True)
class Alarm:
    """One alert as it opens: the ranks are empty where the whole job became slower."""

    step: int
    ranks: tuple[int, ...]


def drawn(model: str, ranks: int, steps: int, seed: int) -> Floats:
    """Return the own times (steps × ranks, µs) of a healthy job; operators are drawn 64 ranks at a time."""
    parts = [healthy(model, min(64, ranks - at), steps, seed + 1000 * at) for at in range(0, ranks, 64)]
    return np.concatenate([(of.work + of.idle).sum(axis=2) for of in parts], axis=1) / 1e3


def rows_of(own: Floats) -> Rows:
    """Return the rows of ranks that all wait for the slowest in every step."""
    steps, ranks = own.shape
    rows = np.zeros((steps, ranks), ROW)
    step_us = own.max(axis=1) + WAITS_US
    rows["rank"], rows["step"] = np.arange(ranks), np.arange(steps)[:, None]
    rows["begin_us"] = (10**15 + np.concatenate(([0], np.cumsum(step_us)[:-1])))[:, None]
    rows["step_us"], rows["self_us"] = step_us[:, None], own
    return rows


def alarms(steps: Sequence[Rows], roles: Roles) -> list[Alarm]:
    """Return what the coordinator notices in rows that come AT_ONCE steps at a time."""
    table = StepTable()
    watching = Watching(table, Hosts(), Sampler(Budget(0.0)), roles)
    watching.samples = False
    found: list[Alarm] = []
    for first in range(0, len(steps), AT_ONCE):
        table.add(np.concatenate([rows.reshape(-1) for rows in steps[first : first + AT_ONCE]]))
        watching.turn(0.0)
        found += [Alarm(one.step, one.ranks) for one in watching.news if not one.over]
        watching.news.clear()
    return found


def pipelines(ranks: int, stages: int) -> Roles:
    """Return the roles of pipelines whose stages send to the next one and receive from it."""
    wide = ranks // stages
    roles = Roles()
    for rank in range(ranks):
        others = tuple(one for one in (rank - wide, rank + wide) if stages > 1 and 0 <= one < ranks)
        roles.add(Communication(rank, ranks, others, others, ((wide, 15),)))
    return roles


def judged(found: Sequence[Alarm], victim: int, onset: int) -> tuple[int | None, int]:
    """Return (steps from the onset until the victim is named or None, alerts that name somebody else)."""
    named = next((one.step - onset for one in found if one.ranks == (victim,) and one.step > onset), None)
    return named, sum(1 for one in found if one.ranks and one.ranks != (victim,))


def report(  # noqa: PLR0917  (as they are given)
    model: str, ranks: int, stages: int, steps: int, seeds: range, sizes: Sequence[float]
) -> dict[str, object]:
    """Return the figures of one model of noise."""
    roles, onset, victim = pipelines(ranks, stages), steps // 2, ranks // 2
    quiet = slow = longer = 0
    named: dict[float, list[int | None]] = {size: [] for size in sizes}
    wrong = 0
    for seed in seeds:
        own = drawn(model, ranks, steps, seed) * (1 + np.arange(ranks) * stages // ranks / 3)
        found = alarms(list(rows_of(own)), roles)
        slow += sum(1 for one in found if one.ranks)
        longer += sum(1 for one in found if not one.ranks)
        quiet += not found
        for size in sizes:
            more = own.copy()
            more[onset:, victim] *= 1 + size
            after, others = judged(alarms(list(rows_of(more)), roles), victim, onset)
            named[size].append(after)
            wrong += others
    figures = {
        f"{size:.0%}": f"{sum(1 for one in of if one is not None)}/{len(of)}"
        + ("" if all(one is None for one in of) else f" {int(np.median([one for one in of if one is not None]))}")
        for size, of in named.items()
    }
    return {"model": model, "ranks": ranks, "stages": stages, "quiet": f"{quiet}/{len(seeds)}", "slow_rank": slow} | {
        "longer_steps": longer, "wrong_beside_faults": wrong, **figures}  # fmt: skip


def replayed(folder: Path) -> Iterator[dict[str, object]]:
    """Yield what is noticed in each of the takes that `history.py` kept."""
    for file in sorted(folder.glob("*/take.json")):
        take = json.loads(file.read_text(encoding="utf-8"))
        rows = read_all(JobPlaces(file.parent / "store", "history").steps)
        roles = pipelines(take["ranks"], take["ranks"] if take["kind"].startswith("stage") else 1)
        found = alarms([rows[rows["step"] == step] for step in np.unique(rows["step"])], roles)
        after, others = judged(found, take["victim"], take["onset"])
        yield {
            "kind": take["kind"],
            "ranks": take["ranks"],
            "steps": take["steps"],
            "named_after": after,
            "alerts_of_others": others
            if not take["kind"].endswith("healthy")
            else sum(1 for one in found if one.ranks),
            "longer_steps": sum(1 for one in found if not one.ranks),
        }


def cpu(ranks: int, steps: int = 600) -> dict[str, object]:
    """Return what a test takes, CPU ms, beside what taking the rows in does."""
    rows = list(
        rows_of(
            drawn("shared_cores", 4, steps, 1)[:, np.arange(ranks) % 4]
            * np.random.default_rng(1).normal(1, 0.02, (steps, ranks))
        )
    )
    table, roles = StepTable(), pipelines(ranks, 1)
    watching = Watching(table, Hosts(), Sampler(Budget(0.0)), roles)
    watching.samples = False
    took = taken = 0.0
    for first in range(0, steps, 5):
        before = time.process_time()
        table.add(np.concatenate(rows[first : first + AT_ONCE]))
        middle = time.process_time()
        watching.turn(0.0)
        taken, took = taken + middle - before, took + time.process_time() - middle
    tests = steps / 5
    return {"ranks": ranks, "test_ms": round(took * 1e3 / tests, 3), "rows_ms": round(taken * 1e3 / tests, 3)}


def main() -> int:
    """Print the figures; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="4,8,64")
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first-seed", type=int, default=0, help="0 to 2 were those that the rules were tuned on")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--takes", type=Path)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--sizes", default=SIZES, help="of the faults, as shares of the step; none: healthy jobs alone")
    given = parser.parse_args()
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    sizes = [float(size) for size in given.sizes.split(",") if size]
    if given.cpu:
        lines: Iterator[dict[str, object]] = (cpu(ranks) for ranks in (8, 64, 256, 1024, 4096))
    elif given.takes:
        lines = replayed(given.takes)
    else:
        lines = (
            report(model, ranks, given.stages, given.steps, seeds, sizes)
            for ranks in map(int, given.ranks.split(","))
            for model in given.models.split(",")
        )
    for line in lines:
        print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
