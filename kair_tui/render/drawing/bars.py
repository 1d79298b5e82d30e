"""A horizontal bar with a mark on it: a value beside what is usual."""

from typing import Final

_EIGHTHS: Final = " ▏▎▍▌▋▊▉"


def mark_sign(*, ascii_only: bool) -> str:
    """What marks a place on a bar."""
    return "|" if ascii_only else "┃"


def bar(value: float, mark: float | None, peak: float, width: int, *, ascii_only: bool) -> str:
    """`value` as a bar, of which `width` signs stand for `peak`, with a sign of its own where `mark` lies."""
    if peak <= 0 or width < 1:
        return ""
    eighths = round(min(max(value / peak, 0.0), 1.0) * width * 8)
    drawn = "#" * round(eighths / 8) if ascii_only else "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
    if mark is None:
        return drawn
    at = min(round(min(max(mark / peak, 0.0), 1.0) * width), width - 1)
    return f"{drawn[:at].ljust(at)}{mark_sign(ascii_only=ascii_only)}{drawn[at + 1 :]}"
