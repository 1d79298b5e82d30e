"""Changes durations as fixes say: to the peers' ideal, or by a factor.

Works out the ideal of every part of a step: what it would take if its rank were like its peers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from kair_engine.arrays import NONE, Bools, Codes, Floats, Ints, SmallInts, dense, offsets, order_by, ranges
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
    place: Codes
    """Among all parts."""

    def of(self, rows: Ints | Bools) -> "_Chosen":
        return _Chosen(*(of[rows] for of in vars(self).values()))


@dataclass(frozen=True)
class Change:
    """What a counterfactual changes of the nodes' durations."""

    node: Codes
    """Nodes can occur repeatedly."""
    change_ns: Floats
    from_ideal: bool = False
    """Whether it is a change of `FixedDurations.at_ideal`, and not of the recording: most is fixed in both."""


@dataclass(frozen=True)
class _ByCell:
    """The slow parts and the transfers of each cell: a rank of many has few."""

    slow: _Chosen
    slow_of: "_Sorted"
    transfer: Codes
    """Of each member of a communication, whether it is slow or not."""
    members_of: "_Sorted"
    slow_within: "_Sorted"
    """The slow parts of each communication."""
    members: Ints
    """Of each communication."""

    @classmethod
    def of(cls, slow: _Chosen, transfers: _Chosen, cells: int, groups: int) -> "_ByCell":
        within = np.flatnonzero(slow.transfer != NONE)
        by_group = _Sorted.of(slow.transfer[within], groups)
        return cls(
            slow,
            _Sorted.of(slow.cell, cells),
            transfers.transfer,
            _Sorted.of(transfers.cell, cells),
            _Sorted(within[by_group.order], by_group.first),
            np.bincount(transfers.transfer, minlength=groups),
        )

    def touched_by(self, cells: Bools) -> Ints:
        """Return the slow parts of some cells, and of what these communicate."""
        own = self.slow_of.rows(np.flatnonzero(cells))
        groups = np.unique(self.transfer[self.members_of.rows(np.flatnonzero(cells))])
        return np.union1d(own, self.slow_within.rows(groups))

    def untouched_by(self, cells: Bools) -> Ints:
        """Return the slow parts of all other cells that none of these communicates with."""
        others = np.flatnonzero(~cells)
        own, met = np.sort(self.slow_of.rows(others)), self.transfer[self.members_of.rows(others)]
        touched = self.members - np.bincount(met, minlength=len(self.members)) > 0
        transfer = self.slow.transfer[own]
        return np.asarray(own[(transfer == NONE) | ~np.append(touched, False)[transfer]])


