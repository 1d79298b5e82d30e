"""Defines what a session needs from the training framework and its profiler.

Steps are marked in a profiler's recording: each is a scope that is entered and left between steps.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kair_capture.control import NOTHING_MORE, ProfileOptions

COMMUNICATION_FROM: Final = 3
COMMUNICATION_UNTIL: Final = 8
"""Communication is observed between the ends of these steps, after setup."""


@dataclass(frozen=True)
class Communication:
    """A rank's communication in some steps. Ranks with equal communication run the same program."""

    sends: tuple[int, ...] = ()
    """The ranks that it sent to, except by collectives."""
    receives: tuple[int, ...] = ()
    """Those that it received from."""
    groups: tuple[tuple[int, int], ...] = ()
    """Size and number of calls of each process group that was used."""


class Profile:
    """A framework's running profiler, with defaults for simple ones."""

    suffix = ".json"
    """Suffix of the file that it saves: `.json` or `.xplane.pb`."""
    is_lost = False
    """Whether the recording was abandoned because something else needed the profiler."""
    _mark: AbstractContextManager[object] | None = None

    def scope(self, name: str) -> AbstractContextManager[object]:
        """Return a stage of the step, as the profiler's own recording has it."""
        raise NotImplementedError

    def begin_step(self, step: int) -> None:
        """Mark a step's begin."""
        self._mark = self._marked(step)
        self._mark.__enter__()

    def end_step(self) -> None:
        """Mark a step's end."""
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
        """Write the recording. Kineto JSON has `details` as its `kair`; a profile of XLA has no place for them."""
        raise NotImplementedError

    def collectives(self, begin: int, end: int) -> Sequence[Mapping[str, Any]]:  # noqa: ARG002
        """Return the collectives issued from `begin` to `end` (Unix, ns), as the framework numbers them."""
        return []

    def _marked(self, step: int) -> AbstractContextManager[object]:
        raise NotImplementedError


class Framework:
    """PyTorch, or another framework, with defaults for simple ones."""

    marks_input = False
    """Whether its profiler itself shows when a loop waits for data."""
    profile_options = NOTHING_MORE
    """Extra data that its profiler can record."""
    refusal: str | None = None
    """Why there is no profiler, if permanently; the job may have it temporarily."""

    def place(self) -> tuple[int, int] | None:
        """Return rank and world size as the framework has them; None if it has none."""
        return None

    def description(self) -> Mapping[str, Any]:
        """Return the content of the rank's file: name, versions, process groups."""
        return {"framework": "none"}

    def watch_communication(self) -> None:
        """Observe how this rank communicates until `communication` is called."""

    def communication(self) -> Communication | None:
        """Return what was observed; None if the framework does not show it."""
        return None

    def start_profile(self, options: ProfileOptions = NOTHING_MORE, /) -> Profile | None:
        """Start its profiler; None if something else has it. `options` are some of `profile_options`."""
        raise NotImplementedError
