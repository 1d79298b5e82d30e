"""The whole investigation: is there a straggler, which rank, which operator, why, what it costs, what to do.

trace -> step tables -> signals -> detections    look.py, localize/detect.py
detections -> findings                           raised.py
findings -> prices                               pricing.py
prices -> those that stand                       gate.py
those that stand -> verdict                      verdict.py
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from kair_engine.blame.analysis import blame_of
from kair_engine.errors import InputError, UsageError
from kair_engine.frozen import dataclass
from kair_engine.localize.analysis import warnings_of
from kair_engine.localize.excess import JobExcess
from kair_engine.localize.unnamed_collectives import unnamed_collective_warnings
from kair_engine.ranks import Rank
from kair_engine.results.blame import BlameResult
from kair_engine.results.step_bar import StepBar
from kair_engine.results.triage import Finding, TriageResult
from kair_engine.results.whatif import Fix
from kair_engine.step_bar import bar_of_job, bubble_of
from kair_engine.timeline.coverage import NOT_COMPARED
from kair_engine.timeline.roles import roles
from kair_engine.timeline.unrecorded import unrecorded
from kair_engine.trace.model import OF_RUNS, KairWarning, Trace, require_steps
from kair_engine.triage.gate import Gated, absorbed, gate, is_worth_telling
from kair_engine.triage.hangs.analysis import hang
from kair_engine.triage.job_wide import longer_steps
from kair_engine.triage.look import Looked, look
from kair_engine.triage.open_items import Budget, smallest_share, without_open, without_unrecorded
from kair_engine.triage.pricing import Priced, priced
from kair_engine.triage.raised import Raised, raise_findings
from kair_engine.triage.replays import Replays
from kair_engine.triage.unexplained import unexplained
from kair_engine.triage.verdict import ranking, verdict
from kair_engine.whatif.model import Baseline
from kair_engine.whatif.prices import require_cost


def triage(trace: Trace, *, gpu_cost: float | None = None) -> TriageResult:
    """Runs the three stages and puts what they found together into one verdict; of calls without times see hangs/.

    A finding needs a test of stage 1 (localize/detect.py): blame alone accuses nobody, since in every healthy job
    somebody arrives last. Findings are priced by a replay of the job without them; `gpu_cost` is what a GPU hour costs.
    Raises UsageError where no step can be analysed, or that is no cost.
    """
    if trace.job.progress:
        return hang(trace)
    require_steps(trace)
    require_cost(gpu_cost)
    seen = look(trace)
    blamed = blame_of(seen.trace, seen.tables.tally)
    raised = raise_findings(seen, blamed)
    stands = _priced_and_gated(seen, blamed, raised, gpu_cost)
    left = _left_unexplained(seen, raised, stands)
    longer = tuple(longer_steps(seen.found, stands.gated.findings))
    missing = unrecorded(seen.trace)
    steps, gated = seen.trace.steps, without_unrecorded(stands.gated, missing)
    budget = Budget(
        seen.trace,
        seen.found.job,
        seen.found.events,
        seen.found.shared,
        seen.tables.parts,
        missing,
        gated.findings != stands.gated.findings,
        frozenset(rank for one in seen.explained for rank in one.ranks),
        blamed.by_rank,
    )
    still_open = budget.items(gated.findings, (*raised.untold, *stands.limits, *longer, *left))
    warnings = (
        *seen.set_aside,
        *seen.explained,
        *raised.untold,
        *stands.limits,
        *blamed.warnings,
        *without_open(gated.warnings, still_open),
        *longer,
        *left,
    )
    return TriageResult(
        verdict=verdict(seen.found, gated, (*raised.untold, *stands.limits, *longer), still_open, seen.set_aside),
        findings=gated.findings,
        ranking=ranking(seen.trace, seen.found, blamed, gated.findings),
        step_time_us=seen.step_time_ns / 1e3,
        waiting_us_per_step=blamed.waiting_us / len(steps),
        unattributed_us_per_step=blamed.unattributed_us / len(steps),
        steps=steps,
        warnings=tuple(dict.fromkeys(warnings)),
        together=stands.costs.together,
        accused_together=stands.costs.accused_together,
        parts=raised.parts,
        bar=_bar(seen),
        open=still_open,
        smallest_share=smallest_share(still_open),
        absorbed=tuple(absorbed(seen.found.job, seen.tables.devices.leads, gated.absorbed)),
    )


@dataclass(frozen=True)
class _Standing:
    """The findings that stand, what they cost together, and what limits what can be said."""

    gated: Gated
    costs: Priced
    limits: tuple[KairWarning, ...]

    @property
    def undecided(self) -> set[Rank]:
        """Who was slow in all of too few steps, and is told so."""
        return {rank for warning in self.limits if warning.code == "few_steps" for rank in warning.ranks}


def _priced_and_gated(seen: Looked, blamed: BlameResult, raised: Raised, gpu_cost: float | None) -> _Standing:
    """The findings at what they cost, if they pass the gate; what is left of several is priced again, by itself."""
    found, replays = seen.found, seen.replays
    price = partial(priced, seen.trace, replays, found=found, step_time_ns=seen.step_time_ns, gpu_cost=gpu_cost)
    costs = price(findings=raised.findings)
    of_runs = (warning for warning in seen.trace.job.warnings if warning.code in OF_RUNS)
    of_names = unnamed_collective_warnings(seen.trace)
    limits = (*warnings_of(found), *of_names, *replays.limits(), *replays.inexact(), *of_runs)
    stands = _Standing(Gated((), (), contradicted=True), costs, limits)
    gated = gate(
        found.job,
        blamed,
        costs.findings,
        costs.hidden_us,
        undecided=stands.undecided.union(*(one.ranks for one in seen.explained)),
        uncompared={rank for warning in limits if warning.code in NOT_COMPARED for rank in warning.ranks},
        saving_us=None if seen.tables.devices.leads is None else partial(_saving_us, replays),
    )
    gated = _of_one_run(gated, limits)
    if len(gated.findings) < len(raised.findings):
        # What the others cost together, and hide of each other, is without those that were dropped.
        costs = price(findings=[one for one in raised.findings if any(_same(one, other) for other in gated.findings)])
        gated = _priced_again(gated, costs, found.job)
    return replace(stands, gated=gated, costs=costs)


def _left_unexplained(seen: Looked, raised: Raised, stands: _Standing) -> tuple[KairWarning, ...]:
    """What a replay finds that no finding explains.

    Whoever is named with what it costs, though it stays open, explains the rest; so do what was not recorded,
    and batches that the job made uneven.
    """
    if seen.explained or stands.undecided or raised.untold or stands.gated.contradicted:
        return ()
    return tuple(unexplained(seen.replays, stands.gated.findings, stands.costs.fixes, seen.step_time_ns / 1e3))


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


def _saving_us(replays: Replays, rank: Rank) -> float:
    """What a step saves if a rank were like its peers in all that it does; infinite where no replay tells."""
    try:
        recorded, without = replays.model().replay([Baseline.RECORDED, (Fix(ranks=(rank,)),)]).times
    except (InputError, UsageError):
        return math.inf
    return float((recorded - without).mean()) / 1e3


def _priced_again(gated: Gated, costs: Priced, job: JobExcess) -> Gated:
    """The findings at what they cost without those that were dropped, which may be too little."""
    findings = (
        next((one for one in gated.findings if one.priced_by == "excess" and _same(one, again)), again)
        for again, hidden in zip(costs.findings, costs.hidden_us, strict=True)
        if not again.ranks or is_worth_telling(again, hidden, job)
    )
    return replace(gated, findings=tuple(findings))


def _of_one_run(gated: Gated, limits: Sequence[KairWarning]) -> Gated:
    """No findings where ranks are of several runs: nothing that these differ by is anybody's fault."""
    several = any(warning.code == "several_runs" for warning in limits)
    return replace(gated, findings=(), contradicted=True) if several else gated


def _same(one: Finding, other: Finding) -> bool:
    return (one.cause, one.ranks, one.seen_on, one.pattern) == (other.cause, other.ranks, other.seen_on, other.pattern)
