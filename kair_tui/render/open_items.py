"""The open items of a triage in words: how much, which ranks and steps, and what would settle them.

Also what a recording without findings could hide, or shows in its bar.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from kair_engine.causes import CAUSES
from kair_engine.results.open_kinds import KINDS
from kair_engine.results.step_bar import StepBar
from kair_engine.results.triage import OpenItem, TriageResult
from kair_tui.render.sentences import filled
from kair_tui.render.text import short_name
from kair_tui.render.units import (
    count,
    duration,
    percent,
    plural,
    ranks_named,
    spans,
    whole_percent,
    without_unit,
)

_NOTABLE_JOB_WIDE: Final = 0.1
"""Share of the bar: a job that loses a tenth of its step is 1.1 times slower, which the published study calls
straggling."""
_NOTABLE_WAITING: Final = 0.05
"""Share of the bar: the smallest that triage reports as unexplained by default."""


def open_in_words(item: OpenItem, step_time_us: float) -> OpenItem:
    """Return the item with its sentence and what would settle it."""
    of, words = KINDS[item.kind], _words(item, step_time_us)
    return replace(item, sentence=filled(of.wording(item), words), settled_by=filled(of.settling(item), words))


def largest_open(result: TriageResult) -> str | None:
    """Return the largest open item with what would settle it, and the number of others; None without one.

    If no rank can be tested, that is the largest, and the next one follows.
    """
    if not result.open:
        return None
    items = sorted(result.open, key=lambda one: -one.us_per_step)
    shown = items[: 1 + items[0].is_whole]
    left = len(items) - len(shown)
    more = f"; {plural(left, 'smaller item')} {'is' if left == 1 else 'are'} open" if left else ""
    worded = (open_in_words(one, result.step_time_us) for one in shown)
    return "; ".join(dict.fromkeys(part for one in worded for part in (one.sentence, one.settled_by))) + more


def open_lines(result: TriageResult, *, below: str = "") -> list[str]:
    """Return a line for each open item, the largest first, without what the headline that they are `below` says; and
    what a history would have shown besides what is nobody's fault.
    """
    unseen = unseen_in_words(result) if result.verdict == "job_wide" else None
    return [
        f"open: {line}"
        for item in sorted(result.open, key=lambda one: -one.us_per_step)
        for line in _lines(item, result, below)
    ] + ([unseen] if unseen else [])


def _lines(item: OpenItem, result: TriageResult, below: str) -> list[str]:
    worded = open_in_words(item, result.step_time_us)
    line = f"{worded.sentence}; {worded.settled_by}"
    said = [] if line in below else [line]
    if item.operator and short_name(item.operator) not in line:
        said.append(_longest_operator(item))
    return ["; ".join(said)] if said else []


def _longest_operator(item: OpenItem) -> str:
    """Return `in step 19 rank 0 ran nvjet_tst_128x256 longest`: the name that does not fit into a first line."""
    steps = f"in {'step' if len(item.steps) == 1 else 'steps'} {spans(item.steps)} " if item.steps else ""
    return (
        f"{steps}{ranks_named(item.ranks) if item.ranks else 'all ranks'} ran {short_name(item.operator or '')} longest"
    )


def unseen_in_words(result: TriageResult) -> str | None:
    """Return how slow a rank had to be for the history of steps to show it; None without a history."""
    if (unseen := result.unseen) is None:
        return None
    size = f"{duration(unseen.us_per_step)} ({percent(unseen.share_of_step)}) in every step"
    return f"in the history of {plural(unseen.steps, 'step')} a rank slower by {size} would have been seen"


def nothing_hidden(smallest_share: float) -> str:
    """Return `each unexplained part is below 4 % of the step`; rounded up, so that it never claims too much."""
    share = max(math.ceil(round(100 * smallest_share, 6)), 1) / 100
    return f"each unexplained part is below {whole_percent(share)} of the step"


def next_to_bar(bar: StepBar | None) -> str:
    """Return what the bar shows that no rank is accused of, as the end of a sentence; empty if it is small."""
    if bar is None:
        return ""
    job_wide, waiting = bar.share("job_wide"), bar.share("stragglers")
    said = []
    if job_wide > _NOTABLE_JOB_WIDE:
        said.append(f"all ranks spend {percent(job_wide)} of the step on launches, input and waiting for cores")
    if waiting > _NOTABLE_WAITING:
        among = ", or in the pipeline's bubble" if bar.bubble_from is None else ""
        said.append(f"ranks wait {percent(waiting)} of their time, each time for a different rank{among}")
    return "".join(f"; {one}" for one in said)


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
"""Characters of an operator's name in a first line: longer ones stand below it."""


def _words(item: OpenItem, step_time_us: float) -> dict[str, Any]:
    """Return the values of templates: the item's fields, and others in words."""
    more = "more steps" if item.more_steps is None else f"{count(item.more_steps)} more steps"
    return {
        **vars(item),
        "replayed_us": max(item.replayed_us or 0.0, 0.0),
        "lost": _of_step(item, step_time_us),
        "why": (why := _why(item)),
        "where_in": f" in {short_name(item.where)}" if item.where else "",
        "where_on": f" on {ranks_named(item.ranks)}" if item.ranks else "",
        "deed": _deed(item) or why,
        "steps_more": "one more step" if item.more_steps == 1 else more,
    }


def _of_step(item: OpenItem, step_time_us: float) -> str:
    """Return `3.60 of the 51.8 ms step (7.0 %)`."""
    lost = duration(item.us_per_step)
    if step_time_us <= 0:
        return f"{lost} a step"
    step = duration(step_time_us)
    return f"{without_unit(lost, of=step)} of the {step} step ({percent(item.share_of_step)})"


def _why(item: OpenItem) -> str:
    """Return ` (evaluation)`: the operator, else the cause; empty if neither is known."""
    if item.operator:
        return f" ({short_name(item.operator)})"
    return "" if item.cause in (None, "unknown") else f" ({CAUSES[item.cause].words})"


def _deed(item: OpenItem) -> str | None:
    """Return `, which computed alone (evaluate)`: the deed in words, then where, unless that is a long name."""
    if (deed := _DID.get(item.cause or "")) is None:
        return None
    name = short_name(item.operator) if item.operator else ""
    return f", {deed} ({name})" if 0 < len(name) <= _NAME_IN_LINE else f", {deed}"
