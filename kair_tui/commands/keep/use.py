"""`kair use`: the job that commands take when none is named."""

from typing import Annotated

from kair_engine.results.runs.store import UseResult
from kair_tui.cli.arguments.job import StoreSession, is_stored, unknown_job
from kair_tui.cli.completion import job_names
from kair_tui.cli.parameters import Argument

RENDERER = "kair_tui.render.views.store.use"


def run(
    session: StoreSession,
    *,
    job: Annotated[str, Argument("A job of the store.", offers=job_names)],
) -> UseResult:
    """Tells the store. Raises InputError where there is no such job."""
    store = session.store
    if not is_stored(job, store.root):
        raise unknown_job(job, store.root)
    store.use(job)
    return UseResult(store.told, job)