@dataclass(frozen=True)
class _Sorted:
    """Rows by a code."""

    order: Ints
    first: Ints

    @classmethod
    def of(cls, codes: Codes, count: int) -> "_Sorted":
        return cls(order_by(codes), offsets(codes.astype(np.int64), count))

    def rows(self, codes: Ints | Codes) -> Ints:
        """Return those of some codes."""
        return self.order[ranges(self.first[codes], self.first[codes + 1])]


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
        parts, group = steps.parts, steps.graph.group[steps.parts.node]
        self._all = _Chosen(
            parts.kind,
            parts.name,
            first.astype(np.int32)[parts.step] + parts.rank,
            np.where(parts.own, group, NONE).astype(np.int32),
            np.arange(len(parts.node), dtype=np.int32),
        )
        self._groups = int(group.max(initial=NONE)) + 1
        self._alike = _Alike.of(parts)
        role_size = np.bincount(self._role_of_cell)[self._role_of_cell][self._all.cell]
        self._ideal = ideal = ideal_ns(parts, self._alike, role_size)
        self._transfers = self._all.of(self._all.transfer != NONE)
        self._delays = np.flatnonzero(parts.delay)
        self.stopped = StoppedParts(parts, self._alike.times, recorded, processor)
        # What is no slower than its peers no fix changes: half of all parts.
        self._slow = np.flatnonzero((ideal < parts.value_ns) & (parts.kind != NONE))
        self._of_slow = self._all.of(self._slow)
        self._gain = ideal[self._slow] - parts.value_ns[self._slow]

    def changed(self, of: Counterfactual) -> "Change":
        """Return what a counterfactual changes; of communication all members are changed, if one is."""
        if of is Baseline.UNDELAYED:
            return Change(self._node[self._delays], -self._value[self._delays])
        if isinstance(of, Undisturbed):
            less = self.stopped.disturbed_ns(of)
            shorter = np.flatnonzero(less)
            return Change(self._node[shorter], -less[shorter])
        if isinstance(of, Transplanted):
            return self._difference(self._transplanted(of))
        fixes = _BASELINES[of] if isinstance(of, Baseline) else of
        is_to_ideal = len(fixes) == 1 and not fixes[0].is_scale and STOPS not in fixes[0].kinds
        if is_to_ideal and not self._of_many(fixes[0]).any():
            return self._fixed(fixes[0])
        return self._difference(self.values_ns(fixes))

    def _fixed(self, fix: Fix) -> "Change":
        if fix.kinds or fix.operators or fix.scopes:
            return self._to_ideal(np.flatnonzero(self._matched(self._of_slow, fix)))
        named = self._named_ranks(fix)[self._rank_of_cell]
        if 2 * np.count_nonzero(named) <= len(named):
            return self._to_ideal(self._of_cells.touched_by(named))
        rows = self._of_cells.untouched_by(named)
        return Change(self._node[self._slow[rows]], -self._gain[rows], from_ideal=True)

    def at_ideal(self) -> "Change":
        """Return what is changed where every part that is slower than its peers takes their time."""
        return self._to_ideal(np.arange(len(self._slow)))

    def _to_ideal(self, rows: Ints) -> "Change":
        """Return what changes where these of the slow parts take their peers' time."""
        return Change(self._node[self._slow[rows]], self._gain[rows])

    @cached_property
    def _of_cells(self) -> "_ByCell":
        transfers = self._transfers.of(self._transfers.kind != NONE)
        return _ByCell.of(self._of_slow, transfers, len(self._rank_of_cell), self._groups)

    def _difference(self, value: Floats) -> "Change":
        different = np.flatnonzero(value != self._value)
        return Change(self._node[different], value[different] - self._value[different])

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
            chosen = self._matched(self._all, fix)
            if fix.even:
                value = self._even(value, chosen)
            elif fix.scale is not None:
                if "host" not in fix.kinds:
                    chosen &= ~self._parts.delay
                value = np.where(chosen, value * fix.scale, value)
            else:
                value = np.where(chosen, np.minimum(value, self._ideal_for(fix)), value)
        return value

    def _even(self, value: Floats, chosen: Bools) -> Floats:
        """Return the values with the chosen ones at the mean of the same part, over a role's ranks and these
        steps.
        """
        # At the peak of a replay: places of eight bytes would take as much again as the values.
        same = self._alike.operation.astype(np.int32)[self._alike.group[chosen]]
        mean = np.bincount(same, weights=value[chosen]) / np.maximum(np.bincount(same), 1)
        result = value.copy()
        result[chosen] = mean[same]
        return result

    def _unstopped(self, value: Floats, fix: Fix) -> tuple[Floats, Fix | None]:
        """Return the values without stops, where the fix asks for that; and what else it asks for."""
        if STOPS not in fix.kinds:
            return value, fix
        chosen = self._matched(self._all, replace(fix, kinds=()))
        if not (fix.operators or fix.scopes):
            # Delays that are nobody's kind hold what ranks waited for threads that stood still.
            chosen |= (self._parts.kind == NONE) & self._named_ranks(fix)[self._rank_of_cell][self._all.cell]
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

    def _ideal_for(self, fix: Fix) -> Floats:
        """Return the median of a role's other ranks, where the fix is about many: they would drag the median of all
        along.
        """
        many = self._of_many(fix)
        if not many.any():
            return self._ideal
        other = ~(self._named_ranks(fix)[self._rank_of_cell] & many[self._role_of_cell])
        size = np.bincount(self._role_of_cell, weights=other).astype(np.int64)
        return ideal_ns(self._parts, self._alike, size[self._role_of_cell][self._all.cell], other[self._all.cell])

    def excess_ns(self) -> tuple[Ints, Floats]:
        """(ranks, by how much each exceeds its peers in sum), transfers left out: they are nobody's alone."""
        alone = self._of_slow.transfer == NONE
        rank = self._rank_of_cell[self._of_slow.cell[alone]]
        excess = np.bincount(rank, weights=-self._gain[alone], minlength=len(self._ranks))
        return self._ranks, excess.astype(float)

    def _matched(self, parts: _Chosen, fix: Fix) -> Bools:
        if not (fix.ranks or fix.hosts or fix.stages):
            return self._of_operators(parts, fix)
        named = self._named_ranks(fix)[self._rank_of_cell]
        touched = np.zeros(self._groups, dtype=bool)
        touched[self._transfers.transfer[self._of_operators(self._transfers, fix) & named[self._transfers.cell]]] = True
        chosen = self._of_operators(parts, fix) & named[parts.cell]
        if touched.any():
            chosen |= np.where(parts.transfer == NONE, False, touched[parts.transfer])
        return chosen

    def _of_operators(self, parts: _Chosen, fix: Fix) -> Bools:
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
            chosen &= within_scope[parts.place]
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
    """The same part of a role's ranks in a step lies together."""

    order: Codes
    starts: Ints
    """Where those of each sort begin in that order."""
    sizes: Ints
    group: Codes
    """Per part, in their own order, the number of its sort."""
    operation: Ints
    """Per sort a number, equal for those of the same part in all steps."""

    @classmethod
    def of(cls, parts: NodeParts) -> "_Alike":
        order = order_by(parts.step, parts.key).astype(np.int32)
        key, step = parts.key[order], parts.step[order]
        starts = np.flatnonzero(np.concatenate(([True], (key[1:] != key[:-1]) | (step[1:] != step[:-1]))))
        sizes = np.diff(np.concatenate((starts, [len(order)])))
        group = np.empty(len(order), dtype=np.int32)
        group[order] = np.repeat(np.arange(len(starts), dtype=np.int32), sizes)
        return cls(order, starts, sizes, group, dense(key[starts][None]))

    def times(self, rows: Ints) -> Ints:
        """Return how often the operation of each of some parts is among them."""
        operation = self.operation[self.group[rows]]
        return np.bincount(operation)[operation]


