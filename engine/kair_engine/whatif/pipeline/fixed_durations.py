"""Changes durations as fixes say: to the ideal among peers, or by a factor."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, order_by
from kair_engine.causes import FixKind
from kair_engine.results.fix import FIX_KINDS, Fix
from kair_engine.trace.hosts import host_of
from kair_engine.trace.model import Job
from kair_engine.whatif.model import Parts, Transplanted
from kair_engine.whatif.pipeline.rows import COMMUNICATION, GARBAGE, TYPES
from kair_engine.whatif.pipeline.times import PipelineTimes
from kair_engine.whatif.prices import nothing_fits


@dataclass(frozen=True)
class FixedDurations:
    """A job's durations, ns, and what fixes make of them."""

    job: Job
    times: PipelineTimes
    rank_of: Mapping[tuple[int, int], int]
    """(dp rank, stage) → rank."""

    def fitting(self, fix: Fix) -> Bools:
        """Per row whether the fix is about it. Raises UsageError where it is about none."""
        rows = self.times.rows
        mask = np.ones(len(rows), dtype=bool)
        if fix.ranks or fix.hosts:
            mask &= np.isin(self._rank_of_row, self._ranks(fix))
        if fix.stages:
            mask &= np.isin(rows.stage, fix.stages)
        types = [
            code for code, name in enumerate(TYPES) if fix.named(name) and (not fix.kinds or kind_of(name) in fix.kinds)
        ]
        mask &= np.isin(rows.type, types)
        if fix.scopes:
            raise nothing_fits(fix, "the recording has no scopes, but operation types: op=forward-compute")
        if not mask.any():
            raise nothing_fits(fix)
        return mask

    def of(self, fixes: Sequence[Fix]) -> Floats:
        """Per row, with all of `fixes` made. Raises UsageError where one fits nothing."""
        durations = self.times.own_ns
        named = {rank for fix in fixes if fix.ranks or fix.hosts for rank in self._ranks(fix)}
        for fix in fixes:
            mask = self.fitting(fix)
            if fix.even:
                durations = np.where(mask, self._mean_of_stage(durations), durations)
            elif fix.scale is not None:
                durations = np.where(mask, durations * fix.scale, durations)
            else:
                of_stage = bool(fix.stages) and not (fix.ranks or fix.hosts)
                ideal = self.times.ideal_ns if of_stage else self.peers_ideal(named)
                durations = np.where(mask, np.minimum(durations, ideal), durations)
        return durations

    def parts(self) -> Parts:
        """Every operation of every step is a part."""
        rows = self.times.rows
        kinds = np.array([FIX_KINDS.index(kind_of(name)) for name in TYPES])
        return Parts(
            step=np.array(rows.steps, dtype=np.int64)[rows.step],
            at=np.arange(len(rows)) - np.searchsorted(rows.step, rows.step),
            rank=self._rank_of_row,
            operator=rows.type.astype(np.int64),
            kind=kinds[rows.type],
            which=np.stack((np.zeros(len(rows), dtype=np.int64), rows.turn.astype(np.int64))),
            delay=np.zeros(len(rows), dtype=bool),
            transfer=np.asarray(self.times.graph.group),
            value_ns=self.times.own_ns,
            operators=dict(enumerate(TYPES)),
        )

    def transplanted(self, of: Transplanted) -> Floats:
        """Per row, with some as long as in another recording."""
        rows, durations = self.times.rows, self.times.own_ns.copy()
        for begin, step in zip(np.searchsorted(rows.step, np.arange(len(rows.steps))), rows.steps, strict=True):
            for at, longer in of.of_step(step):
                durations[begin + at] += longer
        return durations

    @property
    def _rank_of_row(self) -> Ints:
        rows = self.times.rows
        ranks = np.full((rows.dp_size, rows.pp_size), NONE, dtype=np.int64)
        for at, rank in self.rank_of.items():
            ranks[at] = rank
        return np.asarray(ranks[rows.dp, rows.stage])

    def peers_ideal(self, named: Collection[int] = ()) -> Floats:
        """Per row what the other ranks of its stage take for its type: nobody is part of their own ideal.

        The lower middle one of the others' means (of communications: medians), and of those that are not `named` where
        there are such. A rank that is alone in its stage is held against itself; no garbage pause is ideal.
        """
        rows, typical = self.times.rows, self._typical
        is_named = np.zeros((rows.pp_size, rows.dp_size), dtype=bool)
        for (dp, stage), rank in self.rank_of.items():
            is_named[stage, dp] = rank in named
        others = _middle_of_others(typical, ~np.tile(is_named, (len(TYPES), 1)))
        of_all = _middle_of_others(typical, np.ones_like(typical, dtype=bool))
        ideal = np.where(np.isfinite(others), others, np.where(np.isfinite(of_all), of_all, typical))
        ideal[TYPES.index(GARBAGE) * rows.pp_size :][: rows.pp_size] = 0.0
        return np.asarray(ideal[rows.type * rows.pp_size + rows.stage, rows.dp])

    def _mean_of_stage(self, durations: Floats) -> Floats:
        """Per row what its type takes in the mean of all rows of its stage."""
        cell = self.times.rows.type * self.times.rows.pp_size + self.times.rows.stage
        return np.asarray((np.bincount(cell, durations) / np.maximum(np.bincount(cell), 1))[cell])

    @cached_property
    def _typical(self) -> Floats:
        """(types · stages × dp ranks): the mean of a rank's operations of a type, of communications the median."""
        rows, own = self.times.rows, self.times.own_ns
        cell = (rows.type * rows.pp_size + rows.stage) * rows.dp_size + rows.dp
        result = np.full(len(TYPES) * rows.pp_size * rows.dp_size, np.inf)
        order = order_by(cell)
        cells, begins = np.unique(cell[order], return_index=True)
        for code, values in zip(cells.tolist(), np.split(own[order], begins[1:]), strict=True):
            is_transfer = TYPES[code // (rows.pp_size * rows.dp_size)] in COMMUNICATION
            result[code] = np.median(values) if is_transfer else values.mean()
        return result.reshape(-1, rows.dp_size)

    def _ranks(self, fix: Fix) -> list[int]:
        return [
            rank
            for rank in self.rank_of.values()
            if (not fix.ranks or rank in fix.ranks) and (not fix.hosts or host_of(self.job, rank) in fix.hosts)
        ]


def _middle_of_others(values: Floats, counts: Bools) -> Floats:
    """Per row and column the lower middle one of the row's other finite values that count; infinite where none does."""
    counts = counts & np.isfinite(values)
    kept = np.where(counts, values, np.inf)
    order = kept.argsort(axis=1, kind="stable")
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.broadcast_to(np.arange(values.shape[1]), order.shape), axis=1)
    others = counts.sum(axis=1, keepdims=True) - counts
    middle = (others - 1) // 2
    # What comes after the column itself moves up by one place when it is left out.
    at = np.clip(middle + (counts & (place <= middle)), 0, values.shape[1] - 1)
    return np.where(others > 0, np.take_along_axis(kept, order, axis=1)[np.arange(len(kept))[:, None], at], np.inf)


def kind_of(name: str) -> FixKind:
    """The kind of time that an operation type is."""
    if name == GARBAGE:
        return "gc"
    return "communication" if name in COMMUNICATION else "compute"
