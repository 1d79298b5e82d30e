"""Suspects: anomalies about the same ranks put together, since what one thing makes slow is one finding."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import Anomaly
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.localize.localization import Localization
from kair_engine.ranks import Position, Rank, ranks_at
from kair_engine.trace.model import Job, host_of


@dataclass(frozen=True)
class Suspect:
    """Ranks that go together, the tests that speak against them, the strongest first."""

    positions: tuple[Position, ...]
    anomalies: tuple[Anomaly, ...]

    @property
    def largest(self) -> Anomaly:
        """The anomaly that costs most."""
        return self.anomalies[0]


def suspects(job: Job, found: Localization) -> list[Suspect]:
    """Puts anomalies of the same ranks together; a rank that belongs to a group is no suspect of its own.

    Nor is one whose transfers are slow because its link is: the link is the finding.
    """
    on_links = {rank for slow in found.links for rank in slow.link.ranks}
    anomalies = [a for a in found.anomalies if not _of_links(found.job, a, on_links)]
    anomalies = list(_with_groups(job, found.job, anomalies))
    groups = sorted((frozenset(a.positions) for a in anomalies if a.kind == "group"), key=len, reverse=True)
    of: dict[frozenset[Position], list[Anomaly]] = defaultdict(list)
    for anomaly in anomalies:
        ranks = frozenset(anomaly.positions)
        of[next((group for group in groups if ranks <= group), ranks)].append(anomaly)
    return [
        Suspect(tuple(sorted(ranks)), tuple(sorted(members, key=lambda a: -a.excess_ns)))
        for ranks, members in of.items()
    ]


def _with_groups(job: Job, excess: JobExcess, anomalies: Sequence[Anomaly]) -> Iterator[Anomaly]:
    """Yield the anomalies; where all ranks of a host are slow in one class, a group in their place.

    So are all that have one model of device, where they compute longer. Tests take ranks out by themselves where each
    stands out enough, and cannot know what they have in common. Where no rank is slow in its class beyond chance, one
    operator that is slow on all of them says the same.
    """
    steady = [a for a in anomalies if a.kind != "intermittent"]
    merged: set[Anomaly] = set()
    hosts, compute = _hosts(job, excess), CLASSES.index("compute")
    every_class = [(members, range(len(CLASSES))) for members in hosts]
    computing = [(members, range(compute, compute + 1)) for members in _models(job, excess) if members not in hosts]
    for members, rows in (*every_class, *computing):
        for row in rows:
            here = [a for a in steady if a.class_index == row and members >= set(a.positions)]
            for group, parts in (_by_class(here, members), _by_operators(here, members)):
                if group is not None:
                    merged |= set(parts)
                    yield group
                    break
    yield from (a for a in anomalies if a not in merged)


_Merged = tuple[Anomaly | None, Sequence[Anomaly]]
"""A group, and the anomalies in whose place it stands."""


def _by_class(here: Sequence[Anomaly], members: set[Position]) -> _Merged:
    parts = [a for a in here if a.operator is None]
    if len(parts) < 2 or {rank for a in parts for rank in a.positions} != members:
        return None, ()
    mean = sum(a.excess_ns * len(a.positions) for a in parts) / len(members)
    return _group(members, parts[0].class_index, max(a.p_value for a in parts), mean), parts


def _by_operators(here: Sequence[Anomaly], members: set[Position]) -> _Merged:
    """Where at least one operator is slow on every rank: all that are slow on any of them together."""
    parts = [a for a in here if a.operator is not None]
    of: dict[str | None, list[Anomaly]] = defaultdict(list)
    for anomaly in parts:
        of[anomaly.operator].append(anomaly)
    common = [some for some in of.values() if {rank for a in some for rank in a.positions} == members]
    if len(members) < 2 or not common or len(parts) < len(here):
        return None, ()
    mean = sum(a.excess_ns * len(a.positions) for a in parts) / len(members)
    p = min(max(a.p_value for a in some) for some in common)
    only = parts[0].operator if len(of) == 1 else None
    return _group(members, parts[0].class_index, p, mean, only), parts


def _group(members: set[Position], row: int, p_value: float, excess_ns: float, operator: str | None = None) -> Anomaly:
    return Anomaly("group", tuple(sorted(members)), row, p_value, excess_ns, operator=operator)


def _hosts(job: Job, excess: JobExcess) -> list[set[Position]]:
    """Return the positions of each host's ranks, of hosts that are not the whole job."""
    return _parts(excess, lambda rank: host_of(job, rank))


def _models(job: Job, excess: JobExcess) -> list[set[Position]]:
    """Return the positions of the ranks of each model of device, of models that are not the whole job's."""

    def model_of(rank: int) -> str | None:
        known = job.identity.get(rank)
        return None if known is None else known.device.model

    return _parts(excess, model_of)


def _parts(excess: JobExcess, of_rank: Callable[[int], str | None]) -> list[set[Position]]:
    found: dict[str, set[Position]] = defaultdict(set)
    for position, rank in enumerate(excess.ranks.tolist()):
        if (part := of_rank(rank)) is not None:
            found[part].add(Position(position))
    return [members for members in found.values() if len(members) < len(excess.ranks)]


def _of_links(job: JobExcess, anomaly: Anomaly, on_links: set[Rank]) -> bool:
    ranks = set(ranks_at(job.ranks, anomaly.positions))
    return CLASSES[anomaly.class_index] == "communication" and ranks <= on_links
