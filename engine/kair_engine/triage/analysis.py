"""The whole investigation: is there a straggler, which rank, which operator, why, what it costs, what to do.

trace -> step tables -> signals -> detections    look.py, localize/detect.py
detections -> findings                           raised.py
findings -> prices                               pricing.py
prices -> those that stand                       gate.py
those that stand -> verdict                      verdict.py
"""

from contextlib import suppress
from dataclasses import replace
from functools import partial

from kair_engine.blame.analysis import blame_of
from kair_engine.errors import InputError, UsageError
from kair_engine.frozen import dataclass
from kair_engine.localize.analysis import warnings_of
from kair_engine.localize.excess import JobExcess
from kair_engine.localize.unnamed_collectives import unnamed_collective_warnings
from kair_engine.results.blame import BlameResult
from kair_engine.results.step_bar import StepBar
from kair_engine.results.triage import Finding, TriageResult
from kair_engine.step_bar import bar_of_job, bubble_of
from kair_engine.timeline.coverage import NOT_COMPARED
from kair_engine.timeline.roles import roles
from kair_engine.timeline.unrecorded import unrecorded
from kair_engine.trace.model import OF_RUNS, KairWarning, Trace, require_steps
from kair_engine.triage.gate import Gated, absorbed, gate, is_worth_telling
from kair_engine.triage.hangs.sayings import verdict_on_calls
from kair_engine.triage.look import Looked, look
from kair_engine.triage.open_items import Budget, explains_the_rest, longer_steps, smallest_share, without_unrecorded
from kair_engine.triage.pricing import Priced, priced
from kair_engine.triage.raised import Raised, raise_findings
from kair_engine.triage.unexplained import unexplained
from kair_engine.triage.verdict import not_contradicting, ranking, verdict, with_verdict
from kair_engine.whatif.prices import require_cost


def triage(trace: Trace, *, gpu_cost: float | None = None) -> TriageResult:
    """Run the three stages and put what they found together into one verdict; of calls without times see hangs/.

    A finding needs a test of stage 1 (localize/detect.py): blame alone accuses nobody, since in every healthy job
    somebody arrives last. Findings are priced by a replay of the job without them; `gpu_cost` is what a GPU hour costs.
    Raises UsageError where no step can be analysed, or that is no cost.
    """
    return verdict_on_calls(trace) if trace.job.progress else investigated(trace, gpu_cost).result


@dataclass(frozen=True)
class Investigated:
    """A verdict with what it was worked out from."""

    result: TriageResult
    seen: Looked
    shared_us: float
    """What all ranks lose together in a step, for sure."""


def investigated(trace: Trace, gpu_cost: float | None = None) -> Investigated:
    """Judge a recording that has times of steps. Raises UsageError where no step can be analysed, or for the cost."""
    require_steps(trace)
    require_cost(gpu_cost)
    seen = look(trace)
    blamed = blame_of(seen.trace, seen.tables.tally)
    raised = raise_findings(seen, blamed)
    stands = _priced_and_gated(seen, blamed, raised, gpu_cost)
    missing = unrecorded(seen.trace)
    steps, gated = seen.trace.steps, without_unrecorded(stands.gated, missing)
    budget = Budget(seen, blamed, gated, missing, gated.findings != stands.gated.findings)
    limits = (*raised.warnings, *stands.limits)
    still_open = budget.items(limits, longer_steps(seen.found, gated.findings))
    if not seen.explained and not any(map(explains_the_rest, still_open)):
        step_us = seen.step_time_ns / 1e3
        known_us = seen.found.varies_ns / 1e3 + sum(one.us_per_step for one in still_open if one.ranks)
        more = unexplained(seen.replays, gated.findings, stands.costs.fixes, step_us, known_us)
        still_open = tuple(sorted((*still_open, *more), key=lambda one: -one.share_of_step))
    warnings = (*seen.set_aside, *seen.explained, *limits, *blamed.warnings, *gated.warnings)
    decided = verdict(gated.findings, still_open, budget.shared_us)
    result = TriageResult(
        verdict=decided,
        findings=gated.findings,
        ranking=ranking(seen.trace, seen.found, blamed, gated.findings),
        step_time_us=seen.step_time_ns / 1e3,
        waiting_us_per_step=blamed.waiting_us / len(steps),
        unattributed_us_per_step=blamed.unattributed_us / len(steps),
        steps=steps,
        warnings=not_contradicting(dict.fromkeys(warnings), gated.findings),
        together=stands.costs.together,
        accused_together=stands.costs.accused_together,
        parts=raised.parts,
        bar=with_verdict(_bar(seen), decided),
        open=still_open,
        smallest_share=smallest_share(still_open),
        absorbed=tuple(absorbed(seen.found.job, seen.tables.parts.leads, gated.absorbed)),
    )
    return Investigated(result, seen, budget.shared_us)


@dataclass(frozen=True)
class _Standing:
    """The findings that stand, what they cost together, and what limits what can be said."""

    gated: Gated
    costs: Priced
    limits: tuple[KairWarning, ...]


def _priced_and_gated(seen: Looked, blamed: BlameResult, raised: Raised, gpu_cost: float | None) -> _Standing:
    """Return the findings at what they cost, if they pass the gate.

    What is left of several is priced again, by itself.
    """
    found, replays = seen.found, seen.replays
    price = partial(priced, seen.trace, replays, found=found, step_time_ns=seen.step_time_ns, gpu_cost=gpu_cost)
    costs = price(findings=raised.findings)
    of_runs = (warning for warning in seen.trace.job.warnings if warning.code in OF_RUNS)
    of_names = unnamed_collective_warnings(seen.trace)
    limits = (*warnings_of(found), *of_names, *replays.limits(), *replays.inexact(), *of_runs)
    gated = gate(
        found.job,
        blamed,
        costs.findings,
        costs.hidden_us,
        uncompared={rank for warning in limits if warning.code in NOT_COMPARED for rank in warning.ranks},
        runs_ahead=seen.tables.parts.leads is not None,
    )
    if any(warning.code == "several_runs" for warning in limits):
        gated = Gated()  # nothing that ranks of several runs differ by is anybody's fault
    if len(gated.findings) < len(raised.findings):
        # What the others cost together, and hide of each other, is without those that were dropped.
        costs = price(findings=[one for one in raised.findings if any(_same(one, other) for other in gated.findings)])
        gated = _priced_again(gated, costs, found.job)
    return _Standing(gated, costs, limits)


def _bar(seen: Looked) -> StepBar | None:
    """Where the steps go; what ranks wait for others divided by the replay of the ideal job."""
    role_of = roles(seen.trace)
    one_program = len(set(role_of.values())) == 1
    model = None
    if not one_program:
        with suppress(InputError, UsageError):
            model = seen.replays.model()
    role = [role_of[rank].name for rank in seen.trace.job.ranks]
    return bar_of_job(seen.tables.parts, role, bubble_of(model, one_program=one_program))


def _priced_again(gated: Gated, costs: Priced, job: JobExcess) -> Gated:
    """Return the findings at what they cost without those that were dropped, which may be too little."""
    findings = (
        next((one for one in gated.findings if one.priced_by == "excess" and _same(one, again)), again)
        for again, hidden in zip(costs.findings, costs.hidden_us, strict=True)
        if not again.ranks or is_worth_telling(again, hidden, job)
    )
    return replace(gated, findings=tuple(findings))


def _same(one: Finding, other: Finding) -> bool:
    return (one.cause, one.ranks, one.seen_on, one.pattern) == (other.cause, other.ranks, other.seen_on, other.pattern)
