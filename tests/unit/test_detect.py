"""Who is slow, on excesses written down directly; percents are of the step."""

from dataclasses import replace

import numpy as np
import pytest
import scipy
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.excess_builder import COMPUTE, HOST, INPUT, STEP_NS, Percents, job, nothing, quiet

from kair_engine.localize import peers
from kair_engine.localize.anomalies import RANK_SHARE
from kair_engine.localize.detect import detect
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.localize.large_delays import chance_of, events_of, host_pauses, large_delays
from kair_engine.localize.localization import can_accuse, conclude
from kair_engine.localize.peers import PRIOR_DF, WIDE_WEIGHT, Means, Spread, above_others, set_above_rest
from kair_engine.localize.shapes import cauchy
from kair_engine.localize.signals import Measured

PROPERTY = settings(deadline=None, derandomize=True, max_examples=25)
REAL = st.floats(-100, 100)


def found_in(made: JobExcess) -> list[tuple[str, tuple[int, ...], str]]:
    return [(a.kind, a.positions, CLASSES[a.class_index]) for a in conclude(made).anomalies]


def ranks_in(made: JobExcess) -> set[int]:
    return {rank for one in conclude(made).anomalies for rank in one.positions}


def mixed(above: float, variance: float, df: int, scale: float, noise: float, spread: Spread) -> float:
    """P of such a distance by both priors, each weighted by how well it foretold the others' variance (scaled F)."""
    priors = [(1 - WIDE_WEIGHT, spread.usual_ns**2 + noise), (WIDE_WEIGHT, spread.wide_ns**2 + noise)]
    fits = [scipy.stats.f.pdf(variance / of, df, PRIOR_DF) / of if df else 1.0 for _, of in priors]
    tails = [
        scipy.stats.t.sf(above / np.sqrt((variance * df + of * PRIOR_DF) / (df + PRIOR_DF) * scale), df + PRIOR_DF)
        for _, of in priors
    ]
    weights = [weight * fit for (weight, _), fit in zip(priors, fits, strict=True)]
    return float(np.dot(weights, tails) / sum(weights))


@pytest.mark.slow
@PROPERTY
@given(values=st.lists(REAL, min_size=2, max_size=9), noise=st.floats(0, 50))
def test_the_chance_of_a_distance_is_a_moderated_t(values: list[float], noise: float) -> None:
    assume(len(set(values)) == len(values))
    means, spread = Means(np.array(values), np.full(len(values), noise)), Spread(2.0, 15.0)
    for place, chance in enumerate(above_others(means, spread)[1]):
        others = np.delete(values, place)
        variance = max(others.var(ddof=1) if len(others) > 1 else 0.0, noise)
        above, scale = values[place] - others.mean(), 1 + 1 / len(others)
        expected = mixed(above, variance, len(others) - 1, scale, noise, spread)
        assert chance == pytest.approx(expected, rel=2e-3) or expected > 0.45


@PROPERTY
@given(st.lists(REAL, min_size=2, max_size=6), st.lists(REAL, min_size=2, max_size=6))
def test_a_set_is_compared_with_the_rest_by_two_samples(some: list[float], rest: list[float]) -> None:
    assume(len({*some, *rest}) == len(some + rest))
    values, members = np.array(some + rest), np.arange(len(some + rest)) < len(some)
    spread, df = Spread(2.0, 15.0), len(values) - 2
    above, chance = set_above_rest(Means(values, np.zeros(len(values))), members, spread)
    assert above == pytest.approx(np.mean(some) - np.mean(rest))
    squares = np.var(some) * len(some) + np.var(rest) * len(rest)
    expected = mixed(above, squares / df, df, 1 / len(some) + 1 / len(rest), 0.0, spread)
    assert chance == pytest.approx(expected, rel=2e-3) or expected > 0.45


def test_a_mean_is_as_uncertain_as_the_median_rank_s_or_its_own() -> None:
    steps = np.random.default_rng(1).normal(0, [1, 1, 1, 9], (4000, 4))
    assert np.sqrt(Means.of(steps).variance * 4000) == pytest.approx([1, 1, 1, 9], rel=0.15)
    assert Means.of(steps[:1]).variance.tolist() == [0] * 4


def test_chances_are_put_together_by_cauchy() -> None:
    rows = np.array([[0.001, 0.5, 0.9], [0.5, 0.5, 0.5]])
    # Of two rows one alone says something: it counts for half.
    assert cauchy(rows, np.ones(2)) == pytest.approx([0.002, 0.5, 0.5], rel=1e-4)
    assert cauchy(rows, np.array([3.0, 1.0]))[0] == pytest.approx(0.001 * 4 / 3, rel=1e-4)
    assert cauchy(np.full((4, 1), 1e-12), np.ones(4)) == pytest.approx(1e-12)


