"""What a rank sent to other hosts in its steps, which Kair's capture leaves in the file."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from statistics import mean, median
from typing import Any, Final, NamedTuple

from kair_engine.readers.kineto.processor import rows_of
from kair_engine.trace.delivery_rates import usual_rate
from kair_engine.trace.model import SentToHost

_MOST: Final = 1 << 50
_MOST_PEERS: Final = 1024


class _Row(NamedTuple):
    """Of one step; windows of earlier versions do not tell what has a default."""

    size: int
    rate: int
    again: int
    round_trip_us: int = 0
    queued_us: int | None = None
    busy_us: int | None = None


def sent_of(header: Mapping[str, Any]) -> tuple[SentToHost, ...]:
    """By the two ends' addresses; empty for files of others."""
    between: dict[tuple[str, str], list[_Row]] = defaultdict(list)
    for _, own, peer, *figures in rows_of(header, "sent", (6, 9)):
        if not all(type(one) is int and 0 <= one < _MOST for one in figures):
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
    """As it is written for IPv4 where it is one of those, and without its scope; None for what is no address."""
    try:
        address = ip_address(text.partition("%")[0]) if isinstance(text, str) else None
    except ValueError:
        return None
    return None if address is None else str(getattr(address, "ipv4_mapped", None) or address)
