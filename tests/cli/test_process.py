"""The program as a process: pipes, interrupts, closed and full outputs, an unwritable home."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support.cli_samples import answering, kair
from support.patience import PATIENCE_S
from support.places import MEGATRON, SAMPLES
from support.program import KAIR

from kair_tui.cli import completion
from kair_tui.cli.output import ProgressBar

SAMPLE = SAMPLES / "slow_operator"


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        run = subprocess.run([*KAIR, "spec"], stdout=writer, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writer)
    assert run.returncode == 141
    assert run.stderr == b""


def test_help_into_a_closed_pipe_is_silent_too() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        run = subprocess.run([*KAIR, "--help"], stdout=writer, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writer)
    assert (run.returncode, run.stderr) == (141, b"")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize(
    "asked", [("spec",), ("steps", str(SAMPLE), "--json", "-q"), ("steps", str(SAMPLE), "-o", "ndjson", "-q")]
)
def test_a_full_disk_under_stdout_is_one_line(asked: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        run = subprocess.run([*KAIR, *asked], stdout=full, stderr=subprocess.PIPE, check=False, text=True)
    assert run.returncode == 3
    assert run.stderr == "kair: error: standard output: No space left on device\n"


def test_an_interrupt_is_status_130_without_a_word(tmp_path: Path) -> None:
    # The trace is a pipe that nobody writes to: opening it lasts until the interrupt comes.
    waiting = tmp_path / "interrupt.py"
    waiting.write_text(
        "import sys, kair_tui.cli.app, kair_tui.cli.main\n"
        "def wait(_):\n"
        "    print('ready', flush=True)\n"
        "    sys.stdin.read()\n"
        "kair_tui.cli.app.run = wait\n"
        "sys.exit(kair_tui.cli.main.main(['info']))\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(waiting)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (130, b"")


@pytest.mark.slow
def test_an_ascii_only_locale_gets_ascii() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    run = subprocess.run([*KAIR, "info", "/no/where/größe"], capture_output=True, check=False, env=environment)
    assert run.returncode == 3
    assert run.stderr.isascii()
    assert run.stderr.startswith(b"kair: error: /no/where/gr")


@pytest.mark.skipif(not MEGATRON.exists(), reason="the shared traces are not on this machine")
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere; see the test below")
def test_an_unwritable_home_does_not_stand_in_the_way(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert _info_at_home(tmp_path).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not MEGATRON.exists(), reason="the shared traces are not on this machine")
def test_a_home_that_is_no_folder_does_not_stand_in_the_way(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("")
    run = _info_at_home(home)
    assert run.returncode == 0, run.stderr
    assert "8 ranks" in run.stdout
    assert "cannot write the cache" in run.stderr
    assert list(tmp_path.iterdir()) == [home], "what took the cache's place is gone"


def _info_at_home(home: Path) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "KAIR_"))}
    return subprocess.run(
        [*KAIR, "info", str(MEGATRON)],
        capture_output=True,
        text=True,
        check=False,
        env={**kept, "HOME": str(home), "TMPDIR": str(home.parent)},
    )


@pytest.mark.slow
@pytest.mark.parametrize("module", ["click", "kair_tui.cli.app", "kair_tui.commands.spec"])
def test_an_interrupt_while_the_program_starts_is_status_130_too(module: str) -> None:
    program = (
        "import signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == sys.argv[-1]: signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from kair_tui.cli.main import main\n"
        "sys.exit(main(['spec']))\n"
    )
    run = subprocess.run([sys.executable, "-c", program, module], capture_output=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (130, b"", b"")


def test_long_work_without_a_terminal_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr("kair_tui.cli.output.time.monotonic", lambda: now[0])
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))  # as where a program imports Jupyter's
    told = ProgressBar(quiet=False, ascii_only=False)
    for second in range(0, 13, 2):
        now[0] = second
        told(second, 12, "stall\x1b")
    assert capsys.readouterr().err == "kair: 6 of 12: stall␛\nkair: 12 of 12: stall␛\n"
    ProgressBar(quiet=True, ascii_only=False)(1, 2, "stall")
    assert capsys.readouterr().err == ""


def test_sensitivity_is_told_whom_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(monkeypatch) as asked:
        assert kair("sensitivity").status == 0
    assert isinstance(asked[0]["progress"], ProgressBar)


def test_a_startup_file_without_room_stays_as_it_was(tmp_path: Path) -> None:
    """Every shell would obey half a line."""
    startup = tmp_path / ".bashrc"
    startup.write_text("#" * 4000)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4010, limits[1]))
    try:
        with pytest.raises(OSError, match="No space left"):
            completion._add_line(startup, "source '/home/me/.bash_completions/kair.sh'")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert startup.read_text() == "#" * 4000
