"""What a fault costs: step times with some operations replaced by their peers' ideal [W §3], for any recording."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.loading import each_step
from kair_engine.model import Trace
from kair_engine.operations import Operations
from kair_engine.roles import role_codes, roles
from kair_engine.synchronisation import Synchronisation, synchronise
from kair_engine.whatif.execution_model import execution_model
from kair_engine.whatif.fixes import Fix
from kair_engine.whatif.ideals import ideal_ns
from kair_engine.whatif.replay import plan, replay
from kair_engine.whatif.scenarios import Places, changed, without_delays

_AT_ONCE = 8_000_000
"""Durations that are replayed together (nodes × scenarios): bounds memory."""
_ROWS_AT_ONCE = 2_000_000
"""Operations whose steps are replayed together: they share the replay's waves."""


@dataclass(frozen=True)
class StepPrices:
    """Step times in ns: the median over ranks, or the slowest's where no collective makes the others wait."""

    steps: tuple[int, ...]
    measured_ns: Floats
    replayed_ns: Floats
    """With nothing changed."""
    undelayed_ns: Floats
    """Without the delays that no edge explains, all else as recorded."""
    scenario_ns: Floats
    """(scenarios × steps). NaN for steps whose operations wait for one another in a circle."""

    @property
    def replay_error(self) -> Floats:
        """Per step |replayed − measured| / measured."""
        return np.asarray(np.abs(self.replayed_ns - self.measured_ns) / np.maximum(self.measured_ns, 1.0))

    @property
    def saved_ns(self) -> Floats:
        """Per scenario the mean over steps of what it saves; NaN where no step could be replayed."""
        known = ~np.isnan(self.replayed_ns)
        if not known.any():
            return np.full(len(self.scenario_ns), np.nan)
        return np.asarray((self.replayed_ns - self.scenario_ns)[:, known].mean(axis=1))


def price_steps(trace: Trace, scenarios: Sequence[Fix | Sequence[Fix]]) -> StepPrices:
    """Replays every chosen step once for each scenario: a fix, or several that are made together."""
    fixes = [(one,) if isinstance(one, Fix) else tuple(one) for one in scenarios]
    role_of = roles(trace)
    places = Places(trace.job.hosts, role_of)
    job_ranks = np.array(trace.job.ranks, dtype=np.int64)
    job_role = role_codes(job_ranks, role_of)
    results, carried = [], None
    for steps in _together(trace):
        role = [job_role[np.searchsorted(job_ranks, ops.ranks)] for ops in steps]
        syncs = [synchronise(ops) for ops in steps]
        batch = _Batch(steps, syncs, role, fixes, places)
        carried, times = batch.times(carried)
        results.append(times)
    measured, replayed = (np.concatenate(of) for of in zip(*results, strict=True))
    return StepPrices(trace.steps, measured, replayed[:, 0], replayed[:, 1], replayed[:, 2:].T)


def _together(trace: Trace) -> Iterator[list[Operations]]:
    """Steps whose operations share their codes, up to so many operations."""
    held: list[Operations] = []
    for ops in each_step(trace):
        if held and (held[0].name_text is not ops.name_text or sum(map(len, held)) + len(ops) > _ROWS_AT_ONCE):
            yield held
            held = []
        held.append(ops)
    if held:
        yield held


@dataclass(frozen=True)
class _Shift:
    """How much earlier or later than recorded a step ended, per rank and scenario."""

    step: int
    ranks: Ints
    end_ns: Floats


