"""`kair jobs`: what the store holds, what stragglers cost each job, and the removal of jobs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

from kair.app.question import Question
from kair.app.stores import NOTHING_PRICED, OpenStore
from kair_engine.results.store import JobsResult
from kair_tui.cli.completion import job_names
from kair_tui.cli.options import Argument, Option
from kair_tui.commands.fleet import GPU_COST

RENDERER = "kair_tui.render.store:JOBS"


def run(
    session: OpenStore,
    *,
    action: Annotated[Literal["rm"] | None, Argument("rm removes the jobs that are named.")] = None,
    names: Annotated[Sequence[str], Argument("With rm: jobs of the store.", offers=job_names)] = (),
    whatif: Annotated[
        bool, Option("--whatif", "Also work out what stragglers cost each job, where that is not known yet.")
    ] = False,
    gpu_cost: Annotated[float | None, GPU_COST] = None,
) -> JobsResult:
    """Ask the store, from which what is named is removed first. Raises InputError where there is no such job."""
    from kair.app.acts.jobs import price_jobs, remove_jobs

    if action == "rm":
        remove_jobs(session, names)
    priced = price_jobs(session) if whatif else NOTHING_PRICED
    found: JobsResult = session.ask(Question.of("jobs", priced=priced, gpu_cost=gpu_cost)).result
    return replace(found, removed=tuple(names))
