"""How long tests wait for another thread or process: what comes is not waited for any longer, however long that is."""

import time
from collections.abc import Callable
from typing import Final

PATIENCE_S: Final = 240.0
"""Only what never comes takes so long; a loaded machine once took a minute for what takes a second."""


def wait_until(holds: Callable[[], object], *, told: Callable[[], str] = str, every_s: float = 0.01) -> None:
    """Return once it holds; raises AssertionError, with what `told` returns, where it never does."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, told() or "that never came"
        time.sleep(every_s)
