"""Stage 1's tests on excesses written down directly: persistent, intermittent, group."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.excess_builder import COMMUNICATION, COMPUTE, HOST, INPUT, STEP_NS, Percents, job, quiet

from kair_engine.localize.anomalies import CLASS_SHARES, SHARES, Anomaly, intermittent, persistence
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.localize.localization import conclude

PROPERTY = settings(deadline=None, derandomize=True, max_examples=60)


def found_in(made: JobExcess) -> list[tuple[str, tuple[int, ...], str]]:
    return [(a.kind, a.positions, CLASSES[a.class_index]) for a in conclude(made).anomalies]


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
    accused = {(a.class_index, rank) for a in result.anomalies for rank in a.positions}
    classes, ranks = percents.shape[1:]
    prior = {COMPUTE: np.hypot(0.1, 0.006 * 80), INPUT: 0.3, HOST: 0.3, COMMUNICATION: 0.1}
    for c in range(classes):
        mean = np.array([scipy.stats.trim_mean(percents[:, c, w], 0.2) for w in range(ranks)])
        if any(row == c for row, _ in accused):
            continue  # those who are not accused are then compared without the accused
        for w in range(ranks):
            others = np.delete(mean, w)
            if ranks < 20:
                center, own, df, count = others.mean(), others.var(ddof=1), ranks - 2, ranks - 1
            else:
                center, own = np.median(mean), (1.4826 * scipy.stats.median_abs_deviation(mean)) ** 2
                df, count = max(8, 0.37 * (ranks - 1)), ranks
            if percents.shape[0] > 1:
                own = max(own, percents[:, c].var(axis=0, ddof=1).mean() / percents.shape[0])
            variance = (4 * prior[c] ** 2 + df * own) / (4 + df)
            t = (mean[w] - center) / np.sqrt(variance * (1 + 1 / count))
            tests = ranks / 0.6 / SHARES["persistent"] / CLASS_SHARES[CLASSES[c]]
            assert result.mean_ns[c, w] == pytest.approx(mean[w] * STEP_NS / 100, abs=1e-3)
            assert result.t[c, w] == pytest.approx(t, rel=1e-6, abs=1e-6)
            if t > 1:
                assert result.p_value[c, w] == pytest.approx(min(1, tests * scipy.stats.t.sf(t, df + 4)), rel=1e-4)


def test_a_rank_that_is_slow_in_every_step_is_persistent() -> None:
    percents = quiet(20, 8)
    percents[:, COMPUTE, 3] += 5
    (anomaly,) = persistence(job(percents)).anomalies
    assert (anomaly.kind, anomaly.positions, anomaly.class_index) == ("persistent", (3,), COMPUTE)
    assert anomaly.excess_ns == pytest.approx(0.05 * STEP_NS, rel=0.02)
    assert anomaly.p_value < 0.01


def test_a_rank_that_is_fast_is_no_straggler() -> None:
    percents = quiet(20, 8)
    percents[:, COMPUTE, 3] -= 5
    assert found_in(job(percents)) == []


@pytest.mark.parametrize(("percent", "expected"), [(0.9, []), (1.5, [("persistent", (3,), "host")])])
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


def test_roles_of_two_borrow_the_spread_of_the_others() -> None:
    percents = quiet(20, 8)
    percents[:, COMPUTE, 6] += 3
    percents[:, COMPUTE, 7] -= 3
    assert found_in(job(percents, role=[0, 0, 1, 1, 2, 2, 3, 3])) == [("persistent", (6,), "compute")]


def test_two_culprits_of_different_size_do_not_hide_each_other() -> None:
    percents = quiet(20, 8)
    percents[:, COMPUTE, 2] += 4
    percents[:, COMPUTE, 5] += 20
    found = found_in(job(percents))
    assert {rank for _, ranks, _ in found for rank in ranks} == {2, 5}


def test_half_of_a_role_can_be_slow() -> None:
    percents = quiet(20, 8)
    percents[:, COMPUTE, 4:] += 5
    (anomaly,) = conclude(job(percents)).anomalies
    assert (anomaly.kind, anomaly.positions) == ("group", (4, 5, 6, 7))
    # Counted from the other half, not from the median between the halves.
    assert anomaly.excess_ns == pytest.approx(0.05 * STEP_NS, rel=0.05)


def test_ranks_that_share_a_batch_count_as_one() -> None:
    """Four tensor-parallel groups of four: one of them is higher, as one of four always is."""
    of_group = np.repeat([0.0, 0.6, 1.4, 3.4], 4)
    percents = quiet(20, 16, percent=0.05) + of_group
    percents[:, 1:] = 0
    apart = [("group", (12, 13, 14, 15), "compute")]
    assert found_in(job(percents)) == apart
    assert found_in(job(percents, unit=np.repeat(range(4), 4).tolist())) == []


def test_one_slow_operator_is_found_where_all_of_compute_hides_it() -> None:
    rng = np.random.default_rng(5)
    percents = quiet(20, 8, percent=0.05)
    percents[:, COMPUTE] += rng.normal(0, 0.8, 8)  # GPUs of different speed
    attention = rng.normal(0, 0.05, (20, 8))
    attention[:, 3] += 2
    percents[:, COMPUTE, 3] += 2
    (anomaly,) = conclude(job(percents, operators={"attention": attention})).anomalies
    assert (anomaly.kind, anomaly.positions, anomaly.operator) == ("persistent", (3,), "attention")


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


def beta_binomial(k: int, steps: int, others: int, peers: int) -> float:
    """Family-wise p of k events, when the rate is known from the peers and from a prior of 1 event in 50 steps."""
    a, b = 1 + others, 49 + peers * steps - others
    return (peers + 1) / SHARES["intermittent"] * scipy.stats.betabinom.sf(k - 1, steps, a, b)


def test_a_rank_with_all_the_large_delays_is_intermittent() -> None:
    found = intermittent(job(stalls(12, 4, {3: [1, 4, 7, 9]})))
    assert [(a.positions, a.class_index, a.events) for a in found] == [((3,), HOST, (4, 4))]
    assert found[0].p_value == pytest.approx(beta_binomial(4, 12, 0, 3))
    assert found[0].excess_ns == pytest.approx(4 * 0.3 * STEP_NS / 12, rel=0.02)


@pytest.mark.parametrize(
    "of_rank",
    [{3: [1, 4]}, {3: [1]}, {0: [1, 2, 3], 1: [3, 4, 5], 2: [5, 6], 3: [7, 8, 9]}],
    ids=["two", "one", "everybody's"],
)
def test_delays_that_chance_explains_accuse_nobody(of_rank: dict[int, list[int]]) -> None:
    assert intermittent(job(stalls(12, 4, of_rank))) == []


def test_a_second_culprit_is_seen_once_the_firsts_delays_are_taken_out() -> None:
    found = intermittent(job(stalls(20, 8, {2: [0, 2, 4, 6, 8, 10], 5: [1, 3, 5, 7]})))
    assert [(a.positions, a.events) for a in found] == [((2,), (6, 10)), ((5,), (4, 10))]
    assert found[1].p_value == pytest.approx(beta_binomial(4, 20, 0, 6) * 8 / 7)


def test_delays_that_a_tensor_parallel_group_has_together_count_once() -> None:
    """Rank 0's group of four has three delays, all members in each: not twelve against the others' none."""
    unit = np.repeat(range(4), 4).tolist()
    of_rank = {rank: [1, 4, 7] for rank in range(4)} | {rank: [2, 9] for rank in range(4, 8)}
    assert intermittent(job(stalls(12, 16, of_rank), unit=unit)) == []


def test_a_delay_of_less_than_a_tenth_of_the_step_is_no_event() -> None:
    assert intermittent(job(stalls(12, 4, {3: [1, 4, 7, 9]}, percent=9))) == []


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
    assert [a for a in conclude(job(percents)).anomalies if a.kind == "group"] == []


def test_a_group_is_slow_in_most_steps() -> None:
    percents = quiet(20, 8, percent=0.02)
    percents[:10, COMPUTE, 6:] += 12
    assert [a for a in conclude(job(percents)).anomalies if a.kind == "group"] == []


def test_two_ranks_that_are_equally_slow_are_a_group() -> None:
    percents = quiet(20, 12, percent=0.05)
    percents[:, COMPUTE, 10:] += 4
    assert found_in(job(percents)) == [("group", (10, 11), "compute")]


def test_many_slow_ranks_of_many_are_told_apart() -> None:
    percents = quiet(20, 64)
    slow = [3, 17, 40, 41, 42, 60]
    percents[:, COMPUTE, slow] += [5, 9, 14, 3, 20, 6]
    assert {rank for _, ranks, _ in found_in(job(percents)) for rank in ranks} == set(slow)


def paused(counts: list[int], percent: float = 3.0) -> JobExcess:
    """One step in which each rank's host paused so often between two collectives."""
    made = job(quiet(1, len(counts)))
    lost = np.array(counts) * percent / 100 * STEP_NS
    return replace(made, steps=(replace(made.steps[0], pauses=np.array(counts), paused_ns=lost),))


