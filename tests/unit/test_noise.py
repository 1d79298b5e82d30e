"""What a recording's own noise is worth: dependence of steps, chance by permutation, events in spells."""

import itertools

import numpy as np
import pytest
import scipy

from kair_engine.localize.noise import (
    above_peers,
    beside_others,
    episodes,
    episodes_of_larger,
    inflation,
    mostly_above,
    noise_of_mean,
    on_top_by_chance,
    places_among,
    surely_above,
    without_trend,
)


def spells(rho: float, steps: int, ranks: int = 8, seed: int = 0) -> np.ndarray:
    """(steps × ranks), each step `rho` times the one before it and news; of variance 1."""
    random = np.random.default_rng(seed)
    result = random.normal(0, 1, (steps, ranks))
    for step in range(1, steps):
        result[step] = rho * result[step - 1] + np.sqrt(1 - rho**2) * result[step]
    return result


@pytest.mark.parametrize("rho", [0.2, 0.4])
def test_steps_that_depend_on_one_another_count_for_less(rho: float) -> None:
    # A long recording shows ρ itself.
    assert inflation(spells(rho, 2000)) == pytest.approx((1 + rho) / (1 - rho), rel=0.1)


def test_independent_steps_count_in_full() -> None:
    assert inflation(spells(0.0, 2000)) == pytest.approx(1, abs=0.06)


def test_more_than_six_tenths_are_held_for_six_tenths() -> None:
    assert inflation(spells(0.95, 2000)) == pytest.approx(1.6 / 0.4)


def test_of_few_values_half_of_what_is_seen_counts() -> None:
    # Up and down by turns but for the middle: Σ of neighbours' products −5 of 8 squares.
    by_turns = np.array([1.0, -1, 1, -1, -1, 1, -1, 1])[:, None]
    assert inflation(by_turns) == 1
    # 1 1 -1 -1 1 1 -1 -1: four neighbours alike, three not: 1/8; plus 1/8 for the bias, of which eight steps show
    # 5/8; half of it, of two ranks' eight steps each, and four fifths of it of eight ranks'.
    spells_of_two = np.array([1.0, 1, -1, -1, 1, 1, -1, -1])[:, None]
    for ranks, share in ((2, 1 / 2), (8, 4 / 5)):
        rho = (1 / 8 + 1 / 8) / (5 / 8) * share
        assert inflation(np.tile(spells_of_two, ranks)) == pytest.approx((1 + rho) / (1 - rho))


@pytest.mark.parametrize("steps", [8, 20])
def test_short_recordings_show_what_steps_depend_on_one_another(steps: int) -> None:
    """Of many ranks, in the mean over many of them."""
    shown = [(of - 1) / (of + 1) for seed in range(40) if (of := inflation(spells(0.5, steps, ranks=64, seed=seed)))]
    assert np.mean(shown) == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("values", [np.zeros((20, 4)), np.ones((3, 4)) * np.arange(4)], ids=["no noise", "three steps"])
def test_what_shows_no_dependence_is_taken_for_independent(values: np.ndarray) -> None:
    assert inflation(values) == 1


def test_the_noise_of_a_mean_is_what_means_of_such_steps_vary_by() -> None:
    means = [spells(0.5, 300, seed=seed).mean(axis=0) for seed in range(60)]
    told = np.mean([noise_of_mean(spells(0.5, 300, seed=seed)) for seed in range(60)])
    assert told == pytest.approx(np.std(means), rel=0.1)
    # As if steps were independent it would be less than six tenths of it.
    assert np.sqrt(1 / 300) < 0.6 * told


def test_one_noisy_rank_does_not_make_all_of_them_uncertain() -> None:
    values = spells(0.0, 20)
    calm = noise_of_mean(values)
    values[:, 3] *= 50
    assert noise_of_mean(values) < 1.3 * calm


def test_one_step_tells_no_noise() -> None:
    assert noise_of_mean(np.array([[1.0, 2.0]])) == 0


