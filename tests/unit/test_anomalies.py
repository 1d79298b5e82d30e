"""Stage 1's tests on excesses written down directly: persistent, intermittent, group."""

from dataclasses import replace

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.excess_builder import COMMUNICATION, COMPUTE, HOST, INPUT, STEP_NS, Percents, job, nothing, quiet

from kair_engine.localize.anomalies import SHARES, Anomaly
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.localize.large_delays import intermittent, large_delays
from kair_engine.localize.localization import conclude
from kair_engine.localize.noise import inflation
from kair_engine.localize.persistence import CLASS_SHARES, can_accuse, persistence

PROPERTY = settings(deadline=None, derandomize=True, max_examples=15)


def found_in(made: JobExcess) -> list[tuple[str, tuple[int, ...], str]]:
    return [(a.kind, a.positions, CLASSES[a.class_index]) for a in conclude(made).anomalies]


def test_nobody_stands_out_of_a_quiet_job() -> None:
    assert found_in(job(quiet(20, 8))) == []


def mixture(
    above: float, own: float, df: float, scale: float, priors: list[tuple[float, float]], noise: float
) -> float:
    """P of such a distance by both priors, each weighted by how well it foretold the others' variance (scaled F)."""
    foretold = [weight * scipy.stats.f.pdf(own / of, df, 4) / of for weight, of in priors]
    spread = [(4 * of + df * max(own, noise**2)) / (4 + df) for _, of in priors]
    tails = [scipy.stats.t.sf(above / np.sqrt(one) / scale, 4 + df) for one in spread]
    return float(np.dot(foretold, tails) / sum(foretold))


@pytest.mark.slow
@PROPERTY
@given(
    percents=arrays(
        np.float64, st.tuples(st.integers(1, 12), st.just(4), st.integers(4, 24)), elements=st.floats(-20, 20)
    )
)
def test_persistence_is_the_formula(percents: Percents) -> None:
    result = persistence(job(percents))
    accused = {(a.class_index, rank) for a in result.anomalies for rank in a.positions}
    steps, classes, ranks = percents.shape
    usual = {COMPUTE: np.hypot(0.1, 0.006 * 80), INPUT: 0.3, HOST: 0.3, COMMUNICATION: 0.1}
    wide = {COMPUTE: 0.05 * 80, INPUT: 2.0, HOST: 2.0}
    for c in range(classes):
        mean = np.array([scipy.stats.trim_mean(percents[:, c, w], 0.2) for w in range(ranks)])
        variance = float(np.median(percents[:, c].var(axis=0, ddof=1))) if steps > 1 else 0.0
        noise = np.sqrt(variance * inflation(percents[:, c]) / steps)
        priors = [(1.0, usual[c] ** 2 + noise**2)]
        if c in wide:
            priors = [(0.9, priors[0][1]), (0.1, wide[c] ** 2 + noise**2)]
        if any(row == c for row, _ in accused):
            continue  # those who are not accused are then compared without the accused
        for w in range(ranks):
            others = np.delete(mean, w)
            if ranks < 20:
                center, own, df, count = others.mean(), others.var(ddof=1), ranks - 2, ranks - 1
            else:
                center, own = np.median(mean), (1.4826 * scipy.stats.median_abs_deviation(mean)) ** 2
                df, count = max(8, 0.37 * (ranks - 1)), ranks
            above, scale = mean[w] - center, np.sqrt(1 + 1 / count)
            t = above / scale / np.sqrt((4 * priors[0][1] + df * max(own, noise**2)) / (4 + df))
            assert result.mean_ns[c, w] == pytest.approx(mean[w] * STEP_NS / 100, abs=1e-3)
            assert result.t[c, w] == pytest.approx(t, rel=1e-6, abs=1e-6)
            # The density of F is not defined where the others are all alike.
            if t > 1 and own > 1e-9:
                tests = ranks / 0.6 / SHARES["persistent"] / CLASS_SHARES[CLASSES[c]]
                expected = tests * mixture(above, own, df, scale, priors, noise)
                assert result.p_value[c, w] == pytest.approx(min(1, expected), rel=1e-4)


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


@pytest.mark.parametrize("ranks", [2, 3])
def test_of_two_or_three_ranks_one_is_found_that_is_slower_by_more_than_healthy_ones_differ(ranks: int) -> None:
    percents = quiet(20, ranks)
    percents[:, COMPUTE, 1] += 9
    (anomaly,) = conclude(job(percents)).anomalies
    assert (anomaly.kind, anomaly.positions, anomaly.class_index) == ("persistent", (1,), COMPUTE)
    assert anomaly.excess_ns == pytest.approx(0.09 * STEP_NS, rel=0.02)
    # Of two or three nobody knows how much healthy ones differ: p is that of one being above in all of 20 steps.
    assert anomaly.p_value == pytest.approx(ranks * ranks**-20.0)


