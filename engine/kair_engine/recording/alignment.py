"""Matches the steps of ranks whose recordings begin at different times and number no steps.

Ranks meet in collectives. Their numbers (`Seq`) identify them. Without numbers, steps are matched by the order of their
collectives and by when these end: members leave a collective together, so that the ends of matching steps lie equally
far apart by any clocks, while those of other steps vary as iterations do. If they do not vary, the clock decides. Ranks
of one file share a clock: there, common ends suffice.

Also checks whether recordings can be of one run: a constant offset of their clocks must fit all shared collectives.

No member leaves a collective before the last one came. So each shared collective bounds, from both sides, how far one
recording's clock can be ahead of the other's, and in one run a single offset satisfies all bounds. Recordings of two
runs drift apart with every step that took longer in one of them, and no offset fits more than a few.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, dense, one_of_each, order_by
from kair_engine.frozen import dataclass
from kair_engine.stats import median
from kair_engine.timeline.collectives import ordinal
from kair_engine.trace.columns import Columns
from kair_engine.trace.format import STREAM_PREFIX
from kair_engine.trace.large_steps import read_chosen
from kair_engine.trace.model import KairWarning, Trace, short_warning

_AGREEING: Final = 0.9
"""Share of the collectives, or of the steps, that two ranks must have in common in the same way."""
_FEWEST: Final = 8
"""Collectives that two ranks must have in common before their ends count."""
_MARGIN: Final = 3.0
"""The ends of other steps must be this many times further apart."""
_RESOLUTION_NS: Final = 1_000.0
_MOST_STEPS: Final = 100_000
_LOOKED_AT: Final = 64
"""Compared steps, of those that two ranks may have in common."""
_AT_ONCE: Final = 0.05
"""Share of a step within which collectives count as ending together by hosts' clocks."""


_NUMBERS: Final = "the numbers of collectives (Seq)"


@dataclass(frozen=True)
class Alignment:
    """rank → how much higher it numbers its steps than the job, if known; and by what it was found."""

    more: dict[int, int]
    matched_by: frozenset[str]

    def warnings(self) -> list[KairWarning]:
        """Return a warning that steps were matched, if that was needed."""
        if not any(self.more.values()):
            return []
        by = " and ".join(sorted(self.matched_by))
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
    """Identifies its name, group and bytes."""
    end_ns: Ints

    def of(self, groups: Ints) -> "_Calls":
        """Return the collectives of some groups."""
        chosen = np.isin(self.group, groups)
        return _Calls(*(getattr(self, name)[chosen] for name in ("step", "group", "number", "key", "end_ns")))


def aligned(
    fragments: Sequence[Path],
    counted: Collection[int],
    numbered: Collection[int],
    clocks: Mapping[int, str],
    clock_of: Mapping[int, int] | None = None,
) -> Alignment:
    """Return the common step numbers of ranks that are `counted` from 0; those of `numbered` ranks are common already.

    `clocks` names the clock of each rank with absolute times; an empty name is an unknown clock. `clock_of` has the
    ranks that surely share one, as `Job.clock_of`.
    """
    calls = _calls(fragments)
    more = dict.fromkeys(numbered, 0)
    first = min((rank for rank in counted if rank in calls), key=lambda rank: int(calls[rank].end_ns[0]), default=None)
    if not more and first is not None:
        more[first] = 0
    matched_by: set[str] = set()
    waiting = [rank for rank in more if rank in calls]
    for placed in waiting:
        for rank in sorted(counted):
            if rank in more or rank not in calls:
                continue
            surely = clock_of is not None and placed in clock_of and clock_of[placed] == clock_of.get(rank)
            found = _by_common_ends(calls[placed], calls[rank]) if surely else None
            found = found or _offset(calls[placed], calls[rank], _clock(clocks, placed, rank))
            if found is not None:
                offset, by = found
                more[rank] = more[placed] + offset
                matched_by.add(by)
                waiting.append(rank)
    if not numbered:
        highest = max(more.values(), default=0)
        more = {rank: off - highest for rank, off in more.items()}
    return Alignment({rank: off for rank, off in more.items() if rank in counted}, frozenset(matched_by))


