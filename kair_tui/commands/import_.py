"""`kair import`: traces into the store."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from kair_engine.results.store import ImportResult
from kair_tui.cli.job import StoreSession
from kair_tui.cli.options import Argument, Option
from kair_tui.cli.places import cache_limit, cache_root

RENDERER = "kair_tui.render.store:IMPORTED"


def run(
    session: StoreSession,
    *,
    sources: Annotated[Sequence[Path], Argument("Folders of traces, or trace files.")],
    job: Annotated[str, Option("--job", "The name to keep the job under.", metavar="NAME")],
    replace: Annotated[bool, Option("--replace", "Replace the job of that name, if there is one.")] = False,
) -> ImportResult:
    """Lets the store import."""
    store = session.store
    trace = store.import_traces(
        sources, job, cache=cache_root(), cache_limit=cache_limit(), replace=replace, progress=session.progress
    )
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
