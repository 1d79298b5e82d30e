"""Where the GPU-time of a step goes, drawn in one bar whose shares add up to 100 %."""

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
"""Of Rich; the signs alone tell the parts apart."""
_OF_STRAGGLER: Final = ("waiting for stragglers", "stragglers")
"""What the same part is called where the verdict names one."""
_UNKNOWN: Final = ("waiting for others, bubble included", "waiting")
"""And where no replay says what of it is bubble."""
_WIDEST: Final = 100
_GAP: Final = "   "


@dataclass(frozen=True)
class PartDrawn:
    """One part of the bar, as it is drawn and told."""

    part: BarPart
    name: str
    short_name: str
    sign: str
    cells: int
    tenths: int
    """Of a percent; those of a bar add up to 1000."""
    percents: int
    """Those of a bar add up to 100."""

    @property
    def told(self) -> str:
        """`█ useful compute 61.2 %`."""
        return f"{self.sign} {self.name} {percent(self.tenths / 1000)}"

    @property
    def told_briefly(self) -> str:
        """`█compute 61`, of a list that ends with the percent sign."""
        return f"{self.sign}{self.short_name} {self.percents}"


def drawn(bar: StepBar, width: int, *, ascii_only: bool) -> tuple[PartDrawn, ...]:
    """Return the parts of the bar in so many cells, those of nothing left out."""
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
    """Return a part's name, and its short one."""
    if part == "stragglers" and bar.bubble_from is None:
        return _UNKNOWN
    return _OF_STRAGGLER if part == "stragglers" and bar.names_straggler else (NAMES[part], SHORT_NAMES[part])


def apportioned(shares: Sequence[float], whole: int) -> list[int]:
    """`whole` divided by the shares, by largest remainder: the numbers add up to it, if any share is more than 0."""
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
    """In how many cells it is drawn on a page of that width."""
    return max(min(width, _WIDEST), 10)


def bar_pieces(bar: StepBar, width: int, *, ascii_only: bool) -> list[tuple[str, str]]:
    """Return the bar: texts and the styles of Rich that they have."""
    return [(one.sign * one.cells, STYLES[one.part]) for one in drawn(bar, width, ascii_only=ascii_only)]


def legend_lines(bar: StepBar, width: int, *, ascii_only: bool) -> list[str]:
    """Return the parts with their shares, as many on a line as fit: never cut apart."""
    lines: list[str] = []
    for one in drawn(bar, width, ascii_only=ascii_only):
        if lines and len(lines[-1]) + len(_GAP) + len(one.told) <= width:
            lines[-1] += _GAP + one.told
        else:
            lines.append(one.told)
    return lines


def in_one_line(bar: StepBar) -> str:
    """Write `useful compute 61.2 %, pipeline bubble 24.1 %, …`: for a list or a cell."""
    return ", ".join(parts_in_words(bar))


def parts_in_words(bar: StepBar) -> list[str]:
    """Write `useful compute 61.2 %` of each part that is drawn."""
    return [f"{one.name} {percent(one.tenths / 1000)}" for one in drawn(bar, 1, ascii_only=True)]


def waiting_in_words(bar: StepBar) -> str:
    """Return what ranks wait for others, the bubble by its name; and how much of their time may be waiting, or not."""
    unknown = f"{percent(bar.unknown_share)} of their time is communication that could not be matched"
    if not bar.waiting_is_known:
        return f"how long ranks wait is unknown: {unknown}"
    if percent(bar.unknown_share) == percent(0):
        return _known_waiting(bar)
    return f"{_known_waiting(bar)}, and {unknown}, waiting or not"


def _known_waiting(bar: StepBar) -> str:
    if bar.bubble_from is None:
        return f"ranks wait {percent(bar.waiting_share)} of their time for others, the pipeline's bubble among it"
    shown = {one.part: percent(one.tenths / 1000) for one in drawn(bar, 1, ascii_only=True)}  # as the legend rounds
    stragglers, bubble = shown.get("stragglers", percent(0)), shown.get("bubble", percent(0))
    whom = "stragglers" if bar.names_straggler else "the last rank"
    if bar.share("bubble") <= 0:
        return f"ranks wait {stragglers} of their time for {whom}"
    return f"ranks wait {bubble} of their time in the pipeline's bubble and {stragglers} for {whom}"
