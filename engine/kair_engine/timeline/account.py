"""The account of a step: each rank's time as rows that add up to it exactly, with what it went to and who owes it.

Every moment of a rank is in one row: what its device (without one, its thread) ran then; else what it waited for, and
for whom; else what its host did meanwhile, before, between or after the step's work. Bar, verdict and views read it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, get_args

import numpy as np

from kair_engine.arrays import (
    NONE,
    Bools,
    Floats,
    Ints,
    SmallInts,
    dense,
    is_one_of,
    one_of_each,
    order_by,
    whole_parts,
)
from kair_engine.frozen import dataclass
from kair_engine.timeline.clocks import Synchronisation, synchronise
from kair_engine.timeline.host_activity import HOST_KINDS, HostKind, host_time
from kair_engine.timeline.some_ranks import SomeRanks
from kair_engine.timeline.spans import Clock
from kair_engine.timeline.step_parts import (
    PARTS,
    UNKNOWN,
    collective_own_ns,
    device_ends,
    moments,
    own_part,
    with_steps_before,
)
from kair_engine.trace.loading import each_step
from kair_engine.trace.model import Trace
from kair_engine.trace.operations import MEMORY, ROWS_TOGETHER, SCOPE, Operations, latest_ended

if TYPE_CHECKING:
    import polars as pl

DeviceKind = Literal["compute", "copies", "transfer", "waiting", "unmatched", "launching", "queued", "begins"]
AccountKind = DeviceKind | HostKind
"""`transfer`: communication without waiting. `unmatched`: communication whose members were not found, any part of which
may be waiting. `launching`: what the device runs next is being launched. `queued`: it was launched longer ago than
launches take: another process may have the device. `begins`: it was launched just now, or nobody recorded when. The
others are what the host did while nothing of this was."""
KINDS: Final[tuple[AccountKind, ...]] = (*get_args(DeviceKind), *HOST_KINDS)
When = Literal["within", "before", "between", "launches", "after"]
WHEN: Final[tuple[When, ...]] = get_args(When)
"""Of a host's time: before the step's first work on the rank, between, or after the last; `launches` is in and between
launches to a device that follow one another. All else is `within`."""
_COMPUTE, _TRANSFER, _WAITING, _INPUT, _HOST, _REST = range(len(PARTS))
_KIND_OF_PART: Final = {
    _COMPUTE: KINDS.index("compute"),
    _TRANSFER: KINDS.index("transfer"),
    _WAITING: KINDS.index("waiting"),
    UNKNOWN: KINDS.index("unmatched"),
    _REST: KINDS.index("begins"),
    _INPUT: KINDS.index("input"),
}
_PART_OF_KIND: Final = np.array(
    [
        {
            **{kind: part for part, kind in _KIND_OF_PART.items()},
            KINDS.index("copies"): _COMPUTE,
            KINDS.index("queued"): _REST,
            KINDS.index("launching"): _REST,
        }.get(kind, _HOST)
        for kind in range(len(KINDS))
    ]
)
_COPIES, _LAUNCHING, _QUEUED = (KINDS.index(kind) for kind in ("copies", "launching", "queued"))
_FIRST_HOST = len(KINDS) - len(HOST_KINDS)
_WITHIN, _BEFORE, _BETWEEN, _LAUNCHES, _AFTER = range(len(WHEN))
LONGEST_LATENCY_NS: Final = 100_000
"""Between a kernel's launch and its begin on a device that is free: 2 to 10 µs on an H100, at most 20."""
APART_NS: Final = 50_000
"""For how long a device idles between launches that follow one another: with more in between the host does something
else than launch."""
_STEPS_BACK: Final = 64
"""Operations begun before a moment among which the one under way is looked for; earlier ones have no name."""


