"""The GPU-time of a step, drawn as one bar whose shares add up to 100 %."""

from collections.abc import Mapping, Sequence
from typing import Final

from kair_engine.frozen import dataclass
from kair_engine.results.step_bar import BarPart, StepBar
from kair_tui.render.answer import ALARM, DIM
from kair_tui.render.units import percent

NAMES: Final[Mapping[BarPart, str]] = {
    "compute": "useful compute",
    "bubble": "pipeline bubble",
    "communication": "exposed communication",
    "stragglers": "waiting for the last rank",
    "job_wide": "hosts (cores, launches, input)",
    "other": "other",
}
SHORT_NAMES: Final[Mapping[BarPart, str]] = {
    "compute": "compute",
    "bubble": "bubble",
    "communication": "comm.",
    "stragglers": "last rank",
    "job_wide": "hosts",
    "other": "other",
}
SIGNS: Final[Mapping[BarPart, str]] = {
    "compute": "█",
    "bubble": "░",
    "communication": "▓",
    "stragglers": "▚",
    "job_wide": "╱",
    "other": "·",
}
SIGNS_IN_ASCII: Final[Mapping[BarPart, str]] = {
    "compute": "#",
    "bubble": ".",
    "communication": "=",
    "stragglers": "!",
    "job_wide": "/",
    "other": "-",
}
STYLES: Final[Mapping[BarPart, str]] = {
    "compute": "green",
    "bubble": DIM,
    "communication": "cyan",
    "stragglers": ALARM,
    "job_wide": "yellow",
    "other": DIM,
}
"""Rich styles; the characters alone distinguish the parts."""
_OF_STRAGGLER: Final = ("waiting for stragglers", "stragglers")
"""The names of the same part if the verdict names a straggler."""
_UNKNOWN: Final = ("waiting for others, bubble included", "waiting")
"""And if no replay shows how much of it is bubble."""
_WIDEST: Final = 100
_GAP: Final = "   "


@dataclass(frozen=True)
class PartDrawn:
    """One part of the bar with its texts."""

    part: BarPart
    name: str
    short_name: str
    sign: str
    cells: int
    tenths: int
    """In tenths of a percent; those of a bar add up to 1000."""
    percents: int
    """Those of a bar add up to 100."""

    @property
    def text(self) -> str:
        """`█ useful compute 61.2 %`."""
        return f"{self.sign} {self.name} {percent(self.tenths / 1000)}"

    @property
    def brief(self) -> str:
        """`█compute 61`, for a list that ends with the percent sign."""
        return f"{self.sign}{self.short_name} {self.percents}"


def drawn(bar: StepBar, width: int, *, ascii_only: bool) -> tuple[PartDrawn, ...]:
    """Return the parts of the bar in `width` cells, without empty ones."""
    shares, signs = [one.share for one in bar.parts], SIGNS_IN_ASCII if ascii_only else SIGNS
    columns = (apportioned(shares, width), apportioned(shares, 1000), apportioned(shares, 100))
    return tuple(
        PartDrawn(
            one.part,
            *_names(bar, one.part),
            signs[one.part],
            cells,
            tenths,
            percents,
        )
        for one, cells, tenths, percents in zip(bar.parts, *columns, strict=True)
        if tenths
    )


def _names(bar: StepBar, part: BarPart) -> tuple[str, str]:
    """Return a part's name and its short name."""
    if part == "stragglers" and bar.bubble_from is None:
        return _UNKNOWN
    return _OF_STRAGGLER if part == "stragglers" and bar.names_straggler else (NAMES[part], SHORT_NAMES[part])


def apportioned(shares: Sequence[float], whole: int) -> list[int]:
    """Return `whole` divided by the shares, by largest remainder: the numbers add up to it, if any share is above 0."""
    total = sum(shares)
    if total <= 0:
        return [0] * len(shares)
    exact = [share / total * whole for share in shares]
    numbers = [int(one) for one in exact]
    order = sorted(range(len(exact)), key=lambda at: (numbers[at] - exact[at], at))
    for at in order[: whole - sum(numbers)]:
        numbers[at] += 1
    return numbers


def bar_width(width: int) -> int:
    """Return the number of the bar's cells on a page of that width."""
    return max(min(width, _WIDEST), 10)


def bar_pieces(bar: StepBar, width: int, *, ascii_only: bool) -> list[tuple[str, str]]:
    """Return the bar as texts with their Rich styles."""
    return [(one.sign * one.cells, STYLES[one.part]) for one in drawn(bar, width, ascii_only=ascii_only)]


def legend_lines(bar: StepBar, width: int, *, ascii_only: bool) -> list[str]:
    """Return the parts with their shares, as many per line as fit, unbroken."""
    lines: list[str] = []
    for one in drawn(bar, width, ascii_only=ascii_only):
        if lines and len(lines[-1]) + len(_GAP) + len(one.text) <= width:
            lines[-1] += _GAP + one.text
        else:
            lines.append(one.text)
    return lines


def in_one_line(bar: StepBar) -> str:
    """Return `useful compute 61.2 %, pipeline bubble 24.1 %, …`, for a list or a cell."""
    return ", ".join(parts_in_words(bar))


def parts_in_words(bar: StepBar) -> list[str]:
    """Return `useful compute 61.2 %` for each drawn part."""
    return [f"{one.name} {percent(one.tenths / 1000)}" for one in drawn(bar, 1, ascii_only=True)]


def waiting_in_words(bar: StepBar) -> str:
    """Return how long ranks wait, with the bubble named; and how much time may or may not be waiting."""
    unknown = f"{percent(bar.unknown_share)} of their time is communication that could not be matched"
    if not bar.waiting_is_known:
        return f"how long ranks wait is unknown: {unknown}"
    if percent(bar.unknown_share) == percent(0):
        return _known_waiting(bar)
    return f"{_known_waiting(bar)}, and {unknown}, waiting or not"


def _known_waiting(bar: StepBar) -> str:
    if bar.bubble_from is None:
        return f"ranks wait {percent(bar.waiting_share)} of their time for others, including the pipeline's bubble"
    shown = {one.part: percent(one.tenths / 1000) for one in drawn(bar, 1, ascii_only=True)}  # rounded as in the legend
    stragglers, bubble = shown.get("stragglers", percent(0)), shown.get("bubble", percent(0))
    whom = "stragglers" if bar.names_straggler else "the last rank"
    if bar.share("bubble") <= 0:
        return f"ranks wait {stragglers} of their time for {whom}"
    return f"ranks wait {bubble} of their time in the pipeline's bubble and {stragglers} for {whom}"
