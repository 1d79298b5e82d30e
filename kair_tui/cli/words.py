"""Words of a line: quotes, and references to results, which are replaced only after the line was split.

A value from a trace stays one word, whatever it contains; nothing is ever evaluated.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from kair_engine.errors import UsageError

_PATH = r"[A-Za-z_]\w*(?:\.\w+|\[-?\d{1,9}\])*"
_REFERENCE = re.compile(rf"\$\{{({_PATH})\}}|\$({_PATH})")
_KEY = re.compile(r"\.(\w+)|\[(-?\d{1,9})\]")
_PART = re.compile(
    rf"""'(?P<single>[^']*)' | "(?P<double>(?:\\.|[^"\\])*)" | \\(?P<escaped>.)
    | (?P<reference>{_REFERENCE.pattern}) | (?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPED = re.compile(r'\\(["\\$])')
_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_LONGEST_WHOLE: Final = 300
"""Digits: no field has a larger number, and a float can still hold it."""
_LITERALS: Final[dict[str, Any]] = {"true": True, "false": False, "null": None}


@dataclass(frozen=True)
class Reference:
    """`$worst.scores[0].rank`: a name, and the path to a field of its value.

    Without a name it is a field of the current answer: `scores[0].rank`.
    """

    name: str
    path: tuple[str | int, ...] = ()

    def __str__(self) -> str:
        steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return f"${self.name}{steps}" if self.name else steps.removeprefix(".") or "the answer"


@dataclass(frozen=True)
class Word:
    """The text between two spaces, with its references."""

    parts: tuple[str | Reference, ...]
    quoted: bool = False
    """Whether a part was quoted: it is text, and neither a number nor a keyword."""

    @property
    def references(self) -> tuple[Reference, ...]:
        """The references in it."""
        return tuple(part for part in self.parts if isinstance(part, Reference))

    @property
    def reference(self) -> Reference | None:
        """The reference, if the word is nothing else; else None."""
        first = self.parts[0]
        return first if len(self.parts) == 1 and isinstance(first, Reference) and not self.quoted else None

    @property
    def text(self) -> str | None:
        """The word without references; else None."""
        return None if self.references else "".join(str(part) for part in self.parts)

    def filled(self, text_of: Callable[[Reference], str]) -> str:
        """Return the word with each reference replaced."""
        return "".join(part if isinstance(part, str) else text_of(part) for part in self.parts)

    def value(self, value_of: Callable[[Reference], Any]) -> Any:  # noqa: ANN401
        """Return its value: a referenced value unchanged, else a number, true, false, null or text."""
        if (reference := self.reference) is not None:
            return value_of(reference)
        text = self.filled(lambda reference: str(value_of(reference)))
        return text if self.quoted else literal(text)


def literal(text: str) -> Any:  # noqa: ANN401
    """Return a number, true, false or null if `text` is one, else the text."""
    if _NUMBER.fullmatch(text):
        is_whole = not set(text.lower()) & set(".e") and len(text) <= _LONGEST_WHOLE
        return int(text) if is_whole else float(text)
    return _LITERALS.get(text, text)


def read_word(text: str, at: int, ends: str = "") -> tuple[Word, int]:
    """Return the word that begins at `at`, and its end: at a space or one of the characters in `ends`."""
    parts: list[str | Reference] = []
    quoted = False
    while at < len(text) and not text[at].isspace() and text[at] not in ends:
        match = _part(text, at)
        quoted = quoted or match["single"] is not None or match["double"] is not None
        parts += _pieces(match)
        at = match.end()
    return Word(_joined(parts), quoted), at


def words_of(text: str) -> tuple[Word, ...]:
    """Return the words of a line. Raises UsageError for an unclosed quote."""
    words: list[Word] = []
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        word, at = read_word(text, at)
        words.append(word)
    return tuple(words)


def unquoted(text: str, signs: str) -> Iterator[int]:
    """Yield where one of `signs` stands outside quotes. Raises UsageError for an unclosed quote."""
    at = 0
    while at < len(text):
        match = _part(text, at)
        if match["sign"] is not None and match["sign"] in signs:
            yield at
        at = match.end()


def without_comment(text: str) -> str:
    """Return the line up to a `#` that begins a word."""
    hashes = (at for at in unquoted(text, "#") if at == 0 or text[at - 1].isspace())
    return text[: next(hashes, len(text))].rstrip()


def split_at(text: str, sign: str) -> list[str]:
    """Return the parts between signs that stand outside quotes."""
    cuts = [-1, *unquoted(text, sign), len(text)]
    return [text[begin + 1 : end] for begin, end in pairwise(cuts)]


def reference_of(text: str) -> Reference:
    """Parse `worst.scores[0].rank`, without the dollar."""
    name = re.match(r"\w+", text)
    assert name is not None  # what is called with text that _PATH matched
    return Reference(name[0], _path(text[name.end() :]))


def field_named(text: str) -> Reference | None:
    """Parse `scores[0].rank` as a field of the current answer; None if the text is no path."""
    return Reference("", _path(f".{text}")) if re.fullmatch(_PATH, text) else None


def _path(text: str) -> tuple[str | int, ...]:
    return tuple(key or int(number) for key, number in _KEY.findall(text))


def _part(text: str, at: int) -> re.Match[str]:
    match = _PART.match(text, at)
    if match is None or (match["sign"] is not None and match["sign"] in "'\""):
        raise UsageError(f"a quote is not closed in {text.strip()!r}")
    return match


def _pieces(match: re.Match[str]) -> list[str | Reference]:
    if match["reference"] is not None:
        return [reference_of(match["reference"].strip("${}"))]
    if match["double"] is not None:
        return _with_references(match["double"])
    return [next(text for text in (match["single"], match["escaped"], match["sign"]) if text is not None)]


def _with_references(text: str) -> list[str | Reference]:
    """Return the inside of double quotes."""
    found: list[str | Reference] = []
    at = 0
    for match in re.finditer(rf"\\.|{_REFERENCE.pattern}", text):
        if match[0].startswith("\\"):
            continue
        found += [_ESCAPED.sub(r"\1", text[at : match.start()]), reference_of(match[0].strip("${}"))]
        at = match.end()
    return [*found, _ESCAPED.sub(r"\1", text[at:])]


def _joined(parts: list[str | Reference]) -> tuple[str | Reference, ...]:
    """Join adjacent texts; an empty quoted word has one empty text."""
    joined: list[str | Reference] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        elif part != "":
            joined.append(part)
    return tuple(joined) or ("",)
