"""Writes one rank of a composed job as the profiler would have written it: its recording, with every time made anew.

The last lap of the replay is the window. Of operations launched before it that had not ended when it began, the trace
has the operations alone, as the profiler records them: without launches, and with lower correlation ids.
"""

from __future__ import annotations

import gzip
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from on_gpu.loop_reading import CALLS, DEVICE_SYNC, ON_DEVICE, STAND_IN, Event, end_of, nodes_of
from on_gpu.loop_replay import Rank

KERNEL: Final = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SHAPE: Final = {
    "registers per thread": 96,
    "shared memory": 82240,
    "blocks per SM": 0.181818,
    "warps per SM": 2.909091,
    "grid": [24, 1, 1],
    "block": [512, 1, 1],
    "est. achieved occupancy %": 0,
}
SYNC_OWN, SYNC_RETURNS = 40.0, 5.0
"""What the profiler's last synchronisation takes itself, and how long after all is over it returns."""
AROUND: Final = 1.0
"""What `record_param_comms` begins before the range within it, and ends after it."""
ROUNDED: Final = 0.01


@dataclass(frozen=True)
class Member:
    """What a rank's trace says of the job."""

    rank: int
    ranks: int
    elements: tuple[int, ...]
    """Of the collectives of a step, in their order."""

    def collective(self, number: int, sequence: int) -> Event:
        """What PyTorch says of the collective of this number in its step."""
        elements = self.elements[number % len(self.elements)]
        return {
            "Collective name": "allreduce",
            "In msg nelems": elements,
            "Out msg nelems": elements,
            "Group size": self.ranks,
            "dtype": "Float",
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": str(list(range(self.ranks))),
            "Seq": sequence,
        }


def composed(document: Event, rank: Rank, member: Member, origin: float) -> Event:
    """The document of a rank's last lap; `origin` is the microsecond at which the replay began."""
    trace = _Trace(document["traceEvents"], rank, member, origin)
    kept = {key: value for key, value in document.items() if key not in ("traceEvents", "traceName")}
    group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "ranks": []}
    distributed = {
        "backend": "nccl",
        "rank": member.rank,
        "world_size": member.ranks,
        "pg_count": 1,
        "pg_config": [{**group, "group_size": member.ranks, "group_count": 1}],
        "nccl_version": "2.27.7",
    }
    return {**kept, "distributedInfo": distributed, "traceEvents": list(trace.events())}


def packed(document: Event) -> bytes:
    """The file's content."""
    return gzip.compress(msgspec.json.encode(document), 6, mtime=0)


