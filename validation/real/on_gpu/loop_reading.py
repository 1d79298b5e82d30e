"""Makes a program of what a recorded loop does in its steps.

Of every call it has what the host did itself: the part of a launch call that met a full queue is left out, and all
that a synchronisation waited. Of every operation it has how long it lasted, what it had to wait for, and how soon it
began then. All times are microseconds.
"""

from __future__ import annotations

import gzip
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec
import numpy as np

from on_gpu.loop_program import GAP, HAND_OVER, LATENCY, PLACES, Call, Operation, Placed, Program

Event = dict[str, Any]

GRAPH_NODES_A_PLACE: Final = 12.0
"""A graph takes one place, and under the profiler another one for so many of its nodes: 9 in all for 100, 2 for 12."""
LAUNCHES: Final = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemsetAsync")
STREAM_SYNC, EVENT_SYNC, DEVICE_SYNC = "cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize"
ON_DEVICE: Final = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS: Final = ("cuda_runtime", "cuda_driver")
STAND_IN, WAIT_FOR_ALL, COPY_AHEAD, WAIT_COPY = "nccl:all_reduce", "wait_all_reduce", "copy_ahead", "wait_copy"

USUAL: Final = 0.1
"""The quantile of a call's times that it takes where it waits for nothing."""
MOST_USUAL: Final = 3.0
"""Times what the commonest call takes: one that always waits shows no usual time of its own."""
LONGER_BY: Final = 20.0
NEARLY_FULL: Final = 0.9
"""Of a queue's places, since graphs take a number of them that is not known well."""
MOST_OF_SYNC: Final = 15.0
"""A synchronisation takes no longer where it waits for nothing."""
MOST_OF_BINDING: Final = 20.0
"""An operation that begins later than this after all that it waits for did not have the device until then."""
MOST_OF_PAGEABLE: Final = 1000.0
"""A copy of pageable memory whose call takes longer was too large to be put aside: it returns when it is over."""


def read_document(trace: Path) -> Event:
    """What the profiler exported."""
    document: Event = msgspec.json.decode(gzip.decompress(trace.read_bytes()))
    return document


def program_of(document: Event, lag: int = 0) -> Program:
    """The program of a recording; `lag`: how many steps late the loss is read, where it is copied.

    Raises ValueError where no step is marked.
    """
    found = _Found(document["traceEvents"])
    queues = _Queues(found)
    waits = _waits(found)
    calls, over = [], found.begin
    for place, event in enumerate(found.calls):
        launched = found.launched[place]
        operation = None if launched is None else _operation(found, launched, waits)
        own = _own(event, queues.usual[place], full=queues.full[place])
        calls.append(Call(float(event["ts"]) - over, own, operation, _awaited(found, place, lag)))
        over = end_of(event)
    placed = Placed(
        found.begin,
        found.end,
        tuple((float(one["ts"]), end_of(one)) for one in found.calls),
        tuple(one.correlation for one in found.operations),
        tuple(one.begin for one in found.operations),
    )
    return Program(tuple(calls), found.end + found.between - over, len(found.marks), found.compute, placed)


def end_of(event: Event) -> float:
    """When it was over."""
    return float(event["ts"]) + float(event["dur"])


def nodes_of(events: Sequence[Event]) -> dict[int, list[Event]]:
    """By correlation what ran on the device, in the order of the begins."""
    nodes: dict[int, list[Event]] = {}
    for event in sorted((one for one in events if one.get("cat") in ON_DEVICE), key=lambda one: float(one["ts"])):
        nodes.setdefault(int(event["args"]["correlation"]), []).append(event)
    return nodes


def places_of(nodes: Sequence[Event]) -> float:
    """In their stream's launch queue, of what one call launched; copies to the host have a queue of their own."""
    if len(nodes) > 1:
        return 1.0 + len(nodes) / GRAPH_NODES_A_PLACE
    return 0.0 if "DtoH" in nodes[0]["name"] else 1.0


@dataclass(frozen=True)
class _Launched:
    """What one call launched, as recorded."""

    number: int
    """Below 0 where the recording has no call of it."""
    correlation: int
    stream: int
    begin: float
    end: float
    places: float
    nodes: int
    name: str
    called: float
    returned: float
    """When the call began, and when it returned."""

    @classmethod
    def of(cls, number: int, nodes: Sequence[Event], call: Event | None) -> _Launched:
        args, end = nodes[0]["args"], max(map(end_of, nodes))
        return cls(
            number,
            int(args["correlation"]),
            int(args["stream"]),
            float(nodes[0]["ts"]),
            end,
            places_of(nodes),
            len(nodes),
            nodes[0]["name"],
            float("-inf") if call is None else float(call["ts"]),
            float("-inf") if call is None else end_of(call),
        )


