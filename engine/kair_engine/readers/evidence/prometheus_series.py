"""Collects samples of metrics by series and turns them into evidence: units, blanks, sums of parts, events.

A counter's values are kept, resets included. A sum of parts grows by the growth of each part; a part that was reset
grew by its new value.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Final

import numpy as np
import pyarrow as pa

from kair_engine.arrays import Floats, Ints
from kair_engine.readers.evidence.prometheus_names import (
    HOST_NAMES,
    MACHINE_LABELS,
    NAMES,
    PAGE_BYTES,
    REPLICA_LABELS,
    Meaning,
    Place,
    device_names,
    entity_of,
    is_blank,
    meaning_of,
    place_of,
)
from kair_engine.trace.evidence_table import SCHEMA, EvidenceFile, NamedDevice, described
from kair_engine.trace.measures import MEASURES, EvidenceSource, shown

_LATEST: Final = 1 << 62
_FULL_TIME: Final = 1.05
"""Seconds that a counter of time may grow per second: 5 % more, because sample times are inexact."""
_MICROSECONDS: Final = 1e-6
_NANOSECONDS: Final = 1e-9


@dataclass
class Series:
    """The samples of one series, in their order of arrival."""

    metric: str
    meaning: Meaning
    entity: str
    place: Place
    part: tuple[str, ...]
    """Key of the part of the entity that it describes."""
    text: str
    """The label's value, for states and counted codes."""
    raw: str
    machine: tuple[str, ...] = ()
    """Values of MACHINE_LABELS."""
    times: "array[int]" = field(default_factory=lambda: array("q"))
    values: "array[float]" = field(default_factory=lambda: array("d"))

    def add(self, time_ns: int, value: float) -> bool:
        """Add a sample; return whether its value is valid."""
        if is_blank(value, self.meaning.of, self.metric) or not 0 < time_ns < _LATEST:
            return False
        if self.meaning.measure == "nic_speed" and value <= 0:  # 0 means that the speed is not known
            return False
        self.times.append(time_ns)
        self.values.append(value)
        return True


_Target = tuple[str, str, Place]
"""Measure, entity, host."""


@dataclass
class _Rows:
    """Rows of one target, in order of time."""

    times: Ints
    values: Floats | None
    texts: Sequence[str] | None
    raw: str


