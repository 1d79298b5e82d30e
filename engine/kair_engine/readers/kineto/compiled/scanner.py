"""Makes records of a file's events from its text by the compiled scan.

Scanned rows are packed into records in one pass.
"""

from collections.abc import Iterable, Iterator
from ctypes import byref, c_int
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from kair_engine.readers.kineto import events as times
from kair_engine.readers.kineto.classify import Category, NameClass
from kair_engine.readers.kineto.collective_details import collective_details
from kair_engine.readers.kineto.compiled import scan_columns
from kair_engine.readers.kineto.compiled.library import TOKEN_COLUMNS, Keys, Rows, Shapes, Tokens, library
from kair_engine.readers.kineto.events import MAX_DURATION_NS, NO_ARGS, NO_DURATION, NO_TIME, RECORD, EventArgs, Records
from kair_engine.readers.kineto.tables import EventTables

if TYPE_CHECKING:
    from kair_engine.readers.kineto.event_stream import Scan

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]

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
_NAME: Final = 0
_TRACK: Final = 4
"""Columns of tokens."""
_WORDS: Final = 7
"""Words of a record (`RECORD`), 64 bits each: four numbers, the size, track and name, the detail."""

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


def scan_of(tables: EventTables) -> "Scan | None":
    """Return the scan of a file's events; None where it is not compiled, and they have to be decoded."""
    return None if library() is None else Scanner(tables).records


