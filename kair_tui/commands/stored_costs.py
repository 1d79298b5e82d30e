"""What stragglers cost the store's jobs: what is known already, and the rest worked out now and kept."""

from collections.abc import Sequence
from contextlib import suppress

from kair_engine.errors import KairError
from kair_engine.results.store import StragglerCost
from kair_engine.store.jobs import StoredJob
from kair_engine.trace.model import KairWarning, short_warning
from kair_tui.cli.job import StoreSession, blaming_files


def costs_of(
    session: StoreSession, jobs: Sequence[StoredJob]
) -> tuple[dict[str, StragglerCost | None], list[KairWarning]]:
    """The cost of each job by its name, None and a warning for one that cannot be analysed."""
    costs, failed = {job.name: job.cost for job in jobs}, []
    missing = [job.name for job in jobs if job.cost is None]
    for done, name in enumerate(missing):
        session.progress(done, len(missing), name)
        try:
            costs[name] = _worked_out(session, name)
        except KairError as error:
            failed.append(short_warning("not_priced", f"job {name} is not priced: {error}"))
    return costs, failed


def _worked_out(session: StoreSession, name: str) -> StragglerCost:
    """Triages the job, replays it, and keeps the verdict and the cost."""
    from pathlib import Path

    from kair_engine.fleet import cost_of
    from kair_engine.store.kept_answers import keep_cost, keep_verdict
    from kair_engine.triage.analysis import triage
    from kair_tui.render.verdict import summary

    trace = session.store.open(name)
    with blaming_files(trace):
        triaged = triage(trace)
        cost = cost_of(trace, triaged)
    if trace.job.stored_in is not None:
        recording = Path(trace.job.stored_in)
        keep_verdict(recording, triaged.verdict, summary(triaged))
        keep_cost(recording, cost, trace.job.operations)
        with suppress(KairError):  # its steps may be damaged, of which its recording knows nothing
            from kair_tui.cli.ledger import put_down
            from kair_tui.cli.step_history import history_of

            put_down(trace.job, triaged, history_of(trace.job))
    return cost