def renumbered_by_collectives(fragments: Sequence[Path], ranks: Collection[int]) -> Alignment:
    """Return common step numbers of ranks with step marks, if their collectives contradict the marks.

    Profilers that begin at different steps count from their own begin. Ranks whose numbers (`Seq`) show no collective
    in common with the others come after these.
    """
    calls = _calls(fragments)
    left = sorted((rank for rank in ranks if rank in calls), key=lambda rank: int(calls[rank].end_ns[0]))
    parts: list[dict[int, int]] = []
    matched_by: set[str] = set()
    while left:
        part = {left[0]: 0}
        waiting = [left[0]]
        for placed in waiting:
            for rank in left:
                if rank not in part and (found := _offset(calls[placed], calls[rank], None)) is not None:
                    part[rank] = part[placed] + found[0]
                    matched_by.add(found[1])
                    waiting.append(rank)
        parts.append(part)
        left = [rank for rank in left if rank not in part]
    more: dict[int, int] = {}
    free = 0
    for part in sorted(parts, key=len, reverse=True):
        others = [calls[rank] for rank in more]
        apart = bool(others) and all(_share_no_number(calls[rank], one) for rank in part for one in others)
        highest = max(part.values())
        first = min(int(calls[rank].step[0]) - off for rank, off in part.items()) + highest
        behind = max(free - first, 0) if apart else 0
        more |= {rank: off - highest - behind for rank, off in part.items()}
        free = max(free, *(int(calls[rank].step[-1]) - more[rank] + 1 for rank in part))
    return Alignment({rank: off for rank, off in more.items() if off}, frozenset(matched_by))


def _share_no_number(one: _Calls, other: _Calls) -> bool:
    """Return whether two ranks number their collectives in a common group, and share no number."""
    shared = np.intersect1d(one.group[one.number >= 0], other.group[other.number >= 0])
    found = [
        np.stack((calls.group, calls.number))[:, calls.number >= 0] for calls in (one.of(shared), other.of(shared))
    ]
    if not len(shared) or not all(calls.shape[1] for calls in found):
        return False
    mine, theirs = (set(zip(*calls.tolist(), strict=True)) for calls in found)
    return not mine & theirs


def _clock(clocks: Mapping[int, str], one: int, other: int) -> bool | None:
    """Return whether two ranks share a clock; None if the times of one of them are its own."""
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


def _by_common_ends(one: _Calls, other: _Calls) -> tuple[int, str] | None:
    """Return the offset of ranks on one clock, from collectives that both leave at the same time."""
    near_ns, found = max(_AT_ONCE * _step_ns(one), _TOLERANCE_NS), Counter[int]()
    for key in np.intersect1d(one.key, other.key).tolist():
        mine, theirs = (np.flatnonzero(calls.key == key) for calls in (one, other))
        order = np.argsort(other.end_ns[theirs], kind="stable")
        ends, steps = other.end_ns[theirs][order], other.step[theirs][order]
        end = one.end_ns[mine]
        after = np.minimum(np.searchsorted(ends, end), len(ends) - 1)
        before = np.maximum(after - 1, 0)
        nearest = np.where(np.abs(ends[after] - end) < np.abs(ends[before] - end), after, before)
        at_once = np.abs(ends[nearest] - end) <= near_ns
        found.update((steps[nearest] - one.step[mine])[at_once].tolist())
    if not found:
        return None
    off, often = found.most_common(1)[0]
    return (off, "the clock of their file") if often >= _AGREEING * found.total() else None