@pytest.mark.parametrize("ranks", [2, 3])
def test_two_or_three_ranks_that_differ_by_6_percent_prove_nothing(ranks: int) -> None:
    percents = quiet(20, ranks)
    percents[:, COMPUTE, 1] += 6
    assert found_in(job(percents)) == []
    assert np.isnan(persistence(job(percents)).p_value).all()


@pytest.mark.parametrize("row", [INPUT, HOST])
@pytest.mark.parametrize("ranks", [2, 3])
def test_of_two_or_three_ranks_one_that_is_idle_for_longer_is_found_by_half_as_much(ranks: int, row: int) -> None:
    """As long as it is the later one with all its work, too."""
    percents = quiet(20, ranks)
    percents[:, row, 1] += 4
    percents[:, COMPUTE, 1] -= 2
    (anomaly,) = conclude(job(percents)).anomalies
    assert (anomaly.kind, anomaly.positions, anomaly.class_index) == ("persistent", (1,), row)
    percents[:, COMPUTE, 1] -= 2
    assert found_in(job(percents)) == []
    less = quiet(20, ranks)
    less[:, row, 1] += 2.5
    assert found_in(job(less)) == []


@pytest.mark.parametrize("ranks", [2, 3])
def test_of_two_or_three_ranks_one_is_found_by_one_operator_that_all_else_does_not_explain(ranks: int) -> None:
    percents, relu = quiet(20, ranks), quiet(20, ranks)[:, COMPUTE]
    relu[:, 1] += 5
    percents[:, COMPUTE, 1] += 5
    (anomaly,) = conclude(job(percents, operators={"relu": relu}, on_device=False)).anomalies
    assert (anomaly.positions, anomaly.class_index, anomaly.operator) == ((1,), COMPUTE, "relu")
    assert anomaly.excess_ns == pytest.approx(0.05 * STEP_NS, rel=0.03)
    # Of two devices one may have a slower clock, for which some kernels wait, and others for memory.
    assert found_in(job(percents, operators={"relu": relu})) == []


def test_of_two_ranks_a_slower_core_makes_no_operator_slow() -> None:
    """Operator and step take 80 % longer: relu 4 % of the step of its 5, all that the rank computes 64 of its 80."""
    slow, relu = quiet(20, 2), quiet(20, 2)[:, COMPUTE]
    relu[:, 1] += 4
    slow[:, COMPUTE, 1] += 64
    assert [one.operator for one in conclude(job(slow, operators={"relu": relu}, on_device=False)).anomalies] == [None]


def test_of_two_ranks_an_operator_that_makes_nobody_late_accuses_nobody() -> None:
    """What rank 1 loses in relu it gains elsewhere."""
    percents, relu = quiet(20, 2), quiet(20, 2)[:, COMPUTE]
    relu[:, 1] += 5
    percents[:, COMPUTE, 0] += 4.5
    percents[:, COMPUTE, 1] += 5
    assert found_in(job(percents, operators={"relu": relu}, on_device=False)) == []


@pytest.mark.parametrize(("ranks", "steps"), [(2, 5), (3, 3)])
def test_two_or_three_ranks_in_few_steps_prove_nothing(ranks: int, steps: int) -> None:
    """One of two is above in all of five steps once in 16 times."""
    percents = quiet(steps, ranks)
    percents[:, COMPUTE, 1] += 30
    result = persistence(job(percents))
    assert result.anomalies == ()
    assert not can_accuse(job(percents))


@pytest.mark.parametrize(
    ("row", "percent", "is_found"), [(COMPUTE, 40, True), (COMPUTE, 20, False), (HOST, 8, True), (HOST, 4.5, False)]
)
def test_of_two_ranks_one_that_is_far_slower_in_each_of_ten_steps_is_found(
    row: int, percent: float, is_found: bool
) -> None:
    """Steps resemble one another, as those of a spell do, and count as five.

    No spell brings healthy ranks so far apart in every step: a quarter of it in what they compute, 5 % in idle time.
    """
    drift = np.repeat([-0.5, 0.5], 5)
    percents = nothing(10, 2)
    percents[:, row] = np.stack((-drift - percent / 2, drift + percent / 2), axis=1)
    assert inflation(percents[:, row]) > 1.7
    assert found_in(job(percents, on_device=False)) == ([("persistent", (1,), CLASSES[row])] if is_found else [])


def test_one_of_four_in_spells_of_slowness_is_not_slow_in_every_step() -> None:
    """Rank 2 is slower for 12 steps of 16, in one go: one spell, which any of them could have had."""
    percents = quiet(16, 4)
    percents[4:, COMPUTE, 2] += 3
    rho = 0.9
    for rank in range(4):
        noise = np.random.default_rng(rank).normal(0, 2, 16)
        for step in range(1, 16):
            noise[step] += rho * noise[step - 1]
        percents[:, COMPUTE, rank] += noise
    assert [a for a in conclude(job(percents)).anomalies if a.kind == "persistent"] == []


