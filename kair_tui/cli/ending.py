"""How what serves until somebody ends it is ended: in order, by SIGTERM or Ctrl-C."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def ended_by_signals(end: Callable[[], object]) -> Iterator[None]:
    """Call `end` for SIGTERM and Ctrl-C; afterwards both do what they did before, as in a notebook that goes on."""
    before = {number: signal.signal(number, lambda *_: end()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
