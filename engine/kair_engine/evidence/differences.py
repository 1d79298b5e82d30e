"""What few ranks have and the others have not, and what changed since an attempt or a healthy job.

It lists, and accuses nobody: what differs need not be what slows. On ranks that were set up alike it is silent.
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
"""Of two ranks neither is the usual one."""
_MOST_VALUES: Final = 8
"""Of one thing that are listed one by one."""
Classes = Sequence[frozenset[int]]
"""Ranks, set apart by what they have in common."""


@dataclass(frozen=True)
class _Odd:
    """Ranks with a value that most of those they are compared with have not."""

    ranks: frozenset[int]
    usual: frozenset[int]
    """Those that have the usual one."""


def differences(
    identities: Mapping[int, RankIdentity], accused: Collection[int], role_of: Mapping[int, str] | None = None
) -> tuple[Difference, ...]:
    """Return what differs between the ranks of a job; what a rank of `accused` has comes first.

    What more than half of the ranks have is the usual, anything else is listed. Where more than half have nothing in
    common, ranks are compared within their roles, or within places on hosts, or within hosts: whichever leaves fewest
    that differ; where none has a usual value in all of its parts, nothing is listed. Nor is what goes with a place
    throughout, and variables, images and devices that go with a role: that is by design. What a whole host has is
    listed only if more than half of the hosts have the usual. Of two halves neither has the usual; but where all
    ranks of one are accused, what sets it apart is listed.
    """
    parts = _Parts(identities, role_of or {})
    odd = ((trait, parts.odd(trait) or _half(trait, frozenset(accused))) for trait in traits_of(identities))
    found = [one for trait, some in odd for one in _in_words(trait, some, identities)]
    return _ordered(found, accused)


class _Parts:
    """The ranks by role, by place on their hosts and by host."""

    def __init__(self, identities: Mapping[int, RankIdentity], role_of: Mapping[int, str]) -> None:
        self._roles: Final = _classes((rank, role_of.get(rank)) for rank in identities)
        self._places: Final = _classes((rank, one.local_rank) for rank, one in identities.items())
        self._hosts: Final = _classes((rank, one.host) for rank, one in identities.items())
        self._host_of: Final = {rank: host for host in self._hosts for rank in host}

    def odd(self, trait: Trait) -> list[_Odd]:
        """Return the ranks whose value is not the usual one, those of each value apart."""
        if len(set(trait.keys.values())) < 2:
            return []
        everybody = frozenset(trait.keys)
        if trait.by_place:
            return _odd_within(self._places, everybody, trait.keys) or []
        found: list[_Odd] = []
        alike = everybody
        by_form = None if trait.forms is None else _odd_among(everybody, trait.forms)
        if by_form and len(by_form[0].usual) >= _FEWEST:
            # A text of another form is odd, whatever the others' texts go by.
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
            # What all ranks of a host have is the host's: each host then counts once, however many ranks it has.
            if (most_hosts or usual & (mine := self._hosts_of(one.ranks)) or not mine)
            and not self._is_by_design(one, everybody, by_design)
        ]

    def _hosts_of(self, ranks: Iterable[int]) -> set[frozenset[int]]:
        return {self._host_of[rank] for rank in ranks if rank in self._host_of}

    def _is_by_design(self, odd: _Odd, everybody: frozenset[int], kinds: Iterable[Classes]) -> bool:
        """Whether they are all the ranks of some roles or of some places, and not just those of one host."""
        if len(odd.ranks) < 2 or any(host & everybody == odd.ranks for host in self._hosts_of(odd.ranks)):
            return False
        return any(_is_made_of(odd.ranks, classes, everybody) for classes in kinds)


def _half(trait: Trait, accused: frozenset[int]) -> list[_Odd]:
    """Return the half that is accused, where all of it have one value and all of the other half have another."""
    everybody = frozenset(trait.keys)
    others = everybody - accused
    values = [{trait.keys[rank] for rank in some} for some in (accused & everybody, others)]
    halves = accused <= everybody and len(accused) == len(others) >= 2
    if trait.by_place or not halves or any(len(one) != 1 for one in values) or values[0] == values[1]:
        return []
    return [_Odd(accused, others)]


def _classes(of: Iterable[tuple[int, object]]) -> Classes:
    """Return the ranks that have the same; without those of which it is not known."""
    found: defaultdict[object, set[int]] = defaultdict(set)
    for rank, which in of:
        if which is not None:
            found[which].add(rank)
    return [frozenset(ranks) for ranks in found.values()]


def _is_made_of(ranks: frozenset[int], classes: Classes, everybody: frozenset[int]) -> bool:
    """Whether these are whole classes of several ranks each."""
    touched = [one & everybody for one in classes if one & ranks]
    return bool(touched) and frozenset().union(*touched) == ranks and all(len(one) > 1 for one in touched)


def _odd_among(ranks: frozenset[int], keys: Mapping[int, Key]) -> list[_Odd] | None:
    """Those who have not what more than half have, by what they have instead; None where no half has the same."""
    having: defaultdict[Key, set[int]] = defaultdict(set)
    for rank in ranks:
        having[keys[rank]].add(rank)
    most = max(having.values(), key=len)
    if len(ranks) < _FEWEST or 2 * len(most) <= len(ranks):
        return None
    usual = frozenset(most)
    return [_Odd(frozenset(one), usual) for one in having.values() if one is not most]


def _odd_within(classes: Classes, everybody: frozenset[int], keys: Mapping[int, Key]) -> list[_Odd] | None:
    """Return the same within each class that can be judged; None where some of these have no usual value, or few ranks
    have.

    Of two ranks neither is the usual one, but where all classes are at one with themselves, they tell what it goes by.
    """
    parts = [one & everybody for one in classes]
    at_one = all(len({keys[rank] for rank in one}) == 1 for one in parts if one)
    judged = [one for one in parts if len(one) >= (2 if at_one else _FEWEST)]
    if 2 * sum(map(len, judged)) <= len(everybody):
        return None
    found = [] if at_one else [_odd_among(one, keys) for one in judged]
    return None if None in found else [odd for one in found for odd in one or ()]


def _in_words(trait: Trait, odd: Iterable[_Odd], identities: Mapping[int, RankIdentity]) -> Iterator[Difference]:
    """One for each text that some have instead of the usual; of many texts, one for all."""
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
    """Return what is alike but for its ranks as one; that of accused ranks first, then what fewest have, by their
    numbers.
    """
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
