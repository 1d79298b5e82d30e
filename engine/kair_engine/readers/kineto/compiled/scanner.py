"""Makes records of a file's events from its text by the compiled scan.

Scanned rows are packed into records in one pass, compiled by numba.
"""

from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from kair_engine.numba_or_not import IS_COMPILED, Int32s, Int64s, Text, as_signs
from kair_engine.numba_or_not import njit_without_arrays as njit
from kair_engine.readers.kineto import events as times
from kair_engine.readers.kineto.classify import Category, NameClass
from kair_engine.readers.kineto.collective_details import collective_details
from kair_engine.readers.kineto.compiled import scan_columns, tokens
from kair_engine.readers.kineto.compiled import scan_columns as field_marks
from kair_engine.readers.kineto.compiled import template_store as templates
from kair_engine.readers.kineto.compiled.scan import scan_events
from kair_engine.readers.kineto.compiled.scan_columns import CORRELATION, DURATION, EXTERNAL_ID, ODD, SHAPE, SIZE, START
from kair_engine.readers.kineto.compiled.template_match import UNLIKE, take_alike
from kair_engine.readers.kineto.compiled.template_store import learn, no_shapes
from kair_engine.readers.kineto.compiled.tokens import KEYS, Tokens, find_tokens
from kair_engine.readers.kineto.events import MAX_DURATION_NS, NO_ARGS, NO_DURATION, NO_TIME, RECORD, EventArgs, Records
from kair_engine.readers.kineto.tables import EventTables

_ROWS: Final = 2017 * 8
"""An odd number of cache lines: columns that begin a power of two apart evict each other."""
_TEXTS: Final = 1 << 12
_MOST_TEXTS: Final = 1 << 20
_SIZE_OF_TEXT: Final = 64
"""Room for different names, threads and so on: at first, at most, and bytes for each."""
_NOT_SEEN: Final = -1
_NO_SHAPE: Final = -1
_NO_SIZE: Final = -1
_INPUT_SHAPES: Final = b'"Input Dims"'
_PIECES: Final = 1 << 16
_NAMES: Final = 1 << 14
_SIZE_OF_PIECE: Final = 128
"""Room for pieces of events' shapes, for names among them, and bytes for each piece."""
_MARKS: Final = 1 << 12
_MOST_AT_ONCE: Final = 256
"""Events that are parsed before the next ones are compared with earlier ones again."""
_FEW_ALIKE: Final = 2000
"""Bytes of such events."""

_FIELDS: Final = ("start", "duration", "correlation", "external_id")
"""Fields of a record in the order of a scan's columns."""
_TIMES: Final = (
    (scan_columns.START, scan_columns.TS, bytes(NO_TIME)),
    (scan_columns.DURATION, scan_columns.DUR, bytes(NO_DURATION)),
)
_TEXT: Final = msgspec.json.Decoder(str)
_IDENTITY: Final = msgspec.json.Decoder(int | str)
_ARGS: Final = msgspec.json.Decoder(EventArgs | None)
_JSON_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_Value = TypeVar("_Value")


is_ready = False
"""Whether the compiled code is loaded."""


def warm_up() -> None:
    """Load the machine code, and compile it if needed. Raises numba's errors."""
    global is_ready  # noqa: PLW0603  (the compiled code belongs to the process, too)
    if not is_ready and IS_COMPILED:
        events = b'{"ph": "X", "name": "a"}'
        list(Scanner(EventTables()).records(events, 0, len(events)))
        is_ready = True


