"""The language of the shell and of runbooks: words, references, conditions, blocks."""

from typing import Any

import pytest
from support.kept_cases import KeptCase, kept_cases

from kair_engine.errors import UsageError
from kair_tui.cli.conditions import parse_condition
from kair_tui.cli.fields import Named, field_of, text_of
from kair_tui.cli.words import Reference, words_of
from kair_tui.shell.language import Assign, Command, Expect, LineError, ShellCommand, When, parse

VALUES: dict[str, Named] = {
    "t": Named({"verdict": "straggler", "findings": [{"cause": "compute", "ranks": [1, 3], "edge": None, "p": 0.01}]}),
    "w": Named(
        {"method": "robust", "scores": [{"rank": 16, "flagged": True}, {"rank": 2, "flagged": False}]}, "scores"
    ),
    "limit": Named(1.05),
    "name": Named("a b; $(rm -rf /) `x` | y"),
}


def value_of(reference: Reference) -> Any:  # noqa: ANN401
    return field_of(reference, VALUES[reference.name])


def filled(line: str) -> list[str]:
    return [word.filled(lambda one: text_of(one, value_of(one))) for word in words_of(line)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("pinpoint --rank $w.rank", ["pinpoint", "--rank", "16"]),
        ("a --rank=$w.scores[-1].rank", ["a", "--rank=2"]),
        ("a ${w.rank}th", ["a", "16th"]),
        ("a $w.scores.2.flagged", ["a", "false"]),
        ("a $t.findings[0].ranks", ["a", "1,3"]),
        ("a $t.findings.count", ["a", "1"]),
        ("blame --operator $name", ["blame", "--operator", "a b; $(rm -rf /) `x` | y"]),
        (r"""a 'b $w.rank' "c $w.rank" d\ e \$w "\$w" '' """, ["a", "b $w.rank", "c 16", "d e", "$w", "$w", ""]),
        ("--scale op='flash*':0.5 Optimizer.step#Adam 5$", ["--scale", "op=flash*:0.5", "Optimizer.step#Adam", "5$"]),
    ],
)
def test_a_value_stays_one_word_whatever_is_in_it(line: str, words: list[str]) -> None:
    assert filled(line) == words


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("$t.verdict == straggler", True),
        ("$t.verdict != 'straggler'", False),
        ("$limit>=1.05 and $limit < 2", True),
        ("not $w.flagged or $t.findings[0].edge", False),
        ("not ($w.flagged and $t.findings[0].edge)", True),
        ("$t.findings[0].edge == null", True),
        ("$t.findings[0].cause in communication,compute", True),
        ("$t.findings[0].cause in (communication, compute)", True),
        ("$w.rank in (1,2) or $w.rank in ( 15 , 16 )", True),
        ("$w.rank in (1, 2)", False),
        ("$t.verdict in (job_wide, 'straggler',)", True),
        ("lambda == lambda and if != else", True),
        ("$t.findings[0].ranks contains 3", True),
        ("$t.findings[0].cause contains put", True),
        ("3 in $t.findings[0].ranks", True),
        ("$t.findings contains compute", True),
        ("$t.findings contains input", False),
        ("compute in $t.findings", True),
        ("'1.05' == $limit", False),
    ],
)
def test_conditions(condition: str, holds: bool) -> None:
    assert parse_condition(condition).holds(value_of) is holds


@pytest.mark.parametrize("case", kept_cases("unread_conditions"), ids=str)
def test_a_condition_that_cannot_be_answered_says_why(case: KeptCase) -> None:
    with pytest.raises(UsageError) as wrong:
        parse_condition(case.given["condition"]).holds(value_of)
    case.assert_said(str(wrong.value))


def test_a_runbook_is_lines_blocks_and_comments() -> None:
    text = """\
# what it is
t = triage --quiet   # trailing; nothing of this
when $t.verdict == straggler:
    kair blame --operator 'a;b # c'; info
    when $t.findings.count > 1: pinpoint --rank 1
expect $t.verdict != "job_wide: x"
!echo '; # not ours'
r = $t.findings[0].ranks[0]
"""
    ask, when, expect, system, give = parse(text)
    assert isinstance(ask, Command) and (ask.line, ask.name, ask.command) == (2, "t", "triage")
    assert isinstance(when, When) and (when.line, when.condition_text) == (3, "$t.verdict == straggler")
    assert [(one.line, one.text) for one in when.body] == [
        (4, "kair blame --operator 'a;b # c'"),
        (4, "info"),
        (5, "when $t.findings.count > 1:"),
    ]
    assert isinstance(expect, Expect) and expect.condition_text == '$t.verdict != "job_wide: x"'
    assert system == ShellCommand(7, "!echo '; # not ours'", "echo '; # not ours'")
    assert isinstance(give, Assign) and give.name == "r"
    assert parse("") == parse("\n # nothing\n") == ()
    assert len(parse("use rank")) == 1, "a job may be called so"


@pytest.mark.parametrize("case", kept_cases("unread_runbooks"))
def test_what_is_wrong_is_told_with_its_line(case: KeptCase) -> None:
    with pytest.raises(LineError) as wrong:
        parse(case.given["text"])
    case.assert_said([wrong.value.line, str(wrong.value)])
