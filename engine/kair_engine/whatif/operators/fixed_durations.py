"""Changes durations as fixes say: to the peers' ideal, or by a factor.

Works out the ideal of every part of a step: what it would take if its rank were like its peers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeGuard

import numpy as np

from kair_engine.arrays import (
    NONE,
    Bools,
    Codes,
    Floats,
    Ints,
    SmallInts,
    dense,
    narrow,
    offsets,
    order_by,
    pieces,
    ranges,
)
from kair_engine.cancelling import checkpoint
from kair_engine.frozen import dataclass
from kair_engine.results.whatif import FIX_KINDS, STOPS, Fix
from kair_engine.timeline.graph import scopes_named, within
from kair_engine.timeline.host_time import ProcessorTimes
from kair_engine.trace.operations import Operations
from kair_engine.whatif.model import Baseline, Counterfactual, IdealOfAll, Transplanted, Undisturbed
from kair_engine.whatif.operators.dependencies import NodeParts, OperatorDependencies
from kair_engine.whatif.operators.stops import StoppedParts

_MANY, _MOST = 0.25, 0.5
"""Where a fix is about fewer of a role's ranks, the median of all is the others' too; where it is about more, they are
not peers."""
_SORTED_TOGETHER = 500_000
"""Values whose middle ones are looked for at one time."""
_TOGETHER = 64
"""Fixes whose parts are looked up at one time."""
_BASELINES: Mapping[Baseline, tuple[Fix, ...]] = {Baseline.DELAYED: (), Baseline.RECORDED: (), Baseline.IDEAL: (Fix(),)}


@dataclass(frozen=True)
class Places:
    """What is known of the ranks by number."""

    host: Mapping[int, str]
    stage: Mapping[int, int | None]


@dataclass(frozen=True)
class _Chosen:
    """Some parts: what a fix asks of them."""

    kind: SmallInts
    name: Codes
    cell: Codes
    """The place of the part's rank among the ranks of all steps."""
    transfer: Codes
    """The communication that it is a transfer of, or NONE."""
    place: Codes | slice
    """Among all parts."""


@dataclass(frozen=True)
class _Every:
    """All parts, of which nothing is held but what they are."""

    parts: NodeParts
    first: Codes
    """Per step the place of its first rank among the ranks of all steps."""
    group: Codes
    """Per node its communication, or NONE."""

    def chosen(self, place: Codes | slice = slice(None)) -> _Chosen:
        """Return all of them, or some by their places."""
        parts = self.parts
        return _Chosen(parts.kind[place], parts.name[place], self.cell(place), self.transfer(place), place)

    @cached_property
    def _cells(self) -> Codes:
        return self.first[self.parts.step] + self.parts.rank

    def cell(self, place: Codes | Ints | slice = slice(None)) -> Codes:
        """Return the cells of some, or of all."""
        return self._cells[place]

    def transfer(self, place: Codes | slice = slice(None)) -> Codes:
        """Return the transfers of some, or of all."""
        return np.where(self.parts.own[place], self.group[self.parts.node[place]], np.int32(NONE))


@dataclass(frozen=True)
class Change:
    """What a counterfactual changes of the nodes' durations."""

    node: Codes
    """Nodes can occur repeatedly; those of a step come before those of the next."""
    change_ns: Floats
    from_ideal: bool = False
    """Whether it is a change of `FixedDurations.at_ideal`, and not of the recording: most is fixed in both."""


@dataclass(frozen=True)
class _ByCell:
    """The slow parts and the transfers of each cell: a rank of many has few."""

    alone: "_Sorted"
    """The slow parts that are no transfers."""
    transfer: Codes
    """Of each member of a communication, whether it is slow or not."""
    members_of: "_Sorted"
    slow_within: "_Sorted"
    """The slow parts of each communication."""
    members: Ints
    """Of each communication."""

    @classmethod
    def of(cls, slow: _Chosen, transfer: Codes, cell: Codes, cells: int, groups: int) -> "_ByCell":
        of_group = _Sorted.some(np.flatnonzero(slow.transfer != NONE), slow.transfer, groups)
        alone = _Sorted.some(np.flatnonzero(slow.transfer == NONE), slow.cell, cells)
        members = np.bincount(transfer, minlength=groups)
        return cls(alone, transfer, _Sorted.some(np.arange(len(cell)), cell, cells), of_group, members)

    def rows(self, cells: Bools, whole: Bools) -> tuple[Ints, Ints]:
        """(question, slow part) of some cells (questions × cells) and what these communicate.

        Where it is to be `whole`, per question, only of that of which they are all the members.
        """
        question, cell = np.nonzero(cells)
        alone, own = self.alone.rows(cell)
        member, met = self.members_of.rows(cell)
        groups = len(self.members)
        of_group, count = np.unique(question[member] * groups + self.transfer[met], return_counts=True)
        asks, group = np.divmod(of_group, groups)
        chosen = ~whole[asks] | (count == self.members[group])
        within, transfers = self.slow_within.rows(group[chosen])
        found = np.concatenate((question[alone], asks[chosen][within])), np.concatenate((own, transfers))
        order = order_by(*found)
        return found[0][order], found[1][order]


