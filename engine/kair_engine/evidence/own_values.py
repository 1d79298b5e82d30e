"""Compares texts that differ by nature: each contains its rank's number, host, process or address.

Without these, the texts of ranks that were set up alike are equal.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Final

from kair_engine.trace.identity import RankIdentity

Key = tuple[Hashable, ...]
"""The compared form of a text: equal if two texts say the same, each about its own rank."""

_IDS: Final = re.compile(
    r"[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}"  # UUID
    r"|(?<![0-9a-z])[0-9a-f]{12,}(?![0-9a-z])"  # container id, digest
    r"|(?<![0-9a-f:])(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](?![0-9a-f])"  # PCI
    r"|(?<![0-9.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![0-9.])(?::[0-9]{1,5})?",  # IPv4, with a port
    re.IGNORECASE,
)
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_SHORTEST_HOST: Final = 3
"""Characters: a host `a` would match in every text."""
_FEWEST_ON_A_LINE: Final = 5
"""Two ranks define a line through their numbers, and with fewer than this another may lie on it by chance."""

_OWN: Final[tuple[Callable[[RankIdentity], int | None], ...]] = (
    lambda one: one.rank,
    lambda one: one.local_rank,
    lambda one: one.device.index,
    lambda one: one.device.ordinal,
    lambda one: one.pid,
)
_PLACES: Final = _OWN[:2]
"""Ranks by which launchers assign cores and ports: number = a + b × rank."""


def pattern_of(text: str) -> str:
    """Return a text with ids, addresses and numbers masked: `/slurm/job_#/task_#`."""
    return _NUMBER.sub("#", _IDS.sub("*", text))


def without_host(text: str, host: str | None) -> str:
    """Return a text with ids, addresses and its rank's host masked."""
    text = _IDS.sub("*", text)
    for name in sorted({host or "", (host or "").partition(".")[0]}, key=len, reverse=True):
        if len(name) >= _SHORTEST_HOST:
            text = re.sub(rf"(?<![0-9A-Za-z]){re.escape(name)}(?![0-9A-Za-z])", "<host>", text)
    return text


def without_process(text: str, pid: int | None) -> str:
    """Return a text with its rank's process id masked.

    Apply it with care in containers, whose small process ids may mean anything.
    """
    return text if pid is None else re.sub(rf"(?<![0-9]){pid}(?![0-9])", "<pid>", text)


def compared(values: Mapping[int, str], identities: Mapping[int, RankIdentity]) -> dict[int, Key]:
    """Return rank → the compared form of its text: as it is, or with its rank's own numbers replaced.

    The simplest form in which more than half of the ranks agree is chosen: in `8` threads on rank 8, the number is not
    the rank's if the others have `8` too; a device `3` on local rank 3 is, if the others have theirs. Without such
    a form, texts are compared without ids, addresses and hosts.
    """
    plain: dict[int, Key] = {rank: (text,) for rank, text in values.items()}
    if _most_are_alike(plain.values()):
        return plain
    masked = {rank: without_host(text, identities[rank].host) for rank, text in values.items()}
    without: dict[int, Key] = {rank: (text,) for rank, text in masked.items()}
    for keys in (without, _numbers_told(values, identities), _numbers_told(masked, identities)):
        if _most_are_alike(keys.values()):
            return keys
    return without


def _most_are_alike(keys: Collection[Hashable]) -> bool:
    return not keys or 2 * _alike(keys) > len(keys)


def _alike(keys: Iterable[Hashable]) -> int:
    """Return the size of the largest group of equal keys."""
    return max(Counter(keys).values())


def _numbers_told(texts: Mapping[int, str], identities: Mapping[int, RankIdentity]) -> dict[int, Key]:
    """Replace the numbers in texts of one form by the rule that gives them from the rank's own numbers, if there is
    one.
    """
    forms: dict[str, list[int]] = {}
    for rank, text in texts.items():
        forms.setdefault(_NUMBER.sub("#", text), []).append(rank)
    keys: dict[int, Key] = {}
    for form, ranks in forms.items():
        who = [identities[rank] for rank in ranks]
        rows = [[int(number) for number in _NUMBER.findall(texts[rank])] for rank in ranks]
        columns = [_told(column, who) for column in zip(*rows, strict=True)]
        for rank, values in zip(ranks, zip(*columns, strict=True) if columns else [()] * len(ranks), strict=True):
            keys[rank] = (form, *values)
    return keys


def _told(numbers: Sequence[int], who: Sequence[RankIdentity]) -> list[Hashable]:
    """Return the numbers at one position of a text, one per rank, with those that follow from a rank's own replaced."""
    readings: list[list[Hashable]] = [list(numbers)]
    if len({*numbers}) == 1:
        return readings[0]
    for name, own in enumerate(_OWN):
        readings.append([("own", name) if n == own(one) else n for n, one in zip(numbers, who, strict=True)])
    for name, place in enumerate(_PLACES):
        line = _line([place(one) for one in who], numbers)
        if line is not None:
            readings.append([("line", name) if on else n for n, on in zip(numbers, line, strict=True)])
    best = max(readings, key=_alike)  # max returns the first of equals
    return best if _most_are_alike(best) else readings[0]


def _line(places: Sequence[int | None], numbers: Sequence[int]) -> list[bool] | None:
    """Return which numbers lie on one line over their ranks; None if more than one lies off it."""
    if None in places or len({*places}) < _FEWEST_ON_A_LINE:
        return None
    points = sorted({(place, number) for place, number in zip(places, numbers, strict=True) if place is not None})
    steps = [
        Fraction(after[1] - before[1], after[0] - before[0])
        for before, after in pairwise(points)
        if after[0] > before[0]
    ]
    slope = Counter(steps).most_common(1)[0][0]
    starts = [number - slope * place for place, number in zip(places, numbers, strict=True) if place is not None]
    start = Counter(starts).most_common(1)[0][0]
    fits = [one == start for one in starts]
    return fits if sum(fits) >= len(fits) - 1 else None
