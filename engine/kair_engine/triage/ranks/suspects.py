"""Suspects: anomalies about the same ranks put together, since what one thing makes slow is one finding."""

from collections import defaultdict

from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import Anomaly
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.localize.localization import Localization
from kair_engine.ranks import Position, Rank, ranks_at


@dataclass(frozen=True)
class Suspect:
    """Ranks that go together, the tests that speak against them, the strongest first."""

    positions: tuple[Position, ...]
    anomalies: tuple[Anomaly, ...]

    @property
    def largest(self) -> Anomaly:
        """The anomaly that costs most."""
        return self.anomalies[0]


def suspects(found: Localization) -> list[Suspect]:
    """Put anomalies of the same ranks together; a rank that belongs to a group is no separate suspect.

    Nor is one whose transfers are slow because its link is: the link is the finding.
    """
    on_links = {rank for slow in found.links for rank in slow.link.ranks}
    anomalies = [a for a in found.anomalies if not _of_links(found.job, a, on_links)]
    groups = sorted((frozenset(a.positions) for a in anomalies if a.kind == "group"), key=len, reverse=True)
    of: dict[frozenset[Position], list[Anomaly]] = defaultdict(list)
    for anomaly in anomalies:
        ranks = frozenset(anomaly.positions)
        of[next((group for group in groups if ranks <= group), ranks)].append(anomaly)
    return [
        Suspect(tuple(sorted(ranks)), tuple(sorted(members, key=lambda a: -a.excess_ns)))
        for ranks, members in of.items()
    ]


def _of_links(job: JobExcess, anomaly: Anomaly, on_links: set[Rank]) -> bool:
    ranks = set(ranks_at(job.ranks, anomaly.positions))
    return CLASSES[anomaly.class_index] == "communication" and ranks <= on_links
