"""Lexer: words of a line, quotes, and references to results, which are replaced only after the line was split.

A value that comes from a trace stays one word, whatever is in it; nothing is ever evaluated.

Field paths: from `$worst.rank` to a value, and before anything ran, whether there can be such a field.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from difflib import get_close_matches
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from kair_engine.errors import UsageError

_PATH = r"[A-Za-z_]\w*(?:\.\w+|\[-?\d+\])*"
_REFERENCE = re.compile(rf"\$\{{({_PATH})\}}|\$({_PATH})")
_KEY = re.compile(r"\.(\w+)|\[(-?\d+)\]")
_PART = re.compile(
    rf"""'(?P<single>[^']*)' | "(?P<double>(?:\\.|[^"\\])*)" | \\(?P<escaped>.)
    | (?P<reference>{_REFERENCE.pattern}) | (?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPED = re.compile(r'\\(["\\$])')
_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_LITERALS: Final[dict[str, Any]] = {"true": True, "false": False, "null": None}


@dataclass(frozen=True)
class Reference:
    """`$worst.scores[0].rank`: a name that was given, and the way to a field of what it stands for."""

    name: str
    path: tuple[str | int, ...] = ()

    def __str__(self) -> str:
        steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return f"${self.name}{steps}"


@dataclass(frozen=True)
class Word:
    """What stands between two spaces: text, and references in it."""

    parts: tuple[str | Reference, ...]
    quoted: bool = False
    """Some of it stood in quotes: it is text, and neither a number nor a keyword."""

    @property
    def references(self) -> tuple[Reference, ...]:
        """The references in it."""
        return tuple(part for part in self.parts if isinstance(part, Reference))

    @property
    def text(self) -> str | None:
        """The word, where it refers to nothing; else None."""
        return None if self.references else "".join(str(part) for part in self.parts)

    def filled(self, text_of: Callable[[Reference], str]) -> str:
        """The word with each reference replaced."""
        return "".join(part if isinstance(part, str) else text_of(part) for part in self.parts)

    def value(self, value_of: Callable[[Reference], Any]) -> Any:  # noqa: ANN401
        """What it stands for: a referred value as it is, else a number, true, false, null or text."""
        if len(self.parts) == 1 and isinstance(self.parts[0], Reference) and not self.quoted:
            return value_of(self.parts[0])
        text = self.filled(lambda reference: str(value_of(reference)))
        return text if self.quoted else literal(text)


def literal(text: str) -> Any:  # noqa: ANN401
    """A number, true, false or null where `text` is one, else the text."""
    if _NUMBER.fullmatch(text):
        return float(text) if set(text.lower()) & set(".e") else int(text)
    return _LITERALS.get(text, text)


def words_of(text: str) -> tuple[Word, ...]:
    """The words of a line. Raises UsageError for a quote that is not closed."""
    words: list[Word] = []
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        word, at = read_word(text, at)
        words.append(word)
    return tuple(words)


def read_word(text: str, at: int, ends: str = "") -> tuple[Word, int]:
    """The word that begins at `at`, and where it ends: at a space or one of the signs `ends`."""
    parts: list[str | Reference] = []
    quoted = False
    while at < len(text) and not text[at].isspace() and text[at] not in ends:
        match = _part(text, at)
        quoted = quoted or match["single"] is not None or match["double"] is not None
        parts += _pieces(match)
        at = match.end()
    return Word(_joined(parts), quoted), at


def unquoted(text: str, signs: str) -> Iterator[int]:
    """Where one of `signs` stands outside quotes. Raises UsageError for a quote that is not closed."""
    at = 0
    while at < len(text):
        match = _part(text, at)
        if match["sign"] is not None and match["sign"] in signs:
            yield at
        at = match.end()


def without_comment(text: str) -> str:
    """The line up to a `#` that begins a word."""
    hashes = (at for at in unquoted(text, "#") if at == 0 or text[at - 1].isspace())
    return text[: next(hashes, len(text))].rstrip()


def split_at(text: str, sign: str) -> list[str]:
    """The parts between signs that stand outside quotes."""
    cuts = [-1, *unquoted(text, sign), len(text)]
    return [text[begin + 1 : end] for begin, end in pairwise(cuts)]


def reference_of(text: str) -> Reference:
    """`worst.scores[0].rank`, without the dollar."""
    name = re.match(r"\w+", text)
    assert name is not None  # what is called with text that _PATH matched
    keys = _KEY.findall(text, name.end())
    return Reference(name[0], tuple(key or int(number) for key, number in keys))


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
    """The inside of double quotes."""
    found: list[str | Reference] = []
    at = 0
    for match in re.finditer(rf"\\.|{_REFERENCE.pattern}", text):
        if match[0].startswith("\\"):
            continue
        found += [_ESCAPED.sub(r"\1", text[at : match.start()]), reference_of(match[0].strip("${}"))]
        at = match.end()
    return [*found, _ESCAPED.sub(r"\1", text[at:])]


def _joined(parts: list[str | Reference]) -> tuple[str | Reference, ...]:
    """Neighbouring texts as one; an empty word, which was quoted, has one empty text."""
    joined: list[str | Reference] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        elif part != "":
            joined.append(part)
    return tuple(joined) or ("",)


COUNT = "count"
"""The length of a list, as a field of it."""


@dataclass(frozen=True)
class Named:
    """An answer that was given a name: its data as in JSON, and which of its fields is the main table."""

    data: Any
    main: str | None = None


@dataclass(frozen=True)
class NamedType:
    """The same before the command ran."""

    type: Any
    main: str | None = None


def field_of(reference: Reference, named: Named) -> Any:  # noqa: ANN401
    """The value at the path. Raises UsageError where there is none.

    A field that an answer itself lacks is looked for in the first row of its main table: `$worst.rank` of localize.
    """
    value, path = named.data, reference.path
    if path and named.main and isinstance(value, dict) and path[0] not in value:
        path = (named.main, 0, *path)
    for at, key in enumerate(path):
        value = _step(value, key, reference, path[:at])
    return value


def text_of(reference: Reference, value: Any) -> str:  # noqa: ANN401
    """The value as an argument of a command: lists of plain values with commas. Raises UsageError for others."""
    if value is None:
        raise UsageError(f"{reference} is null", f"guard the line with when {reference} != null:")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple) and value and not any(isinstance(one, dict | list | tuple) for one in value):
        return ",".join(map(str, value))
    if isinstance(value, dict | list | tuple):
        empty = "empty" if not value else "a record" if isinstance(value, dict) else "a list"
        raise UsageError(f"{reference} is {empty}, and no value", _offer(_names(value)))
    return str(value)


