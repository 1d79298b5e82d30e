"""One event of a Kineto trace, decoded with only the fields that are used."""

import json
import re
from typing import Any, Final

import msgspec

_NOTHING: Final = msgspec.Raw(b"")
# Times that are absent must not pass for real ones: no clock reads the first, no duration is negative.
NO_TIME: Final = msgspec.Raw(b"-9e18")
NO_DURATION: Final = msgspec.Raw(b"-1")


class EventArgs(msgspec.Struct, gc=False):
    """The arguments of an event that say what launched it and which collective it is."""

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
# Kineto has written these for computed arguments (`"blocks per SM": inf`); no JSON parser takes them.
_C_FLOAT: Final = re.compile(rb"(:\s*)-?(?:nan|inf)\b", re.IGNORECASE)
_INT64: Final = range(-(1 << 63), 1 << 63)
_TEXT_FIELDS: Final = {"ph": "ph", "name": "name", "cat": "cat"}


def decode_events(text: bytes) -> list[Event]:
    """The events of a JSON array. Raises msgspec.DecodeError where it is not JSON.

    Objects with fields of unexpected types are read one by one, leniently; those without a usable name or
    time come back as events that later checks drop and count.
    """
    try:
        return _EVENTS.decode(text)
    except msgspec.ValidationError:
        return [decode_one(bytes(raw)) or Event(ph="X") for raw in _RAW_EVENTS.decode(text)]


def decode_one(text: bytes) -> Event | None:
    """One event from its text, or None where it is beyond understanding."""
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
