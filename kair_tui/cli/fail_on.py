"""The conditions of `--fail-on`: what a script hears of through the exit status."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from kair_engine.errors import UsageError
from kair_engine.results.localize import LocalizeResult
from kair_engine.results.probe import ProbeResult
from kair_engine.results.triage import TriageResult
from kair_engine.results.watch import AlertKind, WatchResult

Found = Literal["straggler", "job_wide", "inconclusive", "finding"]
"""Verdicts, and any finding at all."""
_SLOWDOWN = re.compile(r"slowdown\s*(>=|>)\s*(\d+(?:\.\d*)?|\.\d+)")
_HINT: Final = f"use {', '.join(get_args(Found))}, or 'slowdown>1.05'"


@dataclass(frozen=True)
class Condition:
    """Something found, a slowdown beyond a limit, a machine that is `slower` than its peers, or an alert."""

    what: Found | AlertKind | Literal["slowdown", "slower", "alert"]
    limit: float = 1.0
    inclusive: bool = False

    def is_met(self, result: TriageResult | LocalizeResult | ProbeResult | WatchResult) -> bool:
        """Whether `result` found it."""
        if isinstance(result, WatchResult):
            return any(self.what in ("alert", alert.kind) for alert in result.open_alerts())
        if isinstance(result, ProbeResult):
            return result.verdict == "confirmed"
        if isinstance(result, LocalizeResult):
            return bool(result.slow_links) or any(row.flagged for row in result.scores)
        if self.what == "slowdown":
            slowdown = slowdown_of(result)
            return slowdown >= self.limit if self.inclusive else slowdown > self.limit
        return bool(result.findings) if self.what == "finding" else result.verdict == self.what

    def rests_on_estimates(self, result: TriageResult | LocalizeResult | ProbeResult) -> bool:
        """Whether a slowdown is met, and would not be by what a replay tells: then it is at most as large."""
        if self.what != "slowdown" or not isinstance(result, TriageResult) or not self.is_met(result):
            return False
        sure = tuple(finding for finding in result.findings if finding.priced_by == "replay")
        return not self.is_met(replace(result, findings=sure))


def slowdown_of(result: TriageResult) -> float:
    """The step's time over that without any of the findings; not replayed together, without the costliest one."""
    found = [finding.slowdown for finding in result.findings]
    if result.together is not None and len(found) > 1:
        found.append(1 + result.together.throughput_gain)
    return max(found, default=1.0)


def parse_conditions(texts: Sequence[str], command: str) -> tuple[Condition, ...]:
    """`straggler,inconclusive`, `slowdown>1.05`, each also by itself. Raises UsageError for anything else."""
    return tuple(_parsed(one, command) for text in texts for one in text.split(","))


def _parsed(text: str, command: str) -> Condition:
    wanted = text.strip().lower()
    if command == "probe":
        if wanted != "slower":
            raise UsageError(f"--fail-on {text.strip()!r} is not a condition", "use --fail-on slower")
        return Condition("slower")
    if command == "watch":
        for kind in (*get_args(AlertKind), "alert"):
            if wanted == kind:
                return Condition(kind)
        known = ", ".join((*get_args(AlertKind), "alert"))
        raise UsageError(f"--fail-on {text.strip()!r} is not a condition", f"use {known}")
    match = _SLOWDOWN.fullmatch(wanted)
    if match is None and wanted not in get_args(Found):
        raise UsageError(f"--fail-on {text.strip()!r} is not a condition", _HINT)
    if command != "triage" and wanted != "straggler":
        what = "a slowdown" if match else f"{wanted!r}"
        raise UsageError(f"{command} does not report {what}", "use --fail-on straggler, or kair triage")
    if match is not None:
        return Condition("slowdown", float(match[2]), inclusive=match[1] == ">=")
    return Condition(next(found for found in get_args(Found) if found == wanted))