@dataclass(frozen=True)
class Account:
    """Rows of one step: arrays of one length; ranks and owners are positions among the step's ranks."""

    rank: Ints
    kind: SmallInts
    """An index into KINDS."""
    when: SmallInts
    """An index into WHEN."""
    operator: Ints
    """The name's code, NONE where nothing was recorded then."""
    owner: Ints
    """Of waiting the rank that came last, NONE of all else."""
    ns: Ints

    def chosen(self, rows: Bools | Ints) -> "Account":
        """Return some of the rows."""
        return Account(
            self.rank[rows], self.kind[rows], self.when[rows], self.operator[rows], self.owner[rows], self.ns[rows]
        )

    def sums(self, ranks: int) -> Floats:
        """Return the sums by kind and when it was: (KINDS × WHEN × ranks), ns."""
        result = np.zeros((len(KINDS), len(WHEN), ranks))
        np.add.at(result, (self.kind, self.when, self.rank), self.ns)
        return result

    def in_parts(self, ranks: int) -> Floats:
        """Return the sums by part of a step as `kair rank` divides it: (PARTS and UNKNOWN × ranks), ns."""
        cell = _PART_OF_KIND[self.kind] * ranks + self.rank
        sums = np.bincount(cell, weights=self.ns, minlength=(UNKNOWN + 1) * ranks)
        return sums.reshape(UNKNOWN + 1, ranks).astype(float)

    @classmethod
    def joined(cls, parts: Sequence["Account"]) -> "Account":
        """Return the rows of all, those that agree in all but their length added up."""
        names = ("rank", "kind", "when", "operator", "owner", "ns")
        *key, lengths = (np.concatenate([getattr(part, name) for part in parts]).astype(np.int64) for name in names)
        if not len(lengths):
            return parts[0]
        row = dense(np.stack(key))
        first = one_of_each(row)
        ns = np.zeros(len(first), dtype=np.int64)
        np.add.at(ns, row, lengths)
        rank, kind, when, operator, owner = (of[first] for of in key)
        return cls(rank, kind.astype(np.int8), when.astype(np.int8), operator, owner, ns)


class AccountOfSteps:
    """Accounts for steps one after another, each from its begin to its end.

    What a device still does of a step once that is over on its rank is part of the next one. Steps come in order.
    """

    def __init__(self) -> None:
        self._rest: dict[int, tuple[int, int, Account]] = {}
        """Rank → when the step before was over, when its device was done with it, the rows in between."""

    def of_step(self, ops: Operations, sync: Synchronisation | None) -> Account:
        """Return the step's rows, which add up to its length on every rank.

        Without `sync`, which is of some ranks by themselves, all communication is unmatched.
        """
        own = np.full(len(ops), NONE, dtype=np.int64) if sync is None else collective_own_ns(ops, sync)
        return self._of(ops, own, _last_to_come(ops, sync), ops.ranks, np.full(len(ops.ranks), ops.origin_ns))

    def parts_of(self, seen: SomeRanks) -> Floats:
        """Return (PARTS and UNKNOWN × cells) of what some ranks did."""
        nobody = np.full(len(seen.ops) + 1, NONE, dtype=np.int64)
        rows = self._of(seen.ops, seen.own_ns, nobody, seen.rank, seen.origin_ns, only_parts=True)
        return rows.in_parts(len(seen.rank))

    def _of(
        self, ops: Operations, own: Ints, owner: Ints, rank: Ints, origin_ns: Ints, *, only_parts: bool = False
    ) -> Account:
        """Return the rows of steps on ranks: positions in the ranks of `ops`, whose times count from `origin_ns`.

        If `only_parts` are asked for, rows say no more than what these need.
        """
        over, done = ops.begin_ns + ops.length_ns, device_ends(ops)
        begin, later = ops.begin_ns.copy(), np.flatnonzero(done > over)
        between = partial(_between, ops, own, owner, only_parts=only_parts)
        rest = between(over, np.maximum(over, done)) if len(later) else None
        parts: list[Account] = []
        for at, (of, origin) in enumerate(zip(rank.tolist(), origin_ns.tolist(), strict=True)):
            known = self._rest.pop(of, None)
            if known is not None:
                over_before, done_before, rows = known
                if over_before == begin[at] + origin and done_before <= over[at] + origin:
                    parts.append(replace(rows, rank=np.full(len(rows.ns), at)))
                    begin[at] = done_before - origin
            if rest is not None and done[at] > over[at]:
                self._rest[of] = int(over[at] + origin), int(done[at] + origin), rest.chosen(rest.rank == at)
        return Account.joined([between(begin, over), *parts])


