"""What triage's findings cost: the recorded steps replayed without each of them [W §3]."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kair_engine.causes import CAUSES
from kair_engine.errors import InputError, UsageError
from kair_engine.results.evidence import Evidence
from kair_engine.results.localize import JobPattern
from kair_engine.results.triage import Finding, PricedBy
from kair_engine.results.whatif import FixPrice, Remedy
from kair_engine.runs import runs
from kair_engine.trace.model import Trace
from kair_engine.trace.step_batches import operations_of_steps
from kair_engine.triage.evidence import estimate_evidence, price_evidence
from kair_engine.whatif.analysis import price_pipeline
from kair_engine.whatif.fitting import must_fit
from kair_engine.whatif.fixes import Fix, parse_fix, parse_scale
from kair_engine.whatif.operators.prices import price_steps
from kair_engine.whatif.pipeline.rows import is_pipeline
from kair_engine.whatif.prices import price

MOST_FINDINGS = 16
"""The costliest by their excess are replayed: each takes a replay of the whole recording."""
MOST_OPERATIONS = 4_000_000
"""In one step: a replay takes 500 bytes for each, twice as much as all else."""
_PIPELINE_KINDS = ("compute", "communication", "gc")
"""What a recording of operation types can tell apart."""

Scenario = tuple[Fix, ...]
"""Fixes that are made together."""
_COLLECTIONS: Scenario = (parse_fix("kind=gc"),)


@dataclass(frozen=True)
class Priced:
    """Findings with their prices, the costliest first."""

    findings: tuple[Finding, ...]
    together: FixPrice | None
    """All that were replayed, fixed at once; None for fewer than two."""


@dataclass(frozen=True)
class _Prices:
    of: Mapping[int, tuple[FixPrice, tuple[str, ...]]]
    """By the finding's place: its price, and the options of `kair whatif` that show it."""
    together: FixPrice | None = None


def priced(
    trace: Trace,
    findings: Sequence[Finding],
    patterns: Sequence[JobPattern],
    *,
    step_time_ns: float,
    gpu_cost: float | None = None,
) -> Priced:
    """Replaces the findings' estimates by what the job saves, replayed without each.

    Of a finding about ranks, their part of its cause is brought down to their peers' ideal; uneven stages and batches
    are evened out. What no replay can tell keeps its estimate (Finding.priced_by), out of a step of `step_time_ns`.
    """
    ordered = sorted(findings, key=_costliest)
    replayed = ordered[:MOST_FINDINGS]
    look = _of_pipeline if is_pipeline(trace) else _of_execution
    prices = look(trace, replayed, patterns, gpu_cost) if replayed else _Prices({})
    done = []
    for at, finding in enumerate(ordered):
        if at in prices.of:
            cost, options = prices.of[at]
            shown = price_evidence(finding, cost, options, prices.together)
            done.append(replace(_with(finding, cost, "replay", shown), fix=options))
        else:
            after = step_time_ns - finding.time_lost_us_per_step * 1e3
            cost = price("", step_time_ns, after, devices=trace.job.world_size, gpu_cost=gpu_cost)
            done.append(_with(finding, cost, "excess", estimate_evidence(finding, cost)))
    return Priced(tuple(sorted(done, key=_costliest)), prices.together)


def _costliest(finding: Finding) -> tuple[float, tuple[int, ...]]:
    return -finding.time_lost_us_per_step, finding.ranks


def _of_execution(
    trace: Trace, findings: Sequence[Finding], patterns: Sequence[JobPattern], gpu_cost: float | None
) -> _Prices:
    scenarios = {
        at: one
        for at, finding in enumerate(findings)
        if (one := _scenario(finding, patterns)) and (one != _COLLECTIONS or _fits(trace, *one))
    }
    if not scenarios or max(operations_of_steps(trace).values()) > MOST_OPERATIONS:
        return _Prices({})
    asked = list(scenarios.values())
    if len(asked) > 1:
        asked.append(tuple(fix for scenario in asked for fix in scenario))
    steps = price_steps(trace, asked)
    known = ~np.isnan(steps.replayed_ns)
    if not known.any():
        return _Prices({})
    before = float(steps.replayed_ns[known].mean())
    found = [
        price(
            " ".join(_options(one)), before, float(times[known].mean()), devices=trace.job.world_size, gpu_cost=gpu_cost
        )
        for one, times in zip(asked, steps.scenario_ns, strict=True)
    ]
    of = {at: (cost, _options(one)) for (at, one), cost in zip(scenarios.items(), found, strict=False)}
    return _Prices(of, found[-1] if len(scenarios) > 1 else None)


