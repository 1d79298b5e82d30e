"""Stage 1's tests on excesses written down directly: persistent, intermittent, group."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kair_engine.anomalies import Anomaly, intermittent, persistence, persistent, slow_groups
from kair_engine.excess import CLASSES, JobExcess, LateArrivals, StepExcess
from kair_engine.stages.localize import conclude

PROPERTY = settings(deadline=None, derandomize=True, max_examples=60)
STEP_NS = 100_000_000.0
COMPUTE, INPUT, HOST, COMMUNICATION = range(len(CLASSES))
Percents = np.ndarray
NOBODY = LateArrivals(*(np.zeros(0, dtype=np.int64) for _ in range(4)))


def job(percents: Percents, *, role: list[int] | None = None, late: LateArrivals = NOBODY) -> JobExcess:
    """A job from (steps × classes × ranks) excesses in percent of the step."""
    steps = tuple(
        StepExcess(step, of_step * STEP_NS / 100, STEP_NS, late, 0, len(late.rank))
        for step, of_step in enumerate(percents)
    )
    ranks = np.arange(percents.shape[2])
    roles = np.zeros(len(ranks), dtype=np.int64) if role is None else np.array(role)
    return JobExcess(ranks, roles, {int(rank): f"role {code}" for rank, code in enumerate(roles)}, steps)


def quiet(steps: int, ranks: int, seed: int = 0, percent: float = 0.1) -> Percents:
    """Excesses of a healthy job: a little noise in every class."""
    return np.random.default_rng(seed).normal(0, percent, (steps, len(CLASSES), ranks))


def found_in(made: JobExcess) -> list[tuple[str, tuple[int, ...], str]]:
    return [(a.kind, a.ranks, CLASSES[a.class_index]) for a in conclude(made).anomalies]


def test_nobody_stands_out_of_a_quiet_job() -> None:
    assert found_in(job(quiet(20, 8))) == []


@PROPERTY
@given(
    percents=arrays(
        np.float64, st.tuples(st.integers(1, 12), st.just(4), st.integers(4, 24)), elements=st.floats(-20, 20)
    )
)
def test_persistence_is_the_formula(percents: Percents) -> None:
    result = persistence(job(percents))
    classes, ranks = percents.shape[1:]
    for c in range(classes):
        mean = [scipy.stats.trim_mean(percents[:, c, w], 0.2) for w in range(ranks)]
        for w in range(ranks):
            others = [mean[v] for v in range(ranks) if v != w]
            spread = 1.4826 * scipy.stats.median_abs_deviation(others)
            if ranks < 20:
                cut = int(0.2 * len(others))
                edge = scipy.stats.norm.isf(cut / len(others)) if cut else np.inf
                left = scipy.stats.truncnorm.std(-edge, edge)
                spread = max(spread, np.std(sorted(others)[cut : len(others) - cut], ddof=1) / left)
            t = (mean[w] - np.median(others)) / max(spread, 0.1)
            df = ranks - 2 if ranks < 20 else max(8, 0.37 * (ranks - 1))
            assert result.mean_ns[c, w] == pytest.approx(mean[w] * STEP_NS / 100, abs=1e-3)
            assert result.t[c, w] == pytest.approx(t, rel=1e-6, abs=1e-9)
            assert result.p_value[c, w] == pytest.approx(min(1, ranks * classes * scipy.stats.t.sf(t, df)), rel=1e-5)


def test_a_rank_that_is_slow_in_every_step_is_persistent() -> None:
    percents = quiet(20, 8)
    percents[:, COMPUTE, 3] += 5
    anomaly = persistent(job(percents), persistence(job(percents)))[0]
    assert (anomaly.kind, anomaly.ranks, anomaly.class_index) == ("persistent", (3,), COMPUTE)
    assert anomaly.excess_ns == pytest.approx(0.05 * STEP_NS, rel=0.02)
    assert anomaly.p_value is not None and anomaly.p_value < 0.02


def test_a_rank_that_is_fast_is_no_straggler() -> None:
    percents = quiet(20, 8)
    percents[:, COMPUTE, 3] -= 5
    assert found_in(job(percents)) == []


@pytest.mark.parametrize(("percent", "expected"), [(0.9, []), (1.2, [("persistent", (3,), "host")])])
def test_less_than_a_percent_of_the_step_is_not_worth_a_finding(percent: float, expected: list) -> None:
    percents = quiet(20, 8, percent=0.01)
    percents[:, HOST, 3] += percent
    assert found_in(job(percents)) == expected


def test_slow_in_a_few_steps_is_not_persistent() -> None:
    percents = quiet(10, 8)
    percents[:4, COMPUTE, 3] += 9  # below the 10 % of an event
    assert found_in(job(percents)) == []


def test_a_step_that_a_rank_lacks_is_no_excess() -> None:
    percents = quiet(10, 8)
    percents[0, :, 3] = np.nan
    percents[:, COMPUTE, 5] += 5
    assert found_in(job(percents)) == [("persistent", (5,), "compute")]


def test_a_role_of_two_is_held_against_the_rest_of_the_job() -> None:
    percents = quiet(20, 8)
    percents[:, COMPUTE, 6] += 5
    percents[:, COMPUTE, 7] -= 5
    assert found_in(job(percents, role=[0, 0, 0, 0, 0, 0, 1, 1])) == [("persistent", (6,), "compute")]


def test_two_ranks_alone_prove_nothing() -> None:
    percents = quiet(20, 2)
    percents[:, COMPUTE, 1] += 9
    assert np.isnan(persistence(job(percents)).p_value).all()
    assert found_in(job(percents)) == []


def stalls(steps: int, ranks: int, of_rank: dict[int, list[int]], percent: float = 30) -> Percents:
    percents = quiet(steps, ranks)
    for rank, hit in of_rank.items():
        percents[hit, HOST, rank] += percent
    return percents


def test_a_rank_with_all_the_large_delays_is_intermittent() -> None:
    found = intermittent(job(stalls(12, 4, {3: [1, 4, 7, 9]})))
    assert [(a.ranks, a.class_index, a.events) for a in found] == [((3,), HOST, (4, 4))]
    # 4 · (1/4)⁴: four ranks, each hit by four of four with that chance.
    assert found[0].p_value == pytest.approx(4 * 0.25**4)
    assert found[0].excess_ns == pytest.approx(4 * 0.3 * STEP_NS / 12, rel=0.02)


@pytest.mark.parametrize(
    "of_rank",
    [
        {3: [1, 4, 7]},  # 4 · (1/4)³ = 0.06
        {3: [1]},
        {0: [1, 2], 1: [3, 4], 2: [5, 6], 3: [7, 8]},
    ],
    ids=["three of three", "one", "everybody's"],
)
def test_delays_that_chance_explains_accuse_nobody(of_rank: dict[int, list[int]]) -> None:
    assert intermittent(job(stalls(12, 4, of_rank))) == []


def test_a_second_culprit_is_seen_once_the_firsts_delays_are_taken_out() -> None:
    # Of ten delays four are rank 5's: 8·P(Bin(10, 1/8) ≥ 4) = 0.22. Without rank 2's six: 8·(1/7)⁴ = 0.003.
    found = intermittent(job(stalls(20, 8, {2: [0, 2, 4, 6, 8, 10], 5: [1, 3, 5, 7]})))
    assert [(a.ranks, a.events) for a in found] == [((2,), (6, 10)), ((5,), (4, 4))]
    assert found[1].p_value == pytest.approx(8 * (1 / 7) ** 4)


def test_a_delay_of_less_than_a_tenth_of_the_step_is_no_event() -> None:
    assert intermittent(job(stalls(12, 4, {3: [1, 4, 7, 9]}, percent=9))) == []


def test_roles_have_their_own_delays() -> None:
    # In its role of four, all four delays are rank 3's; the other role's are spread.
    percents = stalls(12, 8, {3: [1, 4, 7, 9], 4: [0, 2], 5: [3, 5], 6: [6, 8], 7: [10, 11]})
    found = intermittent(job(percents, role=[0, 0, 0, 0, 1, 1, 1, 1]))
    assert found == []  # 8 · (1/4)⁴ = 0.03: eight ranks were tried
    found = intermittent(job(stalls(12, 8, {3: [1, 4, 6, 7, 9], 4: [0], 5: [3], 6: [8]}), role=[0] * 4 + [1] * 4))
    assert [(a.ranks, a.events) for a in found] == [((3,), (5, 5))]


def test_a_slow_host_is_a_group() -> None:
    percents = quiet(20, 8, percent=0.05)
    percents[:, COMPUTE, 5:] += 4
    assert ("group", (5, 6, 7), "compute") in found_in(job(percents))


@pytest.mark.parametrize(
    ("slow", "percent"),
    [([7], 4.0), ([3, 4, 5, 6, 7], 4.0), ([6, 7], 0.8)],
    ids=["a rank is no group", "more than half", "below a percent"],
)
def test_what_is_no_group(slow: list[int], percent: float) -> None:
    percents = quiet(20, 8, percent=0.02)
    percents[:, COMPUTE, slow] += percent
    assert slow_groups(job(percents), persistence(job(percents))) == []


def test_a_group_is_slow_in_most_steps() -> None:
    percents = quiet(20, 8, percent=0.02)
    percents[:10, COMPUTE, 6:] += 12
    assert slow_groups(job(percents), persistence(job(percents))) == []


def test_a_group_whose_ranks_stand_out_by_themselves_is_still_a_group() -> None:
    percents = quiet(20, 12, percent=0.05)
    percents[:, COMPUTE, 10:] += 4
    assert found_in(job(percents)) == [
        ("persistent", (10,), "compute"),
        ("persistent", (11,), "compute"),
        ("group", (10, 11), "compute"),
    ]


def late(ranks: list[int], percents: list[float]) -> LateArrivals:
    ns = (np.array(percents) * STEP_NS / 100).astype(np.int64)
    return LateArrivals(np.array(ranks), ns, ns, 3 * ns)


def test_in_one_step_the_late_arrivals_are_the_sample() -> None:
    one = job(quiet(1, 8), late=late([2, 2, 2, 2, 6, 2], [3, 3, 3, 3, 3, 0.5]))
    found = intermittent(one)
    # Rank 2's sixth arrival is within a percent of the step: no event.
    assert [(a.ranks, a.events) for a in found] == [((2,), (4, 5))]
    assert found[0].excess_ns == pytest.approx(0.12 * STEP_NS)
    assert found[0].p_value == pytest.approx(8 * scipy.stats.binom.sf(3, 5, 1 / 8))


def test_in_one_step_late_arrivals_of_many_ranks_accuse_nobody() -> None:
    assert intermittent(job(quiet(1, 8), late=late([0, 1, 2, 3, 4, 5], [3] * 6))) == []


def test_a_thousand_delays_are_counted_too() -> None:
    percents = quiet(1500, 4, percent=0.01)
    percents[:, HOST, 3] += 30
    assert [(a.ranks, a.events) for a in intermittent(job(percents))] == [((3,), (1500, 1500))]


def test_a_step_without_length_divides_nothing_by_zero() -> None:
    empty = np.zeros((len(CLASSES), 8))
    made = JobExcess(
        np.arange(8),
        np.zeros(8, dtype=np.int64),
        dict.fromkeys(range(8), "all"),
        (StepExcess(0, empty, 0.0, NOBODY, 0, 0),),
    )
    assert np.isfinite(persistence(made).t).all()
    assert conclude(made).anomalies == ()


def test_an_anomaly_is_a_plain_value() -> None:
    percents = quiet(20, 8)
    percents[:, COMPUTE, 3] += 5
    (anomaly,) = conclude(job(percents)).anomalies
    assert anomaly == Anomaly("persistent", (3,), COMPUTE, anomaly.p_value, anomaly.excess_ns, (0, 0))
    assert type(anomaly.ranks[0]) is int and type(anomaly.excess_ns) is float
