"""Holds the DataLoaders inside a loader: one for a rank's whole batches, one for the parts that ranks claim."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from kair_mitigate.poison import Batch, Guarded, collated

Indices = Callable[[], Iterator[list[int]]]


class Fetching:
    """A dataset's batches by sample numbers, fetched by the workers that the job configured."""

    def __init__(
        self,
        dataset: Dataset[Any],
        options: dict[str, Any],
        batches: Indices,
        parts: Indices,
        length: Callable[[], int],
    ) -> None:
        """`batches` and `parts` yield samples a step ahead, a part in `workers` lists. `options` are DataLoader's.

        All workers fetch a part together while the previous one is trained, because it is not claimed earlier.
        """
        self._collate = collated(options.pop("collate_fn", None) or default_collate)
        guarded = Guarded(dataset)
        self._batches = DataLoader(
            guarded, batch_sampler=_Sampler(batches, length), collate_fn=self._collate, **options
        )
        self.workers: int = max(self._batches.num_workers, 1)
        options |= {"prefetch_factor": 1} if self._batches.num_workers else {}
        options |= {"pin_memory": False} if self.workers > 1 else {}
        of_part = list if self.workers > 1 else self._collate
        self._parts = DataLoader(guarded, batch_sampler=_Sampler(parts, length), collate_fn=of_part, **options)

    def begin(self, *, claims: bool) -> Iterator[Any]:
        """Start fetching: parts if ranks claim them, else whole batches."""
        return iter(self._parts if claims else self._batches)

    def next_part(self, fetched: Iterator[Any]) -> Batch:
        """Return the next part, assembled from what each worker fetched."""
        if self.workers == 1:
            return next(fetched)  # type: ignore[no-any-return]
        batch = self._collate([item for _ in range(self.workers) for item in next(fetched)])
        return batch.pin_memory() if self._batches.pin_memory and torch.cuda.is_available() else batch


class _Sampler(torch.utils.data.Sampler[list[int]]):  # type: ignore[misc]  # torch's types are not looked at
    """A batch sampler that draws from a function."""

    def __init__(self, indices: Indices, length: Callable[[], int]) -> None:
        self._indices, self._length = indices, length

    def __iter__(self) -> Iterator[list[int]]:
        return self._indices()

    def __len__(self) -> int:
        return self._length()
