"""A timeline as Perfetto's own trace format, in protocol buffers: smaller than JSON, and times stay in ns.

Six small messages are written (perfetto/protos/perfetto/trace), which needs no library: Perfetto's own classes are
several MB and bring protobuf along. A test reads what is written with them.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from kair_engine.export.timeline import Item, Mark, Process, Slice, Track

_SEQUENCE: Final = 1
_CLEARED, _NEEDED = 1, 2
_BEGIN, _END, _INSTANT = 1, 2, 3
_EXPLICIT_ORDER: Final = 3
_RANKS, _TRACKS = 1, 1 << 32
"""Where the numbers of ranks' tracks begin, and those of their rows."""

_Opened = dict[int, list[tuple[int, tuple[int, ...]]]]
"""Track → of its slices under way the end, and the arrows that end there; the innermost last."""


def perfetto_packets(items: Iterable[Item]) -> Iterator[bytes]:
    """Packets of a trace one after another: concatenated they are the file."""
    names = _Names()
    yield _packet(_number(13, _CLEARED))
    opened: _Opened = {}
    for item in items:
        if isinstance(item, Process):
            of_process = _number(1, item.rank + 1) + _text(6, item.name)
            described = _number(1, _RANKS + item.rank) + _text(2, item.name) + _nested(3, of_process)
            yield _packet(_nested(60, described + _number(11, _EXPLICIT_ORDER) + _number(12, item.rank)))
        elif isinstance(item, Track):
            described = _number(1, _TRACKS + item.number) + _text(2, item.name) + _number(5, _RANKS + item.rank)
            yield _packet(_nested(60, described + _number(12, item.order)))
        elif isinstance(item, Mark):
            yield names.instant(item)
        else:
            yield from _ended(opened, item.track, item.start_ns)
            yield names.begin(item)
            opened.setdefault(item.track, []).append((item.start_ns + item.duration_ns, item.enters))
    for track in opened:
        yield from _ended(opened, track, None)


def _ended(opened: _Opened, track: int, by: int | None) -> Iterator[bytes]:
    """The ends of a track's slices that are over by then, the innermost first."""
    ends = opened.get(track, [])
    while ends and (by is None or ends[-1][0] <= by):
        end, enters = ends.pop()
        # A member that waits begins before the one that it waits for: an arrow that ends with it leads on in time.
        event = _number(9, _END) + _number(11, _TRACKS + track) + b"".join(_fixed(48, number) for number in enters)
        yield _packet(_time(end) + _nested(11, event))


class _Names:
    """Names that repeat, written once each."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], int] = {}

    def begin(self, one: Slice) -> bytes:
        """The begin of a slice, with the arrows that leave it."""
        arrows = b"".join(_fixed(47, number) for number in one.leaves)
        if one.phase is not None:
            arrows += self._annotation("phase", _text(6, one.phase))
        event = _number(9, _BEGIN) + _number(11, _TRACKS + one.track) + arrows
        return self._named(event, one.start_ns, one.kind, one.name, one.step)

    def instant(self, one: Mark) -> bytes:
        """A mark, on the rank's own track."""
        event = _number(9, _INSTANT) + _number(11, _RANKS + one.rank)
        return self._named(event, one.time_ns, one.kind, one.name, one.step)

    def _named(self, event: bytes, time_ns: int, category: str, name: str, step: int) -> bytes:
        """One event, after the names that it needs and that were not written yet."""
        before = len(self._known)
        new = b"".join(
            _nested(field, _number(1, self._code(field, text)) + _text(2, text))
            for field, text in ((1, category), (2, name), (3, "step"), (3, "phase"))
            if (field, text) not in self._known
        )
        event += (
            _number(3, self._known[1, category])
            + _number(10, self._known[2, name])
            + self._annotation("step", _number(4, step))
        )
        interned = _nested(12, new) if len(self._known) > before else b""
        return _packet(_time(time_ns) + _number(13, _NEEDED) + interned + _nested(11, event))

    def _code(self, field: int, text: str) -> int:
        return self._known.setdefault((field, text), len(self._known) + 1)

    def _annotation(self, name: str, value: bytes) -> bytes:
        return _nested(4, _number(1, self._code(3, name)) + value)


def _packet(content: bytes) -> bytes:
    return _nested(1, content + _number(10, _SEQUENCE))


def _time(value_ns: int) -> bytes:
    """The format knows no time before zero, where the first step begins: a clock that jumps back stays there."""
    return _number(8, max(value_ns, 0))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _fixed(field: int, value: int) -> bytes:
    return _varint(field << 3 | 1) + value.to_bytes(8, "little")


def _text(field: int, value: str) -> bytes:
    return _nested(field, value.encode("utf-8", "replace"))


def _nested(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)
