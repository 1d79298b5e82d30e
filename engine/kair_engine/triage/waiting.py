"""Who was waited for, how much, and by how many: what blame found, as shares of the step."""

from collections.abc import Sequence

import numpy as np

from kair_engine.localize.excess import JobExcess
from kair_engine.ranks import Rank
from kair_engine.results.blame import BlameResult


class Waiting:
    """Who was waited for, as a share of the step and per peer."""

    def __init__(self, job: JobExcess, blamed: BlameResult) -> None:
        self._job, self._blamed = job, blamed

    @property
    def is_known(self) -> bool:
        """Whether there were collectives to wait in."""
        return bool(self._blamed.collectives)

    def share_for(self, ranks: Sequence[Rank]) -> float | None:
        """Return what the other ranks of the role waited for these, each; None where the recording shows no waiting."""
        job, blamed = self._job, self._blamed
        if not ranks or not job.shows_waiting or not blamed.collectives or blamed.waiting_us <= 0:
            return None
        role = job.role[np.searchsorted(job.ranks, ranks[0])]
        # A rank without peers is waited for by those of other roles.
        peers = int(np.count_nonzero(job.role == role)) - len(ranks) or len(job.ranks) - len(ranks) or 1
        imposed = sum(row.blamed_us for row in blamed.by_rank if row.rank in ranks)
        return imposed * 1e3 / len(job.steps) / peers / job.step_time_ns

    def beyond_peers(self, ranks: Sequence[Rank]) -> float:
        """Return what the other ranks of the role waited for these, each, beyond what is waited for the mean one of
        those.
        """
        job = self._job
        if (own := self.share_for(ranks)) is None:
            return 0.0
        of_role = job.ranks[job.role == job.role[np.searchsorted(job.ranks, ranks[0])]].tolist()
        peers = set(of_role) - set(ranks)
        imposed = sum(row.blamed_us for row in self._blamed.by_rank if row.rank in peers)
        others = max(len(peers) * (len(of_role) - 1), 1)
        return own - imposed * 1e3 / len(job.steps) / others / job.step_time_ns
