"""Bytes of tensors from their shapes and types, as the profiler writes them."""

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from operator import attrgetter
from typing import Any, Final

import msgspec

from kair_engine.readers.kineto.events import EventArgs

_ELEMENT_BYTES: Final = {
    **dict.fromkeys(("double", "long", "long int", "int64", "float64", "complexfloat"), 8),
    **dict.fromkeys(("float", "int", "float32", "int32"), 4),
    **dict.fromkeys(("half", "bfloat16", "short", "short int", "float16", "int16"), 2),
    **dict.fromkeys(("byte", "char", "bool", "unsigned char", "signed char", "uint8", "int8"), 1),
    "complexdouble": 16,
}
_INT64: Final = range(1 << 63)
_dimensions, _types = attrgetter("dimensions"), attrgetter("types")
_ROOM_FOR_SHAPES: Final = 32 << 20
_ENTRY: Final = 200
"""Characters of all shapes, and what each takes beside its own."""
_LONGEST: Final = 1 << 14
"""Characters of the shapes of one call: what is longer is no operator's."""


@lru_cache(maxsize=1024)
def element_bytes(element: str) -> int | None:
    """Of an element of a type; None for one that is not known."""
    name = element.lower()
    return _ELEMENT_BYTES.get(name.removeprefix("c10::"), 1 if name.startswith("float8") else None)


class Inputs(dict[tuple[bytes, bytes], int]):
    """What operators are given: shapes and types → a number, -1 for what tells neither dimensions nor a size.

    A recording has few of them, unless batches are ragged: beyond a limit texts are kept no more, only what is new has
    no shape then.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes_: list[int] = []
        """Of each number; -1 where the types do not tell it."""
        self.shapes: list[str] = []
        """Of each number, the dimensions of plain tensors: `2048,1408;8`; empty beyond the limit."""
        self._room = _ROOM_FOR_SHAPES

    def __missing__(self, key: tuple[bytes, bytes]) -> int:
        size = size_of_tensors(*key)
        shapes = shapes_text(key[0]) if self._room > 0 else ""
        if size is None and not shapes:
            return -1
        self._room -= len(shapes) + sum(map(len, key)) + _ENTRY
        self.bytes_.append(-1 if size is None else size)
        self.shapes.append(shapes)
        number = len(self.bytes_) - 1
        if self._room > 0:
            self[key] = number
        return number

    def of(self, args: EventArgs) -> int:
        """The number of an operator's inputs, -1 where the recording does not tell their shapes."""
        return self[bytes(args.dimensions), bytes(args.types)]

    def of_all(self, args: Sequence[EventArgs]) -> list[int]:
        """The same of many operators, by functions that call one another without Python's help."""
        dimensions, types = map(bytes, map(_dimensions, args)), map(bytes, map(_types, args))
        return list(map(self.__getitem__, zip(dimensions, types, strict=True)))


def shapes_text(dimensions: bytes) -> str:
    """The dimensions of plain tensors in order, `2048,1408;8` for `[[2048, 1408], [], [8]]`."""
    if len(dimensions) > _LONGEST:
        return ""
    tensors = (shape for shape in json_list(dimensions) if isinstance(shape, list) and shape)
    return ";".join(",".join(map(str, of)) for of in tensors if all(isinstance(n, int) and n >= 0 for n in of))


@lru_cache(maxsize=4096)
def size_of_tensors(dimensions: bytes, types: bytes) -> int | None:
    """Bytes of plain tensors from their shapes; tensor lists do not say what their elements are."""
    if len(dimensions) > _LONGEST:
        return None
    total = 0
    for shape, element in zip(json_list(dimensions), json_list(types), strict=False):
        width = _ELEMENT_BYTES.get(str(element).lower().removeprefix("c10::"))
        if width and isinstance(shape, list) and shape and all(isinstance(n, int) and n >= 0 for n in shape):
            total += width * prod(shape)
    return total if 0 < total in _INT64 else None


def json_list(text: bytes) -> list[Any]:
    """The list that a text is; an empty one for any other text."""
    if not text:
        return []
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    return value if isinstance(value, list) else []
