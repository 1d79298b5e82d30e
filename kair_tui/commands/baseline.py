"""`kair baseline`: healthy runs kept, to compare later ones with."""

from typing import Annotated

from kair.app.stores import OpenStore
from kair_engine.results.compare import BaselineAction, BaselineResult
from kair_tui.cli.completion import job_names
from kair_tui.cli.options import Argument, Option

RENDERER = "kair_tui.render.store:BASELINES"


def run(
    session: OpenStore,
    *,
    action: Annotated[BaselineAction, Argument("save NAME JOB, list, use NAME (or none), or rm NAME.")] = "list",
    name: Annotated[str | None, Argument("The baseline's name.")] = None,
    job: Annotated[
        str | None, Argument("With save: a job of the store, or a path. Default: the job in use.", offers=job_names)
    ] = None,
    step: Annotated[
        str, Option("--step", "With save: the steps to take: 40, 40-60, 40,45,50-52 or all.", metavar="STEPS")
    ] = "all",
    replace: Annotated[bool, Option("--replace", "With save: replace the baseline of that name.")] = False,
) -> BaselineResult:
    """Do it, and list what there is. Raises UsageError where something is missing or unknown."""
    from kair.app.acts.baselines import change_baseline

    return change_baseline(session, action, name, job=job, step=step, replace=replace)
