"""Protocol buffers' wire format, as much of it as reading needs. https://protobuf.dev/programming-guides/encoding"""

import struct
from collections.abc import Iterator
from typing import Final

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5
_MOST_SHIFT: Final = 63
_MOST_BYTES: Final = 10

Span = tuple[int, int]
"""Begin and end of a nested message or of text, as positions in the buffer."""


class WireError(ValueError):
    """The bytes are no such message, or end within one."""


def fields(data: bytes, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(field number, wire type, a, b) of the message in data[begin:end].

    For BYTES a and b are the begin and end of the payload; otherwise a is the value (unsigned) and b is 0.
    Raises WireError where it is damaged or cut off.
    """
    at = begin
    while at < end:
        key = data[at]
        at += 1
        if key > 127:
            key, at = varint(data, at - 1, end)
        kind = key & 7
        if kind == VARINT:
            if at >= end:
                raise WireError("cut off")
            value = data[at]
            at += 1
            if value > 127:
                value, at = varint(data, at - 1, end)
            yield key >> 3, kind, value, 0
        elif kind == BYTES:
            if at >= end:
                raise WireError("cut off")
            size = data[at]
            at += 1
            if size > 127:
                size, at = varint(data, at - 1, end)
            if size > end - at:
                raise WireError("cut off")
            yield key >> 3, kind, at, at + size
            at += size
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
            if size > end - at:
                raise WireError("cut off")
            yield key >> 3, kind, int.from_bytes(data[at : at + size], "little"), 0
            at += size
        else:
            raise WireError(f"wire type {kind}")


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The number that begins at `at`, and the place after it."""
    value = shift = 0
    for byte in data[at : min(end, at + _MOST_BYTES)]:
        at += 1
        if byte < 128:
            return (value | byte << shift) & ((1 << 64) - 1), at
        value |= (byte & 127) << shift
        shift += 7
        if shift > _MOST_SHIFT:
            raise WireError("a number of more than ten bytes")
    raise WireError("cut off")


def signed(value: int) -> int:
    """An int64 from the unsigned number on the wire."""
    return value - (1 << 64) if value >> 63 else value


def real(value: int) -> float:
    """A double from its eight bytes."""
    return float(struct.unpack("<d", value.to_bytes(8, "little"))[0])


def text(data: bytes, begin: int, end: int) -> str:
    """Text, whatever its bytes are."""
    return data[begin:end].decode("utf-8", "replace")


def packed(data: bytes, kind: int, a: int, b: int) -> list[int]:
    """The numbers of a repeated field, packed or one at a time."""
    if kind != BYTES:
        return [a]
    values = []
    while a < b:
        value, a = varint(data, a, b)
        values.append(value)
    return values
