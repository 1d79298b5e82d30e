"""Records how long a loop waits for its next batch, whatever loads it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from kair_capture.job.recorder import clock
from kair_capture.job.session import Session, current
from kair_capture.ring.layout import Kind


def around_next(
    original: Callable[[Any], Any], *, began: Callable[[], None], ended: Callable[[int], None]
) -> Callable[[Any], Any]:
    """An iterator's `__next__`, between `began()` and `ended(begin)`, and in sampled steps a scope of the recording.

    The end of the data is no wait of a step.
    """

    def following(iterator: Any) -> Any:  # noqa: ANN401
        began()
        session, begin = current.session, clock()
        scope = None if session is None else _entered(session)
        try:
            result = original(iterator)
        finally:
            if scope is not None:
                _left(scope)
        ended(begin)
        return result

    return following


def _entered(session: Session) -> AbstractContextManager[object] | None:
    try:
        scope = session.input_scope()
        scope.__enter__()
    except Exception as error:  # the loop has its data, whatever it is
        current.give_up(error)
        return None
    return scope


def _left(scope: AbstractContextManager[object]) -> None:
    try:
        scope.__exit__(None, None, None)
    except Exception as error:  # see above
        current.give_up(error)


def input_begins(session: Session) -> None:
    """Asking for a batch is of the next step, where one is over."""
    session.steps.phase_begins()


def input_ended(session: Session, begin: int) -> bool:
    """A batch is there; whether this step waited for it, and not a thread that loads ahead."""
    is_of_loop = session.steps.is_of_loop()
    if is_of_loop:
        session.recorder.span(Kind.INPUT, "input", begin, clock())
    return is_of_loop
