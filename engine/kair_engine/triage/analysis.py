"""The whole investigation: is there a straggler, which rank, which operator, why, what it costs, what to do."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest

import numpy as np

from kair_engine.arrays import Ints
from kair_engine.blame.analysis import Tally, blame_of, tally_detail, tally_step
from kair_engine.errors import InputError, UsageError
from kair_engine.localize.analysis import rank_scores, warnings_of
from kair_engine.localize.excess import JobExcess, JobRoles, StepExcess, of_job, step_excess
from kair_engine.localize.job_patterns import job_patterns
from kair_engine.localize.large_step_detail import excess_and_detail
from kair_engine.localize.localization import Localization, can_accuse, conclude, step_time_ns
from kair_engine.localize.rank_times import RankTimes, rank_times
from kair_engine.localize.unnamed_collectives import unnamed_collective_warnings, with_unnamed_collectives
from kair_engine.ranks import Position, Rank
from kair_engine.results.blame import BlameResult
from kair_engine.results.fix import Fix
from kair_engine.results.triage import Finding, RankedRank, TriageResult, Verdict
from kair_engine.results.whatif import HostStops
from kair_engine.timeline.batch_bytes import batch_bytes
from kair_engine.timeline.coverage import NOT_COMPARED
from kair_engine.timeline.processor_time import counted_times, told_wholly
from kair_engine.timeline.synchronisation import Synchronisation, synchronise
from kair_engine.trace.model import OF_RUNS, KairWarning, Trace
from kair_engine.trace.operations import Operations
from kair_engine.trace.requirements import require_steps
from kair_engine.trace.steps.large_steps import LargeStep, large_steps, of_steps
from kair_engine.trace.steps.loading import each_step
from kair_engine.trace.steps.parts import over_parts
from kair_engine.triage.absorbed import absorbed
from kair_engine.triage.devices.late_launches import late_launches
from kair_engine.triage.devices.tally import DeviceTally
from kair_engine.triage.devices.unknown_inside import GRAPHS_NOT_RECORDED, without_unknown_inside
from kair_engine.triage.dominant_step import verdict_beside_dominant_step, without_dominant_step
from kair_engine.triage.findings import KernelEvidence, rank_finding
from kair_engine.triage.hangs.analysis import hang
from kair_engine.triage.job_wide import job_wide_findings, link_findings, without_late_ends, without_shared_cores
from kair_engine.triage.one_rank import exposed, parts_of_step
from kair_engine.triage.pricing import Priced, priced, scenarios
from kair_engine.triage.ranks.cpu_limits import cpu_limits
from kair_engine.triage.ranks.kernel_signals import asleep_beyond_peers_ns, measured_signals
from kair_engine.triage.ranks.suspects import Suspect, suspects
from kair_engine.triage.replays import Replays, read_once
from kair_engine.triage.sampling import sample_of
from kair_engine.triage.shared_costs import SharedCosts
from kair_engine.triage.slow_network import slow_networks, without_slow_networks
from kair_engine.triage.unexplained import leaves_verdict_open, unexplained
from kair_engine.triage.vetting import Vetted, is_worth_telling, makes_late_us, vet
from kair_engine.triage.waiting import leads_by_waiting
from kair_engine.whatif.model import Baseline, Model
from kair_engine.whatif.prices import require_cost
from kair_engine.whatif.rank_sampling import as_replayed, share_replayed, units


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
    trace = read_once(trace)
    replays = Replays(trace)
    excess, tally, devices, together = _looked_at(trace, replays)
    if (rest := without_dominant_step(trace, excess)) is not None:
        others, giant = rest
        of_others = triage(others, gpu_cost=gpu_cost)
        verdict = verdict_beside_dominant_step(of_others.verdict, giant)
        return replace(of_others, verdict=verdict, warnings=(giant, *of_others.warnings))
    kernel = _kernel_evidence(trace, excess)
    found = conclude(excess, measured_signals(excess, kernel.processor, kernel.given, kernel.held))
    if (marked := with_unnamed_collectives(trace, found)) is not None:
        return triage(marked, gpu_cost=gpu_cost)
    blamed = blame_of(trace, tally)
    step_time = step_time_ns(trace, excess)
    asleep_ns = asleep_beyond_peers_ns(excess, kernel.processor, found.anomalies)
    networks = slow_networks(trace, excess, step_time, asleep_ns, kernel.processor)
    measured = replace(kernel, networks=tuple(networks))
    suspected = suspects(trace.job, found)
    accused = _costliest_first(suspected, found)
    replayed = _of_some_ranks(trace, together, accused, blamed) if large_steps(trace) else trace
    replays.choose(sample_of(replayed or trace, found.job, sorted({*accused})), replayed)
    about = _findings_of(trace, found, blamed, suspected, measured)

    def likely(model: Model, stops: HostStops | None, of_all: Sequence[Finding]) -> list[tuple[Fix, ...]]:
        return scenarios(model, about(stops, of_all), found)

    shared = SharedCosts(trace, replays, devices, step_time, likely, counted=measured.counted)
    parts = parts_of_step(trace)
    wide = _of_all(trace, found, shared, (*measured.networks, *exposed(trace, parts, step_time)), step_time)
    raised, untold = without_unknown_inside(
        about(shared.stops, wide), devices, step_time, waits_known=bool(blamed.collectives)
    )
    price = partial(priced, trace, replays, found=found, step_time_ns=step_time, gpu_cost=gpu_cost)
    costs = price(findings=raised)
    of_runs = (warning for warning in trace.job.warnings if warning.code in OF_RUNS)
    limits = (*warnings_of(found), *unnamed_collective_warnings(trace), *replays.limits(), *replays.inexact(), *of_runs)
    told = {rank for warning in limits if warning.code == "few_steps" for rank in warning.ranks}
    uncompared = {rank for warning in limits if warning.code in NOT_COMPARED for rank in warning.ranks}
    vetted = vet(
        found.job,
        blamed,
        costs.findings,
        costs.hidden_us,
        undecided=told,
        uncompared=uncompared,
        saving_us=None if devices.leads is None else partial(_saving_us, replays),
    )
    vetted = _of_one_run(vetted, limits)
    if len(vetted.findings) < len(raised):
        # What the others cost together, and hide of each other, is without those that were dropped.
        costs = price(findings=[one for one in raised if any(_same(one, other) for other in vetted.findings)])
        vetted = _priced_again(vetted, costs, found.job)
    # Whoever is named with what it costs, though it stays open, explains the rest; so does what was not recorded.
    is_named = told or untold or vetted.contradicted
    uneven = () if is_named else tuple(unexplained(replays, vetted.findings, costs.fixes, step_time / 1e3))
    warnings = tuple(dict.fromkeys((*untold, *limits, *blamed.warnings, *vetted.warnings, *uneven)))
    return TriageResult(
        verdict=_verdict(found, vetted, (*untold, *limits), is_open=leaves_verdict_open(uneven)),
        findings=vetted.findings,
        ranking=_ranking(trace, found, blamed, vetted.findings),
        step_time_us=step_time / 1e3,
        waiting_us_per_step=blamed.waiting_us / len(trace.steps),
        unattributed_us_per_step=blamed.unattributed_us / len(trace.steps),
        steps=trace.steps,
        warnings=warnings,
        together=costs.together,
        parts=parts,
        absorbed=tuple(absorbed(found.job, devices.leads, vetted.absorbed)),
    )


def _of_all(
    trace: Trace, found: Localization, shared: SharedCosts, more: Sequence[Finding], step_time_ns: float
) -> tuple[Finding, ...]:
    """What nobody is to blame for; of `more` what accuses no rank, and is told by nothing else."""
    patterns = tuple(job_patterns(found, to_be_priced=True))
    wide = (*job_wide_findings(trace, patterns, step_time_ns), *shared.findings(found.job))
    known = {finding.cause for finding in wide}
    return *wide, *(one for one in more if not one.ranks and one.cause not in known)


def _saving_us(replays: Replays, rank: Rank) -> float:
    """What a step saves if a rank were like its peers in all that it does; infinite where no replay tells."""
    try:
        recorded, without = replays.model().replay([Baseline.RECORDED, (Fix(ranks=(rank,)),)]).times
    except (InputError, UsageError):
        return math.inf
    return float((recorded - without).mean()) / 1e3


def _kernel_evidence(trace: Trace, job: JobExcess) -> KernelEvidence:
    counted, steps = counted_times(trace), np.array([step.step for step in job.steps])
    given = batch_bytes(trace, steps, job.ranks)
    return KernelEvidence(told_wholly(counted), counted, cpu_limits(trace.job, job, counted), given)


def _findings_of(
    trace: Trace, found: Localization, blamed: BlameResult, suspected: Sequence[Suspect], measured: KernelEvidence
) -> Callable[[HostStops | None, Sequence[Finding]], tuple[Finding, ...]]:
    """What is told of the suspects and of links, once it is known how threads stop and what is told of all ranks."""
    of_links = link_findings(trace, found, step_time_ns(trace, found.job))
    of_hosts = [one for one in measured.networks if one.ranks]
    links = (*of_hosts, *without_slow_networks(of_links, of_hosts))
    late = [(suspect, late_launches(trace, found.job, suspect.largest)) for suspect in suspected]
    finding = partial(rank_finding, trace, found, blamed, measured=measured)

    def about(stops: HostStops | None, of_all: Sequence[Finding]) -> tuple[Finding, ...]:
        of_ranks = [finding(suspect, stops=stops, late=known) for suspect, known in late]
        of_links = without_late_ends(links, of_ranks)
        return *without_shared_cores(trace.job, of_ranks, {one.cause for one in of_all}), *of_links, *of_all

    return about


def _costliest_first(suspected: Sequence[Suspect], found: Localization) -> list[int]:
    """The suspects' places: one of each, then another, since of many there may not be room for all in a replay."""

    def places(one: Suspect) -> list[Position]:
        excess = found.mean_ns[one.largest.class_index]
        return sorted(one.positions, key=lambda place: -excess[place])

    turns = zip_longest(*map(places, sorted(suspected, key=lambda one: -one.largest.excess_ns)))
    return [place for turn in turns for place in turn if place is not None]


