"""Turns evidence into series of readings, and averages them over windows of time."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.evidence.joining import Joins
from kair_engine.frozen import dataclass
from kair_engine.results.evidence import JoinedBy
from kair_engine.trace.evidence_table import EvidenceFile, frame_of
from kair_engine.trace.measures import MEASURES, EvidenceSource

if TYPE_CHECKING:
    import polars as pl

TRUST: Final[tuple[JoinedBy, ...]] = ("rank", "uuid", "pci", "process", "scheduler", "host", "ordinal", "local_rank")
"""Ties from the most to the least trusted. Only a source within the rank's own process names the rank itself."""
_INTERVALS_HELD: Final = 3
Combined = Literal["sum", "least", "most"]
"""How several series of one measure on one rank combine: ports of a host, disks."""


@dataclass(frozen=True)
class Series:
    """Readings of one measure of one thing, in order of time."""

    name: str
    entity: str
    host: str | None
    text: str | None
    """The label of a counter that counts by text; None for others."""
    source: EvidenceSource
    joined_by: JoinedBy
    """What ties it to its rank."""
    time_ns: Ints
    value: Floats
    raw: str | None = None
    """Source of the last reading, `file:line`."""
    length_ns: Ints | None = None
    """Length of each step, for the job's own measurements: `value` is what the step spent, and nothing is known between
    recorded steps.
    """

    def over(self, edges_ns: Ints) -> Floats:
        """Return (windows,) between `edges_ns`: the mean of a gauge or the rate of a counter per second; NaN if not
        known.

        A value holds until the next one, but no longer than its source says. A counter that decreases was reset.
        """
        if self.length_ns is not None:
            return _in_steps(self, self.length_ns, edges_ns)
        if MEASURES[self.name].kind == "counter":
            return _growth(self, edges_ns)
        return _mean(self, edges_ns)

    @property
    def held_ns(self) -> float:
        """Return how long a value holds, in ns."""
        held = self.source.holds_s
        if held is None:
            held = _INTERVALS_HELD * (self.source.interval_s or 0.0)
        return held * 1e9 if held else np.inf


