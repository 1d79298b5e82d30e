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
_LONGEST: Final = 1 << 14
"""Characters of the shapes of one call: what is longer is no operator's."""


@lru_cache(maxsize=1024)
def element_bytes(element: str) -> int | None:
    """Of an element of a type; None for one that is not known."""
    name = element.lower()
    return _ELEMENT_BYTES.get(name.removeprefix("c10::"), 1 if name.startswith("float8") else None)


def size_of_inputs(args: EventArgs) -> int:
    """Of an operator's inputs, -1 where the recording does not tell their shapes."""
    return sizes_of_inputs([args])[0]


def sizes_of_inputs(args: Sequence[EventArgs]) -> list[int]:
    """The same of many operators, by functions that call one another without Python's help."""
    dimensions, types = map(bytes, map(_dimensions, args)), map(bytes, map(_types, args))
    return [-1 if size is None else size for size in map(size_of_tensors, dimensions, types)]


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
