"""What stragglers cost a job, figure by figure; a dash where that is not known."""

from kair_engine.causes import Cause
from kair_tui.render.units import money, one_decimal, percent, slowdown
from kair_tui.render.words.verdict import cause_in_words


def slowdown_text(value: float | None) -> str:
    """S."""
    return "–" if value is None else slowdown(value)


def share_text(value: float | None) -> str:
    """A share of 1."""
    return "–" if value is None else percent(value)


def hours_text(value: float | None) -> str:
    """GPU-hours."""
    return "–" if value is None else one_decimal(value)


def money_text(value: float | None) -> str:
    """In whichever currency it is."""
    return "–" if value is None else money(value)


def cause_text(cause: Cause | None) -> str:
    """As it is called in a sentence."""
    return "–" if cause is None else cause_in_words(cause)
