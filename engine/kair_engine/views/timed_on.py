"""Whose times the steps of a job have."""

from kair_engine.results.common import TimedOn
from kair_engine.trace.model import Job


def timed_on(job: Job) -> TimedOn:
    """The devices' where hosts run ahead of them, else the hosts', who mark the steps."""
    return "host" if job.host_times is None else "device"
