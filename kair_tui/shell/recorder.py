"""Records a runbook: one line per command that was run, for `kair run` and for reading."""

import shlex
from pathlib import Path
from typing import Final

from kair.app.jobs import is_stored
from kair.app.places import store_root
from kair_engine.errors import UsageError

_RUN_BY: Final = "#!/usr/bin/env -S kair run"
_EXECUTABLE: Final = 0o111
_JOB: Final = 2
"""Index of the job in a command, after `kair` and the command's name."""


class Recorder:
    """Writes each command at once, so that nothing is lost when the program ends."""

    def __init__(self) -> None:
        self.file: Path | None = None
        """The file it records to; None while it does not."""
        self._known: set[str] = set()

    def start(self, path: Path, job: str) -> None:
        """Begin a new file about `job`. Raises UsageError if `path` exists, OSError if it cannot be written."""
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(f"{_RUN_BY}\n# what was looked at in {' '.join(job.split())}\n")
            path.chmod(path.stat().st_mode | _EXECUTABLE)
        except FileExistsError:
            raise UsageError(f"{path} exists already", "choose another name") from None
        self.file, self._known = path.absolute(), set()

    def add(self, command: str) -> None:
        """Record a command, once however often it runs. Raises OSError if the file cannot be written."""
        line = from_anywhere(command)
        if self.file is None or line in self._known:
            return
        with self.file.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
        self._known.add(line)

    def stop(self) -> Path | None:
        """End the recording and return its file."""
        done, self.file = self.file, None
        return done


def from_anywhere(command: str) -> str:
    """Return the command with absolute paths for relative ones; names of jobs in the store stay."""
    words = shlex.split(command)
    root = Path(words[words.index("--store") + 1]) if "--store" in words[:-1] else None
    for at in range(_JOB, len(words)):
        is_place = words[at - 1] in ("--store", "--timeline", "--out")
        is_source = (at == _JOB and not is_stored(words[at], store_root(root))) or words[1] == "import"
        if is_place or (is_source and not words[at].startswith("-") and Path(words[at]).exists()):
            words[at] = str(Path(words[at]).absolute())
    return shlex.join(words)
