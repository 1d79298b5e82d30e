"""Every operator's time on every rank, by type, summed over the chosen steps."""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints
from kair_engine.localize.unnamed_collectives import unnamed_collective_warnings, with_collectives_marked
from kair_engine.ranks import Rank
from kair_engine.results.rank import StepPart
from kair_engine.results.views import OperatorsResult, OperatorTime, OperatorType, TypeTime
from kair_engine.timeline.account import AccountOfSteps
from kair_engine.timeline.clocks import Synchronisation
from kair_engine.timeline.self_time import (
    INPUT_PHASE,
    by_operator,
    host_gap_ns,
    step_time_ns,
    tail_gap_ns,
    unshared_ns,
)
from kair_engine.timeline.some_ranks import SomeRanks, some_ranks_each
from kair_engine.timeline.step_parts import PARTS, UNKNOWN, with_steps_before
from kair_engine.trace.model import KairWarning, Trace, require_steps
from kair_engine.trace.operations import COMPUTE, GC, INPUT, MEMORY, Operations

MENTIONED_SHARE: Final = 0.01
"""A warning is given if unmatched communication takes this share of all time."""

_Key = tuple[OperatorType, str | None]


def operator_times(
    trace: Trace,
    *,
    operator: str | None = None,
    only: OperatorType | None = None,
    by_rank: bool = False,
    limit: int = 40,
) -> OperatorsResult:
    """How long every operator ran: self time, as pinpoint has it, of collectives their waiting too.

    The types are of all operators, and each moment of a rank counts once in them, for the part of the step that `kair
    rank` has it in: what else runs meanwhile runs in the background. Listed are at most `limit`, the longest first,
    those whose name contains `operator` and whose type is `only` where these are given; with `by_rank` each rank's
    time. Of recordings with a device what runs on it counts, and of its threads what fetches input; without one, what
    threads do.
    Raises UsageError without a step.
    """
    require_steps(trace)
    trace = with_collectives_marked(trace)
    sums = _Sums(np.array(trace.job.ranks, dtype=np.int64), trace.steps)
    deque(map(sums.add, some_ranks_each(with_steps_before(trace), sums.meet)), maxlen=0)
    chosen = [
        (of_type, name)
        for of_type, name in sums.of
        if (operator is None or operator in (name or "")) and only in (None, of_type)
    ]
    listed = list(sums.operators(chosen, by_rank=by_rank))
    types = tuple(sums.types())
    return OperatorsResult(
        ranks=trace.job.ranks,
        steps=trace.steps,
        step_time_us=step_time_ns(trace, synchronised=sums.synchronised) / 1e3,
        total_us=sums.total_us,
        ranks_time_us=sums.ranks_time_us,
        by_type=types,
        operators=tuple(listed[:limit]),
        total_operators=len(listed),
        unlisted_us=sum(one.total_us for one in listed[limit:]),
        warnings=(*_warnings(types), *unnamed_collective_warnings(trace)),
    )


@dataclass
class _Sum:
    """Of one operator and type: an entry per rank of the job."""

    spent_ns: Floats
    calls: Floats
    given: Floats
    """Bytes, of all calls whose inputs were recorded."""
    telling: Floats
    """Calls."""

    @property
    def given_a_call(self) -> Floats:
        """Return the mean; NaN for ranks that did not record it."""
        return np.where(self.telling > 0, self.given / np.maximum(self.telling, 1.0), np.nan)


_PART_OF_TYPE: Final[dict[OperatorType, StepPart | None]] = {
    "compute": "compute",
    "memory": "compute",
    "communication": "communication",
    "waiting": "waiting",
    "unmatched": None,
    "input": "input",
    "garbage_collection": "host",
    "idle": "host",
}
"""In which part of a step a type's time counts; None: in what UNKNOWN has."""


