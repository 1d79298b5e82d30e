"""Steps of many ranks are replayed one behind the other, steps of few side by side: with the same step times."""

from typing import Final

import numpy as np
import pytest
from support.answers import recorded
from support.places import SAMPLES

from kair_engine.arrays import Floats
from kair_engine.results.whatif import Fix
from kair_engine.trace.model import Trace
from kair_engine.whatif.model import Baseline, IdealOfAll
from kair_engine.whatif.operators import batches

ASKED: Final = (*Baseline, (Fix(),), (Fix(ranks=(1,)),), (IdealOfAll(ranks=(0,)),))


def replayed(trace: Trace, enough_ranks: int, patch: pytest.MonkeyPatch) -> Floats:
    """Return (variants × steps): step times if so many ranks are enough for a replay of their step alone."""
    patch.setattr(batches, "_ENOUGH_PEERS", enough_ranks)
    return batches.replayed_steps(batches.batches(trace), list(ASKED))[1]


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["slow_operator", "pipeline_slow_operator", "healthy"])
def test_a_step_behind_the_one_before_begins_when_that_ends(sample: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = recorded(SAMPLES / sample)
    alone = replayed(trace, 1, monkeypatch)
    assert alone == pytest.approx(replayed(trace, 1_000, monkeypatch))
    assert not np.allclose(alone[0], alone[1 + len(Baseline)])  # fixes move steps, and so what follows them
