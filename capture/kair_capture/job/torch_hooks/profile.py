"""PyTorch's profiler for a few steps, and its recording as a file with what capture adds."""

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Final

import torch
from torch.autograd.profiler import profile as autograd_profile
from torch.profiler import ProfilerActivity, record_function
from torch.profiler.profiler import _KinetoProfile

from kair_capture.job.files import add_to_json
from kair_capture.job.guarding import replace
from kair_capture.job.sampled.step_marks import StepMarks

_MOST_COLLECTIVES: Final = 100_000


class TorchProfile(StepMarks):
    """One use of the profiler."""

    suffix = ".json"

    def __init__(self) -> None:
        """Starts it."""
        self.is_lost = False
        self._is_over = False
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            activities.append(ProfilerActivity.CUDA)
        # Every window is one cycle of its own; without acc_events PyTorch up to 2.11 warns that it forgets others.
        self._profile = _KinetoProfile(activities=activities, acc_events=True)
        self._profile.start()
        # And with it, when the profile ends, every event becomes an object of Python's, 50 µs each.
        assert self._profile.profiler is not None
        self._profile.profiler.acc_events = False

    def scope(self, name: str) -> AbstractContextManager[object]:
        """A scope of the script's, in the recording too."""
        scope: AbstractContextManager[object] = record_function(name)
        return scope

    def stop(self) -> None:
        """Ends the recording. Takes 2 to 6 µs an event."""
        if not self.is_lost:
            self._is_over = True
            self._profile.stop()

    def discard(self) -> None:
        """Ends the recording; nothing is kept of what is not saved."""
        self.stop()

    def yield_to(self, other: object) -> bool:
        """Gives the recording up where another profiler than this one is about to start. Whether it did."""
        if self.is_lost or self._is_over or other is self._profile.profiler:
            return False
        self.is_lost = True
        self._profile.stop()
        return True

    def save(self, path: Path, details: Mapping[str, Any]) -> None:
        """Writes Kineto JSON, 1.4 µs an event, and `details` into it as `kair`."""
        self._profile.export_chrome_trace(str(path))
        add_to_json(path, "kair", details)

    def collectives(self, begin: int, end: int) -> Sequence[Mapping[str, Any]]:
        """The flight recorder's entries of that time (Unix, ns); empty where it is off (TORCH_FR_BUFFER_SIZE)."""
        with suppress(ImportError, AttributeError, RuntimeError, ValueError, TypeError):
            from torch._C._distributed_c10d import _dump_fr_trace_json

            entries = json.loads(_dump_fr_trace_json(includeCollectives=True, onlyActive=False)).get("entries", [])
            own = [entry for entry in entries if begin <= entry.get("time_created_ns", 0) < end]
            return [{**entry, "frames": []} for entry in own[:_MOST_COLLECTIVES]]
        return []

    def _marked(self, step: int) -> AbstractContextManager[object]:
        # As torch.profiler's schedule does.
        return self.scope(f"ProfilerStep#{step}")


class ProfilerOwner:
    """Knows who has the process' one profiler: the job's own use of it goes before capture's."""

    def __init__(self) -> None:
        self._own: TorchProfile | None = None
        self._starts_own = False
        self._others = 0

    def install(self) -> None:
        """Watches the profiler that torch.profiler is made of."""
        replace(autograd_profile, "_prepare_trace", self._around_prepare)
        replace(autograd_profile, "__exit__", self._around_exit)

    def start(self) -> TorchProfile | None:
        """A profile for capture; None where the job itself profiles."""
        if self._others or torch._C._autograd._profiler_enabled():
            return None
        self._starts_own = True
        try:
            self._own = TorchProfile()
        finally:
            self._starts_own = False
        return self._own

    def _around_prepare(self, original: Any) -> Any:  # noqa: ANN401
        def prepare(profiler: Any) -> Any:  # noqa: ANN401
            if not self._starts_own:
                self._make_way(profiler)
            return original(profiler)

        return prepare

    def _make_way(self, profiler: object) -> None:
        own, self._own = self._own, None
        self._others += 1
        if own is not None:
            # What ends badly here would otherwise be the job's own profiler's trouble.
            with suppress(Exception):
                own.yield_to(profiler)

    def _around_exit(self, original: Any) -> Any:  # noqa: ANN401
        def leave(profiler: Any, *args: Any) -> Any:  # noqa: ANN401
            own = self._own
            if own is None or profiler is not own._profile.profiler:
                self._others = max(0, self._others - 1)
            return original(profiler, *args)

        return leave
