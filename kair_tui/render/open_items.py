"""Puts into words what a triage leaves open: how much, on whom, in which steps, and what would settle it.

And how much a recording without findings could hide, or shows next to them in its bar.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from kair_engine.causes import CAUSES
from kair_engine.frozen import dataclass
from kair_engine.results.step_bar import StepBar
from kair_engine.results.triage import OpenItem, OpenKind, TriageResult
from kair_tui.render.joint_prices import ranks_named, without_unit
from kair_tui.render.text import short_name
from kair_tui.render.units import count, duration, percent, plural, spans, whole_percent

_NOTABLE_JOB_WIDE: Final = 0.1
"""Of the bar: a job that loses a tenth of its step is 1.1 times slower, which the published study calls straggling."""
_NOTABLE_WAITING: Final = 0.05
"""Of the bar: the smallest share that triage reports as unexplained unless it is asked otherwise."""


@dataclass(frozen=True, kw_only=True)
class OpenItemInWords(OpenItem):
    """A part of the step that no finding explains."""

    sentence: str
    """How much, on whom, in which steps."""
    settled_by: str
    """What would settle it."""


def open_in_words(item: OpenItem, step_time_us: float) -> OpenItemInWords:
    """Return the item with its sentence."""
    return OpenItemInWords(
        **vars(item), sentence=_SENTENCES[item.kind](item, step_time_us), settled_by=_SETTLED_BY[item.kind](item)
    )


def largest_open(result: TriageResult) -> str | None:
    """Return the largest open item with what would settle it, and how many more there are; None where none is.

    Where no rank can be tested that is the largest, and the next one follows.
    """
    if not result.open:
        return None
    items = sorted(result.open, key=lambda one: -one.us_per_step)
    shown = items[: 1 + items[0].is_whole]
    left = len(items) - len(shown)
    more = f"; {plural(left, 'smaller item')} {'is' if left == 1 else 'are'} open" if left else ""
    said = (
        part for one in shown for part in (_SENTENCES[one.kind](one, result.step_time_us), _SETTLED_BY[one.kind](one))
    )
    return "; ".join(dict.fromkeys(said)) + more


def open_lines(result: TriageResult, *, below: str = "") -> list[str]:
    """Return a line for each open item, the largest first; without what the headline that they are `below` says."""
    return [
        f"open: {line}"
        for item in sorted(result.open, key=lambda one: -one.us_per_step)
        for line in _lines(item, result, below)
    ]


def _lines(item: OpenItem, result: TriageResult, below: str) -> list[str]:
    line = _line(item, result)
    said = [] if line in below else [line]
    if item.operator and short_name(item.operator) not in line:
        said.append(_longest_operator(item))
    return ["; ".join(said)] if said else []


def _longest_operator(item: OpenItem) -> str:
    """`in step 19 rank 0 ran nvjet_tst_128x256 longest`: the name that a first line has no room for."""
    steps = f"in {'step' if len(item.steps) == 1 else 'steps'} {spans(item.steps)} " if item.steps else ""
    return f"{steps}{_who(item, 'all ranks')} ran {short_name(item.operator or '')} longest"


def _line(item: OpenItem, result: TriageResult) -> str:
    return f"{_SENTENCES[item.kind](item, result.step_time_us)}; {_SETTLED_BY[item.kind](item)}"


def nothing_hidden(smallest_share: float) -> str:
    """`nothing of 4 % of the step or more is unexplained`; rounded up, so that it is never claimed of less."""
    share = max(math.ceil(round(100 * smallest_share, 6)), 1) / 100
    return f"nothing of {whole_percent(share)} of the step or more is unexplained"


def next_to_bar(bar: StepBar | None) -> str:
    """Return what the bar shows that no rank is accused of, as the end of a sentence; empty where it is little."""
    if bar is None:
        return ""
    job_wide, waiting = bar.share("job_wide"), bar.share("stragglers")
    said = []
    if job_wide > _NOTABLE_JOB_WIDE:
        said.append(f"all ranks spend {percent(job_wide)} of the step on launches, input and waiting for cores")
    if waiting > _NOTABLE_WAITING:
        among = ", and the pipeline's bubble" if bar.bubble_from is None else ""
        said.append(f"ranks wait {percent(waiting)} of their time, now for one and now for another{among}")
    return "".join(f"; {one}" for one in said)


def _of_step(item: OpenItem, step_time_us: float) -> str:
    """`3.60 of the 51.8 ms step (7.0 %)`."""
    lost = duration(item.us_per_step)
    if step_time_us <= 0:
        return f"{lost} a step"
    step = duration(step_time_us)
    return f"{without_unit(lost, of=step)} of the {step} step ({percent(item.share_of_step)})"


def _why(item: OpenItem) -> str:
    """` (evaluation)`: the operator, else the cause; empty where neither is known."""
    if item.operator:
        return f" ({short_name(item.operator)})"
    return "" if item.cause in (None, "unknown") else f" ({CAUSES[item.cause].words})"


def _who(item: OpenItem, nobody: str) -> str:
    return ranks_named(item.ranks) if item.ranks else nobody


def _them(item: OpenItem) -> str:
    return "it" if len(item.ranks) == 1 else "them"


def _verb(item: OpenItem, of_one: str, of_many: str) -> str:
    return of_one if len(item.ranks) == 1 else of_many


def _in(item: OpenItem) -> str:
    return f" in {short_name(item.where)}" if item.where else ""


def _on(item: OpenItem) -> str:
    return f" on {ranks_named(item.ranks)}" if item.ranks else ""


def _unrecorded(item: OpenItem, step_time_us: float) -> str:
    who = _who(item, "some ranks")
    if item.cause == "exposed_communication":
        lost = _of_step(item, step_time_us)
        return f"{who} left no trace: up to {lost} go by in communication with {_them(item)}, which may all be waiting"
    return f"{who} left no trace, and the others wait for {_them(item)} at least {_of_step(item, step_time_us)}"


def _unmatched(item: OpenItem, step_time_us: float) -> str:
    lost, where = _of_step(item, step_time_us), f"{_in(item)}{_on(item)}"
    return f"{lost} went by in collectives{where} that were not matched: who waits in them is unknown"


def _event(item: OpenItem, step_time_us: float) -> str:
    steps = f"{'step' if len(item.steps) == 1 else 'steps'} {spans(item.steps)}"
    if item.took_us is None or item.usual_us is None:
        took = f"{steps} took longer, {_of_step(item, step_time_us)} over all steps"
    else:
        up_to = "" if len(item.steps) == 1 else "up to "
        took = f"{steps} took {up_to}{duration(item.took_us)} instead of {duration(item.usual_us)}"
    if not item.ranks:
        return f"{took}: all ranks were late together{_why(item)}"
    return f"{took}: the others waited for {ranks_named(item.ranks)}{_did(item)}"


_DID: Final[Mapping[str, str]] = {
    "compute": "which computed alone",
    "host": "whose host was busy",
    "input": "which fetched input",
    "compilation": "which compiled",
    "allocator": "which allocated device memory",
    "garbage_collection": "which collected garbage",
    "profiler": "whose profiler was busy",
    "communication": "which communicated longer",
}
"""Cause → what a rank did while the others waited for it."""
_NAME_IN_LINE: Final = 30
"""Characters of an operator's name in a first line: a longer one stands below it."""


