"""A triage's answer in one sentence: who, why, and the cost; or why there is no answer."""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from kair_engine.causes import CAUSES
from kair_engine.ranks import Rank, runs
from kair_engine.results.evidence_kinds import Network
from kair_engine.results.rank import StepPart
from kair_engine.results.steplog import LogOfSteps
from kair_engine.results.triage import Finding, Pattern, TriageResult, Verdict
from kair_engine.trace.model import KairWarning
from kair_tui.render.delays import absorbed_briefly
from kair_tui.render.hangs import how_it_ended, nobody_to_blame, stands_still, stuck_in_words
from kair_tui.render.joint_prices import headline_of, joint_of, part_of_step
from kair_tui.render.open_items import largest_open, next_to_bar, nothing_hidden, unseen_in_words
from kair_tui.render.steplog import log_summary
from kair_tui.render.text import spaced
from kair_tui.render.units import (
    WORTH_A_FIGURE,
    count,
    duration,
    money,
    one_decimal,
    percent,
    plural,
    ranks_in_words,
    slowdown,
    without_unit,
)
from kair_tui.render.warnings import warning_in_words
from kair_tui.render.within_rank import cause_with_time, of_devices, when_in_words

_MOST_NAMED = 3
"""Findings of one kind that a sentence names; all are listed below it."""
_FEW_RUNS = 3
"""`0-3, 8` are two: ranks in more are counted."""
_WIDE: Final = 1.5
"""Ends of a price further apart than this are both in the headline; below it the price itself is."""
_NOT_COMPARED = ("no_common_step", "no_peer", "fewer_recorded")
_LIMITS = ("several_runs", "graphs_not_recorded", *_NOT_COMPARED, "other_run", "one_rank")
"""Codes of warnings that explain why a recording is inconclusive: they come before the open amount."""
_OPEN_HANGS = (
    "no_step_yet",
    "ranks_untold",
    "folded_lines",
    "jobs_untold",
    "same_error",
    "log_says",
    "who_is_missing",
    "group_untold",
    "transfers_open",
    "members_untold",
    "dumps_missing",
    "completion_untold",
)
"""The same for recordings of calls, and for jobs before their first step."""


def summary(result: TriageResult) -> str:
    """Return the answer in one sentence; for a job that somebody ended, that as well."""
    ended = _first(result.warnings, ("ended_from_outside",))
    sentence = _verdict(result) if result.log is None or result.findings else _of_log(result, result.log)
    return sentence + (f"; {ended}" if ended else "")


def _of_log(result: TriageResult, log: LogOfSteps) -> str:
    """Return what a log shows of steps, after its open items of a hung job."""
    stands, steps = _first(result.warnings, _OPEN_HANGS), log_summary(log)
    verdict, _, of_steps = steps.partition(": ")
    return f"{verdict}: {stands}; before that {of_steps}" if stands else steps


def _verdict(result: TriageResult) -> str:
    scope = f"{plural(len(result.ranking), 'rank')}, {_steps(result)}"
    if not result.steps and not result.findings:
        return _no_hang(result)
    if result.verdict == "straggler":
        return _straggler(result)
    if result.verdict == "job_wide":
        return _job_wide(result)
    if result.verdict == "inconclusive":
        shared = _shared(result.findings)
        others = f"; no rank's fault: {shared}" if shared else ""
        limit, largest = _first(result.warnings, _LIMITS), largest_open(result)
        if any(one.kind == "idle" for one in result.open):
            limit = _first(result.warnings, tuple(code for code in _LIMITS if code != "graphs_not_recorded"))
        scope = f"1 rank, {plural(len(result.steps), 'step')}" if result.parts else scope  # its step comes below
        why = "; ".join(filter(None, (scope if limit or not largest else None, limit, largest)))
        return f"inconclusive: {why}{_most_of_step(result)}{others}"
    return _no_straggler(result, scope)


