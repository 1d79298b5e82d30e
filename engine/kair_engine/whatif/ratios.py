"""Compares step times: S of every part, in the mean and step by step."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.frozen import dataclass
from kair_engine.results.whatif import PartEffect

Part = TypeVar("Part")
Other = TypeVar("Other")
Key = TypeVar("Key", int, str)


@dataclass(frozen=True)
class OfParts(Generic[Part]):
    """Something for each part of a job."""

    kinds: dict[str, Part]
    """Kinds of time, or operation types."""
    stages: dict[int, Part]
    dp_ranks: dict[int, Part]
    hosts: dict[str, Part]
    ranks: dict[int, Part]

    def all(self) -> list[Part]:
        """The values one after another."""
        return [value for field in fields(self) for value in getattr(self, field.name).values()]

    def mapped(self, values: Iterable[Other]) -> "OfParts[Other]":
        """The same parts with other values, in the order of `all`."""
        rest = iter(values)
        changed: dict[str, Any] = {}
        for field in fields(self):
            of: dict[Any, Part] = getattr(self, field.name)
            changed[field.name] = dict(zip(of, islice(rest, len(of)), strict=True))
        return OfParts(**changed)


def ratio(one: float, other: float) -> float:
    """one / other; 1 of two zeros, and where only the other is zero as large as can be said."""
    if other == 0:
        return 1.0 if one == 0 else 1e9
    return one / other


def ratios(one: Floats, other: Floats | float) -> Floats:
    """`ratio` of each."""
    known = np.not_equal(other, 0)
    return np.where(known, one / np.where(known, other, 1.0), np.where(one == 0, 1.0, 1e9))


def largest_first(values: Mapping[Key, float]) -> dict[Key, float]:
    """The same, in the order of what they cost."""
    return dict(sorted(values.items(), key=lambda item: -item[1]))


def mean_ratios(values: Mapping[Key, Floats], base: Floats) -> dict[Key, float]:
    """The mean of every part's time (steps) over the base's (steps), the largest first."""
    means = _table(values, base).mean(axis=1)
    return largest_first(dict(zip(values, ratios(means, float(base.mean())).tolist(), strict=True)))


def step_ratios(values: Mapping[Key, Floats], base: Floats) -> list[dict[Key, float]]:
    """Per step every part's time (steps) over the base's (steps), the largest first."""
    keys = list(values)
    shares = ratios(_table(values, base), base)
    order = np.argsort(-shares, axis=0, kind="stable").T.tolist()
    columns = np.sort(-shares, axis=0).T
    return [
        dict(zip([keys[at] for at in of], column, strict=True))
        for of, column in zip(order, (-columns).tolist(), strict=True)
    ]


def _table(values: Mapping[Key, Floats], base: Floats) -> Floats:
    """(parts × steps)."""
    return np.array(list(values.values())).reshape(len(values), len(base))


def part_effect(replayed_ns: float, ideal_ns: float, *, removed_ns: float, alone_ns: float) -> PartEffect | None:
    """From mean step times to shares of what is lost, T - T_ideal; None where nothing is lost."""
    lost = replayed_ns - ideal_ns
    if lost <= 0:
        return None
    return PartEffect(
        share_removed=(replayed_ns - removed_ns) / lost,
        share_alone=(alone_ns - ideal_ns) / lost,
        step_time_removed_us=removed_ns / 1e3,
        step_time_alone_us=alone_ns / 1e3,
    )
