"""Two runs that differ by one known change, re-created from public reports: either way round it is told alike."""

from pathlib import Path

import pytest
from support.places import CASES

from kair_engine.comparison.analysis import compare
from kair_engine.recording.opening import open_trace

pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="the cases are not beside the checkout")


@pytest.mark.slow
@pytest.mark.parametrize(("base", "new", "sign"), [("before", "after", 1), ("after", "before", -1)])
def test_one_call_of_one_rank_explains_the_step(base: str, new: str, sign: int, tmp_path: Path) -> None:
    runs = [open_trace(CASES / "compare" / "input" / name, cache=tmp_path) for name in (base, new)]
    found = compare(*runs)
    (change,) = found.changes
    assert (change.operator, list(change.ranks)) == ("ampere_sgemm", [2])
    assert change.step_us == pytest.approx(977 * sign, rel=0.01)
    assert found.step_change_us == pytest.approx(977 * sign, rel=0.01)
    assert found.unexplained_us == pytest.approx(0, abs=10)