def _of_pipeline(
    trace: Trace, findings: Sequence[Finding], patterns: Sequence[JobPattern], gpu_cost: float | None
) -> _Prices:
    scenarios = {
        at: one
        for at, finding in enumerate(findings)
        if CAUSES[finding.cause].remedy is None and (one := _scenario(finding, patterns))
        if set(one[0].kinds) <= set(_PIPELINE_KINDS)
    }
    try:
        fixes, remedies = price_pipeline(trace, [one[0] for one in scenarios.values()], gpu_cost)
    except (InputError, UsageError):
        return _Prices({})
    of = {at: (cost, _options(one)) for (at, one), cost in zip(scenarios.items(), fixes, strict=False)}
    by_name: dict[str, Remedy] = {remedy.remedy: remedy for remedy in remedies}
    for at, finding in enumerate(findings):
        if (remedy := by_name.get(CAUSES[finding.cause].remedy or "")) is not None:
            after, before = remedy.step_time_us * 1e3, (remedy.step_time_us + remedy.saved_us) * 1e3
            cost = price(remedy.text, before, after, devices=trace.job.world_size, gpu_cost=gpu_cost)
            of[at] = cost, ()
    return _Prices(of, fixes[-1] if len(fixes) > 1 else None)


def _scenario(finding: Finding, patterns: Sequence[JobPattern]) -> Scenario:
    """What undoes the finding; empty where nothing that a replay can change does."""
    if finding.cause == "stage_imbalance":
        (pattern,) = [one for one in patterns if one.cause == finding.cause]
        mean = sum(pattern.figures.values()) / len(pattern.figures)
        numbers = {role.removeprefix("stage "): mean / own for role, own in pattern.figures.items() if own > 0}
        return tuple(parse_scale(f"stage={number}+kind=compute:{factor:.4f}") for number, factor in numbers.items())
    if finding.pattern == "job_wide":
        # Of all ranks a kind of delay cannot be told from the ordinary noise in it, except garbage collection's.
        kind = CAUSES[finding.cause].job_wide_fix_kind
        return () if kind is None else (parse_fix(f"kind={kind}"),)
    kind = CAUSES[finding.cause].fix_kind
    return () if kind is None else (parse_fix(f"rank={_spans(finding.ranks)}+kind={kind}"),)


def _fits(trace: Trace, fix: Fix) -> bool:
    """Pauses told by their pattern alone are not in the recording as collections."""
    try:
        must_fit(trace, fix)
    except UsageError:
        return False
    return True


def _options(scenario: Scenario) -> tuple[str, ...]:
    """As one types them."""
    return tuple(f"--{'fix' if fix.scale is None else 'scale'} {fix.text}" for fix in scenario)


def _spans(ranks: Sequence[int]) -> str:
    """`0-3,7`."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs(ranks))


def _with(finding: Finding, cost: FixPrice, priced_by: PricedBy, shown: Sequence[Evidence]) -> Finding:
    """No finding costs less than nothing: what a replay makes slower by a hair is worth 0."""
    worth = cost.saved_us > 0
    return replace(
        finding,
        time_lost_us_per_step=cost.saved_us if worth else 0.0,
        slowdown=1 + cost.throughput_gain if worth else 1.0,
        throughput_gain=cost.throughput_gain if worth else 0.0,
        gpu_hours_per_day=cost.gpu_hours_per_day if worth else 0.0,
        cost_per_day=None if cost.cost_per_day is None else cost.cost_per_day if worth else 0.0,
        priced_by=priced_by,
        evidence=(*finding.evidence, *shown),
    )