def stalls(steps: int, ranks: int, of_rank: dict[int, list[int]], percent: float = 30) -> Percents:
    percents = quiet(steps, ranks)
    for rank, hit in of_rank.items():
        percents[hit, HOST, rank] += percent
    return percents


def chance(k: int, steps: int, others: int, peers: int, tested: int) -> float:
    """Family-wise p of k events of 30 % of the step, the smaller of what they are as events of 10 and of 25 %."""
    return min(chance_of_size(k, steps, others, peers, size, tested) for size in (0.1, 0.25))


def chance_of_size(k: int, steps: int, others: int, peers: int, size: float, tested: int) -> float:
    """P of k events of a size, by the others' rate: the mean over rare events and events of any rate.

    How much each counts is decided by what it foretold of the others (beta-binomial, by scipy).
    """
    rate, seen = 0.02 * 0.1 / size, peers * steps
    priors = ((0.9, rate * 50, (1 - rate) * 50), (0.1, 1, 1))
    weights = [weight * scipy.stats.betabinom.pmf(others, seen, a, b) for weight, a, b in priors]
    tails = [scipy.stats.betabinom.sf(k - 1, steps, a + others, b + seen - others) for _, a, b in priors]
    return tested * 4 / SHARES["intermittent"] * float(np.dot(weights, tails) / sum(weights))


def test_a_rank_with_all_the_large_delays_is_intermittent() -> None:
    found = intermittent(job(stalls(12, 4, {3: [1, 4, 7, 9]})))
    assert [(a.positions, a.class_index, a.events) for a in found] == [((3,), HOST, (4, 4))]
    assert found[0].p_value == pytest.approx(chance(4, 12, 0, 3, tested=4))
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
    assert found[1].p_value == pytest.approx(chance(4, 20, 0, 6, tested=8))


def test_the_others_delays_tell_what_is_usual() -> None:
    """9 events in 120 steps of the others: the prior of rare events counts for less, and the rate is theirs."""
    of_rank = {0: [1, 12, 30], 1: [4, 21, 33], 3: [8, 17, 25], 2: [0, 2, 5, 7, 9, 11, 13, 16, 18, 22, 24, 27, 29, 35]}
    (found,) = intermittent(job(stalls(40, 4, of_rank)))
    assert (found.positions, found.events) == ((2,), (14, 23))
    assert found.p_value == pytest.approx(chance(14, 40, 9, 3, tested=4))


def test_all_of_four_large_delays_accuse_the_rank_that_had_them() -> None:
    assert [a.events for a in intermittent(job(stalls(8, 4, {2: [0, 2, 5, 7]})))] == [(4, 4)]


def test_eight_of_32_large_delays_are_a_ranks_share() -> None:
    random = np.random.default_rng(0)
    of_rank = {rank: sorted(random.choice(40, 8, replace=False).tolist()) for rank in range(4)}
    assert intermittent(job(stalls(40, 4, of_rank))) == []


def test_a_spell_of_delays_is_one_event() -> None:
    """A rank that is slow for six steps on end was so once; in six steps here and there, six times."""
    assert intermittent(job(stalls(24, 4, {3: list(range(8, 14))}))) == []
    assert [a.positions for a in intermittent(job(stalls(24, 4, {3: [2, 6, 10, 14, 18, 22]})))] == [(3,)]


def test_delays_that_a_tensor_parallel_group_has_together_count_once() -> None:
    """Rank 0's group of four has three delays, all members in each: not twelve against the others' none."""
    unit = np.repeat(range(4), 4).tolist()
    of_rank = {rank: [1, 4, 7] for rank in range(4)} | {rank: [2, 9] for rank in range(4, 8)}
    assert intermittent(job(stalls(12, 16, of_rank), unit=unit)) == []


def test_delays_that_are_hardly_out_of_noise_accuse_whom_all_of_them_are_on() -> None:
    """Ranks vary by 8 %: delays of 32 % are four deviations out, and all five are on one rank of four."""
    percents = quiet(20, 4)
    percents[:, HOST] = np.random.default_rng(3).normal(0, 8, (20, 4)).clip(-12, 12)
    percents[[1, 8, 13, 16, 19], HOST, 3] = 32
    made = job(percents)
    (anomaly,) = intermittent(made)
    assert (anomaly.positions, anomaly.events) == ((3,), (5, 5))
    assert large_delays(made)[3] == 2  # what is told of nobody in particular lies farther out


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
    hit = np.random.default_rng(0).choice(1500, 1000, replace=False)
    percents[hit, HOST, 3] += 30
    assert [(a.positions, a.events) for a in intermittent(job(percents))] == [((3,), (1000, 1000))]


def test_a_rank_that_is_slow_in_nearly_all_steps_has_no_large_delays() -> None:
    percents = quiet(40, 4)
    percents[:, HOST, 3] += 30
    assert found_in(job(percents)) == [("persistent", (3,), "host")]


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
