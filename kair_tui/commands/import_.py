"""`kair import`: traces into the store."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from kair.app.evidence import FOLDER
from kair.app.places import cache_limit, cache_root
from kair.app.stores import OpenStore
from kair_engine.errors import InputError
from kair_engine.results.store import ImportResult
from kair_engine.trace.model import Job, KairWarning, short_warning
from kair_tui.cli.options import Argument, Option

RENDERER = "kair_tui.render.store:IMPORTED"


def run(
    session: OpenStore,
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
    told = _with_evidence_beside(sources, store.root / job, made)
    return ImportResult(
        store=str(store.root),
        name=made.name,
        source=made.source,
        world_size=made.world_size,
        ranks=made.ranks,
        steps=made.steps,
        operations=made.operations,
        warnings=(*made.warnings, *told),
    )


def _with_evidence_beside(sources: Sequence[Path], folder: Path, job: Job) -> Sequence[KairWarning]:
    """Keeps what lies in `evidence/` beside the traces with the job; what is wrong with it fails no import."""
    beside = [
        place for source in sources if (place := (source if source.is_dir() else source.parent) / FOLDER).is_dir()
    ]
    if not beside:
        return ()
    from kair_engine.recording.evidence_files import add_to_job

    try:
        return add_to_job(folder, list(dict.fromkeys(beside)), hosts=sorted(set(job.hosts.values())))[1]
    except InputError as error:
        return (short_warning("unreadable_file", f"the evidence beside the traces is left out: {error}"),)
