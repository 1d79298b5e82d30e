"""Formats figures for people; JSON and CSV never pass through here."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from kair_engine.ranks import runs

Thing = TypeVar("Thing")

WORTH_A_FIGURE = 0.0005
"""Share of the step: less is printed as 0.0 %, and is no price to name a rank with."""
_UNITS: Final = ("ns", "µs", "ms", "s")
_MOST_RUNS: Final = 8
"""Runs of ranks that one sentence names; other ranks are counted."""


def duration(us: float) -> str:
    """Return microseconds with three significant figures in a fitting unit: `813 µs`, `1.24 ms`, `2.94 s`."""
    size = abs(us)
    if size < 999.5:
        return f"{significant(us)} µs"
    if size < 999_500:
        return f"{significant(us / 1e3)} ms"
    return f"{significant(us / 1e6)} s"


def durations(us: Iterable[float]) -> str:
    """Return several durations, with a common unit only once: `2.53, 7.60, 12.6 ms`."""
    said = [duration(one).split(" ") for one in us]
    alike = len({unit for _, unit in said}) == 1
    return ", ".join(
        number if alike and at < len(said) - 1 else f"{number} {unit}" for at, (number, unit) in enumerate(said)
    )


def signed_duration(us: float) -> str:
    """Return a duration with its sign always shown: `+1.24 ms`."""
    return f"+{duration(us)}" if us > 0 else duration(us)


def ratio(value: float) -> str:
    """Return `1.34×`."""
    return f"{value:.2f}×" if abs(value) < 100 else f"{value:.0f}×"


def percent(share: float, decimals: int = 1) -> str:
    """Return a share of one as a percentage: `52.1 %`."""
    return f"{100 * share:.{decimals}f} %"


def range_in_percent(least: float | None, most: float | None) -> str:
    """Return the range of a share in brackets: ` (24 to 63)`; empty if unknown."""
    return "" if least is None or most is None else f" ({100 * least:.0f} to {100 * most:.0f})"


def waited_of(share: float, whole: str) -> str:
    """Return a share of `whole`, the limit of waiting: `52.1 % of the step`.

    Collectives all count, even at the same time.
    """
    return f"{percent(share)} of {whole}" if share <= 1 else f"more than all of {whole} in several collectives at once"


def whole_percent(share: float) -> str:
    """Return a percentage without decimals, for thresholds: `1 %`."""
    return percent(share, 0)


def exact_percent(share: float) -> str:
    """Return a percentage with all its decimals, for chosen values: `95 %`, `0.1 %`."""
    return f"{100 * share:g} %"


def percent_in_legend(share: float) -> str:
    """Return a percentage without decimals and blank, for a legend: `1%`."""
    return f"{share:.0%}"


def gain(share: float) -> str:
    """Return a gain as a share of the present value, its sign always shown: `+3.41%`."""
    return f"{share:+.2%}"


def slowdown(value: float) -> str:
    """Return the step time over the ideal one, S in the literature: `1.0427`."""
    return f"{value:.4f}"


def money(value: float, currency: str | None) -> str:
    """Return an amount in the currency of the GPU hour's price: `1,234.50 USD`; without one, a number alone."""
    return f"{value:,.2f}" + (f" {currency}" if currency else "")


def thinned(every: int | None) -> str | None:
    """Return how far capture thins the records of short steps; None where it records all of each, or nobody knows."""
    if every is None or every < 2:
        return None
    return f"steps are short: one in {every} records its parts, all record their time and what they waited"


def one_decimal(value: float) -> str:
    """Return hours, or a mean count: `1,234.5`."""
    return f"{value:,.1f}"


def signed_whole_percent(share: float) -> str:
    """Return a change in percent, its sign always shown: `-33 %`."""
    return f"{100 * share:+.0f} %"


def score(value: float) -> str:
    """Return three decimals, so that a column of them aligns."""
    return f"{value:,.3f}"


def p_value(value: float | None) -> str:
    """Return `0.0031`, `2e-5`, `<1e-6`, or a dash where the method gives none."""
    if value is None:
        return "–"
    if value < 1e-6:
        return "<1e-6"
    if value >= 1e-4:
        return f"{value:.4f}"
    return f"{value:.0e}".replace("e-0", "e-")


