"""The condition of `--fail-on`: what a script hears of through the exit status."""

import math
import re
from dataclasses import dataclass
from typing import Literal

from kair_engine.errors import UsageError
from kair_engine.results.localize import LocalizeResult
from kair_engine.results.probe import ProbeResult
from kair_engine.results.triage import TriageResult

_SLOWDOWN = re.compile(r"slowdown\s*(>=|>)\s*(\d+(?:\.\d*)?|\.\d+)")


@dataclass(frozen=True)
class Condition:
    """`straggler`, a slowdown beyond a limit, or a machine that is `slower` than its peers."""

    what: Literal["straggler", "slowdown", "slower"]
    limit: float = 1.0
    inclusive: bool = False

    def is_met(self, result: TriageResult | LocalizeResult | ProbeResult) -> bool:
        """Whether `result` found it."""
        if isinstance(result, ProbeResult):
            return result.verdict == "confirmed"
        if isinstance(result, LocalizeResult):
            return any(row.flagged for row in result.scores)
        if self.what == "straggler":
            return result.verdict == "straggler"
        worst = max((finding.slowdown for finding in result.findings), default=-math.inf)
        return worst >= self.limit if self.inclusive else worst > self.limit


def parse_condition(text: str, command: str) -> Condition:
    """`straggler`, `slowdown>1.05` or `slowdown>=1.05`; of probe `slower`. Raises UsageError for anything else."""
    wanted = text.strip().lower()
    if command == "probe":
        if wanted != "slower":
            raise UsageError(f"--fail-on {text!r} is not a condition", "use --fail-on slower")
        return Condition("slower")
    if wanted == "straggler":
        return Condition("straggler")
    match = _SLOWDOWN.fullmatch(wanted)
    if match is None:
        raise UsageError(f"--fail-on {text!r} is not a condition", "use straggler, or 'slowdown>1.05'")
    if command != "triage":
        raise UsageError(f"{command} does not report a slowdown", "use --fail-on straggler, or kair triage")
    return Condition("slowdown", float(match[2]), inclusive=match[1] == ">=")