def test_nobody_stands_out_of_a_quiet_job() -> None:
    assert found_in(job(quiet(20, 8))) == []
    assert np.nanmin(conclude(job(quiet(20, 8))).detections.p_value) > 0.01


def test_a_rank_that_is_slow_in_every_step_is_persistent() -> None:
    percents = quiet(20, 8)
    percents[:, COMPUTE, 3] += 5
    (anomaly,) = conclude(job(percents)).anomalies
    assert (anomaly.kind, anomaly.positions, anomaly.class_index) == ("persistent", (3,), COMPUTE)
    assert anomaly.excess_ns == pytest.approx(0.05 * STEP_NS, rel=0.02)
    assert anomaly.p_value < 0.01


def test_it_is_told_by_the_class_that_it_loses_most_in() -> None:
    percents = quiet(20, 8)
    percents[:, COMPUTE, 3] += 3
    percents[:, INPUT, 3] += 8
    assert max(conclude(job(percents)).anomalies, key=lambda one: one.excess_ns).class_index == INPUT


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


def test_ranks_are_compared_with_their_role_s() -> None:
    percents = quiet(20, 8)
    percents[:, COMPUTE, 4:] += 30
    percents[:, COMPUTE, 6] += 5
    assert found_in(job(percents, role=[0, 0, 0, 0, 1, 1, 1, 1])) == [("persistent", (6,), "compute")]
    assert not can_accuse(job(percents, role=list(range(8))))


@pytest.mark.parametrize("larger", [20, 4])
def test_two_culprits_do_not_hide_each_other(larger: float) -> None:
    percents = quiet(20, 8)
    percents[:, COMPUTE, 2] += 4
    percents[:, COMPUTE, 5] += larger
    assert ranks_in(job(percents)) == {2, 5}


def test_many_slow_ranks_of_many_are_told_apart() -> None:
    percents = quiet(20, 64)
    slow = [3, 17, 40, 41, 42, 60]
    percents[:, COMPUTE, slow] += [5, 9, 14, 3, 20, 6]
    assert ranks_in(job(percents)) == set(slow)


def test_who_is_like_every_third_is_no_outlier() -> None:
    percents = quiet(20, 9)
    percents[:, COMPUTE, :3] += 5
    assert found_in(job(percents)) == []


@pytest.mark.parametrize("percent", [3, 10])
def test_a_node_of_many_is_seen_though_its_ranks_hide_one_another_and_no_host_is_named(percent: float) -> None:
    percents = quiet(10, 64)
    percents[:, COMPUTE, 8:16] += percent
    assert ranks_in(job(percents)) == set(range(8, 16))
    assert ranks_in(job(quiet(10, 64))) == set()


def test_ranks_of_other_roles_tell_how_much_ranks_differ() -> None:
    percents = quiet(10, 16)
    percents[:, COMPUTE, 5] += 3
    assert ranks_in(job(percents, role=np.repeat(range(4), 4).tolist())) == {5}


def test_a_host_is_told_as_one_though_each_of_its_ranks_hides_the_others() -> None:
    percents = quiet(20, 16)
    percents[:, COMPUTE, 8:] += 5
    assert found_in(job(percents)) == []
    of_hosts = replace(job(percents), host=np.repeat([0, 1], 8))
    assert found_in(of_hosts) == [("group", tuple(range(8, 16)), "compute")]
    (anomaly,) = conclude(of_hosts).anomalies
    # Counted from the other half, not from the median between the halves.
    assert anomaly.excess_ns == pytest.approx(0.05 * STEP_NS, rel=0.05)


def test_one_slow_rank_makes_no_slow_host() -> None:
    percents = quiet(20, 16)
    percents[:, COMPUTE, 9] += 20
    assert found_in(replace(job(percents), host=np.repeat([0, 1], 8))) == [("persistent", (9,), "compute")]


def test_ranks_that_share_a_batch_are_told_as_one() -> None:
    percents = quiet(20, 16)
    percents[:, COMPUTE, 4:8] += 6
    assert found_in(job(percents, unit=np.repeat(range(4), 4).tolist())) == [("group", (4, 5, 6, 7), "compute")]