class Samples:
    """Collects series; `evidence` turns them into rows."""

    def __init__(self) -> None:
        self._series: dict[tuple[object, ...], Series] = {}
        self._devices: dict[tuple[str, Place], tuple[str | None, int | None]] = {}
        self._host_names: dict[str, str] = {}
        self._lone_host_names: set[str] = set()
        self.passed_over = 0
        """Number of samples without a known meaning."""

    def series(self, metric: str, labels: Mapping[str, str], raw: str) -> Series | None:
        """Return the series of a metric with these labels; None if its meaning is not known."""
        if metric == HOST_NAMES and labels.get("nodename"):
            address = place_of({"instance": labels.get("instance", "")}).instance
            if address is None:
                self._lone_host_names.add(labels["nodename"])
            else:
                self._host_names[address] = labels["nodename"]
            return None
        meaning = meaning_of(metric, labels)
        entity = None if meaning is None else entity_of(meaning.of, labels)
        if meaning is None or entity is None:
            return None
        part = (metric, *(labels.get(name, "") for name in meaning.parts))
        text = labels.get(meaning.states, "") if isinstance(meaning.states, str) else ""
        text = labels.get("xid", "") if meaning.form == "codes" else text
        place = place_of(labels)
        if meaning.of == "gpu":
            self._devices[entity, place] = device_names(labels)
        if meaning.form == "state":
            part += (labels.get("cpu", ""), text)
        machine = tuple(labels.get(name, "") for name in MACHINE_LABELS)
        key = (meaning.measure, entity, place, part, machine, *(labels.get(name) for name in REPLICA_LABELS))
        # Other labels may change over time, as those of pods do, without starting another series.
        return self._series.setdefault(key, Series(metric, meaning, entity, place, part, text, raw, machine))

    @property
    def is_empty(self) -> bool:
        """Return whether no sample had a known meaning."""
        return not any(len(one.times) for one in self._series.values())

    def evidence(self, source: EvidenceSource) -> EvidenceFile:
        """Return all rows, and `source` with its interval, notes, and the events that it would have shown."""
        series = [one for one in self._series.values() if len(one.times)]
        notes = list(source.notes)
        series = self._with_units(series, notes)
        targets, doubts = self._targets(series)
        begins = _begins(targets)
        found = [(target, _rows(target, of_target, begins)) for target, of_target in targets.items()]
        source = replace(
            source,
            interval_s=_interval(found) if source.interval_s is None else source.interval_s,
            passed_over=source.passed_over + self.passed_over,
            notes=(*notes, *_notes(targets), *doubts),
            doubts=(*source.doubts, *doubts),
            observes=tuple(sorted({*source.observes, *_observed(targets)})),
            hosts=tuple(sorted({host for _, _, place in targets if (host := _host(place)) is not None})),
        )
        devices = {
            NamedDevice(shown(entity), _host(self._named(place)), *names): None
            for (entity, place), names in self._devices.items()
        }
        of_rows = described(_table([(target, rows) for target, rows in found if len(rows.times)]), source)
        return replace(of_rows, devices=tuple(devices))

    def _named(self, place: Place) -> Place:
        """Return the place with node_exporter's name for its address; a scrape without addresses has one name."""
        if place.host is not None:
            return Place(place.host, None)
        named = self._host_names.get(place.instance or "")
        if named is None and place.instance is None and len(self._lone_host_names) == 1:
            (named,) = self._lone_host_names
        return Place(named, None) if named is not None else place

    def _targets(self, series: Sequence[Series]) -> tuple[dict[_Target, list[Series]], list[str]]:
        """Return the series of each target, each part once, and doubts about host names that two machines share.

        Series of shared names are left out, because the job's cannot be recognised. A UUID is unique whatever the
        host's name.
        """
        copies: dict[_Target, dict[tuple[str, ...], list[Series]]] = {}
        for one in series:
            target = (one.meaning.measure, one.entity, self._named(one.place))
            copies.setdefault(target, {}).setdefault(one.part, []).append(one)
        apart = self._told_apart(series)
        targets: dict[_Target, list[Series]] = {}
        several: dict[str, set[str]] = {}
        for target, parts in copies.items():
            of_all = [one for of_part in parts.values() for one in of_part]
            how = {apart[place] for place in (target[2], *(one.place for one in of_all)) if place in apart}
            if target[1].startswith("gpu:"):
                how = set()
            if not how and not any(_contradict(of_part) for of_part in parts.values()):
                targets[target] = [_one_of(of_part) for of_part in parts.values()]
                continue
            several.setdefault(min(how, default=""), set()).add(_host(target[2]) or "a host")
            self.passed_over += sum(len(one.times) for one in of_all)
        return targets, [_doubt(how, sorted(hosts)) for how, hosts in several.items()]

    def _told_apart(self, series: Sequence[Series]) -> dict[Place, str]:
        """Return the places whose labels name several machines → those labels, in words."""
        values: dict[tuple[Place, str], set[str]] = {}
        for one in series:
            for label, value in zip(MACHINE_LABELS, one.machine, strict=True):
                for place in (one.place, self._named(one.place)):
                    values.setdefault((place, label), set()).add(value)
        several = ((place, label, sorted(of - {""})) for (place, label), of in values.items())
        return {place: f" ({label} {' and '.join(of)})" for place, label, of in several if len(of) > 1}

    def _with_units(self, series: list[Series], notes: list[str]) -> list[Series]:
        """Drop counters that grow impossibly fast: no device is throttled for more than all of the time.

        DCGM's header and measurements (NVIDIA/DCGM#266) say nanoseconds; help texts of older dcgm-exporters wrongly say
        microseconds. Slow growth fits both units, and a wrong guess of microseconds would be off by a thousand: they
        are never assumed.
        """
        growth = {id(one): _growth_per_s(one) for one in series if one.meaning.unit_in_doubt}
        impossible = {key for key, most in growth.items() if most * _NANOSECONDS > _FULL_TIME}
        if impossible:
            notes.append("counters of *_VIOLATION that grow faster than time were left out")
            self.passed_over += sum(len(one.times) for one in series if id(one) in impossible)
        most = max((most for key, most in growth.items() if key not in impossible), default=0.0)
        if 0 < most * _MICROSECONDS <= _FULL_TIME:
            notes.append(
                "counters of *_VIOLATION were read in nanoseconds, as DCGM documents them; they grow so slowly that "
                "they could be microseconds"
            )
        return [one for one in series if id(one) not in impossible]


