"""The conditions of `--fail-on`, which a script checks by the exit status.

They are those of `when` and `expect`, about the command's single answer, whose fields need no name before them. Some
answers also have shorthands, which are fields of a named answer too: `straggler`, `$t.straggler`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, get_args

from kair_engine.errors import UsageError
from kair_engine.results.triage import TriageResult
from kair_engine.results.watch import AlertKind, WatchResult
from kair_tui.cli.conditions import Comparison, Joined, ValueOf, parse_condition
from kair_tui.cli.conditions import Condition as Parsed
from kair_tui.cli.field_values import check_condition
from kair_tui.cli.fields import Named, NamedType, field_of, field_type, listed, nearest_of
from kair_tui.cli.registry import find
from kair_tui.cli.words import Reference, Word, field_named, literal, unquoted

_SLOWDOWN: Final = "slowdown"


def slowdown_of(result: TriageResult) -> float:
    """Return the step time divided by that without the findings, or, if not replayed together, without the costliest
    one.

    For a log, divide by the step time before the last lasting change.
    """
    found = [finding.slowdown for finding in result.findings]
    if result.together is not None and len(found) > 1:
        found.append(1 + result.together.throughput_gain)
    if result.log is not None:
        found += [1 + one.share for one in result.log.changes if one.until is None]
    return max(found, default=1.0)


def _is_open(kind: AlertKind) -> Callable[[WatchResult], bool]:
    return lambda result: any(alert.kind == kind for alert in result.open_alerts())


_SHORTHANDS: Final[Mapping[str, Mapping[str, Callable[[Any], Any]]]] = {
    "triage": {
        "straggler": lambda result: result.verdict == "straggler",
        "job_wide": lambda result: result.verdict == "job_wide",
        "inconclusive": lambda result: result.verdict == "inconclusive",
        "finding": lambda result: bool(result.findings),
        _SLOWDOWN: slowdown_of,
    },
    "localize": {"straggler": lambda result: bool(result.slow_links) or any(row.flagged for row in result.scores)},
    "probe": {"slower": lambda result: result.verdict == "confirmed"},
    "watch": {
        **{kind: _is_open(kind) for kind in get_args(AlertKind)},
        "alert": lambda result: bool(result.open_alerts()),
    },
}
"""Command → the shorthands of its answer."""


def shorthand_types(command: str) -> dict[str, Any]:
    """Return the shorthands of the command's answer, with their types."""
    return {name: float if name == _SLOWDOWN else bool for name in _SHORTHANDS.get(command, ())}


