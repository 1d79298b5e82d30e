"""Replays steps side by side, as recorded and with fixes made [W §3].

Prices faults: step times with some operations replaced by their peers' ideal [W §3], of any recording.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from kair_engine.arrays import Bools, Codes, Floats, Int64s, Ints, pieces, stable_order
from kair_engine.cancelling import checkpoint
from kair_engine.frozen import dataclass
from kair_engine.progress import counted
from kair_engine.results.whatif import Fix
from kair_engine.timeline.clocks import Synchronisation, synchronise
from kair_engine.timeline.host_time import ProcessorTimes, processor_times
from kair_engine.timeline.roles import role_codes, roles
from kair_engine.trace.batches import IN_WINDOW, REPLAYED, operations_that_fit, require_memory
from kair_engine.trace.loading import each_step
from kair_engine.trace.model import Trace
from kair_engine.trace.operations import Operations
from kair_engine.whatif.model import Counterfactual
from kair_engine.whatif.operators.dependencies import OperatorDependencies, operator_dependencies
from kair_engine.whatif.operators.fixed_durations import FixedDurations, Places
from kair_engine.whatif.operators.stops import StoppedParts
from kair_engine.whatif.replay import Plan, plan, replay, side_by_side

if TYPE_CHECKING:
    from kair_engine.whatif.operators.steady_state import SteadyBatch


_AT_ONCE = 8_000_000
"""Durations that are replayed together (nodes × scenarios): bounds memory."""
_CHANGED_AT_ONCE = 500_000
"""Changes of nodes that are sorted together: what is sorted takes five times its memory."""
_ROWS_AT_ONCE = 300_000
"""Operations whose steps are replayed together, once their ranks are enough: they share the replay's levels."""
_ENOUGH_PEERS = 64
"""At least this many ranks' steps are looked at together: their overlaps show what waits for what."""
_MOST_ROWS = 2_000_000
"""Operations that are held together at most, where ranks are few."""


@dataclass(frozen=True)
class StepsTogether:
    """Steps that are replayed together, and what is known of their ranks."""

    syncs: list[Synchronisation]
    role: list[Ints]
    """Per step a code for each of its ranks."""
    places: Places
    processor: ProcessorTimes | None

    @property
    def steps(self) -> list[Operations]:
        """Return their operations."""
        return [sync.collectives.ops for sync in self.syncs]


def batches(trace: Trace, synchronised: Sequence[Synchronisation] = ()) -> Iterator["Batch | SteadyBatch"]:
    """Make all chosen steps ready, in order.

    Where hosts run ahead of their devices they are in steady state, each step behind the one before. Those of all
    chosen steps in order may be given in `synchronised`; without, the steps are read. Raises InputError where one of
    them takes more memory than there is.
    """
    if trace.job.host_times is None:
        return step_batches(trace, synchronised)
    return _steady_batches(trace, synchronised, min(_MOST_ROWS, operations_that_fit(IN_WINDOW)))


def fit_together(rows: int) -> bool:
    """Whether so many operations are few enough to be held together, whatever is asked."""
    return rows <= _ROWS_AT_ONCE


def step_batches(trace: Trace, synchronised: Sequence[Synchronisation] = ()) -> Iterator["Batch"]:
    """Return the same, each step by itself."""
    # No loop: what a batch was made of must be gone while the next one is read.
    return map(Batch, _read(trace, synchronised, _too_many))


def steady_step(trace: Trace) -> "SteadyBatch":
    """Return the one chosen step of a job whose hosts run ahead, of which every operation's time can be asked."""
    (batch,) = _steady_batches(trace, (), np.inf, whole=True)
    return batch


def _steady_batches(
    trace: Trace, synchronised: Sequence[Synchronisation], most_rows: float, *, whole: bool = False
) -> "Iterator[SteadyBatch]":
    """As many steps as are held together: the more, the truer a steady state."""
    from kair_engine.whatif.operators.steady_state import SteadyBatch  # most jobs synchronise

    made = partial(SteadyBatch, queues=trace.job.launch_queue, whole=whole)
    return map(made, _read(trace, synchronised, lambda steps, _: _rows(steps) > most_rows))