def _of_some_ranks(trace: Trace, unit: Ints | None, accused: Sequence[int], blamed: BlameResult) -> Trace | None:
    """What is replayed in place of steps that are too large for it; None where ranks cannot be told apart."""
    if unit is None:
        return None
    imposed = {row.rank: row.blamed_us for row in blamed.by_rank}
    awaited = np.array([imposed.get(rank, 0.0) for rank in trace.job.ranks])
    return as_replayed(trace, unit, accused, awaited)


def _looked_at(trace: Trace, replays: Replays) -> tuple[JobExcess, Tally, DeviceTally, Ints | None]:
    """What stages 1 and 3 need of every step, and what devices waited for: all are read once.

    Of large steps also who is replayed together.
    """
    # What stays in memory is read at one go: steps that share their codes are replayed together.
    first = next(each_step(trace), None) if trace.memory is not None else None
    of, tally, steps = JobRoles.of(trace, first), Tally.of(trace, keep_paths=False), list[StepExcess]()
    devices, together = DeviceTally.of(trace), None
    look = partial(_look_at, of=of, empty=tally.empty(), devices=devices.empty())
    if trace.workers is None:
        look = partial(look, keep=replays.add)
    for excesses, part, of_devices, units_of_part in over_parts(trace, look):
        steps += excesses
        tally.add(part)
        devices.add(of_devices)
        together = units_of_part if together is None else together
    return of_job(trace, of, steps), tally, devices, together


