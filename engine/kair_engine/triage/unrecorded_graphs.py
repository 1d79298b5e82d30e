"""CUDA graphs of which only begin and end are recorded: ranks may have waited for one another in them."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from kair_engine.causes import CAUSES
from kair_engine.results.triage import Finding
from kair_engine.results.warning_kinds import GraphsNotRecorded
from kair_engine.step_bar import StepPartsTally
from kair_engine.trace.model import KairWarning
from kair_engine.trace.operations import INSIDE_UNKNOWN

HIDDEN_SHARE: Final = 0.1
"""The share of the step in such graphs: a rank that takes a tenth longer in them costs the smallest share of a step
that is reported of a rank."""


def without_unknown_inside(
    findings: Sequence[Finding], parts: StepPartsTally, step_time_ns: float, *, waits_known: bool
) -> tuple[tuple[Finding, ...], tuple[KairWarning, ...]]:
    """Return (the findings that stand, why the verdict is open without one: nothing where such graphs hide nobody).

    A rank is in its graph for longer if it waits there. `waits_known`: ranks also meet in collectives outside the
    graphs, and wait there for the late one. If that is one rank whose graph is longer, it did not wait in it; of
    several any may have waited for another.
    """
    hidden_ns = float((parts.graphs_ns / np.maximum(parts.seen, 1)).max(initial=0.0))
    if hidden_ns < HIDDEN_SHARE * step_time_ns:
        return tuple(findings), ()
    is_one = len({rank for one in findings if _of_graph(one) for rank in one.ranks}) == 1
    stand = tuple(one for one in findings if not _of_graph(one) or (waits_known and is_one and one.ranks))
    if waits_known and len(stand) == len(findings):
        return stand, ()
    return stand, (GraphsNotRecorded(share_of_step=min(hidden_ns / step_time_ns, 1.0)),)


def _of_graph(finding: Finding) -> bool:
    """Whether it says that ranks compute longer in a graph, or all ranks in one step than in another."""
    in_graph = finding.operator is not None and finding.operator.endswith(INSIDE_UNKNOWN)
    return CAUSES[finding.cause].time_class == "compute" and (in_graph or not finding.ranks)
