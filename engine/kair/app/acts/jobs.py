"""Import, use, remove and price jobs of the store."""

from collections.abc import Sequence
from pathlib import Path

from kair.app.jobs import blaming_files, is_stored, unknown_job
from kair.app.places import cache_limit, cache_root
from kair.app.question import Question, is_read_only
from kair.app.stores import OpenStore, Priced
from kair_engine.errors import KairError, UsageError
from kair_engine.results.store import ImportResult, StragglerCost, UseResult
from kair_engine.trace.model import KairWarning, short_warning


def import_job(store: OpenStore, sources: Sequence[Path], name: str, *, replace: bool = False) -> ImportResult:
    """Import traces, and the evidence next to them, into the store under a name. Raises KairError."""
    from kair.app.acts.evidence import keep_evidence_beside

    trace = store.store.import_traces(
        sources, name, cache=cache_root(), cache_limit=cache_limit(), replace=replace, progress=store.progress
    )
    made = trace.job
    warnings = keep_evidence_beside(sources, store.root / name, made)
    return ImportResult(
        store=str(store.root),
        name=made.name,
        source=made.source,
        world_size=made.world_size,
        ranks=made.ranks,
        steps=made.steps,
        operations=made.operations,
        warnings=(*made.warnings, *warnings),
    )


def use_job(store: OpenStore, name: str) -> UseResult:
    """Make a job the default for questions that name none. Raises InputError if there is no such job."""
    _require_stored(store, name)
    store.store.use(name)
    return UseResult(store.address, name)


def remove_jobs(store: OpenStore, names: Sequence[str]) -> None:
    """Remove jobs, all or none of them. Raises UsageError if none is named, InputError for an unknown job."""
    if not names:
        raise UsageError("no job was named", "kair jobs rm NAME")
    for name in names:
        _require_stored(store, name)
    for name in dict.fromkeys(names):
        store.store.remove(name)


def price_jobs(store: OpenStore, *, keep: bool = True) -> Priced:
    """Compute what stragglers cost each job whose cost is unknown, and keep every cost as soon as it is known.

    A job that cannot be analysed is skipped with a warning. Without `keep`, or with $KAIR_READ_ONLY set, nothing is
    written.
    """
    costs, failed = dict[str, StragglerCost](), list[KairWarning]()
    listing = store.listing()
    missing = [job.name for job in listing[0] if job.cost is None and job.ranks]
    for done, name in enumerate(missing):
        store.progress(done, len(missing), name)
        try:
            costs[name] = _worked_out(store, name, keep=keep)
        except KairError as error:
            failed.append(short_warning("not_priced", f"job {name} is not priced: {error}"))
    return Priced(costs, tuple(failed), None if costs else listing)


def _worked_out(store: OpenStore, name: str, *, keep: bool) -> StragglerCost:
    """Triage the job, replay it, and keep verdict and cost where asked to."""
    from kair_engine.fleet import cost_of
    from kair_engine.store.kept_answers import keep_cost

    session = store.open(name, remembers=False)
    answer = session.ask(Question.of("triage"))
    with blaming_files(session.trace):
        cost = cost_of(session.trace, answer.result)
    if keep:
        session.keep(answer)
    if keep and session.trace.job.stored_in is not None and not is_read_only():
        keep_cost(Path(session.trace.job.stored_in), cost, session.trace.job.operations)
    return cost


def _require_stored(store: OpenStore, name: str) -> None:
    if not is_stored(name, store.root):
        raise unknown_job(name, store.root)
