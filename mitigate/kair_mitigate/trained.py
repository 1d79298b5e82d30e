"""What a rank trained, written down row by row for the audit: a kill takes the last row at most."""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from kair_mitigate.plans import Share
from kair_mitigate.poison import Poisoned


class TrainedLog:
    """Rows of one rank and attempt; nothing where no run has a folder for them."""

    def __init__(self, file: TextIO | None, attempt: int) -> None:
        self._file, self._attempt = file, attempt

    @classmethod
    def of_run(cls, folder: Path | None, rank: int, attempt: int) -> "TrainedLog":
        """A file of its own in the run's folder, continued after a restart in place."""
        if folder is None:
            return cls(None, attempt)
        try:
            (folder / "trained").mkdir(exist_ok=True)
            return cls((folder / "trained" / f"{attempt}-{rank}.jsonl").open("a", encoding="ascii"), attempt)
        except OSError as error:
            warnings.warn(f"kair: what is trained is not written down: {error}", RuntimeWarning, stacklevel=2)
            return cls(None, attempt)

    def write(self, share: Share, rank: int, poisoned: Sequence[Poisoned]) -> None:
        """That the rank was given its part of a step; samples that could not be read are named, and told once each."""
        for one in poisoned:
            warnings.warn(f"kair: sample {one.sample} cannot be read: {one.error}", RuntimeWarning, stacklevel=2)
        if self._file is None:
            return
        places = share.places(rank)
        row = {"gen": self._attempt, "rank": rank, "step": share.step, "epoch": share.epoch}
        row |= {"begin": places.start, "end": places.stop}
        bad = {"poisoned": [one.sample for one in poisoned]} if poisoned else {}
        try:
            self._file.write(json.dumps(row | bad) + "\n")
            self._file.flush()
        except (OSError, ValueError) as error:
            warnings.warn(f"kair: what is trained is no longer written down: {error}", RuntimeWarning, stacklevel=2)
            self._file = None
