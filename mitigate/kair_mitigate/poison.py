"""Drops unreadable samples from their batch, so that they do not end the job."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset


@dataclass(frozen=True, slots=True)
class Poisoned:
    """An error in place of a sample."""

    sample: int
    error: str


@dataclass(slots=True)
class Batch:
    """The collated good samples, and the bad ones."""

    data: Any
    poisoned: tuple[Poisoned, ...]

    def pin_memory(self) -> "Batch":
        """Return the batch in pinned memory, as DataLoader requires of custom types."""
        from torch.utils.data._utils.pin_memory import pin_memory

        return Batch(pin_memory(self.data), self.poisoned)


class Guarded(Dataset[Any]):  # type: ignore[misc]  # torch's types are not looked at
    """A dataset that returns errors for samples that cannot be read."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, sample: int) -> Any:  # noqa: ANN401 (whatever a data set holds)
        try:
            return self._dataset[sample]
        except Exception as error:
            return Poisoned(sample, traceback.format_exception_only(error)[-1].strip()[:300])

    def __getitems__(self, samples: list[int]) -> list[Any]:
        whole = getattr(self._dataset, "__getitems__", None)
        if whole is not None:
            try:
                return list(whole(samples))
            except Exception:
                pass
        return [self[sample] for sample in samples]


class collated:  # noqa: N801 (it is called as a function is; workers that are spawned need a class)
    """Calls `collate` on the good samples of a batch; raises RuntimeError if none can be read."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: list[Any]) -> Batch:
        """Return the batch of these samples."""
        good = [one for one in samples if not isinstance(one, Poisoned)]
        poisoned = tuple(one for one in samples if isinstance(one, Poisoned))
        if not good:
            first = poisoned[0]
            raise RuntimeError(f"no sample of a batch can be read; sample {first.sample}: {first.error}")
        return Batch(self._collate(good), poisoned)
