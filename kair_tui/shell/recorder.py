"""Records a runbook: the commands that show what was looked at, one a line."""

from pathlib import Path

from kair_engine.errors import UsageError


class Recorder:
    """Writes each command once it is asked, so that nothing is lost where the program ends."""

    def __init__(self) -> None:
        self.file: Path | None = None
        """Where it records to; None while it does not."""
        self._last: str | None = None

    def start(self, path: Path, job: str) -> None:
        """Begins a new file about `job`. Raises UsageError where `path` exists, OSError where it cannot be written."""
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(f"# what was looked at in {job}\n")
        except FileExistsError:
            raise UsageError(f"{path} exists already", "choose another name") from None
        self.file, self._last = path, None

    def add(self, command: str) -> None:
        """Records a command, once where it repeats. Raises OSError where the file cannot be written."""
        if self.file is None or command == self._last:
            return
        with self.file.open("a", encoding="utf-8") as file:
            file.write(f"{command}\n")
        self._last = command

    def stop(self) -> Path | None:
        """Ends the recording and tells where it is."""
        done, self.file = self.file, None
        return done
