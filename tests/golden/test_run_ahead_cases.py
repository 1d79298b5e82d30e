"""Jobs whose hosts run ahead, re-created from public reports: their right answers, by analyses of their own."""

import pytest
from support.answers import triaged
from support.places import CASES

from kair_engine.results.triage import TriageResult

pytestmark = [pytest.mark.skipif(not CASES.is_dir(), reason="the cases are not beside the checkout"), pytest.mark.slow]


def answer(case: str) -> TriageResult:
    return triaged(CASES / case / "input")


@pytest.mark.parametrize(
    ("case", "rank", "step_ms", "loss"),
    [
        ("run_ahead/gpu_13", 3, 38.2, 0.263),
        ("run_ahead/operator_2x", 7, 27.2, 0.123),
        ("run_ahead/device_stall", 6, 28.0, 0.162),
        ("host_ahead_no_sync", 2, 40.2, 0.094),
        ("right_today/host_ahead_control_synced", 2, 40.2, 0.094),
        ("side_stream", 2, 6.89, 0.166),
        ("steps_by_optimizer_mark", 1, 24.4, 0.125),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_culprit_is_found_with_what_it_costs(case: str, rank: int, step_ms: float, loss: float) -> None:
    """`loss` is over the same job without it."""
    result = answer(case)
    (finding,) = result.findings
    assert (result.verdict, finding.ranks, finding.cause, finding.priced_by) == (
        "straggler",
        (rank,),
        "compute",
        "replay",
    )
    assert result.step_time_us == pytest.approx(1e3 * step_ms, rel=0.01)
    assert finding.throughput_gain == pytest.approx(loss, rel=0.05)


@pytest.mark.parametrize("case", ["healthy", "input_absorbed"])
def test_nobody_is_accused_of_what_costs_nothing(case: str) -> None:
    result = answer(f"run_ahead/{case}")
    assert (result.verdict, result.findings) == ("no_straggler", ())
    assert [(one.ranks, one.cause) for one in result.absorbed] == (
        [((1,), "input")] if case == "input_absorbed" else []
    )


def test_a_server_paced_by_one_host_s_launches_names_that_host() -> None:
    """The other rank waits in all-reduces of its own making, and was put on top."""
    result = answer("vllm_tp2_custom_ar")
    first = result.findings[0]
    assert (first.ranks, first.cause) == ((0,), "launch_bound")
    assert first.time_lost_us_per_step == pytest.approx(4100, rel=0.02)


def test_a_hot_expert_is_uneven_work_and_no_slow_device() -> None:
    """44 % more tokens beside weights that are as large on all ranks; a token takes as long as on the others."""
    result = answer("moe_hot_expert")
    (finding,) = (one for one in result.findings if one.ranks)
    assert (finding.ranks, finding.cause) == ((5,), "uneven_work")
    (told,) = (one for one in finding.evidence if one.kind == "larger_inputs")
    assert (told.about, round(told.figures["per_call"])) == ("aten::_grouped_mm", 2787)
    assert told.figures["larger_share"] == pytest.approx(0.44, abs=0.01)
    assert told.figures["us_per_unit"] == pytest.approx(told.figures["usual_us_per_unit"], rel=0.01)
