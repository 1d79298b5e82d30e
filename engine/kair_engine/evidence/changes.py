"""Lists what changed in ranks and their software since the previous attempt, or since another, healthy job."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, Literal

from kair_engine.evidence.devices import hosts_of
from kair_engine.evidence.own_values import pattern_of, without_host, without_process
from kair_engine.evidence.traits import Trait, traits_of
from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank
from kair_engine.results.evidence import Difference
from kair_engine.trace.identity import RankIdentity, merged
from kair_engine.trace.measures import shown

Identities = Mapping[int, RankIdentity]


@dataclass(frozen=True)
class LastAttempts:
    """The identities of each rank's last process and of the one before."""

    before: dict[int, RankIdentity]
    """Only ranks that had an earlier process."""
    now: dict[int, RankIdentity]
    number: int
    """Number of the previous attempt, from 1; 0 if there was none."""


def last_attempts(identities: Iterable[RankIdentity]) -> LastAttempts:
    """Return the last two attempts. `identities` holds every identity of the job, each rank's in order of time."""
    of_rank: defaultdict[int, list[RankIdentity]] = defaultdict(list)
    for one in identities:
        had = of_rank[one.rank]
        if had and (had[-1].host, had[-1].pid, had[-1].process_s) == (one.host, one.pid, one.process_s):
            had[-1] = merged(one, had[-1])
        else:
            had.append(one)
    return LastAttempts(
        before={rank: had[-2] for rank, had in of_rank.items() if len(had) > 1},
        now={rank: had[-1] for rank, had in of_rank.items()},
        number=max(map(len, of_rank.values()), default=1) - 1,
    )


def changes(
    before: Identities, now: Identities, of: str, against: Literal["attempt", "job"], accused: Iterable[int] = ()
) -> tuple[Difference, ...]:
    """Return what changed; differences on ranks of `accused` come first.

    Against an attempt, each rank is compared with itself: its host, its device, and all that is known of it. Against a
    job, whose ranks are different ones, the value of more than half of its ranks is compared with that of more than
    half of these: other hosts and devices are no change, and neither is a value that only one side knows. `of` names
    the attempt or the job.
    """
    found = _since_attempt(before, now) if against == "attempt" else _since_job(before, now)
    mine = set(accused)
    named = [replace(one, against=against, of=of, accused=not mine.isdisjoint(one.ranks)) for one in found]
    return tuple(sorted(named, key=lambda one: (not one.accused, len(one.ranks), one.ranks)))


def _traits_of_both(before: Identities, now: Identities) -> Iterator[tuple[Trait, Trait]]:
    variables = {name for side in (before, now) for one in side.values() for name in one.environment}
    before_by_name = {one.what: one for one in traits_of(before, variables)}
    for one in traits_of(now, variables):
        if one.what in before_by_name:
            yield before_by_name[one.what], one


_WHERE: Final[Mapping[str, Callable[[RankIdentity], str | None]]] = {
    "host": lambda one: one.host,
    "boot of the host": lambda one: one.boot,
    "device": lambda one: one.device.uuid or one.device.pci,
}
"""Where a rank runs; if its host changed, boot and device are not listed."""


def _since_attempt(before: Identities, now: Identities) -> Iterator[Difference]:
    both = sorted(before.keys() & now.keys())
    staying = [rank for rank in both if _same_host(before[rank], now[rank])]
    for what, where in _WHERE.items():
        values = {rank: (where(before[rank]), where(now[rank])) for rank in (both if what == "host" else staying)}
        pairs = {rank: (old, new) for rank, (old, new) in values.items() if old is not None and new is not None}
        moved = {rank: pair for rank, pair in pairs.items() if pair[0] != pair[1]}
        if what == "host":
            moved = {rank: pair for rank, pair in moved.items() if rank not in staying}
        yield from _grouped(what, moved, len(pairs) - len(moved), now)
    for old, new in _traits_of_both(before, now):
        common = [rank for rank in both if rank in old.values and rank in new.values]
        changed = {
            rank: (old.values[rank], new.values[rank])
            for rank in common
            if old.values[rank] != new.values[rank] and _own(old, rank, before) != _own(new, rank, now)
        }
        yield from _grouped(new.what, changed, len(common) - len(changed), now)


def _same_host(one: RankIdentity, other: RankIdentity) -> bool:
    """Return whether both names mean one host; a missing name counts as the same."""
    if one.host is None or other.host is None:
        return True
    short, long = sorted((one.host.lower(), other.host.lower()), key=len)
    return short == long or long.startswith(f"{short}.")


def _text(trait: Trait, rank: int, identities: Identities) -> str:
    """Return the text that is compared over time, without hosts, ports and addresses, which may change."""
    text = trait.values[rank]
    return pattern_of(text) if trait.what == "cgroup" else without_host(text, identities[rank].host)


def _own(trait: Trait, rank: int, identities: Identities) -> str:
    """Return the same text without the rank's process id, which may change too."""
    return without_process(_text(trait, rank, identities), identities[rank].pid)


_MOST_PAIRS: Final = 4
"""With more pairs of values, one entry stands for all: a job that moved has new hosts on all ranks."""


def _grouped(what: str, changed: Mapping[int, tuple[str, str]], same: int, now: Identities) -> Iterator[Difference]:
    """Yield one difference per pair of values, or a single one if there are too many pairs."""
    of_pair: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, pair in changed.items():
        of_pair[pair].append(rank)
    if len(of_pair) > _MOST_PAIRS:
        olds, news = ([*dict.fromkeys(pair[side] for pair in of_pair)] for side in (0, 1))
        of_pair = defaultdict(list, {(_several(olds), _several(news)): sorted(changed)})
    for (old, new), ranks in of_pair.items():
        hosts = hosts_of(ranks, now)
        yield Difference(what, tuple(map(Rank, ranks)), hosts, shown(new), shown(old), same, "attempt")


def _several(values: list[str]) -> str:
    left = len(values) - _MOST_PAIRS
    return ", ".join(values[:_MOST_PAIRS]) + (f" and {left} more" if left > 0 else "")


def _since_job(before: Identities, now: Identities) -> Iterator[Difference]:
    for old, new in _traits_of_both(before, now):
        was, is_now = _usual(old, before), _usual(new, now)
        if old.by_place or was is None or is_now is None or was[0] == is_now[0]:
            continue
        hosts = hosts_of(is_now[1], now)
        value, usual = new.values[is_now[1][0]], old.values[was[1][0]]
        yield Difference(new.what, tuple(map(Rank, is_now[1])), hosts, shown(value), shown(usual), len(was[1]), "job")


def _usual(trait: Trait, identities: Identities) -> tuple[str, list[int]] | None:
    """Return the compared value of more than half of the ranks, and those ranks; None if no value has."""
    texts = {rank: _text(trait, rank, identities) for rank in sorted(trait.values)}
    if not texts:
        return None
    text, number = Counter(texts.values()).most_common(1)[0]
    return (text, [rank for rank, one in texts.items() if one == text]) if 2 * number > len(texts) else None