def _no_straggler(result: TriageResult, scope: str) -> str:
    """Return what was examined, what could be hidden in it, and what nobody is accused of."""
    cleared = _first(result.warnings, ("nobody_waits",))
    unseen = unseen_in_words(result)
    rest = next_to_bar(result.bar) + (f"; {unseen}" if unseen else "")
    hidden = None if result.smallest_share is None else nothing_hidden(result.smallest_share)
    if cleared is not None:
        scope = f"{scope}, {cleared}"
    elif result.absorbed:
        scope = f"{scope}; {absorbed_briefly(result.absorbed, result.step_time_us)}"
    elif hidden is None:
        scope = f"{scope}, no rank differs from its peers beyond chance"
    return f"no straggler: {scope}{f'; {hidden}' if hidden else ''}{rest}"


def _steps(result: TriageResult) -> str:
    """Return `12 steps of 95.0 ms`, without the time if unknown."""
    of = f" of {duration(result.step_time_us)}" if result.step_time_us > 0 else ""
    return f"{plural(len(result.steps), 'step')}{of}"


def _no_hang(result: TriageResult) -> str:
    """Return the answer for recordings of calls in which nobody is waited for."""
    scope = plural(len(result.ranking), "rank")
    if result.verdict == "inconclusive":
        why = _first(result.warnings, _OPEN_HANGS) or "it is unknown which rank the others wait for"
        return f"inconclusive: {scope}; {why}"
    return f"no straggler: {scope}, all have finished every collective that they called"


def verdict_in_words(verdict: Verdict) -> str:
    """Return `no straggler`, `job-wide`."""
    return _hyphened(verdict)


def pattern_in_words(pattern: Pattern) -> str:
    """Return the pattern in words: `persistent`, `job-wide`."""
    return _hyphened(pattern)


def cause_in_words(cause: str) -> str:
    """Return the cause as named in a sentence."""
    return CAUSES[cause].words


def lost_us(finding: Finding) -> tuple[float, float]:
    """Return (at least, at most) a finding's cost per step, in µs; equal for a single figure.

    Each of several accused has a part of the joint cost. For stops of all ranks' threads, a replay without them keeps
    other waiting of ranks, and no step gets shorter by more than the slowest rank's stops.
    """
    lost = finding.time_lost_us_per_step
    if finding.least_us_per_step is not None and finding.most_us_per_step is not None:
        return finding.least_us_per_step, finding.most_us_per_step
    if finding.pattern != "job_wide":
        return lost, lost
    known = [one.figures for one in finding.evidence if one.kind == "price_range"]
    bounds = [figures[end] for figures in known for end in ("least_us", "most_us")]
    if not bounds:
        bounds = [one.figures["slowest_rank_us"] for one in finding.evidence if one.kind == "host_stops"]
    return min(lost, *bounds, lost), max(lost, *bounds, lost)


def costs(finding: Finding) -> str:
    """Return what it costs: `22.8 ms`, `about 467 ms`, `2 ms to 37 ms`, `up to 19 ms`.

    Of what several cost together it is its part: `0.07 to 5 ms`.
    """
    if (part := part_of_step(finding)) is not None:
        return part
    of_least, of_most = lost_us(finding)
    least, most = duration(of_least), duration(of_most)
    if least == most:
        return least
    if of_least < WORTH_A_FIGURE * of_most:
        return f"up to {most}"
    if of_most > _WIDE * of_least:
        return f"{least} to {most}"
    return f"about {duration(finding.time_lost_us_per_step)}"


def is_hidden(finding: Finding) -> bool:
    """Return whether it costs nothing while the others stand, and its part of the joint cost is unknown."""
    return finding.slowdown - 1 < WORTH_A_FIGURE and part_of_step(finding) is None


def nothing_by_itself(finding: Finding, of: str = "") -> str:
    """Return why fixing it first saves nothing (`is_hidden`), ` of` the step."""
    why = (
        "until the other findings are fixed" if finding.pattern == "job_wide" else "by itself: others are equally late"
    )
    return f"nothing{of} {why}"


def is_idle(finding: Finding) -> bool:
    """Return whether the time was lost before its operator: its edge says the same in words."""
    return finding.edge is not None and finding.edge == f"idle before {finding.operator}"


def seen_in_words(seen: tuple[Rank, ...]) -> str:
    """Return `ranks 4-7`, or the number instead of a long list: `32 ranks`."""
    return ranks_in_words(seen) if len(runs(seen)) <= _FEW_RUNS else plural(len(seen), "rank")


