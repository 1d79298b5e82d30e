"""Values that conditions compare: those that a field never has are refused before anything runs, wherever asked."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.cli_samples import kair
from support.kept_cases import KeptCase, kept_cases
from support.places import SAMPLES

from kair_engine.causes import CAUSES
from kair_engine.errors import UsageError
from kair_tui.cli.conditions import parse_condition
from kair_tui.cli.fail_on import described, parse_conditions, shorthand_types
from kair_tui.cli.field_values import check_condition
from kair_tui.cli.fields import fields_of, item_of
from kair_tui.cli.registry import COMMANDS, find
from kair_tui.commands.schema import schema_of
from kair_tui.shell.checks import check
from kair_tui.shell.language import LineError, parse

ANSWERING = [entry.name for entry in COMMANDS if entry.has_result]
ASKED_BY_FAIL_ON = [entry.name for entry in COMMANDS if entry.fails_on]


class FieldOfSchema(NamedTuple):
    """A plain field of a command's document, as its JSON Schema tells it: independent of what conditions look at."""

    command: str
    path: str
    types: frozenset[str]
    values: frozenset[str]
    """Of a text that is one of these; empty where it can be any."""


@cache
def fields(command: str) -> tuple[FieldOfSchema, ...]:
    entry = find(command)
    assert entry is not None
    schema = schema_of(entry)
    found: list[FieldOfSchema] = []
    seen: set[str] = set()

    def alternatives(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for one in node.get("anyOf", [node]):
            if "$ref" in one:
                yield schema["$defs"][one["$ref"].rsplit("/", 1)[-1]] | {"called": one["$ref"]}
            else:
                yield one

    def walk(node: dict[str, Any], path: str) -> None:
        every = [*alternatives(node)]
        for one in every:
            if "properties" in one and one.get("called", path) not in seen:
                seen.add(one.get("called", path))
                for name, child in one["properties"].items():
                    if name != "warnings":  # which stand beside the data, in words
                        walk(child, f"{path}.{name}" if path else name)
            elif one.get("type") == "array" and isinstance(one.get("items"), dict):
                walk(one["items"], f"{path}[0]")
        constants = [value for one in every for value in values_in(one)]
        types = {one["type"] for one in every if "type" in one} | {json_type(value) for value in constants}
        if path and types and types <= {"string", "integer", "number", "boolean", "null"}:
            any_text = any(one.get("type") == "string" and not values_in(one) for one in every)
            texts = frozenset() if any_text else frozenset(one for one in constants if isinstance(one, str))
            found.append(FieldOfSchema(command, path, frozenset(types), texts))

    walk(schema["properties"]["data"], "")
    return tuple(found)


def values_in(node: dict[str, Any]) -> list[Any]:
    return [*node.get("enum", ()), *(one["const"] for one in node.get("oneOf", ()) if "const" in one)]


def json_type(value: Any) -> str:  # noqa: ANN401
    return {str: "string", bool: "boolean", int: "integer", float: "number"}.get(type(value), "null")


@cache
def all_fields() -> list[FieldOfSchema]:
    return [field for command in ANSWERING for field in fields(command)]


@cache
def limited_fields() -> list[FieldOfSchema]:
    return [field for field in all_fields() if field.values]


def refused(field: FieldOfSchema, condition: str) -> UsageError | None:
    """What is said of it in a runbook, and that `--fail-on` of the same command says the same."""
    named = condition.replace(f"{field.path} ", f"$a.{field.path} ", 1)
    said = None
    try:
        check_condition(parse_condition(named), lambda _: described(field.command))
    except UsageError as error:
        said = error
    if field.command in ASKED_BY_FAIL_ON:
        try:
            parse_conditions([condition], field.command)
        except UsageError as error:
            assert said is not None, condition
            assert str(error).endswith(str(said).replace("$a.", "")) and error.hint == said.hint
        else:
            assert said is None, condition
    return said


def one_letter_off(one: str, other: str) -> bool:
    """By all single changes of a letter, with the letters of the other."""
    letters = {*other, "!"}
    cut = {one[:at] + one[at + 1 :] for at in range(len(one))}
    put = {one[:at] + letter + one[at:] for at in range(len(one) + 1) for letter in letters}
    other_letter = {one[:at] + letter + one[at + 1 :] for at in range(len(one)) for letter in letters}
    return other in cut | put | other_letter


@pytest.mark.slow
@pytest.mark.parametrize("command", ANSWERING)
def test_every_value_that_a_field_can_have_passes(command: str) -> None:
    for field in (one for one in fields(command) if one.values):
        for value in field.values:
            for sign in ("==", "!=", "in", "contains"):
                assert refused(field, f"{field.path} {sign} '{value}'") is None
        assert refused(field, f"{field.path} in '{','.join(field.values)}'") is None
        assert refused(field, f"{field.path} == null") is None


@given(data=st.data())
def test_a_misspelt_value_is_refused_and_the_right_one_named(data: st.DataObject) -> None:
    field = data.draw(st.sampled_from(limited_fields()))
    value = data.draw(st.sampled_from(sorted(field.values - {""})))
    at = data.draw(st.integers(0, len(value) - 1))
    letter = data.draw(st.sampled_from("abcdefghijklmnopqrstuvwxyz_"))
    change = data.draw(st.sampled_from(("other", "put", "cut")))
    wrong = value[:at] + {"other": letter, "put": letter + value[at], "cut": ""}[change] + value[at + 1 :]
    assume(wrong and wrong not in field.values)
    sign, text = data.draw(st.sampled_from([("==", wrong), ("!=", wrong), ("in", f"{value},{wrong}")]))
    error = refused(field, f"{field.path} {sign} '{text}'")
    assert error is not None
    message = re.fullmatch(r'(.*) is never "(.*)" \(did you mean (\w+)\?\)', str(error))
    assert message is not None, str(error)
    assert message[1] == f"$a.{field.path}" and message[2] == wrong
    assert message[3] == value or (message[3] in field.values and one_letter_off(wrong, message[3]))
    assert len(field.values) > 16 or all(one in (error.hint or "") for one in field.values)


@pytest.mark.slow
@pytest.mark.parametrize("command", ANSWERING)
def test_values_of_another_kind_are_refused(command: str) -> None:
    tried = {"'yes'": "string", "3": "integer", "2.5": "number", "true": "boolean"}
    for field in fields(command):
        for value, kind in tried.items():
            fits = kind in field.types or (kind == "integer" and "number" in field.types)
            fits &= not (kind == "string" and field.values)
            assert (refused(field, f"{field.path} == {value}") is None) is fits, (field.path, value)
        has_number = bool(field.types & {"integer", "number"})
        assert (refused(field, f"{field.path} > 3") is None) is has_number, field.path
        assert refused(field, f"{field.path} > 'many'") is not None, field.path


def test_verdicts_causes_and_kinds_are_among_them() -> None:
    limited = {(one.command, one.path): one.values for one in limited_fields()}
    assert len(all_fields()) > len(limited_fields()) > 60
    assert limited["triage", "verdict"] == {"straggler", "job_wide", "no_straggler", "inconclusive"}
    assert limited["triage", "findings[0].cause"] == {*CAUSES}
    assert "stalled" in limited["watch", "alerts[0].kind"]


@given(data=st.data())
def test_a_misspelt_field_is_refused_and_the_right_one_named(data: st.DataObject) -> None:
    field = data.draw(st.sampled_from(all_fields()))
    names = [*re.finditer(r"[a-z]\w+", field.path)]
    name = data.draw(st.sampled_from(names))
    at = data.draw(st.integers(name.start() + 1, name.end() - 1))
    wrong = field.path[:at] + "q" + field.path[at + 1 :]
    error = refused(field._replace(path=wrong), f"{wrong} == 1")
    assert error is not None
    asked = wrong[name.start() : name.end()]
    assert f"there is no field {asked!r}" in str(error) or f"there is no entry {asked!r}" in str(error)
    hint = re.fullmatch(r"did you mean (\w+)\?", error.hint or "")
    assert hint is not None
    assert hint[1] == name[0] or one_letter_off(asked, hint[1])


@pytest.mark.parametrize("command", ASKED_BY_FAIL_ON)
def test_shorthands_are_asked_alike_and_hide_no_field(command: str) -> None:
    answer = described(command)
    own = fields_of(answer.type) or {}
    rows = fields_of(item_of(own[answer.main])) if answer.main else {}
    assert not {*shorthand_types(command)} & {*own, *(rows or {})}
    for name, kind in shorthand_types(command).items():
        text = f"{name} > 1.05" if kind is float else name
        assert len(parse_conditions([text, text.upper()], command)) == 2
        check_condition(parse_condition(f"not $a.{text}"), lambda _: answer)


def said_of(text: str) -> tuple[int, str, str | None]:
    with pytest.raises(LineError) as wrong:
        check(parse(text), allow_shell=False, pipes=False)
    return wrong.value.line, str(wrong.value), wrong.value.hint


@pytest.mark.parametrize("case", kept_cases("wrong_values"))
def test_what_is_wrong_is_told_in_one_line(case: KeptCase) -> None:
    case.assert_said(said_of(case.given["text"]))


@pytest.mark.parametrize(
    "text",
    [
        "t = triage\nwhen $t.verdict in (straggler, job_wide) or $t.verdict contains inconc: info",
        "t = triage\nexpect not $t.straggler and $t.slowdown < 1.05",
        "default most = null\nt = triage\nwhen $most != null: expect $t.slowdown < $most",
        "default rank = null\nw = localize\nwhen $rank == null: who = $w.rank\nwhen $rank != null: who = $rank\n"
        "expect $who == 3",
        "t = triage\nx = $t.verdict\nwhen 1 == 1: x = $t.step_time_us\nexpect $x > 3 or $x == straggler",
        "t = triage\nexpect $t.findings.communication.ranks.count == 0",
        "w = localize\nexpect $w.scores.16.flagged == false",
    ],
)
def test_what_can_be_is_not_refused(text: str) -> None:
    check(parse(text), allow_shell=False, pipes=False)


@pytest.mark.usefixtures("own_places")
def test_values_that_are_set_are_checked_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kair_tui.shell.session.open_session", None)
    book = tmp_path / "book.kair"
    book.write_text("default wanted = straggler\nt = triage\nexpect $t.verdict != $wanted\n")
    for more in ((), ("--dry-run",)):
        outcome = kair("run", str(book), str(SAMPLES / "healthy"), "--set", "wanted=stragler", *more)
        assert (outcome.status, outcome.out) == (2, "")
        assert f'{book}:3: $t.verdict is never "stragler" ($wanted) (did you mean straggler?)' in outcome.err
    assert kair("run", str(book), str(SAMPLES / "healthy"), "--set", "wanted=job_wide", "--dry-run").status == 0
    fast = kair("run", "nightly", str(SAMPLES / "healthy"), "--set", "slowdown=1,05")
    assert (fast.status, '"1,05" ($slowdown) is no number' in fast.err) == (2, True)


@pytest.mark.parametrize(
    ("condition", "status"),
    [
        ("verdict in straggler,job_wide", 10),
        ("inconclusive,verdict in (job_wide, straggler)", 10),
        ("verdict == no_straggler,slowdown > 1.2", 10),
        ("findings.count > 0 and findings[0].cause == compute", 10),
        ("compute in findings and not inconclusive", 10),
        ("1.2 < slowdown", 10),
        ("slowdown>1.2 and findings.compute.ranks contains 3", 0),
        ("not straggler", 0),
        ("summary contains 'rank 2'", 10),
        ("rank == 2 and flagged", 10),
    ],
)
@pytest.mark.usefixtures("own_places")
def test_fail_on_takes_whole_conditions(condition: str, status: int) -> None:
    assert kair("triage", str(SAMPLES / "slow_operator"), "--fail-on", condition).status == status


@pytest.mark.usefixtures("own_places")
def test_fail_on_needs_what_it_compares() -> None:
    outcome = kair("triage", str(SAMPLES / "healthy"), "--fail-on", "findings[0].slowdown > 1.05")
    assert (outcome.status, "findings has no entries: findings[0] is not there" in outcome.err) == (2, True)


@pytest.mark.parametrize(
    "condition", ["not " * 3000 + "straggler", "(" * 3000 + "straggler", f"findings[{'9' * 5000}].slowdown > 1"]
)
def test_conditions_that_are_too_deep_or_long_are_refused_in_a_line(condition: str) -> None:
    with pytest.raises(UsageError):
        parse_conditions([condition], "triage")
