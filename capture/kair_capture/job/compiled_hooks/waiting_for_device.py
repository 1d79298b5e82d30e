"""Records how long the host waits for what the device gives."""

from collections.abc import Callable
from typing import Any, Final

from kair_capture.job.guarding import guard
from kair_capture.job.recorder import clock
from kair_capture.job.session import Session, current
from kair_capture.ring.layout import Kind

SHORTEST_WAIT_NS: Final = 20_000
"""What is there already costs less, and may be asked for thousands of times a step."""


def around_wait(original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, whose time is the device's: and a device waits for its peers."""

    def waiting(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if current.session is None:
            return original(*args, **kwargs)
        begin = clock()
        try:
            return original(*args, **kwargs)
        finally:
            end = clock()
            if end - begin >= SHORTEST_WAIT_NS:
                _waited(begin, end)

    return waiting


def _record(session: Session, begin: int, end: int) -> None:
    if session.steps.concerns():
        session.recorder.span(Kind.COLLECTIVE, "device", begin, end)


_waited: Final = guard(_record, unless=lambda: False)
