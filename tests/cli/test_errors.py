"""What goes wrong is said in one line, with the exit status that belongs to it."""

import errno
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.cli_samples import RESULTS, answering, kair

from kair_engine.errors import InputError
from kair_engine.results.localize import LinkScore
from kair_engine.results.whatif import FixPrice
from kair_tui.cli.registry import Entry


def _failing(monkeypatch: pytest.MonkeyPatch, error: BaseException, *arguments: str) -> tuple[int, str]:
    def fail(*_: object, **__: object) -> None:
        raise error

    with answering(monkeypatch), monkeypatch.context() as patch:
        stand_in = Entry.load
        patch.setattr(Entry, "load", lambda entry: _wrapped(stand_in(entry), fail))
        outcome = kair("localize", *arguments)
    assert outcome.out == ""
    return outcome.status, outcome.err


def _wrapped(run: Callable[..., Any], fail: Callable[..., Any]) -> Callable[..., Any]:
    """`fail` with the options that `run` declares."""
    fail.__wrapped__ = run  # type: ignore[attr-defined]
    fail.__annotations__ = run.__annotations__
    return fail


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (
            InputError("rank 3's trace ends inside an event (byte 12)", "re-export it"),
            3,
            "kair: error: rank 3's trace ends inside an event (byte 12)\nhint: re-export it\n",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device", "/cache/x"),
            3,
            "kair: error: /cache/x: No space left on device\n",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "/t"), 3, "kair: error: /t: Permission denied\n"),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 141, ""),
    ],
)
def test_each_way_of_failing_has_its_status(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int, said: str
) -> None:
    assert _failing(monkeypatch, error) == (status, said)


def test_ascii_holds_for_errors_too() -> None:
    assert kair("info", "/nowhere/größe", "--ascii").err.isascii()


def test_a_defect_is_one_line_that_tells_how_to_report_it(monkeypatch: pytest.MonkeyPatch) -> None:
    status, said = _failing(monkeypatch, ZeroDivisionError("division by zero"))
    assert status == 1
    first, second = said.splitlines()
    assert first == "kair: error: ZeroDivisionError: division by zero"
    assert "report" in second
    assert "--debug" in second


def test_debug_shows_the_traceback_too(monkeypatch: pytest.MonkeyPatch) -> None:
    status, said = _failing(monkeypatch, ZeroDivisionError("division by zero"), "--debug")
    assert status == 1
    assert said.startswith("Traceback (most recent call last):\n")
    assert "\nkair: error: ZeroDivisionError: division by zero\n" in said


def test_a_name_in_an_error_cannot_move_the_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    _, said = _failing(monkeypatch, InputError("no job '\x1b[2J\x9b\u202e'"))
    assert said == "kair: error: no job '␛[2J\\x9b\\u202e'\n"


@pytest.mark.parametrize(
    ("condition", "status"),
    [
        ("straggler", 10),
        ("slowdown>1.05", 10),
        ("slowdown>1.051", 0),
        ("slowdown>=1.051", 10),
        ("slowdown > 2", 0),
    ],
)
def test_fail_on_tells_through_the_status(monkeypatch: pytest.MonkeyPatch, condition: str, status: int) -> None:
    with answering(monkeypatch):
        outcome = kair("triage", "--fail-on", condition)
    assert outcome.status == status
    assert outcome.out.startswith("straggler: rank 1")


def test_fail_on_straggler_of_localize(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(monkeypatch):
        assert kair("localize", "--fail-on", "straggler").status == 10


def test_fail_on_straggler_of_localize_hears_of_slow_links_too(monkeypatch: pytest.MonkeyPatch) -> None:
    found = RESULTS["localize"]
    quiet = replace(found, scores=tuple(replace(row, flagged=False) for row in found.scores))
    link = LinkScore("dp", (0, 1), "all_reduce", 2.0, 1.0, 4, 0.001)
    for links, status in (((), 0), ((link,), 10)):
        with answering(monkeypatch, {"localize": replace(quiet, slow_links=links)}):
            assert kair("localize", "--fail-on", "straggler").status == status


def test_fail_on_takes_several_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(monkeypatch):
        assert kair("triage", "--fail-on", "inconclusive,job_wide").status == 0
        assert kair("triage", "--fail-on", "inconclusive, straggler").status == 10
        assert kair("triage", "--fail-on", "inconclusive", "--fail-on", "finding").status == 10


@pytest.mark.parametrize(
    ("verdict", "condition", "status"),
    [
        ("job_wide", "job_wide", 10),
        ("job_wide", "straggler", 0),
        ("job_wide", "finding", 10),
        ("inconclusive", "inconclusive", 10),
        ("no_straggler", "straggler,job_wide,inconclusive", 0),
    ],
)
def test_fail_on_a_verdict(monkeypatch: pytest.MonkeyPatch, verdict: str, condition: str, status: int) -> None:
    with answering(monkeypatch, {"triage": replace(RESULTS["triage"], verdict=verdict)}):
        assert kair("triage", "--fail-on", condition).status == status


def test_a_slowdown_that_only_an_estimate_tells_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = RESULTS["triage"]
    for priced_by, is_said in (("replay", False), ("excess", True)):
        priced = tuple(replace(one, priced_by=priced_by) for one in found.findings)
        with answering(monkeypatch, {"triage": replace(found, findings=priced)}):
            outcome = kair("triage", "--fail-on", "slowdown>1.05")
        assert (outcome.status, "met by an estimate" in outcome.err) == (10, is_said)


def test_the_slowdown_that_fails_is_of_all_findings_together(monkeypatch: pytest.MonkeyPatch) -> None:
    one = RESULTS["triage"].findings[0]
    together = FixPrice("all together", 90_000.0, 15_000.0, 0.14, 0.167, 1.0)
    both = replace(RESULTS["triage"], findings=(one, one), together=together)
    with answering(monkeypatch, {"triage": both}):
        assert kair("triage", "--fail-on", "slowdown>1.16").status == 10
        assert kair("triage", "--fail-on", "slowdown>1.17").status == 0
    with answering(monkeypatch, {"triage": replace(both, findings=(one,))}):
        assert kair("triage", "--fail-on", "slowdown>1.06").status == 0


@pytest.mark.parametrize(
    ("choice", "steps"),
    [
        ("all", (40, 41, 42)),
        ("last", (42,)),
        ("41", (41,)),
        ("40-41", (40, 41)),
        ("41-99", (41, 42)),
        ("40, 42", (40, 42)),
        ("40,41-42", (40, 41, 42)),
    ],
)
def test_steps_are_chosen(monkeypatch: pytest.MonkeyPatch, choice: str, steps: tuple[int, ...]) -> None:
    with answering(monkeypatch) as asked:
        assert kair("localize", "--step", choice).status == 0
    assert asked[0]["steps"] == steps
