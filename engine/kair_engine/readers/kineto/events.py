"""Decodes one event of a Kineto trace with only the fields in use.

Keeps decoded events as arrays of fixed-size records, small enough for memory or a temporary file. Converts a trace's
microseconds to whole nanoseconds exactly.
"""

import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import IO, Any, Final, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

_NOTHING: Final = msgspec.Raw(b"")
# Missing times must not pass for real ones: no clock reads the first, no duration is negative.
NO_TIME: Final = msgspec.Raw(b"-9e18")
NO_DURATION: Final = msgspec.Raw(b"-1")


class EventArgs(msgspec.Struct, gc=False):
    """The arguments of an event that state its launch and its collective."""

    correlation: int = -1
    external_id: int = msgspec.field(default=-1, name="External id")
    size: int = msgspec.field(default=-1, name="bytes")
    collective: str | None = msgspec.field(default=None, name="Collective name")
    group: str | None = msgspec.field(default=None, name="Process Group Name")
    group_ranks: str | None = msgspec.field(default=None, name="Process Group Ranks")
    sequence: int | None = msgspec.field(default=None, name="Seq")
    elements_in: int | None = msgspec.field(default=None, name="In msg nelems")
    elements_out: int | None = msgspec.field(default=None, name="Out msg nelems")
    dtype: str | None = None
    source_rank: int | None = msgspec.field(default=None, name="Src Rank")
    destination_rank: int | None = msgspec.field(default=None, name="Dst Rank")
    inputs: msgspec.Raw = msgspec.field(default=_NOTHING, name="Concrete Inputs")
    dimensions: msgspec.Raw = msgspec.field(default=_NOTHING, name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=_NOTHING, name="Input type")


class Event(msgspec.Struct, gc=False):
    """One event; `ts` and `dur` stay text, because microseconds since 1970 do not fit a float64."""

    ts: msgspec.Raw = NO_TIME
    dur: msgspec.Raw = NO_DURATION
    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: int | str = 0
    tid: int | str = 0
    args: EventArgs | None = None


NO_ARGS: Final = EventArgs()

_EVENTS: Final = msgspec.json.Decoder(list[Event])
_EVENT: Final = msgspec.json.Decoder(Event)
_RAW_EVENTS: Final = msgspec.json.Decoder(list[msgspec.Raw])
# Kineto has written these for computed arguments (`"blocks per SM": inf`); JSON parsers reject them.
_C_FLOAT: Final = re.compile(rb"(:\s*)-?(?:nan|inf)\b", re.IGNORECASE)
_INT64: Final = range(-(1 << 63), 1 << 63)
_TEXT_FIELDS: Final = {"ph": "ph", "name": "name", "cat": "cat"}


def decode_events(text: bytes) -> list[Event]:
    """Return the events of a JSON array. Raises msgspec.DecodeError if it is not JSON.

    Objects with fields of unexpected types are read one by one, leniently; those without a usable name or time are
    returned as events that later checks drop and count.
    """
    try:
        return _EVENTS.decode(text)
    except msgspec.ValidationError:
        return [decode_one(bytes(raw)) or Event(ph="X") for raw in _RAW_EVENTS.decode(text)]


def decode_one(text: bytes) -> Event | None:
    """Return one event from its text, or None if it cannot be decoded."""
    try:
        return _EVENT.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    for candidate in (text, _C_FLOAT.sub(rb"\1null", text)):
        try:
            text_value = candidate.decode("utf-8", "replace")
            value = json.loads(text_value, parse_constant=str, parse_float=str, strict=False)
        except (ValueError, RecursionError):
            continue
        return _lenient_event(value) if isinstance(value, dict) else None
    return None


def _lenient_event(value: dict[str, Any]) -> Event:
    args = value.get("args")
    return Event(
        ts=_time_text(value.get("ts"), NO_TIME),
        dur=_time_text(value.get("dur"), NO_DURATION),
        **{field: text for field in _TEXT_FIELDS if isinstance(text := value.get(field), str)},
        pid=_identity(value.get("pid")),
        tid=_identity(value.get("tid")),
        args=_lenient_args(args) if isinstance(args, dict) else None,
    )