@dataclass(frozen=True)
class _Sorted:
    """Rows by a code."""

    order: Ints
    first: Ints

    @classmethod
    def some(cls, rows: Ints, codes: Codes, count: int) -> "_Sorted":
        """Sort some rows by the codes of all."""
        code = codes[rows]
        return cls(rows[order_by(code)], offsets(code.astype(np.int64), count))

    def rows(self, codes: Ints | Codes) -> tuple[Ints, Ints]:
        """(which of the codes, row) of some codes."""
        begin, end = self.first[codes], self.first[codes + 1]
        return np.repeat(np.arange(len(codes)), end - begin), self.order[ranges(begin, end)]


@dataclass(frozen=True)
class _OfRoles:
    """The parts of some roles, by their places."""

    mine: Codes
    parts: NodeParts
    chosen: _Chosen
    order: Ints
    """By step and key."""
    alike: "_Alike"
    among_slow: Bools
    """Per slow part of any role, whether it is one of these."""


def _is_to_ideal(fixes: tuple[Fix, ...]) -> bool:
    return len(fixes) == 1 and not fixes[0].is_scale and STOPS not in fixes[0].kinds


class FixedDurations:
    """What fixes change in some steps; per step and rank `role` has a code."""

    def __init__(
        self,
        steps: OperatorDependencies,
        recorded: Sequence[Operations],
        role: Sequence[Ints],
        places: Places,
        processor: ProcessorTimes | None = None,
    ) -> None:
        self._recorded, self._names, self._places = recorded, recorded[0].name_text, places
        self._parts, self._node, self._value = steps.parts, steps.parts.node, steps.parts.value_ns
        self._ranks, self._rank_of_cell = np.unique(np.concatenate(steps.ranks), return_inverse=True)
        first = np.cumsum([0, *(len(ranks) for ranks in steps.ranks)])
        cells = np.concatenate([np.full(len(of), at) for at, of in enumerate(role)]), np.concatenate(role)
        self._role_of_cell = dense(np.stack(cells))
        parts = steps.parts
        self._every = _Every(parts, first.astype(np.int32), steps.group)
        self._groups = int(self._every.group.max(initial=NONE)) + 1
        order = order_by(parts.step, parts.key)
        self._alike = _Alike.of(parts, order)
        self._ideal = ideal_ns(parts, self._alike, order, self._role_sizes(order, np.bincount(self._role_of_cell)))
        del order
        self._transfers = self._every.chosen(_places(self._every.transfer() != NONE))
        self.stopped = StoppedParts(parts, self._alike.seldom, recorded, processor)
        # What is no slower than its peers no fix changes: half of all parts.
        ideal = self._ideal.ns()
        self._slow = _places((ideal < parts.value_ns) & (parts.kind != NONE))
        self._of_slow = self._every.chosen(self._slow)
        self._gain = ideal[self._slow] - parts.value_ns[self._slow]
        self._last_roles: tuple[Bools, _OfRoles] | None = None

    def changed(self, asked: Sequence[Counterfactual]) -> "Iterator[Change]":
        """Yield what each counterfactual changes; of communication all members are changed, if one is."""
        asked = [_BASELINES.get(of, of) if isinstance(of, Baseline) else of for of in asked]
        found = self._of_whole_ranks([of[0] for of in asked if self._is_of_whole_ranks(of)])
        for of in asked:
            yield next(found) if self._is_of_whole_ranks(of) else self._changed(of)

    def _changed(self, of: Counterfactual) -> "Change":
        checkpoint()
        if of is Baseline.UNDELAYED:
            delays = _places(self._parts.delay)
            return Change(self._node[delays], -self._value[delays])
        if isinstance(of, Undisturbed):
            less = self.stopped.disturbed_ns(of)
            shorter = np.flatnonzero(less)
            return Change(self._node[shorter], -less[shorter])
        if isinstance(of, Transplanted):
            return self._difference(self._transplanted(of))
        assert isinstance(of, tuple)
        if not _is_to_ideal(of):
            return self._difference(self.values_ns(of))
        if (many := self._of_many(of[0])).any():
            return self._like_others(of[0], many)
        return self._to_ideal(np.flatnonzero(self._matched(self._of_slow, of[0])))

    def _is_of_whole_ranks(self, of: Counterfactual) -> TypeGuard[tuple[Fix, ...]]:
        if not isinstance(of, tuple) or not _is_to_ideal(of):
            return False
        fix = of[0]
        return not (fix.kinds or fix.operators or fix.scopes or self._of_many(fix).any())

    def _of_whole_ranks(self, fixes: Sequence[Fix]) -> "Iterator[Change]":
        """Of fixes of all that some ranks do, a few at a time."""
        cells = len(self._rank_of_cell)
        for begin in range(0, len(fixes), _TOGETHER):
            named = np.array([self._named_ranks(fix)[self._rank_of_cell] for fix in fixes[begin : begin + _TOGETHER]])
            from_ideal = 2 * np.count_nonzero(named, axis=1) > cells
            which, rows = self._of_cells.rows(named != from_ideal[:, None], from_ideal)
            bounds = np.searchsorted(which, np.arange(len(named) + 1)).tolist()
            for is_from_ideal, first, until in zip(from_ideal.tolist(), bounds, bounds[1:], strict=False):
                mine = rows[first:until]
                gain = self._gain[mine]
                yield Change(self._node[self._slow[mine]], -gain if is_from_ideal else gain, is_from_ideal)

    def at_ideal(self) -> "Change":
        """Return what is changed where every part that is slower than its peers takes their time."""
        return self._to_ideal(np.arange(len(self._slow)))

    def _to_ideal(self, rows: Ints) -> "Change":
        """Return what changes where these of the slow parts take their peers' time."""
        return Change(self._node[self._slow[rows]], self._gain[rows])

    def _like_others(self, fix: Fix, many: Bools) -> "Change":
        """Return what changes where parts take their peers' time, and in roles with many of them that of the others."""
        of = self._of_roles(many)
        gain = self._ideal_of_others(fix, of) - of.parts.value_ns
        less = np.flatnonzero((gain < 0) & self._matched(of.chosen, fix))
        slow = np.flatnonzero(self._matched(self._of_slow, fix) & ~of.among_slow)
        parts = np.concatenate((self._slow[slow], of.mine[less]))
        order = np.argsort(parts)
        return Change(self._node[parts[order]], np.concatenate((self._gain[slow], gain[less]))[order])

    def _of_roles(self, many: Bools) -> "_OfRoles":
        """Return the parts of some roles, as long as no other ones are asked for: hosts of one role come in a row."""
        if self._last_roles is None or not np.array_equal(self._last_roles[0], many):
            self._last_roles = None
            of_these = many[self._role_of_cell][self._every.cell()]
            mine = _places(of_these)
            parts = self._parts.some(mine)
            order = order_by(parts.step, parts.key)
            of = _OfRoles(mine, parts, self._every.chosen(mine), order, _Alike.of(parts, order), of_these[self._slow])
            self._last_roles = many, of
        return self._last_roles[1]

    @cached_property
    def _of_cells(self) -> "_ByCell":
        of = self._transfers
        transfer, cell = (one[of.kind != NONE] for one in (of.transfer, of.cell))
        return _ByCell.of(self._of_slow, transfer, cell, len(self._rank_of_cell), self._groups)

    def _difference(self, value: Floats) -> "Change":
        """Return what differs of values that nobody else needs."""
        change = np.subtract(value, self._value, out=None if value is self._value else value)
        different = change != 0
        if 2 * np.count_nonzero(different) > len(different):
            return Change(self._node, change)  # what is chosen of it would take as much again
        places = _places(different)
        return Change(self._node[places], change[places])

    def _transplanted(self, of: Transplanted) -> Floats:
        value = self._value.copy()
        for place, ops in enumerate(self._recorded):
            mine = np.flatnonzero(self._parts.step == place)
            for at, longer in of.of_step(ops.step):
                value[mine[at]] += longer
        return value

    def values_ns(self, fixes: Sequence[Fix]) -> Floats:
        """Per part of the steps, with all of `fixes` made."""
        value = self._value
        for one in fixes:
            value, fix = self._unstopped(value, one)
            if fix is None:
                continue
            chosen = self._matched(None, fix)
            # One copy serves all fixes: at the peak of a replay another takes a tenth of its memory.
            value = value.copy() if value is self._value else value
            if fix.even:
                self._make_even(value, chosen)
            elif fix.scale is None:
                self._lower(value, chosen, fix)
            else:
                if "host" not in fix.kinds:
                    chosen &= ~self._parts.delay
                np.multiply(value, fix.scale, out=value, where=chosen)
        return value

    def _make_even(self, value: Floats, chosen: Bools) -> None:
        """Set the chosen values to the mean of the same part, over a role's ranks and these steps."""
        operation, group = self._alike.operation, self._alike.group
        count, total = (np.zeros(int(operation.max(initial=NONE)) + 1) for _ in range(2))
        for some in pieces(0, len(value)):
            same = operation[group[some][chosen[some]]]
            count += np.bincount(same, minlength=len(count))
            np.add.at(total, same, value[some][chosen[some]])
        mean = total / np.maximum(count, 1)
        for some in pieces(0, len(value)):
            value[some][chosen[some]] = mean[operation[group[some][chosen[some]]]]

    def _unstopped(self, value: Floats, fix: Fix) -> tuple[Floats, Fix | None]:
        """Return the values without stops, where the fix asks for that; and what else it asks for."""
        if STOPS not in fix.kinds:
            return value, fix
        chosen = self._matched(None, replace(fix, kinds=()))
        if not (fix.operators or fix.scopes):
            # Delays that are nobody's kind hold what ranks waited for threads that stood still.
            chosen |= (self._parts.kind == NONE) & self._named_ranks(fix)[self._rank_of_cell][self._every.cell()]
        left = self._value - self.stopped.ns * (1 - (fix.scale or 0.0))
        others = tuple(kind for kind in fix.kinds if kind != STOPS)
        return np.where(chosen, np.minimum(value, left), value), replace(fix, kinds=others) if others else None

    def _of_many(self, fix: Fix) -> Bools:
        """Return the roles, of each step, several of whose ranks the fix is about: a quarter at least, half at most."""
        if isinstance(fix, IdealOfAll) or not (fix.ranks or fix.hosts):
            return np.zeros(1, dtype=bool)
        size = np.bincount(self._role_of_cell)
        named = np.bincount(self._role_of_cell, weights=self._named_ranks(fix)[self._rank_of_cell])
        return np.asarray((named > 1) & (named >= size * _MANY) & (named <= size * _MOST))

    def _lower(self, value: Floats, chosen: Bools, fix: Fix) -> None:
        """Set chosen values to their ideal for a fix, where that is less."""
        mine, of_others = np.zeros(0, dtype=np.int32), np.zeros(0)
        if (many := self._of_many(fix)).any():
            of = self._of_roles(many)
            mine, of_others = of.mine, self._ideal_of_others(fix, of)
        for some in pieces(0, len(value)):
            ideal, here = self._ideal.ns(some), slice(*np.searchsorted(mine, (some.start, some.stop)))
            ideal[mine[here] - some.start] = of_others[here]
            np.minimum(value[some], ideal, out=value[some], where=chosen[some])

    def _ideal_of_others(self, fix: Fix, of: "_OfRoles") -> Floats:
        """Return the medians of the ranks that a fix is not about, per part of roles with many that it is about.

        Those that it is about would drag the median of all along.
        """
        other = ~self._named_ranks(fix)[self._rank_of_cell]
        size = np.bincount(self._role_of_cell, weights=other).astype(np.int64)
        sizes = size[self._role_of_cell][of.chosen.cell[of.order[of.alike.starts]]]
        return ideal_ns(of.parts, of.alike, of.order, sizes, other[of.chosen.cell]).ns()

    def _role_sizes(self, order: Ints, size: Ints) -> Ints:
        """Return per sort of parts the size of its role, of the roles' sizes."""
        return size[self._role_of_cell][self._every.cell(order[self._alike.starts])]

    def excess_ns(self) -> tuple[Ints, Floats]:
        """(ranks, by how much each exceeds its peers in sum), transfers left out: they are nobody's alone."""
        alone = self._of_slow.transfer == NONE
        rank = self._rank_of_cell[self._of_slow.cell[alone]]
        excess = np.bincount(rank, weights=-self._gain[alone], minlength=len(self._ranks))
        return self._ranks, excess.astype(float)

    def _matched(self, some: _Chosen | None, fix: Fix) -> Bools:
        """Return whether the fix is about each of some parts, or of all."""
        if not (fix.ranks or fix.hosts or fix.stages):
            return self._of_operators(self._parts if some is None else some, fix)
        parts = self._every.chosen() if some is None else some
        named = self._named_ranks(fix)[self._rank_of_cell]
        touched = np.zeros(self._groups, dtype=bool)
        touched[self._transfers.transfer[self._of_operators(self._transfers, fix) & named[self._transfers.cell]]] = True
        chosen = self._of_operators(parts, fix) & named[parts.cell]
        if touched.any():
            chosen |= np.where(parts.transfer == NONE, False, touched[parts.transfer])
        return chosen

    def _of_operators(self, parts: _Chosen | NodeParts, fix: Fix) -> Bools:
        chosen = parts.kind != NONE
        if fix.kinds:
            kinds = {*fix.kinds, "gc"} if "host" in fix.kinds else set(fix.kinds)
            # The last stands for NONE, −1.
            chosen = np.array([*(kind in kinds for kind in FIX_KINDS), False])[parts.kind]
        if fix.operators:
            codes = [code for code, name in self._names.items() if fix.named(name)]
            chosen &= np.isin(parts.name, codes)
        if fix.scopes:
            within_scope = self._parts.of_operations(
                self._recorded, lambda ops: within(ops, scopes_named(ops, fix.within))
            )
            chosen &= within_scope if isinstance(parts, NodeParts) else within_scope[parts.place]
        return np.asarray(chosen)

    def _named_ranks(self, fix: Fix) -> Bools:
        """Per rank of any step whether the fix is about it."""
        hosts, stages = set(fix.hosts), set(fix.stages)
        named = np.ones(len(self._ranks), dtype=bool)
        if fix.ranks:
            named &= np.isin(self._ranks, fix.ranks)
        if hosts:
            named &= np.array([self._places.host.get(rank) in hosts for rank in self._ranks.tolist()])
        if stages:
            named &= np.array([self._places.stage.get(rank) in stages for rank in self._ranks.tolist()])
        return named