def shorthands_of(command: str, result: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the values of an answer's shorthands."""
    return {name: value_of(result) for name, value_of in _SHORTHANDS.get(command, {}).items()}


def described(command: str) -> NamedType:
    """Return what is known of a command's answer in advance: its type, its main table, its shorthands."""
    entry = find(command)
    assert entry is not None  # the command is being run
    return NamedType(entry.result_type(), entry.load_view().main, shorthand_types(command))


@dataclass(frozen=True)
class Condition:
    """A condition about one answer."""

    command: str
    main: str | None
    asked: Parsed

    def is_met(self, result: Any) -> bool:  # noqa: ANN401
        """Return whether it holds for `result`. Raises UsageError if `result` lacks a compared value, such as a
        finding.
        """
        return self.asked.holds(self._value_of(result))

    def rests_on_estimates(self, result: Any) -> bool:  # noqa: ANN401
        """Return whether a slowdown only holds because of estimates, which are upper limits."""
        of_slowdown = any(one.path[:1] == (_SLOWDOWN,) for one in self.asked.references)
        if not of_slowdown or not isinstance(result, TriageResult) or not self.is_met(result):
            return False
        sure = tuple(finding for finding in result.findings if finding.priced_by != "excess")
        return not self.is_met(replace(result, findings=sure))

    def _value_of(self, result: Any) -> ValueOf:  # noqa: ANN401
        from kair_tui.render.document import to_plain

        shorthands = shorthands_of(self.command, result)

        def value_of(reference: Reference) -> Any:  # noqa: ANN401
            if reference.path[0] in shorthands:
                return field_of(reference, Named(None, None, shorthands))
            return field_of(reference, Named(to_plain(replace(result, warnings=())), self.main))

        return value_of


def parse_conditions(texts: Sequence[str], command: str) -> tuple[Condition, ...]:
    """Parse `straggler,verdict == inconclusive`, `slowdown>1.05`, each also by itself.

    Raises UsageError for anything else, an unknown field, or a value that a field never has.
    """
    answer = described(command)
    return tuple(_parsed(one.strip(), command, answer) for text in texts for one in _alternatives(text))


def _parsed(text: str, command: str, answer: NamedType) -> Condition:
    try:
        parsed = parse_condition(text)
    except UsageError as error:
        raise UsageError(f"--fail-on {text!r} is not a condition: {error}", _hint(answer)) from None
    try:
        condition = _about(parsed, answer, command)
    except UsageError as error:
        raise UsageError(f"--fail-on {text!r} is not a condition: {error}", error.hint or _hint(answer)) from None
    for reference in condition.references:
        _require_here(reference, text, command, answer)
    try:
        check_condition(condition, lambda _: answer)
    except UsageError as error:
        raise UsageError(f"--fail-on {text!r}: {error}", error.hint) from None
    return Condition(command, answer.main, condition)


_LIST: Final = re.compile(r"\bin\s+[^\s()]+$")
"""A list of values at the end: text after its comma belongs to it, unless a blank follows."""


def _alternatives(text: str) -> Iterator[str]:
    """Split at commas outside quotes, brackets, and a list after `in`."""
    begin = depth = 0
    for at in unquoted(text, ",()"):
        if text[at] != ",":
            depth += 1 if text[at] == "(" else -1
        elif depth <= 0 and not (_LIST.search(text[begin:at]) and not text[at + 1 : at + 2].isspace()):
            yield text[begin:at]
            begin = at + 1
    yield text[begin:]


def _about(condition: Parsed, answer: NamedType, command: str) -> Parsed:
    """Return the condition with bare words resolved to fields.

    The left side of a comparison is a field, the right side a value; the other way round if the left side is a number
    or quoted, and before `in` with a list of the answer.
    """
    if isinstance(condition, Joined):
        return Joined(condition.how, tuple(_about(part, answer, command) for part in condition.parts))
    for word in (condition.left, condition.right):
        if word is not None and word.references:
            raise UsageError(f"{word.references[0]}: here fields stand without a name", "verdict == straggler")
    left, right = _field(condition.left), condition.right and _field(condition.right)
    turned = condition.sign == "in" and right is not None and not _is_there(left, answer) and _is_there(right, answer)
    if left is not None and not turned:
        return replace(condition, left=left)
    if left is None and right is None:
        raise UsageError("it asks for no field")
    return Comparison(condition.left, condition.sign, right)


def _field(word: Word) -> Word | None:
    """Return the word as a field; None if it is a constant, quoted, or no path."""
    text = word.text or ""
    named = None if word.quoted or not isinstance(literal(text), str) else field_named(text)
    if named is None:
        return None
    first, *rest = named.path
    shorthand = str(first).lower()
    is_word = not rest and any(shorthand in known for known in _SHORTHANDS.values())
    return Word((Reference("", (shorthand,)) if is_word else named,))


def _is_there(word: Word | None, answer: NamedType) -> bool:
    if word is None or word.reference is None:
        return False
    try:
        field_type(word.reference, answer)
    except UsageError:
        return False
    return True


def _require_here(reference: Reference, text: str, command: str, answer: NamedType) -> None:
    """Raise UsageError for a single word that is neither a field nor a shorthand of this command."""
    name = str(reference)
    if _is_there(Word((reference,)), answer):
        return
    if command == "localize" and name in _SHORTHANDS["triage"]:
        what = "a slowdown" if name == _SLOWDOWN else f"{name!r}"
        raise UsageError(f"{command} does not report {what}", "use --fail-on straggler, or kair triage")
    if name == text:
        near = nearest_of(name, [*answer.shorthands])
        raise UsageError(f"--fail-on {text!r} is not a condition", f"did you mean {near}?" if near else _hint(answer))


def _hint(answer: NamedType) -> str:
    """Return a hint with the command's possible conditions."""
    words = [f"'{name}>1.05'" if name == _SLOWDOWN else name for name in answer.shorthands]
    return f"use {listed(words, ' or ')}, or compare a field: FIELD == VALUE"
