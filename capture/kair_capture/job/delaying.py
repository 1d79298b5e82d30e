"""Delays a rank by the order of `kair confirm`: a short sleep at one place of some steps.

An order is followed for its lease only, so it ends by itself unless it is renewed. Any failure here ends the delays;
the rest of capture continues.
"""

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Final, Protocol

from kair_capture.delays import FIRST_STEP, TOO_LONG, Arm, Order, Place, arm_of, dose_of, from_json
from kair_capture.job.failing import warn_of
from kair_capture.job.recorder import Recorder, clock
from kair_capture.ring import Kind

MOST_BYTES: Final = 1 << 16
_REMEMBERED: Final = 64
_FEWEST: Final = 10
"""Steps before a step can count as too long."""


class DelayNumber(Protocol):
    """Holds the number of the last order: ControlWords."""

    @property
    def delays(self) -> int:
        """Return it; 0 for none."""


class Delays:
    """Delays of one rank. `between` runs between two steps; hooks call `insert` where a delay is due."""

    def __init__(
        self,
        rank: int,
        number_of: DelayNumber,
        file: Path,
        recorder: Recorder,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`file` holds the order with the number in `number_of`."""
        self._rank, self._number, self._file, self._recorder, self._sleep = rank, number_of, file, recorder, sleep
        # An earlier process's order does not apply to this one.
        self._seen = number_of.delays
        self._orders: tuple[Order, ...] = ()
        """The present order and its successor."""
        self._highest = 0
        """Highest order that this rank took: repeats change nothing."""
        self._ended_seed: int | None = None
        """Seed of an order that this rank left, and ignores when it is renewed."""
        self._lengths: deque[int] = deque(maxlen=_REMEMBERED)
        self._was_delayed = False
        self._is_off = False
        self._place: Place | None = None
        self._portion_ns = self._portions = 0

    @property
    def is_due(self) -> bool:
        """Return whether the present step is to be delayed."""
        return self._place is not None

    @property
    def is_followed(self) -> bool:
        """Return whether there is an order."""
        return bool(self._orders)

    @property
    def is_idle(self) -> bool:
        """Return whether there is no order, and none in the last step: then only a new number changes that."""
        return not (self._orders or self._was_delayed)

    def between(self, step: int, length_ns: int, micro_batches: int, *, is_free: bool) -> bool:
        """Prepare `step` after a step of this length; return whether that one says nothing about a rank's speed.

        `is_free`: nothing else affects the step. `micro_batches` are those of the previous step.
        """
        if self._is_off or (not self._orders and self._number.delays == self._seen):
            return self._after_last()
        try:
            return self._next(step, length_ns, micro_batches, is_free=is_free)
        except Exception as error:  # whatever it is, training and the rest of capture continue
            self._give_up(error)
            return True

    def insert(self, place: Place) -> None:
        """Delay the step here, if a delay is due at this place."""
        if place is not self._place:
            return
        self._portions -= 1
        if self._portions <= 0:
            self._place = None
        begin = clock()
        try:
            self._sleep(self._portion_ns * 1e-9)
            self._recorder.span(Kind.DELAY, place, begin, clock())
        except Exception as error:  # see above
            self._give_up(error)

    def _after_last(self) -> bool:
        was, self._was_delayed = self._was_delayed, False
        return was

    def _next(self, step: int, length_ns: int, micro_batches: int, *, is_free: bool) -> bool:
        if self._number.delays != self._seen:
            self._read()
        self._place = None
        self._note_length(length_ns)
        self._orders = tuple(one for one in self._orders if one.last_step >= step)
        # If both cover a step, the later one applies.
        order = next((one for one in reversed(self._orders) if one.first_step <= step), None)
        arm = Arm.NONE if order is None else arm_of(order, step)
        was, self._was_delayed = self._was_delayed, arm is not Arm.NONE
        if order is not None and is_free and step >= FIRST_STEP and (dose := dose_of(order, step, self._rank)):
            self._portions = max(micro_batches, 1) if order.place is Place.EACH_MICRO_BATCH else 1
            self._place, self._portion_ns = order.place, dose // self._portions
        return was or self._was_delayed

    def _read(self) -> None:
        """Read the order; an invalid or older one ends all."""
        self._seen = number = self._number.delays
        with self._file.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
        order = from_json(text) if text else None
        if order is None or order.seed == self._ended_seed or not self._highest < order.generation == number:
            self._orders = ()
        else:
            self._highest = number
            before = [one for one in self._orders if one.seed == order.seed]
            self._orders = (*before[-1:], order)

    def _note_length(self, length_ns: int) -> None:
        """Note a step's length; after one that took far too long, drop the order, so that delays do not add to it."""
        if len(self._lengths) >= _FEWEST and length_ns > TOO_LONG * median(self._lengths) and self._orders:
            self._ended_seed, self._orders = self._orders[-1].seed, ()
        self._lengths.append(length_ns)

    def _give_up(self, error: Exception) -> None:
        self._is_off, self._orders, self._place = True, (), None
        warn_of(error, "kair confirm delays this rank no more, the rest of capture goes on", self._file.parent)
