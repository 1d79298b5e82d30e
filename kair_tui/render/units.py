"""Formats figures for people; JSON and CSV never pass through here."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from kair_engine.ranks import runs

Thing = TypeVar("Thing")

WORTH_A_FIGURE = 0.0005
"""Of the step: less is 0.0 % as printed, and no price to name a rank with."""
_UNITS: Final = ("ns", "µs", "ms", "s")
_MOST_RUNS: Final = 8
"""Runs of ranks that one sentence names; the other ranks are counted."""


def duration(us: float) -> str:
    """Microseconds with three significant figures in the unit that suits: `813 µs`, `1.24 ms`, `2.94 s`."""
    size = abs(us)
    if size < 999.5:
        return f"{significant(us)} µs"
    if size < 999_500:
        return f"{significant(us / 1e3)} ms"
    return f"{significant(us / 1e6)} s"


def durations(us: Iterable[float]) -> str:
    """Several of one kind, with their unit once where it is the same: `2.53, 7.60, 12.6 ms`."""
    said = [duration(one).split(" ") for one in us]
    alike = len({unit for _, unit in said}) == 1
    return ", ".join(
        number if alike and at < len(said) - 1 else f"{number} {unit}" for at, (number, unit) in enumerate(said)
    )


def signed_duration(us: float) -> str:
    """Return the same with its sign always shown: `+1.24 ms`."""
    return f"+{duration(us)}" if us > 0 else duration(us)


def ratio(value: float) -> str:
    """`1.34×`."""
    return f"{value:.2f}×" if abs(value) < 100 else f"{value:.0f}×"


def percent(share: float, decimals: int = 1) -> str:
    """Return a share of one as a percentage: `52.1 %`."""
    return f"{100 * share:.{decimals}f} %"


def range_in_percent(least: float | None, most: float | None) -> str:
    """Write in brackets from where to where a share may be: ` (24 to 63)`; nothing where that is not known."""
    return "" if least is None or most is None else f" ({100 * least:.0f} to {100 * most:.0f})"


def waited_of(share: float, whole: str) -> str:
    """Return a share of `whole`, what can be waited at most: `52.1 % of the step`.

    Collectives count each, also at once.
    """
    return f"{percent(share)} of {whole}" if share <= 1 else f"more than all of {whole} in several collectives at once"


def whole_percent(share: float) -> str:
    """Return the same without decimals, where the share is a threshold: `1 %`."""
    return percent(share, 0)


def exact_percent(share: float) -> str:
    """Return the same with the decimals that it has, where somebody chose it: `95 %`, `0.1 %`."""
    return f"{100 * share:g} %"


def percent_in_legend(share: float) -> str:
    """Return the same without decimals and blank, beside the sign that it explains: `1%`."""
    return f"{share:.0%}"


def gain(share: float) -> str:
    """Return what is won as a part of what there is, its sign always shown: `+3.41%`."""
    return f"{share:+.2%}"


def slowdown(value: float) -> str:
    """Return the step's time over the ideal one's, S in the literature: `1.0427`."""
    return f"{value:.4f}"


def money(value: float, currency: str | None) -> str:
    """In the currency of the price of a GPU hour: `1,234.50 USD`; a number alone where it named none."""
    return f"{value:,.2f}" + (f" {currency}" if currency else "")


def one_decimal(value: float) -> str:
    """Hours, or a count that is a mean: `1,234.5`."""
    return f"{value:,.1f}"


def signed_whole_percent(share: float) -> str:
    """Return the same of a change, with its sign always shown: `-33 %`."""
    return f"{100 * share:+.0f} %"


def score(value: float) -> str:
    """Three decimals, so that a column of them aligns."""
    return f"{value:,.3f}"


def p_value(value: float | None) -> str:
    """`0.0031`, `2e-5`, `<1e-6`, or a dash where the method gives none."""
    if value is None:
        return "–"
    if value < 1e-6:
        return "<1e-6"
    if value >= 1e-4:
        return f"{value:.4f}"
    return f"{value:.0e}".replace("e-0", "e-")


def or_dash(value: Thing | None, write: Callable[[Thing], str] = str) -> str:
    """As `write` has it; a dash where there is none."""
    return "–" if value is None else write(value)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def utc(ns: float) -> str:
    """Nanoseconds since the epoch: `2026-11-27 14:03:20`, in UTC."""
    return f"{_EPOCH + timedelta(microseconds=ns // 1000):%Y-%m-%d %H:%M:%S}"


def clock(ns: float) -> str:
    """Return the same without its date: `14:03:20`."""
    return utc(ns)[-8:]


def count(value: int) -> str:
    """Thousands set apart: `12,345`."""
    return f"{value:,}"


def size(number: int) -> str:
    """Bytes: `12.3 MB`."""
    value, units = float(number), ["bytes", "kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{number} bytes" if units[0] == "bytes" else f"{value:.3g} {units[0]}"


def plural(number: int, noun: str, many: str | None = None) -> str:
    """`1 rank`, `8 ranks`, `12,345 ranks`."""
    return f"{count(number)} {noun if number == 1 else many or noun + 's'}"


def spans(numbers: tuple[int, ...], limit: int = 8) -> str:
    """Sorted numbers with runs drawn together: `0-3, 7, 9-12`; beyond `limit` runs the rest is counted."""
    found = runs(numbers)
    shown = [f"{first}" if first == last else f"{first}-{last}" for first, last in found[:limit]]
    left = sum(last - first + 1 for first, last in found[limit:])
    return ", ".join(shown) + (f" and {left} more" if left else "")


def and_more(left: int) -> str:
    """After names of which so many are left out: ` and 3 more`."""
    return f" and {count(left)} more" if left > 0 else ""


def ranks_in_words(ranks: tuple[int, ...], limit: int = 8) -> str:
    """`rank 3`, `ranks 4-7, 9`; of so many runs of them."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {spans(tuple(sorted(ranks)), limit)}"


def without_unit(cost: str, *, of: str) -> str:
    """`11.9` where the whole has the same unit, `456 to 476` of a range; else the cost as it is."""
    units = {word for word in cost.split() if word in _UNITS}
    unit = of.rsplit(" ", 1)[-1]
    return cost.replace(f" {unit}", "") if units == {unit} else cost


def ranks_named(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 1 and 6`, `ranks 0-3, 8 and 11`."""
    ordered = tuple(sorted(ranks))
    found = runs(ordered)
    shown = [f"{first}" if first == last else f"{first}-{last}" for first, last in found[:_MOST_RUNS]]
    left = sum(last - first + 1 for first, last in found[_MOST_RUNS:])
    if not left and len(shown) > 1:
        shown[-2:] = [f"{shown[-2]} and {shown[-1]}"]
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {', '.join(shown)}{and_more(left)}"


def its(ranks: tuple[int, ...]) -> str:
    """Return what belongs to them."""
    return "its" if len(ranks) == 1 else "their"


def them(ranks: tuple[int, ...]) -> str:
    """Those that were named already."""
    return "it" if len(ranks) == 1 else "them"


def first_ranks(ranks: tuple[int, ...], limit: int = 8) -> str:
    """Return the first ones as they are ordered, where that is by what they cost: `7, 3, 5 …`."""
    return ", ".join(map(str, ranks[:limit])) + (" …" if len(ranks) > limit else "")


def significant(value: float) -> str:
    """Three significant figures: `2.15`, `179`."""
    size = abs(value)
    if size < 0.005:
        return "0"
    if size >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"
