"""What threads lose because they stand still, by what the kernel measured.

Takes from what threads did as much as the kernel measured that they had no core.

Adds up what was measured of ranks' threads over several batches of steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, is_one_of
from kair_engine.frozen import dataclass
from kair_engine.results.whatif import FIX_KINDS, LackOfCores
from kair_engine.timeline.host_time import MEASURED, UNMEASURED_SHARE, ProcessorTimes
from kair_engine.timeline.roles import main_lane_rows
from kair_engine.trace.operations import Operations
from kair_engine.whatif.operators.dependencies import NodeParts

_OWN = tuple(FIX_KINDS.index(name) for name in ("compute", "input", "host", "gc"))
_COMMUNICATION_KIND = FIX_KINDS.index("communication")
LACKED, HELPED, ALWAYS_READY = 0.4, 0.8, 0.98
"""Threads that wait busily lack a core for this share of their own time, helpers compute for this share of that, and
they are ready or compute for this share of it. As seen: 0.5, 0.98 to 1.03, and 0.99; of threads that sleep 0.47 to
0.68, 1.0 to 1.4 and 0.80 to 0.97."""


@dataclass(frozen=True)
class MeasuredStops:
    """What was measured of the ranks of some steps, each a cell, and the parts that their time is made of."""

    cell: Ints
    """Per part the place of its cell."""
    own: Bools
    """Parts that a measured main thread spent on its own work, without waiting for others."""
    transfer: Bools
    """Parts that a measured rank's communication took, waiting excluded."""
    is_measured: Bools
    """Per cell: whether it was measured."""
    own_ns: Floats
    """Per cell the sum of its thread's own parts."""
    idle_ns: Floats
    """Per cell what the thread did not compute of its own time, and at least what it waited for a core."""
    stopped_ns: Floats
    """Per cell what of that it was not ready either, where a signal stopped the process."""
    at_once: Floats
    """Per cell the share of the thread's own time in which all threads of its process stood still at once: stopped by
    a signal, or by a quota."""
    of: Mapping[str, Floats]
    """Per cell what was measured, by the names of MEASURED; 0 where it was not."""

    @classmethod
    def beside(cls, parts: NodeParts, recorded: Sequence[Operations], times: ProcessorTimes) -> "MeasuredStops":
        """Pair the parts of the steps `recorded` with what was measured."""
        first = np.cumsum([0, *(len(ops.ranks) for ops in recorded)])
        cell = first[parts.step] + parts.rank.astype(np.int64)
        measured = [times.of_step(ops.step, ops.ranks) for ops in recorded]
        is_measured = ~np.isnan(np.concatenate([one.delay_ns for one in measured]))
        of = {name: np.nan_to_num(np.concatenate([getattr(one, name) for one in measured])) for name in MEASURED}
        delay = of["delay_ns"]
        own = (
            parts.thread
            & is_one_of(parts.kind, _OWN)
            & is_measured[cell]
            & parts.of_operations(recorded, main_lane_rows)
        )
        # After all that a step waits for, its main thread goes on until the next one begins.
        own |= (parts.row == NONE) & np.isin(parts.kind, _OWN) & is_measured[cell]
        transfer = parts.own & ~parts.thread & (parts.kind == _COMMUNICATION_KIND) & is_measured[cell]
        own_ns = np.bincount(cell[own], weights=parts.value_ns[own], minlength=first[-1]).astype(np.float64)
        idle = np.maximum(own_ns - of["cpu_ns"], delay)
        stopped = np.where(of["halted"] > 0, idle - delay, 0.0)
        together = stopped + np.where(of["throttled"] > 0, delay, 0.0)
        at_once = np.minimum(together / np.maximum(own_ns, 1.0), 1.0)
        return cls(cell, own, transfer, is_measured, own_ns, idle, stopped, at_once, of)

    @property
    def wait_busily(self) -> bool:
        """Whether threads and their helpers seem to take turns on one core, always ready: then most of it is waiting.

        Threads that sleep until their helpers are done are idle meanwhile, and those that others keep from a core have
        no helpers that compute for as long.
        """
        names = ("delay_ns", "cpu_ns", "helpers_cpu_ns")
        own, delay, cpu, helpers = (
            float(of[self.is_measured].sum()) for of in (self.own_ns, *(self.of[name] for name in names))
        )
        return delay > LACKED * own and helpers > HELPED * delay and cpu + delay > ALWAYS_READY * own

    def borne_out_ns(self, found: Floats) -> Floats:
        """Per part what of the stops `found` can be: no more than threads did not compute meanwhile."""
        share = np.where(self.is_measured, self._share(found, self.own, self.idle_ns), 1.0)
        return np.asarray(found * share[self.cell])

    def of_threads_ns(self, value: Floats, found: Floats) -> Floats:
        """Per part what the training threads would save with cores enough.

        That is `found`, which was borne out, and as much more of the thread's own time, in proportion, as it was ready
        without a core, or stopped. No more than there is.
        """
        rest = np.where(self.own, value - found, 0.0)
        missing = np.maximum(self.of["delay_ns"] + self.stopped_ns - self._sum(found, self.own), 0.0)
        return np.asarray(found + rest * self._share(rest, self.own, missing)[self.cell])

    def of_transfers_ns(self, value: Floats) -> Floats:
        """Per part what transfers would save if nothing stopped all threads at once: the share that own time loses."""
        return np.where(self.transfer, value * self.at_once[self.cell], 0.0)

    def of_communication_ns(self, value: Floats) -> Floats:
        """Per part what transfers would save at most: as much, in proportion, as their threads lacked a core."""
        transfers = np.where(self.transfer, value, 0.0)
        share = self._share(transfers, self.transfer, self.of["communication_delay_ns"])
        return np.asarray(transfers * np.maximum(share, self.at_once)[self.cell])

    def lost_ns(self, of_threads: Floats) -> Floats:
        """Per cell the sum of what its training thread would save."""
        return self._sum(of_threads, self.own)

    def _sum(self, of: Floats, parts: Bools) -> Floats:
        sums = np.bincount(self.cell[parts], weights=of[parts], minlength=len(self.is_measured))
        return sums.astype(np.float64)

    def _share(self, of: Floats, parts: Bools, most_ns: Floats) -> Floats:
        """Per cell what share of its `parts` is no more than `most_ns`."""
        return np.asarray(np.minimum(most_ns / np.maximum(self._sum(of, parts), 1.0), 1.0))


