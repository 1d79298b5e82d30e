"""Captures a PyTorch job: hooks that find steps and scopes (torch_scopes.py), waits and communication.

Waits are for the data loader and in collectives. A few steps show how a rank communicates (its receivers, and how often
it uses each process group): ranks with equal communication run the same program and are comparable. PyTorch's profiler
records a few steps as a file, to which capture adds.
"""

import json
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed
from torch.autograd.profiler import profile as autograd_profile
from torch.profiler import ProfilerActivity, record_function
from torch.profiler.profiler import _KinetoProfile
from torch.utils.data.dataloader import _BaseDataLoaderIter

from kair_capture.control import EVERYTHING, NOTHING_MORE, ProfileOptions
from kair_capture.delays import Place
from kair_capture.files import add_to_json
from kair_capture.job.dumping import process_groups
from kair_capture.job.framework import Communication, Framework, Profile
from kair_capture.job.hooks import around, around_next, attempt, between, guard, input_ended, never, replace
from kair_capture.job.recorder import COMPILATION, clock
from kair_capture.job.session import Session, current
from kair_capture.job.torch_scopes import ScopeFinder, hold_up, is_compiling
from kair_capture.ring import Kind
from kair_capture.settings import Settings


class Compilations:
    """Records when torch.compile compiles, from its first call on."""

    def __init__(self) -> None:
        self._begin = 0
        self._record = guard(_record_compilation, unless=never)

    def install(self) -> None:
        """Watch torch.compile, whose compiler is loaded with its first call."""
        replace(torch, "compile", between(None, self._watch, unless=is_compiling))

    def _watch(self, _: int) -> None:
        # In a release with other callbacks, compilations are not seen.
        with suppress(AttributeError, KeyError):
            handler = sys.modules["torch._dynamo.callback"].callback_handler
            if self._ended not in handler.end_callbacks:
                handler.register_start_callback(self._began)
                handler.register_end_callback(self._ended)

    def _began(self, *_: object) -> None:
        self._begin = clock()

    def _ended(self, *_: object) -> None:
        self._record(self._begin)


def _record_compilation(session: Session, begin: int) -> None:
    session.recorder.span(Kind.SCOPE, COMPILATION, begin, clock())


class _Waiting(threading.local):
    depth = 0


