"""Decodes Kineto JSON as a stream of events, about a megabyte at a time, whatever the file's size and layout.

The fast path cuts a chunk after its last `}` that is followed by `, {`, or by `{` on another line, and decodes it in
one call. If that fails (a cut inside a nested list, an event that is not JSON, the array's end), the chunk is decoded
again in windows, and the offending object is isolated, and salvaged or counted as bad.
"""

import json
import re
from collections.abc import Generator, Iterator
from typing import Any, Final, Protocol

import msgspec

from kair_engine.readers.formats import NotATraceError
from kair_engine.readers.kineto.events import Event, Records, decode_events, decode_one

# Events of chunks of a megabyte need memory that was just returned to the system, which clears it anew: a sixth of the
# time.
_CHUNK_SIZE: Final = 1 << 18
SCANNED_CHUNK_SIZE: Final = 2 << 20
"""Larger, because a scan keeps no objects and each chunk has a fixed cost."""
_WINDOW_SIZE: Final = 64 << 10
# More damage may follow: a small first window limits wasted work.
_WINDOW_BEHIND_DAMAGE: Final = 1 << 10
# Bytes that may be examined in vain because of damage, beyond the text itself: six bytes take a microsecond.
_FREE_EFFORT: Final = 8 << 20
_MAX_HEADER: Final = 64 << 20
# An event that is longer or nests deeper is damage.
_MAX_EVENT: Final = 32 << 20
_MAX_DEPTH: Final = 1000
_FEW_BRACES: Final = 64
"""Braces tried one by one from the end: within events the first or second is a boundary."""

