"""The guard of hooks in PyTorch, which stay out of what torch.compile traces."""

from collections.abc import Callable

import torch

from kair_capture.job.guarding import Arguments, Hook, guard

is_compiling: Callable[[], bool] = torch.compiler.is_compiling


def guarded(hook: Hook[Arguments]) -> Callable[Arguments, None]:
    """`hook` without its session, and without errors; see `guard`."""
    return guard(hook, unless=is_compiling)


def beginning(hook: Hook[Arguments]) -> Callable[Arguments, None]:
    """The same for a hook that is a sign of training with PyTorch."""
    return guard(hook, unless=is_compiling, begins="torch")


def beginning_alone(hook: Hook[Arguments]) -> Callable[Arguments, None]:
    """The same for one that jobs of other frameworks meet too."""
    return guard(hook, unless=is_compiling, begins="torch", alone=True)
