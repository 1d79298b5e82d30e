"""`kair baseline`: healthy runs kept, to hold later ones against."""

from dataclasses import replace as replaced
from typing import Annotated

from kair.app.jobs import blaming_files, locate, open_source
from kair.app.step_choice import parse_steps
from kair.app.stores import OpenStore
from kair_engine.errors import UsageError
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
    """Does it, and lists what there is. Raises UsageError where something is missing or unknown."""
    from kair_engine.baselines import NONE_IN_USE, Baselines

    kept = Baselines(session.store.root)
    if action != "list" and name is None:
        raise UsageError(f"kair baseline {action} needs a name", f"kair baseline {action} healthy")
    if action != "save" and job is not None:
        raise UsageError(f"kair baseline {action} takes no job", "kair baseline save NAME JOB")
    if action == "save" and name is not None:
        from kair.app.identities import identities_of
        from kair_engine.comparison.profile import profile_of

        trace = open_source(locate(job, session.store.root), progress=session.progress)
        steps = parse_steps(step).among(trace.job.steps)
        with blaming_files(trace):
            profile = profile_of(trace if steps is None else trace.select(steps))
        profile = replaced(profile, identity=identities_of(trace.job))
        kept.save(name, profile, replace=replace)
    elif action == "use" and name is not None:
        kept.use(name)
    elif action == "rm" and name is not None:
        kept.remove(name)
    told = None if action == "list" or name == NONE_IN_USE else name
    return BaselineResult(session.store.told, action, told, kept.current(), kept.listing())
