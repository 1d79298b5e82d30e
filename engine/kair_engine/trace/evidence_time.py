"""The time for which a job's evidence is read: telemetry of a day is mostly of other times."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kair_engine.frozen import dataclass
from kair_engine.trace.measures import EvidenceSource

AROUND_NS: Final = 720 * 10**9
"""Readings count from this long before the first step until this long after the last one: ten minutes, and two for
clocks of unknown error."""
READINGS: Final = 20
"""Number of readings of a slow source that count before and after: ten show that it was read regularly, five that it
stopped."""
FARTHEST_NS: Final = 7200 * 10**9
"""Readings farther off are skipped before the interval of their source is known; samplers read at least every 5 min."""
_MOST_NS: Final = (1 << 63) - 1


@dataclass(frozen=True)
class JobTime:
    """From the first to the last recorded step of a job, Unix ns."""

    begin_ns: int
    end_ns: int

    def widened(self, by_ns: int) -> "JobTime":
        """Return the time extended by `by_ns` before and after, within 64 bits."""
        return JobTime(max(self.begin_ns - by_ns, -_MOST_NS), min(self.end_ns + by_ns, _MOST_NS))

    def around(self, sources: Sequence[EvidenceSource]) -> "JobTime | None":
        """Return the time for which rows of these sources count; None if all rows count.

        All rows count for logs and lists, which have no interval, and for sources with doubtful times.
        """
        margins = [_margin_ns(one) for one in sources]
        known = [one for one in margins if one is not None]
        return self.widened(max(known)) if known and len(known) == len(margins) else None

    def meets(self, first_ns: int, last_ns: int) -> bool:
        """Return whether any time from `first_ns` to `last_ns` belongs to it."""
        return first_ns <= self.end_ns and last_ns >= self.begin_ns


def _margin_ns(source: EvidenceSource) -> int | None:
    if source.interval_s is None or source.clock == "unknown" or source.doubts:
        return None
    held_s = max(READINGS * source.interval_s, source.holds_s or 0.0)
    return AROUND_NS + int((held_s + (source.bound_s or 0.0)) * 1e9)


class Near:
    """Selects readings near a job's time while a file is read, and keeps the extent of the others.

    The first two times give the interval between readings. Twice the margin that it requires is near.
    """

    def __init__(self, when: JobTime | None) -> None:
        """With `when` None, all readings are near."""
        self._when, self._near = when, None if when is None else when.widened(FARTHEST_NS)
        self._first_ns: int | None = None
        self._knows_interval = when is None
        self._far: JobTime | None = None
        self.passed_over = 0
        """Number of skipped readings."""

    def has(self, time_ns: int) -> bool:
        """Return whether to keep readings of this time."""
        near = self.window(time_ns)
        if near is None or near.meets(time_ns, time_ns):
            return True
        self._extend(time_ns, time_ns)
        return False

    def window(self, time_ns: int) -> JobTime | None:
        """Return the times that are near, given that a reading has the time `time_ns`; None for all times."""
        if self._when is None or self._knows_interval:
            return self._near
        if self._first_ns is None:
            self._first_ns = time_ns
        elif time_ns != self._first_ns:
            self._knows_interval = True
            self._near = self._when.widened(2 * (AROUND_NS + READINGS * abs(time_ns - self._first_ns)))
        return self._near

    def pass_over(self, readings: int, first_ns: int, last_ns: int) -> None:
        """Count skipped readings of a series that reaches from `first_ns` to `last_ns`."""
        self.passed_over += readings
        self._extend(first_ns, last_ns)

    def with_far(self, source: EvidenceSource) -> EvidenceSource:
        """Return the source extended by the skipped readings."""
        if self._far is None:
            return source
        first = [one for one in (source.first_ns, self._far.begin_ns) if one is not None]
        last = [one for one in (source.last_ns, self._far.end_ns) if one is not None]
        return replace(source, first_ns=min(first), last_ns=max(last), rows=source.rows + self.passed_over)

    def _extend(self, first_ns: int, last_ns: int) -> None:
        far = self._far
        if far is None:
            self._far = JobTime(first_ns, last_ns)
        elif first_ns < far.begin_ns or last_ns > far.end_ns:
            self._far = JobTime(min(far.begin_ns, first_ns), max(far.end_ns, last_ns))
