"""The verdict of the Inspector's logs alone: late ranks by the history of steps, slow communicators by their siblings.

What a rank does while it is late is not recorded: that cause stays open.
"""

from collections import defaultdict
from dataclasses import replace
from typing import Final

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.localize.anomalies import FALSE_ALARM_RATE, LINK_SHARE
from kair_engine.localize.links import FEWEST_SIBLINGS, Link, OwnTime, slow_links
from kair_engine.ranks import Rank
from kair_engine.results import SMALLEST_SHARE
from kair_engine.results.evidence_kinds import CameLast
from kair_engine.results.triage import Finding, OpenItem, TriageResult
from kair_engine.trace.model import Job
from kair_engine.triage.history.analysis import triage_of_rows
from kair_engine.triage.history.rows import StepHistory
from kair_engine.triage.inspector.rows import InspectorLog
from kair_engine.triage.job_wide import steady_link_findings
from kair_engine.triage.open_items import LEAVES_OPEN
from kair_engine.triage.pricing import with_price
from kair_engine.triage.verdict import verdict
from kair_engine.whatif.prices import price

_MOSTLY: Final = 0.5
"""Of all waiting: for a rank for which as much is, others wait in the first place."""
_PARTS: Final = 100
"""Of the run, in which communicators are compared."""


def judge_inspector(log: InspectorLog, history: StepHistory, job: Job, gpu_cost: float | None = None) -> TriageResult:
    """Return who is late in the chosen steps of `history`, which communicators are slow, and what stays open."""
    found = triage_of_rows(history, job, gpu_cost)
    items = [*found.open, *_open(log, history, job, found)]
    if log.meetings.is_partial:
        of_ranks: tuple[Finding, ...] = ()
    else:
        of_ranks = tuple(_in_collectives(one, log, history) for one in found.findings)
    of_links = tuple(_priced(one, history, job, gpu_cost) for one in _slow_communicators(log, history, job))
    findings = tuple(sorted((*of_ranks, *of_links), key=lambda one: -one.time_lost_us_per_step))
    accused = {rank for one in findings for rank in one.ranks}
    return replace(
        found,
        verdict=verdict(findings, items, 0.0),
        findings=findings,
        ranking=tuple(replace(one, flagged=one.rank in accused) for one in found.ranking),
        open=tuple(items),
        step_time_us=log.busy_us if not log.is_measured and not findings else found.step_time_us,
        unseen=None if findings or items else found.unseen,
    )


def _in_collectives(finding: Finding, log: InspectorLog, history: StepHistory) -> Finding:
    """Return the finding with what collectives show of it: how often its ranks came last, and not what they did."""
    of, ranks = log.meetings, len(log.who.ranks)
    accused = np.isin(np.arange(ranks), np.searchsorted(np.array(log.who.ranks), finding.ranks))
    chosen = np.isin(log.window, history.steps)
    last = of.waited_us == 0  # whoever shares that place came in the same microsecond
    alone = np.bincount(of.collective, last, len(chosen)) == 1
    mine, theirs = np.zeros((2, len(chosen)), np.bool_)
    mine[of.collective[last & accused[of.rank]]] = True
    theirs[of.collective[accused[of.rank]]] = True
    mine &= alone & chosen
    waited = np.bincount(of.collective, of.waited_us, len(chosen))
    whole = max(float(waited[chosen].sum()), 1.0)
    came = CameLast(
        int(np.count_nonzero(mine)),
        int(np.count_nonzero(theirs & chosen)),
        float(waited[mine].sum()),
        float(waited[mine].sum()) / whole,
        ranks=finding.ranks,
    )
    return replace(finding, cause="unknown", evidence=(*finding.evidence, came) if mine.any() else finding.evidence)


def _waiting(log: InspectorLog, history: StepHistory, found: TriageResult) -> OpenItem | None:
    """Return what is waited, as a part of the collectives, where nothing says how long a step is: no test is sure."""
    if log.is_measured or found.findings or not len(history.steps):
        return None
    waited = float(history.us["waited"].mean())
    share = waited / max(log.busy_us, 1e-3)
    first = found.ranking[0]
    is_one = (first.wait_imposed_us or 0.0) >= _MOSTLY * waited * len(found.ranking)
    return OpenItem("waiting", (first.rank,) if is_one else (), (), waited, share) if share >= LEAVES_OPEN else None