def _did(item: OpenItem) -> str:
    """`, which computed alone (evaluate)`: the deed in words, then where, unless that is a long name."""
    deed = _DID.get(item.cause or "")
    if deed is None:
        return _why(item)
    name = short_name(item.operator) if item.operator else ""
    return f", {deed} ({name})" if 0 < len(name) <= _NAME_IN_LINE else f", {deed}"


def _uneven(item: OpenItem, step_time_us: float) -> str:
    lost = f"{_of_step(item, step_time_us)} is lost to uneven work{_why(item)}{_in(item)}"
    return f"{lost}, on no rank in particular" if not item.ranks else f"{lost}{_on(item)}"


def _waiting(item: OpenItem, step_time_us: float) -> str:
    if not item.ranks:
        return f"ranks wait {_of_step(item, step_time_us)} for one another{_in(item)}, for no rank in particular"
    lost, it = _of_step(item, step_time_us), _them(item)
    waited = f"the others wait {lost} for {ranks_named(item.ranks)}{_why(item)}"
    if item.replayed_us is None:
        return f"{waited}, and no test sets {it} apart"
    saved = duration(max(item.replayed_us, 0.0))
    return f"{waited}, which a test sets apart, but replayed without {it} a step is only {saved} shorter"


def _changed(item: OpenItem, step_time_us: float) -> str:
    since = f"since step {item.steps[0]} " if item.steps else ""
    if item.took_us is None or item.usual_us is None:
        longer = f"{since}steps take longer, by {_of_step(item, step_time_us)}"
    else:
        longer = f"{since}a step takes {duration(item.took_us)} instead of {duration(item.usual_us)}"
    where = item.where or (ranks_named(item.ranks) if item.ranks else "")
    return f"{longer}: {short_name(where)}{_why(item)}" if where else f"{longer}{_why(item)}, on no rank in particular"


