"""Who was waited for, how much, and by how many: what blame found, as shares of the step."""

from collections.abc import Collection, Sequence

import numpy as np

from kair_engine.localize.anomalies import SMALLEST_SHARE
from kair_engine.localize.excess import JobExcess
from kair_engine.localize.localization import can_accuse
from kair_engine.ranks import Rank
from kair_engine.results.blame import BlameResult, RankBlame

MOST_OF_WAITING, NOTABLE_WAITING = 2 / 3, 0.05
"""A rank that causes this share of all waiting, and of the step per peer, is a suspect without a test."""


def leads_by_waiting(job: JobExcess) -> bool:
    """Whether it is who was waited for longest that says most: of too few steps for any test, and of ranks that run one
    program. Stages of a pipeline wait for one another anyway.
    """
    return not can_accuse(job) and len(np.unique(job.role)) == 1


class Waiting:
    """Who was waited for, as a share of the step and per peer."""

    def __init__(self, job: JobExcess, blamed: BlameResult) -> None:
        self._job, self._blamed = job, blamed

    @property
    def is_known(self) -> bool:
        """Whether there were collectives to wait in."""
        return bool(self._blamed.collectives)

    def share_for(self, ranks: Sequence[Rank]) -> float | None:
        """What the other ranks of the role waited for these, each; None where the recording shows no waiting."""
        job, blamed = self._job, self._blamed
        if not ranks or not job.shows_waiting or not blamed.collectives or blamed.waiting_us <= 0:
            return None
        role = job.role[np.searchsorted(job.ranks, ranks[0])]
        # A rank without peers is waited for by those of other roles.
        peers = int(np.count_nonzero(job.role == role)) - len(ranks) or len(job.ranks) - len(ranks) or 1
        imposed = sum(row.blamed_us for row in blamed.by_rank if row.rank in ranks)
        return imposed * 1e3 / len(job.steps) / peers / job.step_time_ns

    def beyond_peers(self, ranks: Sequence[Rank]) -> float:
        """What the other ranks of the role waited for these, each, beyond what is waited for the mean one of those."""
        job = self._job
        if (own := self.share_for(ranks)) is None:
            return 0.0
        of_role = job.ranks[job.role == job.role[np.searchsorted(job.ranks, ranks[0])]].tolist()
        peers = set(of_role) - set(ranks)
        imposed = sum(row.blamed_us for row in self._blamed.by_rank if row.rank in peers)
        others = max(len(peers) * (len(of_role) - 1), 1)
        return own - imposed * 1e3 / len(job.steps) / others / job.step_time_ns

    def suspect(self, undecided: Collection[Rank]) -> RankBlame | None:
        """The rank that nearly all waiting is laid to, where that is a good part of the step.

        Where no test could accuse anybody, whoever is waited for most is worth naming (`leads_by_waiting`).
        """
        if len(self._job.ranks) < 2:
            return None
        first = next(iter(self._blamed.by_rank), None)
        most = 0.0 if leads_by_waiting(self._job) else MOST_OF_WAITING
        if first is None or first.share <= most or first.rank in undecided:
            return None
        share = self.share_for((first.rank,))
        notable = NOTABLE_WAITING if can_accuse(self._job) else SMALLEST_SHARE
        return first if share is not None and share > notable else None
