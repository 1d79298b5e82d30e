"""Findings about the devices of all ranks: they wait for launches, or another process has them.

CUDA graphs of which only begin and end are recorded: ranks may have waited for one another in them.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from kair_engine.arrays import Bools
from kair_engine.causes import CAUSES
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.results.triage import Evidence, Finding
from kair_engine.stats import median
from kair_engine.trace.model import KairWarning, Trace
from kair_engine.trace.operations import INSIDE_UNKNOWN
from kair_engine.triage.device_tally import DeviceTally
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
    devices: DeviceTally,
    job: JobExcess,
    step_time_ns: float,
    *,
    hosts_stop: bool,
    shared: Bools | slice = slice(None),
) -> Iterator[Finding]:
    """Of a recording with devices, one for each that costs enough. Where hosts stop, they launch late for that.

    `shared` says of which ranks nobody is accused: what single ranks lose is told of them alone.
    """
    if trace.job.has_device and step_time_ns > 0:
        yield from _launches(trace, devices, job, step_time_ns, hosts_stop=hosts_stop, shared=shared)
        yield from _taken(trace, model, devices, step_time_ns, shared)


def _launches(
    trace: Trace,
    devices: DeviceTally,
    job: JobExcess,
    step_time_ns: float,
    *,
    hosts_stop: bool,
    shared: Bools | slice,
) -> Iterator[Finding]:
    """Devices that idle because their hosts launch too late. No replay tells what faster hosts would save."""
    idle = float(np.median(devices.of_device("unlaunched_ns")[shared]))
    between_operations = median(job.every_work_ns[:, CLASSES.index("host")] - job.after_ns, axis=0)
    late = 0.0 if hosts_stop else min(float(np.median(between_operations[shared])), idle)
    told = {late: _idle(late, step_time_ns)} if late >= LAUNCH_SHARE * step_time_ns else {}
    between = min(float(np.median(devices.launched("idle_ns")[shared])), idle)
    if between >= ONE_BY_ONE_SHARE * step_time_ns:
        told[between] = _one_by_one(devices, between, step_time_ns, shared)
    if told:
        yield new_finding(
            trace,
            cause="launch_bound",
            seen_on=tuple(trace.job.ranks),
            lost_ns=max(told),
            step_time_ns=step_time_ns,
            evidence=tuple(told.values()),
        )


def _idle(idle_ns: float, step_time_ns: float) -> Evidence:
    return Evidence("device_idle", {"idle_us": idle_ns / 1e3, "share_of_step": idle_ns / step_time_ns})


def _one_by_one(devices: DeviceTally, idle_ns: float, step_time_ns: float, shared: Bools | slice) -> Evidence:
    launched, length, idle, kernel = (
        float(np.median(devices.launched(of)[shared]))
        for of in ("launches", "length_ns", "device_idle_ns", "kernel_ns")
    )
    figures = {
        "idle_us": idle_ns / 1e3,
        "share_of_step": idle_ns / step_time_ns,
        "share_of_idle": min(idle_ns / max(idle, 1.0), 1.0),
        "launches": launched,
        "launches_per_ms": launched * 1e6 / max(length, 1.0),
        "kernel_us": kernel / 1e3,
    }
    return Evidence("one_by_one", figures)


def _taken(
    trace: Trace, model: Model, devices: DeviceTally, step_time_ns: float, shared: Bools | slice
) -> Iterator[Finding]:
    """Devices that run nothing of their rank though it has launched something.

    A wait costs nothing where the host is late anyway: so it counts as far as threads waited for the device. An
    interrupted kernel is only longer: so the most that it costs is a replay without both, or all waits.
    """
    waited, awaited = (float(np.median(devices.of_device(of)[shared])) for of in ("ready_ns", "awaited_ns"))
    if waited < TAKEN_SHARE * step_time_ns:
        return
    asked: list[Counterfactual] = [Baseline.RECORDED, Undisturbed.UNQUEUED, Undisturbed.ALONE_ON_DEVICE]
    recorded, *without = (float(times.mean()) for times in model.replay(asked).times)
    least, most = (max(recorded - after, 0.0) for after in without)
    lost = min(waited, awaited)
    figures = {
        "waited_us": waited / 1e3,
        "share_of_step": waited / step_time_ns,
        "waits": float(np.median(devices.of_device("waits")[shared])),
        "longest_us": devices.longest_wait_ns / 1e3,
    }
    yield new_finding(
        trace,
        cause="device_contention",
        seen_on=tuple(trace.job.ranks),
        lost_ns=lost,
        step_time_ns=step_time_ns,
        evidence=(Evidence("device_taken", figures), price_range(min(least, lost), max(most, waited))),
    )


def price_range(least_ns: float, most_ns: float) -> Evidence:
    """Between what and what a step would be shorter."""
    return Evidence("price_range", {"least_us": least_ns / 1e3, "most_us": most_ns / 1e3})


GRAPHS_NOT_RECORDED: Final = "graphs_not_recorded"
HIDDEN_SHARE: Final = 0.1
"""Of the step, in such graphs: a rank that takes a tenth longer in them costs the smallest share of a step that is
told of a rank."""


def without_unknown_inside(
    findings: Sequence[Finding], devices: DeviceTally, step_time_ns: float, *, waits_known: bool
) -> tuple[tuple[Finding, ...], tuple[KairWarning, ...]]:
    """(the findings that stand, why the verdict is open without one: nothing where such graphs hide nobody).

    A rank is in its graph for longer if it waits there. `waits_known`: ranks meet in collectives beside the graphs, and
    wait there for who is late. If that is one rank whose graph is longer, it did not wait in it; of several any may
    have waited for another.
    """
    hidden_ns = float(devices.of_device("unknown_inside_ns").max(initial=0.0))
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
