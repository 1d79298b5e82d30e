"""The sensitivity of a recording for people: the smallest detectable faults, their limits, and what would help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kair_engine.results.sensitivity import DetectableFault, LongerRecording, SensitivityResult
from kair_tui.render.answer import Column
from kair_tui.render.delays import OF_HOSTS, absorbs_in_words
from kair_tui.render.sentences import filled
from kair_tui.render.text import short_name
from kair_tui.render.units import duration, exact_percent, mean_step, percent, plural, ranks_in_words, spans
from kair_tui.render.view import View

if TYPE_CHECKING:
    from kair_tui.render.page import Page


def sensitivity_in_words(result: SensitivityResult) -> SensitivityResult:
    """Return the answer with its sentences."""
    return replace(result, faults=tuple(replace(one, reason=reason_in_words(one)) for one in result.faults))


def reason_in_words(fault: DetectableFault) -> str:
    """Return what limits the fault, as a sentence."""
    reason = fault.because
    what = "links" if fault.fault == "slow_link" else "ranks"
    return filled(reason.wording(), {**reason.figures, "reason": reason, "what": what})


def _headline(result: SensitivityResult) -> str:
    first = next((fault for fault in result.faults if fault.smallest_us_per_step is not None), None)
    steps = plural(len(result.steps), "step")
    if first is None:
        verb = "stands" if len(result.corrected_ranks) == 1 else "stand"
        out = f" ({ranks_in_words(result.corrected_ranks)} {verb} out already)" if result.corrected_ranks else ""
        return f"this recording has no smallest fault that can be stated{out}: {result.faults[0].reason}"
    probability = exact_percent(result.probability)
    return f"in {steps} a {_name(first)} is found with {probability} probability from {_from(first)} on"


def _from(fault: DetectableFault) -> str:
    cost = f"{percent(fault.smallest_share_of_step or 0.0)} of the step"
    return cost if fault.smallest_own_slowdown is None else f"{_own(fault)} of its self time ({cost})"


def _name(fault: DetectableFault) -> str:
    return fault.fault.replace("_", " ")


def _label(fault: DetectableFault) -> str:
    if fault.fault != "stall":
        return _name(fault)
    return "stalls of 25 %" if fault.stalled_steps is None else f"{plural(fault.stalled_steps, 'stall')} of 25 %"


def _cost(fault: DetectableFault) -> str:
    return "–" if fault.smallest_us_per_step is None else duration(fault.smallest_us_per_step)


def _share(fault: DetectableFault | LongerRecording) -> str:
    return "–" if fault.smallest_share_of_step is None else percent(fault.smallest_share_of_step)


def _own(fault: DetectableFault) -> str:
    return "–" if fault.smallest_own_slowdown is None else f"+{percent(fault.smallest_own_slowdown - 1)}"


COLUMNS = (
    Column[DetectableFault]("fault", "fault", _label, align="left", weight=9),
    Column[DetectableFault]("cause", "cause", lambda row: row.cause or "–", align="left", weight=3, detail=True),
    Column[DetectableFault]("smallest_us_per_step", "per step", _cost, weight=8),
    Column[DetectableFault]("smallest_share_of_step", "of step", _share, weight=9),
    Column[DetectableFault]("smallest_own_slowdown", "self time", _own, weight=8),
)


def _in_more_steps(result: SensitivityResult) -> tuple[Column[DetectableFault], ...]:
    """Return a column for every longer recording: the share of the step that it would detect."""
    lengths = next(([one.steps for one in fault.longer] for fault in result.faults if fault.longer), [])

    def column(at: int, steps: int) -> Column[DetectableFault]:
        show: Callable[[DetectableFault], str] = lambda row: _share(row.longer[at]) if row.longer else "–"  # noqa: E731
        return Column[DetectableFault]("longer", f"{steps} steps", show, weight=5 + at)

    return tuple(column(at, steps) for at, steps in enumerate(lengths))


def _body(result: SensitivityResult, page: Page) -> None:
    if any(fault.longer for fault in result.faults):
        page.table((*COLUMNS, *_in_more_steps(result)), result.faults)
        page.line()
        for reason, names in _by_reason(result).items():
            page.bullet(f"{', '.join(names)}: {reason}")
        of_hosts = [_name(fault) for fault in result.faults if fault.fault in OF_HOSTS]
        if of_hosts and (absorbs := absorbs_in_words(result)) is not None:
            page.bullet(f"{', '.join(of_hosts)}: {absorbs}")
        for line in _of_untested(result, wide=page.options.wide):
            page.bullet(line)
        page.line()
    for line in _notes(result, wide=page.options.wide):
        page.line(line)


_ARROW: Final = "→"
"""Between the two ends of a pipeline edge."""
_LISTED: Final = 3
"""Kinds of links, and links of each, that are listed by default."""


def _of_untested(result: SensitivityResult, *, wide: bool) -> list[str]:
    """Return the links that the recording cannot test."""
    if result.untested_links is None:
        return ["slow link: steps are too large to list the links that are compared with no others"]
    kinds = result.untested_links if wide else result.untested_links[:_LISTED]
    lines = []
    for one in kinds:
        names = one.links if wide else one.links[:_LISTED]
        more = f" and {len(one.links) - len(names)} more" if len(names) < len(one.links) else ""
        verb = "takes" if len(one.links) == 1 else "take"
        listed = ", ".join(name if _ARROW in name else f"group {short_name(name)}" for name in names)
        lines.append(
            f"slow link: nothing can be said of {listed}{more}, which {verb} "
            f"{duration(one.us_per_step)} a step: too few others do the same transfers"
        )
    if rest := len(result.untested_links) - len(kinds):
        lines.append(f"slow link: nor of {plural(rest, 'more kind')} of links (-o wide lists them)")
    return lines


def _by_reason(result: SensitivityResult) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for fault in result.faults:
        names.setdefault(fault.reason, []).append(_name(fault))
    return names


def _notes(result: SensitivityResult, *, wide: bool) -> list[str]:
    notes = []
    for fault in result.faults:
        if fault.operator is not None:
            name = fault.operator if wide else short_name(fault.operator)
            notes.append(f"the slow operator is {name}, on which ranks spend most")
    if result.corrected_ranks:
        noun = "rank" if len(result.corrected_ranks) == 1 else "ranks"
        notes.append(f"the time that {noun} {spans(result.corrected_ranks)} already lost was taken out first")
    if result.corrected_links:
        notes.append(f"links that were slow already were taken out first: {', '.join(result.corrected_links)}")
    notes.append(
        f"{mean_step(result.step_time_us, result.steps)}; "
        f"false-alarm rate {exact_percent(result.false_alarm_rate)}; {plural(result.draws, 'draw')}, seed {result.seed}"
    )
    return notes


VIEW = View[SensitivityResult, DetectableFault](
    main="faults",
    columns=COLUMNS,
    headline=_headline,
    body=_body,
    records=(("faults", "fault"),),
)
