"""`kair import`: copies traces into the store."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from kair.app.stores import OpenStore
from kair_engine.results.store import ImportResult
from kair_tui.cli.options import Argument, Option

RENDERER = "kair_tui.render.store:IMPORTED"


def run(
    session: OpenStore,
    *,
    sources: Annotated[Sequence[Path], Argument("Folders of traces, or trace files.")],
    job: Annotated[str, Option("--job", "The name to keep the job under.", metavar="NAME")],
    replace: Annotated[bool, Option("--replace", "Replace the job of that name, if there is one.")] = False,
) -> ImportResult:
    """Import the traces, and return the job. Raises KairError."""
    from kair.app.acts.jobs import import_job

    return import_job(session, sources, job, replace=replace)