class _Found:
    """What a recording has of steps, calls and operations."""

    def __init__(self, events: Sequence[Event]) -> None:
        marks = sorted((one for one in events if _is_mark(one, "user_annotation")), key=lambda one: float(one["ts"]))
        if not marks:
            raise ValueError("no step is marked")
        self.marks = [(float(mark["ts"]), end_of(mark)) for mark in marks]
        self.begin, self.end = self.marks[0][0], self.marks[-1][1]
        between = [after[0] - before[1] for before, after in pairwise(self.marks)]
        self.between = median(between) if between else 0.0
        nodes = nodes_of(events)
        recorded = sorted((one for one in events if one.get("cat") in CALLS), key=lambda one: float(one["ts"]))
        self.calls = [one for one in recorded if self.begin <= one["ts"] < self.end and _counts(one, nodes)]
        self.launched: list[_Launched | None] = []
        self.operations: list[_Launched] = []
        for call in self.calls:
            launched = None
            if _launches(call, nodes):
                launched = _Launched.of(len(self.operations), nodes[int(call["args"]["correlation"])], call)
                self.operations.append(launched)
            self.launched.append(launched)
        self.called = [float(call["ts"]) for call in self.calls if _launches(call, nodes)]
        self.before = self._launched_before(nodes, {int(one["args"]["correlation"]) for one in recorded})
        on_device = [one for one in events if _is_mark(one, "gpu_user_annotation")]
        self.compute = int(on_device[0]["tid"]) if on_device else self.operations[0].stream
        self.of_stream: dict[int, list[int]] = {}
        for one in self.operations:
            self.of_stream.setdefault(one.stream, []).append(one.number)
        self.ranges = {
            name: sorted((float(one["ts"]), end_of(one)) for one in events if _is_range(one, name))
            for name in (STAND_IN, WAIT_FOR_ALL, COPY_AHEAD, WAIT_COPY)
        }

    def last_on(self, stream: int, before: int) -> int | None:
        """The number of the last operation on a stream that was launched before the one numbered `before`.

        Below 0 where it is one of the steps before, which are taken to be like these; None where there is none.
        """
        numbers = self.of_stream.get(stream, [])
        place = bisect_left(numbers, before)
        if place:
            return numbers[place - 1]
        return numbers[-1] - len(self.operations) if numbers else None

    def launched_until(self, moment: float) -> int:
        """How many operations were."""
        return bisect_left(self.called, moment)

    def within(self, name: str, number: int) -> bool:
        """Whether the operation was launched in a range of this name."""
        ranges, moment = self.ranges[name], self.called[number]
        place = bisect_right(ranges, (moment, float("inf"))) - 1
        return place >= 0 and moment < ranges[place][1]

    def end_of_number(self, number: int) -> float | None:
        """When it was over, where that was recorded."""
        return self.operations[number].end if number >= 0 else None

    def step_of(self, moment: float) -> int:
        """The mark that it lies in, by its number among them."""
        return bisect_right(self.marks, (moment, float("inf"))) - 1

    @staticmethod
    def _launched_before(nodes: dict[int, list[Event]], called: set[int]) -> list[_Launched]:
        """What was under way or waiting when the recording began, in the order in which it was launched."""
        numbers = sorted(set(nodes) - called)
        return [
            _Launched.of(place - len(numbers), nodes[correlation], None) for place, correlation in enumerate(numbers)
        ]


def _is_mark(event: Event, category: str) -> bool:
    return event.get("cat") == category and str(event["name"]).startswith("ProfilerStep#")


def _is_range(event: Event, name: str) -> bool:
    return event.get("cat") == "user_annotation" and event["name"] == name


def _counts(call: Event, nodes: dict[int, list[Event]]) -> bool:
    """Whether it launches something or waits for the device."""
    return call["name"] in (STREAM_SYNC, EVENT_SYNC) or _launches(call, nodes)


def _launches(call: Event, nodes: dict[int, list[Event]]) -> bool:
    return call["name"].startswith(LAUNCHES) and call["args"]["correlation"] in nodes


class _Queues:
    """Which calls met a full queue, and what each takes where it does not."""

    def __init__(self, found: _Found) -> None:
        self.usual = self._usual(found)
        order = [*found.before, *found.operations]
        self.full = [False] * len(found.calls)
        for stream in {one.stream for one in order}:
            of_stream = [one for one in order if one.stream == stream]
            launched = list(accumulate(one.places for one in of_stream))
            ends = list(accumulate((one.end for one in of_stream), max))
            place_of = {one.number: place for place, one in enumerate(of_stream)}
            for at, one in enumerate(found.launched):
                if one is not None and one.stream == stream:
                    over = bisect_right(ends, float(found.calls[at]["ts"]))
                    outstanding = launched[place_of[one.number]] - (launched[over - 1] if over else 0.0)
                    self.full[at] = outstanding >= NEARLY_FULL * PLACES

    @staticmethod
    def _usual(found: _Found) -> list[float]:
        called = zip(found.calls, found.launched, strict=True)
        kinds = [(call["name"], 0 if one is None else one.nodes) for call, one in called]
        took: dict[tuple[str, int], list[float]] = {}
        for call, kind in zip(found.calls, kinds, strict=True):
            took.setdefault(kind, []).append(float(call["dur"]))
        usual = {kind: float(np.quantile(times, USUAL)) for kind, times in took.items()}
        single = [kind for kind in usual if kind[1] == 1]
        most = MOST_USUAL * usual[max(single, key=lambda kind: len(took[kind]))] if single else float("inf")
        # What a graph takes depends on its nodes.
        return [usual[kind] if kind[1] > 1 else min(most, usual[kind]) for kind in kinds]


