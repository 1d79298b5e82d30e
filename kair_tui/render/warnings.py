"""Warnings in words: as the engine says them, or sentences made from their figures."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kair_engine.frozen import dataclass

if TYPE_CHECKING:
    from kair_engine.trace.model import KairWarning


@dataclass(frozen=True)
class WarningInWords:
    """Something that the reader of an answer should know; `code` is stable, for machines."""

    code: str
    """Stable, for machines."""
    message: str
    """For people; the wording changes."""
    run: str | None = None
    """Which of two runs it is of; null where an answer is about one, or it is about both."""


def warnings_in_words(*sources: "Iterable[KairWarning]") -> tuple[WarningInWords, ...]:
    """Return all warnings, each once, in the order in which they first come."""
    return tuple(dict.fromkeys(warning_in_words(warning) for source in sources for warning in source))


def warning_in_words(warning: "KairWarning") -> WarningInWords:
    """Return the same warning with its sentence."""
    message = warning.message
    if template := warning.wording():
        from kair_tui.render.sentences import filled  # loads all kinds of evidence

        message = filled(template, warning)
    return WarningInWords(warning.code, message if warning.run is None else f"{warning.run}: {message}", warning.run)
