"""Acts on stragglers: uneven batches with exact gradients, every sample once, ordered restarts.

A training script uses `loader`, and `commit_checkpoint` for its checkpoints. Without `kair mitigate run` around it that
is a plain loader of even sizes.
"""

from typing import TYPE_CHECKING, Any

from kair_mitigate.restarts import commit_checkpoint

if TYPE_CHECKING:
    from kair_mitigate.training_loader import Loader

__all__ = ["commit_checkpoint", "loader"]


def loader(dataset: Any, batch_size: int, seed: int = 0, **options: Any) -> "Loader":  # noqa: ANN401 (torch's types)
    """A Loader of this rank's batches; its docstring has the options."""
    from kair_mitigate.training_loader import Loader  # torch is the job's, and no other part of Kair loads it

    return Loader(dataset, batch_size, seed, **options)