def _between(ops: Operations, own: Ints, owner: Ints, begin_ns: Ints, end_ns: Ints, *, only_parts: bool) -> Account:
    """Return the rows of every rank's time from one moment to another.

    Per operation, `own` is the self time of its collective and `owner` the rank that came to that last.
    """
    bounds, parts = np.searchsorted(ops.rank, np.arange(len(ops.ranks) + 1)), list[Account]()
    for first, last in [*whole_parts(bounds, ROWS_TOGETHER)] or [(0, 0)]:
        ranks, rows = slice(first, last), slice(bounds[first], bounds[last])
        owners = np.append(owner[rows], NONE)
        some = ops.of_places(first, last)
        part = _of_some(some, own[rows], owners, begin_ns[ranks], end_ns[ranks], only_parts=only_parts)
        parts.append(replace(part, rank=part.rank + first))
    return Account.joined(parts)


def _of_some(ops: Operations, own: Ints, owner: Ints, begin_ns: Ints, end_ns: Ints, *, only_parts: bool) -> Account:
    """Return the same of some ranks, whose operations are `ops`."""
    of = moments(ops, own)
    rank, time, part = _with_ends(of.rank, of.time, of.part, begin_ns, end_ns)
    until = np.where(np.diff(rank, append=NONE) == 0, np.append(time[1:], 0), time)
    begin, end = np.maximum(time, begin_ns[rank]), np.minimum(until, end_ns[rank])
    spans = begin < end
    rank, begin, end, part = rank[spans], begin[spans], end[spans], part[spans]
    ran = part != _HOST
    kind = np.array([_KIND_OF_PART.get(one, NONE) for one in range(UNKNOWN + 1)], dtype=np.int8)[part[ran]]
    within = np.full(len(kind), _WITHIN, dtype=np.int8)
    if only_parts:
        nobody = np.full(len(kind), NONE)
        device = Account(rank[ran], kind, within, nobody, nobody, end[ran] - begin[ran])
        return Account.joined([device, _of_hosts(ops, rank, begin, end, part)])
    rows = _under_way(ops, own, rank[ran], begin[ran], part[ran])
    kind[(rows != NONE) & (part[ran] == _COMPUTE) & (ops.kind[rows] == MEMORY)] = _COPIES
    names = np.where((rows == NONE) | (part[ran] == _REST), NONE, ops.name[rows])
    owners = np.where(part[ran] == _WAITING, owner[rows], NONE)
    device = Account(rank[ran], kind, within, names, owners, end[ran] - begin[ran])
    rest = part[ran] == _REST
    between = _when_between(ops, rank, begin, end, part)
    launched = replace(device, when=between[ran]).chosen(rest)
    idle = _before_begins(ops, begin_ns, launched, begin[ran][rest], end[ran][rest])
    return Account.joined([device.chosen(~rest), *idle, _of_hosts(ops, rank, begin, end, part, between=between)])


def _before_begins(ops: Operations, begin_ns: Ints, idle: Account, begin: Ints, end: Ints) -> Iterator[Account]:
    """Yield rows of what devices have not begun, divided by when what they run next was launched; `idle` says when."""
    rows = np.flatnonzero(ops.on_stream & (ops.kind != SCOPE))
    rows, rank = rows[order_by(ops.rank[rows], ops.start_ns[rows])], idle.rank
    if not len(rank):
        return
    clock = Clock.of(ops)
    following = np.searchsorted(clock.at(ops.rank[rows], ops.start_ns[rows]), clock.at(rank, end))
    at = rows[np.minimum(following, len(rows) - 1)]
    before, launch, start = latest_ended(ops, at, rows), ops.launch[at], ops.start_ns[at]
    free = np.where(before == NONE, begin_ns[rank], np.maximum(ops.end_ns[before], begin_ns[rank]))
    known = (launch != NONE) & (ops.rank[at] == rank) & (start >= end)
    launched = np.where(known, ops.end_ns[launch], begin)
    launching = np.maximum(np.minimum(end, launched) - begin, 0)
    waits = known & (start - np.maximum(free, launched) > LONGEST_LATENCY_NS)
    for kind, when, ns in (
        (_LAUNCHING, idle.when, launching),
        (_QUEUED, np.full_like(idle.when, _WITHIN), (end - begin - launching) * waits),
        (_KIND_OF_PART[_REST], np.full_like(idle.when, _WITHIN), (end - begin - launching) * ~waits),
    ):
        yield replace(idle, kind=np.full_like(idle.kind, kind), when=when, ns=ns).chosen(ns > 0)


