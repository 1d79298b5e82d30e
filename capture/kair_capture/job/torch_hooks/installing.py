"""Puts the hooks into a process that has PyTorch, once."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import torch

from kair_capture.job.framework import Communication
from kair_capture.job.guarding import attempt
from kair_capture.job.session import Session, current
from kair_capture.job.torch_hooks.communication import CommunicationFinder
from kair_capture.job.torch_hooks.profile import ProfilerOwner, TorchProfile
from kair_capture.job.torch_hooks.scopes import ScopeFinder
from kair_capture.job.torch_hooks.waiting import Waits
from kair_capture.settings import Settings

_MOST_GROUPS: Final = 1000
_OTHER_RELEASE: Final = (AttributeError, KeyError, RuntimeError, TypeError)
"""What a release of PyTorch raises that keeps its process groups elsewhere."""


class TorchJob:
    """PyTorch, as a session asks it."""

    def __init__(self, owner: ProfilerOwner, communication: CommunicationFinder) -> None:
        self._owner, self._communication = owner, communication

    marks_input = True
    refusal: str | None = None
    """There always is a profiler, though at times the job has it."""

    def place(self) -> tuple[int, int] | None:
        """As torch.distributed has it."""
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
        return None

    def description(self) -> Mapping[str, Any]:
        """Versions, device and process groups."""
        return {
            "framework": "torch",
            "framework_version": str(torch.__version__),
            "device": "cuda" if torch.cuda.is_available() else "cpu",
            "process_groups": _process_groups(),
        }

    def watch_communication(self) -> None:
        """Sends, receives, and calls of each process group are counted."""
        if self.place() is not None:
            with suppress(*_OTHER_RELEASE):
                self._communication.begin()

    def communication(self) -> Communication | None:
        """Of the steps since; None where there is one process alone."""
        with suppress(*_OTHER_RELEASE):
            return self._communication.end() if self.place() is not None else None
        return None

    def start_profile(self) -> TorchProfile | None:
        """The profiler, where the job does not use it itself."""
        return self._owner.start()


class _Installed:
    """What is in this process already."""

    job: TorchJob | None = None


def install(settings: Settings) -> TorchJob:
    """Registers every hook that the settings want, and says how to ask the framework. Twice is once."""
    if _Installed.job is not None:
        return _Installed.job
    owner = ProfilerOwner()
    owner.install()
    scopes = ScopeFinder()
    waits = Waits(scopes.input_ended)
    communication = CommunicationFinder()
    if settings.hooks:
        for part in (scopes.install, waits.install_input):
            attempt(part, "PyTorch")
    if settings.collectives:
        for part in (waits.install_collectives, waits.install_functional, communication.install):
            attempt(part, "PyTorch")
    _Installed.job = TorchJob(owner, communication)
    return _Installed.job


def start_session(settings: Settings, begin: int | None) -> Session:
    """A session of this process. Raises OSError."""
    return Session(settings, install(settings), begin=begin)


def arm(settings: Settings) -> None:
    """Installs the hooks; the session starts with the first sign of training."""
    install(settings)
    current.arm("torch", lambda begin: start_session(settings, begin), settings.run_dir)


def _process_groups() -> dict[str, list[int]]:
    try:
        world = torch.distributed.distributed_c10d._world
        groups = {str(world.pg_names[group]): sorted(ranks) for group, ranks in world.pg_group_ranks.items()}
        return dict(list(groups.items())[:_MOST_GROUPS])
    except (AttributeError, KeyError, TypeError):
        return {}
