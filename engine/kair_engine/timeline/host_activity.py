"""What hosts do while their devices idle: allocate memory, compile, fetch input, collect garbage, wait, or else.

The account of a step divides the host's time by these kinds, and triage takes the cause of a host's delay from them.
A kind follows from an operation's name, and from the operations and scopes around it on its thread.
"""

import re
from collections.abc import Callable
from functools import cached_property, lru_cache, partial
from typing import Final, Literal, get_args

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, SmallInts, is_one_of, offsets, ranges
from kair_engine.causes import COMPILES
from kair_engine.frozen import dataclass
from kair_engine.timeline.self_time import INPUT_PHASE
from kair_engine.timeline.spans import BETWEEN_RANKS_NS, Clock, Spans
from kair_engine.trace.operations import GC, INPUT, MEMORY, SCOPE, STEP_SCOPE, SYNC, Operations

HostKind = Literal["garbage_collection", "compilation", "allocator", "input", "profiler", "host", "synchronising"]
HOST_KINDS: Final[tuple[HostKind, ...]] = get_args(HostKind)
"""The kinds, in the order of precedence: what an operation does is also of the first of them that is around it, and a
moment at which a rank's threads do several things is of the first. A compiler that allocates compiles."""
_GC, _COMPILATION, _ALLOCATOR, _INPUT, _PROFILER, _HOST, _SYNCHRONISING = range(len(HOST_KINDS))

CALLS: Final[tuple[HostKind, ...]] = ("compilation", "allocator")
"""Kinds that causes of the same names are of: calls during which a device runs empty."""

_BY_NAME: Final = (
    (_COMPILATION, COMPILES),
    # CUDA's and HIP's runtime and driver (also as expandable segments map memory), MUSA, Ascend, Level Zero, SYCL's
    # Unified Runtime, Habana.
    (
        _ALLOCATOR,
        re.compile(
            r"(cuda|hip|hipext|musa|aclrt|cumem|hipmem|mumem|zemem|urusm|syn(host|device)?)(host|device|shared|pool)?_?"
            r"(malloc|alloc|free|create|release|map(?!a)|unmap|setaccess|address(reserve|free)|register|unregister)"
            r"(?!.*graph)",
            re.IGNORECASE,
        ),
    ),
)


@lru_cache(maxsize=4096)  # a job's ranks run the same operations
def kind_of_call(name: str) -> int:
    """Return what a call's name says, an index into HOST_KINDS."""
    return next((kind for kind, pattern in _BY_NAME if pattern.match(name)), _HOST)


def host_activity(ops: Operations) -> SmallInts:
    """Return each row's kind, an index into HOST_KINDS; NONE on streams and of communication.

    A row inside an operation or a scope of an earlier kind, on its thread, is of that kind.
    """
    kind = _by_own_name(ops)
    on_threads = kind != NONE
    for code in range(_HOST):
        around = np.flatnonzero(kind == code)
        later = np.flatnonzero(on_threads & (kind > code))
        if len(around) and len(later):
            kind[later[_inside(ops, around, later)]] = code
    return kind


def _by_own_name(ops: Operations) -> SmallInts:
    kind = np.full(len(ops), _HOST, dtype=np.int8)
    # A call that frees memory waits for the device, too: its name says more.
    kind[ops.kind == SYNC] = _SYNCHRONISING
    of_name = {code: kind_of_call(text) for code, text in ops.name_text.items()}
    for code in (_ALLOCATOR, _COMPILATION):
        kind[is_one_of(ops.name, [name for name, known in of_name.items() if known == code])] = code
    kind[ops.of_profiler] = _PROFILER
    kind[(ops.kind == INPUT) | (ops.phase == INPUT_PHASE)] = _INPUT
    kind[ops.kind == GC] = _GC
    kind[ops.on_stream | ops.communication] = NONE
    # A range named after the step is around everything, whatever it is called.
    kind[(ops.kind == SCOPE) & is_one_of(ops.name, _step_names(ops))] = _HOST
    return kind


def idle_for_calls_ns(ops: Operations) -> Floats:
    """Return (HOST_KINDS × ranks) what hosts do while devices idle, where any allocates or compiles; else zeros."""
    spent = np.zeros((len(HOST_KINDS), len(ops.ranks)))
    if any(kind_of_call(text) != _HOST for text in ops.name_text.values()):
        rank, begin, end = idle_stretches(ops)
        np.add.at(spent.T, rank, host_time(ops, rank, begin, end).spent_ns)
    return spent