def _own(call: Event, usual: float, *, full: bool) -> float:
    """What the host did in the call."""
    took = float(call["dur"])
    if call["name"] in (STREAM_SYNC, EVENT_SYNC):
        return min(took, MOST_OF_SYNC)
    return usual if full and took > usual + LONGER_BY else took


def _awaited(found: _Found, place: int, lag: int) -> int | None:
    """The number of the operation that the call waits for."""
    call, launched = found.calls[place], found.launched[place]
    if launched is not None:
        return launched.number if _waits_for_copy(call, launched) else None
    if call["name"] == STREAM_SYNC:
        return found.last_on(found.compute, found.launched_until(float(call["ts"])))
    copies: dict[int, int] = {}
    for one in found.operations:
        if "DtoH" in one.name:
            copies[found.step_of(found.called[one.number])] = one.number
    laps, step = divmod(found.step_of(float(call["ts"])) - lag, len(found.marks))
    return copies[step] + laps * len(found.operations) if step in copies else None


def _waits_for_copy(call: Event, launched: _Launched) -> bool:
    took_long = float(call["dur"]) > MOST_OF_PAGEABLE and end_of(call) >= launched.end
    return "Pageable" in launched.name and took_long


def _waits(found: _Found) -> dict[int, tuple[int, ...]]:
    """By number of an operation those on other streams that it waits for."""
    copying = {one.stream for one in found.operations if found.within(COPY_AHEAD, one.number)} - {found.compute}
    waits: dict[int, list[int | None]] = {}
    for one in found.operations:
        if one.stream not in copying | {found.compute}:
            waits.setdefault(one.number, []).append(found.last_on(found.compute, one.number))
    for awaiting, number in _waits_of_compute(found):
        streams = copying if awaiting == WAIT_COPY else found.of_stream.keys() - copying - {found.compute}
        following = bisect_left(found.of_stream[found.compute], number)
        if following < len(found.of_stream[found.compute]):
            later = found.of_stream[found.compute][following]
            waits.setdefault(later, []).extend(found.last_on(stream, number) for stream in sorted(streams))
    return {number: tuple(one for one in of if one is not None) for number, of in waits.items()}


def _waits_of_compute(found: _Found) -> Iterator[tuple[str, int]]:
    """(range, how many operations were launched before it) of ranges in which the compute stream is made to wait."""
    for name in (WAIT_FOR_ALL, WAIT_COPY):
        for begin, _ in found.ranges[name]:
            yield name, found.launched_until(begin)


def _operation(found: _Found, launched: _Launched, waits: dict[int, tuple[int, ...]]) -> Operation:
    """With its delay put down to what it waited for last."""
    awaited = waits.get(launched.number, ())
    operation = Operation(
        launched.stream,
        launched.places,
        launched.end - launched.begin,
        waits=awaited,
        collective=found.within(STAND_IN, launched.number) and launched.stream != found.compute,
    )
    ends = [end for number in awaited if (end := found.end_of_number(number)) is not None]
    last = _end_before(found, launched)
    ready = {
        "latency": launched.returned + LATENCY,
        "gap": float("-inf") if last is None else last + GAP,
        "hand_over": max(ends) + HAND_OVER if ends else float("-inf"),
    }
    binding = max(ready, key=lambda name: ready[name])
    further = launched.begin - ready[binding]
    if further > MOST_OF_BINDING:
        return replace(operation, late=further)
    if binding == "latency":
        # A graph begins long before the call that launches it has returned.
        return replace(operation, latency=max(LATENCY + further, launched.called - launched.returned))
    further = max(further, -MOST_OF_BINDING)
    if binding == "gap":
        return replace(operation, gap=GAP + further)
    return replace(operation, hand_over=HAND_OVER + further)


def _end_before(found: _Found, launched: _Launched) -> float | None:
    """When the operation before it on its stream was over."""
    number = found.last_on(launched.stream, launched.number)
    if number is not None and number >= 0:
        return found.operations[number].end
    return max((one.end for one in found.before if one.stream == launched.stream), default=None)
