"""The real program in a real terminal: what leaves it, and a walk through it in tmux."""

import io
import re
import shlex
import shutil
import sys
from dataclasses import asdict, fields
from pathlib import Path

import pytest
from rich.cells import cell_len
from support.cli_samples import kair
from support.kept_cases import assert_kept
from support.places import SAMPLES
from support.terminals import PROGRAM, Tmux, full_screen, terminal_environment

from kair_tui.render.terminal import ASCII, UNICODE, look_of

pytestmark = pytest.mark.slow

SLOW = str(SAMPLES / "slow_operator")
COLOUR = re.compile(rb"\x1b\[(?:[\d;]*;)?(?:[34][0-9]|9[0-7]|10[0-7])(?:;[\d;]*)?m")
MOUSE = re.compile(rb"\x1b\[\?(?:9|100[0-356]|1015|1016)h")
VERDICT = "straggler: rank 2 (compute, 22.3 of the 95.0 ms step)"


def test_a_move_of_the_cursor_sends_little_an_idle_screen_nothing_and_it_ends_with_its_terminal(tmp_path: Path) -> None:
    with full_screen(SLOW, environment=terminal_environment(tmp_path)) as terminal:
        terminal.wait_for("others wait")
        terminal.rest(1.0)
        assert COLOUR.search(terminal.written)
        terminal.press("h")
        sent = terminal.rest(0.5)
        assert b"1" in sent
        # 343 bytes: lines are sent from the left edge of their widget to the last cell that changed.
        assert len(sent) <= 400
        assert terminal.rest(1.0) == b""
        # Nor does anything hold it back when its terminal goes.
        assert terminal.hang_up() == 129


@pytest.mark.parametrize(
    ("arguments", "changes", "sent", "not_sent"),
    [
        (("--ascii",), {"TERM": "xterm"}, rb"\x1b\[[\d;]*3[0-7][;m]", rb"[34]8;[25];"),
        ((), {"LANG": "C", "TERM": "tmux-256color"}, rb"38;5;\d", rb"[34]8;2;"),
        ((), {"TERM": "xterm-256color", "COLORTERM": "truecolor"}, rb"38;5;\d", rb"[34]8;2;"),
    ],
)
def test_only_signs_and_colours_leave_that_the_terminal_has(
    arguments: tuple[str, ...], changes: dict[str, str], sent: bytes, not_sent: bytes, tmp_path: Path
) -> None:
    with full_screen(SLOW, *arguments, environment=terminal_environment(tmp_path, **changes)) as terminal:
        terminal.wait_for("others wait")
        terminal.press("?")
        terminal.wait_for("keys on overview")
        terminal.press("q")
        assert terminal.status() == 0
        assert re.search(sent, terminal.written)
        assert not re.search(not_sent, terminal.written)
        assert MOUSE.search(terminal.written)
        assert terminal.written.isascii() is (arguments == ("--ascii",) or "LANG" in changes)


def test_without_colours_and_mouse_neither_leaves_the_smallest_terminal(tmp_path: Path) -> None:
    environment = terminal_environment(tmp_path, TERM="screen")
    with full_screen(SLOW, "--no-color", "--no-mouse", environment=environment, size=(60, 20)) as terminal:
        terminal.wait_for("score 45.188")
        terminal.press("\t\t?")
        terminal.wait_for("keys on overview")
        terminal.press("q")
        assert terminal.status() == 0
        assert COLOUR.findall(terminal.written) == []
        assert b"\x1b[1m" in terminal.written
        assert MOUSE.findall(terminal.written) == []
        assert b"too small" not in terminal.written


def test_a_terminal_that_cannot_is_refused(tmp_path: Path) -> None:
    with full_screen(SLOW, environment=terminal_environment(tmp_path, TERM="dumb")) as terminal:
        assert terminal.status() == 2
        assert b"kair: error: kair-tui needs a terminal that moves its cursor (TERM is dumb)" in terminal.written
        assert b"\x1b" not in terminal.written


def test_a_resize_is_seen_whichever_thread_hears_of_it(tmp_path: Path) -> None:
    # Only the first thread is left to be given the signal, which the program itself cannot choose.
    code = (
        "import signal, sys, threading, kair_tui.cli.main\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})\n"
        "sys.exit(kair_tui.cli.main.main(['tui', *sys.argv[1:]]))"
    )
    program = (sys.executable, "-c", code)
    with full_screen(SLOW, environment=terminal_environment(tmp_path), program=program) as terminal:
        terminal.wait_for("others wait")
        terminal.settle(1.0)
        terminal.resize((59, 20))
        terminal.wait_for("too small: 59x20, needs 60x20")


