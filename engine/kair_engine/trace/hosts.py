"""Hosts of ranks."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kair_engine.trace.model import Job

if TYPE_CHECKING:  # what only opens a job loads no numpy
    from kair_engine.arrays import Ints


def host_of(job: Job, rank: int) -> str | None:
    """The host a rank ran on, where it is known."""
    return job.hosts.get(rank)


def hosts_of(job: Job, ranks: Iterable[int]) -> tuple[str, ...]:
    """The hosts of some ranks, each once."""
    return tuple(dict.fromkeys(host for rank in ranks if (host := host_of(job, rank)) is not None))


def host_numbers(job: Job) -> "Ints | None":
    """Per rank of the job a number, equal for those of one host (below 0: of an unknown one); None if none is known."""
    import numpy as np

    number = {host: code for code, host in enumerate(dict.fromkeys(job.hosts.values()))}
    if not number:
        return None
    return np.array([number[host] if (host := job.hosts.get(rank)) else -1 - rank for rank in job.ranks], np.int64)
