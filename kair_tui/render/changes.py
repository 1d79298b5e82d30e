"""Two runs compared, in words: the sources of the step time's change, in one sentence.

Also operators that take longer than in a baseline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from kair_engine.results.localize import AgainstBaseline, OperatorChange
from kair_tui.render.text import short_name
from kair_tui.render.units import duration, plural, ranks_in_words, ratio, signed_duration, signed_whole_percent

if TYPE_CHECKING:
    from kair_engine.results.compare import CompareResult, PooledChange, PoolKind


_OF_KIND: Mapping[PoolKind, str] = {
    "compute": "compute operators",
    "hosts": "kinds of host time",
    "communication": "communication operators",
}
_NAMED = 3
"""Changes in the summary sentence."""


def summary(result: CompareResult) -> str:
    """Return the answer in one sentence: `+6.1 ms a step (+5 %): +5.2 ms in attention backward on all ranks, …`."""
    steps = f"{result.base.steps} and {result.new.steps} steps"
    step = f"{signed_duration(result.step_change_us)} a step ({signed_whole_percent(result.step_change_share)})"
    if result.verdict == "inconclusive":
        return f"inconclusive: {steps} are too few to separate a change from chance"
    if result.verdict == "no_change":
        times = f"the step takes {duration(result.base.step_time_us)} and {duration(result.new.step_time_us)}"
        return f"no change: {steps}, no operator differs beyond chance; {times}"
    parts = [change_in_words(one) for one in result.changes[:_NAMED]]
    left = len(result.changes) - len(parts)
    parts += [f"and {plural(left, 'smaller change')}"] if left else []
    parts += [f"{signed_duration(_cost(one))} in {pool_in_words(one)} together" for one in result.pools]
    return f"{step}: {', '.join(parts) or 'no operator changed beyond chance'}"


def left_in_words(result: CompareResult) -> str:
    """Return the unexplained change, and whether it exceeds noise."""
    left = f"{signed_duration(result.unexplained_us or 0.0)} is left over"
    if result.noise_us is None:
        return f"{left}: a single step cannot show whether that is noise"
    varies = f"the ±{duration(result.noise_us)} by which mean steps differ by chance"
    if abs(result.unexplained_us or 0.0) <= result.noise_us:
        return f"{left}, within {varies}"
    return f"{left}, more than {varies}: no operator that surely changed explains it"


def change_in_words(one: OperatorChange) -> str:
    """Return `+5.2 ms in attention_backward on all ranks`; changes that were not replayed show their own time."""
    what = {"added": " (new)", "gone": " (gone)"}.get(one.change, "")
    return f"{signed_duration(_cost(one))} in {operator_in_words(one)}{what} on {whom(one)}"


def _cost(one: OperatorChange | PooledChange) -> float:
    return one.new_us - one.base_us if one.step_us is None else one.step_us


def pool_in_words(one: PooledChange) -> str:
    """Return `53 other compute operators`."""
    return f"{one.operators} other {_OF_KIND[one.kind]}"


def operator_in_words(one: OperatorChange) -> str:
    """Return its short name; without an operator, it is the host's idle time or compilation."""
    return one.kind if one.operator is None else short_name(one.operator)


def whom(one: OperatorChange) -> str:
    """Return `all ranks`, `node1 (ranks 4-7)`, `rank 3`."""
    if not one.ranks:
        return "all ranks"
    return ranks_in_words(one.ranks) if one.host is None else f"{one.host} ({ranks_in_words(one.ranks)})"


_SHOWN = 5


def against_in_words(found: AgainstBaseline) -> Iterator[str]:
    """Yield a line for the step, and one for each operator."""
    step = f"{signed_duration(found.step_change_us)} a step ({signed_whole_percent(found.step_change_share)})"
    what = f"{plural(len(found.slower), 'operator')} slower" if found.slower else "nothing slower beyond chance"
    yield f"against the baseline {found.baseline}: {step}, {what}"
    for one in found.slower[:_SHOWN]:
        yield _operator(one)
    if len(found.slower) > _SHOWN:
        yield f"and {plural(len(found.slower) - _SHOWN, 'more', 'more')} (--json has all)"


def _operator(one: OperatorChange) -> str:
    before = "new" if one.ratio is None else f"{ratio(one.ratio)} its {duration(one.base_us)}"
    link = ", the transfer itself" if one.kind == "communication" else ""
    return f"{operator_in_words(one)} on {whom(one)}: {duration(one.new_us)} a step, {before}{link}"
