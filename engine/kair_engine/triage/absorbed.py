"""Delays of a rank's host or input that its device never waits for: they are told, so that nobody hunts them."""

from collections.abc import Iterator, Sequence

import numpy as np

from kair_engine.causes import CAUSES
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.results.triage import Absorbed, Finding
from kair_engine.timeline.lead import Leads
from kair_engine.triage.sampling import excess_of_steps

OF_HOSTS = ("host", "input")
"""The classes of time that a launch queue can absorb."""


def is_of_host(finding: Finding) -> bool:
    """Whether a finding is about what a rank's host does, which a launch queue can absorb."""
    return bool(finding.ranks) and CAUSES[finding.cause].time_class in OF_HOSTS


def absorbed(job: JobExcess, leads: Leads | None, findings: Sequence[Finding]) -> Iterator[Absorbed]:
    """What is told of findings that cost nothing, since hosts are ahead of their devices (`leads`)."""
    if leads is None:
        return
    for finding in findings:
        of_class = CAUSES[finding.cause].time_class
        assert of_class is not None
        places = np.searchsorted(job.ranks, finding.ranks)
        longer = float(excess_of_steps(job, places.tolist(), CLASSES.index(of_class)).mean())
        yield Absorbed(
            ranks=finding.ranks,
            cause=finding.cause,
            operator=finding.operator,
            longer_us_per_step=longer / 1e3,
            costs_us_per_step=finding.time_lost_us_per_step,
            ahead_us=leads.ahead_us(finding.ranks),
            slack_us_per_step=leads.slack_us(finding.ranks),
        )
