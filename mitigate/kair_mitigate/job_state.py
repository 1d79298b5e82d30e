"""Holds a job's progress, which its rank 0 writes every few steps for the controller and for status."""

import contextlib
import json
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kair_mitigate.plans import Plan, State
from kair_mitigate.restarts import write_whole

FILE = "state.json"
_MOST_BYTES, _MOST_IN_FORCE = 1 << 24, 64


@dataclass(frozen=True, slots=True)
class JobState:
    """The progress of a job at one moment."""

    state: State
    samples: int
    """Samples of an epoch."""
    fetched: int
    """Steps fetched ahead."""
    attempt: int
    said_at: float
    """When the next step was about to begin (Unix, s)."""
    in_force: tuple[Plan, ...]
    """Plans that were in force, each from its step on; the present one is last."""
    is_uneven: bool = False
    """Whether ranks may take a step in different numbers of batches and skip some at a deadline."""
    has_rate: bool = False
    """Whether the loader knows the optimizer, so that the learning rate can follow a step's samples."""

    def plan_at(self, step: int) -> Plan | None:
        """Return the plan in force in a step; None before the first known plan."""
        of = [plan for plan in self.in_force if plan.from_step <= step]
        return of[-1] if of else None


class StateWriter:
    """Writes the progress, in rank 0."""

    def __init__(self, folder: Path, attempt: int, *, is_uneven: bool = False, has_rate: bool = False) -> None:
        self._path, self._attempt, self._is_uneven, self._has_rate = folder / FILE, attempt, is_uneven, has_rate
        known = read_state(folder)
        self._in_force = list(known.in_force) if known else []
        self._due: tuple[State, int, int] | None = None
        self._thread = ThreadPoolExecutor(1, "kair-state")

    def write_soon(self, state: State, samples: int, fetched: int) -> None:
        """Write in a thread, so that the loop does not wait: ext4 flushes a file that replaces another, 10 ms."""
        self._due = (state, samples, fetched)
        self._thread.submit(self._write_due)

    def _write_due(self) -> None:
        due, self._due = self._due, None
        if due is not None:
            self.write(*due)

    def write(self, state: State, samples: int, fetched: int) -> None:
        """Replace the previous progress; errors of writing are ignored."""
        if not self._in_force or _shares(self._in_force[-1]) != _shares(state.plan):
            later = [plan for plan in self._in_force if plan.from_step < state.plan.from_step]
            self._in_force = [*later, state.plan][-_MOST_IN_FORCE:]
        document = {
            "state": state.as_json(),
            "samples": samples,
            "fetched": fetched,
            "attempt": self._attempt,
            "is_uneven": self._is_uneven,
            "has_rate": self._has_rate,
            "said_at": time.time(),
            "in_force": [plan.as_json() for plan in self._in_force],
        }
        with contextlib.suppress(OSError):
            write_whole(self._path, json.dumps(document).encode())


def _shares(plan: Plan) -> tuple[object, ...]:
    return plan.sizes, plan.batches, plan.deadline_us, plan.learning_rate, plan.claims


def read_state(folder: Path) -> JobState | None:
    """Return the newest progress; None if it is missing or damaged."""
    try:
        with (folder / FILE).open("rb") as file:
            document: Mapping[str, Any] = json.loads(file.read(_MOST_BYTES))
        numbers = [document[name] for name in ("samples", "fetched", "attempt")]
        if any(type(number) is not int for number in numbers):
            return None
        in_force = tuple(map(Plan.from_json, document["in_force"]))
        state, said_at = State.from_json(document["state"]), float(document["said_at"])
        can = document["is_uneven"] is True, document.get("has_rate") is True
        return JobState(state, numbers[0], numbers[1], numbers[2], said_at, in_force, *can)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
