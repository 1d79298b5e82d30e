"""The timeline in words: its headline, what runs under the cursor, and the names of what is drawn."""

from typing import Final

from kair_engine.results.timeline import TimelineKind, TimelineOperation, TimelineResult, TimelineRow
from kair_tui.render.text import short_name, spaced
from kair_tui.render.units import duration, plural, signed_duration

WORDS: Final[dict[TimelineKind, str]] = {
    "compute": "compute",
    "communication": "transfer",
    "waiting": "waiting",
    "input": "input",
    "host": "host gap",
    "rest": "launched",
    "unknown": "unmatched",
    "operation": "host op",
    "synchronisation": "sync",
}
NAME: Final = 40
"""Signs of an operator's name in a sentence."""
_WORTH_SAYING: Final = 0.05
"""Of its peers' time: an operation that differs by less takes as long as theirs."""


def timeline_headline(result: TimelineResult) -> str:
    """The delay, and who waited for it."""
    around = result.around
    one = around.operation
    name, when = short_name(one.operator, NAME), moment(one.begin_us)
    slow = f"idle before {name} {when}" if around.is_edge else f"{name} {when}: {takes(one)}"
    what = f"step {result.step}: rank {one.rank}, {slow}"
    if around.waited_in is None or around.late_rank is None:
        return what
    cause = f" ({spaced(around.cause)})" if around.cause not in (None, "unknown") else ""
    name = short_name(around.waited_in, NAME)
    return (
        f"{what}{cause}; ranks together then waited {duration(around.waited_us)} for rank {around.late_rank} in {name}"
    )


def moment(us: float) -> str:
    """`at 18.4 ms`; of what a host that runs ahead does, `5.39 ms before the step`."""
    return f"at {duration(us)}" if us >= 0 else f"{duration(-us)} before the step"


def takes(one: TimelineOperation) -> str:
    """How long an operation takes beside its peers, or is waited for: `23.9 ms instead of 4.08 ms`."""
    if one.waited_us is not None and one.late_us is not None:
        late = f"arrived {signed_duration(one.late_us)}" if abs(one.late_us) >= 1 else "arrived with the others"
        return f"{late}, waited {duration(one.waited_us)}, transfer {duration(one.own_us)}"
    if one.expected_us is None:
        return f"{duration(one.own_us)}, which no peer runs"
    idle = one.held_up_us - (one.expected_held_up_us or 0.0)
    if idle > max(one.excess_us or 0.0, _WORTH_SAYING * one.expected_us):
        return f"{duration(one.held_up_us)} idle before it, its peers {duration(one.expected_held_up_us or 0.0)}"
    if abs(one.excess_us or 0.0) <= max(_WORTH_SAYING * one.expected_us, 1.0):
        return f"{duration(one.own_us)}, as its peers"
    return f"{duration(one.own_us)} instead of {duration(one.expected_us)}"


def who(row: TimelineRow) -> str:
    """`rank 3`, or `rank 3 of 0-7`."""
    return f"rank {row.rank}" + (f" of {row.first_rank}-{row.last_rank}" if row.ranks > 1 else "")


def label(row: TimelineRow) -> str:
    """What stands before a row: the rank, of several the worst and which, or a thread or stream."""
    if row.lane is not None:
        return f"  {row.lane}"
    return str(row.rank) if row.ranks == 1 else f"{row.rank} of {row.first_rank}-{row.last_rank}"


def rows_in_words(result: TimelineResult) -> str:
    """`256 ranks, 8 a row, the worst shown`."""
    of_ranks = [row for row in result.rows if row.lane is None]
    ranks = sum(row.ranks for row in of_ranks)
    most = max((row.ranks for row in of_ranks), default=1)
    return plural(ranks, "rank") + (f", {most} a row, the worst shown" if most > 1 else "")


def view_in_words(result: TimelineResult) -> str:
    """Which part of the step is in view, and how many collectives."""
    return f"{part_in_view(result)}, {plural(result.collectives_in_view, 'collective')}"


def clock_in_words(result: TimelineResult) -> str | None:
    """What the step is, where it is not what its marks bracket on the hosts; None where it is."""
    if result.timed_on == "host":
        return None
    before = f"up to {duration(-result.earliest_us)} " if result.earliest_us < 0 else ""
    return f"hosts run ahead: the step is the devices', from 0 on; threads work for it {before}before that"


def part_in_view(result: TimelineResult) -> str:
    """`14.4 ms to 71.0 ms of 119 ms`."""
    if result.end_us <= 0:
        span = f"{duration(-result.begin_us)} to {duration(-result.end_us)}"
        return f"{span} before the step of {duration(result.step_us)}"
    begin, before = max(result.begin_us, 0.0), max(-result.begin_us, 0.0)
    whole = begin <= 0 and result.end_us >= result.step_us
    part = "the whole step" if whole else f"{duration(begin)} to {duration(result.end_us)}"
    earlier = f", and {duration(before)} before it" if before else ""
    return f"{part} of {duration(result.step_us)}{earlier}"