def _growth_per_s(one: Series) -> float:
    """Return the fastest growth of a counter per second between two samples; 0 with fewer than two."""
    times, values = _merged([one])
    grew = np.diff(values)
    per_s = grew / (np.diff(times) / 1e9)
    return float(per_s[grew > 0].max(initial=0.0))


def _merged(series: Sequence[Series]) -> tuple[Ints, Floats]:
    """Merge copies of one series in order of time; for equal times the last sample counts."""
    times = np.concatenate([np.frombuffer(one.times, np.int64) for one in series])
    values = np.concatenate([np.frombuffer(one.values, np.float64) for one in series])
    if len(times) > 1 and not (np.diff(times) > 0).all():
        order = np.argsort(times, kind="stable")
        times, values = times[order], values[order]
        is_last = np.append(np.diff(times) > 0, True)
        times, values = times[is_last], values[is_last]
    return times, values


def _doubt(how: str, hosts: Sequence[str]) -> str:
    """Return the doubt about host names that several machines share."""
    more = f" and {len(hosts) - _NAMED} more" if len(hosts) > _NAMED else ""
    names = ", ".join(hosts[:_NAMED]) + more
    return (
        f"{names}: several machines have this name{shown(how) and ' ' + shown(how)}, and their readings were left out; "
        "ask for those of the job's cluster alone"
    )


_NAMED: Final = 3
"""Hosts that a message names."""
_FEWEST_TOLD: Final = 3
"""Samples in common time needed to compare two series."""
_FAR: Final = 0.1
"""Share of a gauge's value by which readings must differ to be from two machines."""


def _contradict(copies: Sequence[Series]) -> bool:
    """Return whether copies of one series have values that one machine cannot have, while both were read.

    Counters may differ by their growth between two samples, because servers scrape at different moments.
    """
    (times, values), *others = sorted(map(_merged, ([one] for one in copies)), key=lambda one: -len(one[0]))
    is_counter = MEASURES[copies[0].meaning.measure].kind == "counter"
    for more, other in others:
        at = (more >= times[0]) & (more <= times[-1])
        if at.sum() < _FEWEST_TOLD:
            continue
        off = float(np.median(np.abs(other[at] - np.interp(more[at], times, values))))
        if is_counter:
            grew = max(float(np.abs(np.diff(one)).max(initial=0.0)) for one in (values, other))
            if off > 2 * grew:
                return True
        elif (other[at].min() > values.max() or other[at].max() < values.min()) and off > _FAR * np.abs(values).max():
            return True
    return False


def _one_of(copies: Sequence[Series]) -> Series:
    """Merge copies of one series from several servers or labels: the longest, with its gaps filled.

    A filled counter value is between its neighbours, so that two copies a moment apart do not look like a reset.
    """
    longest = max(copies, key=lambda one: len(one.times))
    times, values = _merged([longest])
    for one in copies:
        if one is longest:
            continue
        more, added = _merged([one])
        if more[-1] >= times[0] and more[0] <= times[-1]:
            at = np.searchsorted(times, more)
            before, behind = np.maximum(at - 1, 0), np.minimum(at, len(times) - 1)
            apart = np.minimum(np.abs(more - times[before]), np.abs(more - times[behind]))
            fills = apart > np.median(np.diff(times)) if len(times) > 1 else apart > 0
            if MEASURES[one.meaning.measure].kind == "counter":
                fills &= ((at == 0) | (added >= values[before])) & ((at == len(times)) | (added <= values[behind]))
            more, added = more[fills], added[fills]
        order = np.argsort(np.concatenate([times, more]), kind="stable")
        times, values = np.concatenate([times, more])[order], np.concatenate([values, added])[order]
    return replace(longest, times=array("q", times.tolist()), values=array("d", values.tolist()))


