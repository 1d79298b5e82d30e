"""What a rank had of the processor in its steps, and may have, which Kair's capture leaves in the file."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from kair_engine.trace.model import NOT_TOLD, ProcessorLimits

_MOST: Final = 1 << 62
_MOST_STEPS: Final = 1_000_000
_MOST_CPUS: Final = 1 << 16
_NICE: Final = range(-20, 20)


class StepProcessor(NamedTuple):
    """Of one step; NOT_TOLD where that is not known."""

    cpu_ns: int
    delay_ns: int
    throttled: int
    communication_delay_ns: int
    halted: int = NOT_TOLD
    """Windows of earlier versions do not tell it, nor what follows."""
    given_bytes: int = NOT_TOLD
    """What models were given."""
    helpers_cpu_ns: int = NOT_TOLD


UNTOLD: Final = StepProcessor(NOT_TOLD, NOT_TOLD, NOT_TOLD, NOT_TOLD)


def processor_of(header: Mapping[str, Any]) -> dict[int, StepProcessor]:
    """step → what the training thread had in it, and its models were given; empty for files of others."""
    had = {row[0]: _step_processor(row) for row in rows_of(header, "processor", (5, 6, 7))}
    given = {row[0]: _figure(row[1]) for row in rows_of(header, "given", (2,))}
    return {
        step: had.get(step, UNTOLD)._replace(given_bytes=given.get(step, NOT_TOLD))
        for step in had.keys() | given.keys()
    }


def _step_processor(row: list[Any]) -> StepProcessor:
    """Of a row of the file, which windows of earlier versions end earlier."""
    had = StepProcessor(*map(_figure, row[1:6]))
    return had._replace(helpers_cpu_ns=_figure(row[6])) if len(row) > 6 else had


def rows_of(header: Mapping[str, Any], name: str, lengths: tuple[int, ...]) -> Iterator[list[Any]]:
    """Those of a list that begin with the number of a step."""
    listed = _ours(header).get(name)
    for one in listed[:_MOST_STEPS] if isinstance(listed, list) else ():
        if isinstance(one, list) and len(one) in lengths and type(one[0]) is int:
            yield one


def limits_of(header: Mapping[str, Any]) -> ProcessorLimits | None:
    """What the training thread may have; None for files of others, and where nothing of it is told."""
    told = _ours(header).get("limits")
    if not isinstance(told, dict):
        return None
    nice, cpus, quota = (told.get(name) for name in ("nice", "cpus", "quota"))
    found = ProcessorLimits(
        nice if type(nice) is int and nice in _NICE else None,
        tuple(sorted({one for one in cpus[:_MOST_CPUS] if type(one) is int and 0 <= one < _MOST_CPUS}))
        if isinstance(cpus, list)
        else (),
        float(quota) if isinstance(quota, float | int) and 0 < quota < _MOST_CPUS else None,
    )
    return None if found == ProcessorLimits() else found


def _ours(header: Mapping[str, Any]) -> dict[str, Any]:
    ours = header.get("kair")
    return ours if isinstance(ours, dict) else {}


def _figure(value: object) -> int:
    return value if type(value) is int and 0 <= value < _MOST else NOT_TOLD
