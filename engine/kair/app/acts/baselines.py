"""Save, use and remove baselines: healthy runs that later ones are compared with."""

from dataclasses import replace as replaced

from kair.app.identities import identities_of
from kair.app.jobs import blaming_files, locate, open_source
from kair.app.question import Question
from kair.app.step_choice import parse_steps
from kair.app.step_history import require_sampled
from kair.app.stores import OpenStore
from kair_engine.baselines import NONE_IN_USE, Baselines
from kair_engine.errors import UsageError
from kair_engine.results.compare import BaselineAction, BaselineResult


def change_baseline(
    store: OpenStore, action: BaselineAction, name: str | None, *, job: str | None, step: str, replace: bool
) -> BaselineResult:
    """Do what `action` says, and list what there is. Raises UsageError where something is missing or unknown."""
    kept = Baselines(store.root)
    if action != "list" and name is None:
        raise UsageError(f"kair baseline {action} needs a name", f"kair baseline {action} healthy")
    if action != "save" and job is not None:
        raise UsageError(f"kair baseline {action} takes no job", "kair baseline save NAME JOB")
    if action == "save" and name is not None:
        _save(store, kept, name, job, step, replace=replace)
    elif action == "use" and name is not None:
        kept.use(name)
    elif action == "rm" and name is not None:
        kept.remove(name)
    found: BaselineResult = store.ask(Question.of("baseline")).result
    return replaced(found, action=action, name=None if action == "list" or name == NONE_IN_USE else name)


def _save(store: OpenStore, kept: Baselines, name: str, job: str | None, step: str, *, replace: bool) -> None:
    from kair_engine.comparison.profile import profile_of

    trace = open_source(locate(job, store.root), progress=store.progress)
    require_sampled(trace, "a baseline")
    steps = parse_steps(step).among(trace.job.steps)
    with blaming_files(trace):
        profile = profile_of(trace if steps is None else trace.select(steps))
    kept.save(name, replaced(profile, identity=identities_of(trace.job)), replace=replace)
