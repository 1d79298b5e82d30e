"""Finds devices, hosts and links that are slower than their peers in job after job, by UUID instead of rank.

Chance is tested again after every job, so the test must hold however often one looks. It is a bet whose expected gain
is zero if all units are alike: that a unit is among the slowest k of its n peers in a job, and slower than these by 1 %
of the step. For a healthy unit all of the n places among its peers are equally likely, so that the first happens with
probability k/n at most. A bet of the share λ of the wealth multiplies it by 1 − λ + λ n/k on a win and by 1 − λ on a
loss: by at most 1 in the mean. The wealth is the mixture of such bets over λ, over k and over the job that they begin
with; it exceeds 1/α with probability α at most, at any time (Ville 1939; Ramdas et al., Game-theoretic statistics and
safe anytime-valid inference, 2023). α is shared by all units of the store (Bonferroni).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import comb
from statistics import median
from typing import Final, Literal

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank
from kair_engine.results.ledger import JobRun, RunOfRank
from kair_engine.results.triage import DeviceRecord

MOST_CHANCE: Final = 0.01
"""Probability that any healthy unit of a store is ever reported."""
SLOW_SHARE: Final = 0.01
"""A unit is slow in a job if it takes at least this share of the step longer than its peers."""
CHANGED: Final = 0.05
"""A unit changed if chance divides its slow jobs as unevenly with less than this probability."""
_STAKES: Final = (0.25, 0.5, 0.75)
_TOP_SHARES: Final = (0.0, 0.25)
"""Share of the peers that a bet is on; the first is on the slowest alone."""
_FROM_FIRST: Final = 0.35
_FROM_UPGRADES: Final = 0.45
"""Share of the wealth on bets that begin with the first job, and with an upgrade of the driver; the rest is on bets
that begin with any job, because a device may become slow by itself."""
_ORDER: Final = ("device", "host", "nic")

Kind = Literal["device", "host", "nic"]
_Unit = tuple[Kind, str]


@dataclass(frozen=True)
class _Seen:
    """A unit in one run."""

    at: str
    job: str
    peers: int
    """Units of its role, itself included."""
    place: int
    """1: the slowest."""
    share: float
    """Its excess time as a share of the step."""
    ranks: tuple[int, ...]
    driver: str | None

    @property
    def is_slow(self) -> bool:
        return self.share >= SLOW_SHARE


def records_of(runs: Iterable[JobRun]) -> tuple[DeviceRecord, ...]:
    """Return the units that are slow in job after job, the least likely by chance first, by each job's last run."""
    seen = defaultdict[_Unit, list[_Seen]](list)
    for run in _once_each(runs):
        for unit, one in _units(run):
            seen[unit].append(one)
    units = _distinct(seen)
    found = []
    for unit, of in units.items():
        if not any(one.is_slow for one in of):  # its bets are all lost
            continue
        chance = len(units) * float(np.exp(-_log_wealth(of)))
        if chance <= MOST_CHANCE:
            found.append(_record(unit, of, chance))
    return tuple(sorted(found, key=lambda one: (one.chance, one.name)))


def records_in(run: JobRun, runs: Iterable[JobRun]) -> tuple[DeviceRecord, ...]:
    """Return the records of a run's units, each with its ranks there."""
    ranks = defaultdict[_Unit, list[Rank]](list)
    for one in run.ranks:
        for unit in _units_of(one):
            ranks[unit].append(Rank(one.rank))
    found = records_of(runs)
    return tuple(replace(one, ranks=tuple(of)) for one in found if (of := ranks.get((one.kind, one.name))))


def _once_each(runs: Iterable[JobRun]) -> list[JobRun]:
    """Return runs in order of time; of each job the last, and of each recording one, however often it was imported."""
    ordered = sorted(runs, key=lambda run: run.at)
    of_jobs = {run.job: run for run in ordered}
    of_recordings = {(run.job if run.run.startswith("attempt ") else "", run.run): run for run in of_jobs.values()}
    return sorted(of_recordings.values(), key=lambda run: run.at)


def _units_of(one: RunOfRank) -> Iterator[_Unit]:
    if one.device is not None:
        yield "device", one.device
    if one.host is not None:
        yield "host", one.host
        yield from (("nic", f"{one.host} {nic}") for nic in one.nics)


def _units(run: JobRun) -> Iterator[tuple[_Unit, _Seen]]:
    """Yield each unit with its place among those of its kind; one with several roles in that with most peers."""
    members = defaultdict[tuple[Kind, str], dict[str, list[RunOfRank]]](dict)
    for one in run.ranks:
        for kind, name in _units_of(one):
            members[kind, one.role].setdefault(name, []).append(one)
    best: dict[_Unit, _Seen] = {}
    for (kind, _), of in members.items():
        if len(of) < 2:
            continue
        shares = {name: median(one.excess_share for one in ranks) for name, ranks in of.items()}
        ordered = np.sort(list(shares.values()))
        for name, ranks in of.items():
            # Equal units share the last of their places.
            place = len(of) - int(np.searchsorted(ordered, shares[name], side="left"))
            drivers = {one.driver for one in ranks}
            seen = _Seen(
                run.at,
                run.job,
                len(of),
                place,
                shares[name],
                tuple(one.rank for one in ranks),
                drivers.pop() if len(drivers) == 1 else None,
            )
            if (kind, name) not in best or best[kind, name].peers < seen.peers:
                best[kind, name] = seen
    yield from best.items()


