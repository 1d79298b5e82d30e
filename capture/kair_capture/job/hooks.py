"""Shares between frameworks how hooks are guarded, and how waits for batches and devices are recorded.

Hooks cannot affect training: outside of a session they do nothing, and their errors end the session.
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Concatenate, Final, ParamSpec

from kair_capture.job.failing import described, warn
from kair_capture.job.recorder import clock
from kair_capture.job.session import Session, current
from kair_capture.ring import Kind


def never() -> bool:
    """Return False: for hooks that nothing suppresses."""
    return False


Arguments = ParamSpec("Arguments")
Hook = Callable[Concatenate[Session, Arguments], object]


def guard(
    hook: Hook[Arguments], *, unless: Callable[[], bool], begins: str | None = None, alone: bool = False
) -> Callable[Arguments, None]:
    """Return `hook` without its session. Its result is dropped, because a hook's return could replace an argument.

    Nothing is done if `unless()` holds, as while a compiler traces. `begins`: the hook is a sign that this framework
    trains, and starts the session armed for it; with `alone`, only if no other framework is armed.
    """

    @functools.wraps(hook)
    def safe(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        # First, so that code traced by torch.compile stays without hooks, graph breaks and guards.
        if unless():
            return
        session = current.session
        if session is None:
            session = None if begins is None else current.begin(framework=begins, alone=alone)
            if session is None:
                return
        try:
            hook(session, *args, **kwargs)
        except Exception as error:  # whatever it is, training continues
            current.give_up(error)

    return safe


def replace(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:  # noqa: ANN401
    """Replace an attribute by `wrap(original)`, once."""
    original = getattr(owner, name)
    if getattr(original, "is_kairs", False):
        return
    # Names of compiled functions may not be text.
    named = [one for one in functools.WRAPPER_ASSIGNMENTS if isinstance(getattr(original, one, None), str | dict)]
    wrapper = functools.wraps(original, assigned=named)(wrap(original))
    wrapper.is_kairs = True  # type: ignore[attr-defined]  # a mark on a function of our own
    setattr(owner, name, wrapper)


def attempt(framework: str, *parts: Callable[[], None]) -> None:
    """Install parts of the hooks: a release that lacks a name loses only what that part would have seen."""
    for part in parts:
        try:
            part()
        except Exception as error:  # see above
            warn(f"a part of capture does not fit this {framework}: {described(error)}")


def between(
    began: Callable[[], object] | None, ended: Callable[[int], object] | None, *, unless: Callable[[], bool] = never
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a wrapper that runs a function between `began()` and `ended(begin)`, or alone if `unless()` holds."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            if unless():
                return original(*args, **kwargs)
            if began is not None:
                began()
            begin = clock()
            try:
                return original(*args, **kwargs)
            finally:
                if ended is not None:
                    ended(begin)

        return called

    return wrap


def around(
    began: Callable[[Session, tuple[Any, ...], dict[str, Any]], object],
    ended: Callable[[Session, int], object],
    *,
    unless: Callable[[], bool],
    begins: str | None = None,
    is_part: Callable[[], bool] = never,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a wrapper that runs a function between `began(session, args, kwargs)` and `ended(session, begin)`.

    It combines `guard` and `between` in a third of their time, because a step runs it several times. If `is_part()`
    holds, thinned steps call neither, except `ended` after a long call.
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            if unless():
                return original(*args, **kwargs)
            session = current.session
            if session is None and (begins is None or (session := current.begin(framework=begins)) is None):
                return original(*args, **kwargs)
            shortest = 0
            try:
                if is_part is not never:
                    if session.steps.over_since is not None:
                        session.steps.phase_begins()
                    if (shortest := session.recorder.shortest_ns) and not is_part():
                        shortest = 0
                if not shortest:
                    began(session, args, kwargs)
            except Exception as error:  # whatever it is, training continues
                current.give_up(error)
            begin = clock()
            try:
                return original(*args, **kwargs)
            finally:
                if (session := current.session) is not None and (not shortest or clock() - begin >= shortest):
                    try:
                        ended(session, begin)
                    except Exception as error:  # see above
                        current.give_up(error)

        return called

    return wrap


def around_next(
    original: Callable[[Any], Any],
    *,
    ended: Callable[[Session, int], object],
    unless: Callable[[], bool],
    begins: str | None = None,
) -> Callable[[Any], Any]:
    """Return an iterator's `__next__` followed by `ended(session, begin)`; in sampled steps it is also a scope.

    The end of the data is not a step's wait. `begins` is as in `guard`, if no other framework is armed.
    """

    def following(iterator: Any) -> Any:  # noqa: ANN401
        if unless():
            return original(iterator)
        session = current.session
        if session is None and (begins is None or (session := current.begin(framework=begins, alone=True)) is None):
            return original(iterator)
        scope = None
        try:
            if session.steps.over_since is not None:
                session.steps.phase_begins()
            if session.steps.sampled:
                scope = session.input_scope()
                scope.__enter__()
        except Exception as error:  # whatever it is, the loop gets its data
            current.give_up(error)
        begin = clock()
        try:
            result = original(iterator)
        finally:
            if scope is not None:
                _left(scope)
        if (session := current.session) is not None and clock() - begin >= session.recorder.shortest_ns:
            try:
                ended(session, begin)
            except Exception as error:  # see above
                current.give_up(error)
        return result

    return following


def _left(scope: AbstractContextManager[object]) -> None:
    try:
        scope.__exit__(None, None, None)
    except Exception as error:  # see above
        current.give_up(error)


def begin_phase(session: Session) -> None:
    """Begin a phase, such as requesting a batch; it belongs to the next step if one is over."""
    session.steps.phase_begins()


def input_ended(session: Session, begin: int) -> bool:
    """Note that a batch has arrived; return whether this step waited for it, not a prefetching thread."""
    if is_of_loop := session.steps.is_of_loop():
        session.recorder.part(Kind.INPUT, "input", begin)
    return is_of_loop


SHORTEST_WAIT_NS: Final = 20_000
"""Shorter waits are for what is ready, which may be requested thousands of times a step."""


def _record_wait(session: Session, begin: int, end: int) -> None:
    if session.steps.concerns():
        session.recorder.span(Kind.COLLECTIVE, "device", begin, end)


_record: Final = guard(_record_wait, unless=never)


def _waited(begin: int) -> None:
    if (end := clock()) - begin >= SHORTEST_WAIT_NS:
        _record(begin, end)


around_wait: Final = between(None, _waited, unless=lambda: current.session is None)
"""Wraps a function whose time is the device's, which waits for its peers."""
