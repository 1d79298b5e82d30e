"""Sorts and filters rows of a table: what `s` and `/` do, however many rows there are."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from types import NoneType
from typing import TYPE_CHECKING, Any

from kair_tui.tui.filtering import Filter, Term

if TYPE_CHECKING:
    from kair_engine.arrays import Floats, Ints

_AT_A_TIME = 50_000
"""Rows looked at before other threads get their turn, and it is asked again whether anybody still waits."""


@dataclass(frozen=True)
class Ordering:
    """Which rows are shown, and by which field they are ordered; None for as they came."""

    wanted: Filter | None = None
    field: str | None = None
    descending: bool = False


def ordered(
    rows: Sequence[Any], fields: Sequence[str], how: Ordering, stop: Callable[[], bool] = lambda: False
) -> "Ints | None":
    """The places of the rows to show, in order; None once `stop` says so.

    Rows have `fields` as attributes. A word without a field is looked for in those that are no fractions. Equal rows
    stay in the order they had; those without a value come last.
    """
    import numpy as np  # not for the first paint

    places = np.arange(len(rows))
    for term in how.wanted.terms if how.wanted is not None else ():
        held: list[int] = []
        for part in _parts(places.tolist()):
            if stop():
                return None
            held += _holding(term, rows, part, fields)
        places = np.array(held, dtype=np.int64)
    if how.field is not None:
        values: list[Any] = []
        for part in _parts(places.tolist()):
            if stop():
                return None
            values += _values(rows, part, how.field)
        keys = _keys(values)
        # numpy sorts beside the other threads, and puts NaN last; list.sort would stop the screen meanwhile.
        places = places[np.argsort(-keys if how.descending else keys, kind="stable")]
    return None if stop() else places


def _parts(places: list[int]) -> Iterator[list[int]]:
    return (places[begin : begin + _AT_A_TIME] for begin in range(0, len(places), _AT_A_TIME))


def _values(rows: Sequence[Any], places: list[int], field: str) -> list[Any]:
    return list(map(attrgetter(field), map(rows.__getitem__, places)))


def _holding(term: Term, rows: Sequence[Any], places: list[int], fields: Sequence[str]) -> list[int]:
    """Those of `places` whose rows have the word."""
    found = [False] * len(places)
    positive = replace(term, inverse=False)
    for field in fields if term.field is None else (term.field,):
        values = _values(rows, places, field)
        if term.field is None and set(map(type, values)) <= {float, NoneType}:
            continue
        # Names come again and again: each is looked at once.
        holds = {value: positive.holds({field: value}) for value in set(values)}
        found = [one or holds[value] for one, value in zip(found, values, strict=True)]
    return [place for place, one in zip(places, found, strict=True) if one != term.inverse]


def _keys(values: Sequence[Any]) -> "Floats":
    """Numbers that sort as the values do; NaN for None."""
    import numpy as np

    texts = sorted({value for value in values if isinstance(value, str)})
    number: dict[Any, float] = {text: place for place, text in enumerate(texts)}
    number[None] = float("nan")
    return np.array([number.get(one, one) for one in values] if texts or None in values else values, dtype=np.float64)
