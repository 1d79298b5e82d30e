"""A forest plot in characters: an estimate and its interval per row, over one axis of time with marks."""

from collections.abc import Iterable, Sequence
from typing import Final

from kair_engine.frozen import dataclass
from kair_tui.render.terminal import Glyphs
from kair_tui.render.units import duration

_FARTHEST: Final = 3.0
"""Limit of the axis in largest doses: a wider one would make intervals unreadable."""
_BEFORE_ZERO: Final = 0.5
"""Minimum of the axis below zero, in largest doses."""


@dataclass(frozen=True)
class Estimate:
    """A row: the estimate and its dose; None before anything is known."""

    us: float | None
    low_us: float | None
    high_us: float | None
    dose_us: float


@dataclass(frozen=True)
class Axis:
    """The range of the axis, and its marks."""

    low_us: float
    high_us: float
    claimed_us: float | None
    """The price that was claimed before; None without one."""
    width: int
    """In characters."""

    def at(self, us: float) -> int:
        """Return the column of a time; times beyond are at the edge."""
        share = (us - self.low_us) / (self.high_us - self.low_us)
        return round(min(max(share, 0.0), 1.0) * (self.width - 1))

    def is_beyond(self, us: float) -> bool:
        """Return whether a time lies outside."""
        return not self.low_us <= us <= self.high_us


def axis_of(estimates: Sequence[Estimate], claimed_us: float | None, width: int) -> Axis:
    """Return the axis that holds all intervals and the claim, within some doses."""
    dose = max((one.dose_us for one in estimates), default=0.0) or 1.0
    lows = [one.low_us for one in estimates if one.low_us is not None]
    highs = [one.high_us for one in estimates if one.high_us is not None]
    low = max(min([-_BEFORE_ZERO * dose, *lows]), -_FARTHEST * dose)
    high = min(max([1.2 * dose, *highs, 1.1 * (claimed_us or 0.0)]), _FARTHEST * dose)
    return Axis(low, high, claimed_us, width)


def forest(one: Estimate, axis: Axis, glyphs: Glyphs) -> str:
    """Return a row: its interval over the zero line, the claim, and a mark at the full dose."""
    cells = [" "] * axis.width
    if axis.claimed_us is not None:
        cells[axis.at(axis.claimed_us)] = _claim_sign(axis, glyphs)
    if not axis.is_beyond(one.dose_us):
        cells[axis.at(one.dose_us)] = glyphs.hops
    cells[axis.at(0.0)] = glyphs.vertical
    if one.us is not None and one.low_us is not None and one.high_us is not None:
        first, last = axis.at(one.low_us), axis.at(one.high_us)
        for at in range(first, last + 1):
            cells[at] = glyphs.cross if cells[at] == glyphs.vertical else glyphs.horizontal
        for end_us, at in ((one.low_us, first), (one.high_us, last)):
            cells[at] = glyphs.ellipsis if axis.is_beyond(end_us) else cells[at]
        cells[axis.at(one.us)] = glyphs.recording
    return "".join(cells)


def scale(axis: Axis, dose_us: float) -> str:
    """Return the line over the rows: 0, the dose and the claim, if their figures fit."""
    marks = [(0.0, "0"), (dose_us, duration(dose_us))]
    if axis.claimed_us is not None and not axis.is_beyond(axis.claimed_us):
        marks.insert(1, (axis.claimed_us, duration(axis.claimed_us)))
    text = " " * axis.width
    for us, label in marks:
        at = min(max(axis.at(us) - len(label) // 2, 0), max(axis.width - len(label), 0))
        around = text[max(at - 1, 0) : at + len(label) + 1]
        text = text if around.strip() else text[:at] + label + text[at + len(label) :]
    return text[: axis.width]


def legend(estimates: Iterable[Estimate], axis: Axis, glyphs: Glyphs, claim: str) -> str:
    """Return the meaning of the marks; `claim` is the source of the claimed price."""
    signs = (glyphs.recording, "estimate ± 95 %"), (glyphs.vertical, "zero"), (glyphs.hops, "all of the delay")
    parts = [f"{sign} {means}" for sign, means in signs]
    if axis.claimed_us is not None:
        parts.append(f"{_claim_sign(axis, glyphs)} {claim}")
    return "  ".join(parts) if any(one.us is not None for one in estimates) else ""


def _claim_sign(axis: Axis, glyphs: Glyphs) -> str:
    """Return the claim's mark: if it lies beyond the axis, a character that points there."""
    return glyphs.pointer if axis.claimed_us is not None and axis.is_beyond(axis.claimed_us) else glyphs.thumb
