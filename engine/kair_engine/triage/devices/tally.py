"""Adds up over steps what devices waited for; of the first steps that fit into a sample."""

from collections.abc import Sequence
from dataclasses import field
from typing import Final

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.trace.model import Trace
from kair_engine.trace.operations import Operations
from kair_engine.trace.steps.step_batches import operations_of_steps
from kair_engine.triage.devices.launching import Launching, launching
from kair_engine.triage.devices.queueing import Queueing, queueing

SAMPLE: Final = 1_000_000
"""Operations that are looked at, more or less: a step is looked at as a whole."""


@dataclass
class DeviceTally:
    """What is known of the ranks of a job from the steps that were looked at."""

    ranks: Ints
    chosen: frozenset[int]
    """The steps that are looked at."""
    threads_communicate: bool = False
    """Whether threads carry the communication beside a device, as gloo's do."""
    _launching: list[tuple[int, Ints, Launching]] = field(default_factory=list)
    _queueing: list[tuple[int, Ints, Queueing]] = field(default_factory=list)
    """(step, places among the ranks, what they came to): ranks of one step may be looked at in turns."""

    @classmethod
    def of(cls, trace: Trace) -> "DeviceTally":
        """An empty one for the first steps that fit into the sample, and one at least; for none without a device."""
        ranks, steps, held = np.array(trace.job.ranks, dtype=np.int64), list[int](), 0
        for step, of_step in operations_of_steps(trace).items() if trace.job.has_device else ():
            held += of_step
            if steps and held > SAMPLE:
                break
            steps.append(step)
        return cls(ranks, frozenset(steps))

    def empty(self) -> "DeviceTally":
        """Another one for the same steps."""
        return DeviceTally(self.ranks, self.chosen)

    def add(self, other: "DeviceTally") -> None:
        """Adds what other steps came to."""
        self.threads_communicate |= other.threads_communicate
        self._launching += other._launching
        self._queueing += other._queueing

    def look(self, ops: Operations) -> None:
        """Looks at a step, or at some of its ranks, if it is chosen."""
        if ops.step not in self.chosen or not ops.has_device:
            return
        self.threads_communicate |= bool((ops.communication & ~ops.on_stream).any())
        place = np.searchsorted(self.ranks, ops.ranks)
        self._launching.append((ops.step, place, launching(ops)))
        self._queueing.append((ops.step, place, queueing(ops)))

    def launched(self, name: str) -> Floats:
        """(ranks): a figure of Launching, the median over steps; 0 where a rank has none."""
        return self._median([(step, place, getattr(of, name)) for step, place, of in self._launching])

    def queued(self, name: str) -> Floats:
        """(ranks): a figure of Queueing, the mean over steps."""
        return self._mean([(step, place, getattr(of, name)) for step, place, of in self._queueing])

    @property
    def longest_wait_ns(self) -> float:
        """Of all of them."""
        return max((of.longest_ns for _, _, of in self._queueing), default=0.0)

    def _mean(self, values: Sequence[tuple[int, Ints, Floats]]) -> Floats:
        return np.mean(self._stacked(values), axis=0) if values else np.zeros(len(self.ranks))

    def _median(self, values: Sequence[tuple[int, Ints, Floats]]) -> Floats:
        return np.median(self._stacked(values), axis=0) if values else np.zeros(len(self.ranks))

    def _stacked(self, values: Sequence[tuple[int, Ints, Floats]]) -> Floats:
        at = {step: row for row, step in enumerate(dict.fromkeys(step for step, _, _ in values))}
        result = np.zeros((len(at), len(self.ranks)))
        for step, place, of_ranks in values:
            result[at[step], place] = np.nan_to_num(of_ranks, nan=0.0)
        return result