def _offset(one: _Calls, other: _Calls, one_clock: bool | None) -> tuple[int, str] | None:
    """Return how much higher `other` numbers the common steps, and how that was found; None if nothing shows it."""
    shared = np.intersect1d(one.group, other.group)
    if not len(shared):
        return None
    one, other = one.of(shared), other.of(shared)
    if (off := _by_number(one, other)) is not None:
        return off, _NUMBERS
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
    """Return the offset from collectives with the same number in the same group."""
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
    """How far apart the ends of its collectives lie, by the ranks' clocks."""
    spread_ns: float
    """How much that varies between collectives."""


def _candidates(one: _Calls, other: _Calls) -> Iterator[_Candidate]:
    """Yield the offsets under which at least half of one rank's steps match the other's."""
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
    """Return (the first step, indices of each step's collectives, numbers that are equal for steps with the same ones).

    `kinds` numbers them, for all ranks. Collectives on several streams can begin in any order, so those of one key are
    kept together.
    """
    first = int(calls.step.min())
    order = np.lexsort((calls.end_ns, calls.key, calls.step))
    bounds = np.searchsorted(calls.step[order], np.arange(first + 1, int(calls.step.max()) + 1))
    places: list[Ints] = [*np.split(order, bounds)]
    kind = [kinds.setdefault(calls.key[of_step].tobytes(), len(kinds)) for of_step in places]
    return first, places, np.array(kind, np.int64)


def _step_ns(calls: _Calls) -> float:
    """Return a step's usual duration, from the last collective of one to that of the next."""
    steps, of = np.unique(calls.step, return_inverse=True)
    ends = np.zeros(len(steps), np.int64)
    np.maximum.at(ends, of, calls.end_ns)
    return float(np.median(np.diff(ends))) if len(ends) > 1 else 0.0


# A member may leave the others (a broadcast, a reduce) before the last one came.
_LEFT_TOGETHER: Final = re.compile(r"(?i)all[-_]?(reduce|gather)|reduce[-_]?scatter|all[-_]?to[-_]?all|barrier")
_TOLERANCE_NS: Final = 50_000
"""50 µs by which the ends of members may differ, as in clocks.py."""
_DRIFT: Final = 500e-6
"""Greatest frequency error of a synchronised clock: NTP's own limit."""
_MOST_MISFITS: Final = 0.25
"""Share of misfits that one run may have: single ends are recorded late or early; two runs had 0.4 and more."""
_FEWEST_SHARED: Final = 3
"""Common collectives needed: some offset fits any two."""
_ONCE: Final = 0.1
"""Share of the ends' variation that may remain if a clock was set once in between."""
_SHARED_LOOKED_AT: Final = 100
_PARTNERS: Final = 3
"""Next members, in the order of ranks, that each member is compared with: all of 7 ranks."""

Pair = tuple[int, int]
"""Two files, by index."""


@dataclass(frozen=True)
class Shared:
    """How well the collectives of two files fit each other."""

    misfits: float
    """The share that does not fit the best offset of their clocks."""
    fits: bool
    in_known_group: bool


def shared(
    trace: Trace, steps: Sequence[int], files: Mapping[tuple[int, int], int], marked: Collection[int]
) -> dict[Pair, Shared]:
    """Return pairs of files that share collectives in `steps`; `files` has the file's index of each (rank, step).

    The k-th of a name and group in a step is one collective if all ranks' steps are `marked`; else those of equal
    number in a group are. If an operation states no group, its group is unknown: two files then fit if any call of a
    step does.
    """
    rows = _rows(trace, steps)
    if not len(rows):
        return {}
    cell = dense(np.stack((rows.of["rank"], rows.of["step"])))
    once = one_of_each(cell)
    cells = zip(rows.of["rank"][once].tolist(), rows.of["step"][once].tolist(), strict=True)
    file = np.array([files.get(one, NONE) for one in cells], dtype=np.int64)[cell]
    by_number = not set(np.unique(rows.of["rank"]).tolist()) <= set(marked)
    call, block = _numbered(rows) if by_number else _by_order(rows)
    known = (file != NONE) & (call != NONE)
    start = rows.of["start_ns"].astype(np.int64)
    columns = np.stack((call, file, block, start, start + rows.of["duration_ns"]))[:, known]
    return _fits(columns) if known.any() else {}