@dataclass
class CoresTally:
    """Sums per rank."""

    of_rank: dict[int, dict[str, float]] = field(default_factory=dict)

    def add(self, measured: MeasuredStops, lost_ns: Floats, ranks: Sequence[Ints]) -> None:
        """Add a batch; per step `ranks` are those that it has."""
        columns = {**measured.of, "lost_ns": lost_ns, "measured": measured.is_measured.astype(float)}
        columns |= {"steps": np.ones(len(lost_ns))}
        for cell, rank in enumerate(np.concatenate(ranks).tolist()):
            sums = self.of_rank.setdefault(rank, dict.fromkeys(columns, 0.0))
            for name, values in columns.items():
                sums[name] += float(values[cell])

    def result(self) -> LackOfCores | None:
        """Per step that was measured; None where that are too few of some rank's."""
        sums = dict(sorted(self.of_rank.items()))
        if not sums or any(of["measured"] < (1 - UNMEASURED_SHARE) * of["steps"] for of in sums.values()):
            return None

        def by_rank(name: str) -> dict[int, float]:
            return {rank: of[name] / of["measured"] / 1e3 for rank, of in sums.items()}

        return LackOfCores(
            ready_by_rank_us=by_rank("delay_ns"),
            computed_by_rank_us=by_rank("cpu_ns"),
            lost_by_rank_us=by_rank("lost_ns"),
            communication_by_rank_us=by_rank("communication_delay_ns"),
            helpers_by_rank_us=by_rank("helpers_cpu_ns"),
            throttled=float(np.mean([of["throttled"] / of["measured"] for of in sums.values()])),
            halted=float(np.mean([of["halted"] / of["measured"] for of in sums.values()])),
        )
