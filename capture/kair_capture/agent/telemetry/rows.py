"""Collects readings for a file of evidence: unchanged values are written rarely, and rows wait in memory.

A row holds until the next of its series. An unchanged one is repeated every HEARTBEAT_S: a longer gap means that
nothing was read.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from kair_engine.trace.evidence_table import SCHEMA, EvidenceFile
from kair_engine.trace.measures import MEASURES, EvidenceSource, shown

HEARTBEAT_S: Final = 30.0
MOST_ROWS: Final = 200_000
"""Most waiting rows, 20 MB; the oldest are dropped if none are taken."""
_GAP: Final = 3
"""Intervals without a look that count as a gap, as in the engine's `described`."""


class Series:
    """The readings of one measure of one entity."""

    __slots__ = ("entity", "last", "name", "pace", "rank", "text", "written_ns")

    def __init__(self, entity: str, name: str, pace: int, rank: int | None = None, *, text: str | None = None) -> None:
        """`pace` is its index among the reader's paces; `text` labels a counter that counts by a text.

        Raises KeyError for a name that MEASURES does not have.
        """
        MEASURES[name]
        self.entity: Final = shown(entity)
        self.name: Final = name
        self.pace: Final = pace
        self.rank: Final = rank
        self.text: Final = None if text is None else shown(text)
        self.last: float | str | None = None
        self.written_ns = 0


class Rows:
    """Rows of all series of one host. Several threads may add at once."""

    def __init__(self, host: str, paces: Sequence[float]) -> None:
        """`paces` has the seconds between looks, by kind of series."""
        self._host = shown(host)
        self._paces = tuple(paces)
        self._rows: deque[tuple[int, Series, float | str]] = deque(maxlen=MOST_ROWS)
        self._series: dict[tuple[str, str, int | None], Series] = {}
        self._looks: list[list[int]] = [[] for _ in paces]
        """pace → when something of it was read (Unix ns)."""

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, series: Series, time_ns: int, value: float | str | None) -> None:
        """Add a reading; None and repetitions of a recent one are skipped."""
        if value is None or (value == series.last and time_ns - series.written_ns < HEARTBEAT_S * 1e9):
            return
        series.last, series.written_ns = value, time_ns
        self._rows.append((time_ns, series, value))

    def note(  # noqa: PLR0917  (a reading, in the order of its parts)
        self, entity: str, name: str, pace: int, time_ns: int, value: float | str | None, rank: int | None = None
    ) -> None:
        """Add a reading of a series identified by its parts."""
        if value is not None:
            key = (entity, name, rank)
            if key not in self._series:
                self._series[key] = Series(entity, name, pace, rank)
            self.add(self._series[key], time_ns, value)

    def looked(self, pace: int, time_ns: int) -> None:
        """Note that something of this pace was read."""
        looks = self._looks[pace]
        if not looks or time_ns != looks[-1]:
            looks.append(time_ns)

    def take(self, notes: tuple[str, ...], stretched: float = 1.0) -> EvidenceFile | None:
        """Return and remove the waiting rows; None if there are none waiting.

        `stretched` is the factor on the time between looks. Each pace becomes a source, whose interval also bounds its
        times.
        """
        rows = [self._rows.popleft() for _ in range(len(self._rows))]
        looks, self._looks = self._looks, [looks[-1:] for looks in self._looks]
        if not rows:
            return None
        used = sorted({series.pace for _, series, _ in rows})
        sources = [self._source(pace, looks[pace], notes, stretched) for pace in used]
        place = {pace: number for number, pace in enumerate(used)}
        table = self._table(rows, place)
        counts = np.bincount(table["source"].to_numpy(), minlength=len(used))
        counted = tuple(replace(one, rows=int(count)) for one, count in zip(sources, counts, strict=True))
        return EvidenceFile(table, counted)

    def _source(self, pace: int, looks: list[int], notes: tuple[str, ...], stretched: float) -> EvidenceSource:
        interval = self._paces[pace] * stretched
        apart = [(after - before) / 1e9 for before, after in pairwise(looks)]
        gaps = [one for one in apart if one > _GAP * interval]
        return EvidenceSource(
            name=f"capture, every {self._paces[pace]:g} s",
            kind="capture",
            clock="host",
            bound_s=interval,
            interval_s=interval,
            holds_s=HEARTBEAT_S + 2 * interval,
            hosts=(self._host,),
            first_ns=looks[0] if looks else None,
            last_ns=looks[-1] if looks else None,
            gaps=len(gaps),
            longest_gap_s=max(gaps, default=0.0),
            notes=notes,
        )

    def _table(self, rows: list[tuple[int, Series, float | str]], place: dict[int, int]) -> pa.Table:
        of = [series for _, series, _ in rows]
        columns = {
            "time_ns": pa.array([time for time, _, _ in rows], pa.int64()),
            "host": _encoded([self._host] * len(rows)),
            "entity": _encoded([one.entity for one in of]),
            "rank": pa.array([one.rank for one in of], pa.int32()),
            "source": pa.array([place[one.pace] for one in of], pa.int32()),
            "name": _encoded([one.name for one in of]),
            "value": pa.array([None if isinstance(value, str) else value for *_, value in rows], pa.float64()),
            "text": _encoded([shown(value) if isinstance(value, str) else one.text for _, one, value in rows]),
            "raw": _encoded([None] * len(rows)),
        }
        return pa.table(columns, schema=SCHEMA).sort_by("time_ns")


def _encoded(texts: Sequence[str | None]) -> pa.Array:
    return pa.array(texts, pa.string()).dictionary_encode()
