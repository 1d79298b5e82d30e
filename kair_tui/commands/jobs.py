"""`kair jobs`: what the store holds, what stragglers cost each job, and the removal of jobs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from kair.app.jobs import is_stored, unknown_job
from kair.app.stores import OpenStore
from kair_engine.errors import UsageError
from kair_engine.results.store import JobsResult, ListedJob
from kair_tui.cli.completion import job_names
from kair_tui.cli.options import Argument, Option
from kair_tui.commands.fleet import GPU_COST, money_per_day

if TYPE_CHECKING:
    from kair_engine.results.store import StragglerCost
    from kair_engine.store.jobs import Store

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
    """Asks the store, which removes what is named first. Raises InputError where there is no such job."""
    from kair_engine.store.remote import place_of

    store = session.store
    if action == "rm":
        _remove(store, names)
    current = store.current()
    found, warnings = store.listing()
    costs = {job.name: job.cost for job in found}
    if whatif:
        from kair_tui.commands.stored_costs import costs_of

        costs, failed = costs_of(session, found)
        warnings += failed
        found = store.listing()[0]
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
            path=place_of(store.root, job.name),
            last_verdict=job.last.verdict if job.last else None,
            last_summary=job.last.summary if job.last else None,
            triaged_at=job.last.triaged_at if job.last else None,
            **_cost(costs.get(job.name), gpu_cost),
        )
        for job in found
    )
    return JobsResult(store.told, current, jobs, tuple(warnings), tuple(names))


def _cost(cost: "StragglerCost | None", gpu_cost: float | None) -> dict[str, Any]:
    """The fields of a listed job that tell what stragglers cost it."""
    if cost is None:
        return {}
    return {
        "slowdown": cost.slowdown,
        "waste": cost.waste,
        "gpu_hours_per_day": cost.gpu_hours_per_day,
        "cost_per_day": money_per_day(cost, gpu_cost),
        "cause": cost.cause,
        "bar": cost.bar,
    }


def _remove(store: "Store", names: Sequence[str]) -> None:
    if not names:
        raise UsageError("no job was named", "kair jobs rm NAME")
    for name in names:
        if not is_stored(name, store.root):
            raise unknown_job(name, store.root)
    for name in dict.fromkeys(names):
        store.remove(name)
