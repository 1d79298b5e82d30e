"""Policies against simulated jobs: every kind of fault, with fixed seeds."""

import numpy as np
import pytest

from kair_mitigate.policy.job_patterns import PATTERNS, Pattern, pattern
from kair_mitigate.policy.policies import (
    NOTHING,
    Action,
    BackupWorkers,
    Continuous,
    Deterministic,
    EachStep,
    Static,
    View,
)
from kair_mitigate.policy.simulation import simulate, simulate_recorded

DEADLINE = 1.25


RESTARTED = [one for one in PATTERNS if one.persistent or one.slow_network]
"""What a restart could cure."""


def mean_speed_up(name: str, ranks: int, seeds: int = 3) -> float:
    jobs = (simulate(Continuous(deadline=DEADLINE), pattern(name), ranks, 3000, seed) for seed in range(seeds))
    return float(np.mean([job.speed_up for job in jobs]))


def test_a_job_left_alone_is_as_fast_as_it_is() -> None:
    for one in PATTERNS:
        left_alone = simulate(Static(), one, 16, 100, seed=1)
        assert left_alone.speed_up == pytest.approx(1)
        assert (left_alone.resizes, left_alone.restarts, left_alone.redone_share) == (0, 0, 0)


def test_equal_seeds_make_equal_jobs() -> None:
    first, again = (simulate(Continuous(), pattern("mix"), 16, 300, seed=3) for _ in range(2))
    assert (first.speed_up, first.step_s) == (again.speed_up, again.step_s)
    assert simulate(Continuous(), pattern("mix"), 16, 300, seed=4).step_s != first.step_s


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [16, 64])
def test_a_healthy_job_gets_no_proposal_in_2000_steps(ranks: int) -> None:
    assert simulate(Continuous(), pattern("healthy, no spells"), ranks, 2000, seed=0).actions == ()


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [16, 64, 256])
@pytest.mark.parametrize("seed", range(1, 3))
def test_no_healthy_job_gets_a_proposal_in_2000_steps(ranks: int, seed: int) -> None:
    assert simulate(Continuous(), pattern("healthy, no spells"), ranks, 2000, seed).actions == ()


def test_fixed_speeds_are_balanced() -> None:
    # Of 16 ranks half are 3 times as slow: 24 and 8 samples take half of the computing, 100 ms + noise of 260.
    # The deterministic policy waits for the long window first, a third of this job.
    for policy, least in ((Deterministic(), 1.4), (Continuous(), 1.6), (EachStep(), 1.7)):
        assert simulate(policy, pattern("half the ranks × 3"), 16, 500, seed=0).speed_up > least


def test_a_straggler_that_stays_is_nearly_made_up_for() -> None:
    assert simulate(Continuous(), pattern("persistent"), 16, 600, seed=0).speed_up > 2
    without_the_slowest = simulate(BackupWorkers(), pattern("persistent"), 16, 600, seed=0)
    assert without_the_slowest.redone_share == pytest.approx(1 / 16, abs=0.01)


@pytest.mark.slow
def test_the_deadline_helps_with_what_is_short() -> None:
    without = simulate(Continuous(), pattern("transient"), 16, 500, seed=0)
    with_it = simulate(Continuous(deadline=DEADLINE), pattern("transient"), 16, 500, seed=0)
    assert with_it.speed_up > without.speed_up
    assert 0 < with_it.redone_share < 0.05


@pytest.mark.slow
def test_the_hardest_mix_is_three_times_as_fast_at_16_ranks() -> None:
    assert mean_speed_up("mix", 16) >= 3


@pytest.mark.slow
def test_the_hardest_mix_is_four_times_as_fast_at_64_ranks() -> None:
    assert mean_speed_up("mix", 64) >= 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "one", [one for one in PATTERNS if one.persistent or one.slow_network], ids=lambda one: one.name
)
@pytest.mark.parametrize("deadline", [None, DEADLINE])
def test_no_restart_loses(one: Pattern, deadline: float | None) -> None:
    restarted = simulate(Continuous(deadline=deadline), one, 16, 1500, seed=0)
    if restarted.restarts:
        never = simulate(Continuous(deadline=deadline), one, 16, 1500, seed=0, restart_s=None)
        assert restarted.speed_up > never.speed_up


@pytest.mark.slow
def test_a_restart_of_a_slow_network_pays() -> None:
    restarted = simulate(Continuous(), pattern("slow network of one host"), 16, 700, seed=0, restart_s=5.0)
    assert restarted.restarts == 1
    assert restarted.speed_up > simulate(Continuous(), pattern("slow network of one host"), 16, 700, seed=0).speed_up


def test_a_restart_that_takes_longer_than_the_job_is_not_made() -> None:
    assert simulate(Continuous(), pattern("mix"), 16, 500, seed=0, restart_s=1000.0).restarts == 0


@pytest.mark.slow
def test_2048_ranks_are_simulated() -> None:
    assert simulate(Continuous(deadline=DEADLINE), pattern("mix"), 2048, 1000, seed=0).speed_up > 4


def test_a_recorded_job_is_played_with_its_own_steps() -> None:
    rng = np.random.default_rng(0)
    compute = 0.08 * np.exp(0.03 * rng.standard_normal((400, 8)))
    compute[:, 3] *= 3
    sizes, highest = np.full(8, 16), np.full(8, 64)
    played = simulate_recorded(Continuous(), compute, np.full(400, 0.02), sizes, highest=highest)
    # At best (7 + 1/3) / 8 of the samples are the fast ranks': 80 * 8 / 7.33 + 20 = 107 ms and noise, of 260.
    assert 1.9 < played.speed_up < 2.4
    assert played.restarts == 0
    assert simulate_recorded(Static(), compute, np.full(400, 0.02), sizes, highest=highest).step_s == pytest.approx(
        compute.max(axis=1).mean() + 0.02
    )
    less = simulate_recorded(Continuous(), compute, np.full(400, 0.02), sizes, highest=highest, fixed_share=0.4)
    assert less.speed_up < played.speed_up


def test_tables_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match="need as many rests and sizes"):
        simulate_recorded(Static(), np.ones((5, 2)), np.ones(4), np.full(2, 16), highest=np.full(2, 64))


class TakesFromTheSlowest:
    """What a user may write: two samples fewer for the slowest, once."""

    def decide(self, view: View) -> Action:
        if view.step != 50:
            return NOTHING
        slowest, fastest = view.compute_s.argmax(), view.compute_s.argmin()
        sizes = view.sizes.copy()
        sizes[[slowest, fastest]] += [-2, 2]
        return Action("adjust_bs", sizes=sizes, reason={"slowest": float(slowest)})


def test_a_policy_of_the_users_own_is_played() -> None:
    played = simulate(TakesFromTheSlowest(), pattern("half the ranks × 3"), 2, 300, seed=0)
    assert played.resizes == 1
    assert played.speed_up > 1.05
