"""Operators matched across two runs: the same name, or one that took the place of another."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final

from kair_engine.results.runs.run_profile import OperatorProfile

LIKE_CALLS: Final = 0.05
"""A renamed operator is called as often as before, but for this share."""
LIKE_PLACE: Final = 0.15
"""It begins no further than this share of the step from where it did."""
LIKE_NAME: Final = 0.6
"""How much of both names' letters must be the same, in the same order; 1 is all."""
_PARAMETERS = re.compile(r"<[^<>]*>")


@dataclass(frozen=True)
class Pair:
    """An operator of both runs; None where one lacks it."""

    base: OperatorProfile | None
    new: OperatorProfile | None

    @property
    def any(self) -> OperatorProfile:
        """Of the new run, where that has it."""
        found = self.new or self.base
        assert found is not None
        return found

    @property
    def was(self) -> str | None:
        """The former name, of an operator that was renamed."""
        if self.base is None or self.new is None or self.base.operator == self.new.operator:
            return None
        return self.base.operator


def matched(base: Sequence[OperatorProfile], new: Sequence[OperatorProfile], least_us: float) -> list[Pair]:
    """Every operator of either run once.

    Names are compared first. Of what is left, an operator that took at least `least_us` on some rank became the one of
    the same kind that is called as often, begins at the same place in the step, and has the most similar name.
    """
    of_base = {(one.operator, one.kind): one for one in base}
    of_new = {(one.operator, one.kind): one for one in new}
    same = [Pair(of_base[key], of_new[key]) for key in of_base if key in of_new]
    gone = [one for key, one in of_base.items() if key not in of_new]
    added = [one for key, one in of_new.items() if key not in of_base]
    renamed = list(_renamed(_worth(gone, least_us), _worth(added, least_us)))
    known = {id(one) for pair in renamed for one in (pair.base, pair.new)}
    alone = [Pair(one, None) for one in gone if id(one) not in known]
    alone += [Pair(None, one) for one in added if id(one) not in known]
    return same + renamed + alone


def _worth(operators: Sequence[OperatorProfile], least_us: float) -> list[OperatorProfile]:
    return [one for one in operators if one.operator is not None and max(one.amount.by_rank_us) >= least_us]


def _renamed(gone: Sequence[OperatorProfile], added: Sequence[OperatorProfile]) -> Iterator[Pair]:
    """The most similar first; each operator once."""
    likeness = [(_likeness(old, new), old, new) for old in gone for new in added if _can_be(old, new)]
    taken: set[int] = set()
    for alike, old, new in sorted(likeness, key=lambda one: -one[0]):
        if alike >= LIKE_NAME and not {id(old), id(new)} & taken:
            taken |= {id(old), id(new)}
            yield Pair(old, new)


def _can_be(old: OperatorProfile, new: OperatorProfile) -> bool:
    as_often = abs(old.calls - new.calls) <= LIKE_CALLS * max(old.calls, new.calls)
    return old.kind == new.kind and as_often and abs(old.place - new.place) <= LIKE_PLACE


def _likeness(old: OperatorProfile, new: OperatorProfile) -> float:
    """Of the names without template parameters, and of the places."""
    # What is common is found from the first name on: in one order, whichever run is the base.
    first, second = sorted((_bare(old.operator or ""), _bare(new.operator or "")))
    names = SequenceMatcher(None, first, second, autojunk=False).ratio()
    return names - abs(old.place - new.place)


def _bare(name: str) -> str:
    while (shorter := _PARAMETERS.sub("", name)) != name:
        name = shorter
    return name[:200]
