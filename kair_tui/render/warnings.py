"""Warnings in words: as the engine states them, or sentences made from their figures."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kair_engine.frozen import dataclass

if TYPE_CHECKING:
    from kair_engine.trace.model import KairWarning


@dataclass(frozen=True)
class WarningInWords:
    """A caveat for readers of an answer; `code` is stable, for machines."""

    code: str
    """Stable, for machines."""
    message: str
    """For people; the wording changes."""
    run: str | None = None
    """Which of two runs it is about; null if an answer is about one, or it is about both."""


def warnings_in_words(*sources: "Iterable[KairWarning]") -> tuple[WarningInWords, ...]:
    """Return all warnings, each once, in the order of first occurrence."""
    return tuple(dict.fromkeys(warning_in_words(warning) for source in sources for warning in source))


def warning_in_words(warning: "KairWarning") -> WarningInWords:
    """Return the warning with its sentence."""
    message = warning.message
    if template := warning.wording():
        from kair_tui.render.sentences import filled  # loads all kinds of evidence

        message = filled(template, warning)
    return WarningInWords(warning.code, message if warning.run is None else f"{warning.run}: {message}", warning.run)
