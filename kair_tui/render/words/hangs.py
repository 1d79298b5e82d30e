"""Hangs in words: who has not arrived at which collective."""

from collections.abc import Callable, Mapping
from typing import Final

from kair_engine.causes import CAUSES
from kair_engine.results.evidence import Evidence
from kair_engine.results.triage import Finding
from kair_tui.render.text import short_name
from kair_tui.render.units import count, plural, ranks_in_words


def stands_still(finding: Finding) -> bool:
    """Whether the job does not go on for it: it has no price, and no steps."""
    return CAUSES[finding.cause].stops_job


def held_up_at(finding: Finding) -> str:
    """`all_gather number 4`: where the job stands."""
    sequence = next((one.figures["sequence"] for one in finding.evidence if "sequence" in one.figures), None)
    number = "" if sequence is None else f" number {count(int(sequence))}"
    return f"{short_name(finding.operator or 'a collective')}{number}"


def _not_arrived(one: Evidence) -> str:
    has = "has" if len(one.ranks) == 1 else "have"
    waiting = plural(int(one.figures["waiting"]), "rank")
    wait = "waits" if one.figures["waiting"] == 1 else "wait"
    return f"{ranks_in_words(one.ranks)} {has} not called {_call(one)}; {waiting} of its {_members(one)} {wait} in it"


def _no_dump(one: Evidence) -> str:
    return f"{ranks_in_words(one.ranks)} left no dump; {count(int(one.figures['waiting']))} ranks wait in {_call(one)}"


def _waits_elsewhere(one: Evidence) -> str:
    wait = "waits" if len(one.ranks) == 1 else "wait"
    return f"{ranks_in_words(one.ranks)} {wait} in another process group: groups are called in another order there"


def _other_call(one: Evidence) -> str:
    number = count(int(one.figures["sequence"]))
    return f"{ranks_in_words(one.ranks)}, as collective number {number}, called {one.about}"


def _all_arrived(one: Evidence) -> str:
    return f"all {_members(one)} members have called {_call(one)}, and nobody is through with it"


def _last_completed(one: Evidence) -> str:
    number = count(int(one.figures["sequence"]))
    return (
        f"the last collective of that group that all were through with is number {number}, {short_name(str(one.about))}"
    )


def _call(one: Evidence) -> str:
    operation, _, group = str(one.about).partition(" of process group ")
    return f"{short_name(operation)} number {count(int(one.figures['sequence']))} of process group {short_name(group)}"


def _members(one: Evidence) -> str:
    return count(int(one.figures["members"]))


SENTENCES: Final[Mapping[str, Callable[[Evidence], str]]] = {
    "not_arrived": _not_arrived,
    "no_dump": _no_dump,
    "other_call": _other_call,
    "all_arrived": _all_arrived,
    "last_completed": _last_completed,
    "waits_elsewhere": _waits_elsewhere,
}
