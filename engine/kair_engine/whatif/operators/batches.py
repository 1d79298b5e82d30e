"""Replays steps side by side, as recorded and with fixes made [W §3].

Prices faults: step times with some operations replaced by their peers' ideal [W §3], of any recording.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from kair_engine.arrays import Floats, Ints
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
from kair_engine.whatif.replay import plan, replay

if TYPE_CHECKING:
    from kair_engine.whatif.operators.steady_state import SteadyBatch


_AT_ONCE = 8_000_000
"""Durations that are replayed together (nodes × scenarios): bounds memory."""
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
    """(places of the batch's plan × scenarios), ns on the step's clock: when each node ends."""

    end: Floats
    """NaN where operations wait for one another in a circle."""
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


class Batch(Together):
    """Some steps, and the graph they are replayed in."""

    def __init__(self, together: StepsTogether) -> None:
        self.steps, self.syncs, self.role = together.steps, together.syncs, together.role
        self._synchronised = [len(sync.collectives) > 0 for sync in self.syncs]
        self.dependencies = of = operator_dependencies(self.steps, self.syncs, self.role)
        self.plan = plan(of.graph)
        place = self.plan.place
        self._begin, self._end = ([place[nodes] for nodes in nodes_of] for nodes_of in (of.begin, of.end))
        parts = of.parts
        self._begin_ns, self._end_ns = (
            [parts.node_over_ns[nodes] for nodes in nodes_of] for nodes_of in (of.begin, of.end)
        )
        self._recorded = np.bincount(place[parts.node], weights=parts.value_ns, minlength=of.graph.nodes)
        self._durations = FixedDurations(of, self.steps, self.role, together.places, together.processor)

    @cached_property
    def _at_ideal(self) -> Floats:
        ideal = self._durations.at_ideal()
        changed = np.bincount(self.plan.place[ideal.node], weights=ideal.change_ns, minlength=len(self._recorded))
        return np.asarray(self._recorded + changed)

    def values_ns(self, at: int, fixes: Sequence[Fix]) -> Floats:
        """Return the parts of the `at`-th step, in their order, with all of `fixes` made."""
        return np.asarray(self.all_values_ns(fixes)[self.dependencies.parts.step == at])

    def all_values_ns(self, fixes: Sequence[Fix]) -> Floats:
        """Return the same of all steps."""
        return self._durations.values_ns(fixes)

    def times(self, scenarios: Sequence[Counterfactual], carried: Shift | None) -> "Times":
        """(when the ranks ended, (measured, (steps × scenarios) replayed)); `carried` is that of the batch before."""
        at_once = max(1, _AT_ONCE // max(self.dependencies.graph.nodes, 1))
        parts = []
        what = f"replaying {len(scenarios):,} variants of {_steps_in_words(self.steps)}"
        for begin in counted(range(0, len(scenarios), at_once), what):
            chosen = slice(begin, begin + at_once)
            before = carried and Shift(carried.step, carried.ranks, carried.end_ns[:, chosen])
            done = self.replayed(scenarios[chosen], before)
            parts.append((done.shift.end_ns, self._lengths(done)))
        shift = Shift(self.steps[-1].step, self.steps[-1].ranks, np.concatenate([end for end, _ in parts], axis=1))
        measured = np.array(
            [
                step_time(of.length_ns.astype(float), synchronised=meets)
                for of, meets in zip(self.steps, self._synchronised, strict=True)
            ]
        )
        return shift, (measured, np.concatenate([times for _, times in parts], axis=1))

    def replayed(self, scenarios: Sequence[Counterfactual], before: Shift | None) -> "Replayed":
        """Every node's end in each scenario.

        A rank that ends a step earlier begins the next one earlier. Steps are replayed side by side, first with the
        recorded begins and then with those that follow: when ranks end hardly depends on when they began, since they
        meet in between. A step by itself is replayed once.
        """
        changes = [self._durations.changed(one) for one in scenarios]
        both = np.stack((self._recorded, self._at_ideal), axis=1)
        durations: Floats = np.take(both, [int(one.from_ideal) for one in changes], axis=1)
        for at in counted(range(len(scenarios)), f"replaying {len(scenarios):,} variants"):
            checkpoint()
            one = changes[at]
            # Few change in each: a column of its own for every scenario would be mostly zeros.
            np.add.at(durations.reshape(-1), self.plan.place[one.node] * len(scenarios) + at, one.change_ns)
        recorded = [begin[:, None] + np.zeros(len(scenarios)) for begin in self._begin_ns]
        begins = [_begun(self.steps[0], recorded[0], before), *recorded[1:]]
        again = len(begins) > 1
        while True:
            end = durations.copy() if again else durations
            for places, begin in zip(self._begin, begins, strict=True):
                end[places] = begin
            replay(self.plan, end)
            ended = [
                Shift(of.step, of.ranks, end[places] - was[:, None])
                for of, places, was in zip(self.steps, self._end, self._end_ns, strict=True)
            ]
            if not again:
                return Replayed(end, ended[-1])
            previous = [before, *ended[:-1]]
            used, begins = (
                begins,
                [_begun(of, was, earlier) for of, was, earlier in zip(self.steps, recorded, previous, strict=True)],
            )
            if all((one == other).all() for one, other in zip(begins, used, strict=True)):
                return Replayed(end, ended[-1])
            again = False

    def _lengths(self, done: "Replayed") -> Floats:
        """Return (steps × scenarios)."""
        places = zip(self._begin, self._end, self._synchronised, strict=True)
        return np.stack(
            [step_time(done.end[end] - done.end[begin], synchronised=meets) for begin, end, meets in places]
        )


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
