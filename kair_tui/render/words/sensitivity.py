"""A sensitivity analysis in words: what limits each smallest fault, and what would help."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from kair_engine.results.sensitivity import DetectableFault, SensitivityResult
from kair_tui.render.units import count, duration, percent, plural, whole_percent

Figures = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class FaultInWords(DetectableFault):
    """The smallest fault of one kind, on any one rank (or link), that the recording shows with the set probability."""

    reason: str
    """What limits it, or why no size is found, and what would help."""


@dataclass(frozen=True, kw_only=True)
class SensitivityInWords(SensitivityResult):
    """What a recording can show: the smallest faults that triage would find in it."""

    faults: tuple[FaultInWords, ...]


def sensitivity_in_words(result: SensitivityResult) -> SensitivityInWords:
    """The same answer, told."""
    faults = tuple(FaultInWords(**vars(fault), reason=reason_in_words(fault)) for fault in result.faults)
    return SensitivityInWords(**{**vars(result), "faults": faults})


def reason_in_words(fault: DetectableFault) -> str:
    """What limits the fault, as a sentence."""
    links = "links" if fault.fault == "slow_link" else "ranks"
    return _REASONS[fault.because.kind](fault.because.figures, links)


def _few_steps(figures: Figures, _: str) -> str:
    steps, fewest = plural(int(figures["steps"]), "step"), count(int(figures["fewest_steps"]))
    only = "only a rank with most of the host's pauses between collectives is accused"
    return f"{steps}: a slow rank cannot be told from a slow moment, {only}; record at least {fewest}, better 10"


def _no_operator(figures: Figures, _: str) -> str:
    share = percent(figures["differing_share_of_step"])
    return f"no compute operator in which ranks differ by {share} of a step: there is none to try it on"


def _no_siblings(figures: Figures, _: str) -> str:
    siblings = plural(int(figures["siblings"]), "sibling")
    return f"no process group or pipeline edge has {siblings} with the same transfers"


def _more_steps(figures: Figures, _: str) -> str:
    steps, now = int(figures["steps"]), int(figures["recorded_steps"])
    record = f"record {count(steps)} steps instead of {count(now)}, and"
    if "share_of_step" in figures:
        return f"{record} {percent(figures['share_of_step'])} of the step is found"
    stalled, before = int(figures["stalled_steps"]), figures.get("recorded_stalled_steps")
    found = f"{record} {count(stalled)} stalled ones ({whole_percent(stalled / steps)}) are found"
    return found if before is None else f"{found}, now {count(int(before))} ({whole_percent(before / now)})"


def _smallest_reported(figures: Figures, _: str) -> str:
    of_self = figures.get("share_of_self_time")
    at_least = "" if of_self is None else f"{whole_percent(of_self)} of its self time and "
    share = whole_percent(figures["share_of_step"])
    return f"found almost as soon as it is reported at all, from {at_least}{share} of the step on"


def _spread_unknown(figures: Figures, what: str) -> str:
    healthy = count(int(figures["healthy"]))
    return f"more steps do not help, more {what} would: how much {healthy} healthy ones differ is little known"


def _spread(figures: Figures, what: str) -> str:
    spread, share = duration(figures["spread_us"]), percent(figures["share_of_step"])
    return f"more steps do not help: the {what} differ for good, by {spread} a step ({share}, standard deviation)"


_REASONS: Final[Mapping[str, Callable[[Figures, str], str]]] = {
    "one_rank": lambda *_: "one rank only: there is no peer to compare it with",
    "few_steps": _few_steps,
    "no_compute": lambda *_: "the recording has no compute operations",
    "no_operator": _no_operator,
    "no_input": lambda *_: "the recording has no input fetches",
    "no_siblings": _no_siblings,
    "more_steps": _more_steps,
    "smallest_reported": _smallest_reported,
    "no_peer": lambda *_: "most ranks are alone in their role: there is no peer to compare them with",
    "one_peer": lambda *_: "one peer only, which could as well be the fast one: more ranks of the same role would help",
    "too_different": lambda _, what: f"found at no size: the {what} differ too much already, or are too few",
    "spread_unknown": _spread_unknown,
    "spread": _spread,
}