def _rows(trace: Trace, steps: Sequence[int]) -> Columns:
    """Return the collectives that all members leave together, in order of (rank, step, start).

    Calls on threads, which stand for untimed collectives, are left out: they return at once.
    """

    def chosen(rows: Columns) -> Bools:
        streams = [lane for lane in rows.texts["lane"] if lane.startswith(STREAM_PREFIX)]
        together = [name for name in rows.texts["name"] if _LEFT_TOGETHER.search(name)]
        timed = [name for name in together if name.startswith("gloo:")]
        comparable = rows.is_any("name", together) & (rows.is_any("lane", streams) | rows.is_any("name", timed))
        return rows.is_any("kind", ("collective",)) & comparable

    columns = ("kind", "lane", "name", "group", "group_seq", "start_ns", "duration_ns")
    rows = read_chosen(replace(trace, steps=tuple(steps)), columns, chosen)
    return rows.chosen(np.lexsort((rows.of["start_ns"], rows.of["step"], rows.of["rank"])))


def _by_order(rows: Columns) -> tuple[Ints, Ints]:
    """Return (the collective of each row, its index among the step's calls of unknown group, else 0) by their order."""
    rank, step, name, group = (rows.of[of].astype(np.int64) for of in ("rank", "step", "name", "group"))
    cell = dense(np.stack((rank, step, name, group)))
    turn, count = ordinal(cell[None]), np.bincount(cell)[cell]
    # By order, one missing call would shift all later ones.
    call = dense(np.stack((step, name, group, turn, count)))
    return call, np.where(group == NONE, 1 + dense(np.stack((name, turn))), 0)


def _numbered(rows: Columns) -> tuple[Ints, Ints]:
    """Return the same by their numbers in their groups; NONE for those without."""
    group, number = (rows.of[of].astype(np.int64) for of in ("group", "group_seq"))
    call = dense(np.stack((group, number)))
    return np.where((group == NONE) | (number == NONE), NONE, call), np.zeros_like(call)


def _fits(columns: Ints) -> dict[Pair, Shared]:
    """Return how well the files of each pair that share enough fit; `columns` are (call, file, block, begin, end).

    Calls of a known group decide; of the others, the block that fits best.
    """
    columns = columns[:, np.lexsort((columns[1], columns[0]))]
    again = np.concatenate(([False], (np.diff(columns[:2], axis=1) == 0).all(axis=0)))
    call, file, block, *times = columns[:, ~again]
    one, two = _meetings(call, file)
    order = order_by(file[one], file[two], block[one], times[0][one])
    one, two = one[order], two[order]
    of = np.stack((file[one], file[two], block[one]))
    first = np.flatnonzero((np.diff(of, axis=1, prepend=NONE) != 0).any(axis=0))
    misfits, fits = _fits_of(times, one, two, first)
    found: dict[Pair, Shared] = {}
    for here, there, at, share, fit in zip(*of[:, first].tolist(), misfits.tolist(), fits.tolist(), strict=True):
        known = found.get((here, there))
        if share <= 1 and (known is None or (not known.in_known_group and share < known.misfits)):
            found[here, there] = Shared(share, fit, in_known_group=at == 0)
    return found


