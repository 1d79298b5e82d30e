"""A recording of one rank alone: where its step goes, which no peer is needed for."""

from collections.abc import Iterator

from kair_engine.results.evidence import Evidence
from kair_engine.results.rank import PartOfStep
from kair_engine.results.triage import Finding
from kair_engine.trace.model import Trace
from kair_engine.triage.findings import new_finding
from kair_engine.triage.shared_costs import NOTABLE_SHARE

_CAUSE = "exposed_communication"


def parts_of_step(trace: Trace) -> tuple[PartOfStep, ...]:
    """What the step divides into, where one rank alone was recorded; empty where there are others."""
    if len(trace.job.ranks) > 1:
        return ()
    from kair_engine.views.rank_profile import rank_profile  # few recordings need it

    return rank_profile(trace, rank=trace.job.ranks[0]).parts


def exposed(trace: Trace, parts: tuple[PartOfStep, ...], step_time_ns: float) -> Iterator[Finding]:
    """That a good part of the step goes by in communication: how much of that is waiting, other ranks would tell."""
    spent_us = sum(part.own_us for part in parts if part.part == "communication")
    share = spent_us * 1e3 / step_time_ns
    if share >= NOTABLE_SHARE[_CAUSE]:
        yield new_finding(
            trace,
            cause=_CAUSE,
            seen_on=trace.job.ranks,
            lost_ns=spent_us * 1e3,
            step_time_ns=step_time_ns,
            evidence=(Evidence("exposed", {"exposed_us": spent_us, "share_of_step": share}),),
        )
