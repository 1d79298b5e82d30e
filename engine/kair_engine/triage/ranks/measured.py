"""Tells ranks that lack cores from those that compute more, by what the kernel measured of their threads.

Of delays that come now and then, in the steps in which they come: whatever the others are like, what a thread lacks a
core for just there is not its own.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import Anomaly
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.ranks import Rank, ranks_at
from kair_engine.results.evidence import Evidence
from kair_engine.timeline.processor_time import ProcessorTimes

MIN_MEASURED_FRACTION = 0.5
"""A rank must wait for a core, or compute, longer than its peers by this part of what it loses to be told as that."""
_OF_THREADS: Final = frozenset({"compute", "host", "input"})
"""Classes of time in which a thread runs: in the others it waits for somebody."""


@dataclass(frozen=True)
class BesidePeers:
    """Means per step, ns; of delays that come now and then, of the steps with one."""

    ranks: tuple[Rank, ...]
    ready_ns: float
    """Without a core, of these ranks."""
    computed_ns: float
    peers_ready_ns: Floats
    peers_computed_ns: Floats
    excess_ns: float
    hit_steps: int
    """0 where all steps count."""

    @property
    def lacks_cores(self) -> bool:
        """Whether what they lose is that they were ready and had no core, beyond what goes with computing more."""
        more = self._more(self.computed_ns, self.peers_computed_ns)
        missing = self._more(self.ready_ns, self.peers_ready_ns) - self._goes_with(more)
        return missing >= max(MIN_MEASURED_FRACTION * self.excess_ns, more)

    @property
    def computes_more(self) -> bool:
        """Whether it is that their threads computed for longer, with what they lacked a core for because of that."""
        more = self._more(self.computed_ns, self.peers_computed_ns)
        return more + self._goes_with(more) >= MIN_MEASURED_FRACTION * self.excess_ns

    def _goes_with(self, more_ns: float) -> float:
        """How long they lack a core because they compute so much more: as long as they, or peers, do for what they do.

        On a core that four share each millisecond of computing takes three more of waiting for it. Who is held back
        waits longer for what it computes than any of its peers does: that is no more than they would wait.
        """
        of_peers = float((self.peers_ready_ns / np.maximum(self.peers_computed_ns, 1.0)).max())
        return max(more_ns, 0.0) * min(self.ready_ns / max(self.computed_ns, 1.0), of_peers)

    def evidence(self) -> Evidence:
        """The figures of what they are."""
        lacks = self.lacks_cores
        mine, theirs = (self.ready_ns, self.peers_ready_ns) if lacks else (self.computed_ns, self.peers_computed_ns)
        figures = {
            "ready_us_per_step" if lacks else "computed_us_per_step": mine / 1e3,
            "peers_least_us": float(theirs.min()) / 1e3,
            "peers_most_us": float(theirs.max()) / 1e3,
            **({"hit_steps": self.hit_steps} if self.hit_steps else {}),
        }
        return Evidence("no_core" if lacks else "computes_more", figures, None, self.ranks)

    @staticmethod
    def _more(mine: float, theirs: Floats) -> float:
        return mine - float(np.median(theirs))


def beside_peers(
    processor: ProcessorTimes, peers: Sequence[int], largest: Anomaly, job: JobExcess
) -> BesidePeers | None:
    """What was measured of the ranks of an anomaly and of their `peers`; None where that says nothing of it."""
    if CLASSES[largest.class_index] not in _OF_THREADS or not processor.tells_all or not peers:
        return None
    hit = [job.steps[at].step for at in largest.hit] if largest.kind == "intermittent" else []
    if hit:
        looked_at, excess_ns = np.isin(processor.steps, hit), largest.excess_ns * len(job.steps) / len(hit)
    else:
        looked_at, excess_ns = processor.steps >= (largest.since or processor.steps[0]), largest.excess_ns
    told = ~np.isnan(processor.delay_ns[:, looked_at])
    if not told.any(axis=1).all():
        return None
    ready, computed = (np.mean(of[:, looked_at], axis=1, where=told) for of in (processor.delay_ns, processor.cpu_ns))
    ranks = ranks_at(job.ranks, largest.positions)
    mine, others = (np.searchsorted(processor.ranks, of) for of in (ranks, peers))
    return BesidePeers(
        ranks,
        float(ready[mine].mean()),
        float(computed[mine].mean()),
        ready[others],
        computed[others],
        excess_ns,
        len(hit),
    )