def _distinct(seen: dict[_Unit, list[_Seen]]) -> dict[_Unit, list[_Seen]]:
    """Return the units without a host or link that always had the same ranks as a device: the device stands for it."""
    found: dict[tuple[tuple[str, tuple[int, ...]], ...], _Unit] = {}
    for unit in sorted(seen, key=lambda unit: (_ORDER.index(unit[0]), unit[1])):
        found.setdefault(tuple((one.job, one.ranks) for one in seen[unit]), unit)
    return {unit: seen[unit] for unit in found.values()}


def _log_wealth(seen: Sequence[_Seen]) -> float:
    """Return the logarithm of the wealth of bets on being slow; below 0 they lost."""
    wealth, laid = [], _laid(seen)
    for top in _TOP_SHARES:
        among = [max(int(one.peers * top), 1) for one in seen]
        won = np.array([one.is_slow and one.place <= k for one, k in zip(seen, among, strict=True)])
        odds = np.array([one.peers / k for one, k in zip(seen, among, strict=True)])
        for stake in _STAKES:
            gains = np.log(1 - stake + stake * odds * won)
            since = np.cumsum(gains[::-1])[::-1]  # begun with each job
            wealth.append(np.logaddexp.reduce([*(since + np.log(laid)), np.log(1 - laid.sum())]))
    return float(np.logaddexp.reduce(wealth) - np.log(len(wealth)))


def _laid(seen: Sequence[_Seen]) -> Floats:
    """Return (runs): the share of the wealth on bets that begin with each; the remainder is for later ones.

    The first, second, third upgrade, or job, gets a half, a sixth, a twelfth: together never more than 1.
    """
    starts = np.arange(1, len(seen) + 1)
    laid = (1 - _FROM_FIRST - _FROM_UPGRADES) / (starts * (starts + 1.0))
    laid[0] += _FROM_FIRST
    for number, at in enumerate(_upgrades(seen), 1):
        laid[at] += _FROM_UPGRADES / (number * (number + 1))
    return np.asarray(laid)


def _upgrades(seen: Sequence[_Seen]) -> list[int]:
    """Return the indices of runs with another driver than the one before."""
    drivers = [one.driver for one in seen]
    return [at for at in range(1, len(seen)) if None not in drivers[at - 1 : at + 1] and drivers[at - 1] != drivers[at]]


def _record(unit: _Unit, seen: Sequence[_Seen], chance: float) -> DeviceRecord:
    kind, name = unit
    at = _change(seen)
    before, since = seen[:at], seen[at:]
    slow = [one.share for one in since if one.is_slow]
    drivers = (before[-1].driver, since[0].driver) if before else (None, None)
    upgraded = None not in drivers and drivers[0] != drivers[1]
    ranks = {one.ranks for one in since}
    (of_all,) = ranks if len(ranks) == 1 else ((),)
    return DeviceRecord(
        kind=kind,
        name=name,
        jobs=len(since),
        slow_in=len(slow),
        slow_share=float(np.median(slow)) if slow else 0.0,
        jobs_before=len(before),
        slow_before=sum(one.is_slow for one in before),
        since=since[0].at if before else None,
        driver_before=drivers[0] if upgraded else None,
        driver_since=drivers[1] if upgraded else None,
        chance=min(chance, 1.0),
        by_address=kind == "device" and " " in name,
        always_rank=of_all[0] if len(of_all) == 1 and len(since) > 1 else None,
    )


def _change(seen: Sequence[_Seen]) -> int:
    """Return the index of the run since which it is slow more often than by chance; 0: always.

    Runs with another driver than the one before are tested first, and all others if none of these qualifies.
    """
    for candidates in (_upgrades(seen), range(1, len(seen))):
        chances = [(_uneven(seen, at) * len(candidates), at) for at in candidates]
        if chances and min(chances)[0] <= CHANGED:
            return min(chances)[1]
    return 0


def _uneven(seen: Sequence[_Seen], at: int) -> float:
    """Return the probability that chance puts so few of the slow runs, or fewer, among the first (hypergeometric)."""
    slow, first = sum(one.is_slow for one in seen), sum(one.is_slow for one in seen[:at])
    ways = sum(comb(slow, few) * comb(len(seen) - slow, at - few) for few in range(first + 1) if at >= few)
    return ways / comb(len(seen), at)
