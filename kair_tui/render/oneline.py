"""A triage on one line, for a pager, a chat or a job's comment."""

import re
from typing import Final

from kair_engine.causes import CAUSES
from kair_engine.results.triage import Finding, TriageResult
from kair_engine.results.whatif import FixPrice
from kair_tui.render.joint_prices import joint_of, part_of_step, saved_of_step
from kair_tui.render.text import clean
from kair_tui.render.units import money, p_value, percent, plural, ranks_in_words, ranks_named
from kair_tui.render.verdict import (
    cause_in_words,
    costs,
    seen_in_words,
    step_us_of,
    summary,
    verdict_in_words,
    why_no_cost,
)

LONGEST: Final = 200
"""Characters that a pager shows at once, and that Slurm keeps of a comment."""
_NAME: Final = 40
"""Characters of a name from the recording."""
_RUNS: Final = 3
"""`0-3, 8` are two runs: ranks in more are counted."""
_UUID: Final = re.compile(r"\b(GPU|MIG)-([0-9a-f]{8})-[0-9a-f-]{27}\b")


def oneline(result: TriageResult, job: str) -> str:
    """Return job, verdict, who and where, cause and part, cost, money, p, and the number of steps, in 200 characters.

    A longer text loses the device first, then the number of other findings; then names are cut.
    """
    lines = (_line(result, job, with_device=device, with_others=others) for device, others in _WITH)
    fitting = next((line for line in lines if len(line) <= LONGEST), None)
    return fitting or _cut(_line(result, job, with_device=False, with_others=False), LONGEST)


_WITH: Final = ((True, True), (False, True), (False, False))


def chosen_finding(result: TriageResult) -> Finding | None:
    """Return the first finding that accuses somebody, else the first; None without findings."""
    return next((one for one in result.findings if one.ranks), next(iter(result.findings), None))


def cost_in_words(finding: Finding, result: TriageResult) -> str:
    """Return `41 ms a step (12.0 %)`; for one of several its part, then all of it; for a hung job where it hangs."""
    if (joint := joint_of(result)) is not None and part_of_step(finding) is not None:
        others = tuple(rank for rank in joint.ranks if rank not in finding.ranks)
        whom = f"together with {ranks_named(others)}" if others else "all of it"
        return f"{whom} {saved_of_step(joint)}, its part {costs(finding)}"
    if (why := why_no_cost(finding)) is not None:
        return why
    step_time_us = step_us_of(finding, result)
    share = f" ({percent(finding.time_lost_us_per_step / step_time_us)})" if step_time_us > 0 else ""
    of_recording = " in recorded steps alone" if CAUSES[finding.cause].of_recording else ""
    return f"{costs(finding)} a step{share}{of_recording}"


def part_of(finding: Finding) -> str | None:
    """Return the part that evidence explains it by, in words; None without one."""
    explained = next((one for one in finding.explanations if one.word == "explains"), None)
    if explained is None:
        return None
    from kair_tui.render.explanations import part_in_words

    return part_in_words(explained.part)


def _line(result: TriageResult, job: str, *, with_device: bool, with_others: bool) -> str:
    name = _name(job)
    finding = chosen_finding(result)
    if finding is None:
        # The summary says why, and over how many ranks and steps.
        return f"{name}: {clean(summary(result))}"
    findings: tuple[Finding, ...]
    joint = joint_of(result)
    if joint is None or finding not in joint.findings:
        who, findings = _who(finding, with_device=with_device), (finding,)
        figures = [clean(cost_in_words(finding, result)), *_gained(finding)]
    else:
        who, findings = joint.who, joint.findings
        figures = [f"together {saved_of_step(joint)}", *_money(joint.cost)]
    if known := [one.p_value for one in findings if one.p_value is not None]:
        figures.append(f"p {p_value(max(known))}")
    if result.steps:
        figures.append(plural(len(result.steps), "step"))
    why = ", ".join(dict.fromkeys(map(_why, findings)))
    others = len(result.findings) - len(findings)
    more = f"; {plural(others, 'more finding')}" if others and with_others else ""
    return f"{name}: {verdict_in_words(result.verdict)}: {who}: {why}, {', '.join(figures)}{more}"


def _gained(finding: Finding) -> list[str]:
    """Return a fix's saving per day; empty if it alone saves nothing, or nothing outside the recorded steps."""
    saves_nothing = why_no_cost(finding) is not None or CAUSES[finding.cause].of_recording
    return [] if saves_nothing else _money(finding)


def _money(without: Finding | FixPrice) -> list[str]:
    """Return `56.37 USD a day` if the price of a GPU hour is known."""
    return [] if without.cost_per_day is None else [f"{money(without.cost_per_day, without.currency)} a day"]


def _why(finding: Finding) -> str:
    part = part_of(finding)
    return cause_in_words(finding.cause) + (f" ({part})" if part else "")


def _who(finding: Finding, *, with_device: bool) -> str:
    if not finding.ranks:
        seen = f", seen on {seen_in_words(finding.seen_on)}" if finding.seen_on else ""
        return f"no rank is to blame{seen}" if finding.pattern == "job_wide" else _name(finding.edge or "a link")
    who = ranks_in_words(finding.ranks, _RUNS)
    if with_device and finding.devices:
        more = f" and {len(finding.devices) - 1} more" if len(finding.devices) > 1 else ""
        return f"{who} on {_device(finding.devices[0])}{more}"
    if not finding.hosts:
        return who
    more = f" and {len(finding.hosts) - 1} more" if len(finding.hosts) > 1 else ""
    return f"{who} on {_name(finding.hosts[0])}{more}"


def _device(words: str) -> str:
    """Return a device's names for looking it up; a UUID's first digits distinguish it."""
    return _cut(_UUID.sub(r"\1-\2", clean(words)), 2 * _NAME)


def _name(text: str) -> str:
    return _cut(clean(text), _NAME)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
