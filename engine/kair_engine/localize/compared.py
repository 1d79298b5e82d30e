"""Whom the ranks of an anomaly are compared with, and in which steps."""

from collections.abc import Collection, Sequence
from functools import cached_property

import numpy as np

from kair_engine.arrays import Bools, Floats
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import Anomaly
from kair_engine.localize.excess import JobExcess
from kair_engine.ranks import Position, Rank, as_positions, ranks_at


@dataclass(frozen=True)
class Compared:
    """The ranks of an anomaly, the other ranks of their role, and the steps in which they are compared."""

    job: JobExcess
    largest: Anomaly

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """Their numbers."""
        return ranks_at(self.job.ranks, self.largest.positions)

    @cached_property
    def mine(self) -> list[int]:
        """Their places."""
        return list(self.largest.positions)

    @cached_property
    def peers(self) -> list[int]:
        """The places of the others."""
        of_role = np.flatnonzero(self.job.role == self.job.role[self.mine[0]]).tolist()
        return [place for place in of_role if place not in self.largest.positions]

    @cached_property
    def later(self) -> Bools:
        """The steps from the one in which the ranks began to be slow."""
        return np.array([self.largest.since is None or step.step >= self.largest.since for step in self.job.steps])

    @property
    def away(self) -> int:
        """How far a rank lies from its peers, in distances from its role's median: of two that is halfway."""
        return 2 if len(self.mine) + len(self.peers) == 2 else 1

    def unaccused(self, accused: Collection[int]) -> list[Position]:
        """Return the places of the peers that nobody accuses; of all, where everybody is."""
        healthy = [place for place in self.peers if place not in accused]
        return list(as_positions(np.array(healthy or self.peers, dtype=np.int64)))

    def means(self, of_steps: Floats, steps: Sequence[int] | None = None) -> tuple[float, float]:
        """Return the mean of (steps × ranks) of the ranks, and of their median peer; 0 without peers.

        `steps` are the numbers of the steps, where these are not the job's.
        """
        later = self.later if steps is None else np.array(steps) >= (self.largest.since or steps[0])
        if not later.any():
            return 0.0, 0.0
        of_rank = of_steps[later].mean(axis=0)
        return float(of_rank[self.mine].mean()), float(np.median(of_rank[self.peers])) if self.peers else 0.0
