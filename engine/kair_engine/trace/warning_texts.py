"""Warnings about the input, kept to one line of bounded length: the file names in them can be anything."""

from typing import Final

from kair_engine.trace.model import KairWarning

MAX_MESSAGE_LENGTH: Final = 200
_MAX_LISTED: Final = 8


def short_warning(code: str, message: str) -> KairWarning:
    """A KairWarning whose message is one line of at most MAX_MESSAGE_LENGTH characters."""
    line = " ".join(message.splitlines())
    return KairWarning(code, line if len(line) <= MAX_MESSAGE_LENGTH else f"{line[: MAX_MESSAGE_LENGTH - 1]}…")


def listed(numbers: list[int] | tuple[int, ...]) -> str:
    """`1, 2, 5-9`: numbers in order, runs of three or more joined, the rest of a long list counted."""
    runs: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    parts = [text for run in runs for text in _run_texts(*run)]
    if len(parts) > _MAX_LISTED:
        return f"{', '.join(parts[:_MAX_LISTED])} and {len(parts) - _MAX_LISTED} more"
    return ", ".join(parts)


def _run_texts(first: int, last: int) -> list[str]:
    if last - first >= 2:
        return [f"{first}-{last}"]
    return [str(number) for number in range(first, last + 1)]