def or_dash(value: Thing | None, write: Callable[[Thing], str] = str) -> str:
    """Return the value as `write` formats it; a dash without one."""
    return "–" if value is None else write(value)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def utc(ns: float) -> str:
    """Return nanoseconds since the epoch in UTC: `2026-11-27 14:03:20`."""
    return f"{_EPOCH + timedelta(microseconds=ns // 1000):%Y-%m-%d %H:%M:%S}"


def clock(ns: float) -> str:
    """Return the time of day: `14:03:20`."""
    return utc(ns)[-8:]


def count(value: int) -> str:
    """Return a number with thousands separated: `12,345`."""
    return f"{value:,}"


def size(number: int) -> str:
    """Return bytes: `12.3 MB`."""
    value, units = float(number), ["bytes", "kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{number} bytes" if units[0] == "bytes" else f"{value:.3g} {units[0]}"


def plural(number: int, noun: str, many: str | None = None) -> str:
    """Return `1 rank`, `8 ranks`, `12,345 ranks`."""
    return f"{count(number)} {noun if number == 1 else many or noun + 's'}"


def spans(numbers: tuple[int, ...], limit: int = 8) -> str:
    """Return sorted numbers with runs joined: `0-3, 7, 9-12`; beyond `limit` runs the rest is counted."""
    found = runs(numbers)
    shown = [f"{first}" if first == last else f"{first}-{last}" for first, last in found[:limit]]
    left = sum(last - first + 1 for first, last in found[limit:])
    return ", ".join(shown) + (f" and {left} more" if left else "")


def mean_of(steps: int | tuple[int, ...], *, sampled: bool = True) -> str:
    """Return which steps a mean is of: `mean of 12 steps (4-15)`; the numbers of steps are left out if unknown.

    `sampled` is False for steps of a watched job that are known by their recorded times alone.
    """
    if isinstance(steps, int):
        return f"mean of {plural(steps, 'step')}"
    recorded = "recorded and not sampled"
    if len(steps) == 1:
        return f"of step {steps[0]} alone" + ("" if sampled else f" ({recorded})")
    return f"mean of {plural(len(steps), 'step')} ({spans(steps)}{'' if sampled else f', {recorded}'})"


def mean_step(us: float, steps: int | tuple[int, ...], *, sampled: bool = True) -> str:
    """Return a mean step time (µs) with the steps that it is of: `step 95.0 ms, mean of 12 steps (4-15)`."""
    return f"step {duration(us)}, {mean_of(steps, sampled=sampled)}"


def and_more(left: int) -> str:
    """Return ` and 3 more`, after names of which some are left out."""
    return f" and {count(left)} more" if left > 0 else ""


def ranks_in_words(ranks: tuple[int, ...], limit: int = 8) -> str:
    """Return `rank 3`, `ranks 4-7, 9`, with at most `limit` runs."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {spans(tuple(sorted(ranks)), limit)}"


def without_unit(cost: str, *, of: str) -> str:
    """Return `11.9` if the whole has the same unit, `456 to 476` for a range; else the cost unchanged."""
    units = {word for word in cost.split() if word in _UNITS}
    unit = of.rsplit(" ", 1)[-1]
    return cost.replace(f" {unit}", "") if units == {unit} else cost


def ranks_named(ranks: Iterable[int]) -> str:
    """Return `rank 3`, `ranks 1 and 6`, `ranks 0-3, 8 and 11`."""
    ordered = tuple(sorted(ranks))
    found = runs(ordered)
    shown = [f"{first}" if first == last else f"{first}-{last}" for first, last in found[:_MOST_RUNS]]
    left = sum(last - first + 1 for first, last in found[_MOST_RUNS:])
    if not left and len(shown) > 1:
        shown[-2:] = [f"{shown[-2]} and {shown[-1]}"]
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {', '.join(shown)}{and_more(left)}"


def its(ranks: tuple[int, ...]) -> str:
    """Return the possessive for the ranks."""
    return "its" if len(ranks) == 1 else "their"


def them(ranks: tuple[int, ...]) -> str:
    """Return the pronoun for the ranks."""
    return "it" if len(ranks) == 1 else "them"


def first_ranks(ranks: tuple[int, ...], limit: int = 8) -> str:
    """Return the first ones in their order, such as by cost: `7, 3, 5 …`."""
    return ", ".join(map(str, ranks[:limit])) + (" …" if len(ranks) > limit else "")


def significant(value: float) -> str:
    """Return three significant figures: `2.15`, `179`."""
    size = abs(value)
    if size < 0.005:
        return "0"
    if size >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"