def _straggler(result: TriageResult) -> str:
    """Return all accused with their joint cost, or the costliest one with its cause; and larger costs."""
    accused, joint = _accused(result.findings), joint_of(result)
    if joint is None:
        culprit, *others = accused
        lost = culprit.time_lost_us_per_step
        sentence = f"{_stragglers(culprit.ranks)}: {_first_culprit(culprit, result)}"
    else:
        others = [one for one in accused if one not in joint.findings]
        lost = joint.cost.saved_us
        sentence = f"{_stragglers(joint.ranks)}: {headline_of(joint, _peers_of(joint.ranks, result))}"
    named = _some([f"{_culprit(one)} ({cause_with_time(one)}, {_cost_alone(one)})" for one in others])
    sentence += f"; then {named}" if named else ""
    shared = next((one for one in result.findings if one.pattern == "job_wide"), None)
    if shared is None:
        return sentence
    if shared.time_lost_us_per_step > lost and not any(map(stands_still, accused)):
        more = f"{cause_in_words(shared.cause)} {_seen_on(shared, result)} costs more"
        return f"{sentence}; {more}: {costs(shared)}{_crowded(shared)}"
    return f"{sentence}; no rank's fault: {cause_in_words(shared.cause)}, {_cost_alone(shared)}"


def _stragglers(ranks: Sequence[Rank]) -> str:
    return "stragglers" if len(ranks) > 1 else "straggler"


def _peers_of(accused: Sequence[Rank], result: TriageResult) -> int:
    """Return the number of healthy ranks of the same roles."""
    roles = {row.role for row in result.ranking if row.rank in accused}
    return sum(row.role in roles and row.rank not in accused for row in result.ranking)


def _first_culprit(finding: Finding, result: TriageResult) -> str:
    """Return `rank 3 (host, 11.9 of the 56.0 ms step)`; for a slow device how much longer it takes."""
    if (whole := of_devices(finding)) is not None:
        verb = "it costs" if len(finding.ranks) == 1 else "they cost"
        return f"{whole}{when_in_words(finding)}; {verb} {_of_step(finding, result)}"
    return f"{_culprit(finding)} ({cause_with_time(finding)}, {_of_step(finding, result)})"


def step_us_of(finding: Finding, result: TriageResult) -> float:
    """Return the step time (µs) that its cost and slowdown S are of: lost · S / (S − 1).

    It is the result's, but for what began later and is priced by the steps since then.
    """
    return own_step_us(finding) or result.step_time_us


def own_step_us(finding: Finding) -> float | None:
    """Return the mean step (µs) that a change is priced by, of its own steps; None if it is the result's."""
    gained = finding.slowdown - 1
    is_of_part = (finding.since is not None or finding.until is not None) and part_of_step(finding) is None
    is_of_part = is_of_part and gained >= WORTH_A_FIGURE
    return finding.time_lost_us_per_step * finding.slowdown / gained if is_of_part else None


def _of_step(finding: Finding, result: TriageResult) -> str:
    """Return its share of the step: `11.9 of the 56.0 ms step`."""
    step_us = step_us_of(finding, result)
    if stands_still(finding) or step_us <= 0:
        return _cost_alone(finding)
    step = duration(step_us)
    if is_hidden(finding):
        return nothing_by_itself(finding, f" of the {step} step")
    if lost_us(finding)[1] >= step_us:  # at most, of a price with a range
        return f"{costs(finding)} a step{_crowded(finding)}"
    return f"{without_unit(costs(finding), of=step)} of the {step} step{_crowded(finding)}"


def _accused(findings: Sequence[Finding]) -> list[Finding]:
    return [one for one in findings if one.pattern != "job_wide"]


def _shared(findings: Sequence[Finding]) -> str:
    return _some([f"{cause_in_words(one.cause)} ({_cost_alone(one)})" for one in findings if one.pattern == "job_wide"])


def _some(texts: Sequence[str]) -> str:
    """Return all texts, or the first ones and the number of others: `a, b and 3 more`."""
    if len(texts) > _MOST_NAMED:
        texts = [*texts[: _MOST_NAMED - 1], f"{count(len(texts) - _MOST_NAMED + 1)} more"]
    *others, last = texts or [""]
    return f"{', '.join(others)} and {last}" if others else last


