"""Records of a file's events from its text, by the compiled scan."""

from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

import msgspec
import numpy as np

from kair_engine.numba_or_not import IS_COMPILED, Int32s, Int64s, Text, as_signs
from kair_engine.readers.kineto import times
from kair_engine.readers.kineto.classify import Category
from kair_engine.readers.kineto.compiled import scan, tokens
from kair_engine.readers.kineto.compiled.scan import scan_events
from kair_engine.readers.kineto.compiled.tokens import Tokens, find_tokens
from kair_engine.readers.kineto.events import NO_ARGS, NO_DURATION, NO_TIME, EventArgs
from kair_engine.readers.kineto.rows import RECORD, Records
from kair_engine.readers.kineto.tables import EventTables

_ROWS: Final = 1 << 14
_TEXTS: Final = 1 << 12
_MOST_TEXTS: Final = 1 << 20
_SIZE_OF_TEXT: Final = 64
"""Different names, threads and so on: room for so many at first, at most, and for so many bytes of each."""
_NOT_SEEN: Final = -1

_FIELDS: Final = ("start", "duration", "correlation", "external_id", "size")
"""Of a record, in the order of the columns of a scan."""
_TIMES: Final = ((scan.START, scan.TS, bytes(NO_TIME)), (scan.DURATION, scan.DUR, bytes(NO_DURATION)))
_TEXT: Final = msgspec.json.Decoder(str)
_IDENTITY: Final = msgspec.json.Decoder(int | str)
_ARGS: Final = msgspec.json.Decoder(EventArgs | None)
_JSON_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_Value = TypeVar("_Value")


is_ready = False
"""Whether the machine code is there."""


def warm_up() -> None:
    """Loads the machine code, and compiles it where that was not done yet. Raises what numba raises."""
    global is_ready  # noqa: PLW0603  (the machine code is the process', too)
    if not is_ready and IS_COMPILED:
        events = b'{"ph": "X", "name": "a"}'
        list(Scanner(EventTables()).records(events, 0, len(events)))
        is_ready = True


class Scanner:
    """Takes events from pieces of one file's text, and numbers what they name as `tables` do."""

    def __init__(self, tables: EventTables) -> None:
        self._tables = tables
        self._rows: Int64s = np.empty((_ROWS, scan.COLUMNS), np.int64)
        self._found: Int32s = np.empty((_ROWS, tokens.TRACK + 1), np.int32)
        self._is_full = False
        self._make_room(_TEXTS)

    def _make_room(self, texts: int) -> None:
        """Begins anew with room for more different texts; what is met again, `tables` know."""
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
        """Records of the operations in `text[begin:end]`, and where in the text the scan goes on.

        Ends before `end` where something is not known for sure: what stands there has to be decoded.
        """
        if self._is_full:
            return
        signs, ended = as_signs(text), np.array([0, begin])
        status = scan.NO_ROOM
        while status == scan.NO_ROOM:
            status = scan_events(signs, int(ended[1]), end, self._rows, ended)
            rows = self._rows[: ended[0]]
            known = self._with_room(signs, rows)
            records = self._taken(text, rows[:known])
            if len(records) < len(rows):
                yield self._tables.valid(records), int(rows[len(records), scan.EVENT])
                return
            yield self._tables.valid(records), int(ended[1])

    def _with_room(self, signs: Text, rows: Int64s) -> int:
        """Finds the rows' tokens; returns of how many."""
        places = rows[:, scan.NAME : scan.TID + 2]
        known = find_tokens(signs, places, self._tokens, self._found)
        while known < len(rows) and self._room < _MOST_TEXTS:
            self._make_room(2 * self._room)
            known = find_tokens(signs, places, self._tokens, self._found)
        self._is_full = known < len(rows)
        return known

    def _taken(self, text: bytes, rows: Int64s) -> Records:
        """The scanned rows as records, up to the first that is not known for sure."""
        known = self._number_names(self._found[: len(rows), tokens.NAME])
        known = self._number_tracks(self._found[:known, tokens.TRACK])
        rows, found = rows[:known], self._found[:known]
        result = np.empty(known, RECORD)
        result["name"] = self._name_numbers[found[:, tokens.NAME]]
        result["track"] = self._track_numbers[found[:, tokens.TRACK]]
        for column, field in enumerate(_FIELDS):
            result[field] = rows[:, column]
        result["size"][self._tables.categories()[result["track"]] != Category.COPY] = -1
        _read_odd_times(text, rows, result)
        return self._with_details(text, rows, result)

    def _with_details(self, text: bytes, rows: Int64s, records: Records) -> Records:
        detailed = self._tables.detailed(records)
        args = []
        for row, begin, end in zip(
            detailed.tolist(), *rows[detailed, scan.ARGS : scan.ARGS + 2].T.tolist(), strict=True
        ):
            try:
                args.append((_ARGS.decode(text[begin:end]) if end else None) or NO_ARGS)
            except _JSON_ERRORS:
                records = records[:row]
                break
        self._tables.describe(records, detailed[: len(args)], args)
        return records

    def _number_names(self, names: Int32s) -> int:
        """Numbers the names that are new; of how many rows they are known, up to one that cannot be read."""
        for token in _not_seen(self._name_numbers, names):
            name = _decoded(_TEXT, self._text(token), "")
            if name is None:
                break
            self._name_numbers[token] = self._tables.names[name]
        return _known(self._name_numbers, names)

    def _number_tracks(self, tracks: Int32s) -> int:
        """The same of tracks."""
        for track in _not_seen(self._track_numbers, tracks):
            category, process, thread = map(self._text, self._tokens.tracks[track].tolist())
            cat = _decoded(_TEXT, category, "")
            pid, tid = _decoded(_IDENTITY, process, 0), _decoded(_IDENTITY, thread, 0)
            if cat is None or pid is None or tid is None:
                break
            self._track_numbers[track] = self._tables.tracks[cat, pid, tid]
        return _known(self._track_numbers, tracks)

    def _text(self, token: int) -> bytes:
        ends = self._tokens.ends
        return self._tokens.texts[ends[token - 1] : ends[token]].tobytes() if token else b""


def _read_odd_times(text: bytes, rows: Int64s, records: Records) -> None:
    for row in np.flatnonzero(rows[:, scan.ODD]).tolist():
        for column, place, default in _TIMES:
            if rows[row, scan.ODD] & 1 << column:
                begin, end = rows[row, place : place + 2].tolist()
                records[_FIELDS[column]][row] = times.exact_nanoseconds(text[begin:end] or default)


def _not_seen(numbers: Int32s, met: Int32s) -> Iterable[int]:
    """Those that are met for the first time, in order."""
    return dict.fromkeys(met[numbers[met] == _NOT_SEEN].tolist())


def _known(numbers: Int32s, met: Int32s) -> int:
    """How many of those that are met have numbers, up to the first that has none."""
    unknown = numbers[met] == _NOT_SEEN
    return int(unknown.argmax()) if unknown.any() else len(met)


def _decoded(decoder: msgspec.json.Decoder[_Value], text: bytes, default: _Value) -> _Value | None:
    try:
        return decoder.decode(text) if text else default
    except _JSON_ERRORS:
        return None