def in_calls(ops: Operations) -> Bools:
    """Return whether each row is a call of an allocator or a compiler, or within one."""
    if not any(kind_of_call(text) != _HOST for text in ops.name_text.values()):
        return np.zeros(len(ops), dtype=bool)
    return is_one_of(host_activity(ops), [HOST_KINDS.index(kind) for kind in CALLS])


RETURNS_NS: Final = 50_000
"""A call that waits for a copy returns within this time of the copy's end; a thread that lost its core comes later."""


def waits_for_own_copy(ops: Operations) -> Bools:
    """Return whether each row is a call that returns as the copy that it started is over, as of memory not pinned."""
    copies = np.flatnonzero(ops.on_stream & (ops.kind == MEMORY) & (ops.launch != NONE))
    calls = ops.launch[copies]
    returned = ops.end_ns[calls] - ops.end_ns[copies]
    result = np.zeros(len(ops), dtype=bool)
    result[calls[(returned >= 0) & (returned <= RETURNS_NS)]] = True
    return result


def _step_names(ops: Operations) -> list[int]:
    return [code for code, text in ops.name_text.items() if text == STEP_SCOPE]


def _inside(ops: Operations, around: Ints, rows: Ints) -> Bools:
    """Return which rows lie within the union of others on their lane."""
    low = int(min(ops.start_ns[around].min(), ops.start_ns[rows].min()))
    span = int(max(ops.end_ns[around].max(), ops.end_ns[rows].max())) - low + BETWEEN_RANKS_NS
    lanes, lane = np.unique(np.concatenate((ops.lane_key[around], ops.lane_key[rows])), return_inverse=True)
    if len(lanes) * span >= 1 << 62:
        return np.zeros(len(rows), dtype=bool)
    begin, end = (np.concatenate((of[around], of[rows])) - low + lane * span for of in (ops.start_ns, ops.end_ns))
    united = Spans.united(begin[: len(around)], end[: len(around)])
    begin, end = begin[len(around) :], end[len(around) :]
    at = np.searchsorted(united.begin, begin, side="right") - 1
    return np.asarray((at >= 0) & (united.end[np.maximum(at, 0)] >= end)) if len(united.begin) else at >= 0


@dataclass(frozen=True)
class HostTime:
    """How stretches of the hosts' time divide."""

    spent_ns: Ints
    """(stretches × HOST_KINDS), which add up to each one's length; what nothing was recorded of is the host's."""
    _named: Callable[[], Ints]

    @cached_property
    def operator(self) -> Ints:
        """(ranks of the step × HOST_KINDS): the name's code of what most of that kind is in over all of a rank's
        stretches, NONE where no operation or scope is. Of the host's the innermost one around at least half of it; of
        the other kinds the outermost one.
        """
        return self._named()


def host_time(ops: Operations, rank: Ints, begin_ns: Ints, end_ns: Ints) -> HostTime:
    """Return what the program's threads do in stretches of ranks (positions in `ops.ranks`), which do not overlap."""
    kind, clock = host_activity(ops), Clock.of(ops)
    chosen = end_ns > begin_ns
    stretches = _on(clock, rank[chosen], begin_ns[chosen], end_ns[chosen])
    spent = np.zeros((len(rank), len(HOST_KINDS)), dtype=np.int64)
    of_program = ops.of_program & (kind != NONE)
    covered = Spans.united(clock.begin[:0], clock.begin[:0])
    before: Ints = np.zeros(len(stretches.begin), dtype=np.int64)
    for code in range(_HOST):
        rows = np.flatnonzero(of_program & (kind == code))
        if len(rows):
            covered = _both(covered, _of_rows(ops, clock, rows))
            within = covered.within(stretches.begin, stretches.end)
            spent[chosen, code], before = within - before, within
    busy = _both(covered, _beside_waits(ops, kind, clock))
    either = _both(busy, _of_rows(ops, clock, np.flatnonzero(of_program & (kind == _SYNCHRONISING))))
    waits = either.within(stretches.begin, stretches.end) - busy.within(stretches.begin, stretches.end)
    spent[chosen, _SYNCHRONISING] = waits
    spent[:, _HOST] = np.where(chosen, end_ns - begin_ns, 0) - spent.sum(axis=1)
    of_rank = np.zeros((len(ops.ranks), len(HOST_KINDS)), dtype=np.int64)
    np.add.at(of_rank, rank, spent)
    return HostTime(spent, partial(_operators, ops, kind, clock, stretches, of_rank))


