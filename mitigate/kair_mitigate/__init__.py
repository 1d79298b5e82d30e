"""Acts on stragglers: uneven batches with exact gradients, every sample once, ordered restarts.

A training script uses `loader`, and `commit_checkpoint` for its checkpoints. Without `kair mitigate run` around it that
is a plain loader of even sizes. Workers that do not step together use `shard_client`.
"""

from typing import TYPE_CHECKING, Any

from kair_mitigate.restarts import commit_checkpoint

if TYPE_CHECKING:
    from kair_mitigate.shards.client import ShardClient
    from kair_mitigate.training_loader import Loader

__all__ = ["commit_checkpoint", "loader", "shard_client"]


def loader(dataset: Any, batch_size: int, seed: int = 0, **options: Any) -> "Loader":  # noqa: ANN401 (torch's types)
    """Return a Loader of this rank's batches; its docstring has the options."""
    from kair_mitigate.training_loader import Loader  # torch is the job's, and no other part of Kair loads it

    return Loader(dataset, batch_size, seed, **options)


def shard_client(worker: str | None = None) -> "ShardClient":
    """Return this worker's client of the service that `kair mitigate shards` runs for its job; it waits until that is
    there.

    `worker`: a name that no other worker has, and this one again after a restart. Default: host and rank, or without
    $RANK the process' number, whose shard comes back 30 s after a kill. Raises RuntimeError outside of a run.
    """
    from kair_mitigate.shards.meeting import client_of_run  # a job that steps together needs none of it

    return client_of_run(worker)