def test_in_one_step_the_hosts_pauses_are_the_sample() -> None:
    found = intermittent(paused([0, 0, 5, 0, 0, 0, 1, 0]))
    assert [(a.positions, a.class_index, a.events) for a in found] == [((2,), HOST, (5, 6))]
    assert found[0].excess_ns == pytest.approx(0.15 * STEP_NS)
    assert found[0].p_value == pytest.approx(8 / SHARES["intermittent"] * scipy.stats.binom.sf(4, 6, 1 / 8))


@pytest.mark.parametrize("counts", [[1, 1, 1, 1, 1, 1, 0, 0], [0, 0, 1, 0, 0, 0, 0, 0], [2, 3, 2, 2, 1, 2, 3, 2]])
def test_in_one_step_pauses_of_many_ranks_or_a_single_one_accuse_nobody(counts: list[int]) -> None:
    assert intermittent(paused(counts)) == []


def test_in_one_step_a_slow_rank_is_not_told_from_a_slow_moment() -> None:
    percents = quiet(1, 8)
    percents[:, COMPUTE, 3] += 9
    found = conclude(job(percents))
    assert found.anomalies == ()
    assert [anomaly.positions for anomaly in found.undecided] == [(3,)]


def test_a_thousand_delays_are_counted_too() -> None:
    percents = quiet(1500, 4, percent=0.01)
    percents[:, HOST, 3] += 30
    assert [(a.positions, a.events) for a in intermittent(job(percents))] == [((3,), (1500, 1500))]


def test_a_step_without_length_divides_nothing_by_zero() -> None:
    made = job(np.zeros((1, len(CLASSES), 8)))
    made = replace(made, steps=tuple(replace(step, step_time_ns=0.0, work_ns=0 * step.work_ns) for step in made.steps))
    assert np.isfinite(persistence(made).t).all()
    assert conclude(made).anomalies == ()


def test_an_anomaly_is_a_plain_value() -> None:
    percents = quiet(20, 8)
    percents[:, COMPUTE, 3] += 5
    (anomaly,) = conclude(job(percents)).anomalies
    assert anomaly == Anomaly("persistent", (3,), COMPUTE, anomaly.p_value, anomaly.excess_ns, (0, 0))
    assert type(anomaly.positions[0]) is int and type(anomaly.excess_ns) is float
