"""The cost of several accused in words: all of them together first, then the part of each as a range.

Culprits hide one another: if two ranks are equally late, fixing one saves nothing, and fixing both saves all.
"""

from collections.abc import Sequence

from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank
from kair_engine.results import SMALLEST_SHARE
from kair_engine.results.evidence_kinds import Evidence
from kair_engine.results.triage import Finding, TriageResult
from kair_engine.results.whatif import Fix, FixPrice
from kair_tui.render.units import (
    duration,
    money,
    one_decimal,
    percent,
    plural,
    ranks_named,
    ratio,
    without_unit,
)
from kair_tui.render.within_rank import cause_with_time, when_in_words


@dataclass(frozen=True)
class Joint:
    """Several findings that accuse somebody, and their joint cost."""

    findings: tuple[Finding, ...]
    cost: FixPrice
    step_time_us: float

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """The accused ranks."""
        return tuple(sorted({rank for one in self.findings for rank in one.ranks}))

    @property
    def who(self) -> str:
        """`ranks 1 and 6`; for links without ranks their number."""
        return ranks_named(self.ranks) if self.ranks else plural(len(self.findings), "link")


def joint_of(result: TriageResult) -> Joint | None:
    """Return the findings whose price is `accused_together`; None if unknown."""
    findings = tuple(one for one in result.findings if one.pattern != "job_wide" and one.fix)
    if result.accused_together is None or len(findings) < 2:
        return None
    return Joint(findings, result.accused_together, result.step_time_us)


def fixed_first(result: TriageResult) -> tuple[str, tuple[Fix, ...]]:
    """Return what a reader would fix, in words, with the fixes: all accused, else the first finding."""
    if (joint := joint_of(result)) is not None:
        return joint.who, tuple(fix for one in joint.findings for fix in one.fix)
    return "the first finding", result.findings[0].fix if result.findings else ()


def headline_of(joint: Joint, peers: int) -> str:
    """Return `ranks 1 and 6 (compute); together they cost 5.5 of the 36.3 ms step (…); fixing one gains nothing (…)`.

    `peers` is the number of healthy ranks of the same roles.
    """
    who = _slower_throughout(joint, peers) or _named_by_cause(joint.findings)
    return f"{who}; {_subject(joint)} {_cost(joint, '')}; {_each(joint)}"


def together_in_words(joint: Joint) -> str:
    """Return `cost 5.5 of the 36.3 ms step (15.2 %, 29.1 GPU-hours a day)`, without the step if its time is unknown."""
    return _cost(joint, f"{one_decimal(joint.cost.gpu_hours_per_day)} GPU-hours a day")


def _cost(joint: Joint, hours: str) -> str:
    lost, verb = joint.cost.saved_us, "cost" if len(joint.ranks) != 1 else "costs"
    if joint.step_time_us <= 0:
        return f"{verb} {duration(lost)} a step{f' ({hours})' if hours else ''}"
    step = duration(joint.step_time_us)
    of = without_unit(duration(lost), of=step)
    return f"{verb} {of} of the {step} step ({', '.join(filter(None, (percent(joint.cost.saved_share), hours)))})"


def together_lines(result: TriageResult, finding: Finding | None = None) -> list[str]:
    """Return the joint cost of all accused, and the gain of fixing all; empty for another `finding`."""
    joint = joint_of(result)
    if joint is None or (finding is not None and finding not in joint.findings):
        return []
    paid = "" if joint.cost.cost_per_day is None else f", {money(joint.cost.cost_per_day, joint.cost.currency)} a day"
    gained = f"+{percent(joint.cost.throughput_gain)} throughput{paid}"
    return [f"{joint.who} together {together_in_words(joint)}; all fixed: {gained}"]


def saved_of_step(joint: Joint) -> str:
    """Return `5.51 ms a step (15.2 %)`."""
    return f"{duration(joint.cost.saved_us)} a step ({percent(joint.cost.saved_share)})"


def part_of_step(finding: Finding) -> str | None:
    """Return `0.07 to 5.44 ms`, the part of one finding; None if it was not replayed, or is a single figure."""
    if finding.least_us_per_step is None or finding.most_us_per_step is None:
        return None
    least, most = finding.least_us_per_step, finding.most_us_per_step
    return None if duration(least) == duration(most) else between(least, most)


def last_us(finding: Finding) -> float | None:
    """Return the saving of fixing it after all other accused; None if unknown."""
    least, most, first = finding.least_us_per_step, finding.most_us_per_step, finding.time_lost_us_per_step
    if least is None or most is None:
        return None
    return most if first - least <= most - first else least


def between(least_us: float, most_us: float) -> str:
    """Return both in the unit of the larger one: `0.07 to 5.44 ms`, `67.5 to 82.0 µs`."""
    most = duration(most_us)
    number, unit = most.rsplit(" ", 1)
    per_unit = {"µs": 1.0, "ms": 1e3, "s": 1e6}[unit]
    decimals = len(number.partition(".")[2])
    least = f"{least_us / per_unit:.{max(decimals, 1 if least_us < per_unit else decimals)}f}"
    least = "0" if float(least) == 0 else least
    return f"{least} to {most}" if least != number else most


def _subject(joint: Joint) -> str:
    return "together they" if len(joint.ranks) != 1 else "all of it"


def _each(joint: Joint) -> str:
    """Return the gain of fixing one, and the range of the parts."""
    parts = [us for one in joint.findings for us in (one.least_us_per_step, one.most_us_per_step) if us is not None]
    gained = max(one.time_lost_us_per_step for one in joint.findings)
    each = f"each {between(min(parts), max(parts))}" if parts else ""
    gains = "nothing" if gained < SMALLEST_SHARE * joint.step_time_us else f"{duration(gained)} at most"
    return f"fixing one gains {gains}{f' ({each})' if each else ''}"


def _named_by_cause(findings: Sequence[Finding]) -> str:
    """Return `ranks 1 and 6 (compute)`, `rank 2 (input) and rank 6 (compute)`, the costliest first."""
    causes: dict[tuple[Rank, ...], list[str]] = {}
    for one in findings:
        words = cause_with_time(one)
        if one.ranks and words not in causes.setdefault(one.ranks, []):
            causes[one.ranks].append(words)
    ranks_of: dict[str, set[Rank]] = {}
    for ranks, of_ranks in causes.items():
        ranks_of.setdefault(", ".join(of_ranks), set()).update(ranks)
    named = [f"{ranks_named(tuple(ranks))} ({why})" for why, ranks in ranks_of.items()]
    named += [f"{one.edge or 'a link'} ({cause_with_time(one)})" for one in findings if not one.ranks]
    return " and ".join([", ".join(named[:-1]), named[-1]]) if len(named) > 1 else named[0]


def _slower_throughout(joint: Joint, peers: int) -> str | None:
    """Return how much longer all accused compute in every kernel, which points to devices instead of code."""
    found = [_whole_device(one) for one in joint.findings]
    ratios = [one.figures["ratio"] for one in found if one is not None]
    if len(ratios) < len(found) or peers < 1 or len(joint.ranks) < 2:
        return None
    least, most = ratio(min(ratios)), ratio(max(ratios))
    longer = least if least == most else f"{least} to {most}"
    compared = "their peer" if peers == 1 else "peers"
    when = {when_in_words(one) for one in joint.findings}
    since = when.pop() if len(when) == 1 else ""
    return f"{ranks_named(joint.ranks)} compute {longer} as long as {compared}{since}"


def _whole_device(finding: Finding) -> Evidence | None:
    if finding.cause != "compute":
        return None
    return next((one for one in finding.evidence if one.kind == "whole_device"), None)