def _look_at(
    part: Trace,
    *,
    of: JobRoles,
    empty: Tally,
    devices: DeviceTally,
    keep: Callable[[Synchronisation], None] | None = None,
) -> tuple[list[StepExcess], Tally, DeviceTally, Ints | None]:
    together: list[Ints | None] = []
    tally, devices = empty.empty(), devices.empty()

    def look(ops: Operations) -> StepExcess:
        sync = synchronise(ops)
        if keep is not None:
            keep(sync)
        devices.look(ops)
        tally_step(tally, sync, of.role_in(ops))
        return step_excess(rank_times(ops), sync, of)

    def of_ranks(ops: Operations) -> RankTimes:
        devices.look(ops)
        return rank_times(ops)

    def look_large(step: LargeStep, times: list[RankTimes]) -> StepExcess:
        excess, seen = excess_and_detail(step, times, of)
        tally_detail(tally, seen, of)
        together.append(units(seen.sync, of.ranks, share_replayed(part)))
        return excess

    excesses = list(of_steps(part, look, of_ranks, look_large))
    return excesses, tally, devices, next(iter(together), None)


def _priced_again(vetted: Vetted, costs: Priced, job: JobExcess) -> Vetted:
    """The findings at what they cost without those that were dropped, which may be too little."""
    findings = (
        next((one for one in vetted.findings if one.priced_by == "excess" and _same(one, again)), again)
        for again, hidden in zip(costs.findings, costs.hidden_us, strict=True)
        if not again.ranks or is_worth_telling(again, hidden, job)
    )
    return replace(vetted, findings=tuple(findings))


