"""Recordings in which nothing numbers the steps, re-created from public reports: their right answers."""

import pytest
from support.answers import recorded, triaged
from support.places import CASES

pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="the cases are not beside the checkout")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "rank", "steps", "step_us", "lost_us"),
    [
        ("gpu_only_no_steps", 3, 12, 21_650, 2_860),
        ("ondemand_offset_seq", 1, 5, 24_400, 2_650),
        ("ondemand_no_rank_info", 0, 5, 24_400, 2_700),
        ("steps_by_optimizer_mark", 1, 14, 24_400, 2_710),
    ],
)
def test_iterations_are_found_and_the_slow_rank_in_them(
    case: str, rank: int, steps: int, step_us: float, lost_us: float
) -> None:
    trace, result = recorded(CASES / case / "input"), triaged(CASES / case / "input")
    (finding,) = result.findings
    assert (result.verdict, finding.ranks, finding.cause, finding.priced_by) == (
        "straggler",
        (rank,),
        "compute",
        "replay",
    )
    assert len(trace.steps) == steps
    assert result.step_time_us == pytest.approx(step_us, rel=0.01)
    assert finding.time_lost_us_per_step == pytest.approx(lost_us, rel=0.03)
    assert {row.role for row in result.ranking} == {"all"}
    # All waiting is seen, and all of it is for that rank.
    assert [row.wait_imposed_us > 0 for row in sorted(result.ranking, key=lambda row: row.rank)] == [
        at == rank for at in range(4)
    ]
    assert (trace.job.world_size, trace.job.missing_ranks) == (4, ())


@pytest.mark.slow
def test_the_file_of_a_rank_that_is_numbered_by_order_is_named() -> None:
    (finding,) = triaged(CASES / "ondemand_no_rank_info" / "input").findings
    assert [one.about for one in finding.evidence if one.kind == "rank_by_order"] == ["libkineto_activities_4987.json"]


def test_a_server_s_own_annotation_tells_its_steps() -> None:
    trace = recorded(CASES / "vllm_tp2_custom_ar" / "input")
    assert len(trace.steps) == 24
    (told,) = (one.message for one in trace.job.warnings if one.code == "steps_inferred")
    assert "its 24 steps are found by execute_context_" in told
