"""What happened near the begin of a finding: events, and changes of what else stays as it is.

It lists what was near in time, on whom and on how many others; that it came first does not make it the cause.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import Final

import polars as pl

from kair_engine.causes import CAUSES
from kair_engine.evidence.course import Course
from kair_engine.evidence.joining import Joins
from kair_engine.evidence.own_values import pattern_of
from kair_engine.evidence.series import Event, event_of, rows_of
from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank
from kair_engine.results.evidence import Happening
from kair_engine.results.triage import Finding
from kair_engine.trace.evidence_table import EvidenceFile, frame_of
from kair_engine.trace.measures import MEASURES

WITHIN_S: Final = 600.0
"""So long before a finding began something may have happened that had to do with it.

Metrics are scraped every 15 to 60 s and lag by up to 40 s more, and what fails takes minutes to show: a device heats up
without its fan, a link retries before it goes down. What lies further back is nearer to other steps than to these."""
UNVOUCHED_S: Final = 60.0
"""By how much a clock may be off of which nobody says it: then order is not told either."""
CHANGES: Final = (
    "gpu_pcie_width",
    "gpu_pcie_generation",
    "gpu_power_limit",
    "gpu_nvlink_active_links",
    "gpu_row_remap_pending",
    "gpu_row_remap_failure",
    "nic_speed",
    "nic_state",
    "cpu_governor",
    "process_cores",
    "process_quota",
)
"""Gauges and states that stay as they are while nothing happens to a device, a host or a process."""
_EVENTS: Final = tuple(name for name, measure in MEASURES.items() if measure.kind == "event")


@dataclass(frozen=True)
class _Event:
    """Something that happened to one thing, or a change of it."""

    at_ns: int
    bound_ns: int
    of: Event

    @property
    def same(self) -> Hashable:
        """Equal for what is the same on another rank: an XID of one code, a text that differs in numbers alone."""
        of = self.of
        return of.name, of.value, None if of.value is not None or of.text is None else pattern_of(of.text)

    @property
    def whose(self) -> Hashable:
        return self.of.ranks or (self.of.host, self.of.entity)


@dataclass(frozen=True)
class _Begin:
    """When a finding began, and whom it accuses."""

    finding: int
    at_ns: int
    bound_ns: int
    accused: frozenset[int]

    def is_near(self, event: _Event) -> bool:
        """Whether it may have happened before, and no longer before than WITHIN_S."""
        off = event.bound_ns + self.bound_ns
        return -off <= self.at_ns - event.at_ns <= WITHIN_S * 1e9 + off


def onsets_of(findings: Sequence[Finding], course: Course) -> dict[int, tuple[int, int]]:
    """When findings began, by their numbers, from 1: Unix ns, and by how much that may be off, which is a step.

    Of what showed from the first step it is not known. What stops the job began when the last step was over.
    """
    step_ns = int(course.step_us * 1e3)
    found = {}
    for number, one in enumerate(findings, 1):
        if CAUSES[one.cause].stops_job:
            found[number] = int(course.end_ns.max()), step_ns
        elif one.since is not None and (onset := course.onset_ns(one.since)) is not None:
            found[number] = onset, step_ns
    return found


def happenings(
    findings: Sequence[Finding],
    evidence: EvidenceFile,
    joins: Joins,
    onsets_ns: Mapping[int, tuple[int, int]],
    downstream: Collection[int] = (),
) -> tuple[Happening, ...]:
    """Return what happened near the begin of findings, by their numbers, from 1; of each the nearest before it, once.

    `onsets_ns` has when they began, Unix, and by how much that may be off, of findings of which it is known.
    `downstream` are codes of XIDs that follow from another device's fault: they come last. What surely happened after
    the begin is left out, and what happened more than WITHIN_S before it.
    """
    if not onsets_ns or not len(evidence.table):
        return ()
    first = min(onset - bound for onset, bound in onsets_ns.values())
    events = sorted(_all_events(evidence, joins, first), key=lambda one: one.at_ns)
    observers = _Observers(evidence, joins)
    found = []
    for number, (onset, bound) in sorted(onsets_ns.items()):
        begin = _Begin(number, onset, bound, frozenset(findings[number - 1].ranks))
        near: defaultdict[Hashable, list[_Event]] = defaultdict(list)
        for one in filter(begin.is_near, events):
            near[one.same].append(one)
        told = [_told(same, begin, observers) for same in near.values()]
        follows = {id(one): one.name == "xid" and one.value in downstream for one in told}
        found += sorted(told, key=lambda one: (not one.on_accused, follows[id(one)], abs(one.before_s)))
    return tuple(found)


def _told(same: Sequence[_Event], begin: _Begin, observers: "_Observers") -> Happening:
    """One for all that is the same, of the accused if it is theirs too."""
    mine = [one for one in same if not begin.accused.isdisjoint(one.of.ranks)]
    nearest = min(mine or same, key=lambda one: (one.at_ns > begin.at_ns, abs(begin.at_ns - one.at_ns)))
    event = nearest.of
    ranks = {rank for one in mine or [nearest] for rank in one.of.ranks}
    others = {rank for one in same for rank in one.of.ranks} - ranks
    unknown = {one.whose for one in same if not one.of.ranks} - {nearest.whose}
    return Happening(
        at_ns=nearest.at_ns,
        bound_ns=nearest.bound_ns,
        name=event.name,
        value=event.value,
        text=event.text,
        entity=event.entity,
        host=event.host,
        ranks=tuple(map(Rank, sorted(ranks))),
        on_accused=bool(mine),
        on_others=len(others) + len(unknown),
        before_s=(begin.at_ns - nearest.at_ns) / 1e9,
        # Only where the source says by how much its times are off.
        order_known=event.source.bound_s is not None
        and abs(begin.at_ns - nearest.at_ns) > nearest.bound_ns + begin.bound_ns,
        finding=begin.finding,
        raw=event.raw,
        others_observed=len(observers.of(event.name) - ranks),
    )


def _all_events(evidence: EvidenceFile, joins: Joins, first_ns: int) -> Iterator[_Event]:
    """Events and changes of things, from WITHIN_S before the first begin on."""
    rows = pl.concat([rows_of(evidence, _EVENTS).with_columns(gap_ns=pl.lit(0, pl.Int64)), _changes(evidence)])
    since = first_ns - int((WITHIN_S + UNVOUCHED_S) * 1e9)
    for row in rows.iter_rows(named=True):
        bound_s = evidence.sources[row["source"]].bound_s
        # A change happened at any time since the reading before.
        bound_ns = int((UNVOUCHED_S if bound_s is None else bound_s) * 1e9) + row["gap_ns"] // 2
        at_ns = row["time_ns"] - row["gap_ns"] // 2
        if at_ns + bound_ns >= since:
            yield _Event(at_ns, bound_ns, event_of(row, evidence, joins))


def _changes(evidence: EvidenceFile) -> pl.DataFrame:
    """Return the first reading of each value that a thing did not have before, with the time since the reading before
    it.

    A value that was there before is no change: links save power at idle, and come back.
    """
    of_one = ("source", "host", "entity", "name")
    readings = rows_of(evidence, CHANGES).sort("time_ns")
    now = pl.coalesce(pl.col("text"), pl.col("value").cast(pl.String))
    return (
        readings.with_columns(
            now=now,
            gap_ns=pl.col("time_ns") - pl.col("time_ns").shift(1).over(of_one),
        )
        .filter(pl.col("now").is_not_null() & pl.col("now").is_first_distinct().over(of_one))
        .filter(pl.col("gap_ns").is_not_null())
        .drop("now")
    )


class _Observers:
    """Of which ranks a source would have told something, had it happened."""

    def __init__(self, evidence: EvidenceFile, joins: Joins) -> None:
        self._sources: Final = evidence.sources
        self._joins: Final = joins
        frame = frame_of(evidence.table.select(["source", "host", "name", "entity", "rank"]))
        self._seen: Final = frame.with_columns(pl.col("host", "name", "entity").cast(pl.String)).unique()
        self._known: Final[dict[str, frozenset[int]]] = {}

    def of(self, name: str) -> frozenset[int]:
        """Return the ranks on hosts of which a source tells such events, and those of which it has such readings."""
        if name not in self._known:
            self._known[name] = frozenset(self._find(name))
        return self._known[name]

    def _find(self, name: str) -> Iterator[int]:
        telling = [number for number, one in enumerate(self._sources) if name in one.observes]
        hosts = {host for number in telling for host in self._sources[number].hosts}
        hosts |= {*self._seen.filter(pl.col("source").is_in(telling))["host"].drop_nulls()}
        for host in hosts:
            yield from self._joins.on_host(host)
        for row in self._seen.filter(pl.col("name") == name).iter_rows(named=True):
            yield from self._joins.ranks_of(row["host"], row["entity"], row["rank"])[0]