def _of_one_run(vetted: Vetted, limits: Sequence[KairWarning]) -> Vetted:
    """No findings where ranks are of several runs: nothing that these differ by is anybody's fault."""
    several = any(warning.code == "several_runs" for warning in limits)
    return replace(vetted, findings=(), contradicted=True) if several else vetted


def _verdict(found: Localization, vetted: Vetted, limits: Sequence[KairWarning], *, is_open: bool) -> Verdict:
    """`is_open`: whether a replay finds so much that nothing explains."""
    # What all ranks share makes each of them late now and then.
    shared_ns = 1e3 * makes_late_us(vetted.findings, found.job)
    undecided = any(one.excess_ns > shared_ns for one in found.undecided) or any(map(_leaves_open, limits))
    if vetted.contradicted:
        return "inconclusive"
    if any(finding.pattern != "job_wide" for finding in vetted.findings):
        return "straggler"
    if undecided:
        return "inconclusive"
    if vetted.findings:
        return "job_wide"
    return "no_straggler" if can_accuse(found.job) and not is_open else "inconclusive"


def _leaves_open(warning: KairWarning) -> bool:
    return warning.code == GRAPHS_NOT_RECORDED or bool(warning.ranks and warning.code in NOT_COMPARED | OF_RUNS)


def _same(one: Finding, other: Finding) -> bool:
    return (one.cause, one.ranks, one.seen_on, one.pattern) == (other.cause, other.ranks, other.seen_on, other.pattern)


def _ranking(
    trace: Trace, found: Localization, blamed: BlameResult, findings: Sequence[Finding]
) -> tuple[RankedRank, ...]:
    """In the order of stage 1; flagged is who is accused after all checks.

    In too few steps for any test whoever is waited for longest comes first, of ranks that run one program: how much
    longer a rank takes by itself says less of one step than who came last.
    """
    steps, accused = len(trace.steps), {rank for finding in findings for rank in finding.ranks}
    imposed = {rank.rank: rank.blamed_us / steps for rank in blamed.by_rank}
    scores = rank_scores(trace.job, found)
    if leads_by_waiting(found.job):
        scores = tuple(sorted(scores, key=lambda score: -imposed.get(score.rank, 0.0)))
    return tuple(
        RankedRank(
            rank=score.rank,
            host=score.host,
            role=score.role,
            score=score.score,
            flagged=score.rank in accused,
            self_time_excess_us=sum(score.excess_us.values()),
            wait_imposed_us=imposed.get(score.rank, 0.0),
        )
        for score in scores
    )
