"""Finds the parts of two runs' steps that are the same, and what each would take in the other run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Final

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, dense, offsets
from kair_engine.results.fix import FIX_KINDS
from kair_engine.results.runs.changes import ChangeKind
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

    Of the steps with a part, that in which it takes longest gets what it takes longest in the other run, and so on:
    what happens in some steps only stays so, and the mean becomes the other's. A call that the other run has not takes
    nothing there; what it spends on calls that are not here is spread over those that are.
    """
    split = len(own.number)
    code = dense(np.concatenate((own.same, other.same), axis=1))
    codes = int(code.max(initial=NONE)) + 1
    of_own, of_other = code[:split], code[split:]
    surely = np.zeros(codes, dtype=bool)
    surely[of_own[own.surely]] = True
    surely[of_other[other.surely]] = True
    matched = _quantiles(own.value_ns, of_own, other.value_ns, of_other, codes)
    # Of each operator and rank.
    whose = dense(np.concatenate((own.same[:2], other.same[:2]), axis=1))
    groups = int(whose.max(initial=NONE)) + 1
    here, there = whose[:split], whose[split:]
    spent = [
        np.bincount(of, weights=values, minlength=groups) / (run.steps * np.maximum(_ranks_of(of, run, groups), 1))
        for of, values, run in ((here, own.value_ns, own), (here, matched, own), (there, other.value_ns, other))
    ]
    before, found, wanted = (np.maximum(of, 0.0) for of in spent)
    few = found < _ALIKE * wanted
    value = np.where(few[here], own.value_ns, matched)
    return value * (wanted / np.maximum(np.where(few, before, found), 1e-9))[here], surely[of_own]


def _ranks_of(group: Ints, run: Concerned, groups: int) -> Ints:
    """How many ranks of the run each group has."""
    _, first = np.unique(dense(np.stack((group, run.rank))), return_index=True)
    return np.bincount(group[first], minlength=groups)


def _quantiles(values: Floats, code: Ints, others: Floats, code_of_other: Ints, codes: int) -> Floats:
    """Each value replaced by the same quantile of the others of its code; 0 where there is none."""
    begin, begin_other = offsets(code, codes), offsets(code_of_other, codes)
    sorted_others = others[np.lexsort((others, code_of_other))]
    order = np.lexsort((values, code))
    of = code[order]
    have, there = np.diff(begin)[of], np.diff(begin_other)[of]
    last = np.maximum(there - 1, 0)
    place = np.clip((np.arange(len(of)) - begin[of] + 0.5) / have * there - 0.5, 0.0, last)
    known = np.flatnonzero(there)
    low, first = np.floor(place[known]).astype(np.int64), begin_other[of[known]]
    below, above = sorted_others[first + low], sorted_others[first + np.minimum(low + 1, last[known])]
    result = np.zeros(len(values))
    result[order[known]] = below + (above - below) * (place[known] - low)
    return result


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
        "same": np.stack((number, peers(rank), name, *parts.which[:, rows])),
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