def test_long_batches_of_a_tensor_parallel_group_accuse_nobody() -> None:
    """Each group of four draws its batches anew in every step: its ranks are long together, which proves nothing."""
    of_group = np.random.default_rng(3).normal(0, 8, (20, 4))
    percents = quiet(20, 16)
    percents[:, COMPUTE] += np.repeat(of_group - np.median(of_group, axis=1, keepdims=True), 4, axis=1)
    assert found_in(replace(job(percents, unit=np.repeat(range(4), 4).tolist()), host=np.repeat([0, 1], 8))) == []


def test_one_slow_operator_is_found_where_all_of_compute_hides_it() -> None:
    percents, noise = quiet(20, 8), np.random.default_rng(2).normal(0, 4, (20, 8))
    percents[:, COMPUTE] += noise - np.median(noise, axis=1, keepdims=True)
    operator = np.zeros((20, 8))
    operator[:, 6] = 2.5
    percents[:, COMPUTE, 6] += 2.5
    (anomaly,) = conclude(job(percents, operators={"mm": operator})).anomalies
    assert (anomaly.positions, anomaly.operator) == ((6,), "mm")


@pytest.mark.parametrize(("ranks", "percent", "is_told"), [(2, 6, False), (3, 6, False), (2, 60, True), (3, 80, True)])
def test_two_or_three_ranks_need_much_to_prove_anything(ranks: int, percent: float, is_told: bool) -> None:
    """Nothing shows how much healthy ones differ but what is known of that."""
    percents = quiet(20, ranks)
    percents[:, COMPUTE, 1] += percent
    assert (ranks_in(job(percents)) == {1}) == is_told


def test_idle_time_of_two_ranks_needs_less() -> None:
    percents = nothing(20, 2)
    percents[:, HOST, 1] += 12
    percents[:, HOST, 0] -= 12
    assert found_in(job(percents)) == [("persistent", (1,), "host")]


def test_one_of_four_in_spells_of_slowness_is_not_slow_in_every_step() -> None:
    percents = quiet(16, 4)
    percents[4:, COMPUTE, 2] += 3
    for rank in range(4):
        noise = np.random.default_rng(rank).normal(0, 2, 16)
        for step in range(1, 16):
            noise[step] += 0.9 * noise[step - 1]
        percents[:, COMPUTE, rank] += noise
    assert found_in(job(percents)) == []


def test_who_is_slow_since_a_step_is_told_since_then() -> None:
    percents = quiet(24, 8)
    percents[14:, COMPUTE, 5] += 12
    anomalies = conclude(job(percents)).anomalies
    assert {one.positions for one in anomalies} == {(5,)}
    since = [one.since for one in anomalies if one.kind == "persistent"]
    assert since == [14]


def test_who_was_faster_and_is_like_the_others_now_has_no_fault_that_began() -> None:
    percents = quiet(24, 8)
    percents[:14, COMPUTE, 5] -= 12
    assert found_in(job(percents)) == []


def test_what_is_known_beside_excesses_is_a_signal_of_its_own() -> None:
    """By the clock noise hides 6 % of the step; of CPU time it is 6 % exactly."""
    percents, noise = quiet(12, 8), np.random.default_rng(4).normal(0, 9, (12, 8))
    percents[:, HOST] += noise - np.median(noise, axis=1, keepdims=True)
    percents[:, COMPUTE, 2] += 6
    computed = np.full((12, 8), 0.5 * STEP_NS)
    computed[:, 2] += 0.06 * STEP_NS
    made = job(percents)
    assert {one.positions for one in conclude(made, Measured({"cpu_time": computed})).anomalies} == {(2,)}
    # Who computes more, but is not slower by it, is not told.
    quick = job(percents - 8 * np.eye(8)[2])
    assert conclude(quick, Measured({"cpu_time": computed})).anomalies == ()


def test_whom_the_system_states_to_hold_back_needs_less_time_lost() -> None:
    """6 % of the step of two ranks is what healthy ones differ by, unless the system states why it is lost."""
    percents, waited = quiet(12, 2), np.full((12, 2), 0.01 * STEP_NS)
    percents[:, HOST, 1] += 6
    waited[:, 1] += 0.06 * STEP_NS
    made = job(percents)
    for held_back, accused in ((None, []), ([False, True], [(1,)]), ([True, False], [])):
        measured = Measured({"run_queue_wait": waited}, None, None if held_back is None else np.array(held_back))
        assert [one.positions for one in conclude(made, measured).anomalies] == accused
    # That the system holds it back accuses nobody who loses no time to it.
    alike = Measured({"run_queue_wait": np.full((12, 2), 0.01 * STEP_NS)}, None, np.array([False, True]))
    assert conclude(job(quiet(12, 2)), alike).anomalies == ()