def _idle(item: OpenItem, step_time_us: float) -> str:
    return f"what CUDA graphs run is not recorded, {_of_step(item, step_time_us)}{_on(item)}{_in(item)}"


def _groups_differ(item: OpenItem, step_time_us: float) -> str:
    takes = f"{_who(item, 'one group')}{f' ({short_name(item.where)})' if item.where else ''}"
    verb = "takes" if not item.ranks else _verb(item, "takes", "take")
    lost = _of_step(item, step_time_us)
    return f"{takes} {verb} {lost} longer than the others{_why(item)}, and which of both is usual is unknown"


def _no_peer(item: OpenItem, step_time_us: float) -> str:
    if item.is_whole:
        return f"{ranks_named(item.ranks)} is recorded alone" if item.ranks else "no rank has a peer to compare it with"
    lost = _of_step(item, step_time_us)
    was = _verb(item, "was", "were")
    return f"{_who(item, 'some ranks')} {was} not compared with peers, and the others may wait {lost} for {_them(item)}"


def _few_steps(item: OpenItem, step_time_us: float) -> str:
    if item.is_whole:
        return "in so few steps a slow rank cannot be told from a slow moment"
    lost, take = _of_step(item, step_time_us), _verb(item, "takes", "take")
    return f"{_who(item, 'some ranks')} {take} {lost} longer{_why(item)}, in all of too few steps for a test"


def _more_steps(aim: str = "") -> Callable[[OpenItem], str]:
    def settled(item: OpenItem) -> str:
        number = "more steps" if item.more_steps is None else f"{count(item.more_steps)} more steps"
        if item.more_steps == 1:
            number = "one more step"
        return f"record {number}{aim}"

    return settled


def _settles_waiting(item: OpenItem) -> str:
    return _more_steps()(item) if item.replayed_us is None else _healthy_run(item)


def _traces(item: OpenItem) -> str:
    if not item.ranks:
        return "add their traces"
    return f"add the {'trace' if len(item.ranks) == 1 else 'traces'} of {ranks_named(item.ranks)}"


def _healthy_run(item: OpenItem) -> str:  # noqa: ARG001 - whatever the item is
    return "compare with a healthy run (kair compare)"


_SENTENCES: Final[Mapping[OpenKind, Callable[[OpenItem, float], str]]] = {
    "unrecorded": _unrecorded,
    "unmatched": _unmatched,
    "event": _event,
    "uneven": _uneven,
    "waiting": _waiting,
    "changed": _changed,
    "idle": _idle,
    "groups_differ": _groups_differ,
    "no_peer": _no_peer,
    "few_steps": _few_steps,
}
_SETTLED_BY: Final[Mapping[OpenKind, Callable[[OpenItem], str]]] = {
    "unrecorded": _traces,
    "unmatched": lambda _: "record the process group of each collective",
    "event": _more_steps(" to see whether it returns"),
    "uneven": lambda _: "record the shapes of inputs to see why",
    "waiting": _settles_waiting,
    "changed": _more_steps(" before and after it"),
    "idle": lambda _: "record with nsys profile --cuda-graph-trace=node",
    "groups_differ": _healthy_run,
    "no_peer": _healthy_run,
    "few_steps": _more_steps(),
}
