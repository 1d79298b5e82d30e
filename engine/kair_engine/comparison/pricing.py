"""What changes add to the step: a run is replayed with what the other's operations take instead of its own.

Call by call: of an operator whose first call became longer, the others stay as they are.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints
from kair_engine.comparison.changes import Change
from kair_engine.comparison.transplant import Concerned, concerned, names_coded, there_ns
from kair_engine.errors import InputError
from kair_engine.trace.model import Job, Trace
from kair_engine.trace.steps.step_batches import operations_of_steps
from kair_engine.whatif.model import Baseline, Model, Transplanted
from kair_engine.whatif.models import model_asked_of

MOST_KEPT = 1_500_000
"""Operations of both runs together whose graphs stay in memory from one question to the next."""
Layer = Mapping[int, tuple[Ints, Floats]]
"""Step → (places among its parts, what is added to them, ns)."""


def added_us(base: Trace, new: Trace, changes: Sequence[Change], ranks: Sequence[int]) -> list[float] | None:
    """Of each change, what it adds to the mean step (negative: saves), in µs; None where a run cannot be replayed.

    Each is taken out of the run where the operator takes longer, call by call, so that the other way round the same is
    replayed. All of a run are taken out one after the other, in one order and the reverse: of what two changes hide for
    each other each has half. `ranks` are those that places of changes point to.
    """
    named = {ranks[place] for one in changes if not one.everywhere for place in one.shift.places}
    keep = sum(sum(operations_of_steps(trace).values()) for trace in (base, new)) <= MOST_KEPT
    order = sorted(range(len(changes)), key=lambda at: _order(changes, at))
    result = [0.0] * len(changes)
    try:
        before, after = (_model(trace, named, keep=keep) for trace in (base, new))
        for run in _runs(before, after, changes, ranks):
            mine = [at for at in order if (changes[at].shift.new_us < changes[at].shift.base_us) == run.is_base]
            for at, saved in zip(mine, run.saved_us([changes[at] for at in mine]), strict=True):
                result[at] = -saved if run.is_base else saved
    except InputError:
        return None
    return result


def _model(trace: Trace, named: set[int], *, keep: bool) -> Model:
    named = named.intersection(trace.job.ranks)
    model = model_asked_of(trace, keep=keep, named=named)
    if not named <= {*model.job.ranks}:
        raise InputError("of steps that are too large to be replayed whole, these ranks cannot stand for all")
    return model


def _order(changes: Sequence[Change], at: int) -> tuple[float, tuple[str, ...], str, bool]:
    """The largest operator first, whichever run is the base; a change on all ranks before what is on top of it."""
    pair = changes[at].pair
    size = sum(abs(one.shift.new_us - one.shift.base_us) for one in changes if one.pair is pair)
    names = sorted(one.operator or "" for one in (pair.base, pair.new) if one is not None)
    return -size, tuple(names), pair.any.kind, not changes[at].everywhere


@dataclass(frozen=True)
class _Run:
    """A run, and what of the other can take its place."""

    model: Model
    is_base: bool
    own: Concerned
    there_ns: Floats
    """Per part what it takes in the other run."""
    chosen: Bools
    """Per part whether it is an operator's here or there."""
    number_of: Mapping[int, int]
    """The number of an operator by its pair's identity."""
    ranks: Ints
    """Those that places of changes point to; none where ranks are not matched."""
    shared: Bools
    """Per part whether its rank can be held against one of the other run's."""

    def saved_us(self, changes: Sequence[Change]) -> list[float]:
        """What each takes off the mean step, taken out on top of others: the mean over one order and the reverse."""
        if not changes:
            return []
        layers = [self._layer(change, changes) for change in changes]
        chains = [layers[:count] for count in range(1, len(layers) + 1)]
        back = [layers[-count:] for count in range(1, len(layers))]
        asked = [Transplanted(one) for one in (*chains, *back)]
        recorded, *times = (self.model.replay([Baseline.RECORDED, *asked]).times.mean(axis=1) / 1e3).tolist()
        forth = [recorded, *times[: len(layers)]]
        back_too = [recorded, *times[len(layers) :], *forth[-1:]]
        one_way = [was - then for was, then in pairwise(forth)]
        other_way = [was - then for was, then in pairwise(back_too)][::-1]
        return [(one + other) / 2 for one, other in zip(one_way, other_way, strict=True)]

    def _layer(self, change: Change, changes: Sequence[Change]) -> Layer:
        """By how much the change's parts are shorter in the other run."""
        own, there = self.own, self.there_ns
        others = [one for one in changes if one.pair is change.pair and one is not change]
        mine = of_operator = self.chosen & (own.number == self.number_of[id(change.pair)])
        less = there - own.value_ns
        if change.everywhere:
            longer = self._times(change)
            less = np.where(self._on(others), there * (1 - longer), less)
            less = np.where(self.shared, less, own.value_ns * (1 / longer - 1))
        else:
            mine = of_operator & self._on([change])
            # All members of a communication end together.
            mine |= of_operator & np.isin(own.transfer, own.transfer[mine & (own.transfer != NONE)])
            less += sum(there * (self._times(one) - 1) for one in others if one.everywhere)
        rows = np.flatnonzero(mine)
        rows = rows[np.argsort(own.step[rows], kind="stable")]
        steps, first = np.unique(own.step[rows], return_index=True)
        parts = zip(steps.tolist(), np.split(rows, first[1:]), strict=True)
        return {step: (own.at[of], less[of]) for step, of in parts}

    def _on(self, changes: Sequence[Change]) -> Bools:
        """Per part whether its rank is one of those that the changes are on."""
        places = [place for one in changes for place in one.shift.places]
        return np.isin(self.own.rank, self.ranks[places])

    def _times(self, change: Change) -> float:
        """How many times as long the operator takes as in the other run."""
        there, here = sorted((change.shift.base_us, change.shift.new_us))
        return here / max(there, 1e-9)


def _runs(base: Model, new: Model, changes: Sequence[Change], ranks: Sequence[int]) -> tuple[_Run, _Run]:
    pairs = list({id(one.pair): one.pair for one in changes}.values())
    number_of = {id(pair): at for at, pair in enumerate(pairs)}
    code_of, parts = names_coded(), []
    for model, operators in ((base, [pair.base for pair in pairs]), (new, [pair.new for pair in pairs])):
        numbers = {(one.operator, one.kind): at for at, one in enumerate(operators) if one is not None}
        parts.append(concerned(model, numbers, _peers(model.job, matched=bool(ranks)), code_of))
    both = np.array(sorted({*base.job.ranks} & {*new.job.ranks} & {*ranks}), dtype=np.int64)

    def run(model: Model, own: Concerned, other: Concerned) -> _Run:
        there, chosen = there_ns(own, other)
        shared = np.isin(own.rank, both) if ranks else np.ones(len(own.rank), dtype=bool)
        return _Run(model, model is base, own, there, chosen, number_of, np.array(ranks), shared)

    return run(base, *parts), run(new, *parts[::-1])


def _peers(job: Job, *, matched: bool) -> Callable[[Ints], Ints]:
    """Which ranks of both runs are the same: those of one number, or where ranks are not matched all of one stage."""
    stage = {} if job.layout is None else job.layout.pipeline_stage

    def of_stage(rank: Ints) -> Ints:
        each, of = np.unique(rank, return_inverse=True)
        return np.array([stage.get(one, NONE) for one in each.tolist()], dtype=np.int64)[of.reshape(-1)]

    return (lambda rank: rank) if matched else of_stage
