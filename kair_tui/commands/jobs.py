"""`kair jobs`: lists the store's jobs and what stragglers cost each of them, and removes jobs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from kair.app.question import Question
from kair.app.stores import NOTHING_PRICED, OpenStore
from kair_engine.results.money import GpuCost
from kair_engine.results.store import JobsResult
from kair_tui.cli.completion import job_names
from kair_tui.cli.options import GPU_COST, Argument, Option

RENDERER = "kair_tui.render.store:JOBS"


def run_list(
    session: OpenStore,
    *,
    whatif: Annotated[
        bool, Option("--whatif", "Also compute what stragglers cost each job, if that is not known yet.")
    ] = False,
    gpu_cost: Annotated[GpuCost | None, GPU_COST] = None,
) -> JobsResult:
    """List the jobs of the store."""
    from kair.app.acts.jobs import price_jobs

    priced = price_jobs(session) if whatif else NOTHING_PRICED
    found: JobsResult = session.ask(Question.of("jobs", priced=priced, gpu_cost=gpu_cost)).result
    return found


def run_rm(
    session: OpenStore,
    *,
    jobs: Annotated[Sequence[str], Argument("The jobs to remove.", offers=job_names)],
) -> JobsResult:
    """Remove jobs, and list those that are left. Raises InputError, and removes none, if the store lacks one."""
    from kair.app.acts.jobs import remove_jobs

    remove_jobs(session, jobs)
    return replace(run_list(session), removed=tuple(jobs))
