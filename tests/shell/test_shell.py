"""`kair shell`: batches from -c and stdin, and the prompt in a terminal."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.answers import recorded
from support.cli_samples import Outcome, kair
from support.places import SAMPLES
from support.program import KAIR
from support.terminals import full_screen, terminal_environment

from kair.app.jobs import JobSource
from kair.app.session import Session
from kair_tui.shell.completer import offers
from kair_tui.shell.runner import run_line
from kair_tui.shell.session import ShellState

SAMPLE = SAMPLES / "slow_operator"

pytestmark = pytest.mark.usefixtures("own_places")


def shell(commands: str, *arguments: str) -> Outcome:
    return kair("shell", str(SAMPLE), "-c", commands, *arguments)


def test_a_batch_prints_the_answers_and_nothing_else() -> None:
    outcome = shell("w = localize --json; pinpoint --rank $w.rank --json")
    localize, pinpoint = kair("localize", str(SAMPLE), "--json"), kair("pinpoint", str(SAMPLE), "--rank", "2", "--json")
    assert (outcome.status, outcome.out) == (0, localize.out + pinpoint.out)
    assert outcome.err == localize.err  # what both warn of is said once


def test_commands_come_from_stdin_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("use step last\nsteps --json\n"))
    outcome = kair("shell", str(SAMPLE))
    assert outcome.status == 0
    assert json.loads(outcome.out)["job"]["steps"] == [15]


def test_without_a_terminal_and_stdin_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    outcome = kair("shell", str(SAMPLE))
    assert (outcome.status, outcome.err) == (
        2,
        "kair: error: there is no terminal, and stdin is closed\nhint: kair shell -c 'COMMAND; COMMAND'\n",
    )


def test_a_batch_ends_at_the_first_failure_with_its_status() -> None:
    outcome = shell("localize --quiet\nuse rank 99\ninfo")
    assert outcome.status == 2
    assert outcome.out == kair("localize", str(SAMPLE)).out
    assert outcome.err == "kair: error: line 2: no rank 99 in this job (0-3)\nhint: use rank all for every rank\n"
    assert shell("localize --fail-on straggler; info -q").status == 10
    assert kair("shell", "/no/where", "-c", "info").status == 3
    assert shell("!true").status == 2


@pytest.mark.slow
def test_a_reader_that_goes_away_ends_a_batch_silently() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [*KAIR, "shell", str(SAMPLE), "-c", "schema; schema"]
    try:
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_what_can_stand_at_the_cursor_is_offered() -> None:
    state = ShellState()
    state.hold(Session(recorded(SAMPLE), JobSource(str(SAMPLE), SAMPLE, stored=False)), None)
    run_line("worst = localize", state)

    def offered(text: str) -> list[str]:
        return offers(text, state, lambda _: ["aten::mm", "kair_sample::mlp", "a b"])

    assert offered("tri") == ["triage"]
    assert offered("w = tri") == ["triage"]
    assert offered("info; loc") == ["localize"]
    assert offered("when 1 == 1: pin") == ["pinpoint"]
    assert offered("pinpoint --ra") == ["--rank"]
    assert offered("pinpoint --rank ") == ["all", "0", "1", "2", "3"]
    assert offered("use ")[:3] == ["rank", "step", "job"]
    assert offered("use rank 3") == ["3"]
    assert offered("steps --step 1") == ["10", "11", "12", "13", "14", "15"]
    assert offered("localize --method p") == ["paper"]
    assert offered("blame --operator ") == ["aten::mm", "kair_sample::mlp", "a b"]
    assert offered("pinpoint --rank $wo") == ["$worst"]
    assert offered("pinpoint --rank $worst.ra") == ["$worst.rank"]
    assert offered("x = $worst.scores[0].fl") == ["$worst.scores[0].flagged"]
    assert (offered("jobs r"), offered("mitigate --job job7 un")) == (["rm"], ["undo"])
    assert (offered("mitigate plan --si"), offered("mitigate audit --si")) == (["--sizes"], [])
    assert offered("nonsense --x") == offered("triage --nonsense") == []


BLOCKED = """\
import sys, threading
from kair_tui.cli.registry import Entry
load = Entry.load
def blocking(entry):
    run = load(entry)
    if entry.name != "frequency":
        return run
    from functools import wraps
    @wraps(run)
    def wait(*_, **__):
        print("waiting", flush=True)
        # By turns: another thread may be told of the signal, and then nothing ends one long wait.
        while not threading.Event().wait(0.1):
            pass
    return wait
Entry.load = blocking
from kair_tui.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_person_at_a_terminal_asks_narrows_stops_and_leaves(tmp_path: Path) -> None:
    recorded(SAMPLE)
    environment = terminal_environment(tmp_path, PROMPT_TOOLKIT_NO_CPR="1")
    program = (sys.executable, "-c", BLOCKED, "shell")
    with full_screen(str(SAMPLE), environment=environment, program=program) as terminal:
        terminal.wait_for("slow_operator 12 steps")
        terminal.press("use rank 2\r")
        terminal.wait_for("12 steps rank 2")
        terminal.press("use step 14-15\r")
        terminal.wait_for("step 14-15 rank 2")
        terminal.press("use rank 99\r")
        terminal.wait_for("kair: error: no rank 99")
        terminal.press("worst = stpes\r")
        terminal.wait_for("did you mean steps?")
        terminal.press("steps -o csv | sed s/^/out-/\r")
        terminal.wait_for("out-15,2")
        terminal.press("frequency\r")
        terminal.wait_for("waiting")
        terminal.send(signal.SIGINT)
        terminal.wait_for("stopped")
        terminal.press("!echo out-$((40+2))\r")
        terminal.wait_for("out-42")
        terminal.press("exit\r")
        assert terminal.status() == 0
    history = [file.read_text() for file in (tmp_path / "kair" / "shell_history").iterdir()]
    assert len(history) == 1 and "+use rank 2\n" in history[0]