@pytest.mark.parametrize(
    ("defect", "arguments"),
    [
        ("import kair_tui.tui.widgets.grid as g; g.CellGrid.render_line = lambda self, y: 1 / 0", ()),
        ("import kair_tui.tui.frame.view as v; v.ViewScreen._ask = lambda self, wanted: 1 / 0", ("--debug",)),
    ],
    ids=["in drawing", "in a thread"],
)
def test_a_defect_leaves_the_terminal_and_says_one_line(
    defect: str, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    code = f"import sys, kair_tui.cli.main; {defect}; sys.exit(kair_tui.cli.main.main(['tui', *sys.argv[1:]]))"
    program = (sys.executable, "-c", code)
    with full_screen(SLOW, *arguments, environment=terminal_environment(tmp_path), program=program) as terminal:
        assert terminal.status() == 1
        terminal.settle(0.1)
        *_, after = terminal.written.partition(b"\x1b[?1049l")
        said = re.sub(rb"\x1b\[\?\d+[lh]", b"", after).decode().splitlines()
        assert b"\x1b[?25h" in after
        assert said[-2] == "kair: error: ZeroDivisionError: division by zero"
        assert said[-1].startswith("hint: this is a defect of Kair")
        assert said[:-2] == [] if not arguments else "Traceback (most recent call last):" in said


def test_a_defect_is_told_at_once_though_an_analysis_goes_on(tmp_path: Path) -> None:
    code = (
        "import sys, threading, kair_tui.cli.main, kair_tui.tui.widgets.grid as g, kair_tui.tui.session as s; "
        "s.Session.ask = lambda self, question: threading.Event().wait(300); "
        "g.CellGrid.render_line = lambda self, y: 1 / 0; "
        "sys.exit(kair_tui.cli.main.main(['tui', *sys.argv[1:]]))"
    )
    with full_screen(
        SLOW, environment=terminal_environment(tmp_path), program=(sys.executable, "-c", code)
    ) as terminal:
        assert terminal.status() == 1
        terminal.settle(0.1)
        *_, after = terminal.written.partition(b"\x1b[?1049l")
        assert b"kair: error: ZeroDivisionError" in after and b"\x1b[?25h" in after


def test_a_job_that_is_not_there_ends_like_the_command(tmp_path: Path) -> None:
    with full_screen("no/such/job", environment=terminal_environment(tmp_path)) as terminal:
        terminal.wait_for("no/such/job: no such file or folder")
        terminal.press("q")
        assert terminal.status() == 3


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_from_the_first_screen_to_the_culprit_and_out(tmp_path: Path) -> None:
    command = shlex.join([*PROGRAM, SLOW])
    with Tmux(tmp_path, command, terminal_environment(tmp_path)) as tmux:
        finding = "1 ▲ rank 2 on node0: compute in kair_sample::mlp"
        tmux.wait_for("rank 2 · node0 · score 45.188 ▲ slow", VERDICT, finding)
        tmux.press(":", *"pinpoint --rank 2", "Enter")
        tmux.wait_for("overview › pinpoint --rank 2", "kair_sample::mlp")
        tmux.press("Escape")
        tmux.wait_for(VERDICT)
        tmux.press("o")
        tmux.wait_for("kair triage")
        tmux.resize(59, 20)
        tmux.wait_for("too small: 59x20, needs 60x20")
        tmux.resize(60, 20)
        tmux.wait_for("kair triage")
        tmux.press("Escape")
        tmux.wait_for("straggler: rank 2 (compute", "▲")
        tmux.press("q")
        tmux.wait_for("ended with 0")


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_from_the_list_of_jobs_to_a_verdict_and_back_without_colours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = terminal_environment(tmp_path, NO_COLOR="1")
    monkeypatch.setenv("KAIR_CACHE", environment["KAIR_CACHE"])
    for name, sample in (("night", SLOW), ("calm", SLOW.replace("slow_operator", "healthy"))):
        assert kair("import", sample, "--job", name, "--store", environment["KAIR_STORE"]).status == 0
    with Tmux(tmp_path, shlex.join(PROGRAM), environment) as tmux:
        shown = tmux.wait_for("u use", "calm", "night   not triaged yet")
        assert shown.index("calm") < shown.index("night   not triaged yet")
        tmux.press("j", "Enter")
        tmux.wait_for("jobs › night › overview")
        tmux.wait_for(VERDICT)
        tmux.press("Escape")
        tmux.wait_for("▲ night   straggler: rank 2 (compute")
        # tmux itself writes the terminal's own colours as 39 and 49.
        assert not COLOUR.search(re.sub(r"\x1b\[[34]9m", "", tmux.screen(styled=True)).encode())
        tmux.press("q")
        tmux.wait_for("ended with 0")


LOOKS: list[dict[str, str]] = [
    {"TERM": "xterm-256color", "LANG": "en_US.UTF-8"},
    {"TERM": "xterm", "COLORTERM": "truecolor", "LANG": "C"},
    {"TERM": "xterm-direct", "LANG": "en_US.ISO-8859-1"},
    {"TERM": "linux", "LANG": "C", "LC_ALL": "de_DE.utf8"},
    {"TERM": "screen", "LANG": "en_US.UTF-8", "LC_ALL": "C", "COLORFGBG": "0;15"},
    {"TERM": "vt100", "COLORFGBG": "15;0"},
    {"TERM": "xterm-256color", "NO_COLOR": "1"},
    {"TERM": "xterm-256color", "NO_COLOR": ""},
    {},
]


def test_colours_signs_and_theme_are_what_the_terminal_announces_or_what_was_asked_for() -> None:
    looks = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
        for environment in LOOKS:
            looks[" ".join(f"{name}={value}" for name, value in environment.items())] = asdict(look_of(environment))
            asked = look_of(environment, no_color=True, ascii_only=True, theme="light")
            assert (asked.colours, asked.ascii_only, asked.light) == ("none", True, True)
            assert not look_of(environment, theme="dark").light
    assert_kept("looks", looks)


def test_every_sign_has_a_twin_in_ascii() -> None:
    for field in fields(ASCII):
        plain, fancy = getattr(ASCII, field.name), getattr(UNICODE, field.name)
        assert plain.isascii()
        assert len(plain) == len(fancy) == cell_len(fancy)