def check_field(reference: Reference, named: NamedType) -> None:
    """Raises UsageError for a path that the type of the answer does not have."""
    path = reference.path
    fields = _fields(named.type)
    if path and named.main and fields is not None and path[0] not in fields:
        _require(path[0], reference, (*fields, *(_fields(_item(fields[named.main])) or ())))
        path = (named.main, 0, *path)
    kind = named.type
    for key in path:
        kind = _type_at(kind, key, reference)
        if kind is None:
            return


def fields_below(named: NamedType | None, path: Sequence[str | int]) -> tuple[str, ...]:
    """The fields that can follow on the path, for completion."""
    if named is None:
        return ()
    kind = named.type
    try:
        for key in path:
            kind = _type_at(kind, key, Reference("", tuple(path)))
    except UsageError:
        return ()
    below = _fields(kind)
    rows = _fields(_item(below[named.main])) if not path and below and named.main else None
    return tuple(dict.fromkeys([*(below or ()), *(rows or ())]))


def _step(value: Any, key: str | int, reference: Reference, before: Sequence[str | int]) -> Any:  # noqa: ANN401
    here = Reference(reference.name, tuple(before))
    if value is None:
        raise UsageError(f"{here} is null, and has no {key}", f"guard the line with when {here} != null:")
    if isinstance(value, list | tuple):
        if key == COUNT:
            return len(value)
        if not isinstance(key, int):
            return _entry(value, key, here)
        if not -len(value) <= key < len(value):
            raise UsageError(f"{here} has {len(value) or 'no'} entries: {here}[{key}] is not there")
        return value[key]
    if isinstance(value, dict):
        if str(key) not in value:
            raise UsageError(f"{here} has no field {key!r}", _offer(list(value), str(key)))
        return value[str(key)]
    raise UsageError(f"{here} is a plain value, and has no {key!r}")


def _entry(rows: Sequence[Any], key: str, here: Reference) -> Any:  # noqa: ANN401
    """The record whose first field is `key`: `$profile.parts.input.share`, `$ranks.scores.16.score`."""
    records = [row for row in rows if isinstance(row, dict) and row]
    for row in records:
        if str(next(iter(row.values()))) == key:
            return row
    there = [str(next(iter(row.values()))) for row in records]
    raise UsageError(f"{here} has no entry {key!r}", _offer(there, key) if there else f"name one: {here}[0].{key}")


def _type_at(kind: Any, key: str | int, reference: Reference) -> Any:  # noqa: ANN401
    """The type of a field; None where it is not known."""
    kind = _plain(kind)
    fields = _fields(kind)
    if fields is not None:
        _require(key, reference, fields)
        return fields[str(key)]
    if get_origin(kind) in (tuple, list, Sequence):
        if key == COUNT:
            return int
        if isinstance(key, str) and key in (_fields(_item(kind)) or ()):
            raise UsageError(f"{reference}: {key!r} is a field of a list's entries", f"name one of them: [0].{key}")
        return _item(kind)
    if get_origin(kind) in (dict, Mapping):
        return get_args(kind)[1]
    if kind in (str, int, float, bool):
        raise UsageError(f"{reference}: what has the field {key!r} is a plain value")
    return None


def _fields(kind: Any) -> dict[str, Any] | None:  # noqa: ANN401
    """The fields of a record, without the warnings, which stand beside the data in JSON."""
    kind = _plain(kind)
    if not (isinstance(kind, type) and is_dataclass(kind)):
        return None
    return {name: hint for name, hint in get_type_hints(kind).items() if name != "warnings"}


def _item(kind: Any) -> Any:  # noqa: ANN401
    arguments = get_args(_plain(kind))
    return arguments[0] if arguments else None


def _plain(kind: Any) -> Any:  # noqa: ANN401
    """The type without `| None`, and what a name for a type stands for."""
    if get_origin(kind) in (Union, UnionType):
        others = [one for one in get_args(kind) if one is not NoneType]
        return _plain(others[0]) if len(others) == 1 else kind
    return getattr(kind, "__supertype__", kind)


def _require(key: str | int, reference: Reference, fields: Iterable[str]) -> None:
    known = list(dict.fromkeys(fields))
    if str(key) not in known:
        raise UsageError(f"{reference}: there is no field {key!r}", _offer(known, str(key)))


def _names(value: Any) -> list[str]:  # noqa: ANN401
    return list(value) if isinstance(value, dict) else []


def _offer(names: Sequence[str], meant: str = "") -> str | None:
    near = get_close_matches(meant, names, n=1)
    return f"did you mean {near[0]}?" if near else f"there are: {', '.join(names)}" if names else None
