"""What workers, service and store tell each other: shards, places in them, and why something was refused.

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
"""Why there is no shard: all are in other hands (or the stream has not gone on yet), or all epochs are over."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Positions [begin, end) of an epoch, or a file, whose records are numbered from 0 on."""

    id: int
    """One shard of one epoch; no other ever gets this number."""
    number: int
    """The place in the dataset, the same in each epoch."""
    epoch: int
    begin: int
    end: int | None
    """None: a file's length is not known before somebody has read it."""
    file: str | None
    cursor: int
    """The first position that nobody has trained: where the worker begins."""
    seed: int

    def __iter__(self) -> Iterator[int]:
        """Return indices of the dataset from the cursor on; of a file, the numbers of its records, without an end."""
        if self.end is None:
            return count(self.cursor)
        return iter(self.indices(self.cursor, self.end))

    def indices(self, begin: int, end: int) -> list[int]:
        """Which indices of the dataset are at positions [begin, end): inside a shard they are in shuffled order."""
        if self.end is None:
            return list(range(begin, end))
        order = _order_inside(self.end - self.begin, self.seed, f"{self.epoch}/{self.begin}")
        return [self.begin + place for place in order[begin - self.begin : end - self.begin]]

    def batches(self, size: int) -> Iterator[tuple[int, int]]:
        """Ranges [begin, end) of positions from the cursor on, `size` long but for the last.

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
    """Where a worker is at a checkpoint: all before it is in the model, nothing after it."""

    generation: int
    shard: int | None
    """None: all that the worker took is done."""
    cursor: int = 0


def keyed_order(size: int, seed: int, label: str) -> list[int]:
    """0 … size - 1 in an order that seed and label alone determine, on every machine and in every release.

    2 µs per number.
    """
    start: Final = hashlib.sha256(f"kair shards 1\0{seed}\0{label}\0".encode())

    def key(number: int) -> bytes:
        digest = start.copy()
        digest.update(number.to_bytes(8, "big"))
        return digest.digest()

    return sorted(range(size), key=key)


@lru_cache(maxsize=2)
def _order_inside(size: int, seed: int, label: str) -> tuple[int, ...]:
    """Kept, as a worker asks for it with each batch of a shard."""
    return tuple(keyed_order(size, seed, label))


class ShardError(Exception):
    """A request was refused, and has changed nothing."""

    code: ClassVar[str] = "refused"


class StaleGenerationError(ShardError):
    """The worker was given up: what it had is in other hands, and it must not go on with the state it has."""

    code = "stale"


class NotOwnerError(ShardError):
    """The shard is not, or no longer, in this worker's hands."""

    code = "not-owner"


class OutOfPlaceError(ShardError):
    """The range does not follow what was trained of the shard before."""

    code = "out-of-place"


class CheckpointError(ShardError):
    """There is no checkpoint of this name, or another one has it already."""

    code = "checkpoint"


class AllOverError(ShardError):
    """All epochs are over, and nobody answers any more."""

    code = "over"


ERRORS: Final = {
    kind.code: kind for kind in (ShardError, StaleGenerationError, NotOwnerError, OutOfPlaceError, CheckpointError)
}
"""Refusals go over the network by these names."""
