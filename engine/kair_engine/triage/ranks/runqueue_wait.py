"""Accuses ranks whose threads lack a core for far longer than any peer's, as the kernel measured.

By the clock two ranks of a busy host differ as much, for many reasons. Of how long threads were ready and had no core
hardly a healthy rank has a tenth of the step more than every other: those that share a core have it alike.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from kair_engine.arrays import Floats, Ints, present
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import Anomaly
from kair_engine.localize.excess import JobExcess
from kair_engine.localize.noise import TOP_BY_CHANCE, above_peers, on_top_by_chance
from kair_engine.localize.persistence import can_accuse
from kair_engine.ranks import Position
from kair_engine.results.blame import BlameResult
from kair_engine.stats import TRIM, trimmed_mean
from kair_engine.timeline.processor_time import ProcessorTimes
from kair_engine.triage.ranks.cpu_time import CPU_CLASSES, MIN_STEPS, as_in, begun_beside_peers

MIN_EXTRA_WAIT: Final = 0.10
"""A rank must wait for a core longer than the peer that waits longest for one, by this share of the step."""
STEPS_LONGER: Final = 0.75
"""A rank must wait longer for a core than that peer in this share of the steps."""
MIN_LATE_FRACTION: Final = 0.5
"""A rank must take longer, or be waited for longer, than that peer by this part of what it waits longer for a core."""


@dataclass(frozen=True)
class _Role:
    """Ranks that are compared, in some steps."""

    members: Ints
    step_time_ns: float
    lacked_ns: Floats
    """(steps × members): ready without a core."""
    spent_ns: Floats
    """(steps × members): what each took by itself beyond its role's median."""
    awaited_ns: Floats
    """(members): what is waited for each in the mean step."""

    def since(self, at: int) -> "_Role":
        return replace(self, lacked_ns=self.lacked_ns[at:], spent_ns=self.spent_ns[at:])

    def longest_waiting(self) -> Anomaly | None:
        """Whoever lacks cores for far longer than all others."""
        of_rank = trimmed_mean(self.lacked_ns, TRIM)
        most, next_to_it = np.argsort(-of_rank, kind="stable")[:2].tolist()
        apart = self.lacked_ns[:, most] - self.lacked_ns[:, next_to_it]
        longer = float(trimmed_mean(apart, TRIM))
        late = float(trimmed_mean(above_peers(self.spent_ns, most), TRIM))
        waited = float(self.awaited_ns[most] - self.awaited_ns[next_to_it]) / (len(self.members) - 1)
        # So far above all others each step counts by itself: no spell brings healthy ranks there.
        p_value = on_top_by_chance(self.lacked_ns, (most,), 1.0)
        far = longer > MIN_EXTRA_WAIT * self.step_time_ns and (apart > 0).mean() >= STEPS_LONGER
        if not far or max(late, waited) < MIN_LATE_FRACTION * longer or p_value >= TOP_BY_CHANCE:
            return None
        place = Position(int(self.members[most]))
        return Anomaly("persistent", (place,), CPU_CLASSES[0], p_value, max(late, 0.0))


def runqueue_wait_anomalies(job: JobExcess, blamed: BlameResult, processor: ProcessorTimes | None) -> Iterator[Anomaly]:
    """Single ranks, one of a role, in all steps or since some step.

    Nobody where that was not measured, or there are fewer steps than a spell may last.
    """
    if processor is None or not processor.tells_all or not can_accuse(job) or len(job.steps) < MIN_STEPS:
        return
    lacked = as_in(job, processor, processor.delay_ns)
    spent = np.nan_to_num(job.by_step_ns[:, CPU_CLASSES], nan=0.0).sum(axis=1)
    imposed = {row.rank: row.blamed_us for row in blamed.by_rank}
    awaited = np.array([1e3 * imposed.get(rank, 0.0) / len(job.steps) for rank in job.ranks.tolist()])
    begun = begun_beside_peers(job, lacked)
    for code in present(job.role):
        members = np.flatnonzero(job.role == code)
        if len(members) < 2:
            continue
        role = _Role(members, job.step_time_ns, lacked[:, members], spent[:, members], awaited[members])
        if (found := role.longest_waiting()) is not None:
            yield found
        elif begun is not None and (found := role.since(begun.at).longest_waiting()) is not None:
            yield replace(found, since=job.steps[begun.at].step)
