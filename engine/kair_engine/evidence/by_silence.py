"""Decides whether the telemetry of a rank's device or host stops during the finding while that of its peers goes on."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from kair_engine.arrays import Ints
from kair_engine.evidence.case import AROUND_NS, LEVEL, Case, device_in_words
from kair_engine.evidence.series import Series
from kair_engine.frozen import dataclass
from kair_engine.results.evidence import Explanation

FEWEST_READINGS: Final = 10
"""Readings needed before the stop: with fewer the usual interval is not known."""
INTERVALS: Final = 5
"""A silence is longer than this many median intervals."""
SHORTEST_NS: Final = 10 * 10**9
"""Shortest silence (10 s), however often the source reads."""
FEWEST_PEERS: Final = 2
"""Peers whose readings must go on."""
EARLIER_NS: Final = 60 * 10**9
"""Telemetry may stop this long before the finding begins, since a sampler fails together with its device."""


@dataclass(frozen=True)
class _Silence:
    """A time without readings: from the last reading before it to the next one, or to the peers' end."""

    begin_ns: int
    end_ns: int
    least_ns: float
    """A longer gap (ns) is more than a few late readings."""
    series: Series
    peers: Sequence[Ints]
    """Times of the readings of each peer (Unix ns)."""


def by_silence(case: Case) -> Explanation | None:
    """Return the longest silence of the rank's telemetry; None for other parts, or if no regular series stops."""
    if not case.part.vanishes:
        return None
    own = case.readings.all_of(case.rank)
    found = [one for series in own if (one := _silence(case, series, own)) is not None]
    if not found:
        return None
    longest = max(found, key=lambda one: (one.end_ns - one.begin_ns, one.series.name))
    series = longest.series
    # A source that stops now and then on any rank proves nothing by one stop.
    ends = [max(longest.end_ns, int(times[-1])) for times in longest.peers]
    pauses = [np.diff(times, append=end) for times, end in zip(longest.peers, ends, strict=True)]
    alike = sum(bool((one > longest.least_ns).any()) for one in pauses)
    bound = series.source.bound_s
    return replace(
        case.blank(),
        word="seen" if alike > LEVEL * len(pauses) else "consistent",
        entity=series.entity,
        device=device_in_words(series),
        text=f"no reading in {series.source.name} for {(longest.end_ns - longest.begin_ns) / 1e9:,.0f} s, where it was "
        "read regularly before",
        at_ns=longest.begin_ns,
        bound_ns=None if bound is None else int(bound * 1e9),
        joined_by=series.joined_by,
        fired=alike,
        tried=len(pauses),
        sources=(series.source.name,),
        proofs=(series.raw,) if series.raw else (),
    )


def _silence(case: Case, series: Series, own: Sequence[Series]) -> _Silence | None:
    """Return the first silence of a series, if it begins during the finding and the source reads nothing else
    meanwhile.
    """
    times = series.time_ns
    # The job's own measurements end with its steps, and a source that reports only changes may be silent for long.
    if series.length_ns is not None or series.source.holds_s or len(times) < FEWEST_READINGS:
        return None
    least = max(INTERVALS * float(np.median(np.diff(times))), SHORTEST_NS)
    course, onset = case.known.course, case.onset_ns()
    begin, end = int(course.begin_ns.min()), int(course.end_ns.max())
    if case.finding.cause == "hang":
        begin, end = end - EARLIER_NS, end + AROUND_NS
    elif onset is not None:
        begin = onset - EARLIER_NS
    if int(times[-1]) + least > end and np.diff(times).max() <= least:
        return None
    peers = _peers(case, series)
    if len(peers) < FEWEST_PEERS:
        return None
    end = min(end, sorted(int(of[-1]) for of in peers)[len(peers) // 2])
    # Treat the end as one more reading.
    readings = np.append(times[times < end], end)
    at = np.flatnonzero(np.diff(readings) > least)
    if not len(at) or at[0] < FEWEST_READINGS - 1 or readings[at[0]] < begin:
        return None
    begin, end = int(readings[at[0]]), int(readings[at[0] + 1])
    same = (one.time_ns for one in own if (one.source, one.entity) == (series.source, series.entity))
    goes_on = any(bool(((of > begin) & (of < end)).any()) for of in same)
    return None if goes_on else _Silence(begin, end, least, series, peers)


def _peers(case: Case, series: Series) -> list[Ints]:
    """Return when the same measure was read on each healthy rank, except from the very thing that fell silent."""
    found = (case.readings.of(series.name, rank) for rank in case.innocents())
    of_others = ([one for one in of if (one.host, one.entity) != (series.host, series.entity)] for of in found)
    return [of[0].time_ns for of in of_others if of and len(of[0].time_ns) >= FEWEST_READINGS]
