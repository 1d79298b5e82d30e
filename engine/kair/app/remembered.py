"""Keeps the last thing that a question made, for the next one."""

from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, TypeVar

Thing = TypeVar("Thing")


class OneEntryCache:
    """Keeps the last object made, because two may not fit into memory. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._key: Hashable = None
        self._thing: Any = None

    def holds(self, key: Hashable) -> bool:
        """Return whether the object for `key` is kept."""
        return self._thing is not None and key == self._key

    def of(self, key: Hashable, make: Callable[[], Thing], fits: Callable[[Thing], bool] = lambda _: True) -> Thing:
        """Return the object for `key`; make it if another one is kept.

        Raises what `make` raises.
        """
        with self._lock:
            if self._thing is None or key != self._key or not fits(self._thing):
                self._thing = None  # or both are in memory for a while
                self._thing, self._key = make(), key
            thing: Thing = self._thing
            return thing
