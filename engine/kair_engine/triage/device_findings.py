"""Findings about the devices of all ranks: they wait for launches, or another process has them.

CUDA graphs of which only begin and end are recorded: ranks may have waited for one another in them.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from kair_engine.arrays import Bools
from kair_engine.causes import CAUSES
from kair_engine.results.triage import Evidence, EvidenceKind, Finding
from kair_engine.step_bar import StepPartsTally
from kair_engine.timeline.account import KINDS, WHEN, AccountKind, When
from kair_engine.trace.model import KairWarning, Trace
from kair_engine.trace.operations import INSIDE_UNKNOWN
from kair_engine.triage.findings import new_finding
from kair_engine.whatif.model import Baseline, Counterfactual, Model, Undisturbed

LAUNCH_SHARE: Final = 0.30
"""Of the step: how long the median device of those that nobody accuses must idle because its host is late to launch."""
ONE_BY_ONE_SHARE: Final = 0.10
"""The same, between launches that follow one another."""
TAKEN_SHARE: Final = 0.05
"""Of the step: how long what is launched must wait for the median rank's device."""


def device_findings(
    trace: Trace,
    model: Model,
    parts: StepPartsTally,
    step_time_ns: float,
    *,
    hosts_stop: bool,
    shared: Bools | slice = slice(None),
) -> Iterator[Finding]:
    """Of a recording with devices, one for each that costs enough. Where hosts stop, they launch late for that.

    `shared` says of which ranks nobody is accused: what single ranks lose is told of them alone.
    """
    if not trace.job.has_device or step_time_ns <= 0:
        return

    def spent_ns(kinds: Sequence[AccountKind], when: Sequence[When] = WHEN) -> float:
        return float(np.median(parts.of_kinds_ns(kinds, when)[shared]))

    # What hosts spend on calls that are causes of their own is told as those. No replay tells what faster hosts save.
    late = spent_ns(("launching", "host", "synchronising"), ("before", "between", "launches"))
    one_by_one = spent_ns(KINDS, ("launches",))
    told: dict[EvidenceKind, float] = {}
    if late >= LAUNCH_SHARE * step_time_ns and not hosts_stop:
        told["device_idle"] = late
    if one_by_one >= ONE_BY_ONE_SHARE * step_time_ns:
        told["one_by_one"] = one_by_one
    if told:
        yield new_finding(
            trace,
            cause="launch_bound",
            seen_on=tuple(trace.job.ranks),
            lost_ns=max(told.values()),
            step_time_ns=step_time_ns,
            evidence=tuple(
                Evidence(kind, {"idle_us": idle / 1e3, "share_of_step": idle / step_time_ns})
                for kind, idle in told.items()
            ),
        )
    if (waited := spent_ns(("queued",))) >= TAKEN_SHARE * step_time_ns:
        yield _taken(trace, model, waited, step_time_ns)


def _taken(trace: Trace, model: Model, waited: float, step_time_ns: float) -> Finding:
    """Devices that run nothing of their rank though it has launched something.

    A wait costs nothing where the host is late anyway, which a replay without waits knows. An interrupted kernel is
    only longer: so the most that it costs is a replay without both, or all waits.
    """
    asked: list[Counterfactual] = [Baseline.RECORDED, Undisturbed.UNQUEUED, Undisturbed.ALONE_ON_DEVICE]
    recorded, *without = (float(times.mean()) for times in model.replay(asked).times)
    least, most = (max(recorded - after, 0.0) for after in without)
    figures = {"waited_us": waited / 1e3, "share_of_step": waited / step_time_ns}
    return new_finding(
        trace,
        cause="device_contention",
        seen_on=tuple(trace.job.ranks),
        lost_ns=min(least, waited),
        step_time_ns=step_time_ns,
        evidence=(Evidence("device_taken", figures), price_range(min(least, waited), max(most, waited))),
    )


def price_range(least_ns: float, most_ns: float) -> Evidence:
    """Between what and what a step would be shorter."""
    return Evidence("price_range", {"least_us": least_ns / 1e3, "most_us": most_ns / 1e3})


GRAPHS_NOT_RECORDED: Final = "graphs_not_recorded"
HIDDEN_SHARE: Final = 0.1
"""Of the step, in such graphs: a rank that takes a tenth longer in them costs the smallest share of a step that is
told of a rank."""


def without_unknown_inside(
    findings: Sequence[Finding], parts: StepPartsTally, step_time_ns: float, *, waits_known: bool
) -> tuple[tuple[Finding, ...], tuple[KairWarning, ...]]:
    """(the findings that stand, why the verdict is open without one: nothing where such graphs hide nobody).

    A rank is in its graph for longer if it waits there. `waits_known`: ranks meet in collectives beside the graphs, and
    wait there for who is late. If that is one rank whose graph is longer, it did not wait in it; of several any may
    have waited for another.
    """
    hidden_ns = float((parts.graphs_ns / np.maximum(parts.seen, 1)).max(initial=0.0))
    if hidden_ns < HIDDEN_SHARE * step_time_ns:
        return tuple(findings), ()
    is_one = len({rank for one in findings if _of_graph(one) for rank in one.ranks}) == 1
    stand = tuple(one for one in findings if not _of_graph(one) or (waits_known and is_one and one.ranks))
    if waits_known and len(stand) == len(findings):
        return stand, ()
    figures = {"share_of_step": min(hidden_ns / step_time_ns, 1.0)}
    return stand, (KairWarning(GRAPHS_NOT_RECORDED, figures=figures),)


def _of_graph(finding: Finding) -> bool:
    """Whether it says that ranks compute longer in a graph, or all ranks in one step than in another."""
    in_graph = finding.operator is not None and finding.operator.endswith(INSIDE_UNKNOWN)
    return CAUSES[finding.cause].time_class == "compute" and (in_graph or not finding.ranks)
