"""Situations from public reports that were answered rightly when they were first tried: they stay so."""

import pytest
from support.answers import recorded, triaged
from support.places import CASES

pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="the cases are not beside the checkout")

BACKWARD_HOOK = "autograd::engine::evaluate_function: ConvolutionBackward0"
GEMM = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "rank", "cause", "operator", "bad_events"),
    [
        ("cudagraph_nccl_slow_gemm", 2, "compute", GEMM, False),
        ("ddp_busy_in_backward", 1, "host", BACKWARD_HOOK, False),
        ("json_control_chars", 1, "host", BACKWARD_HOOK, False),
        ("json_invalid_utf8", 1, "host", BACKWARD_HOOK, False),
        ("json_nan_inf", 1, "host", BACKWARD_HOOK, False),
        ("json_unescaped", 1, "host", BACKWARD_HOOK, True),
    ],
)
def test_the_culprit_is_found(case: str, rank: int, cause: str, operator: str, bad_events: bool) -> None:
    source = CASES / "right_today" / case / "input"
    trace, result = recorded(source), triaged(source)
    (finding,) = result.findings
    assert (result.verdict, finding.ranks, finding.cause, finding.operator) == ("straggler", (rank,), cause, operator)
    assert ("bad_events" in {warning.code for warning in trace.job.warnings}) == bad_events


def test_of_one_rank_alone_waiting_is_not_told_from_transfers() -> None:
    result = triaged(CASES / "right_today" / "one_rank_of_eight" / "input")
    (finding,) = result.findings
    assert (result.verdict, finding.cause, finding.ranks) == ("job_wide", "exposed_communication", ())
    assert finding.time_lost_us_per_step / result.step_time_us == pytest.approx(0.817, abs=0.01)