def ideal_ns(parts: NodeParts, alike: _Alike, role_size: Ints, among: Bools | None = None) -> Floats:
    """Per part the median over the ranks of its role in its step, in ns; `role_size` counts those, per part.

    The lower of two middle ones: of two ranks, or where half of a role is slow, the peers' ideal is that of the faster
    half. Ranks that do not run the operation spend nothing on it, and count with that. But a rank that runs another
    kernel instead (of another name, say) saves nothing by leaving that out: what only few ranks run is ideally nothing
    to the extent that its rank does not lack what most of them run.

    Of some ranks only: of those whose parts are `among`, which `role_size` then counts.
    """
    order, starts, sizes, group = alike.order, alike.starts, alike.sizes, alike.group
    value, counted = parts.value_ns[order], sizes
    if among is not None:
        # The others come last.
        value = np.where(among[order], value, np.inf)
        counted = np.add.reduceat(among[order], starts, dtype=np.int64)
    peers = np.maximum(role_size[order[starts]], counted)
    middle = (peers - 1) // 2 - (peers - counted)
    common = (middle >= 0) & (counted > 0)
    typical = np.where(common, _smallest(value, starts, sizes, np.maximum(middle, 0)), 0.0)
    ideal = typical[group]
    rare = ~common[group]
    if rare.any():
        share = _replacing(parts, typical, group, ideal, rare)
        ideal[rare] = (parts.value_ns * share)[rare]
    return ideal


def _smallest(values: Floats, starts: Ints, sizes: Ints, place: Ints) -> Floats:
    """Per group of consecutive values the one that would be at `place` if the group were sorted.

    Groups of one size are looked at together: most have as many members as there are ranks.
    """
    result = np.empty(len(starts))
    for size in np.unique(sizes).tolist():
        groups = np.flatnonzero(sizes == size)
        for at in np.unique(place[groups]).tolist():
            chosen = groups[place[groups] == at]
            for some in np.array_split(chosen, len(chosen) * size // _SORTED_TOGETHER + 1):
                members = values[starts[some][:, None] + np.arange(size)]
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