def _begins(targets: Mapping[_Target, Sequence[Series]]) -> dict[Place, int]:
    """Return host → time of its first sample."""
    begins: dict[Place, int] = {}
    for (_, _, place), series in targets.items():
        first = min(min(one.times) for one in series)
        begins[place] = min(first, begins.get(place, first))
    return begins


def _rows(target: _Target, series: Sequence[Series], begins: Mapping[Place, int]) -> _Rows:
    """Return the rows of the series of one measure of one entity."""
    preferred = [one for one in series if not one.meaning.instead] or series
    meaning = preferred[0].meaning
    raw = preferred[0].raw
    if meaning.form == "state":
        return _states(preferred)
    if meaning.form == "codes":
        return _codes(preferred, begins[target[2]])
    if meaning.form in ("sum", "mean"):
        return _together(preferred)
    times, values = _merged(preferred)
    if meaning.form == "last code":
        # The value persists after its event, so only a change is one; the first sample has no known time.
        is_new = np.append(False, np.diff(values) != 0)[: len(values)] & (values != 0)
        return _Rows(times[is_new], values[is_new], None, raw)
    if meaning.form == "growth":
        grew = _grown(values)
        return _Rows(times[grew > 0], grew[grew > 0], None, raw)
    return _Rows(times, values * meaning.factor, None, raw)


def _grown(values: Floats) -> Floats:
    """Return (values,) growth of a counter up to each sample; a counter that decreased restarted at 0."""
    grew = np.diff(values, prepend=values[:1])
    return np.where(grew < 0, values, grew)


def _together(series: Sequence[Series]) -> _Rows:
    """Combine the parts of one entity: counters by their growth, gauges at times at which all parts have values."""
    meaning = series[0].meaning
    parts: dict[tuple[str, ...], list[Series]] = {}
    for one in series:
        parts.setdefault(one.part, []).append(one)
    merged = [_merged(of_part) for of_part in parts.values()]
    times = np.unique(np.concatenate([of_part for of_part, _ in merged]))
    total, count = np.zeros(len(times)), np.zeros(len(times), np.int64)
    for of_part, values in merged:
        if MEASURES[meaning.measure].kind == "counter":
            at = np.searchsorted(of_part, times, "right") - 1
            begun = values[0] if of_part[0] == times[0] else 0.0
            total += np.where(at >= 0, (begun + np.cumsum(_grown(values)))[at], 0.0)
            count += 1
        else:
            at = np.searchsorted(times, of_part)
            total[at] += values
            count[at] += 1
    if meaning.form == "mean":
        return _Rows(times, total / count * meaning.factor, None, series[0].raw)
    whole = count == len(merged)
    return _Rows(times[whole], total[whole] * meaning.factor, None, series[0].raw)


def _codes(series: Sequence[Series], begins: int) -> _Rows:
    """Return events of counts within a window: each rise of a code's count, and each count that appears later."""
    events: list[tuple[int, float]] = []
    for one in series:
        if not (one.text.isascii() and one.text.isdecimal() and 0 < int(one.text[:9]) <= 0xFFFF):
            continue
        times, values = _merged([one])
        rise = np.diff(values, prepend=0.0 if times[0] > begins else values[:1])
        events += [(int(at), float(one.text)) for at in times[rise > 0]]
    events.sort()
    return _Rows(
        np.array([at for at, _ in events], np.int64), np.array([code for _, code in events]), None, series[0].raw
    )