@pytest.mark.parametrize("least", [0.0, 0.5, 0.9])
def test_surely_above_is_yuens_test(least: float) -> None:
    apart = np.random.default_rng(1).normal(1, 0.8, 15)
    yuen = scipy.stats.ttest_1samp(apart, least, alternative="greater")
    cut = int(15 * 0.2)
    kept = np.clip(apart, np.sort(apart)[cut], np.sort(apart)[-cut - 1])
    t = (scipy.stats.trim_mean(apart, 0.2) - least) / (kept.std(ddof=1) / np.sqrt(15) * 15 / (15 - 2 * cut))
    assert surely_above(apart, least, 1.0) == (scipy.stats.t.sf(t, 15 - 2 * cut - 1) < 0.02)
    # By and large what the t-test says of normal values.
    assert surely_above(apart, least, 1.0) <= (yuen.pvalue < 0.1)


def test_steps_in_spells_make_nobody_sure_who_would_be_of_independent_ones() -> None:
    apart = np.random.default_rng(1).normal(1, 1.0, 15)
    assert surely_above(apart, 0.2, 1.0) and not surely_above(apart, 0.2, 4.0)


def test_what_is_always_the_same_is_surely_above() -> None:
    assert surely_above(np.full(6, 1.0), 0.9, 4.0)
    assert not surely_above(np.full(6, 0.9), 0.9, 1.0)
    assert not surely_above(np.array([5.0]), 0.9, 1.0)


def by_permutation(values: np.ndarray, place: int) -> float:
    """All ways in which ranks can change places within steps: how often the one here has places as high, summed."""
    steps, ranks = values.shape
    own = (values < values[:, [place]]).sum(axis=1).sum()
    sums = [sum(drawn) for drawn in itertools.product(range(ranks), repeat=steps)]
    return min(1.0, ranks * float(np.mean([one >= own for one in sums])))


def test_of_equal_ones_half_lie_below() -> None:
    assert places_among(np.array([[3.0, 1, 3, 5, 3], [2, 1, 4, 3, 0]])).tolist() == [[2, 0, 2, 4, 2], [2, 1, 4, 3, 0]]


@pytest.mark.parametrize(("steps", "ranks"), [(5, 2), (6, 3), (4, 4), (5, 4)])
def test_on_top_by_chance_is_exact(steps: int, ranks: int) -> None:
    values = np.random.default_rng(steps).normal(0, 1, (steps, ranks)) + 0.6 * np.arange(ranks)
    for place in range(ranks):
        assert on_top_by_chance(values, (place,), 1.0) == pytest.approx(by_permutation(values, place))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 9])
def test_all_ranks_beside_the_others_are_each_of_them_beside_its_peers(ranks: int) -> None:
    """With equal values, which are in no order of their own."""
    per_step = np.random.default_rng(3).integers(0, 4, (20, ranks)).astype(float)
    one_by_one = [above_peers(per_step, at) if ranks > 1 else np.zeros(20) for at in range(ranks)]
    assert beside_others(per_step) == pytest.approx(np.stack(one_by_one, axis=1))


def test_on_top_in_every_step_is_as_rare_as_that() -> None:
    values = np.tile([0.0, 0.0, 1.0], (6, 1))
    assert on_top_by_chance(values, (2,), 1.0) == pytest.approx(3 * 3.0**-6)
    # In blocks of three steps it has been so twice.
    assert on_top_by_chance(values, (2,), 3.0) == pytest.approx(3 * 3.0**-2)


def test_ranks_that_are_alike_share_the_places() -> None:
    assert on_top_by_chance(np.zeros((6, 3)), (1,), 1.0) == 1


def test_many_steps_and_ranks_are_counted_by_the_normal_distribution() -> None:
    values = np.random.default_rng(0).normal(0, 1, (100, 64))
    values[:, 5] += 0.4
    own = int((values < values[:, [5]]).sum())
    # The distribution of the sum by the Fourier transform; its tail is a little thinner than the normal one.
    spectrum = np.fft.fft(np.r_[np.full(64, 1 / 64), np.zeros(8192 - 64)]) ** 100
    exact = 64 * np.fft.ifft(spectrum).real[own:].sum()
    assert exact < on_top_by_chance(values, (5,), 1.0) < 1.4 * exact < 0.05


