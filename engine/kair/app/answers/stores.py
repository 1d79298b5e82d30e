"""Answers about the store, or about two jobs."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from kair.app.question import Writes
from kair.app.stores import NOTHING_PRICED, OpenStore, Priced
from kair_engine.errors import InputError
from kair_engine.results.compare import BaselineResult, CompareResult
from kair_engine.results.ledger import LedgerResult
from kair_engine.results.money import currency_of
from kair_engine.results.store import FleetJob, FleetResult, JobsResult, ListedJob, StragglerCost

if TYPE_CHECKING:
    from kair_engine.trace.model import Trace


def compare(given: OpenStore, *, base: str, new: str, step: str = "all", base_step: str = "all") -> CompareResult:
    """Return what changed between two runs, with the warnings of both recordings.

    Raises InputError where one is no job, UsageError for its steps.
    """
    from kair.app.jobs import blaming_files
    from kair_engine.comparison.analysis import compare as find_changes

    traces = _opened(given, base, base_step), _opened(given, new, step)
    with blaming_files(*traces):
        found = find_changes(*traces)
    names = found.base.name, found.new.name
    of_recordings = (
        msgspec.structs.replace(warning, run=name)
        for name, trace in zip(names, traces, strict=True)
        for warning in trace.job.warnings
    )
    return replace(found, warnings=(*of_recordings, *found.warnings))


def _opened(given: OpenStore, job: str, step: str) -> "Trace":
    from kair.app.jobs import locate, open_source
    from kair.app.step_choice import parse_steps
    from kair.app.step_history import require_sampled

    chosen = parse_steps(step)
    trace = open_source(locate(job, given.root), progress=given.progress)
    require_sampled(trace, "kair compare")
    steps = chosen.among(trace.job.steps)
    return trace if steps is None else trace.select(steps)


def ledger(given: OpenStore, *, job: str | None = None) -> tuple[LedgerResult, Writes]:
    """Return what came of each prediction, and what writes that. Raises InputError where the job has no ledger."""
    from kair.app.ledger import looked_up
    from kair_engine.ledger.rap_sheet import records_of
    from kair_engine.ledger.summary import by_cause, summary_of

    found, writes = looked_up(given.root)
    jobs = {entry.job for entry in found.entries} | {run.job for run in found.runs}
    if job is not None and job not in jobs:
        raise InputError(f"nothing was predicted of a job {job}", f"kair triage {job} predicts")
    entries = [entry for entry in found.entries if job is None or entry.job == job]
    result = LedgerResult(
        store=given.address,
        summary=summary_of(entries),
        causes=by_cause(entries),
        entries=tuple(sorted(entries, key=lambda entry: entry.at, reverse=True)),
        records=records_of(found.runs),
        warnings=found.warnings,
    )
    return result, lambda _: writes()


def jobs(given: OpenStore, *, priced: Priced = NOTHING_PRICED, gpu_cost: float | None = None) -> JobsResult:
    """Return the store's jobs, with what stragglers cost those of which it is known, or was just `priced`."""
    from kair_engine.store.remote import place_of

    current = given.store.current()
    found, damaged = priced.listing or given.listing()
    listed = tuple(
        ListedJob(
            name=job.name,
            in_use=job.name == current,
            imported_at=job.imported_at,
            source=job.source,
            world_size=job.world_size,
            ranks=job.ranks,
            steps=job.steps,
            operations=job.operations,
            path=place_of(given.root, job.name),
            last_verdict=job.last.verdict if job.last else None,
            last_summary=job.last.summary if job.last else None,
            triaged_at=job.last.triaged_at if job.last else None,
            **_cost(priced.costs.get(job.name, job.cost), gpu_cost),
        )
        for job in found
    )
    return JobsResult(given.address, current, listed, (*damaged, *priced.warnings))


def _cost(cost: StragglerCost | None, gpu_cost: float | None) -> dict[str, Any]:
    """Return a listed job's fields about the cost of stragglers."""
    if cost is None:
        return {}
    known = {name: getattr(cost, name) for name in ("slowdown", "cause", "bar")}
    if not cost.is_priced:
        return known
    known |= {"waste": cost.waste, "gpu_hours_per_day": cost.gpu_hours_per_day}
    return {**known, "cost_per_day": _money_per_day(cost, gpu_cost), "currency": currency_of(gpu_cost)}


def _money_per_day(cost: StragglerCost, gpu_cost: float | None) -> float | None:
    return None if gpu_cost is None else cost.gpu_hours_per_day * gpu_cost


def fleet(given: OpenStore, *, priced: Priced = NOTHING_PRICED, gpu_cost: float | None = None) -> FleetResult:
    """Return all priced jobs together, how predictions came out, and who is slow in job after job.

    Raises InputError where the store has no job.
    """
    from kair.app.ledger import looked_up
    from kair_engine.fleet import fleet_of, week_of
    from kair_engine.ledger.rap_sheet import records_of
    from kair_engine.ledger.summary import summary_of

    found, damaged = priced.listing or given.listing()
    if not found:
        raise InputError(f"no job in the store {given.address}", "kair import FOLDER --job NAME puts one there")
    rows = [
        FleetJob(
            **vars(cost),
            name=job.name,
            world_size=job.world_size,
            ranks=job.ranks,
            steps=job.steps,
            week=week_of(cost.recorded_at or job.imported_at),
            cost_per_day=_money_per_day(cost, gpu_cost),
            currency=currency_of(gpu_cost),
        )
        for job in found
        if (cost := priced.costs.get(job.name, job.cost)) is not None
    ]
    ledger, _ = looked_up(given.root)
    result = fleet_of(given.address, rows, (*damaged, *priced.warnings, *ledger.warnings))
    summary = summary_of(ledger.entries) if ledger.entries else None
    return replace(result, ledger=summary, records=records_of(ledger.runs))


def baseline(given: OpenStore) -> BaselineResult:
    """Return the baselines of the store, and which is in use."""
    from kair_engine.baselines import Baselines

    kept = Baselines(given.root)
    return BaselineResult(given.address, "list", None, kept.current(), kept.listing())