@dataclass(frozen=True)
class _Alike:
    """Which parts are the same one of a role's ranks in a step: of one sort."""

    starts: Ints
    """Where those of each sort begin, in the order of sorts."""
    sizes: Ints
    group: Codes
    """Per part, in their own order, the number of its sort."""
    operation: Ints
    """Per sort a number, equal for those of the same part in all steps."""

    @classmethod
    def of(cls, parts: NodeParts, order: Ints) -> "_Alike":
        """Take the order of parts by step and key."""
        key, step = parts.key[order], narrow(parts.step)[order]
        starts = np.flatnonzero(np.concatenate(([True], (key[1:] != key[:-1]) | (step[1:] != step[:-1]))))
        sizes = np.diff(np.concatenate((starts, [len(order)])))
        group = np.empty(len(order), dtype=np.int32)
        group[order] = np.repeat(np.arange(len(starts), dtype=np.int32), sizes)
        return cls(starts, sizes, group, dense(key[starts][None]))

    def seldom(self, chosen: Bools, times: int) -> Ints:
        """Return those of some parts whose operation is among them less often than so many times."""
        of_sort = np.zeros(len(self.starts), dtype=np.int64)
        for some in pieces(0, len(chosen)):
            of_sort += np.bincount(self.group[some][chosen[some]], minlength=len(of_sort))
        few = (np.bincount(self.operation, weights=of_sort) < times)[self.operation]
        return np.flatnonzero(chosen & few[self.group]) if few.any() else np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class _Ideal:
    """The ideal of parts."""

    typical: Floats
    """Of each sort, ns."""
    group: Codes
    """Per part its sort."""
    rare: Codes
    """Parts of which most ranks have none, and their own ideal."""
    rare_ns: Floats

    def ns(self, some: slice | None = None) -> Floats:
        """Return it per part, or for some of them."""
        some = some or slice(0, len(self.group))
        ideal, here = self.typical[self.group[some]], slice(*np.searchsorted(self.rare, (some.start, some.stop)))
        ideal[self.rare[here] - some.start] = self.rare_ns[here]
        return ideal