class _Sums:
    """Adds up steps as they pass."""

    def __init__(self, ranks: Ints, steps: Sequence[int]) -> None:
        self._ranks = ranks
        self._chosen = np.array(steps)
        """Other steps only show what devices still do in the next."""
        self._steps = np.zeros(len(ranks))
        """That each rank recorded."""
        self.of: dict[_Key, _Sum] = defaultdict(lambda: _Sum(*(np.zeros(len(ranks)) for _ in range(4))))
        self.synchronised = False
        self._accounts = AccountOfSteps()
        self._once_ns = np.zeros((len(_TYPES), len(ranks)))
        """By type; each moment counts once."""
        self._ranks_time_ns = 0.0

    def meet(self, sync: Synchronisation) -> None:
        """Take in how the ranks of a step met."""
        self.synchronised |= sync.collectives.ops.step in self._chosen and len(sync.collectives) > 0

    def add(self, seen: SomeRanks) -> None:
        """Take in what some ranks did."""
        ops, parts = seen.ops, self._accounts.parts_of(seen)
        chosen, place = np.isin(seen.step, self._chosen), np.searchsorted(self._ranks, seen.rank)
        spent = np.zeros((len(_TYPES), len(chosen)))
        for of_type, fits, values in _by_type(seen):
            rows = np.flatnonzero(fits & chosen[ops.rank])
            spent[_TYPES.index(of_type)] = np.bincount(ops.rank[rows], values[rows], len(chosen))
            self._count(of_type, ops, rows, place, values)
        idle = (np.bincount(ops.rank, host_gap_ns(ops), len(chosen)) + tail_gap_ns(ops)) * chosen
        spent[_TYPES.index("idle")] = idle
        np.add.at(self.of["idle", None].spent_ns, place, idle)
        np.add.at(self._steps, place, chosen)
        np.add.at(self._once_ns.T, place[chosen], _once(spent, parts).T[chosen])
        self._ranks_time_ns += float(ops.length_ns[chosen].sum())

    def _count(self, of_type: OperatorType, ops: Operations, rows: Ints, place: Ints, spent_ns: Ints) -> None:
        ranks, first = np.unique(place, return_index=True)
        columns: list[tuple[str, Ints | Bools | None]] = [("spent_ns", spent_ns), ("calls", None)]
        if (given := ops.given_bytes) is not None:
            columns += [("given", np.maximum(given, 0)), ("telling", given >= 0)]
        for column, values in columns:
            sums = by_operator(ops, rows, values)
            for name, of_cells in zip(sums.names, sums.values, strict=True):
                getattr(self.of[of_type, name], column)[ranks] += np.add.reduceat(of_cells, first)

    @property
    def total_us(self) -> float:
        """Of all types."""
        return float(sum(of.spent_ns.sum() for of in self.of.values())) / 1e3

    @property
    def ranks_time_us(self) -> float:
        """How long all ranks took for the steps together."""
        return self._ranks_time_ns / 1e3

    def types(self) -> Iterator[TypeTime]:
        """Those on which any time was spent, the largest first."""
        spent: dict[OperatorType, Floats] = {}
        for (of_type, _), of in self.of.items():
            spent[of_type] = spent.get(of_type, 0.0) + of.spent_ns
        once = {of_type: self._once_ns[_TYPES.index(of_type)] for of_type in spent}
        for of_type in sorted(spent, key=lambda one: (-once[one].sum(), -spent[one].sum(), one)):
            if (total := float(spent[of_type].sum()) / 1e3) > 0:
                counted = float(once[of_type].sum()) / 1e3
                # A rank that has nothing of a type has 0 of it.
                over_ranks = self._over_ranks(once[of_type], self._steps > 0)
                share = self._share(counted)
                yield TypeTime(of_type, total, share, *over_ranks, background_us=max(total - counted, 0.0))

    def operators(self, keys: list[_Key], *, by_rank: bool) -> Iterator[OperatorTime]:
        """Those on which any time was spent, the largest first."""
        keys = [key for key in keys if self.of[key].spent_ns.sum() > 0]
        for key in sorted(keys, key=lambda key: (-float(self.of[key].spent_ns.sum()), key[0], key[1] or "")):
            of, (of_type, name) = self.of[key], key
            ran = (of.calls > 0) | (of.spent_ns > 0)
            total = float(of.spent_ns.sum()) / 1e3
            median, least, most, rank = self._over_ranks(of.spent_ns, ran)
            given, tells = of.given_a_call, bool(of.telling.any())
            yield OperatorTime(
                operator=name,
                type=of_type,
                total_us=total,
                share=self._share(total),
                calls=float((of.calls[ran] / self._steps[ran]).mean()),
                ranks=int(np.count_nonzero(ran)),
                median_us=median,
                min_us=least,
                max_us=most,
                max_rank=rank,
                by_rank_us=tuple(self._per_step_us(of.spent_ns).tolist()) if by_rank else (),
                input_bytes=float(np.nanmedian(given)) if tells else None,
                by_rank_input_bytes=tuple(None if np.isnan(one) else one for one in given.tolist())
                if by_rank and tells
                else (),
            )

    def _share(self, us: float) -> float:
        return us / self.ranks_time_us if self._ranks_time_ns else 0.0

    def _per_step_us(self, ns: Floats) -> Floats:
        return ns / np.maximum(self._steps, 1) / 1e3

    def _over_ranks(self, ns: Floats, ran: Bools) -> tuple[float, float, float, Rank]:
        """(median, least, most, rank with most) per step, of the ranks that have any."""
        each = self._per_step_us(ns)
        most = int(np.argmax(np.where(ran, each, -1.0)))
        of = each[ran]
        return float(np.median(of)), float(of.min()), float(of.max()), Rank(int(self._ranks[most]))


_TYPES: Final = tuple(_PART_OF_TYPE)


def _once(spent_ns: Floats, parts_ns: Floats) -> Floats:
    """(types × cells): how parts of steps (PARTS and UNKNOWN × cells) divide into what was spent on types, ns.

    Types of one part share it as they were spent, as far as that goes.
    """
    of_part = np.array([UNKNOWN if part is None else PARTS.index(part) for part in _PART_OF_TYPE.values()])
    there = np.zeros_like(parts_ns)
    np.add.at(there, of_part, spent_ns)
    share = np.divide(np.minimum(parts_ns, there), there, out=np.zeros_like(there), where=there > 0)
    return np.asarray(spent_ns * share[of_part])


def _by_type(seen: SomeRanks) -> Iterator[tuple[OperatorType, Bools, Ints]]:
    """Yield (type, rows of it, what each operation spends on it)."""
    ops, own, met = seen.ops, unshared_ns(seen.ops), seen.own_ns != NONE
    fetched = (ops.phase == INPUT_PHASE) & (ops.kind != INPUT)
    yield "compute", (ops.kind == COMPUTE) & ~fetched, own
    yield "memory", (ops.kind == MEMORY) & ~fetched, own
    yield "input", ops.kind == INPUT, own
    yield "garbage_collection", ops.kind == GC, own
    yield "communication", met, seen.own_ns
    yield "unmatched", ops.communication & ~met, ops.duration_ns
    yield "waiting", met, seen.wait_ns


def _warnings(types: tuple[TypeTime, ...]) -> Iterator[KairWarning]:
    for one in types:
        if one.type == "unmatched" and one.share > MENTIONED_SHARE:
            yield KairWarning(
                "unmatched_collectives",
                f"{one.share:.1%} of the time is communication whose other members are not recorded: it is unknown "
                "how much of that is waiting",
            )
