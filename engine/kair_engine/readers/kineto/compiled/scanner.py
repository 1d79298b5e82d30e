"""Records of a file's events from its text, by the compiled scan."""

from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

import msgspec
import numpy as np

from kair_engine.readers.kineto import times
from kair_engine.readers.kineto.classify import Category
from kair_engine.readers.kineto.compiled import scan
from kair_engine.readers.kineto.compiled.scan import Columns, Int32s, Keys, Tokens, scan_events
from kair_engine.readers.kineto.events import NO_ARGS, NO_DURATION, NO_TIME, EventArgs
from kair_engine.readers.kineto.rows import RECORD, Records
from kair_engine.readers.kineto.tables import EventTables

_ROWS: Final = 1 << 14
_ODD_TIMES: Final = 1 << 10
_TEXTS: Final = 1 << 12
_MOST_TEXTS: Final = 1 << 20
_SIZE_OF_TEXT: Final = 64
"""Different names, threads and so on: room for so many at first, at most, and for so many bytes of each."""
_NOT_SEEN: Final = -1
_UNREADABLE: Final = -2

_EVENT_FIELDS: Final = {
    "ph": scan.PH,
    "name": scan.NAME,
    "cat": scan.CAT,
    "pid": scan.PID,
    "tid": scan.TID,
    "ts": scan.TS,
    "dur": scan.DUR,
    "args": scan.ARGS,
}
_NUMBERS: Final = {"correlation": scan.CORRELATION, "External id": scan.EXTERNAL_ID, "bytes": scan.SIZE}
_BY_TYPE: Final = {int | None: scan.MAYBE_INTEGER, str | None: scan.MAYBE_TEXT}
_TEXT: Final = msgspec.json.Decoder(str)
_IDENTITY: Final = msgspec.json.Decoder(int | str)
_ARGS: Final = msgspec.json.Decoder(EventArgs | None)
_FIELDS: Final = ("start", "duration", "correlation", "external_id", "size")
"""Of a record, in the order of the columns of numbers."""
_NO_TIMES: Final = (bytes(NO_TIME), bytes(NO_DURATION))
_Value = TypeVar("_Value")
_JSON_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def _keys(fields: dict[str, int]) -> Keys:
    names = sorted(fields, key=len)
    sizes = [len(name) for name in names]
    return Keys(
        np.frombuffer("".join(names).encode(), np.uint8),
        np.cumsum([0, *sizes]),
        np.array([fields[name] for name in names]),
        np.searchsorted(sizes, np.arange(max(sizes) + 2)),
    )


def _fields_of_args() -> dict[str, int]:
    typed = {field.encode_name: _BY_TYPE.get(field.type) for field in msgspec.structs.fields(EventArgs)}
    return {name: kind for name, kind in typed.items() if kind is not None} | _NUMBERS


