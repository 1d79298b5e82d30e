"""Which of two or three ranks is slower than its only peers by more than healthy ones differ, step after step.

Of so few nobody knows how much healthy ones differ. What is known of that is put in, and the p-value is that of the
steps alone: how often one of the ranks is as steadily on top by chance.
"""

from dataclasses import replace

import numpy as np

from kair_engine.arrays import Floats, Ints, zero_for_nan
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import SMALLEST_SHARE, Anomaly
from kair_engine.localize.excess import COMPARED_WITH_WORK
from kair_engine.localize.excess_table import Excesses
from kair_engine.localize.noise import (
    TOP_BY_CHANCE,
    inflation,
    on_top_by_chance,
    steadily_above,
    surely_above,
    without_trend,
)
from kair_engine.ranks import Position
from kair_engine.stats import TRIM, median, trimmed_mean

FEW_PEERS_SHARE = 0.06
"""A rank must surely take longer than its only peers by this share of the step: two or three do not show their own
spread."""
FEW_PEERS_IDLE = 0.03
"""This share suffices of idle time, fetches and single operators: healthy ranks differ less in these than in what they
compute."""
FAR_APART = 0.25
"""Where every single step exceeds this share, each counts by itself: no spell brings healthy ranks so far apart."""
FAR_IDLE = 0.05
"""The same holds of idle time and fetches from this share on."""


@dataclass(frozen=True)
class _Slowest:
    """Of two or three `members` of a role the one that takes longest in something."""

    job: Excesses
    members: Ints
    per_step: Floats
    """(steps × members)."""
    place: int
    """Among these."""

    @classmethod
    def of(cls, job: Excesses, members: Ints, per_step: Floats) -> "_Slowest":
        return cls(job, members, per_step, int(np.argmax(trimmed_mean(per_step, TRIM))))

    def above(self, per_step: Floats) -> Floats:
        """Per step how far it is above the slower one of its peers, as one can be fast."""
        peers = np.delete(per_step, self.place, axis=1)
        return np.asarray(per_step[:, self.place] - peers[:, int(np.argmax(trimmed_mean(peers, TRIM)))])

    def by_chance(self, apart: Floats, share: float, far_apart: float = FAR_APART) -> float | None:
        """The chance of its places, if it is surely and steadily `apart` by this share of the step; else None."""
        far = float(apart.min()) > far_apart * self.job.step_time_ns
        inflated = 1.0 if far else inflation(self.per_step)
        p = on_top_by_chance(self.per_step, (self.place,), inflated)
        steady = steadily_above(apart, float(trimmed_mean(apart, TRIM)), share * self.job.step_time_ns, inflated)
        return p if p < TOP_BY_CHANCE and steady else None

    def is_late(self, share: float) -> bool:
        """Whether with all that it does it surely comes later than its peers: with the rest it may be as early."""
        total = zero_for_nan(self.job.by_step_ns[:, :, self.members]).sum(axis=1)
        late = total[:, self.place] - np.max(np.delete(trimmed_mean(total, TRIM), self.place))
        # Of two, a slowness that grows is one rank's: there is no third that could have spells of its own.
        inflated = inflation(without_trend(total) if len(self.members) == 2 else total)
        return surely_above(late, share * self.job.step_time_ns, inflated)

    def anomaly(self, row: int, p: float, apart: Floats) -> Anomaly:
        rank = Position(int(self.members[self.place]))
        return Anomaly("persistent", (rank,), row, p, float(trimmed_mean(apart, TRIM)))


def slow_one_of_few(job: Excesses, members: Ints, row: int) -> list[Anomaly]:
    """The slowest of two or three `members` of a role in the class at `row`, if it is slower for good."""
    if len(members) < 2:
        return []
    per_step = zero_for_nan(job.by_step_ns[:, row, members])
    slowest = _Slowest.of(job, members, per_step)
    works = COMPARED_WITH_WORK[row]
    of_class, of_all = (FEW_PEERS_SHARE,) * 2 if works else (FEW_PEERS_IDLE, SMALLEST_SHARE)
    apart = slowest.above(per_step)
    p = slowest.by_chance(apart, of_class, FAR_APART if works else FAR_IDLE)
    return [] if p is None or not slowest.is_late(of_all) else [slowest.anomaly(row, p, apart)]


def slow_operator_of_few(job: Excesses, name: str, members: Ints, row: int) -> list[Anomaly]:
    """The same in one operator, of the class at `row`, by more than in all else of it.

    A slower core makes all operators longer by like shares: what it would add is taken off. A slower device does not:
    some kernels wait for its memory and not for its clock.
    """
    if len(members) < 2:
        return []
    of_all, typical = job.operator_ns(name)
    per_step, usual_ns = of_all[:, members], float(median(typical[members]))
    slowest = _Slowest.of(job, members, per_step)
    own = slowest.above(per_step)
    others = slowest.above(zero_for_nan(job.by_step_ns[:, row, members])) - own
    others_ns = float(median(job.work_ns[row, members])) - usual_ns
    apart = own - np.maximum(others, 0.0) * (usual_ns / max(others_ns, usual_ns, 1.0))
    of_work = job.on_device and not job.operators[name]
    p = slowest.by_chance(apart, FEW_PEERS_SHARE if of_work else FEW_PEERS_IDLE)
    if p is None or not slowest.is_late(SMALLEST_SHARE):
        return []
    return [replace(slowest.anomaly(row, p, apart), operator=name)]
