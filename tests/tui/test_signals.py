"""What a shell does to the program: ends it, stops it, takes its processes; the terminal is as it was after that."""

import re
import shlex
import shutil
import signal
import sys
from pathlib import Path

import pytest
from support import kineto_builder as kb
from support.places import SAMPLES
from support.terminals import PROGRAM, Tmux, full_screen, terminal_environment

pytestmark = pytest.mark.slow

SLOW = str(SAMPLES / "slow_operator")
VERDICT = "straggler: rank 2 (compute"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_leaves_the_terminal_as_it_was(number: int, tmp_path: Path) -> None:
    with full_screen(SLOW, environment=terminal_environment(tmp_path)) as terminal:
        terminal.wait_for("others wait")
        terminal.send(number)
        assert terminal.status() == 128 + number
        terminal.settle(0.1)
        *_, after = terminal.written.partition(b"\x1b[?1049l")
        assert b"\x1b[?25h" in after
        assert re.sub(rb"\x1b\[\?\d+[lh]", b"", after).strip() == b""


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_ctrl_z_leads_to_the_shell_and_fg_back(tmp_path: Path) -> None:
    environment = terminal_environment(tmp_path, PS1="ready> ")
    with Tmux(tmp_path, "bash --norc --noprofile -i", environment) as tmux:
        tmux.wait_for("ready>")
        tmux.press(shlex.join([*PROGRAM, SLOW]), "Enter")
        tmux.wait_for(VERDICT)
        tmux.press("C-z")
        assert VERDICT not in tmux.wait_for("Stopped")
        tmux.press("fg", "Enter")
        tmux.wait_for(VERDICT, "rank 2")
        tmux.press("q")
        tmux.wait_for("ready> fg")
        tmux.press("echo ended with $?", "Enter")
        tmux.wait_for("ended with 0")


def test_a_stop_in_the_middle_of_writing_is_heard_after_it(tmp_path: Path) -> None:
    # Textual's own handler would write as well, and wait for the lock that the interrupted writing holds.
    code = (
        "import os, signal, sys, kair_tui.cli.main, textual.drivers._writer_thread as w\n"
        "written = w.WriterThread.write\n"
        "def write(self, text):\n"
        "    if 'others wait' in text and not hasattr(w, 'stopped'):\n"
        "        w.stopped = True\n"
        "        with self._queue.mutex: os.kill(os.getpid(), signal.SIGTSTP)\n"
        "    written(self, text)\n"
        "w.WriterThread.write = write\n"
        "sys.exit(kair_tui.cli.main.main(['tui', *sys.argv[1:]]))"
    )
    program = (sys.executable, "-c", code)
    with full_screen(SLOW, environment=terminal_environment(tmp_path), program=program) as terminal:
        terminal.wait_for("others wait")
        terminal.wait_until_stopped()
        terminal.send(signal.SIGCONT)
        terminal.press("q")
        assert terminal.status() == 0


def test_a_large_job_is_parsed_by_processes_while_the_screen_is_shown(tmp_path: Path) -> None:
    # Of files of any size, which many small ones would make a minute's test.
    code = (
        "import sys, kair_tui.cli.main, kair_engine.recording.importing as i; i._PARALLEL_FROM = 0\n"
        "if __name__ == '__main__': sys.exit(kair_tui.cli.main.main(['tui', *sys.argv[1:]]))"
    )
    environment = terminal_environment(tmp_path, KAIR_CACHE=str(tmp_path / "cache"))
    job = str(kb.write_job(tmp_path / "job", [0, 1, 2]))
    with full_screen(job, environment=environment, program=(sys.executable, "-c", code)) as terminal:
        terminal.wait_for("3 ranks")
        terminal.press("q")
        assert terminal.status() == 0


def test_a_defect_while_opening_is_told_with_its_traceback_where_that_is_wanted(tmp_path: Path) -> None:
    code = (
        "import sys, kair_tui.cli.main, kair_tui.cli.wanted as o; o.locate = lambda *_: 1 / 0\n"
        "sys.exit(kair_tui.cli.main.main(['tui', *sys.argv[1:]]))"
    )
    environment = terminal_environment(tmp_path)
    with full_screen(SLOW, "--debug", environment=environment, program=(sys.executable, "-c", code)) as terminal:
        terminal.wait_for("ZeroDivisionError: division by zero")
        terminal.press("q")
        assert terminal.status() == 1
        terminal.settle(0.1)
        *_, after = terminal.written.partition(b"\x1b[?1049l")
        assert b"Traceback (most recent call last):" in after
