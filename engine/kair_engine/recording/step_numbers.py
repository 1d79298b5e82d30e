"""Ranks that number their steps otherwise than the job: seen by time, since ranks of one host share a clock.

A rank that counts one later, after a restart or a warm-up of its own, would look a whole step late.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from kair_engine.trace.model import KairWarning, StepTimes
from kair_engine.trace.warning_texts import listed, short_warning

_AT_ONCE: Final = 0.5
"""Of a step: two ranks that run so much of it at one time run the same step."""
_AGREEING: Final = 0.9
"""Share of a rank's steps that must be off by the same number."""
_FEWEST: Final = 2
_LOOKED_AT: Final = 50

_Span = tuple[int, int, int]
"""Begin, end and number of a step."""


def counted_differently(times: StepTimes, hosts: Mapping[int, str]) -> dict[int, int]:
    """rank → by how much its steps' numbers exceed those that most ranks of its host give the same steps."""
    spans: dict[int, list[_Span]] = defaultdict(list)
    for rank, step, begin, duration in zip(times.rank, times.step, times.begin_ns, times.duration_ns, strict=True):
        spans[rank].append((begin, begin + duration, step))
    of_host: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(spans):
        if rank in hosts:
            of_host[hosts[rank]].append(rank)
    return {rank: more for ranks in of_host.values() for rank, more in _off(ranks, spans).items()}


def renumbered(times: StepTimes, more: Mapping[int, int]) -> StepTimes:
    """The times with the steps' common numbers."""
    steps = tuple(step - more.get(rank, 0) for rank, step in zip(times.rank, times.step, strict=True))
    return replace(times, step=steps)


def renumbering_warnings(more: Mapping[int, int]) -> list[KairWarning]:
    """That ranks were renumbered."""
    by_number: dict[int, list[int]] = defaultdict(list)
    for rank, number in more.items():
        by_number[number].append(rank)
    return [
        short_warning(
            "steps_counted_differently",
            f"rank {listed(ranks)}: steps are numbered {abs(number)} {'higher' if number > 0 else 'lower'} than on "
            "the same host's other ranks, which run them at the same time; matched by time",
        )
        for number, ranks in sorted(by_number.items())
    ]


def _off(ranks: Sequence[int], spans: Mapping[int, Sequence[_Span]]) -> dict[int, int]:
    """The ranks of one host that are not numbered as most are."""
    first = sorted(spans[ranks[0]])
    found = {rank: off for rank in ranks if (off := _difference(sorted(spans[rank])[:_LOOKED_AT], first)) is not None}
    if not found:
        return {}
    usual = Counter(found.values()).most_common(1)[0][0]
    return {rank: off - usual for rank, off in found.items() if off != usual}


def _difference(steps: Sequence[_Span], others: Sequence[_Span]) -> int | None:
    """How much higher numbers are in `steps` than in `others` of the same time; None where that is not one number."""
    begins = [begin for begin, _, _ in others]
    seen: Counter[int] = Counter()
    for begin, end, step in steps:
        at = bisect_right(begins, begin)
        for other_begin, other_end, other in others[max(at - 1, 0) : at + 1]:
            together = min(end, other_end) - max(begin, other_begin)
            if together > _AT_ONCE * max(end - begin, other_end - other_begin):
                seen[step - other] += 1
    if not seen:
        return None
    off, often = seen.most_common(1)[0]
    return off if often >= _FEWEST and often >= _AGREEING * seen.total() else None
