"""What every command takes, and what Typer makes of its declaration, are as they were kept."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import click
import pytest
import typer
from support.cli_samples import kair

from kair_tui.cli.app import help_text, parameters, parse
from kair_tui.cli.options import Argument, Option
from kair_tui.cli.registry import COMMANDS, Entry, find

LINES = [line for entry in COMMANDS for line in ([entry.doing(one.name) for one in entry.actions] or [entry])]
"""The entries of commands, and of the actions of those that have some."""
KEPT = Path(__file__).with_name("options.txt")


def test_every_command_takes_what_it_took() -> None:
    """`KAIR_UPDATE_SNAPSHOTS=1` writes the list anew: the command line is a promise, so look at the difference."""
    commands = json.loads(kair("spec").out)["data"]["commands"]
    taken = "".join(f"{line}\n" for command in commands for line in _written(command))
    if os.environ.get("KAIR_UPDATE_SNAPSHOTS"):
        KEPT.write_text(taken, encoding="utf-8")
    assert taken == KEPT.read_text(encoding="utf-8")


def _written(command: dict[str, Any], of: str = "") -> Iterator[str]:
    yield f"{of}{command['name']}"
    if command["actions"]:
        for action in command["actions"]:
            yield from _written(action, f"{command['name']} ")
        return
    for one in command["arguments"] + command["options"]:
        flags = ", ".join(one["flags"]) or one["name"].upper()
        kind = "|".join(one["choices"] or [one["type"]]) + ("..." if one["repeatable"] else "")
        minimum = "" if one["minimum"] is None else f" from {one['minimum']}"
        default = "required" if one["required"] else f"default {one['default']}"
        yield f"  {flags} {one['metavar'] or ''}: {kind}{minimum}, {default}".replace(" :", ":")


def test_commands_are_typers() -> None:
    assert all(isinstance(one, typer.core.TyperOption | typer.core.TyperArgument) for one in parameters(COMMANDS[1]))


@pytest.mark.parametrize("entry", LINES, ids=lambda entry: entry.line)
def test_an_argument_is_explained_once(entry: Entry) -> None:
    lines = help_text(entry).splitlines()
    for one in parameters(entry):
        if isinstance(one, click.Argument):
            assert one.help
            assert (
                sum(line.split()[:1] == [one.make_metavar(click.Context(click.Command("it")))] for line in lines) == 1
            )


def test_a_command_is_asked_with_tuples_whether_its_line_is_parsed_or_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []
    monkeypatch.setattr("kair_tui.cli.invoke.invoke", lambda _, arguments: asked.append(arguments) or 0)
    triage = find("triage")
    assert triage is not None
    for words in (["a"], ["a", "b", "c", "--evidence", "d", "--evidence", "e"]):
        assert kair("triage", *words).status == 0
        assert asked[-1] == parse(triage, words)
    assert (asked[0]["files"], asked[0]["evidence"]) == ((), ())
    assert (asked[1]["files"], asked[1]["evidence"]) == ((Path("b"), Path("c")), ("d", "e"))


def test_what_is_not_described_is_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command may be given a trace first, or nothing, and what is handed to it by name."""

    def with_trace(
        trace: object, *, limit: Annotated[int, Option("-l, --limit", "How many.", "N", 1)] = 3, cache: object = None
    ) -> None: ...

    def alone(words: Annotated[str, Argument("What to say.")], *, progress: object = None) -> None: ...

    for name, run, own in (("with-trace", with_trace, ["limit"]), ("alone", alone, ["words"])):
        monkeypatch.setattr(Entry, "load", lambda _, run=run: run)
        entry = Entry(name, "Some", "It does.", (f"kair {name}",), needs="nothing")
        assert [one.name for one in parameters(entry)] == [*own, "debug"]
