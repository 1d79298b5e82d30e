"""Reads what Kair's capture adds to the file: a rank's processor times per step, and the data it sent."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address
from statistics import mean, median
from typing import Any, Final, NamedTuple

from kair_engine.readers.json_values import listing, mapping, whole
from kair_engine.stats import usual_rate
from kair_engine.trace.model import NOT_RECORDED, ProcessorLimits, SentToHost

_MOST_STEPS: Final = 1_000_000
_MOST_CPUS: Final = 1 << 16
_NICE: Final = range(-20, 20)


class StepProcessor(NamedTuple):
    """Figures of one step; NOT_RECORDED where unknown."""

    cpu_ns: int
    delay_ns: int
    throttled: int
    communication_delay_ns: int
    halted: int = NOT_RECORDED
    """Windows of earlier versions lack it and the following fields."""
    given_bytes: int = NOT_RECORDED
    """Bytes given to models."""
    helpers_cpu_ns: int = NOT_RECORDED
    samples: int = NOT_RECORDED
    """Samples that the rank processed."""


NO_TIMES: Final = StepProcessor(NOT_RECORDED, NOT_RECORDED, NOT_RECORDED, NOT_RECORDED)


def processor_of(header: Mapping[str, Any]) -> dict[int, StepProcessor]:
    """Return step → the training thread's processor times, and the data given to models and the rank; else empty."""
    had = {row[0]: _step_processor(row) for row in rows_of(header, "processor", (5, 6, 7))}
    given, samples = (
        {row[0]: whole(row[1], NOT_RECORDED) for row in rows_of(header, name, (2,))} for name in ("given", "samples")
    )
    return {
        step: had.get(step, NO_TIMES)._replace(
            given_bytes=given.get(step, NOT_RECORDED), samples=samples.get(step, NOT_RECORDED)
        )
        for step in had.keys() | given.keys() | samples.keys()
    }


def _step_processor(row: list[Any]) -> StepProcessor:
    """Parse a row of the file, which is shorter in earlier versions."""
    figures = [whole(one, NOT_RECORDED) for one in row[1:]]
    had = StepProcessor(*figures[:5])
    return had._replace(helpers_cpu_ns=figures[5]) if len(row) > 6 else had


def rows_of(header: Mapping[str, Any], name: str, lengths: tuple[int, ...]) -> Iterator[list[Any]]:
    """Yield the entries of a list that begin with the number of a step."""
    for one in listing(mapping(header.get("kair")).get(name))[:_MOST_STEPS]:
        if isinstance(one, list) and len(one) in lengths and type(one[0]) is int:
            yield one


def limits_of(header: Mapping[str, Any]) -> ProcessorLimits | None:
    """Return the training thread's limits; None for files of other recorders, and if none is stated."""
    limits = mapping(mapping(header.get("kair")).get("limits"))
    nice, cpus, quota = limits.get("nice"), listing(limits.get("cpus"))[:_MOST_CPUS], limits.get("quota")
    found = ProcessorLimits(
        nice if type(nice) is int and nice in _NICE else None,
        tuple(sorted({one for one in cpus if type(one) is int and 0 <= one < _MOST_CPUS})),
        float(quota) if isinstance(quota, float | int) and 0 < quota < _MOST_CPUS else None,
    )
    return None if found == ProcessorLimits() else found


_MOST_SENT: Final = 1 << 50
_MOST_PEERS: Final = 1024


class _Row(NamedTuple):
    """Figures of one step; those with a default are absent in earlier versions."""

    size: int
    rate: int
    again: int
    round_trip_us: int = 0
    queued_us: int | None = None
    busy_us: int | None = None


def sent_of(header: Mapping[str, Any]) -> tuple[SentToHost, ...]:
    """Return the data sent by pairs of addresses; empty for files of other recorders."""
    between: dict[tuple[str, str], list[_Row]] = defaultdict(list)
    for _, own, peer, *figures in rows_of(header, "sent", (6, 9)):
        if not all(type(one) is int and 0 <= one < _MOST_SENT for one in figures):
            continue
        row, here, there = _Row(*figures), _address(own), _address(peer)
        if row.size and row.rate and here is not None and there is not None and here != there:
            between[here, there].append(row)
    return tuple(_sent(*ends, rows) for ends, rows in sorted(between.items())[:_MOST_PEERS])


def _sent(own: str, peer: str, rows: Sequence[_Row]) -> SentToHost:
    once = [1] * len(rows)
    round_trips = [row.round_trip_us * 1e3 for row in rows if row.round_trip_us]
    queued = [row.queued_us * 1e3 for row in rows if row.queued_us is not None]
    busy = [row.busy_us * 1e3 for row in rows if row.busy_us is not None]
    return SentToHost(
        own,
        peer,
        steps=len(rows),
        bytes_per_step=sum(row.size for row in rows) / len(rows),
        bytes_per_s=float(usual_rate([row.rate for row in rows], once)),
        retransmitted_per_step=sum(row.again for row in rows) / len(rows),
        round_trip_ns=median(round_trips) if round_trips else None,
        queued_ns=median(queued) if queued else None,
        busy_ns_per_step=mean(busy) if busy else None,
    )


def _address(text: object) -> str | None:
    """Return an address without its scope, as IPv4 if it is one; None for anything else."""
    try:
        address = ip_address(text.partition("%")[0]) if isinstance(text, str) else None
    except ValueError:
        return None
    return None if address is None else str(getattr(address, "ipv4_mapped", None) or address)