class Scanner:
    """Takes events from pieces of one file's text, and numbers their names and tracks as `tables` do."""

    def __init__(self, tables: EventTables) -> None:
        self._tables = tables
        self._library = library()
        self._keys = Keys()
        self._rows = Rows(_ROWS)
        self._found: Int32s = np.empty((_ROWS, TOKEN_COLUMNS), np.int32)
        self._is_full = False
        self._make_room(_TEXTS)
        self._shapes = Shapes(_PIECES, _NAMES, _SIZE_OF_PIECE * _PIECES)
        self._library.kair_forget_shapes(byref(self._shapes))
        self._name_of_shape: Int32s = np.full(_PIECES, _NOT_SEEN, np.int32)
        self._track_of_shape: Int32s = np.full(_PIECES, _NOT_SEEN, np.int32)
        self._detail_of_shape: Int32s = np.full(_PIECES, _NOT_SEEN, np.int32)
        self._size_of_shape: Int64s = np.full(_PIECES, _NO_SIZE, np.int64)
        self._is_numbered = np.zeros(_PIECES, np.bool_)
        """Shapes whose details have a sequence number."""

    def _make_room(self, texts: int) -> None:
        """Restart with room for more different texts; `tables` still knows the earlier ones."""
        self._room = texts
        self._tokens = Tokens(texts, _SIZE_OF_TEXT)
        self._name_numbers: Int32s = np.full(texts, _NOT_SEEN, np.int32)
        self._track_numbers: Int32s = np.full(texts // 4, _NOT_SEEN, np.int32)

    def records(self, text: bytes, begin: int, end: int) -> Iterator[tuple[Records, int]]:
        """Yield records of the operations in `text[begin:end]`, and the position where the scan goes on.

        Ends before `end` at anything uncertain: the caller has to decode that part.
        """
        if self._is_full:
            return
        self._rows.next = begin
        status = scan_columns.NO_ROOM
        while status == scan_columns.NO_ROOM:
            self._rows.count = 0
            status = self._library.kair_scan(text, end, byref(self._rows), byref(self._shapes), byref(self._keys))
            rows = self._rows["columns"][:, : self._rows.count]
            records, are_valid = self._taken(text, rows)
            valid = records if are_valid else self._tables.valid(records)
            if len(records) < rows.shape[1]:
                # Shapes learned from unknown events are invalid.
                self._forget_shapes()
                yield valid, int(rows[scan_columns.EVENT, len(records)])
                return
            yield valid, self._rows.next

    def _forget_shapes(self) -> None:
        self._library.kair_forget_shapes(byref(self._shapes))
        self._name_of_shape[:] = _NOT_SEEN
        self._track_of_shape[:] = _NOT_SEEN
        self._detail_of_shape[:] = _NOT_SEEN
        self._size_of_shape[:] = _NO_SIZE

    def _with_room(self, text: bytes, places: Int64s) -> int:
        """Find the tokens at these positions; return for how many rows."""
        known = self._known_tokens(text, places)
        while known < len(places) and self._room < _MOST_TEXTS:
            self._make_room(2 * self._room)
            known = self._known_tokens(text, places)
        self._is_full = known < len(places)
        return known

    def _known_tokens(self, text: bytes, places: Int64s) -> int:
        at, found = places.ctypes.data, self._found.ctypes.data
        known: int = self._library.kair_find_tokens(text, at, len(places), byref(self._tokens), found)
        return known

    def _taken(self, text: bytes, rows: Int64s) -> tuple[Records, bool]:
        """Return the scanned rows as records, up to the first uncertain one; and whether they are obviously valid."""
        names, tracks = self._names_and_tracks(text, rows)
        parsed, sizes, readable = self._sizes(text, rows, tracks)
        result = np.empty(readable, RECORD)
        known, are_valid = self._pack(names, tracks, result)
        rows, result = rows[:, :known], result[:known]
        result["size"][parsed[parsed < known]] = sizes[parsed < known]
        _read_odd_times(text, rows, result)
        return self._with_details(text, rows, result, names[:known]), are_valid

    def _pack(self, names: Int32s, tracks: Int32s, records: Records) -> tuple[int, bool]:
        """Fill the records with rows, up to the first of an unknown name or track.

        Returns how many, and whether all are valid as far as is obvious (`EventTables.valid`).
        """
        are_valid = c_int()
        categories = self._tables.categories()
        lent = (names, tracks, categories, self._size_of_shape, records)
        assert all(array.flags.c_contiguous for array in lent)
        known: int = self._library.kair_pack(
            byref(self._rows),
            len(records),
            *(array.ctypes.data for array in lent[:-1]),
            int(Category.NONE),
            int(Category.COPY),
            MAX_DURATION_NS,
            records.ctypes.data,
            byref(are_valid),
        )
        return known, bool(are_valid.value)

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

    def _names_and_tracks(self, text: bytes, rows: Int64s) -> tuple[Int32s, Int32s]:
        """Return the numbers of both for every row: the parsed rows determine them for all others of their shape."""
        shape, parsed = rows[scan_columns.SHAPE], np.flatnonzero(rows[scan_columns.PARSED])
        if not len(parsed):
            return self._name_of_shape[shape], self._track_of_shape[shape]
        of_parsed = self._numbers(text, np.ascontiguousarray(rows[scan_columns.NAME : scan_columns.TID + 2, parsed].T))
        of_rows = []
        for of_shape, numbers in zip((self._name_of_shape, self._track_of_shape), of_parsed, strict=True):
            has_shape = shape[parsed] != _NO_SHAPE
            of_shape[shape[parsed][has_shape]] = numbers[has_shape]
            of_rows.append(of_shape[shape])
            of_rows[-1][parsed] = numbers
        return of_rows[0], of_rows[1]

    def _numbers(self, text: bytes, places: Int64s) -> tuple[Int32s, Int32s]:
        """Return the numbers of the names and tracks at these positions."""
        found = self._found[: self._with_room(text, places)]
        known = self._number_names(found[:, _NAME])
        self._number_tracks(found[:known, _TRACK])
        names, tracks = np.full((2, len(places)), _NOT_SEEN, np.int32)
        names[: len(found)] = self._name_numbers[found[:, _NAME]]
        tracks[: len(found)] = self._track_numbers[found[:, _TRACK]]
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
        if shape != _NO_SHAPE and self._shapes["pieces"]["says_all"][shape]:
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
            category, process, thread = map(self._text, self._tokens["tracks"][track].tolist())
            cat = _decoded(_TEXT, category, "")
            pid, tid = _decoded(_IDENTITY, process, 0), _decoded(_IDENTITY, thread, 0)
            if cat is None or pid is None or tid is None:
                break
            self._track_numbers[track] = self._tables.tracks[cat, pid, tid]

    def _text(self, token: int) -> bytes:
        texts, ends = self._tokens["texts"], self._tokens["ends"]
        return texts[ends[token - 1] : ends[token]].tobytes() if token else b""


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