def _job_wide(result: TriageResult) -> str:
    first, *others = result.findings
    if stands_still(first):
        where = how_it_ended(first) or f"{_cost_alone(first)} {_seen_on(first, result)}"
        return f"job-wide: {cause_in_words(first.cause)}, {where}; {nobody_to_blame(first)}"
    when = when_in_words(first)
    texts = [f"{cause_in_words(first.cause)} {_seen_on(first, result)}{when} ({_of_step(first, result)})"]
    texts += [f"{cause_in_words(one.cause)} {_seen_on(one, result)} ({_cost_alone(one)})" for one in others]
    link = next((f", from {one.about} first" for one in first.evidence if isinstance(one, Network)), "")
    where = f"no rank is to blame: {CAUSES[first.cause].look_at}{link}"
    if len(result.ranking) == 1:
        where = "one rank only: it is unknown whether others lose the same, or whether it waits for one of them"
    return f"job-wide: {_some(texts)}; {where}"


def _most_of_step(result: TriageResult) -> str:
    """Return the largest part of the step, for one rank alone."""
    if not result.parts:
        return ""
    largest = max(result.parts, key=lambda part: part.own_us)
    return f"; {duration(largest.own_us)} of its {duration(result.step_time_us)} step are {part_in_words(largest.part)}"


def part_in_words(part: StepPart) -> str:
    """Return the name of a part of the step."""
    return "exposed communication" if part == "communication" else part


def _seen_on(finding: Finding, result: TriageResult) -> str:
    seen, ranks = finding.seen_on, len(result.ranking)
    if ranks == 1:
        return f"on {ranks_in_words((result.ranking[0].rank,))}"
    if len(seen) in (0, ranks):
        return "on all ranks"
    if len(runs(seen)) <= _FEW_RUNS:
        return f"on {ranks_in_words(seen)}"
    return f"on {count(len(seen))} of {count(ranks)} ranks"


def _culprit(finding: Finding) -> str:
    return ranks_in_words(finding.ranks) if finding.ranks else finding.edge or "a link"


def _cost_alone(finding: Finding) -> str:
    """Return its cost, without the step."""
    return why_no_cost(finding) or f"{costs(finding)}{_crowded(finding)}"


def why_no_cost(finding: Finding) -> str | None:
    """Return why a finding has no figure: the job hangs, or others are equally late; else None."""
    if stands_still(finding):
        return how_it_ended(finding) or stuck_in_words(finding)
    return nothing_by_itself(finding) if is_hidden(finding) else None


def _crowded(finding: Finding) -> str:
    """Return, for a lack of cores, who shares some: the others have enough."""
    found = next((one for one in finding.evidence if one.kind == "crowded"), None)
    if found is None or finding.pattern != "job_wide" or len(found.ranks) == len(finding.seen_on):
        return ""
    cores = int(found.figures["cores"])
    return f"; {ranks_in_words(found.ranks)} share {'a core' if cores == 1 else plural(cores, 'core')}"


def _hyphened(name: str) -> str:
    return "job-wide" if name == "job_wide" else spaced(name)


def _first(warnings: tuple[KairWarning, ...], codes: tuple[str, ...]) -> str | None:
    """Return the message of the first of these codes; of several warnings with a code, the first."""
    said = {warning.code: warning_in_words(warning).message for warning in reversed(warnings) if warning.code in codes}
    return next((said[code] for code in codes if code in said), None)


def _or_dash(show: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: "–" if value is None else show(value)


slowdown_text: Final = _or_dash(slowdown)
share_text: Final = _or_dash(percent)
hours_text: Final = _or_dash(one_decimal)
cause_text: Final = _or_dash(cause_in_words)
"""What stragglers cost a job, figure by figure; a dash where that is not known."""


class _Priced(Protocol):
    @property
    def cost_per_day(self) -> float | None: ...

    @property
    def currency(self) -> str | None: ...


def money_text(of: _Priced) -> str:
    """Return what something costs a day in its currency; a dash where no price of a GPU hour was given."""
    return "–" if of.cost_per_day is None else money(of.cost_per_day, of.currency)


def s_of_job(s: float | None, verdict: Verdict | None) -> str:
    """Write S of a job, and whether it is noise: triage found no straggler."""
    return slowdown_text(s) + (" within noise" if s is not None and verdict == "no_straggler" else "")
