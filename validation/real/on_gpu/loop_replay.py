"""Runs programs of loops again, as the ranks of one data-parallel job, until they are in steady state.

Every collective begins on a rank when its stream reaches it, and ends on all when the last rank has come plus the time
that it takes alone. What a host does waits for the device where it did so when recorded, and for a place in the launch
queue; what a device does waits for its launch, its stream and the other streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from on_gpu.loop_program import PLACES, Call, Operation, Program

FREED: Final = 9.0
"""From the end of the operation that held the place until the blocked call returns."""
RELEASED: Final = 10.0
"""From the end of what a synchronisation waits for until it returns."""
FEWEST_LAPS, MOST_LAPS = 3, 80
ALIKE_LAPS: Final = 2
SAME_PERIOD: Final = 1e-4
SAME_LEAD: Final = 2e-3
"""Of the period."""


class Lap:
    """When a rank did what its program says, once through it."""

    def __init__(self, begin: float) -> None:
        self.begin = begin
        self.calls: list[tuple[float, float]] = []
        self.end = begin
        """Of its last step, on the host: the begin of the lap after it."""


@dataclass(frozen=True)
class Replayed:
    """A job in steady state; what is told of it is of the last lap."""

    ranks: tuple[Rank, ...]
    period_us: float
    """From the end of the last step of one lap to that of the next one, by step, on the device."""
    steady: bool
    """The laps at the end are alike."""


def replay(programs: Sequence[Program], places: float = PLACES) -> Replayed:
    """Run the programs as ranks of one job, over and over. Raises ValueError where their collectives differ in number.

    `places` is the depth of each stream's launch queue.
    """
    ranks = tuple(Rank(program, places) for program in programs)
    meetings = [[at for at, call in enumerate(one.calls) if _meets(call)] for one in programs]
    if len({len(one) for one in meetings}) > 1:
        raise ValueError(f"the ranks have {sorted({len(one) for one in meetings})} collectives")
    transfers = _transfers(programs)
    before: tuple[float, list[float]] | None = None
    alike = 0
    for lap in range(MOST_LAPS):
        for rank in ranks:
            rank.begin_lap()
        for together, transfer in zip(zip(*meetings, strict=True), transfers, strict=True):
            for rank, place in zip(ranks, together, strict=True):
                rank.advance(place)
            over = max(rank.begins[-1] for rank in ranks) + transfer
            for rank in ranks:
                rank.meet(over)
        for rank in ranks:
            rank.end_lap()
        now = (sum(rank.period_us for rank in ranks) / len(ranks), [rank.lead_us for rank in ranks])
        alike = alike + 1 if before is not None and _alike(before, now) else 0
        before = now
        if lap + 1 >= FEWEST_LAPS and alike >= ALIKE_LAPS:
            break
    return Replayed(ranks, now[0], steady=alike >= ALIKE_LAPS)


def _meets(call: Call) -> bool:
    return call.operation is not None and call.operation.collective


def _transfers(programs: Sequence[Program]) -> list[float]:
    """How long each collective takes when all have come: the slowest rank's, whose device may be taken away."""
    alone = [[one.duration for one in program.operations if one.collective] for program in programs]
    return [max(durations) for durations in zip(*alone, strict=True)]


def _alike(before: tuple[float, list[float]], now: tuple[float, list[float]]) -> bool:
    same_lead = all(abs(after - lead) <= SAME_LEAD * now[0] for lead, after in zip(before[1], now[1], strict=True))
    return same_lead and abs(now[0] - before[0]) <= SAME_PERIOD * now[0]


class _Queue:
    """The launch queue of one stream."""

    __slots__ = ("freed", "launched", "numbers", "over", "places")

    def __init__(self) -> None:
        self.launched = 0.0
        self.places: list[float] = []
        self.numbers: list[int] = []
        self.freed = 0
        """How many of them must be over for the last call to have returned."""
        self.over = float("-inf")


class Rank:
    """One rank of the job."""

    def __init__(self, program: Program, places: float) -> None:
        self.program = program
        self.most = places
        self.host = 0.0
        self.begins: list[float] = []
        self.ends: list[float] = []
        self.laps: list[Lap] = []
        self.queues: dict[int, _Queue] = {}
        self.tails: dict[int, float] = {}
        self.stream = 0
        """Of the operation launched last."""
        self.place = 0
        self.count = len(program.operations)
        of_compute = [at for at, one in enumerate(program.operations) if one.stream == program.compute]
        self.last_of_compute = of_compute[-1]

    @property
    def period_us(self) -> float:
        """Of the last lap, by step, on the device."""
        end = self.ends[self.last_of_compute - self.count]
        before = self.ends[self.last_of_compute - 2 * self.count] if len(self.laps) > 1 else 0.0
        return (end - before) / self.program.steps

    @property
    def lead_us(self) -> float:
        """How far the host is before the device at the last lap's end; below 0 where the device has nothing to do."""
        return self.ends[self.last_of_compute - self.count] - self.host

    def meet(self, over: float) -> None:
        """End the collective that was launched last."""
        self.ends[-1] = over
        self.tails[self.stream] = over

    def begin_lap(self) -> None:
        self.laps.append(Lap(self.host))
        self.place = 0

    def end_lap(self) -> None:
        self.advance(None)
        self.host += self.program.after
        self.laps[-1].end = self.host

    def advance(self, to: int | None) -> None:
        """Do the calls up to the one in this place, or all that are left; no collective but the last one's is open."""
        calls = self.program.calls
        stop = len(calls) if to is None else to + 1
        base = (len(self.laps) - 1) * self.count
        done = self.laps[-1].calls
        for call in calls[self.place : stop]:
            begin = self.host + call.before
            end = begin + call.own
            if call.operation is not None:
                end = self._launch(call.operation.stream, call.operation.places, begin, end)
                self._run(call.operation, end, base)
            if call.awaits is not None and base + call.awaits >= 0:
                over = self.ends[base + call.awaits]
                if over > begin:
                    end = max(end, over + RELEASED)
            done.append((begin, end))
            self.host = end
        self.place = max(self.place, stop)

    def _launch(self, stream: int, places: float, begin: float, end: float) -> float:
        """When the call returns, with its place in the queue."""
        queue = self.queues.setdefault(stream, _Queue())
        queue.launched += places
        while queue.freed < len(queue.places) and queue.places[queue.freed] < queue.launched - self.most + 1e-6:
            queue.over = max(queue.over, self.ends[queue.numbers[queue.freed]])
            queue.freed += 1
        queue.places.append(queue.launched)
        queue.numbers.append(len(self.ends))
        return max(end, queue.over + FREED) if queue.over > begin else end

    def _run(self, operation: Operation, returned: float, base: int) -> None:
        begin = max(returned + operation.latency, self.tails.get(operation.stream, float("-inf")) + operation.gap)
        for number in operation.waits:
            if base + number >= 0:
                begin = max(begin, self.ends[base + number] + operation.hand_over)
        begin += operation.late
        self.stream = operation.stream
        self.begins.append(begin)
        self.ends.append(begin + operation.duration)
        self.tails[operation.stream] = max(self.tails.get(operation.stream, float("-inf")), self.ends[-1])
