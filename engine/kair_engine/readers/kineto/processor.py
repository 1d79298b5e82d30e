"""What a rank had of the processor in its steps, which Kair's capture leaves in the file."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from kair_engine.trace.model import NOT_TOLD

_MOST: Final = 1 << 62
_MOST_STEPS: Final = 1_000_000


class StepProcessor(NamedTuple):
    """Of one step; NOT_TOLD where that is not known."""

    cpu_ns: int
    delay_ns: int
    throttled: int
    communication_delay_ns: int
    halted: int = NOT_TOLD
    """Windows of earlier versions do not tell it."""


UNTOLD: Final = StepProcessor(NOT_TOLD, NOT_TOLD, NOT_TOLD, NOT_TOLD)


def processor_of(header: Mapping[str, Any]) -> dict[int, StepProcessor]:
    """step → what the training thread had in it; empty for files of others."""
    ours = header.get("kair")
    listed = ours.get("processor") if isinstance(ours, dict) else None
    if not isinstance(listed, list):
        return {}
    rows = (one for one in listed[:_MOST_STEPS] if isinstance(one, list) and len(one) in (5, 6) and type(one[0]) is int)
    return {one[0]: StepProcessor(*map(_figure, one[1:])) for one in rows}


def _figure(value: object) -> int:
    return value if type(value) is int and 0 <= value < _MOST else NOT_TOLD
