"""Finds the parts of two runs' steps that are the same, and what each would take in the other run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Final

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, dense, offsets, one_of_each
from kair_engine.results.fix import FIX_KINDS
from kair_engine.results.runs.changes import ChangeKind
from kair_engine.stats import TRIM
from kair_engine.whatif.model import Model, Parts

HOST: Final = (None, "host")
"""The operator that has no name: what hosts spend."""
_CHANGE_KINDS: Final[Mapping[str, ChangeKind]] = {
    **{"compute": "compute", "input": "input", "communication": "communication"},
    **{"host": "host", "gc": "host"},
}
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
    model: Model, numbers: Numbers, peers: Callable[[Ints], Ints], code_of: Callable[[str], int]
) -> Concerned:
    """The parts of what changed. `peers` are equal for ranks that are held to be the same, `code_of` names in both."""
    found = [_of(parts, numbers, peers, code_of, batch) for batch, parts in enumerate(model.parts())]
    columns = {name: np.concatenate([one[name] for one in found], axis=-1) for name in found[0]}
    return Concerned(**columns, steps=len(model.steps))


def names_coded() -> Callable[[str], int]:
    """A function that numbers names, equal ones alike."""
    codes: dict[str, int] = {}
    fresh = count()
    return lambda name: codes[name] if name in codes else codes.setdefault(name, next(fresh))


def there_ns(own: Concerned, other: Concerned) -> tuple[Floats, Bools]:
    """(what each of a run's own parts takes in the other run, whether it is surely its operator's, here or there).

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
    """The same of whole calls."""
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
    parts: Parts, numbers: Numbers, peers: Callable[[Ints], Ints], code_of: Callable[[str], int], batch: int
) -> dict[str, Ints | Floats | Bools]:
    """What `Concerned` has, of some steps."""
    number = _numbers(parts.operators, numbers)[parts.operator, parts.kind]
    host = numbers.get(HOST, NONE)
    unsure = parts.delay & (parts.kind == NONE)
    number[unsure] = host
    rows = np.flatnonzero(number != NONE)
    name = np.zeros(len(rows), dtype=np.int64)
    of_host = np.flatnonzero(number[rows] == host)
    # What hosts spend is told as a whole, and its parts by the operations that they are of.
    coded = {code: code_of(parts.operators[code]) for code in np.unique(parts.operator[rows[of_host]]) if code != NONE}
    name[of_host] = [coded.get(code, NONE) for code in parts.operator[rows[of_host]].tolist()]
    number, rank = number[rows], parts.rank[rows]
    transfer = parts.transfer[rows]
    return {
        "number": number,
        "step": parts.step[rows],
        "at": parts.at[rows],
        "rank": rank,
        "same": np.stack((number, peers(rank), name, parts.delay[rows], *parts.which[:, rows])),
        "surely": ~unsure[rows],
        # Numbers of communications are those of their batch.
        "transfer": np.where(transfer == NONE, NONE, transfer * _MOST_BATCHES + batch),
        "value_ns": parts.value_ns[rows],
    }


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
