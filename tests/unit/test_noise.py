"""What a recording's own noise is worth: dependence of steps, chance by permutation, events in spells."""

import itertools

import numpy as np
import pytest

from kair_engine.localize.noise import (
    episodes,
    episodes_of_larger,
    inflation,
    noise_of_mean,
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


def by_permutation(values: np.ndarray, place: int) -> float:
    """All ways in which ranks can change places within steps: how often the one here has places as high, summed."""
    steps, ranks = values.shape
    own = (values < values[:, [place]]).sum(axis=1).sum()
    sums = [sum(drawn) for drawn in itertools.product(range(ranks), repeat=steps)]
    return min(1.0, ranks * float(np.mean([one >= own for one in sums])))


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