def _meetings(call: Ints, file: Ints) -> tuple[Ints, Ints]:
    """Return the indices of the compared rows, on the file with the lower number and on the other.

    The members of a call follow one another; only nearby ones are compared.
    """
    first = np.flatnonzero(np.diff(call, prepend=NONE))
    sizes = np.diff(np.concatenate((first, [len(call)])))
    none = np.zeros(0, dtype=np.int64)
    found = [(none, none)]
    for size in np.unique(sizes[sizes > 1]).tolist():
        index = first[sizes == size][:, None] + np.arange(size)
        for distance in range(1, min(_PARTNERS, size // 2) + 1):
            other = np.roll(index, -distance, axis=1)
            # Otherwise each pair would appear twice.
            several = slice(distance if 2 * distance == size else size)
            found.append((index[:, several].reshape(-1), other[:, several].reshape(-1)))
    here, there = (np.concatenate(side) for side in zip(*found, strict=True))
    swap = file[here] > file[there]
    return np.where(swap, there, here), np.where(swap, here, there)


_TOGETHER: Final = 200_000
"""Collectives of several pairs of files that are compared together."""


def _fits_of(times: Sequence[Ints], one: Ints, two: Ints, first: Ints) -> tuple[Floats, Bools]:
    """Return (the share of misfits, whether that is low) of pairs; infinite for pairs that share too little.

    `times` are begins and ends; for each pair, `one` and `two` are the indices of its collectives by time, from
    `first`.
    """
    sizes = np.diff(np.concatenate((first, [len(one)])))
    misfits, fits = np.full(len(first), np.inf), np.zeros(len(first), dtype=bool)
    for size in np.unique(sizes[sizes >= _FEWEST_SHARED]).tolist():
        alike = np.flatnonzero(sizes == size)
        for some in np.array_split(alike, len(alike) * size // _TOGETHER + 1):
            places = first[some][:, None] + np.arange(size)
            misfits[some], apart = _misfits(*(of[side[places]].astype(float) for side in (one, two) for of in times))
            few = misfits[some] <= _MOST_MISFITS
            few[~few] = _were_set_once(apart[~few])
            fits[some] = few
    return misfits, fits


def _misfits(begin: Floats, end: Floats, other_begin: Floats, other_end: Floats) -> tuple[Floats, Floats]:
    """Return (each pair's share of misfits, the distance of its ends without drift), (pairs × collectives) by time."""
    drifted = _drift(end, other_end - end)
    apart = other_end - end - drifted
    least, most = other_begin - end - drifted - _TOLERANCE_NS, other_end - begin - drifted + _TOLERANCE_NS
    best = _most_covered(least, most)
    return np.asarray(((least > best) | (most < best)).mean(axis=1)), apart


def _drift(at: Floats, apart: Floats) -> Floats:
    """Return the drift between two clocks, within clocks' limits: a line through the medians of both halves."""
    half = at.shape[1] // 2
    between, further = (median(of[:, half:]) - median(of[:, :half]) for of in (at, apart))
    slope = np.divide(further, between, out=np.zeros_like(further), where=between > 0)
    return np.asarray(np.clip(slope, -_DRIFT, _DRIFT)[:, None] * (at - at[:, :1]))


def _most_covered(least: Floats, most: Floats) -> Floats:
    """Return the offset that satisfies most of the bounds, (pairs × 1)."""
    at = np.concatenate((least, most), axis=1)
    # Bounds that open sort before those that close at the same time: the sort is stable.
    order = np.argsort(at, axis=1, kind="stable")
    within = np.cumsum(np.where(order < least.shape[1], 1, -1), axis=1)
    fullest = np.take_along_axis(order, within.argmax(axis=1)[:, None], axis=1)
    return np.take_along_axis(at, fullest, axis=1)


def _were_set_once(apart: Floats) -> Bools:
    """Return whether ends lie apart by one time up to some collective, and by another after it, for each pair."""
    apart = apart[:, :: -(-apart.shape[1] // _SHARED_LOOKED_AT)]
    spread, least = _spread(apart), np.full(len(apart), np.inf)
    for at in range(1, apart.shape[1]):
        least = np.minimum(least, _spread(apart[:, :at]) + _spread(apart[:, at:]))
    return np.asarray(least <= _ONCE * spread)


def _spread(apart: Floats) -> Floats:
    return np.asarray(np.abs(apart - median(apart)[:, None]).sum(axis=1))
