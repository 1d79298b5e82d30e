"""A timeline as trace events in JSON, which Perfetto and chrome://tracing read."""

from collections.abc import Iterable, Iterator

from kair_engine.export.timeline import Item, Mark, Process, Slice, Track
from kair_engine.whatif.replay.trace_events import Event, lane, process

_ARROW = {"name": "blame", "cat": "blame"}


def chrome_events(items: Iterable[Item]) -> Iterator[Event]:
    """Events one after another; times in µs."""
    rank_of: dict[int, int] = {}
    for item in items:
        if isinstance(item, Process):
            # Process 0 is the browser's own in chrome://tracing.
            yield from process(item.rank + 1, item.name)
        elif isinstance(item, Track):
            rank_of[item.number] = item.rank
            yield from _row(item)
        elif isinstance(item, Mark):
            place = {"pid": item.rank + 1, "tid": 0, "ts": item.time_ns / 1e3, "s": "p"}
            yield {"ph": "i", "name": item.name, "cat": item.kind, **place, "args": {"step": item.step}}
        else:
            yield from _slice(item, rank_of[item.track] + 1)


def _row(track: Track) -> list[Event]:
    """Names it, and puts streams below threads."""
    name, place = lane(track.rank + 1, track.number, track.name)
    return [name, place | {"args": {"sort_index": track.order}}]


def _slice(one: Slice, pid: int) -> Iterator[Event]:
    args = {"step": one.step} | ({"phase": one.phase} if one.phase else {})
    place = {"pid": pid, "tid": one.track, "ts": one.start_ns / 1e3}
    yield {"ph": "X", "name": one.name, "cat": one.kind, **place, "dur": one.duration_ns / 1e3, "args": args}
    for number in one.leaves:
        yield {"ph": "s", "id": number, **_ARROW, **place}
    for number in one.enters:
        # A member that waits begins before the one that it waits for: an arrow that ends with it leads on in time.
        over = {"ts": (one.start_ns + max(one.duration_ns - 1, 0)) / 1e3}
        yield {"ph": "f", "bp": "e", "id": number, **_ARROW, **place, **over}
