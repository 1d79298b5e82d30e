"""What is wrong with a recording: which ranks, in which steps, how much, and the truth written beside it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from job import Job

SLOW_OPERATOR = "kair_sample::mlp"
# Zero-based: the layer whose call of SLOW_OPERATOR is slow, where there are that many.
SLOW_LAYER = 1
# What an upgrade made slower on every rank, and by how much.
UPGRADED_OPERATOR = "kair_sample::attention_backward"
UPGRADED_FACTOR = 1.25
FETCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@dataclass(frozen=True)
class Fault:
    """A kind of fault: what an analysis should call it, and its severity unless the command line has one.

    Severity is the time that a guilty rank loses in an affected step, as a share of a healthy step's
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
    # Batches of new sizes, for each of which torch.compile compiles the layers anew; severity has no say in how long.
    "recompilation": Fault("compilation", None, "intermittent", 1.0),
    # Every device of one host, as under a power cap.
    "slow_host": Fault("compute", None, "group", 0.3),
    # UPGRADED_OPERATOR is slower on every rank, which no peer shows, and SLOW_OPERATOR on one host's.
    "upgrade": Fault("compute", None, "group", 0.15),
}


@dataclass(frozen=True)
class FaultPlan:
    """One fault on some ranks of one recording; `steps` are the recorded steps, as the N of ProfilerStep#N."""

    fault: str
    ranks: tuple[int, ...]
    severity: float
    seed: int
    steps: range

    @property
    def affected_steps(self) -> list[int]:
        """The recorded steps in which the guilty ranks lose time: all, or a third of them (stalls, new batch sizes)."""
        if self.fault == "none":
            return []
        if self.fault not in {"intermittent_stall", "recompilation"}:
            return list(self.steps)
        count = min(len(self.steps), max(2, len(self.steps) // 3))
        return sorted(random.Random(self.seed).sample(self.steps, count))

    def share_lost(self, fault: str, rank: int) -> float:
        """The share of a healthy step that `rank` loses to `fault` in an affected step; 0.0 if innocent."""
        return self.severity if fault == self.fault and rank in self.ranks else 0.0

    def more_samples(self, rank: int, step: int) -> int:
        """By how many samples a batch of `rank` is larger in `step`: no two affected steps have the same size."""
        affected = self.affected_steps
        is_new = self.fault == "recompilation" and rank in self.ranks and step in affected
        return 1 + affected.index(step) if is_new else 0

    def truth(self, healthy_step_s: float, job: Job, compiled_s: float | None) -> dict[str, object]:
        """What an analysis of the recording ought to find, ready for JSON; `compiled_s` is what it compiled for."""
        kind = FAULTS[self.fault]
        # In a pipeline the slow layer runs once for each microbatch.
        once = kind.operator == SLOW_OPERATOR and job.passes == 1
        lost_s = self.severity * healthy_step_s if compiled_s is None else compiled_s / len(self.affected_steps)
        return {
            "fault": self.fault,
            "ranks": list(self.ranks),
            "cause": kind.cause,
            "operator": kind.operator,
            "occurrence": slow_layer(job) if once else None,
            "pattern": kind.pattern,
            "steps": list(self.steps),
            "affected_steps": self.affected_steps,
            "severity": self.severity,
            "lost_us": round(lost_s * 1e6),
            "seed": self.seed,
            **self._changes(healthy_step_s, job),
        }

    def _changes(self, healthy_step_s: float, job: Job) -> dict[str, object]:
        """What `kair compare` ought to find between a healthy recording of the same job and this one."""
        if self.fault != "upgrade":
            return {}
        on_host = {"operator": SLOW_OPERATOR, "ranks": list(self.ranks)}
        everywhere = {"operator": UPGRADED_OPERATOR, "ranks": list(range(job.world_size)), "factor": UPGRADED_FACTOR}
        return {"changes": [everywhere, on_host | {"added_us": round(self.severity * healthy_step_s * 1e6)}]}


def slow_layer(job: Job) -> int:
    """The layer, counted on its rank, in which the slow operator is slow."""
    return min(SLOW_LAYER, job.layers - 1)
