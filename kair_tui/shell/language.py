"""The language of the shell and of runbooks: from text to statements, each with its line."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from kair_engine.errors import UsageError
from kair_tui.cli.conditions import Condition, parse_condition
from kair_tui.cli.fields import nearest_of
from kair_tui.cli.registry import COMMANDS, find
from kair_tui.cli.words import Word, split_at, unquoted, without_comment, words_of

_GIVEN = re.compile(r"([A-Za-z_]\w*)\s*=(?!=)\s*(.*)", re.DOTALL)
_DEFAULT = re.compile(r"default\s+([A-Za-z_]\w*)\s*=(?!=)\s*(.*)", re.DOTALL)
KEYWORDS: Final = ("when", "expect", "fail", "default", "use")

Focused = Literal["job", "step", "rank"]


@dataclass(frozen=True)
class Command:
    """A command of the registry, optionally with a name for its answer or a program that reads it."""

    line: int
    text: str
    words: tuple[Word, ...]
    name: str | None = None
    pipe: str | None = None

    @property
    def command(self) -> str:
        """The command's name, which is never a reference."""
        return self.words[0].text or ""


@dataclass(frozen=True)
class Assign:
    """`rank = $worst.rank`, or with `default` a value that `--set` may replace."""

    line: int
    text: str
    name: str
    value: Word
    is_default: bool = False


@dataclass(frozen=True)
class When:
    """Statements that run only if the condition holds."""

    line: int
    text: str
    condition: Condition
    condition_text: str
    body: "tuple[Statement, ...]"


@dataclass(frozen=True)
class Expect:
    """A condition that counts as a finding if it does not hold."""

    line: int
    text: str
    condition: Condition
    condition_text: str


@dataclass(frozen=True)
class Fail:
    """Ends the run with a message."""

    line: int
    text: str
    message: Word


@dataclass(frozen=True)
class Use:
    """`use rank 16`, `use step 40-60`, `use job NAME`: narrows all that follows; `use NAME` also changes the store."""

    line: int
    text: str
    what: Focused
    value: Word
    tell_store: bool = False


@dataclass(frozen=True)
class ShellCommand:
    """A line for the system's shell, without the `!`."""

    line: int
    text: str
    command: str


Statement = Command | Assign | When | Expect | Fail | Use | ShellCommand


class LineError(UsageError):
    """An error in a line of a text, with its number."""

    def __init__(self, line: int, error: UsageError) -> None:
        super().__init__(str(error), error.hint)
        self.line = line


_Guard = tuple[Condition, str]
"""A condition, and its text."""


@dataclass(frozen=True)
class _Line:
    number: int
    indent: int
    text: str


def parse(text: str) -> tuple[Statement, ...]:
    """Return the statements of a runbook, of `-c` or of a typed line. Raises LineError."""
    lines = list(_lines(text))
    statements, used = _block(lines, 0, lines[0].indent if lines else 0)
    if used < len(lines):
        raise LineError(lines[used].number, UsageError("this line is indented less than the first"))
    return statements


def _lines(text: str) -> Iterator[_Line]:
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.expandtabs(4)
        try:
            kept = line.rstrip() if line.lstrip().startswith("!") else without_comment(line)
        except UsageError as error:
            raise LineError(number, error) from None
        if kept.strip():
            yield _Line(number, len(kept) - len(kept.lstrip()), kept.strip())


def _block(lines: Sequence[_Line], at: int, indent: int) -> tuple[tuple[Statement, ...], int]:
    """Return the statements with this indentation, and the index of the first line without it."""
    found: list[Statement] = []
    while at < len(lines) and lines[at].indent >= indent:
        line = lines[at]
        if line.indent > indent:
            raise LineError(line.number, UsageError("this line is indented, and belongs to no `when`"))
        at += 1
        try:
            statements, awaits = _statements(line)
        except UsageError as error:
            raise error if isinstance(error, LineError) else LineError(line.number, error) from None
        if awaits is not None:
            if at == len(lines) or lines[at].indent <= indent:
                raise LineError(line.number, UsageError("nothing follows this `when`", "indent what depends on it"))
            body, at = _block(lines, at, lines[at].indent)
            statements.append(When(line.number, line.text, *awaits, body))
        found += statements
    return tuple(found), at


