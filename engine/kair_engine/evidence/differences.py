"""Lists what few ranks have and the others lack, and what changed since an attempt or a healthy job.

It accuses no rank: a difference need not be the cause. It is empty for ranks that were set up alike.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from kair_engine.evidence.devices import hosts_of
from kair_engine.evidence.own_values import Key
from kair_engine.evidence.traits import Trait, traits_of
from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank
from kair_engine.results.evidence import Difference
from kair_engine.trace.identity import RankIdentity
from kair_engine.trace.measures import shown

_FEWEST: Final = 3
"""Of two ranks neither has the usual value."""
_MOST_VALUES: Final = 8
"""Values of one trait that are listed one by one."""
Classes = Sequence[frozenset[int]]
"""Groups of ranks with one property in common."""


@dataclass(frozen=True)
class _Odd:
    """Ranks with a value that most of the compared ranks do not have."""

    ranks: frozenset[int]
    usual: frozenset[int]
    """Ranks with the usual value."""


def differences(
    identities: Mapping[int, RankIdentity], accused: Collection[int], role_of: Mapping[int, str] | None = None
) -> tuple[Difference, ...]:
    """Return what differs between the ranks of a job; differences on ranks of `accused` come first.

    The value of more than half of the ranks is the usual one, and any other is listed. Without one, ranks are
    compared within roles, local ranks or hosts, whichever leaves the fewest different; if some group has no usual value
    in each of these, nothing is listed. Values that follow the local rank are left out, as are variables, images and
    devices that follow the role: these differ by design. A value of a whole host is listed only if more than half of
    the hosts have the usual one. Of two halves neither is usual, unless all ranks of one half are accused.
    """
    parts = _Parts(identities, role_of or {})
    odd = ((trait, parts.odd(trait) or _half(trait, frozenset(accused))) for trait in traits_of(identities))
    found = [one for trait, some in odd for one in _in_words(trait, some, identities)]
    return _ordered(found, accused)


class _Parts:
    """The ranks by role, by local rank and by host."""

    def __init__(self, identities: Mapping[int, RankIdentity], role_of: Mapping[int, str]) -> None:
        self._roles: Final = _classes((rank, role_of.get(rank)) for rank in identities)
        self._places: Final = _classes((rank, one.local_rank) for rank, one in identities.items())
        self._hosts: Final = _classes((rank, one.host) for rank, one in identities.items())
        self._host_of: Final = {rank: host for host in self._hosts for rank in host}

    def odd(self, trait: Trait) -> list[_Odd]:
        """Return the ranks with an unusual value, grouped by value."""
        if len(set(trait.keys.values())) < 2:
            return []
        everybody = frozenset(trait.keys)
        if trait.by_place:
            return _odd_within(self._places, everybody, trait.keys) or []
        found: list[_Odd] = []
        alike = everybody
        by_form = None if trait.forms is None else _odd_among(everybody, trait.forms)
        if by_form and len(by_form[0].usual) >= _FEWEST:
            # A text of another form is odd, whatever rule the others' texts follow.
            found, alike = self._noteworthy(trait, by_form, everybody), by_form[0].usual
        if (among := _odd_among(alike, trait.keys)) is not None:
            return found + self._noteworthy(trait, among, alike)
        within = [_odd_within(classes, alike, trait.keys) for classes in (self._roles, self._places, self._hosts)]
        known = (one for one in within if one is not None)
        return found + min(known, key=lambda some: sum(len(one.ranks) for one in some), default=[])

    def _noteworthy(self, trait: Trait, odd: Sequence[_Odd], everybody: frozenset[int]) -> list[_Odd]:
        by_design = (self._roles, self._places) if trait.may_be_of_role else (self._places,)
        usual = self._hosts_of(odd[0].usual) if odd else set()
        most_hosts = 2 * len(usual) > len(self._hosts_of(everybody))
        return [
            one
            for one in odd
            # A value on all ranks of a host belongs to the host, and each host counts once, whatever its number of
            # ranks.
            if (most_hosts or usual & (mine := self._hosts_of(one.ranks)) or not mine)
            and not self._is_by_design(one, everybody, by_design)
        ]

    def _hosts_of(self, ranks: Iterable[int]) -> set[frozenset[int]]:
        return {self._host_of[rank] for rank in ranks if rank in self._host_of}

    def _is_by_design(self, odd: _Odd, everybody: frozenset[int], kinds: Iterable[Classes]) -> bool:
        """Return whether these are all ranks of some roles or local ranks, and not just those of one host."""
        if len(odd.ranks) < 2 or any(host & everybody == odd.ranks for host in self._hosts_of(odd.ranks)):
            return False
        return any(_is_made_of(odd.ranks, classes, everybody) for classes in kinds)


def _half(trait: Trait, accused: frozenset[int]) -> list[_Odd]:
    """Return the accused half, if all of it have one value and all of the other half another."""
    everybody = frozenset(trait.keys)
    others = everybody - accused
    values = [{trait.keys[rank] for rank in some} for some in (accused & everybody, others)]
    halves = accused <= everybody and len(accused) == len(others) >= 2
    if trait.by_place or not halves or any(len(one) != 1 for one in values) or values[0] == values[1]:
        return []
    return [_Odd(accused, others)]


def _classes(of: Iterable[tuple[int, object]]) -> Classes:
    """Return the ranks grouped by property, without those that lack it."""
    found: defaultdict[object, set[int]] = defaultdict(set)
    for rank, which in of:
        if which is not None:
            found[which].add(rank)
    return [frozenset(ranks) for ranks in found.values()]


def _is_made_of(ranks: frozenset[int], classes: Classes, everybody: frozenset[int]) -> bool:
    """Return whether these are whole groups of several ranks each."""
    touched = [one & everybody for one in classes if one & ranks]
    return bool(touched) and frozenset().union(*touched) == ranks and all(len(one) > 1 for one in touched)


def _odd_among(ranks: frozenset[int], keys: Mapping[int, Key]) -> list[_Odd] | None:
    """Return the ranks that lack the value of more than half, grouped by value; None if no value has a majority."""
    having: defaultdict[Key, set[int]] = defaultdict(set)
    for rank in ranks:
        having[keys[rank]].add(rank)
    most = max(having.values(), key=len)
    if len(ranks) < _FEWEST or 2 * len(most) <= len(ranks):
        return None
    usual = frozenset(most)
    return [_Odd(frozenset(one), usual) for one in having.values() if one is not most]


def _odd_within(classes: Classes, everybody: frozenset[int], keys: Mapping[int, Key]) -> list[_Odd] | None:
    """Return the same within each group; None if a group lacks a usual value, or groups large enough cover half or
    fewer.

    Groups of two have no usual value, except when all groups agree within themselves.
    """
    parts = [one & everybody for one in classes]
    at_one = all(len({keys[rank] for rank in one}) == 1 for one in parts if one)
    judged = [one for one in parts if len(one) >= (2 if at_one else _FEWEST)]
    if 2 * sum(map(len, judged)) <= len(everybody):
        return None
    found = [] if at_one else [_odd_among(one, keys) for one in judged]
    return None if None in found else [odd for one in found for odd in one or ()]


def _in_words(trait: Trait, odd: Iterable[_Odd], identities: Mapping[int, RankIdentity]) -> Iterator[Difference]:
    """Yield one difference per unusual text, or a single one if there are too many texts."""
    having: defaultdict[tuple[frozenset[int], str], list[int]] = defaultdict(list)
    for one in odd:
        for rank in one.ranks:
            having[one.usual, trait.values[rank]].append(rank)
    of_usual: defaultdict[frozenset[int], list[tuple[str, list[int]]]] = defaultdict(list)
    for (usual, value), ranks in having.items():
        of_usual[usual].append((shown(value), sorted(ranks)))
    for usual, values in of_usual.items():
        usually, listed = _usual_in_words(trait, usual), values
        if len(values) > _MOST_VALUES:
            everybody = sorted(rank for _, ranks in values for rank in ranks)
            listed = [(f"one of {len(values)} values, such as {min(values)[0]}", everybody)]
        for value, ranks in listed:
            who, where = tuple(map(Rank, ranks)), hosts_of(ranks, identities)
            yield Difference(trait.what, who, where, value, usually, len(usual), "peers")


def _usual_in_words(trait: Trait, ranks: frozenset[int]) -> str:
    values = {trait.values[rank] for rank in ranks}
    if len(values) == 1:
        return shown(values.pop())
    like = min(ranks)
    return f"values like {shown(trait.values[like])} (of rank {like})"


def _ordered(found: Iterable[Difference], accused: Collection[int]) -> tuple[Difference, ...]:
    """Merge equal differences; sort by accused ranks first, then by rarity."""
    alike: defaultdict[Difference, list[Difference]] = defaultdict(list)
    for one in found:
        alike[replace(one, ranks=(), hosts=(), others=0)].append(one)
    whole = []
    for of, parts in alike.items():
        ranks = tuple(sorted(rank for one in parts for rank in one.ranks))
        hosts = tuple(dict.fromkeys(host for one in parts for host in one.hosts))
        others = sum(one.others for one in parts)
        whole.append(replace(of, ranks=ranks, hosts=hosts, others=others, accused=not set(accused).isdisjoint(ranks)))
    return tuple(sorted(whole, key=lambda one: (not one.accused, len(one.ranks), one.ranks)))
