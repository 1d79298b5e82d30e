"""What `kair --help`, `kair spec` and completion say: exactly the commands that exist."""

import json
import os
import re
import subprocess
import sys

import pytest
from support.cli_samples import kair

from kair_tui.cli.registry import COMMANDS

EXISTING = {
    "tui",
    "triage",
    "localize",
    "pinpoint",
    "blame",
    "whatif",
    "rank",
    "sensitivity",
    "frequency",
    "steps",
    "info",
    "jobs",
    "use",
    "import",
    "spec",
    "schema",
}


def test_help_lists_exactly_the_existing_commands() -> None:
    outcome = kair("--help")
    assert outcome.status == 0
    commands = outcome.out.split("Find the straggler:")[1]
    assert set(re.findall(r"^  (\w+)  +\w", commands, re.MULTILINE)) == EXISTING


def test_without_arguments_the_help_is_shown() -> None:
    assert kair().out == kair("--help").out


@pytest.mark.parametrize("command", sorted(EXISTING))
def test_every_command_explains_itself_with_an_example(command: str) -> None:
    outcome = kair(command, "--help")
    assert outcome.status == 0
    assert "Examples:" in outcome.out
    assert f"    kair {command}" in outcome.out
    assert outcome.err == ""


def test_spec_describes_every_command_and_its_options() -> None:
    document = json.loads(kair("spec").out)
    assert document["schema"] == "kair.spec"
    commands = {command["name"]: command for command in document["data"]["commands"]}
    assert set(commands) == EXISTING
    options = {option["name"]: option for option in commands["pinpoint"]["options"]}
    assert options["rank"]["flags"] == ["--rank", "-r"]
    assert options["rank"] | {"help": ""} == {
        "name": "rank",
        "flags": ["--rank", "-r"],
        "type": "integer",
        "repeatable": False,
        "choices": None,
        "required": True,
        "default": None,
        "help": "",
    }
    assert options["method"]["choices"] == ["robust", "paper"]
    assert options["method"]["default"] == "robust"
    assert commands["triage"]["result"] == "TriageInWords"
    assert [argument["name"] for argument in commands["triage"]["arguments"]] == ["job"]
    assert all(command["examples"] for command in commands.values())


def test_only_the_verdicts_take_fail_on() -> None:
    document = json.loads(kair("spec").out)
    takers = {
        command["name"]
        for command in document["data"]["commands"]
        if any(option["name"] == "fail_on" for option in command["options"])
    }
    assert takers == {"triage", "localize"}


def test_version() -> None:
    outcome = kair("--version")
    assert (outcome.status, outcome.out.split()[0]) == (0, "kair")


def test_the_completion_script_is_printed_for_a_named_shell() -> None:
    completed = _process("--show-completion", "bash")
    assert completed.returncode == 0
    assert "_KAIR_COMPLETE=complete_bash" in completed.stdout


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("kair lo", ["localize"]),
        ("kair localize --method ", ["robust", "paper"]),
        ("kair schema tri", ["triage"]),
    ],
)
def test_the_shell_completes(words: str, offered: list[str]) -> None:
    asking = {
        "_KAIR_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    assert _process(environment=asking).stdout.split() == offered


def test_every_entry_has_a_summary_that_fits_a_line() -> None:
    assert all(entry.summary.endswith(".") and len(entry.summary) < 100 for entry in COMMANDS)


def _process(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kair_tui", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(environment or {})},
    )
