"""Which steps of ranks belong together where nothing numbers them, since recordings begin at other moments.

Ranks meet in collectives. Their numbers (`Seq`) tell which are the same. Without numbers it is told by which of them
follow one another, and by when they end: members leave a collective together, so that the ends of the same steps lie
equally far apart, by whatever clocks, while those of others differ as iterations do. Where these do not either, the
clock tells.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from kair_engine.arrays import Ints
from kair_engine.frozen import dataclass
from kair_engine.trace.model import KairWarning
from kair_engine.trace.warning_texts import short_warning

_AGREEING: Final = 0.9
"""Share of the collectives, or of the steps, that two ranks must have in common in the same way."""
_FEWEST: Final = 8
"""Collectives that two ranks must have in common before their ends tell anything."""
_MARGIN: Final = 3.0
"""How many times as far apart the ends of other steps must be."""
_RESOLUTION_NS: Final = 1_000.0
_MOST_STEPS: Final = 100_000
_LOOKED_AT: Final = 64
"""Steps, of those that two ranks may have in common, whose ends are compared."""
_AT_ONCE: Final = 0.05
"""Of a step: so near to one another collectives end by clocks of hosts that are not known to be one."""


@dataclass(frozen=True)
class Alignment:
    """rank → by how much it numbers its steps higher than the job does, for those that could be told; and by what."""

    more: dict[int, int]
    told_by: frozenset[str]

    def warnings(self) -> list[KairWarning]:
        """That steps were matched, where that was needed."""
        if not any(self.more.values()):
            return []
        by = " and ".join(sorted(self.told_by))
        text = f"recordings begin at other moments on each rank: their steps are matched by {by}"
        return [short_warning("steps_matched", text)]


@dataclass(frozen=True)
class _Calls:
    """The collectives of one rank, in order of their starts; texts as numbers that all ranks share."""

    step: Ints
    group: Ints
    number: Ints
    """Its sequence number in its group, -1 for none."""
    key: Ints
    """What it is: name, group and bytes."""
    end_ns: Ints

    def of(self, groups: Ints) -> "_Calls":
        """Those in some groups."""
        chosen = np.isin(self.group, groups)
        return _Calls(*(getattr(self, name)[chosen] for name in ("step", "group", "number", "key", "end_ns")))


def aligned(
    fragments: Sequence[Path], counted: Collection[int], numbered: Collection[int], clocks: Mapping[int, str]
) -> Alignment:
    """The common numbers of the steps of ranks that are `counted` from 0; those of `numbered` ranks are common already.

    `clocks` names the clock of each rank whose times are absolute; an empty name stands for one that is not known.
    """
    calls = _calls(fragments)
    more = dict.fromkeys(numbered, 0)
    first = min((rank for rank in counted if rank in calls), key=lambda rank: int(calls[rank].end_ns[0]), default=None)
    if not more and first is not None:
        more[first] = 0
    told_by: set[str] = set()
    waiting = [rank for rank in more if rank in calls]
    for placed in waiting:
        for rank in sorted(counted):
            if rank in more or rank not in calls:
                continue
            if (found := _offset(calls[placed], calls[rank], _clock(clocks, placed, rank))) is not None:
                offset, by = found
                more[rank] = more[placed] + offset
                told_by.add(by)
                waiting.append(rank)
    if not numbered:
        highest = max(more.values(), default=0)
        more = {rank: off - highest for rank, off in more.items()}
    return Alignment({rank: off for rank, off in more.items() if rank in counted}, frozenset(told_by))


def _clock(clocks: Mapping[int, str], one: int, other: int) -> bool | None:
    """Whether two ranks share a clock; None where the times of one of them are its own."""
    if one not in clocks or other not in clocks:
        return None
    return bool(clocks[one]) and clocks[one] == clocks[other]


def _calls(fragments: Sequence[Path]) -> dict[int, _Calls]:
    import polars as pl  # for few jobs

    columns = [pl.col("rank", "step", "start_ns"), (pl.col("start_ns") + pl.col("duration_ns")).alias("end")]
    texts = [pl.col(name).cast(pl.String).fill_null("") for name in ("name", "group")]
    numbers = [pl.col(name).fill_null(-1) for name in ("group_seq", "bytes")]
    rows = (
        pl.scan_parquet(list(fragments))
        .filter(pl.col("kind").cast(pl.String) == "collective")
        .select(*columns, *texts, *numbers)
        .with_columns(key=pl.struct("name", "group", "bytes").rank("dense").cast(pl.Int64))
        .with_columns(group=pl.col("group").rank("dense").cast(pl.Int64))
        .sort("rank", "start_ns")
        .collect()
    )
    found: dict[int, _Calls] = {}
    for (rank,), of_rank in rows.group_by(["rank"], maintain_order=True):
        of = (of_rank[name].to_numpy().astype(np.int64) for name in ("step", "group", "group_seq", "key", "end"))
        found[int(rank)] = _Calls(*of)
    return found


def _offset(one: _Calls, other: _Calls, one_clock: bool | None) -> tuple[int, str] | None:
    """How much higher `other` numbers the steps that both ran, and what tells that; None where nothing does."""
    shared = np.intersect1d(one.group, other.group)
    if not len(shared):
        return None
    one, other = one.of(shared), other.of(shared)
    if (off := _by_number(one, other)) is not None:
        return off, "the numbers of collectives (Seq)"
    candidates = list(_candidates(one, other))
    if not candidates:
        return None
    candidates.sort(key=lambda candidate: candidate.spread_ns)
    best = candidates[0]
    if len(candidates) > 1 and candidates[1].spread_ns + _RESOLUTION_NS >= _MARGIN * (best.spread_ns + _RESOLUTION_NS):
        return best.offset, "when their collectives end"
    nearest = min(candidates, key=lambda candidate: abs(candidate.apart_ns))
    if one_clock or (one_clock is False and abs(nearest.apart_ns) <= _AT_ONCE * _step_ns(one)):
        return nearest.offset, "the clock"
    return None


def _by_number(one: _Calls, other: _Calls) -> int | None:
    """By the collectives that have one number in one group on both."""
    found = []
    for calls in (one, other):
        numbered = calls.number >= 0
        ids = np.stack((calls.group[numbered], calls.number[numbered]))
        found.append(dict(zip(zip(*ids.tolist(), strict=True), calls.step[numbered].tolist(), strict=True)))
    offsets = Counter(found[1][call] - step for call, step in found[0].items() if call in found[1])
    if not offsets:
        return None
    off, often = offsets.most_common(1)[0]
    return off if often >= _AGREEING * offsets.total() else None


@dataclass(frozen=True)
class _Candidate:
    offset: int
    apart_ns: float
    """By how much the ends of its collectives lie apart, by the ranks' clocks."""
    spread_ns: float
    """By how much that differs between collectives."""


