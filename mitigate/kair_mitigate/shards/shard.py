"""Defines what workers, service and store exchange: shards, positions in them, and reasons for refusals.

Standard library only: this runs in the training process.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import ClassVar, Final, Literal

CommitPoint = Literal["checkpoint", "push"]
"""What makes a trained sample count: the checkpoint that contains it, or the push that the server applied."""
Nothing = Literal["wait", "finished"]
"""Why there is no shard: other workers hold all (or the stream has no more yet), or all epochs are over."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Positions [begin, end) of an epoch, or a file, whose records are numbered from 0."""

    id: int
    """Unique for each shard of each epoch."""
    number: int
    """Its position in the dataset, the same in each epoch."""
    epoch: int
    begin: int
    end: int | None
    """None for a file whose length is not known before it was read."""
    file: str | None
    cursor: int
    """The first untrained position, where the worker begins."""
    seed: int

    def __iter__(self) -> Iterator[int]:
        """Yield indices of the dataset from the cursor on; for a file, record numbers without an end."""
        if self.end is None:
            return count(self.cursor)
        return iter(self.indices(self.cursor, self.end))

    def indices(self, begin: int, end: int) -> list[int]:
        """Return the indices of the dataset at positions [begin, end), which are shuffled within a shard."""
        if self.end is None:
            return list(range(begin, end))
        order = _order_inside(self.end - self.begin, self.seed, f"{self.epoch}/{self.begin}")
        return [self.begin + place for place in order[begin - self.begin : end - self.begin]]

    def batches(self, size: int) -> Iterator[tuple[int, int]]:
        """Yield ranges [begin, end) of positions from the cursor on, of `size` except for the last.

        Raises ValueError for a file, whose length is not known.
        """
        if self.end is None:
            raise ValueError(
                f"the length of {self.file} is not known: read it, and count its records from {self.cursor}"
            )
        for begin in range(self.cursor, self.end, size):
            yield begin, min(begin + size, self.end)


@dataclass(frozen=True, slots=True)
class Position:
    """A worker's position at a checkpoint: everything before it is in the model, nothing after it."""

    generation: int
    shard: int | None
    """None if everything that the worker took is done."""
    cursor: int = 0


def keyed_order(size: int, seed: int, label: str) -> list[int]:
    """Return 0 … size - 1 in an order determined by seed and label only, on every machine and in every release.

    It takes 2 µs per number.
    """
    start: Final = hashlib.sha256(f"kair shards 1\0{seed}\0{label}\0".encode())

    def key(number: int) -> bytes:
        digest = start.copy()
        digest.update(number.to_bytes(8, "big"))
        return digest.digest()

    return sorted(range(size), key=key)


@lru_cache(maxsize=2)
def _order_inside(size: int, seed: int, label: str) -> tuple[int, ...]:
    """Return a shard's order, cached because a worker needs it for each batch."""
    return tuple(keyed_order(size, seed, label))


class ShardError(Exception):
    """Raised if a request was refused; it has changed nothing."""

    code: ClassVar[str] = "refused"


class StaleGenerationError(ShardError):
    """Raised if the worker was given up: others may hold its shard, and it must not continue with its state."""

    code = "stale"


class NotOwnerError(ShardError):
    """Raised if this worker does not, or no longer, hold the shard."""

    code = "not-owner"


class OutOfPlaceError(ShardError):
    """Raised if the range does not follow the trained part of the shard."""

    code = "out-of-place"


class CheckpointError(ShardError):
    """Raised if there is no checkpoint with this name, or it is already taken."""

    code = "checkpoint"


class AllOverError(ShardError):
    """Raised if all epochs are over and the service has ended."""

    code = "over"


ERRORS: Final = {
    kind.code: kind for kind in (ShardError, StaleGenerationError, NotOwnerError, OutOfPlaceError, CheckpointError)
}
"""Codes of refusals on the network."""
