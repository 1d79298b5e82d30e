"""When recordings were made, by their own clocks: spans of a begin and an end, in ns."""

from collections.abc import Sequence

from kair_engine.trace.model import StepTimes

Span = tuple[int, int]


def span_of(times: StepTimes) -> Span:
    """From the first begin of a step to the last end; (0, 0) without steps."""
    ends = (begin + length for begin, length in zip(times.begin_ns, times.duration_ns, strict=True))
    return min(times.begin_ns, default=0), max(ends, default=0)


def overlap(one: Span, other: Span) -> bool:
    """Whether there is a time that is in both."""
    return max(one[0], other[0]) < min(one[1], other[1])


def at_one_time(spans: Sequence[Span]) -> list[int]:
    """Per span a number, equal for those that overlap, directly or by way of others."""
    found, number, until = [0] * len(spans), -1, 0
    for at in sorted(range(len(spans)), key=lambda at: spans[at]):
        begin, end = spans[at]
        if number < 0 or begin >= until:
            number, until = number + 1, end
        found[at], until = number, max(until, end)
    return found
