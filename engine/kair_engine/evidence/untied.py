"""Warns of readings of devices that could not be tied to ranks: how many, of which ranks, why, and what helps."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kair_engine.evidence.joining import Joins, Obstacle
from kair_engine.frozen import dataclass
from kair_engine.trace.evidence_table import EvidenceFile, frame_of
from kair_engine.trace.measures import EvidenceSource
from kair_engine.trace.model import KairWarning, listed

_KINDS: Final = ("gpu", "gpu index", "pci")
_OF_DEVICES: Final = "gpu_"
"""Prefix of readings of accelerators: other parts of a host have PCI addresses too."""
_NAMED: Final = 3
"""Hosts that a warning names."""
_CAPTURE: Final = "record with kair capture run, which keeps the UUID of each rank's device"
_ALL_VISIBLE: Final = "leave all devices visible and choose by torch.cuda.set_device(local_rank)"


@dataclass(frozen=True)
class Untied:
    """Rows of one source about devices of a host, one of which may be a rank's, though none was tied to it."""

    source: str
    host: str | None
    rows: int
    devices: int
    measures: frozenset[str]
    ranks: tuple[int, ...]
    """Ranks that none of these devices was tied to."""
    why: Obstacle


def untied(evidence: EvidenceFile, joins: Joins) -> tuple[Untied, ...]:
    """Return what could not be tied, by source, host and reason; empty if every rank has its readings."""
    found = list[Untied]()
    for number, of_hosts in _by_source(evidence).items():
        name = evidence.sources[number].name
        tied = {
            host: {rank for entity in rows for rank in joins.ranks_of(host, entity)[0]}
            for host, rows in of_hosts.items()
        }
        for host, rows in of_hosts.items():
            why_of: defaultdict[Obstacle, list[int]] = defaultdict(list)
            for rank in joins.ranks:
                why = None if rank in tied[host] else _obstacle(joins, rank, host, rows)
                # A host without ranks of this job may be another job's, if the source has readings of this job's hosts
                # too.
                if why is not None and not (why == "host" and any(tied.values())):
                    why_of[why].append(rank)
            measures = frozenset(measure for of in rows.values() for measure in of)
            count = sum(sum(of.values()) for of in rows.values())
            for why, ranks in why_of.items():
                found.append(Untied(name, host, count, len(rows), measures, tuple(ranks), why))
    return tuple(found)


def _obstacle(joins: Joins, rank: int, host: str | None, rows: "_Rows") -> Obstacle | None:
    """Return why none of these devices was tied to a rank; None if the rank's device is known not to be among them."""
    why = joins.obstacle(rank, host)
    if why == "other_names":
        return None if joins.can_tell(rank, host, rows) else why
    if why is None:
        return None if joins.are_numbered(host, rows) else "no_number"
    return why


def measures_untied(found: Iterable[Untied]) -> dict[int, frozenset[str]]:
    """Return rank → the measures of devices that were not tied to it."""
    measures: dict[int, frozenset[str]] = {}
    for one in found:
        for rank in one.ranks:
            measures[rank] = measures.get(rank, frozenset()) | one.measures
    return measures


def warnings_of(found: Iterable[Untied], joins: Joins) -> list[KairWarning]:
    """Return a warning for each: the source, its number of rows, its ranks, why, and what would tie them."""
    return [KairWarning("evidence_not_tied", f"{_what(one)}: {_why(one, joins)}") for one in found]


def doubts_of(sources: Iterable[EvidenceSource]) -> list[KairWarning]:
    """Return one warning per doubt about sources, with their names: a time zone, a shared host name."""
    names: dict[str, list[str]] = {}
    for one in sources:
        for doubt in one.doubts:
            names.setdefault(doubt, []).append(one.name)
    return [
        KairWarning("evidence_in_doubt", f"{', '.join(of[:_NAMED])}{', …' if len(of) > _NAMED else ''}: {doubt}")
        for doubt, of in names.items()
    ]


def _what(one: Untied) -> str:
    of = "" if one.host is None else f" of {one.host}"
    devices = "1 device" if one.devices == 1 else f"{one.devices} devices"
    ranks = f"rank{'s' if len(one.ranks) > 1 else ''} {listed(one.ranks)}"
    return f"{one.source}: {one.rows:,} readings of {devices}{of} are not tied to {ranks}"


def _why(one: Untied, joins: Joins) -> str:
    if one.why == "host" or (one.why == "same_number" and not joins.hosts):
        return _of_host(one.host, joins.hosts)
    return _WHY[one.why]


_WHY: Final[Mapping[Obstacle, str]] = {
    "no_device": f"the recording does not say which device they ran on; {_CAPTURE}",
    "no_list": "the recording does not list the devices that their processes saw, or lists several models, which CUDA "
    f"numbers by their speed; {_CAPTURE}",
    "hidden": "their processes saw fewer devices than the host has (CUDA_VISIBLE_DEVICES), so that they number them "
    f"differently; {_ALL_VISIBLE}, or {_CAPTURE}",
    "same_number": f"several ranks of the host give their device the same number; {_ALL_VISIBLE}, or {_CAPTURE}",
    "no_number": "it lacks the number (index) of a device, which is all that the recording knows of it; query index "
    f"as well, or {_CAPTURE}",
    "other_names": "the recording knows their devices by other names; query uuid and pci.bus_id as well",
}


def _of_host(host: str | None, hosts: Sequence[str]) -> str:
    named = ", ".join(hosts[:_NAMED]) + (", …" if len(hosts) > _NAMED else "")
    if not hosts:
        folder = "host=NAME" if host is None else f"host={host}"
        return f"the recording does not name the hosts of its ranks; put the traces of a host into a folder {folder}/"
    if host is None:
        of = f"the job has {len(hosts)} ({named})"
        return f"the source does not name its host, and {of}; put it into a folder host=NAME/"
    return f"the recording names other hosts ({named}); put the source into a folder host=NAME/ with one of these names"


_Rows = Mapping[str, Mapping[str, int]]
"""Entity → measure → number of rows."""


def _by_source(evidence: EvidenceFile) -> dict[int, dict[str | None, _Rows]]:
    """Return source → host → rows about devices."""
    if not len(evidence.table):
        return {}
    frame = frame_of(evidence.table.select(["source", "host", "entity", "name"]))
    found: dict[int, dict[str | None, dict[str, dict[str, int]]]] = {}
    for source, host, entity, name, rows in frame.group_by("source", "host", "entity", "name").len().iter_rows():
        if entity.partition(":")[0] in _KINDS and name.startswith(_OF_DEVICES):
            found.setdefault(source, {}).setdefault(host, {}).setdefault(entity, {})[name] = rows
    ordered: dict[int, dict[str | None, _Rows]] = {}
    for source in sorted(found):
        ordered[source] = {host: found[source][host] for host in sorted(found[source], key=lambda of: of or "")}
    return ordered