TooMany = Callable[[Sequence[Synchronisation], Sequence[Synchronisation]], bool]
"""Whether steps have too many operations to be replayed together, where those that come second can be alone."""


def _read(trace: Trace, synchronised: Sequence[Synchronisation], too_many: TooMany) -> Iterator[StepsTogether]:
    require_memory(trace, REPLAYED)
    job_ranks, processor = np.array(trace.job.ranks, dtype=np.int64), processor_times(trace)
    places: Places | None = None
    job_role: Ints = job_ranks
    for syncs in _together(synchronised or map(synchronise, each_step(trace)), too_many):
        if places is None:
            # Roles follow from the recording, to which what is marked as communication is no communication.
            role_of = roles(trace, None if trace.job.communicates else syncs[0].collectives.ops)
            places = Places(trace.job.hosts, {rank: role.stage for rank, role in role_of.items()})
            job_role = role_codes(job_ranks, role_of)
        role: list[Ints] = [job_role[np.searchsorted(job_ranks, sync.collectives.ops.ranks)] for sync in syncs]
        yield StepsTogether(syncs, role, places, processor)
        del syncs, role  # or they are still there while the next ones are read


def _together(synchronised: Iterable[Synchronisation], too_many: TooMany) -> Iterator[list[Synchronisation]]:
    """Put steps together whose operations share their codes, as many as may be held."""
    held: list[Synchronisation] = []
    for sync in synchronised:
        alike = not held or held[0].collectives.ops.name_text is sync.collectives.ops.name_text
        if held and (not alike or too_many([*held, sync], held)):
            yield held
            held = []
        held.append(sync)
        del sync
        if too_many(held, held):
            # Whatever comes next is not put to these: they go before it is read.
            yield held
            held = []
    if held:
        yield held


def _too_many(steps: Sequence[Synchronisation], looked_at: Sequence[Synchronisation]) -> bool:
    """Return whether they are more than a few, and ranks enough were looked at."""
    enough = sum(len(sync.collectives.ops.ranks) for sync in looked_at) >= _ENOUGH_PEERS
    return _rows(steps) > (_ROWS_AT_ONCE if enough else _MOST_ROWS)


def _rows(steps: Sequence[Synchronisation]) -> int:
    return sum(len(sync.collectives.ops) for sync in steps)


@dataclass(frozen=True)
class Replayed:
    """What came of scenarios."""

    end: Floats
    """(nodes × scenarios), ns on the step's clock: when each node ends; NaN where operations wait for one another in a
    circle."""
    shift: "Shift"


@dataclass(frozen=True)
class Shift:
    """How much earlier or later than recorded a step ended, per rank and scenario."""

    step: int
    ranks: Ints
    end_ns: Floats


Times = tuple[Shift | None, tuple[Floats, Floats]]
"""When the ranks of the last step ended, where the next begins then; how long each step took, and (steps × scenarios)
replayed, ns."""


class Together:
    """Steps that are replayed together: what of it does not depend on how."""

    dependencies: OperatorDependencies
    steps: Sequence[Operations]
    _durations: FixedDurations

    def excess_ns(self) -> Iterator[tuple[int, float]]:
        """(rank, by how much its operations exceed their peers' ideal), in sum over the steps."""
        ranks, excess = self._durations.excess_ns()
        return zip(ranks.tolist(), excess.tolist(), strict=True)

    @property
    def stopped(self) -> StoppedParts:
        """What of its parts is stops."""
        return self._durations.stopped


def step_time(of_ranks: Floats, *, synchronised: bool) -> Floats:
    """Return the step's time of its ranks' (first axis): all are as long where ranks wait for one another."""
    return np.asarray(np.median(of_ranks, axis=0) if synchronised else of_ranks.max(axis=0))