def _with_ends(rank: Ints, time: Ints, part: SmallInts, begin_ns: Ints, end_ns: Ints) -> tuple[Ints, Ints, SmallInts]:
    """Return the moments with each rank's first and last one, at which nothing begins."""
    every = np.arange(len(begin_ns))
    low = min(int(begin_ns.min(initial=0)), int(time.min(initial=0)))
    first = np.minimum(begin_ns, low)
    ranks, times = np.concatenate((every, rank, every)), np.concatenate((first, time, end_ns))
    parts = np.concatenate((np.full(len(every), _HOST), part, np.full(len(every), NONE)))
    order = order_by(ranks, times)
    ranks, times, parts = ranks[order], times[order], parts[order]
    # The end lies within what is under way: it goes on as before.
    ends = np.flatnonzero(parts == NONE)
    for at in ends.tolist():
        parts[at] = parts[at - 1]
    return ranks, times, parts.astype(np.int8)


def _under_way(ops: Operations, own: Ints, rank: Ints, time: Ints, part: SmallInts) -> Ints:
    """Return per moment the operation of its part that began last of those under way; NONE where none is found."""
    found = np.full(len(rank), NONE, dtype=np.int64)
    part_of = own_part(ops)
    known = ops.communication & (own != NONE)
    arrived = np.where(known, ops.end_ns - np.minimum(own, ops.duration_ns), ops.start_ns)
    for one in np.unique(part).tolist():
        if one == _REST:
            continue
        begin, end = ops.start_ns, ops.end_ns
        if one == _TRANSFER:
            rows, begin = np.flatnonzero(known), arrived
        elif one == _WAITING:
            rows, end = np.flatnonzero(known), arrived
        elif one == UNKNOWN:
            rows = np.flatnonzero(ops.communication & (own == NONE))
        else:
            rows = np.flatnonzero(part_of == one)
        at = np.flatnonzero(part == one)
        found[at] = _latest(ops, rows, (begin, end), rank[at], time[at])
    return found


def _latest(ops: Operations, rows: Ints, spans: tuple[Ints, Ints], rank: Ints, time: Ints) -> Ints:
    """Return per time the row that began last of those that are not over; `spans` has begin and end of every row."""
    of_rank, begin, end = ops.rank[rows], spans[0][rows], spans[1][rows]
    if not len(rows):
        return np.full(len(rank), NONE, dtype=np.int64)
    clock = Clock.of(ops)
    key = clock.at(of_rank, begin)
    order = np.argsort(key, kind="stable")
    key, end, of_rank, rows = key[order], end[order], of_rank[order], rows[order]
    at = np.searchsorted(key, clock.at(rank, time), side="right") - 1
    for _ in range(_STEPS_BACK):
        over = (at >= 0) & (of_rank[np.maximum(at, 0)] == rank) & (end[np.maximum(at, 0)] <= time)
        if not over.any():
            break
        at = at - over
    latest = np.maximum(at, 0)
    fits = (at >= 0) & (of_rank[latest] == rank) & (end[latest] > time)
    return np.where(fits, rows[latest], NONE)


def _last_to_come(ops: Operations, sync: Synchronisation | None) -> Ints:
    """Return per row of a collective the rank that came to it last, NONE of all others; one more NONE at the end."""
    result = np.full(len(ops) + 1, NONE, dtype=np.int64)
    if sync is not None and len(collectives := sync.collectives):
        last = ops.rank[collectives.row[collectives.last]]
        by_instance = np.full(len(collectives), NONE, dtype=np.int64)
        by_instance[collectives.instance[collectives.last]] = last
        result[collectives.row] = by_instance[collectives.instance]
    return result