def _statements(line: _Line) -> tuple[list[Statement], _Guard | None]:
    """Return the statements on the line, and the condition of a `when` with a body on the following lines."""
    if line.text.startswith("!"):
        return [ShellCommand(line.number, line.text, line.text[1:].strip())], None
    if _first_word(line.text) == "when":
        guard, rest = _when(line.text)
        if not rest:
            return [], guard
        body, awaits = _statements(_Line(line.number, line.indent, rest))
        if awaits is not None:
            raise UsageError("a `when` inside a `when` stands on a line of its own")
        return [When(line.number, f"when {guard[1]}:", *guard, tuple(body))], None
    texts = [text.strip() for text in split_at(line.text, ";")]
    found: list[Statement] = []
    for at, text in enumerate(texts):
        if _first_word(text) == "when":
            others, awaits = _statements(_Line(line.number, line.indent, "; ".join(texts[at:])))
            return [*found, *others], awaits
        if text:
            found.append(_statement(line.number, text))
    return found, None


def _when(text: str) -> tuple[_Guard, str]:
    """Return the condition and the text after its colon."""
    colons = (at for at in unquoted(text, ":") if at + 1 == len(text) or text[at + 1].isspace())
    colon = next(colons, None)
    if colon is None:
        raise UsageError("a colon is missing after the condition", "when CONDITION: COMMAND")
    condition = text[len("when") : colon].strip()
    return (parse_condition(condition), condition), text[colon + 1 :].strip()


def _statement(line: int, text: str) -> Statement:
    first = _first_word(text)
    rest = text[len(first) :]
    if first == "expect":
        return Expect(line, text, parse_condition(rest), rest.strip())
    if first == "fail":
        return Fail(line, text, _only_word(rest, 'fail "MESSAGE"'))
    if match := _DEFAULT.fullmatch(text):
        return Assign(line, text, match[1], _only_word(match[2], "default NAME = VALUE"), is_default=True)
    if match := _GIVEN.fullmatch(text):
        value = match[2].strip()
        if value.startswith("$"):
            return Assign(line, text, match[1], _only_word(value, "NAME = $RESULT.FIELD"))
        return _command(line, text, value, match[1])
    return _use(line, text) or _command(line, text, text)


def _use(line: int, text: str) -> Use | None:
    words = words_of(text)
    words = words[1:] if words[0].text == "kair" else words
    if not words or words[0].text != "use" or any((word.text or "").startswith("-") for word in words):
        return None
    whats: dict[str | None, Focused] = {"rank": "rank", "step": "step", "steps": "step", "job": "job"}
    if len(words) == 3 and (what := whats.get(words[1].text)):
        return Use(line, text, what, words[2])
    if len(words) == 2:
        return Use(line, text, "job", words[1], tell_store=True)
    raise UsageError("use what?", "use rank 16, use step 40-60, use job NAME; `all` for every rank or step")


def _command(line: int, text: str, command: str, name: str | None = None) -> Command:
    asked, *pipes = split_at(command, "|")
    words = words_of(asked)
    if words and words[0].text == "kair":
        words = words[1:]
    if not words:
        raise UsageError("no command", "? lists them")
    if pipes and not "|".join(pipes).strip():
        raise UsageError("nothing follows the |")
    _require_command(words[0].text)
    return Command(line, text, words, name, "|".join(pipes).strip() or None)


def _require_command(name: str | None) -> None:
    entry = find(name) if name else None
    if entry is None:
        near = nearest_of(name or "", [*(entry.name for entry in COMMANDS if entry.is_single), *KEYWORDS])
        raise UsageError(f"no such command {name or '$…'!r}", f"did you mean {near}?" if near else "? lists them")
    if not entry.is_single:
        raise UsageError(f"{entry.name} cannot be asked here: it takes the terminal, or commands, itself")


def _only_word(text: str, usage: str) -> Word:
    words = words_of(text)
    if len(words) != 1:
        raise UsageError("one value is wanted here" if words else "a value is missing", usage)
    return words[0]


def _first_word(text: str) -> str:
    match = re.match(r"\w+", text)
    return match[0] if match else ""
