"""A recorded job: its ranks, the hosts they are divided among, their pipeline stages, and each rank's work."""

from __future__ import annotations

from dataclasses import dataclass

BATCH = 4
MICROBATCHES = 3

# DDP settles its buckets in the first two steps, and a profiler's first steps are slow.
WARMUP_STEPS = 2
EARLIEST_RECORDED_STEP = 2 + WARMUP_STEPS


@dataclass(frozen=True)
class Job:
    """Ranks are numbered host after host, or pipeline stage after stage; each trains `layers` layers.

    The emulated times are `stretch` times as long as they are written: the more ranks share this machine's cores,
    the longer they have to sleep if they are not to wait for one another's computing.
    """

    world_size: int
    hosts: int
    stages: int
    layers: int
    stretch: int

    @property
    def replicas(self) -> int:
        """How many ranks train the same layers, on different samples."""
        return self.world_size // self.stages

    @property
    def ranks_per_host(self) -> int:
        """The same on every host."""
        return self.world_size // self.hosts

    @property
    def passes(self) -> int:
        """How often a rank runs its layers in a step, forwards and backwards: once for each microbatch."""
        return MICROBATCHES if self.stages > 1 else 1

    @property
    def batch(self) -> int:
        """How many samples a step of a rank takes: in a pipeline one for each microbatch."""
        return MICROBATCHES if self.stages > 1 else BATCH

    def host_name(self, rank: int) -> str:
        """An alias: the real host's name would only tell whose machine made the recording."""
        return f"node{rank // self.ranks_per_host}"

    def ranks_on(self, host: int) -> range:
        """The ranks of the host with that number."""
        return range(host * self.ranks_per_host, (host + 1) * self.ranks_per_host)

    def truth(self) -> dict[str, object]:
        """What an analysis of the recording ought to know of the job, ready for JSON."""
        hosts = [self.ranks_on(host) for host in range(self.hosts)]
        return {
            "world_size": self.world_size,
            "layout": {"dp": self.replicas, "pp": self.stages},
            "hosts": {self.host_name(ranks[0]): list(ranks) for ranks in hosts},
        }