class Scanner:
    """Takes events from pieces of one file's text, and numbers what they name as `tables` do."""

    def __init__(self, tables: EventTables) -> None:
        self._tables = tables
        self._keys = _keys(_EVENT_FIELDS), _keys(_fields_of_args())
        self._columns = Columns(
            np.empty((scan.NUMBERS, _ROWS), np.int64),
            np.empty((2, _ROWS), np.int32),
            np.empty((_ODD_TIMES, 4), np.int64),
            np.zeros(3, np.int64),
        )
        self._make_room(_TEXTS)

    def _make_room(self, texts: int) -> None:
        """Begins anew with room for more different texts; what is met again, `tables` know."""
        self._room = texts
        self._tokens = Tokens(
            np.zeros(4 * texts, np.int32),
            np.empty(_SIZE_OF_TEXT * texts, np.uint8),
            np.zeros(texts, np.int64),
            np.zeros(texts, np.int32),
            np.empty((texts // 4, 3), np.int32),
            np.array([1, 0]),
        )
        self._name_numbers: Int32s = np.full(texts, _NOT_SEEN, np.int32)
        self._track_numbers: Int32s = np.full(texts // 4, _NOT_SEEN, np.int32)

    def records(self, text: bytes, begin: int, end: int) -> Iterator[tuple[Records, int]]:
        """Records of the operations in `text[begin:end]`, and where in the text the scan goes on.

        Ends before `end` where something is not known for sure: what stands there has to be decoded.
        """
        at, status = begin, scan.NO_ROOM
        while status == scan.NO_ROOM:
            status = scan_events(np.frombuffer(text, np.uint8), at, end, *self._keys, self._tokens, self._columns)
            rows = int(self._columns.counts[0])
            records = self._taken(text, rows)
            if len(records) < rows:
                status, at = scan.UNKNOWN, int(self._columns.numbers[scan.EVENT_BEGIN, len(records)])
            else:
                at = int(self._columns.counts[2])
            yield self._tables.valid(records), at
            if status == scan.NO_ROOM_FOR_TEXTS and self._room < _MOST_TEXTS:
                self._make_room(2 * self._room)
                status = scan.NO_ROOM

    def _taken(self, text: bytes, rows: int) -> Records:
        """The scanned rows as records, up to the first that is not known for sure."""
        numbers, (names, tracks) = self._columns.numbers[:, :rows], self._columns.texts[:, :rows]
        self._number_names(names)
        self._number_tracks(tracks)
        result = np.empty(rows, RECORD)
        result["name"], result["track"] = self._name_numbers[names], self._track_numbers[tracks]
        for column, field in enumerate(_FIELDS):
            result[field] = numbers[column]
        for row, column, first, last in self._columns.odd[: self._columns.counts[1]].tolist():
            result[_FIELDS[column]][row] = times.exact_nanoseconds(text[first:last] or _NO_TIMES[column])
        result["size"][self._tables.categories()[result["track"]] != Category.COPY] = -1
        unreadable = (result["name"] < 0) | (result["track"] < 0)
        result = result[: int(unreadable.argmax())] if unreadable.any() else result
        return self._with_details(text, result)

    def _with_details(self, text: bytes, records: Records) -> Records:
        begins, ends = self._columns.numbers[scan.ARGS_BEGIN], self._columns.numbers[scan.ARGS_END]
        rows = self._tables.detailed(records)
        args = []
        for row, begin, end in zip(rows.tolist(), begins[rows].tolist(), ends[rows].tolist(), strict=True):
            try:
                args.append((_ARGS.decode(text[begin:end]) if end else None) or NO_ARGS)
            except _JSON_ERRORS:
                records = records[:row]
                break
        self._tables.describe(records, rows[: len(args)], args)
        return records

    def _number_names(self, tokens: Int32s) -> None:
        for token in _not_seen(self._name_numbers, tokens):
            name = _decoded(_TEXT, self._text(token), "")
            self._name_numbers[token] = _UNREADABLE if name is None else self._tables.names[name]

    def _number_tracks(self, tracks: Int32s) -> None:
        for track in _not_seen(self._track_numbers, tracks):
            category, process, thread = map(self._text, self._tokens.tracks[track].tolist())
            key = _decoded(_TEXT, category, ""), _decoded(_IDENTITY, process, 0), _decoded(_IDENTITY, thread, 0)
            self._track_numbers[track] = _UNREADABLE if None in key else self._tables.tracks[key]

    def _text(self, token: int) -> bytes:
        ends = self._tokens.ends
        return self._tokens.texts[ends[token - 1] : ends[token]].tobytes() if token else b""


def _not_seen(numbers: Int32s, met: Int32s) -> Iterable[int]:
    """Those that are met for the first time, in order."""
    return dict.fromkeys(met[numbers[met] == _NOT_SEEN].tolist())


def _decoded(decoder: msgspec.json.Decoder[_Value], text: bytes, default: _Value) -> _Value | None:
    try:
        return decoder.decode(text) if text else default
    except _JSON_ERRORS:
        return None
