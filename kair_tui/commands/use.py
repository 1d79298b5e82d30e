"""`kair use`: the job that commands take when none is named."""

from typing import Annotated

from kair.app.jobs import is_stored, unknown_job
from kair.app.stores import OpenStore
from kair_engine.results.store import UseResult
from kair_tui.cli.completion import job_names
from kair_tui.cli.options import Argument

RENDERER = "kair_tui.render.store:USED"


def run(
    session: OpenStore,
    *,
    job: Annotated[str, Argument("A job of the store.", offers=job_names)],
) -> UseResult:
    """Tells the store. Raises InputError where there is no such job."""
    store = session.store
    if not is_stored(job, store.root):
        raise unknown_job(job, store.root)
    store.use(job)
    return UseResult(store.told, job)
