"""Answers about the store, or about two jobs."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kair_engine.errors import InputError
from kair_engine.results.compare import CompareResult
from kair_engine.results.ledger import LedgerResult

if TYPE_CHECKING:
    from kair.app.stores import OpenStore
    from kair_engine.trace.model import Trace

Writes = Callable[[Any], None] | None
"""What writes the part of an answer that is worth keeping; None where nothing is."""


def compare(
    given: "OpenStore", *, base: str, new: str, step: str = "all", base_step: str = "all"
) -> tuple[CompareResult, Writes]:
    """Return what changed between two runs. Raises InputError where one is no job, UsageError for its steps."""
    from kair.app.jobs import blaming_files
    from kair_engine.comparison.analysis import compare as find_changes

    traces = _opened(given, base, base_step), _opened(given, new, step)
    with blaming_files(*traces):
        return find_changes(*traces), None


def _opened(given: "OpenStore", job: str, step: str) -> "Trace":
    from kair.app.jobs import locate, open_source
    from kair.app.step_choice import parse_steps

    chosen = parse_steps(step)
    trace = open_source(locate(job, given.store.root), progress=given.progress)
    steps = chosen.among(trace.job.steps)
    return trace if steps is None else trace.select(steps)


def ledger(given: "OpenStore", *, job: str | None = None) -> tuple[LedgerResult, Writes]:
    """Return what came of each prediction, and what writes that. Raises InputError where the job has no ledger."""
    from kair.app.ledger import looked_up
    from kair_engine.ledger.rap_sheet import records_of
    from kair_engine.ledger.summary import by_cause, summary_of

    found, writes = looked_up(given.store.root)
    jobs = {entry.job for entry in found.entries} | {run.job for run in found.runs}
    if job is not None and job not in jobs:
        raise InputError(f"nothing was predicted of a job {job}", f"kair triage {job} predicts")
    entries = [entry for entry in found.entries if job is None or entry.job == job]
    result = LedgerResult(
        store=given.store.told,
        summary=summary_of(entries),
        causes=by_cause(entries),
        entries=tuple(sorted(entries, key=lambda entry: entry.at, reverse=True)),
        records=records_of(found.runs),
        warnings=found.warnings,
    )
    return result, lambda _: writes()
