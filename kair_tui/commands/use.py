"""`kair use`: sets the job that commands take when none is named."""

from typing import Annotated

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
    """Set the store's default job. Raises InputError if there is no such job."""
    from kair.app.acts.jobs import use_job

    return use_job(session, job)
