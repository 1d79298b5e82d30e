"""What `kair --help`, `kair spec` and completion say: exactly the commands that exist."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.cli_samples import kair
from support.program import KAIR

from kair_tui.cli.registry import COMMANDS

LINES = {line for line in Path(__file__).with_name("options.txt").read_text().split("\n") if line[:1].strip()}
EXISTING = {line.split()[0] for line in LINES}


def listed(text: str) -> list[str]:
    return re.findall(r"^  (\w+)  +\w", text.split("Find the straggler:")[1], re.MULTILINE)


def test_help_shows_the_commands_that_most_people_need() -> None:
    outcome = kair("--help")
    assert outcome.status == 0
    first = ["triage", "tui", "ticket", "compare", "whatif", "timeline", "capture", "watch", "confirm", "jobs", "fleet"]
    assert listed(outcome.out) == first
    assert f"kair help commands lists all {len(EXISTING)} commands." in outcome.out


def test_help_commands_lists_exactly_the_existing_ones() -> None:
    assert set(listed(kair("help", "commands").out)) == EXISTING


def test_without_arguments_the_help_is_shown() -> None:
    assert kair().out == kair("--help").out


@pytest.mark.parametrize("command", sorted(LINES))
def test_every_command_explains_itself_with_an_example(command: str) -> None:
    outcome = kair(*command.split(), "--help")
    assert outcome.status == 0
    assert "Examples:" in outcome.out
    assert f"    kair {command}" in outcome.out
    assert outcome.err == ""


def test_an_action_explains_its_own_options_only() -> None:
    assert "--no-agent" in kair("capture", "run", "--help").out
    assert "--stacks" not in kair("capture", "run", "--help").out
    assert "--no-agent" not in kair("capture", "now", "--help").out
    assert kair("help", "capture", "now").out.strip() == kair("capture", "now", "--help").out.strip()
    overview = kair("capture", "--help").out
    assert re.findall(r"^  (\w+)  +\w", overview, re.MULTILINE) == ["run", "now", "set", "attach"]
    assert "--no-agent" not in overview


@pytest.mark.parametrize(
    ("line", "meant"),
    [("capture nwo", "capture now"), ("jobs ls", "jobs list"), ("mitigate --job job7 stauts", "mitigate status")],
)
def test_an_unknown_action_is_one_line_and_the_nearest(line: str, meant: str) -> None:
    outcome = kair(*line.split())
    assert (outcome.status, outcome.out) == (2, "")
    typed = line.rsplit(maxsplit=1)[-1]
    assert outcome.err == f"kair: error: no such action {typed!r}\nhint: did you mean kair {meant}?\n"


def test_options_may_stand_before_the_action(tmp_path: Path) -> None:
    for line in ("jobs --store {0} --json", "jobs --store {0} list --json", "--json baseline --store={0}"):
        words = [word for word in line.format(tmp_path).split() if word != "--json"]
        outcome = kair(*words, "--json")
        assert (outcome.status, json.loads(outcome.out)["schema"]) == (0, f"kair.{words[0]}"), line


def test_help_shows_how_to_record_a_job() -> None:
    shown = kair("help", "record").out
    assert "torch.profiler.schedule(" in shown and "prof.step()" in shown
    assert "\n## " not in shown, "the section alone"


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
        "metavar": "R",
        "minimum": 0,
        "repeatable": False,
        "choices": None,
        "required": True,
        "default": None,
        "help": "",
    }
    assert options["method"]["choices"] == ["robust", "paper"]
    assert options["method"]["default"] == "robust"
    assert commands["triage"]["result"] == "TriageResult"
    assert [argument["name"] for argument in commands["triage"]["arguments"]] == ["job", "files"]
    assert all(command["examples"] for command in commands.values())


def test_only_the_verdicts_take_fail_on() -> None:
    document = json.loads(kair("spec").out)
    takers = {
        command["name"]
        for command in document["data"]["commands"]
        if any(option["name"] == "fail_on" for option in command["options"])
    }
    assert takers == {"triage", "localize", "probe", "watch"}


def test_version() -> None:
    outcome = kair("--version")
    assert (outcome.status, outcome.out.split()[0]) == (0, "kair")


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell", "pwsh"])
def test_the_completion_script_is_printed_for_a_named_shell(shell: str) -> None:
    completed = _process("--show-completion", shell)
    assert completed.returncode == 0
    assert "_KAIR_COMPLETE" in completed.stdout


@pytest.mark.slow
def test_completion_is_installed_once_and_leaves_what_is_there(tmp_path: Path) -> None:
    (tmp_path / ".bashrc").write_bytes(b"alias gr\xf6\xdfe=ls")
    for _ in range(2):
        assert _process("--install-completion", "bash", environment={"HOME": str(tmp_path)}).returncode == 0
    assert (tmp_path / ".bash_completions" / "kair.sh").read_text() == _process("--show-completion", "bash").stdout
    line = f"source '{tmp_path}/.bash_completions/kair.sh'\n"
    assert (tmp_path / ".bashrc").read_bytes() == b"alias gr\xf6\xdfe=ls\n" + line.encode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("kair lo", ["plain,localize"]),
        ("kair --ver", ["plain,--version"]),
        ("kair localize --method ", ["plain,robust", "plain,paper"]),
        ("kair schema tri", ["plain,triage"]),
        ("kair baseline s", ["plain,save"]),
        ("kair capture run --no", ["plain,--no-agent"]),
        ("kair jobs --wh", ["plain,--whatif"]),
        ("kair mitigate --job job7 au", ["plain,audit"]),
        ("kair evidence tra", ["file,tra"]),
        ("kair triage tra", ["file,tra"]),
    ],
)
def test_the_shell_completes(words: str, offered: list[str], tmp_path: Path) -> None:
    asking = {
        "_KAIR_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
        "KAIR_STORE": str(tmp_path),
    }
    assert _process(environment=asking).stdout.split() == offered


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not on this machine")
def test_bash_understands_the_script_that_is_printed_for_it(tmp_path: Path) -> None:
    program = tmp_path / "kair"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kair_tui "$@"\n')
    program.chmod(0o755)
    script = _process("--show-completion", "bash").stdout
    asking = f'{script}\nCOMP_WORDS=(kair loc)\nCOMP_CWORD=1\n_kair_completion {program}\necho "${{COMPREPLY[@]}}"'
    run = subprocess.run(["bash", "--norc", "-c", asking], capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("localize\n", "")


def test_every_entry_has_a_summary_that_fits_a_line() -> None:
    assert all(entry.summary.endswith(".") and len(entry.summary) < 100 for entry in COMMANDS)


def _process(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*KAIR, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(environment or {})},
    )


def test_a_man_page_for_each_command_says_what_the_help_says(tmp_path: Path) -> None:
    assert kair("--man-pages", str(tmp_path)).status == 0
    assert {page.name for page in tmp_path.iterdir()} == {"kair.1", *(f"kair-{'-'.join(x.split())}.1" for x in LINES)}
    page = (tmp_path / "kair-pinpoint.1").read_text()
    assert "\\fB\\-r, \\-\\-rank R\\fR\nThe rank to look at." in page
    assert "kair pinpoint traces/ \\-\\-rank 3" in page
    assert "\\fBkair triage\\fR" in (tmp_path / "kair.1").read_text()
    if shutil.which("man"):
        shown = subprocess.run(
            ["man", "--warnings", "-l", str(tmp_path / "kair-run.1")],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "MANWIDTH": "100", "LC_ALL": "C.UTF-8"},
        )
        assert shown.stderr == ""
        assert "--dry-run" in shown.stdout
