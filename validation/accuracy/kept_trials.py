"""Answers kept on disk as they come, so that a run that was stopped goes on where it was."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from trials import Batch, Trial


@dataclass(frozen=True)
class Answered:
    """A batch with what came of it: one line of the file."""

    batch: Batch
    trials: Sequence[Trial]


class KeptTrials:
    """Batches that were answered, in a file of JSON lines; without a file none are.

    What is kept is what the code of that day answered: a file belongs to one state of the project.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._of: dict[Batch, Sequence[Trial]] = {}
        whole, torn = _lines(path.read_bytes() if path is not None and path.exists() else b"")
        for line in whole:
            answered = msgspec.json.decode(line, type=Answered)
            self._of[answered.batch] = answered.trials
        if torn and path is not None:  # It was killed in the middle of writing.
            path.write_bytes(b"".join(whole))

    def get(self, batch: Batch) -> Sequence[Trial] | None:
        """Its trials, or None where it was not answered yet."""
        return self._of.get(batch)

    def keep(self, batch: Batch, trials: Sequence[Trial]) -> None:
        """Writes them at the end of the file."""
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(Answered(batch, trials)) + b"\n")


def _lines(data: bytes) -> tuple[list[bytes], bytes]:
    """Those that were written to their end, and what follows the last of them."""
    whole = data.splitlines(keepends=True)
    torn = whole.pop() if whole and not whole[-1].endswith(b"\n") else b""
    return whole, torn
