"""`kair jobs`: what the store holds."""

from kair_engine.results.store import JobsResult, ListedJob
from kair_tui.cli.job_source import StoreSession

RENDERER = "kair_tui.render.views.jobs"


def run(session: StoreSession) -> JobsResult:
    """Asks the store."""
    store = session.store
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
    return JobsResult(str(store.root), current, jobs, tuple(damaged))
