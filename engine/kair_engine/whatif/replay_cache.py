"""Remembers what was replayed, so that one more fix costs one replay."""

from collections.abc import Callable, Sequence
from threading import Lock

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.whatif.model import Counterfactual, ReplayedSteps


class ReplayCache:
    """Step times by counterfactual. Questions may come from several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: dict[Counterfactual, Floats] = {}
        self._steps: tuple[int, ...] = ()
        self._measured: Floats = np.zeros(0)

    def of(
        self, asked: Sequence[Counterfactual], replay: Callable[[list[Counterfactual]], ReplayedSteps]
    ) -> ReplayedSteps:
        """The times of all that is asked for; what is not known yet is replayed.

        To the list that `replay` gets it may append what it replays besides.
        """
        with self._lock:
            missing = [one for one in dict.fromkeys(asked) if one not in self._known]
            if missing:
                found = replay(missing)
                self._steps, self._measured = found.steps, found.measured
                self._known.update(zip(missing, found.times, strict=True))
            return ReplayedSteps(self._steps, self._measured, np.stack([self._known[one] for one in asked]))