def test_a_set_is_as_steadily_on_top_as_permutations_have_it() -> None:
    """Two of eight ranks, against 200 000 ways in which ranks change places within ten steps."""
    values = np.random.default_rng(0).normal(0, 1, (10, 8))
    values[:, [2, 5]] += 0.8
    places = np.argsort(np.argsort(values, axis=1), axis=1)
    own = int(places[:, [2, 5]].sum())
    random = np.random.default_rng(1)
    first = random.integers(8, size=(200_000, 10))
    second = (first + random.integers(1, 8, size=first.shape)) % 8
    drawn = (first + second).sum(axis=1)
    # Any of 28 pairs could have been it. The tail of the sum is a little thinner than the normal one.
    exact = 28 * float((drawn >= own).mean())
    assert exact < on_top_by_chance(values, (2, 5), 1.0) < 2 * exact < 0.3


def events(*of_rank: list[int], steps: int = 20) -> np.ndarray:
    result = np.zeros((steps, len(of_rank)), dtype=bool)
    for rank, hit in enumerate(of_rank):
        result[hit, rank] = True
    return result


def test_events_here_and_there_are_as_many() -> None:
    assert episodes(events([1, 5, 9, 14], [3], [])).tolist() == [4, 1, 0]


def test_events_side_by_side_are_one_episode() -> None:
    assert episodes(events([4, 5, 6, 7], [3], [])).tolist() == [1, 1, 0]


def test_two_side_by_side_may_be_chance_where_there_are_many() -> None:
    # 9 of 20 steps: two neighbours are what chance has.
    assert episodes(events([0, 2, 3, 6, 9, 11, 13, 16, 18], [])).tolist() == [9, 0]


def test_spells_of_all_ranks_count_though_none_is_long() -> None:
    """Two side by side on each of four ranks, of 40 steps: that chance seldom brings about."""
    assert episodes(events([3, 4], [10, 11], [20, 21], [30, 31], steps=40)).tolist() == [1, 1, 1, 1]


def test_the_largest_of_an_episode_are_one_though_not_side_by_side() -> None:
    """Of one rank's episode two, of another's three apart each by itself, of the third's two episodes one each."""
    all_sizes = events([4, 5, 6, 7, 8], [1, 5, 9, 14], [2, 3, 4, 11, 12, 13])
    larger = events([4, 7], [1, 9, 14], [2, 4, 13])
    assert episodes(all_sizes).tolist() == [1, 4, 2]
    assert episodes_of_larger(larger, all_sizes, episodes(all_sizes)).tolist() == [1, 3, 2]
    assert episodes_of_larger(all_sizes, all_sizes, episodes(all_sizes)).tolist() == [1, 4, 2]


def test_mostly_above_is_the_sign_test() -> None:
    """Six of six above by chance: 1 in 64; five of six: 7 in 64."""
    apart = np.array([7.0, 50, 8, 30, 7, 90])
    assert not surely_above(apart, 6, 1.0)
    assert mostly_above(apart, 6, 1.0)
    assert not mostly_above(np.r_[apart[:5], 5.0], 6, 1.0)
    # Three blocks of two steps: all of three are above once in eight times.
    assert not mostly_above(apart, 6, 2.0)


def test_a_straight_line_is_no_dependence_of_steps() -> None:
    line = np.outer(np.arange(12.0), [1, -1])
    noise = np.random.default_rng(3).normal(0, 0.5, (12, 2))
    assert inflation(line + noise) > 2.5
    assert inflation(without_trend(line + noise)) < 1.5
    assert without_trend(line + 7) == pytest.approx(np.full((12, 2), 7) + line.mean(axis=0))
