"""What is wrong with a recording: which rank, in which steps, how much, and the truth written beside it."""

from __future__ import annotations

import random
from dataclasses import dataclass

SLOW_OPERATOR = "kair_sample::mlp"
# Zero-based: which of a step's calls of SLOW_OPERATOR is slow, and so the layer that makes it.
SLOW_OCCURRENCE = 1
FETCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@dataclass(frozen=True)
class Fault:
    """A kind of fault: what an analysis should call it, and its severity unless the command line has one.

    Severity is the time that the guilty rank loses in an affected step, as a share of a healthy step's
    emulated time.
    """

    cause: str | None
    operator: str | None
    pattern: str | None
    severity: float


FAULTS = {
    "none": Fault(None, None, None, 0.0),
    "slow_operator": Fault("compute", SLOW_OPERATOR, "persistent", 0.3),
    "slow_input": Fault("input", FETCH, "persistent", 0.4),
    "intermittent_stall": Fault("host", None, "intermittent", 0.6),
    "busy_host": Fault("host", None, "persistent", 0.4),
}


@dataclass(frozen=True)
class FaultPlan:
    """One fault on one rank of one recording; `steps` are the recorded steps, as the N of ProfilerStep#N."""

    fault: str
    rank: int | None
    severity: float
    seed: int
    steps: range

    @property
    def affected_steps(self) -> list[int]:
        """The recorded steps in which the guilty rank loses time: all, or for a stall a third of them."""
        if self.fault == "none":
            return []
        if self.fault != "intermittent_stall":
            return list(self.steps)
        count = min(len(self.steps), max(2, len(self.steps) // 3))
        return sorted(random.Random(self.seed).sample(self.steps, count))

    def share_lost(self, fault: str, rank: int) -> float:
        """The share of a healthy step that `rank` loses to `fault` in an affected step; 0.0 if innocent."""
        return self.severity if (fault, rank) == (self.fault, self.rank) else 0.0

    def truth(self) -> dict[str, object]:
        """What an analysis of the recording ought to find, ready for JSON."""
        kind = FAULTS[self.fault]
        return {
            "fault": self.fault,
            "rank": self.rank,
            "cause": kind.cause,
            "operator": kind.operator,
            "occurrence": SLOW_OCCURRENCE if kind.operator == SLOW_OPERATOR else None,
            "pattern": kind.pattern,
            "steps": list(self.steps),
            "affected_steps": self.affected_steps,
            "severity": self.severity,
            "seed": self.seed,
        }
