"""`kair import`: traces into the store."""

from pathlib import Path
from typing import Annotated

import typer

from kair_tui.cli.places import cache_root
from kair_tui.cli.stored import ImportResult, StoreSession

RENDERER = "kair_tui.render.views.imported"


def run(
    session: StoreSession,
    *,
    sources: Annotated[list[Path], typer.Argument(metavar="SRC", help="Folders of traces, or trace files.")],
    job: Annotated[str, typer.Option("--job", metavar="NAME", help="What the job is to be called.")],
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite the job of that name.")] = False,
) -> ImportResult:
    """Lets the store import."""
    store = session.store
    trace = store.import_traces(sources, job, cache=cache_root(), replace=replace, progress=session.progress)
    made = trace.job
    return ImportResult(
        store=str(store.root),
        name=made.name,
        source=made.source,
        world_size=made.world_size,
        ranks=made.ranks,
        steps=made.steps,
        operations=made.operations,
        warnings=made.warnings,
    )
