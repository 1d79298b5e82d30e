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
    from kair_mitigate.training_loader import Loader  # loads torch, which only jobs have

    return Loader(dataset, batch_size, seed, **options)


def shard_client(worker: str | None = None) -> "ShardClient":
    """Return this worker's client of the service that `kair mitigate shards` runs for its job; it waits for the
    service.

    `worker` is a unique name that stays the same after a restart. By default it is host and rank, or without $RANK the
    process id, whose shard returns 30 s after a kill. Raises RuntimeError outside of a run.
    """
    from kair_mitigate.shards.meeting import client_of_run  # not needed by jobs that step together

    return client_of_run(worker)
