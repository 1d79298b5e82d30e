"""Uneven stages and uneven batches: what slows a job though no rank is at fault, figures by hand."""

from dataclasses import replace

import numpy as np
import pytest
from support.excess_builder import COMMUNICATION, COMPUTE, STEP_NS, Percents, job, nothing

from kair_engine.localize.excess import JobExcess
from kair_engine.localize.imbalance import UnevenBatches, UnevenStage, uneven_batches, uneven_stage
from kair_engine.localize.localization import conclude, job_patterns
from kair_engine.ranks import as_positions

FOUR_STAGES = [0, 0, 1, 1, 2, 2, 3, 3]


def pipeline(compute: list[float], communication: float = 1.0, role: list[int] = FOUR_STAGES) -> JobExcess:
    """Ranks that compute for so many percent of every step, and send and receive for one."""
    work = np.zeros((4, len(compute)))
    work[COMPUTE], work[COMMUNICATION] = compute, communication
    return job(nothing(5, len(compute)), role=role, work=work)


def test_the_stage_that_computes_longest_is_named_with_what_even_stages_would_save() -> None:
    found = uneven_stage(pipeline([50, 50, 50, 50, 50, 50, 70, 70]), ())
    assert found is not None
    # The stages take 55 % in the mean: 15 % of the step could be saved.
    assert (found.role.stage, found.positions) == (3, (6, 7))
    assert found.lost_ns == pytest.approx(0.15 * STEP_NS)
    assert {role.stage: own for role, own in found.of_role_ns.items()} == pytest.approx(
        {0: 5e7, 1: 5e7, 2: 5e7, 3: 7e7}
    )


def test_the_report_has_every_stages_compute() -> None:
    (pattern,) = job_patterns(conclude(pipeline([50, 50, 50, 50, 50, 50, 70, 70])))
    assert (pattern.cause, pattern.ranks, pattern.steps) == ("stage_imbalance", (6, 7), (0, 1, 2, 3, 4))
    assert pattern.lost_us == pytest.approx(15_000)
    assert pattern.figures == pytest.approx({"role 0": 5e4, "role 1": 5e4, "role 2": 5e4, "role 3": 7e4})


@pytest.mark.parametrize(
    "made",
    [
        pipeline([60] * 8),
        pipeline([50, 50, 50, 50, 50, 50, 56, 56]),  # 4.5 % of the step
        pipeline([80, 80, 80, 80, 80, 80, 90, 90]),  # 7.5 % of the step, but only 1.09 times the mean
        pipeline([50, 50, 70, 70], role=[0, 0, 0, 0]),
        pipeline([50, 50, 50, 50, 50, 50, 70, 70], communication=0.0),
    ],
    ids=["even", "below 5 % of the step", "below 1.1 times the mean", "one role", "roles that send nothing"],
)
def test_where_stages_are_even_or_unknown_none_is_named(made: JobExcess) -> None:
    assert uneven_stage(made, ()) is None


def test_stages_whose_transfers_name_no_ends_are_compared_as_well() -> None:
    """It is not known how long those take: that is told as 0, as of roles that send nothing."""
    made = pipeline([50, 50, 50, 50, 50, 50, 70, 70], communication=0.0)
    made = replace(made, steps=tuple(replace(step, rejected_collectives=8) for step in made.steps))
    found = uneven_stage(made, ())
    assert found is not None
    assert found.role.stage == 3


def test_a_slow_rank_makes_no_stage_uneven() -> None:
    made = pipeline([50, 50, 50, 50, 50, 50, 50, 90])
    assert isinstance(uneven_stage(made, ()), UnevenStage)
    assert uneven_stage(made, {7}) is None
    assert uneven_stage(made, {6, 7}) is None  # of that stage nothing is known then


LENGTHS = np.array([0.8, 0.9, 1.1, 1.2])
"""Of four ranks' batches in a step, over their median."""


def batches(
    lengths: Percents, *, backward: Percents | None = None, speed: Percents | float = 1.0, role: list[int] | None = None
) -> JobExcess:
    """Forward passes of 20 % of the step and backward passes of 40 %, times `lengths` (steps × ranks)."""
    other = lengths if backward is None else backward
    passes = np.stack((20 * lengths * speed, 40 * other * speed), axis=1)
    return job(nothing(*lengths.shape), passes=passes, role=role)


def taking_turns(steps: int) -> Percents:
    return np.stack([np.roll(LENGTHS, step) for step in range(steps)])


