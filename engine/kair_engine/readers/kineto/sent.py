"""What a rank sent to other hosts in its steps, which Kair's capture leaves in the file."""

from collections import defaultdict
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any, Final

from kair_engine.readers.kineto.processor import rows_of
from kair_engine.trace.delivery_rates import usual_rate
from kair_engine.trace.model import SentToHost

_MOST: Final = 1 << 50
_MOST_PEERS: Final = 1024


def sent_of(header: Mapping[str, Any]) -> tuple[SentToHost, ...]:
    """By the two ends' addresses; empty for files of others."""
    between: dict[tuple[str, str], list[tuple[int, int, int]]] = defaultdict(list)
    for _, own, peer, size, rate, again in rows_of(header, "sent", (6,)):
        known = all(type(one) is int and 0 <= one < _MOST for one in (size, rate, again))
        here, there = _address(own), _address(peer)
        if known and size and rate and here is not None and there is not None and here != there:
            between[here, there].append((size, rate, again))
    return tuple(
        SentToHost(
            own,
            peer,
            steps=len(rows),
            bytes_per_step=sum(size for size, _, _ in rows) / len(rows),
            bytes_per_s=float(usual_rate([rate for _, rate, _ in rows], [1] * len(rows))),
            retransmitted_per_step=sum(again for _, _, again in rows) / len(rows),
        )
        for (own, peer), rows in sorted(between.items())[:_MOST_PEERS]
    )


def _address(text: object) -> str | None:
    """As it is written for IPv4 where it is one of those, and without its scope; None for what is no address."""
    try:
        address = ip_address(text.partition("%")[0]) if isinstance(text, str) else None
    except ValueError:
        return None
    return None if address is None else str(getattr(address, "ipv4_mapped", None) or address)
