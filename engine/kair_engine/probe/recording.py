"""What one probe recorded. No NumPy here: measuring decides how that is loaded.

Repeats quantities in turns until their time is over, so that a bad second shows in all of them.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kair_engine.results.probe import LinkState, MeasureName, ProbedMachine, Unit
from kair_engine.results.warning_kinds import BusyMachine
from kair_engine.trace.model import KairWarning

FILE_VERSION: Final = 1


@dataclass(frozen=True)
class Series:
    """One quantity, again and again; all values are finite and above zero."""

    name: MeasureName
    work: str
    unit: Unit
    values: tuple[float, ...]


@dataclass(frozen=True)
class Recording:
    """Everything that one probe measured."""

    machine: ProbedMachine
    series: tuple[Series, ...]
    link: LinkState
    warnings: tuple[KairWarning, ...] = ()

    def find(self, name: MeasureName) -> Series | None:
        """Return the series of that name."""
        return next((one for one in self.series if one.name == name), None)


def busy_warning(machine: ProbedMachine) -> KairWarning:
    """How long its thread waited for a core."""
    return BusyMachine(waited_share=machine.counters.run_queue_share or 0.0, about=machine.host)


TURNS: Final = 8
MAX_REPETITIONS: Final = 500
"""Of one quantity: a longer probe has longer repetitions."""
SHORTEST_S: Final = 0.005
"""Of a repetition: clocks and calls then cost it nothing."""

Report = Callable[[int, int, str], None]
"""Called with how many of how many turns are done, and what comes next."""


@dataclass(frozen=True)
class Quantity:
    """One thing to measure."""

    name: MeasureName
    work: str
    unit: Unit
    once: Callable[[], float]
    """One repetition, and its value."""


def timed(operation: Callable[[int], None], amount: float, repetition_s: float) -> Callable[[], float]:
    """Run an operation as often as fits into `repetition_s`, and return the rate of its work.

    `operation` does it so many times, and comes back when all is done, on a device too; `amount` is what one does, in
    the rate's unit times a second. Its first run, which is slower, does not count.
    """
    operation(1)
    times = 1
    while (took := seconds_of(operation, times)) < repetition_s / 2:
        times = max(2 * times, int(times * min(repetition_s / max(took, 1e-9), 100) / 2))
    # The quickest of three: a machine that stalls here would have repetitions too short to time.
    took = min(took, seconds_of(operation, times), seconds_of(operation, times))
    fitting = max(round(times * repetition_s / took), 1)
    return lambda: amount * fitting / seconds_of(operation, fitting)


def seconds_of(operation: Callable[[int], None], times: int) -> float:
    """How long it takes; at least a nanosecond, so that a rate is finite."""
    began = time.perf_counter()
    operation(times)
    return max(time.perf_counter() - began, 1e-9)


def repetition_seconds(seconds: float, quantities: int) -> float:
    """How long a repetition lasts, of as many quantities in `seconds`."""
    return max(SHORTEST_S, seconds / (quantities * MAX_REPETITIONS))


def repeated(quantities: Sequence[Quantity], seconds: float, report: Report) -> tuple[Series, ...]:
    """Every quantity again and again, one after the other in TURNS turns; a turn's first repetition warms up."""
    turn_s = seconds / (TURNS * len(quantities))
    values: list[list[float]] = [[] for _ in quantities]
    for turn in range(TURNS):
        for quantity, found in zip(quantities, values, strict=True):
            report(turn, TURNS, quantity.name)
            found.extend(_turn(quantity.once, turn_s))
    return tuple(
        Series(one.name, one.work, one.unit, tuple(found)) for one, found in zip(quantities, values, strict=True)
    )


def _turn(once: Callable[[], float], turn_s: float) -> list[float]:
    until = time.perf_counter() + turn_s
    once()
    found = [once()]
    while time.perf_counter() < until and len(found) < 2 * MAX_REPETITIONS // TURNS:
        found.append(once())
    return found
