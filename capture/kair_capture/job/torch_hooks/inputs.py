"""How much a model is given: a rank with larger batches takes longer, and no clock tells why."""

from collections.abc import Mapping
from typing import Final

from torch import Tensor

_MOST: Final = 256
"""Values that are looked at: batches are a few tensors, and what has more is no batch."""


def bytes_in(value: object) -> int:
    """Of all tensors in nested lists, tuples and mappings; 0 where there are none, or too many values."""
    found, waiting, seen = 0, [value], 0
    while waiting:
        one = waiting.pop()
        seen += 1
        if isinstance(one, Tensor):
            found += one.numel() * one.element_size()
        elif isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, list | tuple):
            waiting += one
        if seen + len(waiting) > _MOST:
            return 0
    return found
