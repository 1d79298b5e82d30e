"""A file that a person named has all that was to be in it, or is not there, wherever its writer is stopped."""

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import kair_engine.trace.files as module
from kair_engine.trace.files import atomic_write

_KILLED = """
import os, signal, sys
from pathlib import Path
from kair_engine.trace import files
if sys.argv[2] == "named":
    files._WITHOUT_NAME = 0
if sys.argv[2] == "linked":
    Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
with files.atomic_write(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    if sys.argv[2] != "linked":
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_file_that_is_not_finished_is_not_there(tmp_path: Path) -> None:
    file = tmp_path / "timeline.json.gz"
    file.write_text("before")
    file.chmod(0o640)
    with pytest.raises(OSError, match="No space"), atomic_write(file) as half:
        half.write(b"half")
        half.flush()
        raise OSError(errno.ENOSPC, "No space left on device")
    assert (file.read_text(), list(tmp_path.iterdir())) == ("before", [file])
    with atomic_write(file) as whole:
        whole.write(b"after")
    assert (file.read_text(), list(tmp_path.iterdir())) == ("after", [file])
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    with atomic_write(Path("/dev/null")) as device:
        device.write(b"gone")


@pytest.mark.parametrize("at", ["nameless", "named", "linked"])
def test_a_killed_writer_leaves_nothing_after_the_next_file(tmp_path: Path, at: str) -> None:
    """Where files need no name until they are written; where they do; at the moment when one has the other name."""
    file = tmp_path / "report.html"
    file.write_text("before")
    (tmp_path / ".mine.4711.0123abcd").write_text("no file of Kair's")
    command = (sys.executable, "-c", _KILLED, str(file), at)
    assert subprocess.run(command, check=False, env=dict(os.environ)).returncode == -signal.SIGKILL
    assert file.read_text() == "before"
    left = {path.name for path in tmp_path.iterdir()} - {file.name, ".mine.4711.0123abcd"}
    assert bool(left) == (at != "nameless")
    with atomic_write(tmp_path / "other.html") as other:
        other.write(b"whole")
    assert {path.name for path in tmp_path.iterdir()} == {file.name, "other.html", ".mine.4711.0123abcd"}


@pytest.mark.parametrize("without_name", [module._WITHOUT_NAME, 0])
def test_what_is_not_to_be_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_name: int) -> None:
    monkeypatch.setattr(module, "_WITHOUT_NAME", without_name)
    file = tmp_path / "screen.svg"
    with atomic_write(file, replace=False) as first:
        first.write(b"first")
    with pytest.raises(FileExistsError), atomic_write(file, replace=False) as second:
        second.write(b"second")
    assert (file.read_text(), list(tmp_path.iterdir())) == ("first", [file])