class Scanner:
    """Takes events from pieces of one file's text, and numbers their names and tracks as `tables` do."""

    def __init__(self, tables: EventTables) -> None:
        self._tables = tables
        self._rows: Int64s = np.empty((scan_columns.COLUMNS, _ROWS), np.int64)
        self._found: Int32s = np.empty((_ROWS, tokens.TRACK + 1), np.int32)
        self._marks: Int64s = np.empty((_MARKS, field_marks.MARK_COLUMNS), np.int64)
        self._ended = np.zeros(2, np.int64)
        self._parsed_at_once = 1
        self._is_full = False
        self._make_room(_TEXTS)
        self._shapes = no_shapes(_PIECES, _NAMES, _SIZE_OF_PIECE * _PIECES)
        self._name_of_shape: Int32s = np.full(_PIECES, _NOT_SEEN, np.int32)
        self._track_of_shape: Int32s = np.full(_PIECES, _NOT_SEEN, np.int32)
        self._detail_of_shape: Int32s = np.full(_PIECES, _NOT_SEEN, np.int32)
        self._size_of_shape: Int64s = np.full(_PIECES, _NO_SIZE, np.int64)
        self._is_numbered = np.zeros(_PIECES, np.bool_)
        """Shapes whose details have a sequence number."""

    def _make_room(self, texts: int) -> None:
        """Restart with room for more different texts; `tables` still knows the earlier ones."""
        self._room = texts
        self._tokens = Tokens(
            slots=np.zeros(4 * texts, np.int32),
            texts=np.empty(_SIZE_OF_TEXT * texts, np.uint8),
            ends=np.zeros(texts, np.int64),
            track_slots=np.zeros(texts, np.int32),
            tracks=np.empty((texts // 4, 3), np.int32),
            counts=np.array([1, 0]),
        )
        self._name_numbers: Int32s = np.full(texts, _NOT_SEEN, np.int32)
        self._track_numbers: Int32s = np.full(texts // 4, _NOT_SEEN, np.int32)

    def records(self, text: bytes, begin: int, end: int) -> Iterator[tuple[Records, int]]:
        """Yield records of the operations in `text[begin:end]`, and the position where the scan goes on.

        Ends before `end` at anything uncertain: the caller has to decode that part.
        """
        if self._is_full:
            return
        signs, self._ended[:] = as_signs(text), (0, begin)
        status = scan_columns.NO_ROOM
        while status == scan_columns.NO_ROOM:
            self._ended[0] = 0
            status = self._fill(signs, end)
            rows = self._rows[:, : self._ended[0]]
            records, are_valid = self._taken(text, signs, rows)
            valid = records if are_valid else self._tables.valid(records)
            if len(records) < rows.shape[1]:
                # Shapes learned from unknown events are invalid.
                self._forget_shapes()
                yield valid, int(rows[scan_columns.EVENT, len(records)])
                return
            yield valid, int(self._ended[1])

    def _fill(self, signs: Text, end: int) -> int:
        """Take events into the rows until they are full or the next is unknown; return why it ended."""
        while True:
            begin = int(self._ended[1])
            status = take_alike(signs, end, self._rows, self._ended, self._shapes)
            if status != UNLIKE:
                return status
            # A call from Python takes as long as several events.
            alike = int(self._ended[1]) - begin
            self._parsed_at_once = min(2 * self._parsed_at_once, _MOST_AT_ONCE) if alike < _FEW_ALIKE else 1
            status = scan_events(signs, end, self._rows, self._ended, self._parsed_at_once, self._marks, KEYS)
            learn(signs, self._marks, self._rows, self._shapes)
            if status != scan_columns.ENOUGH:
                return status

    def _forget_shapes(self) -> None:
        templates.forget(self._shapes)
        self._name_of_shape[:] = _NOT_SEEN
        self._track_of_shape[:] = _NOT_SEEN
        self._detail_of_shape[:] = _NOT_SEEN
        self._size_of_shape[:] = _NO_SIZE

    def _with_room(self, signs: Text, places: Int64s) -> int:
        """Find the tokens at these positions; return for how many rows."""
        known = find_tokens(signs, places, self._tokens, self._found)
        while known < len(places) and self._room < _MOST_TEXTS:
            self._make_room(2 * self._room)
            known = find_tokens(signs, places, self._tokens, self._found)
        self._is_full = known < len(places)
        return known

    def _taken(self, text: bytes, signs: Text, rows: Int64s) -> tuple[Records, bool]:
        """Return the scanned rows as records, up to the first uncertain one; and whether they are obviously valid."""
        names, tracks = self._names_and_tracks(signs, rows)
        parsed, sizes, readable = self._sizes(text, rows, tracks)
        result = np.empty(readable, RECORD)
        words = result.view(np.int64).reshape(-1, WORDS)
        known, are_valid = pack(self._rows, names, tracks, self._tables.categories(), self._size_of_shape, words)
        rows, result = rows[:, :known], result[:known]
        result["size"][parsed[parsed < known]] = sizes[parsed < known]
        _read_odd_times(text, rows, result)
        return self._with_details(text, rows, result, names[:known]), are_valid

    def _sizes(self, text: bytes, rows: Int64s, tracks: Int32s) -> tuple[Int64s, Int64s, int]:
        """Return the parsed operators, the numbers of their inputs, and for how many rows arguments can be read.

        An operator's shapes belong to the event's shape: similar events share them.
        """
        parsed = np.flatnonzero(rows[scan_columns.PARSED])
        parsed = parsed[tracks[parsed] != _NOT_SEEN]
        parsed = parsed[self._tables.categories()[tracks[parsed]] == Category.CPU_OP]
        sizes: Int64s = np.full(len(parsed), _NO_SIZE, np.int64)
        readable = rows.shape[1]
        for at, (begin, end) in enumerate(rows[scan_columns.ARGS : scan_columns.ARGS + 2, parsed].T.tolist()):
            if text.find(_INPUT_SHAPES, begin, end) >= 0:
                try:
                    sizes[at] = self._tables.inputs.of(_ARGS.decode(text[begin:end]) or NO_ARGS)
                except _JSON_ERRORS:
                    readable = int(parsed[at])
                    break
        shape = rows[scan_columns.SHAPE, parsed]
        self._size_of_shape[shape[shape != _NO_SHAPE]] = sizes[shape != _NO_SHAPE]
        return parsed, sizes, readable

    def _names_and_tracks(self, signs: Text, rows: Int64s) -> tuple[Int32s, Int32s]:
        """Return the numbers of both for every row: the parsed rows determine them for all others of their shape."""
        shape, parsed = rows[scan_columns.SHAPE], np.flatnonzero(rows[scan_columns.PARSED])
        if not len(parsed):
            return self._name_of_shape[shape], self._track_of_shape[shape]
        of_parsed = self._numbers(signs, np.ascontiguousarray(rows[scan_columns.NAME : scan_columns.TID + 2, parsed].T))
        of_rows = []
        for of_shape, numbers in zip((self._name_of_shape, self._track_of_shape), of_parsed, strict=True):
            has_shape = shape[parsed] != _NO_SHAPE
            of_shape[shape[parsed][has_shape]] = numbers[has_shape]
            of_rows.append(of_shape[shape])
            of_rows[-1][parsed] = numbers
        return of_rows[0], of_rows[1]

    def _numbers(self, signs: Text, places: Int64s) -> tuple[Int32s, Int32s]:
        """Return the numbers of the names and tracks at these positions."""
        found = self._found[: self._with_room(signs, places)]
        known = self._number_names(found[:, tokens.NAME])
        self._number_tracks(found[:known, tokens.TRACK])
        names, tracks = np.full((2, len(places)), _NOT_SEEN, np.int32)
        names[: len(found)] = self._name_numbers[found[:, tokens.NAME]]
        tracks[: len(found)] = self._track_numbers[found[:, tokens.TRACK]]
        return names, tracks

    def _with_details(self, text: bytes, rows: Int64s, records: Records, names: Int32s) -> Records:
        """Return the records with their details, up to the first whose arguments cannot be read."""
        detailed = self._tables.detailed(names)
        shape = rows[scan_columns.SHAPE, detailed]
        details = np.where(shape != _NO_SHAPE, self._detail_of_shape[shape], _NOT_SEEN)
        first = details == _NOT_SEEN
        for at in np.flatnonzero(first).tolist():
            # An earlier row of this shape may have set it.
            known = self._detail_of_shape[shape[at]] if shape[at] != _NO_SHAPE else _NOT_SEEN
            first[at] = known == _NOT_SEEN
            number = self._detail(text, rows[:, detailed[at]]) if first[at] else known
            if number is None:
                records = records[: detailed[at]]
                detailed, shape, details, first = detailed[:at], shape[:at], details[:at], first[:at]
                break
            details[at] = number
        # Within the inputs no other number and no peer stands in the sequence number's place.
        sequence = np.where(self._is_numbered[shape], rows[scan_columns.NUMBER, detailed], -1)
        # A row that gets its own details later shares none.
        own = self._tables.name_classes()[names[detailed]] == NameClass.HOST_COLLECTIVE
        own |= sequence >= 0
        own &= ~first
        details[own] = self._tables.details.add_like(details[own].tolist(), sequence[own].tolist())
        records["detail"][detailed] = details
        return records

    def _detail(self, text: bytes, row: Int64s) -> int | None:
        """Return the number of a row's details, which others of its shape may share; None if they cannot be read."""
        begin, end = row[scan_columns.ARGS : scan_columns.ARGS + 2].tolist()
        try:
            found = collective_details((_ARGS.decode(text[begin:end]) if end else None) or NO_ARGS)
        except _JSON_ERRORS:
            return None
        number, shape = self._tables.details.add(found), row[scan_columns.SHAPE]
        if shape != _NO_SHAPE and self._shapes.pieces[shape, templates.SAYS_ALL]:
            self._detail_of_shape[shape], self._is_numbered[shape] = number, found.sequence is not None
        return number

    def _number_names(self, names: Int32s) -> int:
        """Give numbers to new names; return for how many rows names are known, up to one that cannot be read."""
        for token in _not_seen(self._name_numbers, names):
            name = _decoded(_TEXT, self._text(token), "")
            if name is None:
                break
            self._name_numbers[token] = self._tables.names[name]
        unknown = self._name_numbers[names] == _NOT_SEEN
        return int(unknown.argmax()) if unknown.any() else len(names)

    def _number_tracks(self, tracks: Int32s) -> None:
        """Give numbers to new tracks."""
        for track in _not_seen(self._track_numbers, tracks):
            category, process, thread = map(self._text, self._tokens.tracks[track].tolist())
            cat = _decoded(_TEXT, category, "")
            pid, tid = _decoded(_IDENTITY, process, 0), _decoded(_IDENTITY, thread, 0)
            if cat is None or pid is None or tid is None:
                break
            self._track_numbers[track] = self._tables.tracks[cat, pid, tid]

    def _text(self, token: int) -> bytes:
        ends = self._tokens.ends
        return self._tokens.texts[ends[token - 1] : ends[token]].tobytes() if token else b""


def _read_odd_times(text: bytes, rows: Int64s, records: Records) -> None:
    for row in np.flatnonzero(rows[scan_columns.ODD]).tolist():
        for column, place, default in _TIMES:
            if rows[scan_columns.ODD, row] & 1 << column:
                begin, end = rows[place : place + 2, row].tolist()
                records[_FIELDS[column]][row] = times.exact_nanoseconds(text[begin:end] or default)


def _not_seen(numbers: Int32s, met: Int32s) -> Iterable[int]:
    """Return those that occur for the first time, in order."""
    return dict.fromkeys(met[numbers[met] == _NOT_SEEN].tolist())


def _decoded(decoder: msgspec.json.Decoder[_Value], text: bytes, default: _Value) -> _Value | None:
    try:
        return decoder.decode(text) if text else default
    except _JSON_ERRORS:
        return None


Int8s = npt.NDArray[np.int8]
_NONE: Final = int(Category.NONE)
_COPY: Final = int(Category.COPY)
WORDS: Final = 7
"""Words of a record (`rows.RECORD`), 64 bits each: four numbers, the size, track and name, the detail."""


@njit(cache=True, nogil=True)
def pack(
    rows: Int64s, names: Int32s, tracks: Int32s, categories: Int8s, sizes: Int64s, packed: Int64s
) -> tuple[int, bool]:
    """Fill `packed` with rows, up to the first with an unknown name or track (-1).

    Returns how many, and whether all are valid as far as is obvious (`EventTables.valid`). The size is a row's own on a
    track of copies, else that of its shape. Details are filled in later.
    """
    is_valid = True
    for row in range(len(packed)):
        name, track, shape = names[row], tracks[row], rows[SHAPE, row]
        if name < 0 or track < 0:
            return row, is_valid
        category, duration, correlation = categories[track], rows[DURATION, row], rows[CORRELATION, row]
        is_valid &= category != _NONE and rows[ODD, row] == 0 and 0 <= duration < MAX_DURATION_NS
        external_id = rows[EXTERNAL_ID, row]
        packed[row, 0], packed[row, 1] = rows[START, row], duration
        packed[row, 2], packed[row, 3] = correlation, -1 if external_id == correlation else external_id
        packed[row, 4] = rows[SIZE, row] if category == _COPY else sizes[shape] if shape >= 0 else -1
        packed[row, 5] = (np.int64(name) << 32) | track
        packed[row, 6] = -1
    return len(packed), is_valid
