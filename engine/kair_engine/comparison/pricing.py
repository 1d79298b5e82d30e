"""Prices what changes add to the step: a run is replayed with the durations of the other run's operations.

This is done call by call: if an operator's first call became longer, its other calls keep their durations. For it, the
parts of two runs' steps that are the same are matched.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Final, get_args

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, dense, offsets, one_of_each
from kair_engine.comparison.changes import Change
from kair_engine.comparison.profile import COMPILATION, PerStep
from kair_engine.errors import InputError
from kair_engine.results.localize import ChangeKind
from kair_engine.results.whatif import FIX_KINDS
from kair_engine.stats import TRIM
from kair_engine.trace.batches import operations_of_steps
from kair_engine.trace.model import Job, Trace
from kair_engine.whatif.analysis import model_asked_of
from kair_engine.whatif.model import Baseline, Model, Parts, Transplanted

HOST: Final = (None, "host")
"""The operator that has no name: what hosts spend."""
_CHANGE_KINDS: Final[Mapping[str, ChangeKind]] = {kind: kind for kind in get_args(ChangeKind)} | {"gc": "host"}
_ALIKE: Final = 0.5
"""Of what the other run spends on an operator so much must be in calls that are here, too; else all calls here are as
much shorter or longer."""
_MOST_BATCHES: Final = 1 << 24
Numbers = Mapping[tuple[str | None, ChangeKind], int]
"""Operators that changed: each one's number, the same in both runs, be its name another."""


@dataclass(frozen=True)
class Concerned:
    """The parts of a run that are some changed operator's: arrays of one length."""

    number: Ints
    """The operator's."""
    step: Ints
    at: Ints
    """As Parts have them."""
    rank: Ints
    same: Ints
    """(columns × parts): equal for the same part of all steps, in both runs."""
    surely: Bools
    """False of delays that are not known to be the host's."""
    transfer: Ints
    value_ns: Floats
    steps: int
    """How many the run has."""


def concerned(
    model: Model,
    numbers: Numbers,
    peers: Callable[[Ints], Ints],
    code_of: Callable[[str], int],
    per_step: PerStep | None = None,
) -> Concerned:
    """Return the parts of what changed.

    `peers` are equal for ranks that are held to be the same, `code_of` names in both; `per_step` has what is compiled.
    """
    found = [_of(parts, numbers, peers, code_of, batch, per_step=per_step) for batch, parts in enumerate(model.parts())]
    columns = {name: np.concatenate([one[name] for one in found], axis=-1) for name in found[0]}
    return Concerned(**columns, steps=len(model.steps))


def names_coded() -> Callable[[str], int]:
    """Return a function that numbers names, equal ones alike."""
    codes: dict[str, int] = {}
    fresh = count()
    return lambda name: codes[name] if name in codes else codes.setdefault(name, next(fresh))


def there_ns(own: Concerned, other: Concerned) -> tuple[Floats, Bools]:
    """Return (what each of a run's own parts takes in the other run, whether it is surely its operator's, here or
    there).

    A call that the other run has not takes nothing there; what it spends on calls that are not here is spread over
    those that are.
    """
    unit, mine = _calls(own)
    _, theirs = _calls(other)
    there, surely = _calls_there(mine, theirs)
    # What a call takes more is put to its parts as it is spent on them.
    spent = np.maximum(own.value_ns, 0.0)
    of_call = np.bincount(unit, weights=spent, minlength=len(mine.value_ns))[unit]
    share = np.where(of_call > 0, spent / np.maximum(of_call, 1e-9), 1 / np.bincount(unit)[unit])
    return own.value_ns + (there - mine.value_ns)[unit] * share, surely[unit]


