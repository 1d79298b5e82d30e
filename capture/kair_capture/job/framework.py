"""What a session asks of the framework that trains.

Marks steps in a profiler's own recording: each a scope that is entered and left between steps.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

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


class Framework(Protocol):
    """PyTorch, or another one."""

    def place(self) -> tuple[int, int] | None:
        """Rank and world size as the framework has them; None where it does not say."""

    def description(self) -> Mapping[str, Any]:
        """What the rank's file says: name, versions, process groups."""

    @property
    def marks_input(self) -> bool:
        """Whether its profiler tells by itself when a loop waits for data."""

    @property
    def profile_options(self) -> ProfileOptions:
        """What its profiler can record besides."""

    @property
    def refusal(self) -> str | None:
        """Why there is no profiler, if there is none for good."""

    def watch_communication(self) -> None:
        """From here on, up to `communication`, it is seen how this rank communicates."""

    def communication(self) -> Communication | None:
        """What was seen; None where the framework does not say."""

    def start_profile(self, options: ProfileOptions = NOTHING_MORE, /) -> "Profile | None":
        """Starts its profiler; None where someone else has it. `options` are some of `profile_options`."""


class Profile(Protocol):
    """The framework's profiler, running."""

    suffix: str
    """Of the file that it saves: `.json` or `.xplane.pb`."""
    is_lost: bool
    """Someone else wanted the profiler: what was recorded is given up."""

    def scope(self, name: str) -> AbstractContextManager[object]:
        """A stage of the step, as the profiler's own recording has it."""

    def begin_step(self, step: int) -> None:
        """Marks a step's begin."""

    def end_step(self) -> None:
        """Marks its end."""

    def stop(self) -> None:
        """Ends the recording."""

    def discard(self) -> None:
        """Ends it without keeping anything, and without waiting for other ranks: the job may be over."""

    def save(self, path: Path, details: Mapping[str, Any]) -> None:
        """Writes what was recorded. Kineto JSON has `details` as its `kair`; a profile of XLA has no place for them."""

    def collectives(self, begin: int, end: int) -> Sequence[Mapping[str, Any]]:
        """The collectives that were issued from `begin` to `end` (Unix, ns), as the framework numbers them."""


class StepMarks:
    """Of one profile; a framework's says what its marks are."""

    _mark: AbstractContextManager[object] | None = None

    def begin_step(self, step: int) -> None:
        """Marks a step's begin."""
        self._mark = self._marked(step)
        self._mark.__enter__()

    def end_step(self) -> None:
        """Marks its end."""
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.__exit__(None, None, None)

    def _marked(self, step: int) -> AbstractContextManager[object]:
        raise NotImplementedError
