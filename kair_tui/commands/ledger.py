"""`kair ledger`: what was predicted of the store's jobs, and what came true."""

from typing import Annotated

from kair_engine.errors import InputError
from kair_engine.results.ledger import LedgerResult
from kair_tui.cli.job import StoreSession
from kair_tui.cli.options import Option

RENDERER = "kair_tui.render.ledger"


def run(
    session: StoreSession,
    *,
    job: Annotated[str | None, Option("--job", "Only what was predicted of this job.", metavar="NAME")] = None,
) -> LedgerResult:
    """Looks up what came of each prediction, and keeps it. Raises InputError where the job named has no ledger."""
    from kair_engine.ledger.rap_sheet import records_of
    from kair_engine.ledger.summary import by_cause, summary_of
    from kair_tui.cli.ledger import looked_up

    ledger = looked_up(session.store.root)
    jobs = {one.job for one in ledger.entries} | {one.job for one in ledger.runs}
    if job is not None and job not in jobs:
        raise InputError(f"nothing was predicted of a job {job}", f"kair triage {job} predicts")
    entries = [one for one in ledger.entries if job is None or one.job == job]
    return LedgerResult(
        store=session.store.told,
        summary=summary_of(entries),
        causes=by_cause(entries),
        entries=tuple(sorted(entries, key=lambda one: one.at, reverse=True)),
        records=records_of(ledger.runs),
        warnings=ledger.warnings,
    )