@dataclass(frozen=True)
class _Run:
    """Steps that are replayed side by side."""

    steps: Sequence[Operations]
    plan: Plan
    begin: Sequence[Ints]
    """Per step the places of its ranks' begins, and of their ends."""
    end: Sequence[Ints]
    begin_ns: Sequence[Floats]
    """Per step when its ranks began and ended as recorded."""
    end_ns: Sequence[Floats]
    synchronised: Sequence[bool]

    def replayed(self, durations: Floats, before: "Shift | None") -> tuple["Shift", Floats]:
        """Replay the steps, and put when every place ends in place of the durations (places × scenarios).

        Return also how long each step takes. A rank that ends a step earlier begins the next one earlier. Several
        steps are replayed first with the recorded begins, and then with those that follow: when ranks end hardly
        depends on when they began, since they meet in between.
        """
        recorded = [begin[:, None] + np.zeros(durations.shape[1]) for begin in self.begin_ns]
        begins = [_begun(self.steps[0], recorded[0], before), *recorded[1:]]
        if len(begins) > 1:
            first = durations.copy()
            ended = self._ended(first, begins)
            earlier = [before, *ended[:-1]]
            used, begins = (
                begins,
                [_begun(of, was, shift) for of, was, shift in zip(self.steps, recorded, earlier, strict=True)],
            )
            if all((one == other).all() for one, other in zip(begins, used, strict=True)):
                durations[:] = first
                return ended[-1], self._lengths(first)
        ended = self._ended(durations, begins)
        return ended[-1], self._lengths(durations)

    def _ended(self, durations: Floats, begins: Sequence[Floats]) -> list["Shift"]:
        for places, begin in zip(self.begin, begins, strict=True):
            durations[places] = begin
        replay(self.plan, durations)
        columns = zip(self.steps, self.end, self.end_ns, strict=True)
        return [Shift(of.step, of.ranks, durations[places] - was[:, None]) for of, places, was in columns]

    def _lengths(self, end: Floats) -> Floats:
        """Return (steps × scenarios)."""
        places = zip(self.begin, self.end, self.synchronised, strict=True)
        return np.stack([step_time(end[over] - end[begin], synchronised=meets) for begin, over, meets in places])


