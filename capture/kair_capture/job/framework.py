"""What a session asks of the framework that trains, and of its profiler.

Steps are marked in a profiler's own recording: each is a scope that is entered and left between steps.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kair_capture.control import NOTHING_MORE, ProfileOptions

COMMUNICATION_FROM: Final = 3
COMMUNICATION_UNTIL: Final = 8
"""The steps between whose ends it is seen how a rank communicates: not what it does to set itself up."""


@dataclass(frozen=True)
class Communication:
    """How a rank communicated in some steps. Ranks that do so alike run the same program."""

    sends: tuple[int, ...] = ()
    """The ranks that it sent to, other than by collectives."""
    receives: tuple[int, ...] = ()
    """Those that it received from."""
    groups: tuple[tuple[int, int], ...] = ()
    """Of each process group that was used: its size, and how many calls there were."""


class Profile:
    """A framework's profiler, running; with what is so of those that do little."""

    suffix = ".json"
    """Of the file that it saves: `.json` or `.xplane.pb`."""
    is_lost = False
    """Someone else wanted the profiler: what was recorded is given up."""
    _mark: AbstractContextManager[object] | None = None

    def scope(self, name: str) -> AbstractContextManager[object]:
        """Return a stage of the step, as the profiler's own recording has it."""
        raise NotImplementedError

    def begin_step(self, step: int) -> None:
        """Mark a step's begin."""
        self._mark = self._marked(step)
        self._mark.__enter__()

    def end_step(self) -> None:
        """Mark its end."""
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.__exit__(None, None, None)

    def stop(self) -> None:
        """End the recording."""
        raise NotImplementedError

    def discard(self) -> None:
        """End it without keeping anything, and without waiting for other ranks: the job may be over."""
        self.stop()

    def save(self, path: Path, details: Mapping[str, Any]) -> None:
        """Write what was recorded. Kineto JSON has `details` as its `kair`; a profile of XLA has no place for them."""
        raise NotImplementedError

    def collectives(self, begin: int, end: int) -> Sequence[Mapping[str, Any]]:  # noqa: ARG002
        """Return the collectives that were issued from `begin` to `end` (Unix, ns), as the framework numbers them."""
        return []

    def _marked(self, step: int) -> AbstractContextManager[object]:
        raise NotImplementedError


class Framework:
    """PyTorch, or another one; with what is so of those that tell little."""

    marks_input = False
    """Whether its profiler tells by itself when a loop waits for data."""
    profile_options = NOTHING_MORE
    """What its profiler can record besides."""
    refusal: str | None = None
    """Why there is no profiler, if there is none for good; at times the job has it."""

    def place(self) -> tuple[int, int] | None:
        """Rank and world size as the framework has them; None where it does not say."""
        return None

    def description(self) -> Mapping[str, Any]:
        """Return what the rank's file says: name, versions, process groups."""
        return {"framework": "none"}

    def watch_communication(self) -> None:
        """From here on, up to `communication`, it is seen how this rank communicates."""

    def communication(self) -> Communication | None:
        """Return what was seen; None where the framework does not say."""
        return None

    def start_profile(self, options: ProfileOptions = NOTHING_MORE, /) -> Profile | None:
        """Start its profiler; None where someone else has it. `options` are some of `profile_options`."""
        raise NotImplementedError
