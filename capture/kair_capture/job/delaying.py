"""Holds a rank up by the order of `kair confirm`: a short sleep at one place of some steps, and nothing where none is.

An order is followed for its lease alone, so it ends by itself where nobody renews it. Whatever fails here ends the
delays; the rest of capture goes on.
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
"""Steps before it is known which one is too long."""


class Told(Protocol):
    """Where the number of the last order stands: ControlWords."""

    @property
    def delays(self) -> int:
        """It; 0 for none."""


class Delays:
    """Of one rank. Asked between two steps; `insert` is called by hooks where something is due."""

    def __init__(
        self,
        rank: int,
        told: Told,
        file: Path,
        recorder: Recorder,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`file`: where the agent leaves the order that `told` has the number of."""
        self._rank, self._told, self._file, self._recorder, self._sleep = rank, told, file, recorder, sleep
        # What was ordered of an earlier process of this rank is not this one's.
        self._seen = told.delays
        self._orders: tuple[Order, ...] = ()
        """The one that is followed, and the one that follows it."""
        self._highest = 0
        """Of all orders that this rank took up: one that is told again changes nothing."""
        self._ended_seed: int | None = None
        """Of an order that this rank left, and does not take up again when it is renewed."""
        self._lengths: deque[int] = deque(maxlen=_REMEMBERED)
        self._was_delayed = False
        self._is_off = False
        self._place: Place | None = None
        self._portion_ns = self._portions = 0

    @property
    def is_due(self) -> bool:
        """Whether the present step is to be held up."""
        return self._place is not None

    @property
    def is_followed(self) -> bool:
        """Whether there is an order, by which some steps are delayed."""
        return bool(self._orders)

    @property
    def is_idle(self) -> bool:
        """Whether no order is there, and none was in the last step: then only a new number changes that."""
        return not (self._orders or self._was_delayed)

    def between(self, step: int, length_ns: int, micro_batches: int, *, is_free: bool) -> bool:
        """After a step so long, before `step`: whether that says nothing about a rank's speed.

        `is_free`: nothing else is done to the step. Micro-batches: of the step before.
        """
        if self._is_off or (not self._orders and self._told.delays == self._seen):
            return self._after_last()
        try:
            return self._next(step, length_ns, micro_batches, is_free=is_free)
        except Exception as error:  # whatever it is, training and the rest of capture go on
            self._give_up(error)
            return True

    def insert(self, place: Place) -> None:
        """Hold the step up at this place, where that is due here."""
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
        if self._told.delays != self._seen:
            self._read()
        self._place = None
        self._note_length(length_ns)
        self._orders = tuple(one for one in self._orders if one.last_step >= step)
        # Of two that both cover a step the later one was meant.
        order = next((one for one in reversed(self._orders) if one.first_step <= step), None)
        arm = Arm.NONE if order is None else arm_of(order, step)
        was, self._was_delayed = self._was_delayed, arm is not Arm.NONE
        if order is not None and is_free and step >= FIRST_STEP and (dose := dose_of(order, step, self._rank)):
            self._portions = max(micro_batches, 1) if order.place is Place.EACH_MICRO_BATCH else 1
            self._place, self._portion_ns = order.place, dose // self._portions
        return was or self._was_delayed

    def _read(self) -> None:
        """Take up what was ordered; an order that is none, or is older than the last one, ends all."""
        self._seen = number = self._told.delays
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
        """Note a step that took far longer than usual: whatever it was, delays do not add to it."""
        if len(self._lengths) >= _FEWEST and length_ns > TOO_LONG * median(self._lengths) and self._orders:
            self._ended_seed, self._orders = self._orders[-1].seed, ()
        self._lengths.append(length_ns)

    def _give_up(self, error: Exception) -> None:
        self._is_off, self._orders, self._place = True, (), None
        warn_of(error, "kair confirm delays this rank no more, the rest of capture goes on", self._file.parent)
