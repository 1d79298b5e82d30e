"""How far long work is, for whoever asked for it: what it is doing, which share of that is done, and what is known.

Who asks says whom to tell (`telling`); without it counting does nothing. As with cancelling, that is known to the
thread alone in which it was said, so that the analyses between need not hand it on.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, TypeVar

Item = TypeVar("Item")
Tell = Callable[[float, str], None]
"""Takes the share that is done, from 0 to 1, and what is being done."""
Look = Callable[[Any], None]
"""Takes an answer of which a part is known: what it says is final, what is not known yet is empty."""

_SELDOM_S: Final = 0.1
"""Nobody is told more often."""


@dataclass(eq=False)
class _Loop:
    """A loop that is running."""

    total: int
    what: str
    done: int = 0


class _Work:
    """The loops that are running, the outermost first."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._loops: list[_Loop] = []
        self._told_at = self._told = 0.0

    def begin(self, loop: _Loop) -> None:
        """Take a loop in, within those that are running."""
        if not self._loops:
            self._told = 0.0
        self._loops.append(loop)

    def reach(self, loop: _Loop, done: int) -> None:
        """Tell how much of it is done; loops within it that were left are over."""
        if loop not in self._loops:
            return  # One that nobody reads to its end.
        del self._loops[self._loops.index(loop) + 1 :]
        loop.done = done
        share, part = 0.0, 1.0
        for one in self._loops:
            part /= one.total
            share += one.done * part
        # Two loops after one another within a third begin at nothing twice.
        self._told = max(self._told, share)
        if (now := monotonic()) - self._told_at >= _SELDOM_S:
            self._told_at = now
            self._tell(min(self._told, 1.0), self._loops[0].what)

    def end(self, loop: _Loop) -> None:
        """Leave a loop, the whole of it or amid it."""
        if loop in self._loops:
            del self._loops[self._loops.index(loop) :]


_WORK: Final[ContextVar[_Work | None]] = ContextVar("work", default=None)
_LOOK: Final[ContextVar[Look | None]] = ContextVar("look", default=None)


@contextmanager
def telling(tell: Tell, look: Look | None = None) -> Iterator[None]:
    """Have `tell` hear how far the loops are that run in here, in this thread; loops within others count as parts.

    `look` takes the answer each time that more of it is known; None where nobody looks before it is whole.
    """
    work, looks = _WORK.set(_Work(tell)), _LOOK.set(look)
    try:
        yield
    finally:
        _WORK.reset(work)
        _LOOK.reset(looks)


def is_looked_at() -> bool:
    """Return whether somebody looks at the answer before it is whole: what serves nobody else is worked out then."""
    return _LOOK.get() is not None


def show_so_far(answer: object) -> None:
    """Show what is known of the answer to whoever looks at it before it is whole."""
    if (look := _LOOK.get()) is not None:
        look(answer)


def counted(items: Sequence[Item], what: str) -> Iterator[Item]:
    """Yield the items, and tell how many of them are done; `what` says what is being done, as in `replaying 12 fixes`.

    A loop of one item counts as what runs within it.
    """
    work = _WORK.get()
    if work is None or len(items) < 2:
        yield from items
        return
    loop = _Loop(len(items), what)
    work.begin(loop)
    try:
        for done, item in enumerate(items):
            work.reach(loop, done)
            yield item
    finally:
        work.end(loop)
