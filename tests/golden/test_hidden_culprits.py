"""Public situations in which one loss belongs to several ranks, or was found twice."""

import pytest
from support.answers import triaged
from support.places import CASES

from kair_engine.results.triage import TriageResult
from kair_tui.render.verdict import summary

CASES_2 = CASES.parent / "cases2"

pytestmark = pytest.mark.skipif(not CASES_2.is_dir(), reason="the cases are not beside the checkout")


def answered(case: str) -> TriageResult:
    return triaged(CASES_2 / case / "input")


@pytest.mark.slow
def test_two_equally_slow_ranks_cost_15_percent_together_and_nothing_alone() -> None:
    result = answered("two_slow_ranks_price")
    assert {one.ranks for one in result.findings} == {(1,), (6,)}
    assert result.accused_together is not None
    assert result.accused_together.saved_us == pytest.approx(5_500, rel=0.02)
    assert result.accused_together.gpu_hours_per_day == pytest.approx(29, rel=0.02)
    for one in result.findings:
        assert one.least_us_per_step is not None
        assert one.least_us_per_step < 0.005 * result.step_time_us
        assert one.most_us_per_step == pytest.approx(5_450, rel=0.02)
    said = summary(result)
    assert said.startswith("stragglers: ranks 1 and 6 ")
    assert "; together they cost 5.51 of the 36.3 ms step (15.2 %); " in said
    assert said.endswith("; fixing one gains nothing (each 0.07 to 5.44 ms)")


@pytest.mark.slow
def test_a_slow_host_of_two_ranks_is_found_once() -> None:
    """The median of two ranks is the mean of both: half of what the culprit loses is no loss of all."""
    result = answered("two_ranks_counted_twice")
    (finding,) = result.findings
    assert (result.verdict, finding.ranks) == ("straggler", (1,))
    assert finding.time_lost_us_per_step == pytest.approx(590, rel=0.02)
    assert "no rank's fault" not in summary(result)