def _lenient_args(args: dict[str, Any]) -> EventArgs:
    result = EventArgs()
    for field in msgspec.structs.fields(EventArgs):
        value = args.get(field.encode_name)
        if value is None:
            continue
        if field.type is msgspec.Raw:
            setattr(result, field.name, msgspec.Raw(json.dumps(value).encode()))
        elif field.type in (str, str | None):
            setattr(result, field.name, value if isinstance(value, str) else json.dumps(value))
        else:
            setattr(result, field.name, _integer(value, field.default))
    return result


def _integer(value: object, default: int | None) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d{1,18}\s*", value):
        value = int(value)
    return value if isinstance(value, int) and value in _INT64 else default


def _identity(value: object) -> int | str:
    return value if isinstance(value, int | str) and not isinstance(value, bool) else json.dumps(value)


def _time_text(value: object, default: msgspec.Raw) -> msgspec.Raw:
    if isinstance(value, str):
        return msgspec.Raw(value.encode("utf-8", "replace"))
    if isinstance(value, int) and not isinstance(value, bool):
        return msgspec.Raw(repr(value).encode())
    return default


RECORD: Final = np.dtype(
    [
        ("start", np.int64),
        ("duration", np.int64),
        ("correlation", np.int64),
        ("external_id", np.int64),
        ("size", np.int64),
        ("track", np.int32),
        ("name", np.int32),
        ("detail", np.int64),
    ]
)
"""One event; the last three index the tables of an EventTables, `detail` -1 for none. `size` is in bytes; for an
operator on the host it is an index of its inputs, -1 for unknown ones.

Compiled code writes it as whole words: after a change, adapt compiled/scanner.py."""

Records = npt.NDArray[np.void]

_AS_BYTES: Final = np.dtype((np.void, RECORD.itemsize))
_IN_MEMORY: Final = 64 << 20


def joined(batches: Iterable[Records]) -> Records:
    """Return the batches as one; a single one is not copied. numpy's field-wise way takes fifteen times as long."""
    filled = [batch for batch in batches if len(batch)]
    if len(filled) < 2:
        return filled[0] if filled else np.empty(0, RECORD)
    return np.concatenate([batch.view(_AS_BYTES) for batch in filled]).view(RECORD)