def test_batches_of_different_length_slow_both_passes() -> None:
    found = uneven_batches(batches(taking_turns(8)), ())
    # Half of the batches differ by 20 % from the median, half by 10 %; the longest takes 20 % of 60 % of the step.
    assert found == UnevenBatches(pytest.approx(1.0), pytest.approx(1.4826 * 0.15), pytest.approx(0.12 * STEP_NS))


def test_the_report_says_how_strongly_the_passes_vary_together() -> None:
    (pattern,) = job_patterns(conclude(batches(taking_turns(8))))
    assert (pattern.cause, pattern.ranks) == ("sequence_imbalance", (0, 1, 2, 3))
    assert pattern.figures == pytest.approx({"correlation": 1.0, "variation": 1.4826 * 0.15})


def test_a_rank_that_is_always_slower_changes_nothing() -> None:
    speed = np.array([1.0, 1.0, 1.0, 1.5])
    assert uneven_batches(batches(np.ones((8, 4)), speed=speed), ()) is None
    found = uneven_batches(batches(taking_turns(8), speed=speed), ())
    assert found is not None and found.correlation > 0.9


def test_the_stage_that_computes_longest_is_what_the_others_wait_for() -> None:
    lengths = np.concatenate((taking_turns(8), taking_turns(8)), axis=1)
    found = uneven_batches(batches(lengths, speed=np.repeat([1.0, 0.5], 4), role=[0] * 4 + [1] * 4), ())
    assert found is not None and found.lost_ns == pytest.approx(0.12 * STEP_NS)


def now_and_then(steps: int) -> Percents:
    """Passes that differ by half a percent, and rank 2 half as long again in two steps."""
    lengths = 1 + 0.005 * np.array([[(-1) ** (step // 2 + rank) for rank in range(4)] for step in range(steps)])
    lengths[[1, 5], 2] *= 1.5
    return lengths


def slower_turns(steps: int) -> Percents:
    """Backward passes that vary like the forward ones of `taking_turns`, but not with them."""
    return np.stack([np.roll(LENGTHS, step // 4) for step in range(steps)])


def partly(steps: int) -> Percents:
    """Backward passes whose correlation with the forward ones of `taking_turns` is 0.8."""
    return 1 + 0.8 * (taking_turns(steps) - 1) + 0.6 * (slower_turns(steps) - 1)


def slow_once_each(steps: int) -> JobExcess:
    """Passes that vary a little, each by itself; each rank takes half as long again in one step."""
    forward, backward = (1 + (lengths(steps) - 1) / 10 for lengths in (taking_turns, slower_turns))
    for rank in range(4):
        forward[3 * rank, rank] *= 1.5
        backward[3 * rank, rank] *= 1.5
    return batches(forward, backward=backward)


def test_where_all_ranks_are_accused_nobody_is_left_to_vary() -> None:
    made = batches(taking_turns(8))
    assert uneven_batches(made, as_positions(range(len(made.ranks)))) is None


@pytest.mark.parametrize(
    "made",
    [
        batches(np.ones((8, 4))),
        batches(now_and_then(8)),
        slow_once_each(16),
        batches(taking_turns(3)),
        batches(1 + (taking_turns(8) - 1) / 100),
        batches(taking_turns(16), backward=slower_turns(16)),
        batches(taking_turns(16), backward=partly(16)),
        batches(taking_turns(8), backward=np.ones((8, 4))),
    ],
    ids=[
        "even",
        "one GPU slow now and then",
        "every GPU slow once",
        "three steps",
        "varies by less than a percent",
        "backward varies by itself",
        "backward varies partly by itself",
        "backward does not vary",
    ],
)
def test_what_is_no_sign_of_uneven_batches(made: JobExcess) -> None:
    assert uneven_batches(made, ()) is None


def test_ranks_that_were_found_slow_do_not_count() -> None:
    lengths = np.ones((8, 4))
    lengths[:, 3] = [0.7, 1.3] * 4
    lengths[:, 2] = [0.8, 1.2] * 4
    made = batches(lengths)
    assert costs(made, ()) > 0
    assert costs(made, {2, 3}) == 0


def costs(made: JobExcess, accused: set[int]) -> float:
    found = uneven_batches(made, as_positions(accused))
    assert found is not None
    return found.lost_ns


def test_batches_that_cost_less_than_3_percent_of_the_step_are_told_if_a_replay_says_more() -> None:
    found = conclude(batches(taking_turns(8), speed=0.2))
    assert list(job_patterns(found)) == []
    (pattern,) = job_patterns(found, to_be_priced=True)
    assert (pattern.cause, pattern.lost_us) == ("sequence_imbalance", pytest.approx(0.12 * 0.2 * STEP_NS / 1e3))
