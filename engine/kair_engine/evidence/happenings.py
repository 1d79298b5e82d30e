"""Lists what happened near the begin of a finding: events, and changes of values that are usually constant.

It reports what was close in time, on which rank and on how many others; coming first does not make it the cause.
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
"""Something that happened up to this long before a finding began may be related.

Metrics are scraped every 15 to 60 s and lag by up to 40 s more, and failures take minutes to show: a device without its
fan heats up, a link retries before it goes down. Anything earlier is closer to other steps.
"""
UNVOUCHED_S: Final = 60.0
"""Assumed error of a clock whose error is not known; order in time is not claimed then."""
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
"""Gauges and states that stay constant unless something happens to a device, host or process."""
_EVENTS: Final = tuple(name for name, measure in MEASURES.items() if measure.kind == "event")


@dataclass(frozen=True)
class _Event:
    """An event on one thing, or a change of one of its values."""

    at_ns: int
    bound_ns: int
    of: Event

    @property
    def same(self) -> Hashable:
        """Return a key that is equal for the same event on another rank: same XID code, or same text but for its
        numbers.
        """
        of = self.of
        return of.name, of.value, None if of.value is not None or of.text is None else pattern_of(of.text)

    @property
    def whose(self) -> Hashable:
        return self.of.ranks or (self.of.host, self.of.entity)


@dataclass(frozen=True)
class _Begin:
    """When a finding began, and which ranks it accuses."""

    finding: int
    at_ns: int
    bound_ns: int
    accused: frozenset[int]

    def is_near(self, event: _Event) -> bool:
        """Return whether the event may be earlier, by WITHIN_S at most."""
        off = event.bound_ns + self.bound_ns
        return -off <= self.at_ns - event.at_ns <= WITHIN_S * 1e9 + off


def onsets_of(findings: Sequence[Finding], course: Course) -> dict[int, tuple[int, int]]:
    """Return finding number (from 1) → its begin in Unix ns, and the error of that, one step.

    Findings that show from the first step have no known begin. A finding that stops the job begins when the last step
    ends.
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
    """Return what happened near the begin of findings: of equal events the nearest, once per finding.

    `onsets_ns` maps finding number (from 1) → its begin (Unix) and the error of that, for findings with a known begin.
    `downstream` are codes of XIDs that follow from another device's fault; they come last. Events that surely came
    after the begin, or more than WITHIN_S before it, are left out.
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
        each = [_told(same, begin, observers) for same in near.values()]
        follows = {id(one): one.name == "xid" and one.value in downstream for one in each}
        found += sorted(each, key=lambda one: (not one.on_accused, follows[id(one)], abs(one.before_s)))
    return tuple(found)


def _told(same: Sequence[_Event], begin: _Begin, observers: "_Observers") -> Happening:
    """Merge equal events into one, that of accused ranks if they have it too."""
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
        # Only if the source states the error of its times.
        order_known=event.source.bound_s is not None
        and abs(begin.at_ns - nearest.at_ns) > nearest.bound_ns + begin.bound_ns,
        finding=begin.finding,
        raw=event.raw,
        others_observed=len(observers.of(event.name) - ranks),
    )


def _all_events(evidence: EvidenceFile, joins: Joins, first_ns: int) -> Iterator[_Event]:
    """Yield events and changes, from WITHIN_S before the first begin."""
    rows = pl.concat([rows_of(evidence, _EVENTS).with_columns(gap_ns=pl.lit(0, pl.Int64)), _changes(evidence)])
    since = first_ns - int((WITHIN_S + UNVOUCHED_S) * 1e9)
    for row in rows.iter_rows(named=True):
        bound_s = evidence.sources[row["source"]].bound_s
        # A change happened at any time since the previous reading.
        bound_ns = int((UNVOUCHED_S if bound_s is None else bound_s) * 1e9) + row["gap_ns"] // 2
        at_ns = row["time_ns"] - row["gap_ns"] // 2
        if at_ns + bound_ns >= since:
            yield _Event(at_ns, bound_ns, event_of(row, evidence, joins))


def _changes(evidence: EvidenceFile) -> pl.DataFrame:
    """Return the first reading of each value that is new to a thing, with the time since the previous reading.

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
    """Finds on which ranks a source would have reported an event, had it happened."""

    def __init__(self, evidence: EvidenceFile, joins: Joins) -> None:
        self._sources: Final = evidence.sources
        self._joins: Final = joins
        frame = frame_of(evidence.table.select(["source", "host", "name", "entity", "rank"]))
        self._seen: Final = frame.with_columns(pl.col("host", "name", "entity").cast(pl.String)).unique()
        self._known: Final[dict[str, frozenset[int]]] = {}

    def of(self, name: str) -> frozenset[int]:
        """Return the ranks on hosts whose sources report such events, and those with such readings."""
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
