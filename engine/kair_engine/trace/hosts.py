"""Hosts of ranks."""

from collections.abc import Iterable

from kair_engine.trace.model import Job


def host_of(job: Job, rank: int) -> str | None:
    """The host a rank ran on, where it is known."""
    return job.hosts.get(rank)


def hosts_of(job: Job, ranks: Iterable[int]) -> tuple[str, ...]:
    """The hosts of some ranks, each once."""
    return tuple(dict.fromkeys(host for rank in ranks if (host := host_of(job, rank)) is not None))
