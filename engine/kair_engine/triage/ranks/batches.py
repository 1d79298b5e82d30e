"""What ranks give their models, beside their peers: a larger batch is no slower device."""

from typing import Final

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank
from kair_engine.results.evidence import Evidence
from kair_engine.triage.ranks.more_work import LARGER_INPUTS

LARGER_LIKE_SLOWER: Final = 0.25
"""Of the excess: larger inputs explain it that would take this part of it at the usual rate. Not all of it: weights are
no larger, attention takes the square, and what no longer fits a cache takes still longer."""


@dataclass(frozen=True)
class Batch:
    """Bytes that slow ranks give their models in the median step, and the median of their peers."""

    given: float
    usual: float
    passes_ns: float
    """What forward and backward passes usually take."""

    @property
    def larger(self) -> float:
        """By what share."""
        return self.given / self.usual - 1

    def explains(self, lost_ns: float) -> bool:
        """Whether so much of computing is for a larger batch."""
        return self.larger > LARGER_INPUTS and self.larger * self.passes_ns >= LARGER_LIKE_SLOWER * lost_ns

    def evidence(self, ranks: tuple[Rank, ...]) -> Evidence:
        """That it is larger."""
        figures = {"given_bytes": self.given, "usual_given_bytes": self.usual, "larger_share": self.larger}
        return Evidence("larger_batch", figures, None, ranks)

    def same(self, lost_ns: float, ranks: tuple[Rank, ...]) -> tuple[Evidence, ...]:
        """That it is not, if so."""
        if abs(self.larger) > LARGER_INPUTS:
            return ()
        return (Evidence("same_inputs", {"excess_us_per_step": lost_ns / 1e3}, None, ranks),)


def batch_of(own: Floats, peers: Floats, passes_ns: float) -> Batch | None:
    """Of what some ranks and their peers give (steps × ranks each); None where either does not tell it."""
    told, usual = own[own > 0], peers[peers > 0]  # NaN is neither
    return Batch(float(np.median(told)), float(np.median(usual)), passes_ns) if len(told) and len(usual) else None
