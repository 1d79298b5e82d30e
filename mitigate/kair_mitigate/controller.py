"""Watches a job by what capture records of its steps, and proposes what a policy decides; or carries it out.

It is a process of its own beside the coordinator: if it dies, the job goes on with its last plan. Computing is what
capture calls a rank's self time: on a device that is the host's, and no proposal should be made of it.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kair_capture.coordinator.step_log import read_all
from kair_capture.places import JobPlaces
from kair_mitigate.job_state import JobState, read_state
from kair_mitigate.plans import Kind
from kair_mitigate.policy.policies import Action, Policy, View
from kair_mitigate.policy.rates import Rates
from kair_mitigate.policy.table import POLICIES
from kair_mitigate.records import Records

SMALLEST = 2
"""A rank keeps so many samples a step: batches of 0 and 1 are compiled apart."""
LARGER = 1.25
"""Without a bound that was told a rank is given so many times what it has had at most."""
MOST_ROWS = 1 << 18
"""Older rows of steps are not looked at."""
EVERY_S = 2.0
_NEAR_US = 60e6
"""A step of capture's is the loader's if it began within this time of when rank 0 said so."""


@dataclass
class Controller:
    """What is known of one job from look to look."""

    steps: Path
    records: Records
    policy: Policy
    auto: bool = False
    per_hour: int = 20
    most: int | None = None
    restart_s: float | None = None
    say: Callable[[str], None] = lambda _: None
    _rates: Rates | None = None
    _seen: int = -1
    """The last step that was taken in."""
    _ordered_at: list[float] = field(default_factory=list)
    _proposed: tuple[str, tuple[int, ...]] | None = None

    def look(self) -> Action:
        """Takes in the steps that are new, and decides after each. Raises OSError where they cannot be read."""
        known, decided = read_state(self.records.folder), Action()
        if known is None or not self.steps.is_dir():
            return decided
        if (told := stepped(self.steps, known)) is None:
            return decided
        numbers, self_s, step_s = told
        if self._rates is None:
            self._rates = Rates(len(known.state.plan.sizes))
        for column, number in enumerate(numbers.tolist()):
            sizes = known.sizes_at(number)
            if number <= self._seen or sizes is None:
                continue
            self._seen = number
            compute = self_s[:, column]
            rest = max(float(step_s[:, column].max() - compute.max()), 0.0)
            now = np.array(sizes, dtype=np.int64)
            self._rates.add(number, compute, now, rest)
            decided = self.policy.decide(self._view(known, number, compute, now))
        if decided.kind in {"adjust_bs", "kill_restart"}:
            self._propose(decided, known)
        return decided

    def _view(self, known: JobState, step: int, compute: npt.NDArray[np.float64], now: npt.NDArray[np.int64]) -> View:
        assert self._rates is not None
        state = known.state
        newest = state.coming[-1] if state.coming else state.plan
        largest = max(max(plan.sizes) for plan in (*known.in_force, *state.coming))
        return View(
            step=step,
            steps_left=max(state.step, 1),  # as long as it has lasted: nobody says when a job ends
            sizes=np.array(newest.sizes, dtype=np.int64),
            pending=bool(state.coming) or self._is_unheard(known),
            lowest=np.minimum(now, SMALLEST),
            highest=np.full(len(now), self.most or int(largest * LARGER)),
            rates=self._rates,
            compute_s=compute,
            done=now,
            restart_s=self.restart_s,
        )

    def _is_unheard(self, known: JobState) -> bool:
        """Whether a plan was sent that the job has not heard: never two at once."""
        newest = max(plan.version for plan in (known.state.plan, *known.state.coming))
        return any(one.plan.version > newest for one in self.records.history(1))

    def _propose(self, action: Action, known: JobState) -> None:
        sizes = tuple(known.state.plan.sizes if action.sizes is None else map(int, action.sizes))
        if (action.kind, sizes) == self._proposed:
            return
        self._proposed = action.kind, sizes
        price = {} if action.price is None else {name: float(value) for name, value in asdict(action.price).items()}
        number = self.records.propose(action.kind, sizes, {**{k: float(v) for k, v in action.reason.items()}, **price})
        self.say(f"proposal {number}: {action.kind}, {','.join(map(str, sizes))}")
        if self.auto and self._may_order():
            self._ordered_at.append(time.monotonic())
            self.records.decide(number, "approved", "auto")
            kind: Kind = "leave" if action.kind == "kill_restart" else "sizes"
            plan = self.records.order(sizes, "auto", kind=kind, proposal=number)
            self.say(f"proposal {number} is carried out: plan {plan.version}")

    def _may_order(self) -> bool:
        now = time.monotonic()
        self._ordered_at = [at for at in self._ordered_at if now - at < 3600]
        return len(self._ordered_at) < self.per_hour


def control(
    store: Path,
    job: str,
    records: Records,
    *,
    policy: str,
    auto: bool,
    once: bool,
    per_hour: int,
    most: int | None,
    say: Callable[[str], None],
) -> None:
    """Looks every EVERY_S seconds, or `once`. Raises ValueError for a policy that there is not, OSError."""
    if policy not in POLICIES:
        raise ValueError(f"no policy {policy!r}: {', '.join(POLICIES)}")
    steps = JobPlaces(store, job).steps
    controller = Controller(steps, records, POLICIES[policy](), auto, per_hour, most)
    controller.say = lambda text: say(f"kair: {text}")
    while True:
        controller.look()
        if once:
            return
        time.sleep(EVERY_S)


def rates_of(steps: Path, known: JobState) -> tuple[list[float], list[float]] | None:
    """Per rank, what a sample takes and what a step takes whatever its samples, s; None where no step tells."""
    if (told := stepped(steps, known)) is None:
        return None
    numbers, self_s, _ = told
    rates = Rates(len(known.state.plan.sizes))
    for column, number in enumerate(numbers.tolist()):
        if (sizes := known.sizes_at(number)) is not None:
            rates.add(number, self_s[:, column], np.array(sizes, dtype=np.int64))
    if not rates.counted:
        return None
    fit = rates.fitted()
    return fit.slope_s.tolist(), fit.fixed_s.tolist()


def stepped(
    steps: Path, known: JobState
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.float64]] | None:
    """(the loader's steps that all told, (ranks × steps) of self times and of step times, s); None without any."""
    told = _told(read_all(steps, MOST_ROWS), len(known.state.plan.sizes), known) if steps.is_dir() else None
    return None if told is None else (told[0] - told[3], told[1], told[2])


def recorded(steps: Path, ranks: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """(seconds of computing (steps × ranks), the rest of each step) of a job that capture watched. Raises OSError."""
    _, self_s, step_s = _matrices(read_all(steps, MOST_ROWS), ranks)
    return self_s.T, np.maximum(step_s.max(axis=0) - self_s.max(axis=0), 0.0)


def _told(
    rows: npt.NDArray[Any], ranks: int, known: JobState
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.float64], int] | None:
    """(steps that all ranks told, (ranks × steps) of self times and of step times in s, capture's number of step 0)."""
    of_first = rows[rows["rank"] == 0]
    if not len(of_first):
        return None
    away = np.abs(of_first["begin_us"].astype(np.float64) - known.said_at * 1e6)
    nearest = int(away.argmin())
    if away[nearest] > _NEAR_US:
        return None
    first = int(of_first["step"][nearest]) - known.state.step
    return *_matrices(rows, ranks), first


def _matrices(
    rows: npt.NDArray[Any], ranks: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """(steps that all ranks told, (ranks × steps) of self times and of step times in s)."""
    rows = rows[rows["rank"] < ranks]
    numbers, place, counts = np.unique(rows["step"], return_inverse=True, return_counts=True)
    whole = np.flatnonzero(counts == ranks)
    column = np.full(len(numbers), -1)
    column[whole] = np.arange(len(whole))
    kept = column[place] >= 0
    times = []
    for name in ("self_us", "step_us"):
        matrix = np.zeros((ranks, len(whole)))
        matrix[rows["rank"][kept], column[place][kept]] = rows[name][kept] / 1e6
        times.append(matrix)
    return numbers[whole].astype(np.int64), times[0], times[1]