class _Batch:
    def __init__(
        self,
        steps: Sequence[Operations],
        syncs: Sequence[Synchronisation],
        role: Sequence[Ints],
        fixes: Sequence[Sequence[Fix]],
        places: Places,
    ) -> None:
        self._steps = steps
        self._synchronised = [len(sync.collectives) > 0 for sync in syncs]
        self._model = model = execution_model(steps, syncs, role)
        self._order = plan(model.graph)
        self._stuck = np.zeros(model.graph.nodes, dtype=bool)
        self._stuck[self._order.stuck] = True
        parts = model.parts
        size = np.concatenate([np.bincount(of)[of] for of in role])
        first = np.cumsum([0, *(len(of) for of in role)])
        ideal = ideal_ns(parts, size[first[parts.step] + parts.rank])
        self._recorded = np.bincount(parts.node, weights=parts.value_ns, minlength=model.graph.nodes).astype(float)
        names = steps[0].name_text
        self._changes = [without_delays(parts), *(changed(model, of, ideal, names, places) for of in fixes)]

    def times(self, carried: _Shift | None) -> tuple[_Shift | None, tuple[Floats, Floats]]:
        """(measured, (steps × scenarios) replayed with nothing changed, without delays, and in every scenario)."""
        scenarios = [(np.zeros(0, dtype=np.int64), np.zeros(0)), *self._changes]
        at_once = max(1, _AT_ONCE // max(self._model.graph.nodes, 1))
        parts = []
        for begin in range(0, len(scenarios), at_once):
            chosen = slice(begin, begin + at_once)
            before = carried and _Shift(carried.step, carried.ranks, carried.end_ns[:, chosen])
            parts.append(self._replayed(scenarios[chosen], before))
        shift = _Shift(self._steps[-1].step, self._steps[-1].ranks, np.concatenate([end for end, _ in parts], axis=1))
        measured = np.array(
            [self._length(at, of.length_ns[:, None].astype(float))[0] for at, of in enumerate(self._steps)]
        )
        return shift, (measured, np.concatenate([times for _, times in parts], axis=1))

    def _replayed(self, scenarios: Sequence[tuple[Ints, Floats]], before: _Shift | None) -> tuple[Floats, Floats]:
        """(how the last step's end is shifted, the times of the steps).

        A rank that ends a step earlier begins the next one earlier. Steps are replayed side by side, first with the
        recorded begins and then with those that follow: when ranks end hardly depends on when they began, since they
        meet in between.
        """
        model = self._model
        durations: Floats = np.repeat(self._recorded[:, None], len(scenarios), axis=1)
        for at, (node, change) in enumerate(scenarios):
            durations[:, at] += np.bincount(node, weights=change, minlength=len(durations))
        recorded = [begin[:, None] + np.zeros(len(scenarios)) for begin in model.begin_ns]
        begins = recorded
        for _ in range(2):
            for nodes, begin in zip(model.begin, begins, strict=True):
                durations[nodes] = begin
            end = replay(self._order, durations)
            end[self._stuck] = np.nan
            shifts = [end[nodes] - was[:, None] for nodes, was in zip(model.end, model.end_ns, strict=True)]
            ended = [_Shift(of.step, of.ranks, shift) for of, shift in zip(self._steps, shifts, strict=True)]
            previous = [before, *ended[:-1]]
            begins = [
                _begun(of, was, earlier) for of, was, earlier in zip(self._steps, recorded, previous, strict=True)
            ]
            if all((one == other).all() for one, other in zip(begins, recorded, strict=True)):
                break
        lengths = [end[of] - durations[at] for of, at in zip(model.end, model.begin, strict=True)]
        return shifts[-1], np.stack([self._length(at, of) for at, of in enumerate(lengths)])

    def _length(self, at: int, of_ranks: Floats) -> Floats:
        return np.asarray(np.median(of_ranks, axis=0) if self._synchronised[at] else of_ranks.max(axis=0))


def _begun(ops: Operations, recorded: Floats, before: _Shift | None) -> Floats:
    """When the ranks of a step begin if each begins as much earlier as it ended the step before."""
    if before is None or before.step != ops.step - 1:
        return recorded
    place = np.minimum(np.searchsorted(before.ranks, ops.ranks), len(before.ranks) - 1)
    known = before.ranks[place] == ops.ranks
    return recorded + np.where(known[:, None], before.end_ns[place], np.median(before.end_ns, axis=0))