def _candidates(one: _Calls, other: _Calls) -> Iterator[_Candidate]:
    """The offsets by which at least half of the steps of one rank are the same as the other's."""
    if max(int(np.ptp(calls.step)) for calls in (one, other)) > _MOST_STEPS:
        return
    kinds: dict[bytes, int] = {}
    (first, mine, kind), (their_first, theirs, their_kind) = _steps(one, kinds), _steps(other, kinds)
    fewest = max(min(len(mine), len(theirs)) / 2, 1)
    for behind in range(1 - len(mine), len(theirs)):
        here, there = max(-behind, 0), max(behind, 0)
        length = min(len(mine) - here, len(theirs) - there)
        alike = np.flatnonzero(kind[here : here + length] == their_kind[there : there + length])
        if length < fewest or len(alike) < _AGREEING * length:
            continue
        looked_at = alike[np.unique(np.linspace(0, len(alike) - 1, _LOOKED_AT).astype(np.int64))].tolist()
        apart = np.concatenate([other.end_ns[theirs[there + at]] - one.end_ns[mine[here + at]] for at in looked_at])
        if len(apart) >= _FEWEST:
            usual = float(np.median(apart))
            spread = float(np.median(np.abs(apart - usual)))
            yield _Candidate(their_first - first + behind, usual, spread)


def _steps(calls: _Calls, kinds: dict[bytes, int]) -> tuple[int, list[Ints], Ints]:
    """(the first step, the places of each step's collectives, equal numbers for steps that have the same ones).

    `kinds` numbers them, for all ranks. Collectives on several streams can begin in any order: those of one key follow
    one another.
    """
    first = int(calls.step.min())
    order = np.lexsort((calls.end_ns, calls.key, calls.step))
    bounds = np.searchsorted(calls.step[order], np.arange(first + 1, int(calls.step.max()) + 1))
    places = np.split(order, bounds)
    kind = [kinds.setdefault(calls.key[of_step].tobytes(), len(kinds)) for of_step in places]
    return first, places, np.array(kind, np.int64)


def _step_ns(calls: _Calls) -> float:
    """What a step usually takes, from the last collective of one to that of the next."""
    steps, of = np.unique(calls.step, return_inverse=True)
    ends = np.zeros(len(steps), np.int64)
    np.maximum.at(ends, of, calls.end_ns)
    return float(np.median(np.diff(ends))) if len(ends) > 1 else 0.0
