"""Finds the ranks that are resized together: ranks that meet in every micro-batch form a unit.

Tensor, pipeline, context and expert parallel ranks, and those of an FSDP group, wait for each other many times a step:
none of them can take more than the others. Only communication once a step, such as DDP's all-reduce, joins different
units.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints
from kair_engine.timeline.collectives import match
from kair_engine.trace.operations import COLLECTIVE, PHASE_NAMES, SEND, Operations

Members = tuple[tuple[int, ...], ...]
Known = Literal["told", "recorded", "in part", "assumed"]

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
LOOKED_AT = 4
"""Recorded steps, the newest, that are asked who meets in every micro-batch."""
_FORWARD, _BACKWARD = PHASE_NAMES.index("forward"), PHASE_NAMES.index("backward")


@dataclass(frozen=True)
class Units:
    """A job's units, and the conversion between sizes of ranks and micro-batches of units.

    All ranks of a unit take the same samples per step, `micro_batch` of them in each micro-batch.
    """

    members: Members
    """The ranks of each unit, ascending; every rank is in one."""
    known: Known
    """Source: a user, a sampled window, capture's report of a part of the communication, or an assumption."""
    micro_batch: int | None = None
    """Samples of a rank per micro-batch; None if not given, which is 1 for units of one rank."""

    @property
    def ranks(self) -> int:
        """Return the number of ranks in all units."""
        return sum(map(len, self.members))

    def compute_s(self, of_ranks: Floats) -> Floats:
        """Return each unit's seconds of computing, those of its slowest rank."""
        return np.maximum.reduceat(of_ranks[self._order], self._starts)

    def micro_batches(self, sizes: Sequence[int] | Ints) -> Ints:
        """Return each unit's micro-batches for these sizes of ranks, rounded up."""
        samples = np.maximum.reduceat(np.asarray(sizes, dtype=np.int64)[self._order], self._starts)
        return np.asarray(-(-samples // (self.micro_batch or 1)), dtype=np.int64)

    def sizes(self, micro_batches: Ints) -> tuple[int, ...]:
        """Return the samples of each rank if the units take these micro-batches."""
        result = np.empty(len(self._order), dtype=np.int64)
        result[self._order] = np.repeat(micro_batches * (self.micro_batch or 1), list(map(len, self.members)))
        return tuple(result.tolist())

    def of_ranks(self, of_units: Ints) -> tuple[int, ...]:
        """Return each unit's value for each of its ranks."""
        each = {rank: int(value) for ranks, value in zip(self.members, of_units, strict=True) for rank in ranks}
        return tuple(each[rank] for rank in sorted(each))

    def slowest(self, of_ranks: Floats, unit: int) -> int:
        """Return the rank that computes longest in a unit."""
        return max(self.members[unit], key=lambda rank: float(of_ranks[rank]))

    def why_fixed(self, sizes: Sequence[int]) -> str | None:
        """Return why no other sizes can be proposed, in a sentence; None if they can."""
        fewest, largest = min(map(len, self.members)), max(map(len, self.members))
        moves = f"{len(self.members)} units of {largest} ranks move whole micro-batches"
        part = self.micro_batch or 1
        reasons = (
            (self.ranks == 1, "there is one rank"),
            (
                self.known == "in part",
                "capture reports process groups, but not yet who is in them; state it by --units 0-3,4-7",
            ),
            (
                len(self.members) == 1,
                f"all {largest} ranks meet in every micro-batch, so that only a restart can be proposed",
            ),
            (fewest < largest, f"units have different numbers of ranks, {fewest} to {largest}"),
            (largest > 1 and self.micro_batch is None, f"{moves}; --micro-batch N says of how many samples of a rank"),
            (
                self.sizes(self.micro_batches(sizes)) != tuple(sizes),
                f"a unit's ranks do not take the same now, in whole micro-batches of {part}",
            ),
        )
        return next((f"sizes stay: {why}" for holds, why in reasons if holds), None)

    def sentence(self, sizes: Sequence[int]) -> str | None:
        """Return what users should know about the units.

        Return None if each rank is resized alone, and that is certain.
        """
        if (why := self.why_fixed(sizes)) is not None:
            return why
        if self.known == "assumed":
            return "ranks are taken to be independent: capture has not reported their groups"
        if self.micro_batch is None:
            return None
        largest = max(map(len, self.members))
        fewest = max(int(self.micro_batches(sizes).min()), 1)
        of = f"{len(self.members)} units of {largest} rank{'s' if largest > 1 else ''}"
        return f"{of} take {fewest} micro-batches or more: a change of one is up to {1 / fewest:.0%} of a unit's step"

    @property
    def largest(self) -> tuple[int, ...]:
        """Return the ranks of the first of the largest units."""
        return max(self.members, key=len)

    @property
    def ties(self) -> tuple[Members, int | None]:
        """Return what is resized together, whatever its source."""
        return self.members, self.micro_batch

    @cached_property
    def _order(self) -> Ints:
        return np.array([rank for unit in self.members for rank in unit], dtype=np.int64)

    @cached_property
    def _starts(self) -> Ints:
        return np.cumsum([0, *map(len, self.members[:-1])])


def joined(ranks: int, tied: Iterable[Sequence[int]]) -> Members:
    """Return the connected components of ranks 0 to `ranks` − 1 under these ties, by their first ranks."""
    import networkx as nx  # 0.1 s, not needed if a user gives the units

    graph = nx.empty_graph(ranks)
    for some in tied:
        nx.add_path(graph, (rank for rank in some if 0 <= rank < ranks))
    return tuple(sorted(tuple(sorted(unit)) for unit in nx.connected_components(graph)))


def tied_in(ops: Operations) -> list[tuple[int, ...]] | None:
    """Return the ranks that meet in every micro-batch of a recorded step; None if it does not show the forward pass.

    These are senders with their receivers, and ranks that meet in the forward pass: tensor, context and expert parallel
    ranks, and FSDP's, which gather parameters. DDP's all-reduce is in the backward pass only, and its broadcasts in the
    forward pass are of buffers. Collectives without a later backward pass, such as a mean of losses, happen once per
    step, as do those that are rarer than a pipeline's micro-batches.
    """
    if not (ops.phase == _FORWARD).any():
        return None
    met = match(ops)
    first = met.row[met.starts]
    broadcasts = [code for code, text in ops.name_text.items() if "broadcast" in text.lower()]
    transfers = ops.kind[first] != COLLECTIVE
    last_backward = np.full(len(ops.ranks), np.iinfo(np.int64).min)
    backward = ops.phase == _BACKWARD
    np.maximum.at(last_backward, ops.rank[backward], ops.start_ns[backward])
    knows_backward = np.bincount(ops.rank[backward], minlength=len(ops.ranks))[ops.rank[first]] > 0
    is_followed = ~knows_backward | (ops.start_ns[first] < last_backward[ops.rank[first]])
    forward = ~transfers & is_followed & (ops.phase[first] == _FORWARD)
    forward &= ~np.isin(ops.name[first], broadcasts) & (met.sizes > 1)
    sent = met.row[ops.kind[met.row] == SEND]
    in_turn = np.stack((ops.rank[sent], ops.peer[sent]))[:, ops.peer[sent] != NONE]
    micro_batches = np.unique(in_turn, axis=1, return_counts=True)[1].max(initial=1)
    often = np.bincount(met.community[forward], minlength=int(met.community.max(initial=0)) + 1) >= micro_batches
    instances = np.flatnonzero(transfers | (forward & often[met.community]))
    _, once = np.unique(met.community[instances], return_index=True)
    return [tuple(ops.ranks[met.members(int(instance))].tolist()) for instance in instances[once]]


def tied_in_all(steps: Iterable[Operations]) -> list[tuple[int, ...]] | None:
    """Return the ranks that meet in every micro-batch of all these steps; None if one does not show the forward pass.

    What is rarer than a step, such as agreeing on a plan or an evaluation, is no part of a micro-batch.
    """
    found = [tied_in(ops) for ops in steps]
    every = set.intersection(*(set(tied or ()) for tied in found)) if found else set()
    return None if not found or None in found else sorted(every)


def of_size(ranks: int, size: int) -> Members:
    """Return units of `size` consecutive ranks. Raises ValueError if the job's ranks are not divisible."""
    if size < 1 or ranks % size:
        raise ValueError(f"units of {size} ranks: the job has {ranks}, which that does not divide")
    return tuple(tuple(range(first, first + size)) for first in range(0, ranks, size))


def from_text(text: str, ranks: int) -> Members:
    """Return the units in `0-3,4-7`, or `0+4,1+5` for ranks that are not consecutive; other ranks are alone.

    Raises ValueError for invalid text.
    """
    tied, seen = list[tuple[int, ...]](), set[int]()
    for unit in text.split(","):
        members = list[int]()
        for part in unit.split("+"):
            found = _RANGE.fullmatch(part)
            if found is None:
                raise ValueError(f"--units takes ranks as 0-3,4-7 or 0+4,1+5, not {text[:80]!r}")
            first, last = int(found[1]), int(found[2] or found[1])
            if last >= ranks:
                raise ValueError(f"--units names rank {last}: the job has {ranks}")
            members += range(first, last + 1)
        if not members or len(set(members) | seen) < len(members) + len(seen):
            raise ValueError(f"--units names a rank twice, or none: {text[:80]!r}")
        seen.update(members)
        tied.append(tuple(members))
    return joined(ranks, tied)
