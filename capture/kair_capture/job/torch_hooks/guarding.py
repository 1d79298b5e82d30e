"""Keeps what a hook does away from training: outside of a session it does nothing, and its errors end the session."""

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

import torch

from kair_capture.job.session import Session, current

Arguments = ParamSpec("Arguments")
is_compiling: Callable[[], bool] = torch.compiler.is_compiling


def guarded(hook: Callable[Concatenate[Session, Arguments], None]) -> Callable[Arguments, None]:
    """`hook` without its session. What it returns is dropped: a hook's return can replace what it was called with."""
    return _safe(hook, begins=False)


def beginning(hook: Callable[Concatenate[Session, Arguments], None]) -> Callable[Arguments, None]:
    """The same for a hook that is a sign of training: it starts the session that is armed."""
    return _safe(hook, begins=True)


def _safe(hook: Callable[Concatenate[Session, Arguments], None], *, begins: bool) -> Callable[Arguments, None]:
    @functools.wraps(hook)
    def safe(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        # Asked first: what torch.compile traces stays without hooks, and so without a break or a guard.
        if is_compiling():
            return
        session = current.session
        if session is None:
            session = current.begin() if begins else None
            if session is None:
                return
        try:
            hook(session, *args, **kwargs)
        except Exception as error:  # training goes on, whatever it is
            current.give_up(error)

    return safe


def replace(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:  # noqa: ANN401
    """Puts `wrap(original)` in the place of an attribute, once."""
    original = getattr(owner, name)
    if getattr(original, "is_kairs", False):
        return
    wrapper = functools.wraps(original)(wrap(original))
    wrapper.is_kairs = True  # type: ignore[attr-defined]  # a mark on a function of our own
    setattr(owner, name, wrapper)