class _Trace:
    def __init__(self, events: Sequence[Event], rank: Rank, member: Member, origin: float) -> None:
        self.events_of, self.rank, self.member, self.origin = events, rank, member, origin
        self.placed = rank.program.placed
        self.lap = len(rank.laps) - 1
        self.on_host = _HostTimes(events, rank)
        self.number = {correlation: at for at, correlation in enumerate(self.placed.correlations)}
        operations = rank.program.operations
        self.collectives = [at for at, one in enumerate(operations) if one.collective]
        self.nodes = {key: nodes for key, nodes in nodes_of(events).items() if key in self.number}
        self.spare = 1 + max(
            (int(one["args"]["External id"]) for one in events if "External id" in one.get("args", {})), default=0
        )
        ranges = sorted(
            (one for one in events if one.get("cat") == "user_annotation" and one["name"] == STAND_IN),
            key=lambda one: float(one["ts"]),
        )
        # In their order they are the collectives'.
        self.in_range = {id(one): at for at, one in enumerate(ranges)}
        self.of_launch = {self.placed.correlations[at]: place for place, at in enumerate(self.collectives)}

        self.on_stream: dict[int, list[tuple[float, float, int, Event]]] = {}
        for number, correlation in enumerate(self.placed.correlations):
            for node in self.nodes[correlation]:
                entry = (float(node["ts"]), end_of(node), number, node)
                self.on_stream.setdefault(int(node["tid"]), []).append(entry)

    def events(self) -> Iterator[Event]:
        """All of the file, in the order in which the recording had them."""
        for event in self.events_of:
            category = event.get("cat")
            if category in ON_DEVICE or (category == "ac2g" and event["ph"] == "f"):
                yield from self._device(event)
            elif category == "gpu_user_annotation":
                yield from self._range_of_device(event)
            elif "ts" in event:
                if id(event) in self.in_range:
                    yield self._described(event)
                yield self._host(event)
        yield from self._in_flight()

    def _at(self, moment: float) -> float:
        return round(self.origin + moment, 3)

    def _host(self, event: Event) -> Event:
        begin = self.on_host.at(float(event["ts"]))
        made = {**event, "ts": self._at(begin)}
        if "dur" in event:
            made["dur"] = round(self.on_host.at(end_of(event)) - begin, 3)
        args = event.get("args", {})
        place = self.of_launch.get(args.get("correlation")) if event.get("cat") in CALLS else None
        return made if place is None else {**made, "args": {**args, "External id": self.spare + place}}

    def _described(self, event: Event) -> Event:
        """The `record_param_comms` around a collective's range."""
        place = self.in_range[id(event)]
        begin, end = (self.on_host.at(moment) for moment in (float(event["ts"]), end_of(event)))
        number = self.spare + place
        return {
            **{key: event[key] for key in ("ph", "pid", "tid")},
            "cat": "cpu_op",
            "name": "record_param_comms",
            "ts": self._at(begin - AROUND),
            "dur": round(end - begin + 2 * AROUND, 3),
            "args": {"External id": number, "Record function id": 0, "Ev Idx": number, **self._told(place, self.lap)},
        }

    def _told(self, place: int, lap: int) -> Event:
        count = len(self.collectives)
        return self.member.collective(place, 1 + lap * count + place)

    def _device(self, event: Event) -> Iterator[Event]:
        """What the window launched, and the arrows to it; what the recording found under way is made anew."""
        correlation = event["id"] if event["ph"] == "f" else event["args"]["correlation"]
        number = self.number.get(correlation)
        if number is None:
            return
        made = self._moved(event, number, self.lap)
        if event["ph"] != "f" and correlation in self.of_launch:
            place = self.of_launch[correlation]
            told = self._told(place, self.lap)
            made["args"] = {**made["args"], "External id": self.spare + place, **told}
        yield made

    def _moved(self, event: Event, number: int, lap: int) -> Event:
        """The event of an operation in a lap."""
        at = lap * self.rank.count + number
        begin = self.rank.begins[at] + float(event["ts"]) - self.placed.begins[number]
        made = {**event, "ts": self._at(begin)}
        if event["ph"] != "f" and self.rank.program.operations[number].collective:
            made |= {"name": KERNEL, "dur": round(self.rank.ends[at] - begin, 3), "args": {**event["args"], **SHAPE}}
        return made

    def _range_of_device(self, event: Event) -> Iterator[Event]:
        """From the first to the last of the same operations."""
        first, last = float(event["ts"]) - ROUNDED, end_of(event) + ROUNDED
        within = [one for one in self.on_stream.get(event["tid"], []) if first <= one[0] and one[1] <= last]
        moved = [
            (float(made["ts"]), end_of(made))
            for made in (self._moved(node, number, self.lap) for _, _, number, node in within)
        ]
        if moved:
            begin = min(one for one, _ in moved)
            yield {**event, "ts": begin, "dur": round(max(one for _, one in moved) - begin, 3)}

    def _in_flight(self) -> Iterator[Event]:
        """What was launched before the window and ended in it."""
        begin, span = self.rank.laps[-1].begin, max(self.number) - min(self.number) + 1
        for at in range(self.lap * self.rank.count):
            if self.rank.ends[at] <= begin:
                continue
            lap, number = divmod(at, self.rank.count)
            for node in self.nodes[self.placed.correlations[number]]:
                made = self._moved(node, number, lap)
                if end_of(made) <= self.origin + begin:
                    continue
                correlation = node["args"]["correlation"] - (self.lap - lap) * span
                args = {key: value for key, value in made["args"].items() if key != "External id"}
                yield {**made, "args": {**args, "correlation": correlation}}
                place = {key: made[key] for key in ("pid", "tid", "ts")}
                yield {"ph": "f", "id": correlation, **place, "cat": "ac2g", "name": "ac2g", "bp": "e"}


class _HostTimes:
    """When the host did in the last lap what it did at a moment of its recording."""

    def __init__(self, events: Sequence[Event], rank: Rank) -> None:
        placed, lap = rank.program.placed, rank.laps[-1]
        pairs = [(placed.begin, lap.begin)]
        for (begin, end), (new_begin, new_end) in zip(placed.calls, lap.calls, strict=True):
            pairs += [(begin, new_begin), (end, new_end)]
        pairs.append((placed.end, pairs[-1][1] + placed.end - pairs[-1][0]))
        for event in events:
            if event.get("name") == DEVICE_SYNC and float(event["ts"]) >= placed.end:
                begin = pairs[-1][1] + float(event["ts"]) - pairs[-1][0]
                end = max(begin + min(SYNC_OWN, float(event["dur"])), max(rank.ends) + SYNC_RETURNS)
                pairs += [(float(event["ts"]), begin), (end_of(event), end)]
        self.recorded = [recorded for recorded, _ in pairs]
        self.replayed = [replayed for _, replayed in pairs]

    def at(self, moment: float) -> float:
        """In microseconds since the replay began."""
        place = bisect_right(self.recorded, moment) - 1
        if place < 0:
            return self.replayed[0] + moment - self.recorded[0]
        begin, replayed = self.recorded[place], self.replayed[place]
        if place + 1 == len(self.recorded):
            return replayed + moment - begin
        share = (moment - begin) / (self.recorded[place + 1] - begin)
        return replayed + share * (self.replayed[place + 1] - replayed)
