"""Changes durations as fixes say: to the ideal among peers, or by a factor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kair_engine.arrays import Bools, Floats
from kair_engine.causes import FixKind
from kair_engine.results.fix import Fix
from kair_engine.trace.hosts import host_of
from kair_engine.trace.model import Job
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
            ranks = np.full((rows.dp_size, rows.pp_size), -1)
            for at, rank in self.rank_of.items():
                ranks[at] = rank
            mask &= np.isin(ranks[rows.dp, rows.stage], self._ranks(fix))
        if fix.stages:
            mask &= np.isin(rows.stage, fix.stages)
        types = [
            code for code, name in enumerate(TYPES) if fix.named(name) and (not fix.kinds or kind_of(name) in fix.kinds)
        ]
        mask &= np.isin(rows.type, types)
        if not mask.any():
            raise nothing_fits(fix)
        return mask

    def of(self, fixes: Sequence[Fix]) -> Floats:
        """Per row, with all of `fixes` made. Raises UsageError where one fits nothing."""
        durations = self.times.own_ns
        for fix in fixes:
            mask = self.fitting(fix)
            if fix.scale is not None:
                durations = np.where(mask, durations * fix.scale, durations)
            else:
                ideal = self.times.ideal_ns if fix.stages else self.peers_ideal
                durations = np.where(mask, np.minimum(durations, ideal), durations)
        return durations

    @cached_property
    def peers_ideal(self) -> Floats:
        """Among one type's operations in one stage: the mean, of communications the median; no garbage pause."""
        rows, own = self.times.rows, self.times.own_ns
        kind = rows.type * rows.pp_size + rows.stage
        result = np.zeros(len(rows))
        for code in np.unique(kind):
            chosen = kind == code
            name = TYPES[int(code) // rows.pp_size]
            if name != GARBAGE:
                result[chosen] = np.median(own[chosen]) if name in COMMUNICATION else own[chosen].mean()
        return result

    def _ranks(self, fix: Fix) -> list[int]:
        return [
            rank
            for rank in self.rank_of.values()
            if (not fix.ranks or rank in fix.ranks) and (not fix.hosts or host_of(self.job, rank) in fix.hosts)
        ]


def kind_of(name: str) -> FixKind:
    """The kind of time that an operation type is."""
    if name == GARBAGE:
        return "gc"
    return "communication" if name in COMMUNICATION else "compute"
