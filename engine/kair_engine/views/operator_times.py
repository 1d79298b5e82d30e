"""Every operator's time on every rank, by type, summed over the chosen steps."""

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.localize.unnamed_collectives import unnamed_collective_warnings, with_collectives_marked
from kair_engine.ranks import Rank
from kair_engine.results.views import OperatorsResult, OperatorTime, OperatorType, TypeTime
from kair_engine.timeline.clocks import synchronise
from kair_engine.timeline.self_time import INPUT_PHASE, host_gap_ns, step_time_ns, tail_gap_ns, unshared_ns
from kair_engine.trace.large_steps import LargeStep, of_steps
from kair_engine.trace.model import KairWarning, Trace, require_steps
from kair_engine.trace.operations import COMPUTE, GC, INPUT, MEMORY, Operations

MENTIONED_SHARE: Final = 0.01
"""Of all time: unmatched communication that a warning tells of."""

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

    The types are of all operators. Listed are at most `limit`, the longest first, those whose name contains `operator`
    and whose type is `only` where these are given; with `by_rank` each rank's time. Of recordings with a device what
    runs on it counts, and of its threads what fetches input; without one, what threads do.
    Raises UsageError without a step.
    """
    require_steps(trace)
    trace = with_collectives_marked(trace)
    sums = _Sums(np.array(trace.job.ranks, dtype=np.int64))
    deque(of_steps(trace, sums.add, sums.add_by_themselves, sums.add_large), maxlen=0)
    chosen = [key for key in sums.of if _is_asked_for(key, operator, only)]
    listed = list(sums.operators(chosen, by_rank=by_rank))
    types = tuple(sums.types())
    return OperatorsResult(
        ranks=trace.job.ranks,
        steps=trace.steps,
        step_time_us=step_time_ns(trace, synchronised=sums.synchronised) / 1e3,
        total_us=sums.total_us,
        by_type=types,
        operators=tuple(listed[:limit]),
        total_operators=len(listed),
        unlisted_us=sum(one.total_us for one in listed[limit:]),
        warnings=(*_warnings(types), *unnamed_collective_warnings(trace)),
    )


def _is_asked_for(key: _Key, operator: str | None, only: OperatorType | None) -> bool:
    of_type, name = key
    return (operator is None or operator in (name or "")) and only in (None, of_type)


@dataclass
class _Sum:
    """Of one operator and type: an entry per rank of the job."""

    spent_ns: Floats
    calls: Floats
    given: Floats
    """Bytes, of all calls that tell what they are given."""
    telling: Floats
    """Calls."""

    @property
    def given_a_call(self) -> Floats:
        """In the mean; NaN for ranks that do not tell."""
        return np.where(self.telling > 0, self.given / np.maximum(self.telling, 1.0), np.nan)


class _Sums:
    """Adds up steps as they pass."""

    def __init__(self, ranks: Ints) -> None:
        self._ranks = ranks
        self._steps = np.zeros(len(ranks))
        """That each rank recorded."""
        self.of: dict[_Key, _Sum] = defaultdict(lambda: _Sum(*(np.zeros(len(ranks)) for _ in range(4))))
        self.synchronised = False

    def add(self, ops: Operations) -> None:
        """Takes in one step."""
        self.add_by_themselves(ops)
        self._add_meetings(ops)

    def add_by_themselves(self, ops: Operations) -> None:
        """Takes in what ranks do by themselves in a step, be it of some ranks only."""
        own = unshared_ns(ops)
        for of_type, rows in _rows_of_types(ops):
            self._count(of_type, ops, rows, own)
        idle = np.bincount(ops.rank, host_gap_ns(ops), len(ops.ranks)) + tail_gap_ns(ops)
        self.of["idle", None].spent_ns[np.searchsorted(self._ranks, ops.ranks)] += idle

    def add_large(self, step: LargeStep, _: object) -> None:
        """Takes in how the ranks of a step met; the rest of it was taken in some ranks at a time."""
        self._add_meetings(step.operations())

    def _add_meetings(self, ops: Operations) -> None:
        sync = synchronise(ops)
        self.synchronised |= len(sync.collectives) > 0
        self._steps[np.searchsorted(self._ranks, ops.ranks)] += 1
        met, own = sync.collectives.row, np.zeros(len(ops), dtype=np.int64)
        own[met] = sync.own_ns[sync.collectives.instance]
        matched = np.zeros(len(ops), dtype=bool)
        matched[met] = True
        self._count("communication", ops, np.flatnonzero(matched), own)
        self._count("unmatched", ops, np.flatnonzero(ops.communication & ~matched), ops.duration_ns)
        self._count("waiting", ops, np.flatnonzero(matched), np.maximum(ops.duration_ns - own, 0))

    def _count(self, of_type: OperatorType, ops: Operations, rows: Ints, spent_ns: Ints) -> None:
        names, name = np.unique(ops.name[rows], return_inverse=True)
        place, ranks = np.searchsorted(self._ranks, ops.ranks), len(ops.ranks)
        cell = name.reshape(-1) * ranks + ops.rank[rows]
        spent = np.bincount(cell, spent_ns[rows], len(names) * ranks).reshape(len(names), ranks)
        calls = np.bincount(cell, minlength=len(names) * ranks).reshape(len(names), ranks)
        for at, code in enumerate(names.tolist()):
            of = self.of[of_type, ops.name_text[code]]
            of.spent_ns[place] += spent[at]
            of.calls[place] += calls[at]
        if ops.given_bytes is None:
            return
        told = ops.given_bytes[rows]
        given = np.bincount(cell, np.maximum(told, 0), len(names) * ranks).reshape(len(names), ranks)
        telling = np.bincount(cell, told >= 0, len(names) * ranks).reshape(len(names), ranks)
        for at, code in enumerate(names.tolist()):
            of = self.of[of_type, ops.name_text[code]]
            of.given[place] += given[at]
            of.telling[place] += telling[at]

    @property
    def total_us(self) -> float:
        """Of all types."""
        return float(sum(of.spent_ns.sum() for of in self.of.values())) / 1e3

    def types(self) -> Iterator[TypeTime]:
        """Those on which any time was spent, the largest first."""
        spent: dict[OperatorType, Floats] = {}
        for (of_type, _), of in self.of.items():
            spent[of_type] = spent.get(of_type, 0.0) + of.spent_ns
        for of_type, ns in sorted(spent.items(), key=lambda item: -item[1].sum()):
            if ns.sum() > 0:
                total, share = self._totals(ns)
                median, least, most, rank = self._over_ranks(ns, ns > 0)
                yield TypeTime(of_type, total, share, median, least, most, rank)

    def operators(self, keys: list[_Key], *, by_rank: bool) -> Iterator[OperatorTime]:
        """Those on which any time was spent, the largest first."""
        keys = [key for key in keys if self.of[key].spent_ns.sum() > 0]
        for key in sorted(keys, key=lambda key: (-float(self.of[key].spent_ns.sum()), key[0], key[1] or "")):
            of, (of_type, name) = self.of[key], key
            ran = (of.calls > 0) | (of.spent_ns > 0)
            total, share = self._totals(of.spent_ns)
            median, least, most, rank = self._over_ranks(of.spent_ns, ran)
            given, tells = of.given_a_call, bool(of.telling.any())
            yield OperatorTime(
                operator=name,
                type=of_type,
                total_us=total,
                share=share,
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

    def _totals(self, ns: Floats) -> tuple[float, float]:
        total = float(ns.sum()) / 1e3
        return total, total / self.total_us

    def _per_step_us(self, ns: Floats) -> Floats:
        return ns / np.maximum(self._steps, 1) / 1e3

    def _over_ranks(self, ns: Floats, ran: Bools) -> tuple[float, float, float, Rank]:
        """(median, least, most, rank with most) per step, of the ranks that have any."""
        each = self._per_step_us(ns)
        most = int(np.argmax(np.where(ran, each, -1.0)))
        of = each[ran]
        return float(np.median(of)), float(of.min()), float(of.max()), Rank(int(self._ranks[most]))


def _rows_of_types(ops: Operations) -> Iterator[tuple[OperatorType, Ints]]:
    fetched = (ops.phase == INPUT_PHASE) & (ops.kind != INPUT)
    of_kind: tuple[tuple[OperatorType, Bools], ...] = (
        ("compute", (ops.kind == COMPUTE) & ~fetched),
        ("memory", (ops.kind == MEMORY) & ~fetched),
        ("input", ops.kind == INPUT),
        ("garbage_collection", ops.kind == GC),
    )
    for of_type, rows in of_kind:
        yield of_type, np.flatnonzero(rows)


def _warnings(types: tuple[TypeTime, ...]) -> Iterator[KairWarning]:
    for one in types:
        if one.type == "unmatched" and one.share > MENTIONED_SHARE:
            yield KairWarning(
                "unmatched_collectives",
                f"{one.share:.1%} of the time is communication whose other members are not recorded: how much of that "
                "is waiting cannot be told",
            )
