"""The real program in a real terminal: what leaves it, and a walk through it in tmux."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from pseudo_terminal import PROGRAM, BareTerminal, Tmux, terminal_environment

SLOW = str(Path(__file__).parents[1] / "sample_traces" / "slow_operator")
COLOUR = re.compile(rb"\x1b\[(?:[\d;]*;)?(?:[34][0-9]|9[0-7]|10[0-7])(?:;[\d;]*)?m")
VERDICT = "straggler: rank 2 (compute, 22.8 ms a step)"


def test_an_idle_screen_sends_nothing(tmp_path: Path) -> None:
    with BareTerminal(SLOW, environment=terminal_environment(tmp_path)) as terminal:
        terminal.wait_for("makes others wait")
        terminal.settle(1.0)
        assert terminal.settle(1.0) == b""


def test_a_move_of_the_cursor_sends_little(tmp_path: Path) -> None:
    with BareTerminal(SLOW, environment=terminal_environment(tmp_path)) as terminal:
        terminal.wait_for("makes others wait")
        terminal.settle(1.0)
        terminal.press("h")
        sent = terminal.settle(0.5)
        assert b"1" in sent
        assert len(sent) <= 400


@pytest.mark.parametrize(
    ("arguments", "changes"),
    [(("--ascii",), {}), ((), {"LANG": "C"}), ((), {"LANG": ""})],
)
def test_in_ascii_no_other_byte_leaves(arguments: tuple[str, ...], changes: dict[str, str], tmp_path: Path) -> None:
    with BareTerminal(SLOW, *arguments, environment=terminal_environment(tmp_path, **changes)) as terminal:
        terminal.wait_for("makes others wait")
        terminal.press("?")
        terminal.wait_for("keys everywhere")
        terminal.press("\x1b")
        terminal.settle(0.5)
        terminal.press("q")
        assert terminal.status() == 0
        assert terminal.written.isascii()


@pytest.mark.parametrize(("arguments", "changes"), [(("--no-color",), {}), ((), {"NO_COLOR": "1"})])
def test_without_colours_no_colour_code_leaves(
    arguments: tuple[str, ...], changes: dict[str, str], tmp_path: Path
) -> None:
    with BareTerminal(SLOW, *arguments, environment=terminal_environment(tmp_path, **changes)) as terminal:
        terminal.wait_for("makes others wait")
        terminal.press("?")
        terminal.wait_for("keys everywhere")
        terminal.press("q")
        assert terminal.status() == 0
        assert COLOUR.findall(terminal.written) == []
        assert b"\x1b[1m" in terminal.written


def test_colours_leave_otherwise(tmp_path: Path) -> None:
    with BareTerminal(SLOW, environment=terminal_environment(tmp_path)) as terminal:
        terminal.wait_for(VERDICT.split(maxsplit=1)[0])
        assert COLOUR.search(terminal.written)


def test_a_terminal_that_cannot_is_refused(tmp_path: Path) -> None:
    with BareTerminal(SLOW, environment=terminal_environment(tmp_path, TERM="dumb")) as terminal:
        assert terminal.status() == 2
        assert b"kair: error: kair-tui needs a terminal that moves its cursor (TERM is dumb)" in terminal.written
        assert b"\x1b" not in terminal.written


def test_a_job_that_is_not_there_ends_like_the_command(tmp_path: Path) -> None:
    with BareTerminal("no/such/job", environment=terminal_environment(tmp_path)) as terminal:
        terminal.wait_for("no/such/job: no such file or folder")
        terminal.press("q")
        assert terminal.status() == 3


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_from_the_first_screen_to_the_culprit_and_out(tmp_path: Path) -> None:
    command = shlex.join([*PROGRAM, SLOW])
    with Tmux(tmp_path, command, terminal_environment(tmp_path)) as tmux:
        shown = tmux.wait_for("rank 2 · node0 · score 49.760 ▲ slow")
        assert VERDICT in shown
        assert "1 ▲ rank 2 on node0: compute in kair_sample::mlp" in shown
        tmux.press(":", *"pinpoint --rank 2", "Enter")
        assert "kair_sample::mlp" in tmux.wait_for("pinpoint --rank 2")
        tmux.press("Escape")
        tmux.wait_for(VERDICT)
        tmux.press("o")
        tmux.wait_for("kair triage")
        tmux.resize(50, 10)
        tmux.wait_for("too small: 50x10")
        tmux.resize(80, 24)
        tmux.wait_for("kair triage")
        tmux.press("q")
        tmux.wait_for("ended with 0")
