"""Quickly made dataclasses behave as the standard library's do."""

import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import field, replace
from functools import cached_property
from typing import Any

import pytest

from kair_engine.frozen import dataclass


@dataclass(frozen=True)
class Quick:
    """One of each kind of field."""

    rank: int
    name: str = "a"
    figures: dict[str, float] = field(default_factory=dict, hash=False)
    note: object = field(default=None, compare=False, repr=False)

    @cached_property
    def twice(self) -> int:
        return 2 * self.rank


@dataclasses.dataclass(frozen=True)
class Usual:
    """The same."""

    rank: int
    name: str = "a"
    figures: dict[str, float] = field(default_factory=dict, hash=False)
    note: object = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class Named:
    first: int = 0
    second: int


@dataclass
class Open:
    rank: int


def test_it_is_what_the_standard_library_makes() -> None:
    one, usual = Quick(3, figures={"x": 1.0}), Usual(3, figures={"x": 1.0})
    assert repr(one) == repr(usual).replace("Usual", "Quick")
    assert (hash(one), dataclasses.asdict(one)) == (hash(usual), dataclasses.asdict(usual))
    assert Quick.__match_args__ == Usual.__match_args__
    assert one != usual
    assert one == Quick(3, figures={"x": 1.0}, note="not compared")
    assert one != Quick(3) == replace(one, figures={})
    assert pickle.loads(pickle.dumps(one)) == one
    assert one.twice == 6
    assert Named(second=2) == Named(first=0, second=2)


@pytest.mark.parametrize(
    "deed",
    [
        lambda one: setattr(one, "rank", 4),
        lambda one: setattr(one, "name", "b"),
        lambda one: setattr(one, "no_field", 1),
        lambda one: delattr(one, "rank"),
    ],
)
def test_nobody_changes_one(deed: Callable[[Any], None]) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        deed(Quick(3))


def test_one_that_is_not_frozen_is_the_standard_library_s() -> None:
    one = Open(1)
    one.rank = 2
    assert one == Open(2)
