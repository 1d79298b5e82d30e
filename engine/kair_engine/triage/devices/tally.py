"""Adds up over steps what devices waited for; of the first steps that fit into a sample."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Final

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.timeline.lead import Lead, Leads, lead
from kair_engine.trace.model import NOT_TOLD, Trace
from kair_engine.trace.operations import Operations
from kair_engine.trace.steps.step_batches import operations_of_steps
from kair_engine.triage.devices.balance import Balance, balance
from kair_engine.triage.devices.launching import Launching, launching

SAMPLE: Final = 1_000_000
"""Operations that are looked at, more or less: a step is looked at as a whole."""


@dataclass
class DeviceTally:
    """What is known of the ranks of a job from the steps that were looked at."""

    ranks: Ints
    chosen: frozenset[int]
    """The steps that are looked at."""
    done_ns: Mapping[tuple[int, int], int]
    """(rank, step) → when the device had done the step."""
    threads_communicate: bool = False
    """Whether threads carry the communication beside a device, as gloo's do."""
    _launching: list[tuple[int, Ints, Launching]] = field(default_factory=list)
    _balance: list[tuple[int, Ints, Balance]] = field(default_factory=list)
    _leads: list[tuple[int, Ints, Lead]] = field(default_factory=list)
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
        of = trace.job.step_times
        cells = zip(of.rank, of.step, strict=True)
        return cls(ranks, frozenset(steps), dict(zip(cells, of.device_end_ns, strict=False)))

    def empty(self) -> "DeviceTally":
        """Another one for the same steps."""
        return DeviceTally(self.ranks, self.chosen, self.done_ns)

    def add(self, other: "DeviceTally") -> None:
        """Adds what other steps came to."""
        self.threads_communicate |= other.threads_communicate
        self._launching += other._launching
        self._balance += other._balance
        self._leads += other._leads

    def look(self, ops: Operations) -> None:
        """Looks at a step, or at some of its ranks, if it is chosen."""
        if ops.step not in self.chosen or not ops.has_device:
            return
        self.threads_communicate |= bool((ops.communication & ~ops.on_stream).any())
        place = np.searchsorted(self.ranks, ops.ranks)
        self._launching.append((ops.step, place, launching(ops)))
        self._balance.append((ops.step, place, balance(ops, self._free_ns(ops))))
        if ops.runs_ahead:
            self._leads.append((ops.step, place, lead(ops)))

    def _free_ns(self, ops: Operations) -> Ints:
        """Per rank when its device was done with the step before; its begin of this one where that is not known."""
        ends = [self.done_ns.get((rank, ops.step - 1), NOT_TOLD) for rank in ops.ranks.tolist()]
        return np.where(np.array(ends) == NOT_TOLD, ops.begin_ns, np.array(ends) - ops.origin_ns)

    def launched(self, name: str) -> Floats:
        """(ranks): a figure of Launching, the median over steps; 0 where a rank has none."""
        return self._median([(step, place, getattr(of, name)) for step, place, of in self._launching])

    @property
    def leads(self) -> Leads | None:
        """How far hosts are ahead; None where they do not run ahead."""
        return Leads.of(self.ranks, [(place, of) for _, place, of in self._leads]) if self._leads else None

    def of_device(self, name: str) -> Floats:
        """(ranks): a figure of Balance, the mean over steps."""
        return self._mean([(step, place, getattr(of, name)) for step, place, of in self._balance])

    @property
    def longest_wait_ns(self) -> float:
        """Of all ranks: how long a device was idle at a time though something was launched."""
        return max((of.longest_ns for _, _, of in self._balance), default=0.0)

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