def _when_between(ops: Operations, rank: Ints, begin: Ints, end: Ints, part: SmallInts) -> SmallInts:
    """Return when each stretch is between two operations: `launches` where the device idles only shortly there."""
    busy = ~is_one_of(part, (_HOST, _REST, _INPUT))
    # A device idles from one operation to the next, whatever hosts do meanwhile.
    idle = np.cumsum(busy | np.append(True, busy[:-1]) | (np.diff(rank, prepend=0) != 0))
    short = ops.has_device & (np.bincount(idle, weights=end - begin)[idle] < APART_NS)
    return np.where(short, _LAUNCHES, _BETWEEN).astype(np.int8)


def _of_hosts(
    ops: Operations, rank: Ints, begin: Ints, end: Ints, part: SmallInts, *, between: SmallInts | None = None
) -> Account:
    """Return the rows of what hosts did while nothing ran and nobody was waited for.

    Without `between` they do not say when that was, nor in what.
    """
    idle = np.flatnonzero(part == _HOST)
    spent = host_time(ops, rank[idle], begin[idle], end[idle])
    cell, kind = np.nonzero(spent.spent_ns)
    code, of_rank = (kind + _FIRST_HOST).astype(np.int8), rank[idle][cell]
    nobody = np.full(len(cell), NONE, dtype=np.int64)
    if between is None:
        names: Ints = nobody
        when: SmallInts = np.full(len(idle), _WITHIN, dtype=np.int8)
    else:
        names, when = spent.operator[of_rank, kind], _when_idle(len(ops.ranks), rank, begin, end, idle)
        when = np.where(when == _BETWEEN, between[idle], when)
    return Account(of_rank, code, when[cell], names, nobody, spent.spent_ns[cell, kind])


def _when_idle(ranks: int, rank: Ints, begin: Ints, end: Ints, idle: Ints) -> SmallInts:
    """Return of the `idle` stretches whether they are before the rank's first work, between, or after the last."""
    ran = np.ones(len(rank), dtype=bool)
    ran[idle] = False
    first, last = np.full(ranks, np.iinfo(np.int64).max), np.full(ranks, np.iinfo(np.int64).min)
    np.minimum.at(first, rank[ran], begin[ran])
    np.maximum.at(last, rank[ran], end[ran])
    rank, begin, end = rank[idle], begin[idle], end[idle]
    when = np.where(end <= first[rank], _BEFORE, np.where(begin >= last[rank], _AFTER, _BETWEEN))
    return when.astype(np.int8)


def account(trace: Trace) -> "pl.DataFrame":
    """Return the account of the chosen steps, read one after another, as a Polars frame.

    Columns: step, rank, kind (KINDS), when (WHEN), operator, owner (of waiting: the rank that came last), ns. The
    rows of a step and rank add up to how long the step took it. Loads Polars.
    """
    import polars as pl

    frames = []
    of_steps, chosen = AccountOfSteps(), set(trace.steps)
    for ops in each_step(with_steps_before(trace)):
        rows = of_steps.of_step(ops, synchronise(ops))
        if ops.step in chosen:
            frames.append(frame_of(rows, ops))
    return pl.concat(frames) if frames else pl.DataFrame(schema=_schema())


def frame_of(rows: Account, ops: Operations) -> "pl.DataFrame":
    """Return a step's rows as a frame."""
    import polars as pl

    def texts(codes: Ints | SmallInts, of: Iterable[tuple[int, str]]) -> list[str | None]:
        known: dict[int, str] = dict(of)
        return [known.get(code) for code in codes.tolist()]

    return pl.DataFrame(
        {
            "step": np.full(len(rows.ns), ops.step),
            "rank": ops.ranks[rows.rank],
            "kind": texts(rows.kind, enumerate(KINDS)),
            "when": texts(rows.when, enumerate(WHEN)),
            "operator": texts(rows.operator, ops.name_text.items()),
            "owner": [None if at == NONE else int(ops.ranks[at]) for at in rows.owner.tolist()],
            "ns": rows.ns,
        },
        schema=_schema(),
    )


def _schema() -> "dict[str, pl.DataType | type[pl.DataType]]":
    import polars as pl

    return {
        "step": pl.Int64,
        "rank": pl.Int64,
        "kind": pl.Enum(KINDS),
        "when": pl.Enum(WHEN),
        "operator": pl.String,
        "owner": pl.Int64,
        "ns": pl.Int64,
    }