def _calls(run: Concerned) -> tuple[Ints, Concerned]:
    """(per part the number of its call, or of the delay before it; these, in sum over their parts)."""
    unit = dense(np.concatenate((np.stack((run.step, run.rank)), run.same)))
    first = one_of_each(unit)
    sure = np.bincount(unit, weights=run.surely, minlength=len(first)) > 0
    taken = {name: getattr(run, name)[..., first] for name in ("number", "step", "at", "rank", "same", "transfer")}
    value = np.bincount(unit, weights=run.value_ns, minlength=len(first)).astype(float)
    return unit, Concerned(**taken, surely=sure, value_ns=value, steps=run.steps)


def _calls_there(own: Concerned, other: Concerned) -> tuple[Floats, Bools]:
    """Return the same of whole calls."""
    split = len(own.number)
    code = dense(np.concatenate((own.same, other.same), axis=1))
    codes = int(code.max(initial=NONE)) + 1
    of_own, of_other = code[:split], code[split:]
    surely, here, there = (np.zeros(codes, dtype=bool) for _ in range(3))
    surely[of_own[own.surely]] = True
    surely[of_other[other.surely]] = True
    here[of_own], there[of_other] = True, True
    matched = np.where(there[of_own], own.value_ns + _longer(own.value_ns, of_own, other.value_ns, of_other), 0.0)
    # Of each operator and rank.
    whose = dense(np.concatenate((own.same[:2], other.same[:2]), axis=1))
    groups = int(whose.max(initial=NONE)) + 1
    of_own_group, of_group = whose[:split], whose[split:]

    def spent(of: Ints, values: Floats, run: Concerned) -> Floats:
        """Per group what its mean rank spends on it in a step."""
        _, first = np.unique(dense(np.stack((of, run.rank))), return_index=True)
        ranks = np.bincount(of[first], minlength=groups)
        return np.maximum(np.bincount(of, weights=values, minlength=groups), 0.0) / np.maximum(ranks * run.steps, 1)

    whole = spent(of_group, other.value_ns, other)
    alike = spent(of_group, np.where(here[of_other], other.value_ns, 0.0), other)
    few = alike < _ALIKE * whole
    in_proportion = whole / np.maximum(np.where(few, spent(of_own_group, own.value_ns, own), alike), 1e-9)
    return np.where(few[of_own_group], own.value_ns, matched) * in_proportion[of_own_group], surely[of_own]


def _longer(values: Floats, code: Ints, others: Floats, code_of_other: Ints) -> Floats:
    """By how much the same quantile of the others of its code is longer than each value; 0 where there are none.

    The outermost steps are as much longer as those next to them: what delays a call now and then is no change of it.
    """
    codes = int(max(code.max(initial=NONE), code_of_other.max(initial=NONE))) + 1
    begin, begin_other = offsets(code, codes), offsets(code_of_other, codes)
    order, order_other = np.lexsort((values, code)), np.lexsort((others, code_of_other))
    own, other, of = values[order], others[order_other], code[order]
    known = np.flatnonzero(np.diff(begin_other)[of])
    of = of[known]
    share = np.clip((known - begin[of] + 0.5) / np.diff(begin)[of], TRIM, 1 - TRIM)
    result = np.zeros(len(values))
    result[order[known]] = _quantile(other, begin_other, of, share) - _quantile(own, begin, of, share)
    return result


def _quantile(ordered: Floats, begin: Ints, code: Ints, share: Floats) -> Floats:
    """Of the sorted values of each code the one below which a share of them lies, between two of them in proportion."""
    count = np.diff(begin)[code]
    place = np.clip(share * count - 0.5, 0.0, count - 1)
    low = np.floor(place).astype(np.int64)
    below, above = ordered[begin[code] + low], ordered[begin[code] + np.minimum(low + 1, count - 1)]
    return np.asarray(below + (above - below) * (place - low))


