"""`kair baseline`: keeps healthy runs, with which later ones are compared."""

from typing import Annotated, Final

from kair.app.stores import OpenStore
from kair_engine.results.compare import BaselineResult
from kair_tui.cli.completion import job_names
from kair_tui.cli.options import Argument, Option

RENDERER = "kair_tui.render.store:BASELINES"
_NAME: Final = Argument("The baseline's name.")


def run_list(session: OpenStore) -> BaselineResult:
    """List the saved baselines."""
    from kair.app.acts.baselines import list_baselines

    return list_baselines(session)


def run_save(
    session: OpenStore,
    *,
    name: Annotated[str, _NAME],
    job: Annotated[
        str | None, Argument("A job of the store, or a path. Default: the job in use.", offers=job_names)
    ] = None,
    step: Annotated[
        str, Option("--step", "The steps to take: 40, 40-60, 40,45,50-52 or all.", metavar="STEPS")
    ] = "all",
    replace: Annotated[bool, Option("--replace", "Replace the baseline of that name.")] = False,
) -> BaselineResult:
    """Save a job as a baseline. Raises UsageError for a bad or taken name, InputError if the job does not exist."""
    from kair.app.acts.baselines import save_baseline

    return save_baseline(session, name, job, step=step, replace=replace)


def run_use(
    session: OpenStore, *, name: Annotated[str, Argument("The baseline's name, or `none` to use none.")]
) -> BaselineResult:
    """Compare later jobs with a baseline. Raises UsageError if it does not exist."""
    from kair.app.acts.baselines import use_baseline

    return use_baseline(session, name)


def run_rm(session: OpenStore, *, name: Annotated[str, _NAME]) -> BaselineResult:
    """Remove a baseline. Raises UsageError if it does not exist."""
    from kair.app.acts.baselines import remove_baseline

    return remove_baseline(session, name)
