"""Between what and what a step loses for want of cores, and how much of that the ranks' own threads take."""

from collections.abc import Iterator
from typing import Final

from kair_engine.arrays import Floats
from kair_engine.frozen import dataclass
from kair_engine.localize.noise import noise_of_mean
from kair_engine.ranks import Rank
from kair_engine.results.evidence import Evidence, ShownBy
from kair_engine.results.whatif import LackOfCores
from kair_engine.trace.hosts import host_of
from kair_engine.trace.model import Job

WIDE: Final = 2.0
"""Standard errors of a mean over the steps, on either side."""
MOSTLY_OWN: Final = 0.5
"""Of what ranks lack: where their own threads take so much of it, that is told."""


@dataclass(frozen=True)
class OwnThreads:
    """How much of what ranks lack their own threads take, since they run more of them than they have cores."""

    share: float
    """Of what they lack."""
    helpers_us: float
    """Per step, what the mean rank's other threads compute."""
    used: float
    """Of the cores that ranks may run on, what they use themselves: of the host of which that is most."""
    cores: int
    """Of that host."""
    ranks: int

    def evidence(self) -> Iterator[Evidence]:
        """What tells it, where that is most."""
        if self.share >= MOSTLY_OWN:
            figures = {
                "helpers_us_per_step": self.helpers_us,
                "used_share": self.used,
                "cores": self.cores,
                "ranks": self.ranks,
            }
            yield Evidence("own_threads", figures, ShownBy("whatif"))


def own_threads(job: Job, cores: LackOfCores | None, step_time_us: float) -> OwnThreads | None:
    """None where nobody asked, or the ranks' cores are not known.

    While a thread has no core, one that helps it may compute in its place, or somebody else does. The former is so as
    far as helpers compute for as long as their thread lacks a core, and ranks use the cores they have themselves.
    """
    if cores is None or not any(cores.helpers_by_rank_us.values()):
        return None
    of_host = _used(job, cores, step_time_us)
    if of_host is None:
        return None
    share = lacked = 0.0
    for rank, ready in cores.ready_by_rank_us.items():
        used = of_host[host_of(job, Rank(rank))].used
        share += min(cores.helpers_by_rank_us[rank], ready) * min(used, 1.0)
        lacked += ready
    fullest = max(of_host.values(), key=lambda host: host.used)
    helpers = sum(cores.helpers_by_rank_us.values()) / len(cores.helpers_by_rank_us)
    return OwnThreads(share / max(lacked, 1e-9), helpers, fullest.used, fullest.cores, fullest.ranks)


@dataclass(frozen=True)
class _Host:
    used: float
    cores: int
    ranks: int


def _used(job: Job, cores: LackOfCores, step_time_us: float) -> dict[str | None, _Host] | None:
    """Of each host how much of its ranks' cores they use; None where some rank's are not known."""
    may_run: dict[str | None, set[int]] = {}
    computed: dict[str | None, float] = {}
    ranks: dict[str | None, int] = {}
    for rank in cores.ready_by_rank_us:
        limits, host = job.limits.get(rank), host_of(job, Rank(rank))
        if limits is None or not limits.cpus:
            return None
        may_run.setdefault(host, set()).update(limits.cpus)
        mine = cores.computed_by_rank_us[rank] + cores.helpers_by_rank_us[rank]
        computed[host] = computed.get(host, 0.0) + mine
        ranks[host] = ranks.get(host, 0) + 1
    return {
        host: _Host(computed[host] / max(len(cpus) * step_time_us, 1e-9), len(cpus), ranks[host])
        for host, cpus in may_run.items()
    }


def range_ns(least: Floats, price: Floats, most: Floats, own: OwnThreads | None) -> tuple[float, float, float]:
    """(at least, price, at most) in ns, of what each step saves by each of three replays (steps).

    What ranks' own threads take they would have to compute otherwise: with fewer threads as little may be saved as
    others take. And a mean over the steps is known no better than the steps agree.
    """
    lowest, of_stops, highest = (max(float(saved.mean()), 0.0) for saved in (least, price, most))
    lowest, highest = min(lowest, of_stops), max(highest, of_stops)
    if own is not None:
        lowest *= 1 - own.share
    below, above = (WIDE * noise_of_mean(saved[:, None]) for saved in (least, most))
    return max(lowest - below, 0.0), of_stops, highest + above