def _places(chosen: Bools) -> Codes:
    result, end = np.empty(np.count_nonzero(chosen), dtype=np.int32), 0
    for some in pieces(0, len(chosen)):
        more = np.flatnonzero(chosen[some])
        result[end : end + len(more)], end = more + some.start, end + len(more)
    return result


def ideal_ns(parts: NodeParts, alike: _Alike, order: Ints, role_size: Ints, among: Bools | None = None) -> _Ideal:
    """Per part the median over the ranks of its role in its step, in ns; `role_size` counts those, per sort of parts,
    which lie together in `order`.

    The lower of two middle ones: of two ranks, or where half of a role is slow, the peers' ideal is that of the faster
    half. Ranks that do not run the operation spend nothing on it, and count with that. But a rank that runs another
    kernel instead (of another name, say) saves nothing by leaving that out: what only few ranks run is ideally nothing
    to the extent that its rank does not lack what most of them run.

    Of some ranks only: of those whose parts are `among`, which `role_size` then counts.
    """
    starts, sizes, group = alike.starts, alike.sizes, alike.group
    value, counted = parts.value_ns, sizes
    if among is not None:
        # The others come last.
        value = np.where(among, value, np.inf)
        counted = np.add.reduceat(among[order], starts, dtype=np.int64)
    peers = np.maximum(role_size, counted)
    middle = (peers - 1) // 2 - (peers - counted)
    common = (middle >= 0) & (counted > 0)
    typical = np.where(common, _smallest(value, order, starts, sizes, np.maximum(middle, 0)), 0.0)
    if common.all():
        return _Ideal(typical, group, np.zeros(0, dtype=np.int32), np.zeros(0))
    rare = ~common[group]
    share = _replacing(parts, typical, group, typical[group], rare)
    return _Ideal(typical, group, _places(rare), (parts.value_ns * share)[rare])


