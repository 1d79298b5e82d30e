"""`kair jobs`: what the store holds, and the removal of jobs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from kair_engine.errors import UsageError
from kair_engine.results.store import JobsResult, ListedJob
from kair_tui.cli.completion import job_names
from kair_tui.cli.job_source import StoreSession, is_stored, unknown_job
from kair_tui.cli.parameters import Argument

if TYPE_CHECKING:
    from kair_engine.store.jobs import Store

RENDERER = "kair_tui.render.views.jobs"


def run(
    session: StoreSession,
    *,
    action: Annotated[Literal["rm"] | None, Argument("rm removes the jobs that are named.")] = None,
    names: Annotated[Sequence[str], Argument("With rm: jobs of the store.", offers=job_names)] = (),
) -> JobsResult:
    """Asks the store, which removes what is named first. Raises InputError where there is no such job."""
    store = session.store
    if action == "rm":
        _remove(store, names)
    current = store.current()
    found, damaged = store.listing()
    jobs = tuple(
        ListedJob(
            name=job.name,
            in_use=job.name == current,
            imported_at=job.imported_at,
            source=job.source,
            world_size=job.world_size,
            ranks=job.ranks,
            steps=job.steps,
            operations=job.operations,
            path=str(job.path),
            last_verdict=job.last.verdict if job.last else None,
            last_summary=job.last.summary if job.last else None,
            triaged_at=job.last.triaged_at if job.last else None,
        )
        for job in found
    )
    return JobsResult(str(store.root), current, jobs, tuple(damaged), tuple(names))


def _remove(store: "Store", names: Sequence[str]) -> None:
    if not names:
        raise UsageError("no job was named", "kair jobs rm NAME")
    for name in names:
        if not is_stored(name, store.root):
            raise unknown_job(name, store.root)
    for name in dict.fromkeys(names):
        store.remove(name)