class Batch(Together):
    """Some steps, and the graphs they are replayed in."""

    def __init__(self, together: StepsTogether) -> None:
        self.steps, self.syncs, self.role = together.steps, together.syncs, together.role
        self._synchronised = [len(sync.collectives) > 0 for sync in self.syncs]
        self.dependencies = of = operator_dependencies(self.steps, self.syncs, self.role)
        self._first = np.cumsum([0, *(graph.nodes for graph in of.graphs)]).tolist()
        # Levels cost little where they are wide, as those of many ranks are; steps of few ranks share theirs.
        wide = all(len(ops.ranks) >= _ENOUGH_PEERS for ops in self.steps)
        size = 1 if wide else len(self.steps)
        self._runs = [self._run(slice(at, at + size)) for at in range(0, len(self.steps), size)]
        self._place = np.concatenate(
            [run.plan.place + first for run, first in zip(self._runs, self._first[::size], strict=False)]
        )
        self._bounds = [*self._first[:-1:size], self._first[-1]]
        parts = of.parts
        self._recorded = self._of_places(parts.node, parts.value_ns)
        self._durations = FixedDurations(of, self.steps, self.role, together.places, together.processor)

    def _run(self, some: slice) -> _Run:
        """Lay out the steps that are replayed side by side."""
        of, order = self.dependencies, plan(side_by_side(self.dependencies.graphs[some]))
        first, over = self._first[some.start], of.parts.node_over_ns
        return _Run(
            self.steps[some],
            order,
            [order.place[nodes - first] for nodes in of.begin[some]],
            [order.place[nodes - first] for nodes in of.end[some]],
            [over[nodes] for nodes in of.begin[some]],
            [over[nodes] for nodes in of.end[some]],
            self._synchronised[some],
        )

    @cached_property
    def _at_ideal(self) -> Floats:
        ideal = self._durations.at_ideal()
        return self._recorded + self._of_places(ideal.node, ideal.change_ns)

    def _of_places(self, node: Codes, values: Floats) -> Floats:
        """Add up the values of nodes, per place."""
        result = np.zeros(self.dependencies.nodes)
        for some in pieces(0, len(node)):
            np.add.at(result, self._place[node[some]], values[some])
        return result

    def values_ns(self, at: int, fixes: Sequence[Fix]) -> Floats:
        """Return the parts of the `at`-th step, in their order, with all of `fixes` made."""
        return np.asarray(self.all_values_ns(fixes)[self.dependencies.parts.step == at])

    def all_values_ns(self, fixes: Sequence[Fix]) -> Floats:
        """Return the same of all steps."""
        return self._durations.values_ns(fixes)

    def times(self, scenarios: Sequence[Counterfactual], carried: Shift | None) -> "Times":
        """(when the ranks ended, (measured, (steps × scenarios) replayed)); `carried` is that of the batch before."""
        largest = max(*np.diff(self._bounds).tolist(), 1)
        at_once = min(max(1, _AT_ONCE // largest), len(scenarios))
        room = np.empty(largest * at_once)
        parts = []
        what = f"replaying {len(scenarios):,} variants of {_steps_in_words(self.steps)}"
        for begin in counted(range(0, len(scenarios), at_once), what):
            chosen = slice(begin, begin + at_once)
            before = carried and Shift(carried.step, carried.ranks, carried.end_ns[:, chosen])
            done = [(shift, lengths) for _, shift, lengths in self._replayed(scenarios[chosen], before, room)]
            parts.append((done[-1][0].end_ns, np.concatenate([lengths for _, lengths in done])))
        shift = Shift(self.steps[-1].step, self.steps[-1].ranks, np.concatenate([end for end, _ in parts], axis=1))
        measured = np.array(
            [
                step_time(of.length_ns.astype(float), synchronised=meets)
                for of, meets in zip(self.steps, self._synchronised, strict=True)
            ]
        )
        return shift, (measured, np.concatenate([times for _, times in parts], axis=1))

    def replayed(self, scenarios: Sequence[Counterfactual], before: Shift | None) -> "Replayed":
        """Return every node's end in each scenario."""
        *_, (_, shift, _) = done = list(self._replayed(scenarios, before))
        return Replayed(np.concatenate([end for end, _, _ in done])[self._place], shift)

    def _replayed(
        self, scenarios: Sequence[Counterfactual], before: Shift | None, room: Floats | None = None
    ) -> Iterator[tuple[Floats, Shift, Floats]]:
        """Per run (when its places end, how much its ranks' ends moved, how long its steps take), per scenario.

        The first lies in `room`, where that is given, until the next run: fresh memory takes longer than the numbers.
        """
        count, changes = len(scenarios), self._changed(scenarios)
        if len(self._runs) > 1:
            changes = list(changes)
        runs = list(zip(self._runs, self._bounds, self._bounds[1:], strict=False))
        for run, first, until in counted(runs, f"replaying {count:,} variants"):
            size = (until - first) * count
            durations = (np.empty(size) if room is None else room[:size]).reshape(-1, count)
            for some in changes:
                checkpoint()
                some.write(durations, first, (self._recorded[first:until, None], self._at_ideal[first:until, None]))
                del some  # or it is still there while the next one is made
            before, lengths = run.replayed(durations, before)
            yield durations, before, lengths
            del durations  # or it is still there while the next one is made

    def _changed(self, scenarios: Sequence[Counterfactual]) -> "Iterable[_Changed]":
        """Yield what scenarios change, in parts that fit together into memory."""
        held, told = _Held(0), counted(range(len(scenarios)), f"replaying {len(scenarios):,} variants")
        for at, one in zip(told, self._durations.changed(scenarios), strict=True):
            held.from_ideal.append(one.from_ideal)
            for some in pieces(0, len(one.node)):
                held.changes.append((at, one.node[some], one.change_ns[some]))
                held.size += some.stop - some.start
                if held.size >= _CHANGED_AT_ONCE:
                    yield held.sorted(len(scenarios), self._place)
                    held = _Held(at + 1)
            del one  # or it is still there while the next one is made
        yield held.sorted(len(scenarios), self._place)


@dataclass
class _Held:
    """Collects what scenarios change, until it is sorted."""

    first: int
    """The first scenario of which nothing was held before."""
    from_ideal: list[bool] = field(default_factory=list)
    changes: list[tuple[int, Codes, Floats]] = field(default_factory=list)
    """Scenario, nodes, and by how much."""
    size: int = 0

    def sorted(self, count: int, place: Ints) -> "_Changed":
        """Return the same by place and scenario, of which there are `count`."""
        if not self.changes:
            return _Changed(self.first, np.array(self.from_ideal, dtype=bool), np.zeros(0, np.int64), np.zeros(0))
        cell = place[np.concatenate([node for _, node, _ in self.changes])].astype(np.int64)
        cell *= count
        cell += np.repeat([at for at, _, _ in self.changes], [len(node) for _, node, _ in self.changes])
        order = stable_order(cell)
        change_ns = np.concatenate([change for _, _, change in self.changes])[order]
        return _Changed(self.first, np.array(self.from_ideal, dtype=bool), cell[order], change_ns)


@dataclass(frozen=True)
class _Changed:
    """What some scenarios change of the places' durations.

    Few change in each: a column of its own for every scenario would be mostly zeros.
    """

    first: int
    """The first scenario whose column begins here."""
    from_ideal: Bools
    """Of this and the next scenarios: whether the column begins as at ideal, and not as recorded."""
    cell: Int64s
    """(place × all scenarios), ascending."""
    change_ns: Floats

    def write(self, durations: Floats, begin: int, bases: tuple[Floats, Floats]) -> None:
        """Begin columns with one of `bases` (as recorded, at ideal), and change them, of the places from `begin` on."""
        (rows, count), mine = durations.shape, slice(self.first, self.first + len(self.from_ideal))
        mostly = int(2 * np.count_nonzero(self.from_ideal) > len(self.from_ideal))
        durations[:, mine] = bases[mostly]
        durations[:, self.first + np.flatnonzero(self.from_ideal != mostly)] = bases[1 - mostly]
        here = slice(*np.searchsorted(self.cell, (begin * count, (begin + rows) * count)))
        np.add.at(durations.reshape(-1), self.cell[here] - begin * count, self.change_ns[here])


def beside(one: Times, other: Times) -> Times:
    """Return what was replayed of the same steps, in one order after the other."""
    (shift, (measured, times)), (shift_too, (_, times_too)) = one, other
    both = measured, np.concatenate((times, times_too), axis=1)
    if shift is None or shift_too is None:
        return None, both
    return Shift(shift.step, shift.ranks, np.concatenate((shift.end_ns, shift_too.end_ns), axis=1)), both


def _steps_in_words(steps: Sequence[Operations]) -> str:
    return f"step {steps[0].step}" if len(steps) == 1 else f"steps {steps[0].step}-{steps[-1].step}"


def _begun(ops: Operations, recorded: Floats, before: Shift | None) -> Floats:
    """When the ranks of a step begin if each begins as much earlier as it ended the step before."""
    if before is None or before.step != ops.step - 1:
        return recorded
    place = np.minimum(np.searchsorted(before.ranks, ops.ranks), len(before.ranks) - 1)
    known = before.ranks[place] == ops.ranks
    return recorded + np.where(known[:, None], before.end_ns[place], np.median(before.end_ns, axis=0))


def replayed_steps(
    of: Iterable["Batch | SteadyBatch"],
    asked: list[Counterfactual],
    look: Callable[["Batch | SteadyBatch"], None] | None = None,
    more: Callable[[Floats], Sequence[Counterfactual]] | None = None,
) -> tuple[Floats, Floats]:
    """(each step's time as recorded, (counterfactuals × steps) replayed), ns; batches are looked at in passing.

    Once the first was looked at, `more` may say what else to ask, given its steps' times: that is appended to `asked`.
    """
    results, carried = [], None
    for batch in of:
        carried, times = batch.times(asked, carried)
        if look is not None:
            look(batch)
        if more is not None:
            besides = [one for one in dict.fromkeys(more(times[0])) if one not in asked]
            if besides:
                carried, times = beside((carried, times), batch.times(besides, None))
                asked += besides
            more = None
        results.append(times)
        del batch  # or it is still there while the next one is made
    measured, replayed = (np.concatenate(times) for times in zip(*results, strict=True))
    return measured, replayed.T
