"""Holds a run against a baseline: what takes longer than it did when the job was healthy."""

from dataclasses import replace
from typing import TypeVar

from kair_engine.comparison.analysis import compare_profiles
from kair_engine.comparison.profile import profile_of
from kair_engine.errors import UsageError
from kair_engine.results.localize import LocalizeResult
from kair_engine.results.runs.changes import AgainstBaseline, ChosenBaseline, OperatorChange
from kair_engine.results.runs.run_profile import RunProfile
from kair_engine.results.triage import TriageResult
from kair_engine.trace.model import KairWarning, Trace

Held = TypeVar("Held", LocalizeResult, TriageResult)
Answered = tuple[AgainstBaseline | None, tuple[KairWarning, ...]]


def against_baseline(trace: Trace, name: str, baseline: RunProfile, *, must: bool) -> Answered:
    """(what takes longer than in the baseline, warnings).

    A baseline of another kind of job is passed over with a warning; if it `must` be used, UsageError is raised.
    """
    try:
        found = compare_profiles(baseline, profile_of(trace))
    except UsageError as error:
        if must:
            raise
        return None, (KairWarning("other_baseline", f"the baseline {name} in use does not fit this job: {error}"),)
    slower = [one for one in found.changes if one.change in {"slower", "added"}]
    result = AgainstBaseline(
        baseline=name,
        step_change_us=found.step_change_us,
        step_change_share=found.step_change_share,
        step_p_value=found.step_p_value,
        slower=tuple(sorted(slower, key=_by_growth)),
    )
    return result, found.warnings


def _by_growth(one: OperatorChange) -> float:
    return one.base_us - one.new_us


def with_baseline(result: Held, trace: Trace, chosen: ChosenBaseline | None) -> Held:
    """The answer about a run, with what takes longer than in the baseline; unchanged where none is chosen."""
    if chosen is None:
        return result
    answered: Answered = against_baseline(trace, chosen.name, chosen.profile, must=chosen.named)
    return replace(result, against_baseline=answered[0], warnings=(*result.warnings, *answered[1]))
