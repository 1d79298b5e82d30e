"""Save, use and remove baselines: healthy runs that later ones are compared with."""

from dataclasses import replace as replaced

from kair.app.identities import identities_of
from kair.app.jobs import blaming_files, locate, open_source
from kair.app.question import Question
from kair.app.step_choice import parse_steps
from kair.app.step_history import require_sampled
from kair.app.stores import OpenStore
from kair_engine.baselines import NONE_IN_USE, Baselines
from kair_engine.results.compare import BaselineAction, BaselineResult


def list_baselines(store: OpenStore) -> BaselineResult:
    """Return the saved baselines, and which of them is in use."""
    return _done(store, "list", None)


def save_baseline(store: OpenStore, name: str, job: str | None, *, step: str, replace: bool) -> BaselineResult:
    """Save the time that the chosen steps of a job spend in each operator. Raises UsageError, InputError."""
    from kair_engine.comparison.profile import profile_of

    trace = open_source(locate(job, store.root), progress=store.progress)
    require_sampled(trace, "a baseline")
    steps = parse_steps(step).among(trace.job.steps)
    with blaming_files(trace):
        profile = profile_of(trace if steps is None else trace.select(steps))
    Baselines(store.root).save(name, replaced(profile, identity=identities_of(trace.job)), replace=replace)
    return _done(store, "save", name)


def use_baseline(store: OpenStore, name: str) -> BaselineResult:
    """Compare later jobs with the baseline of that name, or with none. Raises UsageError for an unknown name."""
    Baselines(store.root).use(name)
    return _done(store, "use", name)


def remove_baseline(store: OpenStore, name: str) -> BaselineResult:
    """Remove the baseline of that name. Raises UsageError for an unknown name."""
    Baselines(store.root).remove(name)
    return _done(store, "rm", name)


def _done(store: OpenStore, action: BaselineAction, name: str | None) -> BaselineResult:
    """Return the baselines after an action; its name is null where no baseline is in use any more."""
    listed: BaselineResult = store.ask(Question.of("baseline")).result
    return replaced(listed, action=action, name=None if name == NONE_IN_USE else name)
