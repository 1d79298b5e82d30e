"""Keeps what a hook does away from training: outside of a session it does nothing, and its errors end the session."""

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

from kair_capture.job.failing import described, warn
from kair_capture.job.session import Session, current

Arguments = ParamSpec("Arguments")
Hook = Callable[Concatenate[Session, Arguments], object]


def guard(
    hook: Hook[Arguments], *, unless: Callable[[], bool], begins: str | None = None, alone: bool = False
) -> Callable[Arguments, None]:
    """`hook` without its session. What it returns is dropped: a hook's return can replace what it was called with.

    Nothing is done where `unless()` holds, as while a compiler traces. `begins`: the hook is a sign that this framework
    trains, and starts the session that is armed for it; with `alone`, where no other framework is armed.
    """

    @functools.wraps(hook)
    def safe(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        # Asked first: what torch.compile traces stays without hooks, and so without a break or a guard.
        if unless():
            return
        session = current.session
        if session is None:
            session = None if begins is None else current.begin(framework=begins, alone=alone)
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
    # What is compiled may have names that are no text.
    named = [one for one in functools.WRAPPER_ASSIGNMENTS if isinstance(getattr(original, one, None), str | dict)]
    wrapper = functools.wraps(original, assigned=named)(wrap(original))
    wrapper.is_kairs = True  # type: ignore[attr-defined]  # a mark on a function of our own
    setattr(owner, name, wrapper)


def attempt(part: Callable[[], None], framework: str) -> None:
    """Installs a part of the hooks: a release that lacks one of its names costs what that part would have seen."""
    try:
        part()
    except Exception as error:  # see above
        warn(f"a part of capture does not fit this {framework}: {described(error)}")