def _in_steps(series: Series, length_ns: Ints, edges: Ints) -> Floats:
    """Return the time spent per second in the steps that begin in each window."""
    at = np.searchsorted(edges, series.time_ns, side="right") - 1
    inside = (at >= 0) & (at < len(edges) - 1)
    spent = np.bincount(at[inside], series.value[inside], len(edges) - 1)
    lasted = np.bincount(at[inside], length_ns[inside], len(edges) - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(lasted > 0, spent / lasted * 1e9, np.nan)


def _mean(series: Series, edges: Ints) -> Floats:
    """Return the mean in each window, weighted by how long each value holds."""
    time, value = series.time_ns.astype(np.float64), series.value
    until = np.append(np.minimum(time[1:], time[:-1] + series.held_ns), time[-1] + _last_ns(series))
    if series.source.holds_s and series.source.interval_s:
        interval = series.source.interval_s * 1e9
        # A value that was not repeated had not changed until one interval before the next report.
        late = np.flatnonzero((np.diff(time) > 1.5 * interval) & (np.diff(value) != 0))
        until[late] = np.minimum(until[late], time[late + 1] - interval)
    length = until - time
    known, total = np.concatenate(([0.0], np.cumsum(length))), np.concatenate(([0.0], np.cumsum(length * value)))

    def up_to(at: Floats) -> tuple[Floats, Floats]:
        place = np.searchsorted(time, at, side="right") - 1
        inside = np.clip(at - time[np.maximum(place, 0)], 0, length[np.maximum(place, 0)])
        inside = np.where(place < 0, 0.0, inside)
        place = np.maximum(place, 0)
        return known[place] + inside, total[place] + inside * value[place]

    seconds, sums = up_to(edges.astype(np.float64))
    covered = np.diff(seconds)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(covered >= np.diff(edges) / 2, np.diff(sums) / covered, np.nan)


def _last_ns(series: Series) -> float:
    """Return how long the last value holds."""
    if np.isfinite(series.held_ns):
        return series.held_ns
    return float(np.median(np.diff(series.time_ns))) if len(series.time_ns) > 1 else 0.0


def _growth(series: Series, edges: Ints) -> Floats:
    time: Ints = series.time_ns
    value = series.value
    grown: Floats = np.diff(value)
    # After a reset, only the new value is known to have been counted.
    grown = np.where(grown < 0, np.maximum(value[1:], 0.0), grown)
    if series.source.holds_s and series.source.interval_s:
        time, grown = _without_pauses(time, grown, series.source.interval_s * 1e9)
    sums = np.concatenate(([0.0], np.cumsum(grown)))
    if len(time) < 2:
        return np.full(len(edges) - 1, np.nan)
    at = np.interp(edges, time, sums)
    gap = np.diff(time) > series.held_ns
    silent: Floats = np.where(gap, np.diff(time).astype(np.float64), 0.0)
    untold: Floats = np.interp(edges, time, np.concatenate(([0.0], np.cumsum(silent))))
    covered = np.diff(np.clip(edges, time[0], time[-1])).astype(np.float64) - np.diff(untold)
    length = np.diff(edges).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(covered >= length / 2, np.diff(at) / covered * 1e9, np.nan)


def _without_pauses(time: Ints, grown: Floats, interval_ns: float) -> tuple[Ints, Floats]:
    """Insert values that were not repeated: they did not change until one interval before the next."""
    late = np.flatnonzero(np.diff(time) > 1.5 * interval_ns)
    stays = time[late + 1] - int(interval_ns)
    return np.insert(time, late + 1, stays), np.insert(grown, late, 0.0)


class Readings:
    """All series of some measures, by the ranks that they are tied to."""

    def __init__(
        self, evidence: EvidenceFile, joins: Joins, names: Collection[str], own: Iterable[tuple[int, Series]]
    ) -> None:
        """`own` has the job's own series, each with its rank."""
        self._of: dict[tuple[str, int], list[Series]] = {}
        for rank, series in own:
            if series.name in names:
                self._of.setdefault((series.name, rank), []).append(series)
        for series, ranks in _all_series(evidence, joins, names):
            for rank in ranks:
                self._of.setdefault((series.name, rank), []).append(series)

    def of(self, name: str, rank: int, texts: re.Pattern[str] | None = None) -> list[Series]:
        """Return the rank's series from the most trusted source, and of equals the one that reads most often."""
        found = self._of.get((name, rank), [])
        if texts is not None:
            found = [one for one in found if one.text is not None and texts.match(one.text)]
        if not found:
            return []
        best = min(found, key=_trust)
        return [one for one in found if one.source is best.source and one.joined_by == best.joined_by]

    def all_of(self, rank: int) -> list[Series]:
        """Return every series of a rank, of any measure."""
        return [one for (_, of), series in self._of.items() if of == rank for one in series]

    def tells(self, name: str, ranks: Iterable[int]) -> bool:
        """Return whether any of these ranks has the measure, with any text."""
        return any((name, rank) in self._of for rank in ranks)


def _trust(series: Series) -> tuple[int, float]:
    return TRUST.index(series.joined_by), series.source.interval_s or np.inf


def _all_series(
    evidence: EvidenceFile, joins: Joins, names: Collection[str]
) -> Iterable[tuple[Series, tuple[int, ...]]]:
    if not len(evidence.table):
        return
    import polars as pl

    frame = frame_of(evidence.table)
    counters = [name for name in names if MEASURES[name].kind == "counter"]
    frame = frame.filter(pl.col("name").cast(pl.String).is_in(list(names)) & pl.col("value").is_finite())
    by_text = pl.when(pl.col("name").cast(pl.String).is_in(counters)).then(pl.col("text").cast(pl.String))
    keys = ("name", "entity", "host", "rank", "source", "of_text")
    parts = frame.with_columns(
        by_text.otherwise(None).alias("of_text"), pl.col("name", "entity", "host").cast(pl.String)
    )
    for (name, entity, host, rank, source, text), rows in parts.sort("time_ns").group_by(keys, maintain_order=True):
        ranks, joined_by = joins.ranks_of(host, str(entity), rank)
        if joined_by is None:
            continue
        time, last = np.unique(rows["time_ns"].to_numpy()[::-1], return_index=True)
        value = rows["value"].to_numpy()[::-1][last]
        raw = rows["raw"].cast(pl.String)[-1]
        of = evidence.sources[int(source)]
        yield Series(str(name), str(entity), host, text, of, joined_by, time.astype(np.int64), value, raw), ranks


def combined(series: Sequence[Series], edges_ns: Ints, how: Combined) -> Floats:
    """Combine several series of one measure into (windows,); NaN where none is known."""
    values = np.array([one.over(edges_ns) for one in series])
    known = ~np.isnan(values)
    if how == "sum":
        return np.where(known.any(axis=0), np.where(known, values, 0.0).sum(axis=0), np.nan)
    worst = np.where(known, values, np.inf if how == "least" else -np.inf)
    chosen = worst.min(axis=0) if how == "least" else worst.max(axis=0)
    return np.where(known.any(axis=0), chosen, np.nan)


@dataclass(frozen=True)
class Event:
    """An event on one thing."""

    name: str
    entity: str
    host: str | None
    time_ns: int
    value: float | None
    text: str | None
    raw: str | None
    source: EvidenceSource
    ranks: tuple[int, ...]
    joined_by: JoinedBy | None


def events_of(evidence: EvidenceFile, joins: Joins, names: Collection[str]) -> list[Event]:
    """Return all events of these names that are tied to a rank, in order of time."""
    if not len(evidence.table):
        return []
    events = (event_of(row, evidence, joins) for row in rows_of(evidence, names).iter_rows(named=True))
    return [one for one in events if one.joined_by is not None]


def rows_of(evidence: EvidenceFile, names: Collection[str]) -> "pl.DataFrame":
    """Return all rows of these names, with categorical columns as strings."""
    import polars as pl

    chosen = frame_of(evidence.table).filter(pl.col("name").cast(pl.String).is_in(list(names)))
    return chosen.with_columns(pl.col("host", "entity", "name", "text", "raw").cast(pl.String))


def event_of(row: Mapping[str, Any], evidence: EvidenceFile, joins: Joins) -> Event:
    """Return the event of one row of evidence."""
    own = {name: row[name] for name in ("name", "entity", "host", "time_ns", "value", "text", "raw")}
    ranks, joined_by = joins.ranks_of(row["host"], row["entity"], row["rank"])
    return Event(**own, source=evidence.sources[row["source"]], ranks=ranks, joined_by=joined_by)


def by_rank(values: Mapping[int, Floats], ranks: Sequence[int], windows: int) -> Floats:
    """Return (ranks × windows); NaN for ranks without values."""
    return np.array([values.get(rank, np.full(windows, np.nan)) for rank in ranks]).reshape(len(ranks), windows)