def _smallest(values: Floats, order: Ints, starts: Ints, sizes: Ints, place: Ints) -> Floats:
    """Per group of values, consecutive in `order`, the one that would be at `place` if the group were sorted.

    Groups of one size are looked at together: most have as many members as there are ranks.
    """
    result = np.empty(len(starts))
    for size in np.unique(sizes).tolist():
        groups = np.flatnonzero(sizes == size)
        for at in np.unique(place[groups]).tolist():
            chosen = groups[place[groups] == at]
            for some in np.array_split(chosen, len(chosen) * size // _SORTED_TOGETHER + 1):
                members = values[order[starts[some][:, None] + np.arange(size)]]
                members.partition(at, axis=1)
                result[some] = members[:, at]
    return result


def _replacing(parts: NodeParts, typical: Floats, group: Codes, ideal: Floats, rare: Bools) -> Floats:
    """Per part the share of what its rank alone runs, in its step and kind, that it runs instead of what others do."""
    kinds, ranks, roles = len(FIX_KINDS) + 1, int(parts.rank.max()) + 1, int(parts.role.max()) + 1
    kind = parts.kind.astype(np.int64) - NONE
    member = np.empty(len(typical), dtype=np.int64)
    member[group] = np.arange(len(group))
    # Delays before the same operation can be the host's on one rank only: the kind that most of them are of counts.
    usual = (
        np.bincount(group.astype(np.int64) * kinds + kind, minlength=len(typical) * kinds)
        .reshape(-1, kinds)
        .argmax(axis=1)
    )
    role = parts.step.astype(np.int64) * roles + parts.role
    expected = np.bincount(role[member] * kinds + usual, weights=typical, minlength=(int(role.max()) + 1) * kinds)
    cell = (parts.step.astype(np.int64) * ranks + parts.rank) * kinds + kind
    present = np.bincount(cell, weights=ideal)
    alone = np.bincount(cell, weights=np.where(rare, parts.value_ns, 0.0))
    lacking = np.maximum(expected[role * kinds + kind] - present[cell], 0.0)
    return np.where(alone[cell] > 0, np.minimum(lacking / np.maximum(alone[cell], 1.0), 1.0), 0.0)
