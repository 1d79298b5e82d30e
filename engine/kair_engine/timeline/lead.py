"""How far hosts are ahead of their devices: what a delay of a host may last before its device notices.

A kernel's lead is how long after its launch it begins. Where the smallest lead of a rank is larger than a launch takes,
none of its kernels waited for its launch, and whatever its host was late by, cost nothing.
"""

from collections.abc import Sequence

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.trace.model import Trace
from kair_engine.trace.operations import SCOPE, STEP_SCOPE, SYNC, Operations
from kair_engine.trace.steps.large_steps import of_steps

AT_LEAST_NS = 50_000
"""A lead is one from here on: a launch on an idle device takes less."""


@dataclass(frozen=True)
class Lead:
    """Of a step, per rank, ns; NaN where a rank launched nothing."""

    smallest_ns: Floats
    """From a launch's return to the begin of what it launched, the shortest of all."""
    host_ns: Floats
    """What its host took for the step without waiting for the device or for a place in the launch queue."""
    period_ns: Floats
    """What the step took."""

    @property
    def slack_ns(self) -> Floats:
        """By how much longer the host could take in every step."""
        return np.asarray(np.maximum(self.period_ns - self.host_ns, 0.0))


def lead(ops: Operations) -> Lead:
    """Of a step with a device."""
    ranks = len(ops.ranks)
    rows = np.flatnonzero(ops.on_stream & (ops.launch != NONE) & ~ops.of_side_streams)
    smallest = np.full(ranks, np.inf)
    np.minimum.at(smallest, ops.rank[rows], (ops.start_ns[rows] - ops.end_ns[ops.launch[rows]]).astype(float))
    steps = [code for code, text in ops.name_text.items() if text == STEP_SCOPE]
    marks = np.flatnonzero((ops.kind == SCOPE) & np.isin(ops.name, steps))
    waits = np.flatnonzero((ops.kind == SYNC) & ~ops.on_stream & ops.of_program)
    took = np.full(ranks, np.nan)
    took[ops.rank[marks]] = ops.duration_ns[marks]
    waited = np.bincount(ops.rank[waits], weights=ops.duration_ns[waits], minlength=ranks)
    return Lead(
        smallest_ns=np.where(np.isinf(smallest), np.nan, smallest),
        host_ns=np.maximum(took - waited, 0.0),
        period_ns=ops.length_ns.astype(float),
    )


@dataclass(frozen=True)
class Leads:
    """How far the hosts of a job that run ahead are ahead of their devices, in all steps that were looked at."""

    ranks: Ints
    smallest_ns: Floats
    """Per rank the smallest lead of all; NaN of a rank that launched nothing."""
    slack_of_rank_ns: Floats
    """Per rank by how much longer its host could take in the mean step; NaN of the same."""

    @classmethod
    def of(cls, ranks: Ints, steps: Sequence[tuple[Ints, Lead]]) -> "Leads":
        """Of steps: (the places of their ranks among `ranks`, what they tell)."""
        smallest, slack, seen = np.full(len(ranks), np.inf), np.zeros(len(ranks)), np.zeros(len(ranks))
        for place, of_step in steps:
            smallest[place] = np.fmin(smallest[place], of_step.smallest_ns)
            slack[place] += np.nan_to_num(of_step.slack_ns)
            seen[place] += 1
        launched = np.isfinite(smallest)
        return cls(ranks, np.where(launched, smallest, np.nan), np.where(launched, slack / np.maximum(seen, 1), np.nan))

    def ahead_us(self, ranks: Sequence[int]) -> float | None:
        """The smallest lead of these ranks; None where it is no longer than a launch takes: then devices wait for
        launches now and then."""
        smallest = self._least(self.smallest_ns, ranks)
        return smallest / 1e3 if smallest >= AT_LEAST_NS else None

    def slack_us(self, ranks: Sequence[int]) -> float:
        """So much longer the hosts of these ranks could take in every step."""
        return self._least(self.slack_of_rank_ns, ranks) / 1e3

    def _least(self, values: Floats, ranks: Sequence[int]) -> float:
        """Of these ranks', of those that launched anything; 0 where none did."""
        known = values[np.searchsorted(self.ranks, ranks)]
        return float(known[~np.isnan(known)].min(initial=np.inf)) if not np.isnan(known).all() else 0.0


def leads_of(trace: Trace) -> Leads | None:
    """Of all chosen steps; None where hosts do not run ahead of their devices."""
    if trace.job.host_times is None:
        return None
    ranks = np.array(trace.job.ranks, dtype=np.int64)
    found: list[tuple[Ints, Lead]] = []

    def look(ops: Operations) -> None:
        found.append((np.searchsorted(ranks, ops.ranks), lead(ops)))

    for _ in of_steps(trace, look, look, lambda _step, _looked: None):
        pass
    return Leads.of(ranks, found)