_SPACE: Final = b" \t\r\n"
_EVENTS_KEY: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
# Some writers put one event per line without commas: a line's end is a boundary, too, as no JSON text holds one.
_BOUNDARY: Final = re.compile(rb"\}(?:\s*,|[ \t\r]*\n)\s*(?=\{)")
_END_OF_LINE: Final = re.compile(rb"(\}[ \t\r]*)\n(?=\s*\{)")
_BETWEEN: Final = re.compile(rb"[\s,]*")
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["{}]', re.DOTALL)
_ERROR_OFFSET: Final = re.compile(r"\(byte (\d+)\)")
_JSON_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Scan(Protocol):
    """Takes events from a text without making objects of them."""

    def __call__(self, text: bytes, begin: int, end: int) -> Iterator[tuple[Records, int]]:
        """Yield records of the operations in `text[begin:end]`, and where to go on; unknown parts are left to the
        caller.
        """


class EventStream:
    """Iterates over lists of events, or their records; then `header` holds the fields before and after the events."""

    def __init__(self, blocks: Iterator[bytes], *, scan: Scan | None = None, chunk_size: int | None = None) -> None:
        self._blocks = blocks
        self._scan = scan
        self._chunk_size = chunk_size or (SCANNED_CHUNK_SIZE if scan else _CHUNK_SIZE)
        self.header: dict[str, Any] = {}
        self.bad_events = 0
        """Objects in the events array that could not be understood."""
        self.complete = False
        """True once the end of the events array was seen."""
        self._bare_array = False
        self._rest = b""
        self._begin = 0
        """Where in the first text the events begin: text after it is not copied."""
        self._taken = self._effort = 0
        """Bytes of text that were taken, and that were examined in vain."""

    def __iter__(self) -> Iterator[list[Event] | Records]:
        ended = False
        for chunk in self._chunks(self._read_header()):
            if ended:
                self._rest += chunk
                if len(self._rest) > _MAX_HEADER:
                    break
                continue
            text, begin = yield from self._continued(chunk)
            cut = last_boundary(text, len(text), begin)
            if cut is None:
                self._rest = text[begin:]
                if len(self._rest) > _MAX_EVENT:
                    break
                continue
            ended = yield from self._scanned(text, begin, cut)
            if self._gave_up:
                break
            # The next chunk reuses the memory.
            del chunk, text
        if not ended and self._rest and not self._gave_up:
            events, consumed, ended = self._decode_tail(self._rest)
            self._rest = self._rest[consumed:]
            if events:
                yield events
        self._finish(ended)

    def _chunks(self, first: bytes) -> Iterator[bytes]:
        """Yield the text of the events array in pieces of about the chunk size."""
        pieces, size = [first], len(first)
        self._taken += size
        if 2 * size >= self._chunk_size:
            # The next block would force a copy.
            yield first
            pieces, size = [], 0
        del first
        for block in self._blocks:
            pieces.append(block)
            size += len(block)
            self._taken += len(block)
            del block
            # An event longer than a chunk is tried again only when its text is four times as long.
            if size >= max(self._chunk_size, min(3 * len(self._rest), _MAX_EVENT)):
                yield b"".join(pieces)
                pieces, size = [], 0
        if size:
            yield b"".join(pieces)

    def _continued(self, chunk: bytes) -> Generator[Records, None, tuple[bytes, int]]:
        """Yield records from the chunk after the rest of the last one; return the text and where its next event begins.

        An event that spans both is scanned by itself: joining them takes a tenth of the time of the scan.
        """
        rest = self._rest
        if not rest:
            begin, self._begin = self._begin, 0
            return chunk, begin
        first = _BOUNDARY.search(chunk, 0, _WINDOW_SIZE) if self._scan and len(rest) < _WINDOW_SIZE else None
        if first is None:
            return rest + chunk, 0
        assert self._scan is not None
        head, at = rest + chunk[: first.start() + 1], 0
        for records, goes_on in self._scan(head, 0, len(head)):
            at = goes_on
            yield records
        return (chunk, first.end()) if at == len(head) else (rest + chunk, at)

    def _read_header(self) -> bytes:
        """Fill `header` from the text before the events, and return the text read so far."""
        text = b""
        for block in self._blocks:
            text += block
            start = text.removeprefix(b"\xef\xbb\xbf").lstrip(_SPACE)
            before = len(text) - len(start)
            if start.startswith(b"["):
                self._bare_array = True
                self._begin = before + 1
                return text
            if start[:1] not in (b"{", b""):
                break
            for match in _EVENTS_KEY.finditer(start):
                header = _parse_object(start[: match.start()] + b'"traceEvents":0}')
                if header is not None:
                    self.header = header
                    self._begin = before + match.end()
                    return text
            if len(text) > _MAX_HEADER:
                break
        raise NotATraceError("no traceEvents in it")

    @property
    def _gave_up(self) -> bool:
        """Whether so much of the text is damaged that the rest is not worth the search."""
        return self._effort > _FREE_EFFORT + self._taken

    def _scanned(self, text: bytes, begin: int, cut: int) -> Generator[list[Event] | Records, None, bool]:
        """Yield the events of `text[begin:cut]`; those that cannot be scanned are decoded.

        Returns whether the array ended there.
        """
        position, stop, ended = begin, cut, False
        while position < cut and not ended:
            if self._scan is not None:
                position = _skip_comma(text, position)
                for records, goes_on in self._scan(text, position, cut):
                    position = goes_on
                    yield records
                stop = last_boundary(text, min(position + _WINDOW_SIZE, cut), position) or cut
            if position < cut:
                events, position, ended = self._decode(text, position, stop)
                if events:
                    yield events
            if position < stop:
                break
        self._rest = text[_skip_comma(text, position) :]
        return ended

    def _decode(self, text: bytes, begin: int, cut: int) -> tuple[list[Event], int, bool]:
        """Return the events of `text[begin:cut]`, where in `text` they end, and whether the array ended there."""
        try:
            return _decoded(text, begin, cut), _skip_comma(text, cut), False
        except _JSON_ERRORS:
            return self._decode_carefully(text, begin, cut)

    def _decode_tail(self, text: bytes) -> tuple[list[Event], int, bool]:
        """Return the file's last events: the text runs to the end of the file."""
        end = text.rfind(b"]") + 1
        if end:
            try:
                return decode_events(b"[" + text[:end]), end, True
            except _JSON_ERRORS:
                pass
        return self._decode_carefully(text, 0, len(text))

    def _decode_carefully(self, text: bytes, begin: int, limit: int) -> tuple[list[Event], int, bool]:
        events: list[Event] = []
        position, window = _skip_comma(text, begin), _WINDOW_SIZE
        while position < limit and not self._gave_up:
            if text[position : position + 1] == b"]":
                return events, position + 1, True
            stop = last_boundary(text, min(position + window, limit), position) or min(position + window, limit)
            try:
                events += _decoded(text, position, stop)
                position, window = _skip_comma(text, stop), window * 2
                continue
            except _JSON_ERRORS as error:
                effort, window = min(window, limit - position), _WINDOW_BEHIND_DAMAGE
                bad = _error_position(error, position, stop)
            good, position = _decode_before(text, position, bad)
            events += good
            if text[position : position + 1] == b"]":
                continue
            end = _object_end(text, position)
            effort += (len(text) if end is None else end) - position
            if end is None and bad < stop and (resume := _BOUNDARY.search(text, bad)):
                end = resume.start() + 1
            if end is None:
                self._effort += effort
                return events, position, False
            if not self._salvage(text[position:end], events):
                self._effort += effort
            position = _skip_comma(text, end)
        return events, position, False

    def _salvage(self, text: bytes, events: list[Event]) -> bool:
        event = decode_one(text)
        if event is None:
            self.bad_events += 1
            return False
        events.append(event)
        return True

    def _finish(self, ended: bool) -> None:
        left = self._rest.strip(_SPACE + b",")
        # Chrome's format permits a bare array without its closing bracket.
        self.complete = ended or (self._bare_array and not left)
        if ended and not self._bare_array:
            trailer = _parse_object(b"{" + left)
            if trailer is None:
                self.complete = False
            else:
                self.header = trailer | self.header


def _decoded(text: bytes, begin: int, end: int) -> list[Event]:
    """Return the events in `text[begin:end]`, separated by commas or by lines."""
    try:
        # A view avoids two more copies of a megabyte.
        return decode_events(b"".join((b"[", memoryview(text)[begin:end], b"]")))
    except _JSON_ERRORS:
        # Of the same length, so that error positions stay valid.
        separated, count = _END_OF_LINE.subn(rb"\1,", text[begin:end])
        if not count:
            raise
    return decode_events(b"[" + separated + b"]")


def last_boundary(text: bytes, limit: int, start: int = 0) -> int | None:
    """Return the position after the last `}` before `limit` that a comma and `{` follow, or `{` on another line.

    None if none exists.
    """
    brace = limit
    for _ in range(_FEW_BRACES):
        brace = text.rfind(b"{", start, brace)
        if brace <= start:
            return None
        comma = _last_not_space(text, brace)
        closing = _last_not_space(text, comma) if text[comma : comma + 1] == b"," else comma
        if closing == comma and b"\n" not in text[comma:brace]:
            continue
        if closing > start and text[closing : closing + 1] == b"}":
            return closing + 1
    return _last_boundary_far(text, brace, start)


def _last_boundary_far(text: bytes, limit: int, start: int) -> int | None:
    """Return the same if many braces are no boundary: found by whole windows, from the end."""
    end, window = limit, _WINDOW_SIZE
    while end > start:
        begin = max(end - window, start)
        # A boundary that begins in the window may end with the next brace.
        found = [match.start() for match in _BOUNDARY.finditer(text, begin, limit + 1) if match.start() < end]
        if found and found[-1] > start:
            return found[-1] + 1
        end, window = begin, window * 2
    return None


def _last_not_space(text: bytes, before: int) -> int:
    at = before - 1
    while at >= 0 and text[at] in _SPACE:
        at -= 1
    return max(at, 0)


def _skip_comma(text: bytes, position: int) -> int:
    match = _BETWEEN.match(text, position)
    assert match is not None
    return match.end()


def _decode_before(text: bytes, position: int, bad: int) -> tuple[list[Event], int]:
    """Return the good events before the byte `bad`, and where the object that holds it begins."""
    limit = bad
    for _ in range(8):
        cut = last_boundary(text, limit, position)
        if cut is None:
            break
        try:
            return _decoded(text, position, cut), _skip_comma(text, cut)
        except _JSON_ERRORS:
            limit = cut
    return [], position


def _error_position(error: BaseException, position: int, stop: int) -> int:
    """Return where decoding of `[` + text[position:stop] + `]` failed; `stop` if the error does not state it."""
    match = _ERROR_OFFSET.search(str(error))
    return position + max(int(match.group(1)) - 1, 0) if match else stop


def _object_end(text: bytes, position: int) -> int | None:
    """Return the position after the object that begins at `position`, or None if it does not end in this text."""
    depth = 0
    for match in _TOKEN.finditer(text, position):
        token = match.group() if match.end() - match.start() == 1 else b""
        if token == b"{":
            depth += 1
            if depth > _MAX_DEPTH:
                return None
        elif token == b"}":
            depth -= 1
            if depth <= 0:
                return match.end()
        elif token == b'"':
            return None
    return None


def _parse_object(text: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