def _of(
    parts: Parts,
    numbers: Numbers,
    peers: Callable[[Ints], Ints],
    code_of: Callable[[str], int],
    batch: int,
    *,
    per_step: PerStep | None,
) -> dict[str, Ints | Floats | Bools]:
    """Return what `Concerned` has, of some steps."""
    number = _numbers(parts.operators, numbers)[parts.operator, parts.kind]
    host = numbers.get(HOST, NONE)
    unsure = parts.delay & (parts.kind == NONE)
    number[unsure] = host
    compiles, compiles_ns = np.zeros(0, dtype=np.int64), np.zeros(len(parts.value_ns))
    if per_step is not None and COMPILATION in per_step.cell and (COMPILATION in numbers or HOST in numbers):
        compiles_ns = _compiles_ns(parts, per_step)
        compiles = np.flatnonzero(compiles_ns) if COMPILATION in numbers else compiles
    rows = np.concatenate((np.flatnonzero(number != NONE), compiles))
    of_compiler = np.arange(len(rows)) >= len(rows) - len(compiles)
    value = np.where(of_compiler, compiles_ns[rows], (parts.value_ns - compiles_ns)[rows])
    name = np.zeros(len(rows), dtype=np.int64)
    number = np.where(of_compiler, numbers.get(COMPILATION, NONE), number[rows])
    of_host = np.flatnonzero((number == host) & ~of_compiler)
    # What hosts spend is reported as a whole, and its parts with their operations.
    coded = {code: code_of(parts.operators[code]) for code in np.unique(parts.operator[rows[of_host]]) if code != NONE}
    name[of_host] = [coded.get(code, NONE) for code in parts.operator[rows[of_host]].tolist()]
    rank = parts.rank[rows]
    # What is compiled in one step has no counterpart in others.
    which = np.where(of_compiler, np.stack((parts.step[rows], parts.at[rows])), parts.which[:, rows])
    transfer = parts.transfer[rows]
    return {
        "number": number,
        "step": parts.step[rows],
        "at": parts.at[rows],
        "rank": rank,
        "same": np.stack((number, peers(rank), name, parts.delay[rows], *which)),
        "surely": ~unsure[rows] | of_compiler,
        # Numbers of communications are those of their batch.
        "transfer": np.where(transfer == NONE, NONE, transfer * _MOST_BATCHES + batch),
        "value_ns": value,
    }


def _compiles_ns(parts: Parts, per_step: PerStep) -> Floats:
    """Return how much of each part its host compiled: of a rank's step its longest delays and host operations."""
    places = zip((per_step.steps, per_step.ranks), (parts.step, parts.rank), strict=True)
    spent = per_step.of(*COMPILATION)[tuple(np.searchsorted(all_of, mine) for all_of, mine in places)] * 1e3
    rows = np.flatnonzero((spent > 0) & (parts.kind == FIX_KINDS.index("host")) & (parts.value_ns > 0))
    cell = dense(np.stack((parts.step[rows], parts.rank[rows])))
    order = np.lexsort((-parts.value_ns[rows], cell))
    rows, cell = rows[order], cell[order]
    value = parts.value_ns[rows].astype(float)
    until = np.cumsum(value)
    before = until - value
    of_cell = before - before[np.searchsorted(cell, cell)]
    result = np.zeros(len(parts.value_ns))
    result[rows] = np.clip(spent[rows] - of_cell, 0.0, value)
    return result


def _numbers(names: Mapping[int, str], numbers: Numbers) -> Ints:
    """(operators × kinds): the number of what changed, or NONE; the last row and column stand for none."""
    result = np.full((max(names, default=NONE) + 2, len(FIX_KINDS) + 1), NONE, dtype=np.int64)
    for at, kind in enumerate(FIX_KINDS):
        of_kind = _CHANGE_KINDS[kind]
        if of_kind == "host":
            result[:, at] = numbers.get(HOST, NONE)
            continue
        for code, name in names.items():
            if code != NONE:
                result[code, at] = numbers.get((name, of_kind), NONE)
    return result


MOST_KEPT = 1_500_000
"""Operations of both runs together whose graphs stay in memory from one question to the next."""
Layer = Mapping[int, tuple[Ints, Floats]]
"""Step → (places among its parts, what is added to them, ns)."""