def chosen(batch: Records, rows: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Records:
    """Return some of a batch, by a mask or by index."""
    return batch.view(_AS_BYTES)[rows].view(RECORD)


class RowSpill:
    """Batches of records, written to an unnamed temporary file in `folder` beyond the first few megabytes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._budget = _IN_MEMORY
        self._held: list[Records] = []
        self._file: IO[bytes] | None = None
        self._spilled: list[tuple[int, int]] = []
        self.count = 0

    def append(self, batch: Records) -> int:
        """Keep a batch and return its number. Raises OSError if the disk is full."""
        self.count += len(batch)
        if self._file is None and batch.nbytes <= self._budget:
            self._budget -= batch.nbytes
            self._held.append(batch)
            return len(self._held) - 1
        if self._file is None:
            self._budget = 0
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115  (lives as long as self)
        self._spilled.append((self._file.tell(), len(batch)))
        self._file.write(batch.view(np.uint8).data)
        return len(self._held) + len(self._spilled) - 1

    def size(self, number: int) -> int:
        """Return the number of records in the batch."""
        return len(self._held[number]) if number < len(self._held) else self._spilled[number - len(self._held)][1]

    def read(self, number: int) -> Records:
        """Return the batch with this number from `append`."""
        if number < len(self._held):
            return self._held[number]
        assert self._file is not None
        offset, count = self._spilled[number - len(self._held)]
        self._file.seek(offset)
        batch = np.fromfile(self._file, RECORD, count)
        self._file.seek(0, 2)
        return batch

    def __iter__(self) -> Iterator[Records]:
        for number in range(len(self._held) + len(self._spilled)):
            yield self.read(number)

    def drained(self) -> Iterator[Records]:
        """Yield every batch for the last time: its memory is released as it is yielded."""
        for number in range(len(self._held) + len(self._spilled)):
            batch = self.read(number)
            if number < len(self._held):
                self._held[number] = batch[:0].copy()
            yield batch

    def close(self) -> None:
        """Drop everything; the temporary file vanishes."""
        self._held.clear()
        if self._file is not None:
            self._file.close()


INVALID: Final = np.iinfo(np.int64).min
"""Stands for an invalid time: not a number, or beyond any clock."""
MAX_DURATION_NS: Final = 10**18
"""31 years; begin and end of any operation then fit int64."""
_LIMIT: Final = 4 * 10**18
_COMMA: Final = ord(",")
_POINT: Final = ord(".")


def nanoseconds(texts: Sequence[object]) -> npt.NDArray[np.int64]:
    """Return int64 nanoseconds of decimal texts (buffers) in microseconds; finer fractions round half to even.

    Texts that cannot be read, or lie 127 years or more from zero, become INVALID.
    """
    count = len(texts)
    if not count:
        return np.empty(0, np.int64)
    blob = b",".join(cast("Sequence[bytes]", texts)) + b","
    try:
        whole = _integers(blob, count)
        return _unscaled(_decimal(blob, count)) if whole is None else whole
    except (pa.ArrowInvalid, ValueError):
        return np.array([exact_nanoseconds(bytes(cast("bytes", text))) for text in texts], np.int64)


def _integers(blob: bytes, count: int) -> npt.NDArray[np.int64] | None:
    """Return times if all have no fraction, or all have three digits, as profilers write them; else None.

    Takes a third of the work.
    """
    signs = np.frombuffer(blob, np.uint8)
    points = np.flatnonzero(signs == _POINT)
    if len(points) and not np.array_equal(points + 4, np.flatnonzero(signs == _COMMA)):
        return None
    # Anything but separated whole numbers takes the careful path. (Numbers beyond 64 bits become the largest one.)
    if blob.translate(None, b"0123456789,.") or blob.startswith(b",") or b",," in blob:
        return None
    values: npt.NDArray[np.int64] = np.fromstring(blob.replace(b".", b""), np.int64, sep=",")
    if len(values) != count:
        raise ValueError("a time holds a comma")
    limit = _LIMIT if len(points) else _LIMIT // 1000
    within = (values > -limit) & (values < limit)
    return np.where(within, values if len(points) else values * 1000, INVALID)


def _texts(blob: bytes, count: int) -> pa.Array:
    """Return the texts between the commas of `blob`."""
    ends = np.flatnonzero(np.frombuffer(blob, np.uint8) == _COMMA)
    if len(ends) != count:
        raise ValueError("a time holds a comma")
    offsets = np.zeros(count + 1, np.int32)
    offsets[1:] = ends + 1
    import pyarrow.compute as pc  # 35 ms, for times that few profilers write

    # Arrow's strings lie end to end, so each still holds its comma.
    texts = pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(blob))
    return pc.ascii_rtrim(texts, ",")


def _decimal(blob: bytes, count: int) -> pa.Array:
    import pyarrow.compute as pc

    texts = _texts(blob, count)
    try:
        return texts.cast(pa.decimal128(38, 3))
    except pa.ArrowInvalid:
        return pc.round(texts.cast(pa.decimal128(38, 12)), 3, "half_to_even").cast(pa.decimal128(38, 3))


def _unscaled(decimals: pa.Array) -> npt.NDArray[np.int64]:
    """Return the unscaled values, which at scale 3 are nanoseconds: the low halves, if the high ones agree."""
    halves = np.frombuffer(decimals.buffers()[1], np.int64)[: 2 * len(decimals)].reshape(-1, 2)
    low, high = halves[:, 0], halves[:, 1]
    fits = (high == low >> 63) & (low > -_LIMIT) & (low < _LIMIT)
    return np.where(fits, low, INVALID)


def exact_nanoseconds(text: bytes) -> int:
    """Return ns of one text, quoted or not, by the slow, exact path."""
    try:
        value = Decimal(text.decode("ascii").strip().strip('"').strip())
        if not value.is_finite() or value.adjusted() > 18:
            return INVALID
        if value.adjusted() < -9:
            return 0
        result = int((value * 1000).to_integral_value())
    except (InvalidOperation, UnicodeDecodeError):
        return INVALID
    return result if -_LIMIT < result < _LIMIT else INVALID