def _open(log: InspectorLog, history: StepHistory, job: Job, found: TriageResult) -> list[OpenItem]:
    """Return what the logs cannot say: who is waited for where logs of ranks, or operations, are missing."""
    step_us = history.step_us
    waiting = _waiting(log, history, found)
    items = [] if waiting is None else [waiting]
    missing = job.missing_ranks
    if missing and log.missing_us >= SMALLEST_SHARE * step_us:
        share = log.missing_us / step_us
        items.append(OpenItem("unrecorded", missing, (), log.missing_us, share, cause="exposed_communication"))
    if log.meetings.is_partial and len(history.steps):
        waited = float(history.us["waited"].mean())
        items.append(OpenItem("unmatched", (), (), waited, max(waited / step_us, 1e-9)))
    return items


def _priced(finding: Finding, history: StepHistory, job: Job, gpu_cost: float | None) -> Finding:
    step_ns, lost_ns = history.step_us * 1e3, finding.time_lost_us_per_step * 1e3
    cost = price("", step_ns, max(step_ns - lost_ns, 1.0), devices=job.world_size, gpu_cost=gpu_cost)
    return with_price(finding, cost, "excess", ())


def _slow_communicators(log: InspectorLog, history: StepHistory, job: Job) -> list[Finding]:
    """Communicators whose transfers take longer than those of others with as many ranks, on as many hosts."""
    if not history.can_judge:
        return []
    steps = [dict[Link, OwnTime]() for _ in range(min(_PARTS, log.windows))]
    for members in _alike(log):
        times = np.stack([_per_step(log, at, history, len(steps)) for at in members])
        usual = np.median(times, axis=0)
        for place, at in enumerate(members):
            one = log.meetings.streams[at]
            ranks = tuple(Rank(log.who.ranks[place]) for place in one.ranks.tolist())
            link = Link(f"{one.communicator} ({one.name})", ranks)
            for part, of_part in enumerate(steps):
                own, expected = float(times[place, part]), float(usual[part])
                if own > 0 and expected > 0:
                    of_part[link] = OwnTime(own, expected, len(members) - 1, one.name, (members[0],))
    told = [of_part for of_part in steps if of_part]
    if not told:
        return []
    slow = slow_links(told, history.step_us * 1e3, LINK_SHARE * FALSE_ALARM_RATE, SMALLEST_SHARE)
    return [_shown(one, history) for one in steady_link_findings(job, slow, history.step_us * 1e3)]


def _shown(finding: Finding, history: StepHistory) -> Finding:
    """Return a slow communicator as these logs show it: it costs no more than others wait longer than its own ranks."""
    mine, waited = np.isin(history.ranks, finding.ranks), history.us["waited"].mean(axis=0)
    spared = float(np.median(waited[~mine]) - waited[mine].mean()) if mine.any() and not mine.all() else np.inf
    return replace(
        finding,
        steps=tuple(history.steps.tolist()),
        time_lost_us_per_step=max(min(finding.time_lost_us_per_step, spared), 0.0),
        evidence=tuple(one.changed(shown_by=None) for one in finding.evidence),
    )


def _alike(log: InspectorLog) -> list[list[int]]:
    """Streams, by their places, whose ranks make the same calls in communicators of one size."""
    of: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for at, one in enumerate(log.meetings.streams):
        kinds = log.meetings.kind[one.begin : one.end]
        calls = frozenset(np.unique(kinds).tolist())
        if len(one.ranks) == one.size < len(log.who.ranks):
            of[one.name, one.size, one.nodes, one.end - one.begin, calls].append(at)
    return [some for some in of.values() if len(some) >= FEWEST_SIBLINGS]


def _per_step(log: InspectorLog, at: int, history: StepHistory, parts: int) -> Floats:
    """Return what a stream's transfers take in a step, ns: the mean of each part of the chosen steps."""
    one = log.meetings.streams[at]
    mine = slice(one.begin, one.end)
    of_window = np.bincount(log.window[mine], log.meetings.of_collectives[mine], log.windows)[history.steps] * 1e3
    return np.array([part.mean() if len(part) else 0.0 for part in np.array_split(of_window, parts)])
