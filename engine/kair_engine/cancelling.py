"""Work that nobody wants any more ends at the next of its checkpoints, which stand where steps are read and replayed.

Who asks says what tells that (`until`); without it a checkpoint does nothing. It is known to the thread alone in which
it was said, so that the analyses between need not hand it on.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_IS_UNWANTED: Final[ContextVar[Callable[[], bool] | None]] = ContextVar("is_unwanted", default=None)


class Cancelled(BaseException):
    """Nobody wants the answer any more. No failure: what goes on where a part cannot be worked out must not go on."""


@contextmanager
def until(is_unwanted: Callable[[], bool]) -> Iterator[None]:
    """Lets what is worked out in here, in this thread, end once `is_unwanted`: it raises Cancelled then."""
    before = _IS_UNWANTED.set(is_unwanted)
    try:
        yield
    finally:
        _IS_UNWANTED.reset(before)


def checkpoint() -> None:
    """Mark a place at which work can end, since nothing is half kept there.

    Raises Cancelled where nobody wants it any more.
    """
    is_unwanted = _IS_UNWANTED.get()
    if is_unwanted is not None and is_unwanted():
        raise Cancelled
