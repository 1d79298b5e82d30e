"""What stragglers cost the store's jobs: what is known already, and the rest worked out now and kept."""

from collections.abc import Sequence
from pathlib import Path

from kair.app.jobs import blaming_files
from kair.app.question import Question, is_read_only
from kair.app.stores import OpenStore
from kair_engine.errors import KairError
from kair_engine.results.store import StragglerCost
from kair_engine.store.jobs import StoredJob
from kair_engine.trace.model import KairWarning, short_warning
from kair_tui.cli.asking import in_words


def costs_of(store: OpenStore, jobs: Sequence[StoredJob]) -> tuple[dict[str, StragglerCost | None], list[KairWarning]]:
    """The cost of each job by its name, None and a warning for one that cannot be analysed."""
    costs, failed = {job.name: job.cost for job in jobs}, []
    missing = [job.name for job in jobs if job.cost is None]
    for done, name in enumerate(missing):
        store.progress(done, len(missing), name)
        try:
            costs[name] = _worked_out(store, name)
        except KairError as error:
            failed.append(short_warning("not_priced", f"job {name} is not priced: {error}"))
    return costs, failed


def _worked_out(store: OpenStore, name: str) -> StragglerCost:
    """Triages the job, replays it, and keeps the verdict and the cost."""
    from kair_engine.fleet import cost_of
    from kair_engine.store.kept_answers import keep_cost

    session = store.open(name, remembers=False, in_words=in_words)
    answer = session.ask(Question.of("triage"))
    with blaming_files(session.trace):
        cost = cost_of(session.trace, answer.result)
    session.keep(answer)
    if session.trace.job.stored_in is not None and not is_read_only():
        keep_cost(Path(session.trace.job.stored_in), cost, session.trace.job.operations)
    return cost
