"""Shortens a command's document for a client of `kair mcp`, and makes control characters of names visible."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from kair_engine.errors import InputError
from kair_engine.frozen import dataclass
from kair_tui.render.document import encode
from kair_tui.render.text import clean

MOST_CHARACTERS: Final = 200_000
"""The most characters of one answer: its readers have a context of some hundred thousand words."""
_MOST_NAMED: Final = 5
"""The most shortened tables that the warning names."""


@dataclass(frozen=True)
class _Cut:
    """A table that was shortened."""

    table: str
    kept: int
    of: int


def answer(document: bytes, most_rows: int) -> tuple[dict[str, Any], str]:
    """Return the document of a command, and the same as JSON text, at most MOST_CHARACTERS long.

    Visible signs replace the control characters of names. Tables (lists of records) have at most `most_rows` rows,
    fewer if the document is still too long; the last warning (code `truncated`) lists the shortened tables. Raises
    InputError if even one row of each is too long.
    """
    whole: dict[str, Any] = harmless(msgspec.json.decode(document))
    rows = most_rows
    while True:
        cuts = list[_Cut]()
        short = {**whole, "data": _cut(whole["data"], rows, "", cuts)}
        if cuts:
            short["warnings"] = [*whole["warnings"], {"code": "truncated", "message": _in_words(cuts), "run": None}]
        text = encode(short)
        if len(text) <= MOST_CHARACTERS:
            return short, text
        if rows == 1:
            raise InputError(
                f"the answer has {len(text):,} characters, more than {MOST_CHARACTERS:,}",
                "choose fewer steps or fields",
            )
        rows = min(rows, max((cut.kept for cut in cuts), default=rows), _longest(short["data"])) // 2 or 1


def harmless(value: Any) -> Any:  # noqa: ANN401
    """Return the value with every control character replaced in its texts and keys, but for line breaks."""
    if isinstance(value, str):
        return "\n".join(clean(line) for line in value.split("\n"))
    if isinstance(value, dict):
        return {harmless(key): harmless(of) for key, of in value.items()}
    return [harmless(one) for one in value] if isinstance(value, list) else value


def _cut(value: Any, most: int, at: str, cuts: list[_Cut]) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {key: _cut(of, most, f"{at}.{key}" if at else key, cuts) for key, of in value.items()}
    if not _is_table(value):
        return value
    if len(value) > most:
        cuts.append(_Cut(at, most, len(value)))
    return [_cut(one, most, at, cuts) for one in value[:most]]


def _is_table(value: Any) -> bool:  # noqa: ANN401
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _longest(value: Any) -> int:  # noqa: ANN401
    """Return the number of rows of the longest table; 1 without tables."""
    return max(_lengths(value), default=1)


def _lengths(value: Any) -> Iterator[int]:  # noqa: ANN401
    if isinstance(value, dict):
        for of in value.values():
            yield from _lengths(of)
    elif _is_table(value):
        yield len(value)
        for one in value:
            yield from _lengths(one)


def _in_words(cuts: list[_Cut]) -> str:
    tables = dict[str, _Cut]()
    for cut in cuts:
        known = tables.get(cut.table)
        tables[cut.table] = cut if known is None or cut.of > known.of else known
    first = [f"the first {one.kept:,} of {one.of:,} rows of {one.table}" for one in list(tables.values())[:_MOST_NAMED]]
    more = len(tables) - len(first)
    rest = f"; so are {more} more tables" if more else ""
    return (
        f"the answer is cut: it has {', '.join(first)}{rest}. Ask for fewer steps, one rank, or more rows (most_rows)"
    )
