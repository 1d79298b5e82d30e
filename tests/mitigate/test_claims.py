"""Claims: every sample of a step is trained once, whatever ranks believe of each other, and slow ranks take fewer."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mitigation.bound import bound_speed_up

from kair_engine.errors import UsageError
from kair_mitigate.guide import Guide
from kair_mitigate.policy.claims import claimed, shown_speeds
from kair_mitigate.policy.job_patterns import PATTERNS, Pattern, conditions_of, pattern
from kair_mitigate.policy.policies import Action, Claims, EachStep, View
from kair_mitigate.policy.simulation import simulate
from kair_mitigate.policy.table import POLICIES, SIMULATED, policy_of

STEPS = 600
SPEEDS = st.floats(1e-3, 1e6)


@pytest.mark.slow
@settings(derandomize=True, max_examples=200)
@given(
    st.lists(st.tuples(SPEEDS, SPEEDS), min_size=1, max_size=12),
    st.integers(1, 300),
    st.integers(1, 32),
    st.floats(0, 0.1),
)
def test_every_sample_is_claimed_once(
    ranks: list[tuple[float, float]], samples: int, most: int, claim_s: float
) -> None:
    believed, real = zip(*ranks, strict=True)
    sample_s = [1 / speed for speed in real]
    busy_s, done = claimed(Guide(believed, samples, most), sample_s, [0.0] * len(ranks), claim_s)
    assert sum(done) == samples
    assert all(count >= 0 for count in done)
    for took_s, count, one_s in zip(busy_s, done, sample_s, strict=True):
        assert took_s >= count * one_s * (1 - 1e-9)


def test_the_fastest_rank_never_leaves_the_rest_to_others() -> None:
    # Rank 0 believes that the others are fast; all of them have become slow, and each leaves the rest to others.
    busy_s, done = claimed(Guide([100.0, 90.0, 90.0], 48, 4), [1.0, 1.0, 1.0], [0.0] * 3, 0.0)
    assert sum(done) == 48
    assert max(busy_s) == busy_s[0]


def test_a_rank_that_slows_down_within_the_step_takes_fewer_samples() -> None:
    even = Guide([200.0] * 4, 64, 4)
    busy_s, done = claimed(even, [0.005, 0.005, 0.02, 0.005], [0.0] * 4, 0.0)
    # It has claimed two batches of 4 before the first one shows that it is slow: 160 ms, of 320 in even parts.
    assert done[2] == 8
    assert max(busy_s) == pytest.approx(0.16)


def test_speeds_are_those_of_the_last_step() -> None:
    assert shown_speeds([1.0, 2.0, 3.0], [0.5, 0.0, 1.0], [10, 0, 0]) == [20.0, 2.0, 3.0]


@pytest.mark.slow
@pytest.mark.parametrize("faults", PATTERNS, ids=lambda faults: faults.name)
def test_claims_are_between_each_step_and_the_bound(faults: Pattern) -> None:
    claims, each_step, no_delay = (
        simulate(policy, faults, 16, STEPS, seed=0).speed_up
        for policy in (Claims(), EachStep(), EachStep(by_ranks=True))
    )
    assert each_step <= no_delay * 1.01
    assert each_step < claims
    assert max(claims, no_delay) < bound_speed_up(conditions_of(faults, 16, STEPS, 0), 60.0)


def test_a_bound_with_restarts_is_no_lower_than_without() -> None:
    job = conditions_of(pattern("mix"), 16, 3000, seed=1)
    never, dear, cheap, free = (bound_speed_up(job, seconds) for seconds in (None, 60.0, 5.0, 0.0))
    assert 1 < never < dear < cheap < free


@pytest.mark.slow
def test_claims_restart_what_they_cannot_get_back() -> None:
    played = simulate(Claims(), pattern("slow network of one host"), 16, 700, seed=0, restart_s=5.0)
    assert [action.kind for _, action in played.actions] == ["claim", "kill_restart"]


class Recorder(Claims):
    """Claims that remember whether ranks claimed in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: list[bool] = []

    def decide(self, view: View) -> Action:
        self.claims.append(view.claims)
        return super().decide(view)


def test_ranks_claim_from_the_second_step_on() -> None:
    policy = Recorder()
    assert simulate(policy, pattern("healthy"), 16, 5, seed=0).resizes == 0
    assert policy.claims == [False, True, True, True, True]
    alone = Recorder()
    simulate(alone, pattern("healthy"), 1, 5, seed=0)
    assert not any(alone.claims)


def test_a_job_can_be_controlled_by_claims_and_not_by_sizes_that_come_with_gradients() -> None:
    assert isinstance(policy_of("claims", print), Claims)
    assert SIMULATED.keys() - POLICIES.keys() == {"each-step-no-delay", "backup-workers"}
    with pytest.raises(UsageError, match="no policy 'each-step-no-delay'"):
        policy_of("each-step-no-delay", print)


def test_without_a_delay_sizes_are_those_of_the_step_before() -> None:
    late, at_once = (
        simulate(policy, pattern("half the ranks × 3"), 16, 20, seed=0).speed_up
        for policy in (EachStep(), EachStep(by_ranks=True))
    )
    assert at_once > 1.2 * late
    assert np.isfinite(at_once)