class Waits:
    """Wrappers around the few functions in which PyTorch waits."""

    def __init__(self, input_ended: Callable[[], None]) -> None:
        self._waiting = _Waiting()
        self._input_ended = input_ended

    def install_input(self) -> None:
        """Wrap a data loader's `next`."""
        replace(_BaseDataLoaderIter, "__next__", self._around_next)

    def install_collectives(self) -> None:
        """Wrap waits for communication in Python. DistributedDataParallel's backward waits elsewhere."""
        if not torch.distributed.is_available():
            return
        from torch._C._distributed_c10d import Work

        replace(Work, "wait", self._around("wait"))
        # With buffers (batch norm), forward begins with this.
        replace(torch.distributed, "_broadcast_coalesced", self._around("broadcast"))

    def install_functional(self) -> None:
        """Wrap the wait of DTensor's and FSDP2's collectives, once their module is loaded."""
        from torch.distributed import _functional_collectives

        replace(_functional_collectives, "wait_tensor", self._around("wait"))

    def _around_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        return around_next(original, ended=self._after_input, unless=is_compiling, begins="torch")

    def _after_input(self, session: Session, begin: int) -> None:
        if input_ended(session, begin):
            if session.delays is not None:
                hold_up(session, Place.AFTER_INPUT)
            self._input_ended()

    def _around(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        waiting = self._waiting

        def began(*_: object) -> None:
            waiting.depth = 1

        def ended(session: Session, begin: int) -> None:
            waiting.depth = 0
            if session.steps.concerns():
                session.recorder.wait(name, begin)

        return around(began, ended, unless=lambda: is_compiling() or waiting.depth > 0)


_MOST_GROUPS_TOLD: Final = 1000


class CommunicationFinder:
    """Counts communication from `begin` to `end`; otherwise it only costs a call."""

    def __init__(self) -> None:
        self._sends: set[int] = set()
        self._receives: set[int] = set()
        self._calls: dict[str, int] = {}
        self._counts = False

    def install(self) -> None:
        """Wrap sends and receives, which all go through a process group's."""
        if not torch.distributed.is_available():
            return
        from torch._C._distributed_c10d import ProcessGroup

        replace(ProcessGroup, "send", self._around(self._sends))
        replace(ProcessGroup, "recv", self._around(self._receives))

    def begin(self) -> None:
        """Start counting."""
        self._sends.clear()
        self._receives.clear()
        self._calls = _calls_so_far()
        self._counts = True

    def end(self) -> Communication:
        """Return the communication since `begin`."""
        self._counts = False
        sizes = {name: len(_ranks_of(group)) for name, group in _groups()}
        since = {name: count - self._calls.get(name, 0) for name, count in _calls_so_far().items()}
        groups = sorted((sizes[name], calls) for name, calls in since.items() if calls > 0)
        several = tuple((size, calls) for size, calls in groups if size > 1)
        return Communication(tuple(sorted(self._sends)), tuple(sorted(self._receives)), several)

    def _around(self, seen: set[int]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            def transfer(group: Any, tensors: Any, peer: int, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
                if self._counts and not is_compiling():
                    self._note(seen, group, peer)
                return original(group, tensors, peer, *args, **kwargs)

            return transfer

        return wrap

    def _note(self, seen: set[int], group: object, peer: int) -> None:
        """Note the peer, a rank in the group, as a rank of the job."""
        with suppress(AttributeError, KeyError, StopIteration, TypeError):
            seen.add(next(rank for rank, place in _ranks_of(group).items() if place == peer))


def _calls_so_far() -> dict[str, int]:
    """Return the number of collectives of each group of this rank; backends without counts are left out.

    Groups are keyed by name: a group held here would outlive its destruction, and its threads may abort an ending
    process.
    """
    found: dict[str, int] = {}
    for name, group in _groups():
        try:
            found[name] = group._get_sequence_number_for_group()
        except (AttributeError, RuntimeError, TypeError):
            continue
    return found


def _groups() -> list[tuple[str, Any]]:
    names = torch.distributed.distributed_c10d._world.pg_names
    return [(str(names[group]), group) for group in list(names)[:_MOST_GROUPS_TOLD]]


def _ranks_of(group: Any) -> dict[int, int]:  # noqa: ANN401
    """Return rank of the job → rank in the group."""
    ranks: dict[int, int] = torch.distributed.distributed_c10d._world.pg_group_ranks[group]
    return ranks


_MOST_COLLECTIVES: Final = 100_000


class TorchProfile(Profile):
    """One use of the profiler."""

    def __init__(self, options: ProfileOptions) -> None:
        """Start the profiler."""
        self._is_over = False
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            activities.append(ProfilerActivity.CUDA)
        # Every window is a single cycle; without acc_events PyTorch up to 2.11 warns that it forgets others.
        self._profile = _KinetoProfile(
            activities=activities,
            acc_events=True,
            with_stack=ProfileOptions.STACKS in options,
            profile_memory=ProfileOptions.MEMORY in options,
            record_shapes=ProfileOptions.SHAPES in options,
        )
        self._profile.start()
        # With it, every event becomes a Python object when the profile ends, at 50 µs each.
        assert self._profile.profiler is not None
        self._profile.profiler.acc_events = False

    def scope(self, name: str) -> AbstractContextManager[object]:
        """Return a scope of the script, in the recording too."""
        scope: AbstractContextManager[object] = record_function(name)
        return scope

    def stop(self) -> None:
        """End the recording. Takes 2 to 6 µs an event."""
        if not self.is_lost:
            self._is_over = True
            self._profile.stop()

    def yield_to(self, other: object) -> bool:
        """Abandon the recording if another profiler is about to start; return whether it did."""
        if self.is_lost or self._is_over or other is self._profile.profiler:
            return False
        self.is_lost = True
        self._profile.stop()
        return True

    def save(self, path: Path, details: Mapping[str, Any]) -> None:
        """Write Kineto JSON, 1.4 µs an event, and `details` into it as `kair`."""
        self._profile.export_chrome_trace(str(path))
        add_to_json(path, "kair", details)

    def collectives(self, begin: int, end: int) -> Sequence[Mapping[str, Any]]:
        """Return the flight recorder's entries of that time (Unix, ns).

        It is empty if it is off (TORCH_FR_BUFFER_SIZE).
        """
        with suppress(ImportError, AttributeError, RuntimeError, ValueError, TypeError):
            from torch._C._distributed_c10d import _dump_fr_trace_json

            entries = json.loads(_dump_fr_trace_json(includeCollectives=True, onlyActive=False)).get("entries", [])
            own = [entry for entry in entries if begin <= entry.get("time_created_ns", 0) < end]
            return [{**entry, "frames": []} for entry in own[:_MOST_COLLECTIVES]]
        return []

    def _marked(self, step: int) -> AbstractContextManager[object]:
        # as torch.profiler's schedule does
        return self.scope(f"ProfilerStep#{step}")


class ProfilerOwner:
    """Tracks the process's only profiler: the job's own use has precedence over capture's."""

    def __init__(self) -> None:
        self._own: TorchProfile | None = None
        self._starts_own = False
        self._others = 0

    def install(self) -> None:
        """Watch the profiler that torch.profiler is based on."""
        replace(autograd_profile, "_prepare_trace", self._around_prepare)
        replace(autograd_profile, "__exit__", self._around_exit)

    def start(self, options: ProfileOptions) -> TorchProfile | None:
        """Return a profile for capture; None if the job itself profiles."""
        if self._others or torch._C._autograd._profiler_enabled():
            return None
        self._starts_own = True
        try:
            self._own = TorchProfile(options)
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
            # A failure here must not affect the job's own profiler.
            with suppress(Exception):
                own.yield_to(profiler)

    def _around_exit(self, original: Any) -> Any:  # noqa: ANN401
        def leave(profiler: Any, *args: Any) -> Any:  # noqa: ANN401
            own = self._own
            if own is None or profiler is not own._profile.profiler:
                self._others = max(0, self._others - 1)
            return original(profiler, *args)

        return leave


_OTHER_RELEASE: Final = (AttributeError, KeyError, RuntimeError, TypeError)
"""Exceptions from a release of PyTorch that stores its process groups elsewhere."""


class TorchJob(Framework):
    """PyTorch, for a session."""

    marks_input = True
    profile_options = EVERYTHING

    def __init__(self, owner: ProfilerOwner, communication: CommunicationFinder) -> None:
        self._owner, self._communication = owner, communication

    def place(self) -> tuple[int, int] | None:
        """Return rank and world size from torch.distributed; None without it."""
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
        return None

    def description(self) -> Mapping[str, Any]:
        """Return versions, device and process groups."""
        return {
            "framework": "torch",
            "framework_version": str(torch.__version__),
            "device": "cuda" if torch.cuda.is_available() else "cpu",
            "process_groups": process_groups(),
            "takes_delays": True,
        }

    def watch_communication(self) -> None:
        """Count sends, receives, and calls of each process group."""
        if self.place() is not None:
            with suppress(*_OTHER_RELEASE):
                self._communication.begin()

    def communication(self) -> Communication | None:
        """Return the communication since then; None for a single process."""
        with suppress(*_OTHER_RELEASE):
            return self._communication.end() if self.place() is not None else None
        return None

    def start_profile(self, options: ProfileOptions = NOTHING_MORE, /) -> TorchProfile | None:
        """Start the profiler; None if the job uses it itself."""
        return self._owner.start(options)


_installed: Final[list[TorchJob]] = []
"""Hooks in this process."""


def arm(settings: Settings) -> None:
    """Install the hooks once; the session starts with the first sign of training."""
    if not _installed:
        _installed.append(_install(settings))
    current.arm("torch", lambda begin: Session(settings, _installed[0], begin=begin), settings.run_dir)


def _install(settings: Settings) -> TorchJob:
    owner = ProfilerOwner()
    owner.install()
    scopes = ScopeFinder()
    waits = Waits(scopes.input_ended)
    communication = CommunicationFinder()
    if settings.hooks:
        attempt("PyTorch", scopes.install, waits.install_input, Compilations().install)
    if settings.collectives:
        attempt("PyTorch", waits.install_collectives, waits.install_functional, communication.install)
    return TorchJob(owner, communication)