def test_every_rank_has_a_corrected_chance_and_those_accused_that_of_their_look() -> None:
    percents = quiet(20, 8)
    percents[:, COMPUTE, [2, 5]] += [4, 20]
    found = detect(job(percents))
    assert set(np.flatnonzero(found.p_value < 0.01).tolist()) == {2, 5}
    assert found.t.argmax() == 5
    assert np.isnan(detect(job(quiet(20, 1))).p_value).all()


def stalls(steps: int, ranks: int, of_rank: dict[int, list[int]], percent: float = 30) -> Percents:
    percents = quiet(steps, ranks)
    for rank, hit in of_rank.items():
        percents[hit, HOST, rank] += percent
    return percents


def test_a_rank_with_all_the_large_delays_is_intermittent() -> None:
    (found,) = conclude(job(stalls(20, 4, {3: [1, 4, 7, 9, 15]}))).anomalies
    assert (found.kind, found.positions, found.class_index, found.events) == ("intermittent", (3,), HOST, (5, 5))
    assert found.hit == (1, 4, 7, 9, 15)
    assert found.excess_ns == pytest.approx(5 * 0.3 * STEP_NS / 20, rel=0.03)


@pytest.mark.parametrize(
    "of_rank",
    [{3: [1, 4]}, {3: [1]}, {0: [1, 2, 3], 1: [3, 4, 5], 2: [5, 6], 3: [7, 8, 9]}],
    ids=["two", "one", "everybody's"],
)
def test_delays_that_chance_explains_accuse_nobody(of_rank: dict[int, list[int]]) -> None:
    assert found_in(job(stalls(12, 4, of_rank))) == []


def test_a_second_rank_with_delays_is_seen_once_the_first_is_taken_out() -> None:
    of_rank = {2: [0, 2, 4, 6, 8, 10, 14, 16], 5: [1, 3, 5, 7, 11, 13]}
    assert ranks_in(job(stalls(20, 8, of_rank))) == {2, 5}


def test_the_chance_of_delays_is_a_beta_binomial_s_by_the_others_rate() -> None:
    """9 events in 120 steps of the others: the prior of rare events counts for less, and the rate is theirs."""
    of_rank = {0: [1, 12, 30], 1: [4, 21, 33], 3: [8, 17, 25], 2: [0, 2, 5, 7, 9, 11, 13, 16, 18, 22, 24, 27, 29, 35]}
    made = job(stalls(40, 4, of_rank))
    events = events_of(made, np.nan_to_num(made.by_step_ns).sum(axis=1))
    for size in events[:2]:
        rate, seen = 0.02 * 0.1 / size.size, 3 * 40
        priors = ((0.9, rate * 50, (1 - rate) * 50), (0.1, 1, 1))
        weights = [weight * scipy.stats.betabinom.pmf(9, seen, a, b) for weight, a, b in priors]
        tails = [scipy.stats.betabinom.sf(13, 40, a + 9, b + seen - 9) for _, a, b in priors]
        of_events = chance_of(size, made.role, None, np.ones(4, dtype=bool))
        assert of_events[2] == pytest.approx(np.dot(weights, tails) / sum(weights))
    assert ranks_in(made) == {2}


def test_a_spell_of_delays_is_one_event() -> None:
    """A rank that is slow for six steps on end was so once; in six steps here and there, six times."""
    assert found_in(job(stalls(24, 4, {3: list(range(8, 14))}))) == []
    assert ranks_in(job(stalls(24, 4, {3: [2, 6, 10, 14, 18, 22]}))) == {3}


def compiling(
    of_rank: dict[int, list[int]], percent: float = 40, others: dict[int, list[int]] | None = None
) -> JobExcess:
    """12 steps of 4 ranks that compile in some, without a device; `others` are delays of another kind."""
    percents, compiled = quiet(12, 4), np.zeros((12, 4))
    for rank, hit in of_rank.items():
        compiled[hit, rank] = percent
    for rank, hit in (others or {}).items():
        percents[hit, HOST, rank] += percent
    percents[:, HOST] += compiled - np.median(compiled, axis=1)[:, None]
    return job(percents, activity={"compilation": compiled}, on_device=False)


def test_who_compiles_alone_is_told_though_a_busy_host_delays_others_as_much() -> None:
    noise = {0: [1], 2: [5, 6], 3: [7]}
    assert ranks_in(job(stalls(12, 4, {1: [0, 4, 6, 11], **noise}, percent=40))) == set()
    (found,) = conclude(compiling({1: [0, 4, 6, 11]}, others=noise)).anomalies
    assert (found.kind, found.positions, found.hit) == ("intermittent", (1,), (0, 4, 6, 11))
    # The delays of others are told with them.
    assert found.events == (4, 8)