def idle_stretches(ops: Operations) -> tuple[Ints, Ints, Ints]:
    """Return (rank, begin, end) of the times within the ranks' steps at which their devices run nothing."""
    clock, every = Clock.of(ops), np.arange(len(ops.ranks))
    first, over = clock.at(every, ops.begin_ns), clock.at(every, ops.begin_ns + ops.length_ns)
    busy = _of_rows(ops, clock, np.flatnonzero(ops.on_stream & (ops.kind != SCOPE) & ~ops.of_side_streams))
    of = clock.rank(busy.begin)
    busy = Spans.united(np.clip(busy.begin, first[of], over[of]), np.clip(busy.end, first[of], over[of]))
    begin, end = np.sort(np.concatenate((first, busy.end))), np.sort(np.concatenate((busy.begin, over)))
    idle = end > begin
    rank = clock.rank(begin[idle])
    of_axis = clock.low[rank] - clock.begin[rank]
    return rank, begin[idle] + of_axis, end[idle] + of_axis


def _on(clock: Clock, rank: Ints, begin_ns: Ints, end_ns: Ints) -> Spans:
    return Spans(clock.at(rank, begin_ns), clock.at(rank, end_ns))


def _of_rows(ops: Operations, clock: Clock, rows: Ints) -> Spans:
    spans = _on(clock, ops.rank[rows], ops.start_ns[rows], ops.end_ns[rows])
    return Spans.united(spans.begin, spans.end)


def _both(one: Spans, other: Spans) -> Spans:
    return Spans.united(np.concatenate((one.begin, other.begin)), np.concatenate((one.end, other.end)))


def _beside_waits(ops: Operations, kind: SmallInts, clock: Clock) -> Spans:
    """Return when a thread works while another one of its rank waits for the device.

    What is around a wait on its own thread waits, too.
    """
    found: list[Spans] = []
    waits = np.flatnonzero(ops.of_program & (kind == _SYNCHRONISING))
    plain = np.flatnonzero(ops.of_program & (kind == _HOST) & (ops.kind != SCOPE))
    of_rank = offsets(ops.rank[plain], len(ops.ranks))
    for lane in np.unique(ops.lane_key[waits]).tolist():
        mine = waits[ops.lane_key[waits] == lane]
        rank = int(ops.rank[mine[0]])
        others = plain[of_rank[rank] : of_rank[rank + 1]]
        others = others[ops.lane_key[others] != lane]
        if len(others):
            found.append(_overlap(_of_rows(ops, clock, mine), _of_rows(ops, clock, others)))
    nothing = clock.begin[:0]
    begin, end = (np.concatenate((nothing, *(getattr(one, of) for one in found))) for of in ("begin", "end"))
    return Spans.united(begin, end)


def _overlap(one: Spans, other: Spans) -> Spans:
    """Return what both cover."""
    first = np.searchsorted(other.end, one.begin, side="right")
    last = np.maximum(np.searchsorted(other.begin, one.end, side="left"), first)
    theirs, mine = ranges(first, last), np.repeat(np.arange(len(one.begin)), last - first)
    return Spans(np.maximum(one.begin[mine], other.begin[theirs]), np.minimum(one.end[mine], other.end[theirs]))


def _operators(ops: Operations, kind: SmallInts, clock: Clock, stretches: Spans, spent: Ints) -> Ints:
    """Return (ranks × HOST_KINDS) the names of what most of the stretches of a kind is in."""
    named = np.full(spent.shape, NONE, dtype=np.int64)
    order = np.argsort(stretches.begin, kind="stable")
    stretches = Spans(stretches.begin[order], stretches.end[order])
    is_step = (ops.kind == SCOPE) & is_one_of(ops.name, _step_names(ops))
    # Of other kinds than the host's what is around the first operation of a kind is not of it, what is within is less.
    own = (_by_own_name(ops) == kind) | (kind == _HOST)
    rows = np.flatnonzero(ops.of_program & (kind != NONE) & own & ~is_step)
    begin, end = (clock.at(ops.rank[rows], of[rows]) for of in (ops.start_ns, ops.end_ns))
    inside = stretches.within(begin, end)
    rows, inside = rows[inside > 0], inside[inside > 0]
    names = int(ops.name.max(initial=0)) + 1
    cell = ops.rank[rows] * len(HOST_KINDS) + kind[rows]
    codes, place = np.unique(cell * names + ops.name[rows], return_inverse=True)
    in_name, cell, name = np.bincount(place, weights=inside, minlength=len(codes)), codes // names, codes % names
    # Of the host's the least that is around half of it: the innermost; of others the most.
    of_host = cell % len(HOST_KINDS) == _HOST
    around = ~of_host | (2 * in_name >= spent.reshape(-1)[cell])
    last = np.lexsort((np.where(of_host, -in_name, in_name), cell))
    last = last[around[last]]
    named.reshape(-1)[cell[last]] = name[last]
    return named