def added_us(
    base: Trace, new: Trace, changes: Sequence[Change], ranks: Sequence[int], per_step: tuple[PerStep, PerStep]
) -> list[float] | None:
    """Of each change, what it adds to the mean step (negative: saves), in µs; None where a run cannot be replayed.

    Each is taken out of the run where the operator takes longer, call by call, so that the other way round the same is
    replayed. All of a run are taken out one after the other, in one order and the reverse: of what two changes hide for
    each other each has half; pools come on top of all others. `ranks` are those that places of changes point to.
    """
    named = {ranks[place] for one in changes if not one.everywhere for place in one.shift.places}
    keep = sum(sum(operations_of_steps(trace).values()) for trace in (base, new)) <= MOST_KEPT
    order = sorted(range(len(changes)), key=lambda at: _order(changes, at))
    result = [0.0] * len(changes)
    try:
        before, after = (_model(trace, named, keep=keep) for trace in (base, new))
        for run in _runs(before, after, changes, ranks, per_step):
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


def _order(changes: Sequence[Change], at: int) -> tuple[bool, float, tuple[str, ...], str, bool]:
    """Return a key: the largest operator first, whichever run is the base, and pools last.

    A change on all ranks comes before what is on top of it.
    """
    pair = changes[at].pair
    size = sum(abs(one.shift.new_us - one.shift.base_us) for one in changes if one.pair is pair)
    names = sorted(one.operator or "" for one in (pair.base, pair.new) if one is not None)
    kind = changes[at].pool or pair.any.kind
    return changes[at].pool is not None, -size, tuple(names), kind, not changes[at].everywhere


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
    """Per part whether its rank can be compared with one of the other run's."""

    def saved_us(self, changes: Sequence[Change]) -> list[float]:
        """Return what each takes off the mean step; pools come last, on top of all single operators."""
        layers = [self._layer(change, changes) for change in changes]
        single = sum(change.pool is None for change in changes)
        return [*self._saved_us([], layers[:single]), *self._saved_us(layers[:single], layers[single:])]

    def _saved_us(self, before: list[Layer], layers: list[Layer]) -> list[float]:
        """Return what each takes off on top of others: the mean over one order and the reverse."""
        if not layers:
            return []
        chains = [layers[:count] for count in range(1, len(layers) + 1)]
        back = [layers[-count:] for count in range(1, len(layers))]
        asked = [Transplanted([*before, *one]) for one in (*chains, *back)]
        first = Transplanted(before) if before else Baseline.RECORDED
        recorded, *times = (self.model.replay([first, *asked]).times.mean(axis=1) / 1e3).tolist()
        forth = [recorded, *times[: len(layers)]]
        back_too = [recorded, *times[len(layers) :], *forth[-1:]]
        one_way = [was - then for was, then in pairwise(forth)]
        other_way = [was - then for was, then in pairwise(back_too)][::-1]
        return [(one + other) / 2 for one, other in zip(one_way, other_way, strict=True)]

    def _layer(self, change: Change, changes: Sequence[Change]) -> Layer:
        """By how much the change's parts are shorter in the other run."""
        own, there = self.own, self.there_ns
        others = [one for one in changes if one.pair is change.pair and one is not change]
        numbers = [self.number_of[id(pair)] for pair in change.pairs]
        mine = of_operator = self.chosen & np.isin(own.number, numbers)
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


def _runs(
    base: Model, new: Model, changes: Sequence[Change], ranks: Sequence[int], per_step: tuple[PerStep, PerStep]
) -> tuple[_Run, _Run]:
    pairs = list({id(pair): pair for one in changes for pair in one.pairs}.values())
    number_of = {id(pair): at for at, pair in enumerate(pairs)}
    code_of, parts = names_coded(), []
    of_runs = (base, [pair.base for pair in pairs]), (new, [pair.new for pair in pairs])
    for (model, operators), steps in zip(of_runs, per_step, strict=True):
        numbers = {(one.operator, one.kind): at for at, one in enumerate(operators) if one is not None}
        parts.append(concerned(model, numbers, _peers(model.job, matched=bool(ranks)), code_of, steps))
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