@pytest.mark.parametrize("of_rank", [{1: [4]}, {1: [4, 9]}, {rank: [rank, rank + 4, rank + 8] for rank in range(4)}])
def test_compiling_now_and_then_as_others_do_accuses_nobody(of_rank: dict[int, list[int]]) -> None:
    assert found_in(compiling(of_rank)) == []


@pytest.mark.slow
def test_ranks_that_compile_equally_often_are_rarely_accused() -> None:
    random, accused = np.random.default_rng(1), 0
    for _ in range(200):
        compiled = random.random((12, 4)) < 0.08
        accused += bool(ranks_in(compiling({rank: np.flatnonzero(compiled[:, rank]).tolist() for rank in range(4)})))
    assert accused / 200 <= 0.02


def test_delays_that_a_tensor_parallel_group_has_together_count_once() -> None:
    unit = np.repeat(range(4), 4).tolist()
    of_rank = {rank: [1, 4, 7] for rank in range(4)} | {rank: [2, 9] for rank in range(4, 8)}
    assert found_in(job(stalls(12, 16, of_rank), unit=unit)) == []


def test_a_delay_of_less_than_a_tenth_of_the_step_is_no_event() -> None:
    assert found_in(job(stalls(12, 4, {3: [1, 4, 7, 9]}, percent=9))) == []


def paused(counts: list[int], percent: float = 3.0) -> JobExcess:
    """One step in which each rank's host paused so often between two collectives."""
    made = job(quiet(1, len(counts)))
    lost = np.array(counts) * percent / 100 * STEP_NS
    return replace(made, steps=(replace(made.steps[0], pauses=np.array(counts), paused_ns=lost),))


def test_in_one_step_the_hosts_pauses_are_the_sample() -> None:
    found = host_pauses(paused([0, 0, 5, 0, 0, 0, 1, 0]))
    assert [(a.positions, a.class_index, a.events) for a in found] == [((2,), HOST, (5, 6))]
    assert found[0].excess_ns == pytest.approx(0.15 * STEP_NS)
    assert found[0].p_value == pytest.approx(8 / RANK_SHARE * scipy.stats.binom.sf(4, 6, 1 / 8))


@pytest.mark.parametrize("counts", [[1, 1, 1, 1, 1, 1, 0, 0], [0, 0, 1, 0, 0, 0, 0, 0], [2, 3, 2, 2, 1, 2, 3, 2]])
def test_in_one_step_pauses_of_many_ranks_or_a_single_one_accuse_nobody(counts: list[int]) -> None:
    assert host_pauses(paused(counts)) == []


def test_in_one_step_a_slow_rank_is_not_told_from_a_slow_moment() -> None:
    percents = quiet(1, 8)
    percents[:, COMPUTE, 3] += 30
    found = conclude(job(percents))
    assert (found.anomalies, [one.positions for one in found.undecided]) == ((), [(3,)])


def test_a_thousand_delays_are_counted_too() -> None:
    percents = quiet(1500, 4)
    hit = np.random.default_rng(0).choice(1500, 500, replace=False)
    percents[hit, HOST, 3] += 30
    assert [(a.positions, a.events) for a in conclude(job(percents)).anomalies if a.kind == "intermittent"] == [
        ((3,), (500, 500))
    ]


def test_a_rank_that_is_slow_in_nearly_all_steps_has_no_large_delays() -> None:
    percents = quiet(20, 4)
    percents[1:, HOST, 3] += 30
    assert large_delays(job(percents))[3] == 0


def test_a_step_without_length_divides_nothing_by_zero() -> None:
    made = job(np.zeros((1, len(CLASSES), 8)))
    made = replace(made, steps=tuple(replace(step, step_time_ns=0.0, work_ns=0 * step.work_ns) for step in made.steps))
    assert np.isfinite(detect(made).t).all()
    assert conclude(made).anomalies == ()


def test_many_ranks_that_are_looked_at_in_parts_have_the_same_means(monkeypatch: pytest.MonkeyPatch) -> None:
    per_step = np.asfortranarray(np.random.default_rng(1).normal(100, 10, (40, 25)))
    at_once = Means.of(per_step)
    monkeypatch.setattr(peers, "_AT_ONCE", 5 * len(per_step))
    in_parts = Means.of(per_step)
    assert (in_parts.mean_ns == at_once.mean_ns).all()
    assert (in_parts.variance == at_once.variance).all()