def _states(series: Sequence[Series]) -> _Rows:
    """Return the current texts at each time, joined if parts differ."""
    states = series[0].meaning.states
    at: dict[int, set[str]] = {}
    for one in series:
        for time, value in zip(*_merged([one]), strict=True):
            text = (one.text if value == 1 else "") if isinstance(states, str) else states.get(int(value), "")
            if text:
                at.setdefault(int(time), set()).add(text)
    times = sorted(at)
    return _Rows(np.array(times, np.int64), None, [", ".join(sorted(at[time])) for time in times], series[0].raw)


def _interval(found: Sequence[tuple[_Target, _Rows]]) -> float | None:
    """Return the time between readings (s), the median of the series' medians; None if no series has two readings."""
    medians = [
        float(np.median(np.diff(rows.times))) / 1e9
        for (measure, _, _), rows in found
        if MEASURES[measure].kind != "event" and len(rows.times) > 1
    ]
    return float(np.median(medians)) if medians else None


def _observed(targets: Mapping[_Target, Sequence[Series]]) -> Iterator[str]:
    """Yield the events whose series have at least two samples."""
    for (measure, _, _), series in targets.items():
        if MEASURES[measure].kind == "event" and any(len(set(one.times)) > 1 for one in series):
            yield measure


def _notes(targets: Mapping[_Target, Sequence[Series]]) -> Iterator[str]:
    if any(one.meaning.factor == PAGE_BYTES for series in targets.values() for one in series):
        yield f"pages swapped in and out were taken as {PAGE_BYTES} bytes each"
    places = {place for _, _, place in targets}
    if any(place.host is None and _is_address(place.instance) for place in places):
        yield "hosts are known by address alone: their rows join a rank by its device, or by a host of that name"
    if any(place.host is None and place.instance is None for place in places):
        yield "it does not name its host"


def _is_address(text: str | None) -> bool:
    try:
        ip_address(text or "")
    except ValueError:
        return False
    return True


def _table(found: Sequence[tuple[_Target, _Rows]]) -> pa.Table:
    """Return the rows as a table of SCHEMA in order of time, without a loop over rows."""
    if not found:
        return SCHEMA.empty_table()
    counts = np.array([len(rows.times) for _, rows in found])
    times = np.concatenate([rows.times for _, rows in found])
    order = np.argsort(times, kind="stable")

    def repeated(of_each: Sequence[str | None]) -> pa.Array:
        entries = {text: at for at, text in enumerate(dict.fromkeys(text for text in of_each if text is not None))}
        codes = np.array([-1 if text is None else entries[text] for text in of_each], np.int32)
        of_rows = np.repeat(codes, counts)[order]
        return pa.DictionaryArray.from_arrays(pa.array(of_rows, mask=of_rows < 0), pa.array(list(entries), pa.string()))

    values = np.concatenate(
        [np.full(len(rows.times), np.nan) if rows.values is None else rows.values for _, rows in found]
    )[order]
    texts: list[str | None] = []
    if any(rows.texts for _, rows in found):
        column: list[str | None] = []
        for _, rows in found:
            column += rows.texts or [None] * len(rows.times)
        texts = [column[at] for at in order]
    columns = {
        "time_ns": pa.array(times[order]),
        "host": repeated([_host(place) for (_, _, place), _ in found]),
        "entity": repeated([shown(entity) for (_, entity, _), _ in found]),
        "rank": pa.nulls(len(times), pa.int32()),
        "source": pa.array(np.zeros(len(times), np.int32)),
        "name": repeated([measure for (measure, _, _), _ in found]),
        "value": pa.array(values, mask=np.isnan(values)),
        "text": _texts(texts or [None] * len(times)),
        "raw": repeated([shown(rows.raw) for _, rows in found]),
    }
    return pa.table(columns, schema=SCHEMA)


def _texts(texts: Sequence[str | None]) -> pa.Array:
    return pa.array([None if text is None else shown(text) for text in texts], SCHEMA.field("text").type)


def _host(place: Place) -> str | None:
    name = place.host or place.instance
    return shown(name) if name else None


METRICS: Final = (*NAMES, HOST_NAMES)
"""All metrics to query."""
