"""Which values lie above the others, against scipy on a handful of numbers."""

import numpy as np
import pytest
import scipy

from kair_engine.localize.outlying import Peers, Spread, deviations, most_outlying, pooled_spread, single, slow_sets

ANY = {"p_below": 0.01, "excess_above_ns": 0.0}


def peers(*values: float, prior: float = 0.3) -> Peers:
    return Peers(np.array(values, dtype=float), prior)


def sets(found: Peers, p_below: float = 0.01, excess_above_ns: float = 0.0) -> list[tuple[int, ...]]:
    return [one.members for one in slow_sets(found, p_below=p_below, excess_above_ns=excess_above_ns)]


def test_one_rank_above_seven() -> None:
    made = peers(0, 0, 0, 5, 0, 0, 0, 0)
    (found,) = slow_sets(made, **ANY)
    # The others are all alike, so the prior is the spread: (6 · 0 + 4 · 0.3²) / 10.
    t = 5 / np.sqrt(0.036 * (1 + 1 / 7))
    assert (found.members, found.excess_ns) == ((3,), 5)
    assert found.p_value == pytest.approx(8 / 0.6 * scipy.stats.t.sf(t, 10))
    assert single(made)[3] == found.p_value
    assert single(made)[[0, 1, 2, 4, 5, 6, 7]].tolist() == [1] * 7


@pytest.mark.parametrize("values", [(0, 0, 0, 0), (0, -5, 0, 0), (0, 0.5, 0, 0)], ids=["alike", "fast", "hardly slow"])
def test_nobody_above_the_others(values: tuple[float, ...]) -> None:
    assert sets(peers(*values)) == []


def test_what_costs_too_little_is_left_out() -> None:
    assert sets(peers(0, 0, 0, 5, 0, 0, 0, 0), excess_above_ns=4.9) == [(3,)]
    assert sets(peers(0, 0, 0, 5, 0, 0, 0, 0), excess_above_ns=5) == []


def test_two_of_different_size_are_both_found() -> None:
    found = sets(peers(0, 0.1, -0.1, 0, 5, 0, 0.1, 12, -0.1, 0))
    assert sorted(rank for members in found for rank in members) == [4, 7]


def test_two_that_are_alike_are_one_set() -> None:
    (found,) = slow_sets(peers(0, 0.1, -0.1, 0, 5, 0, 0, 5, 0.1, -0.1), **ANY)
    assert (found.members, found.excess_ns) == ((4, 7), 5)


def test_half_of_the_ranks_can_be_above_the_other_half_and_no_more() -> None:
    (found,) = slow_sets(peers(0, 5, 0.1, 5.1, -0.1, 4.9, 0, 5), **ANY)
    assert (found.members, found.excess_ns) == ((1, 3, 5, 7), 5)
    assert sets(peers(0, 5, 0, 5, 5, 5, 0, 5)) == []


def test_a_set_pays_for_every_set_that_could_have_been() -> None:
    made = peers(0, 0, 0, 0, 5, 5)
    found = most_outlying(made)
    assert found is not None and found.members == (4, 5)
    # Alike: the variance within both sets, 4 degrees of freedom. Of 6 ranks there are 15 pairs; sizes: 2 and 3.
    t = 5 / np.sqrt(0.09 * 4 / 8 * (1 / 2 + 1 / 4))
    assert found.p_value == pytest.approx(15 * 2 / 0.4 * 2 * scipy.stats.t.sf(t, 8))


def test_the_spread_of_few_is_moderated_by_what_healthy_ranks_show() -> None:
    values = np.array([0.0, 2.0, -2.0, 10.0])
    t, df = deviations(Peers(values, 1.0))
    # Of the others: variance 4 with 2 degrees of freedom; the prior: 1 with 4.
    assert t[3] == pytest.approx(10 / np.sqrt((2 * 4 + 4 * 1) / 6 * (1 + 1 / 3)))
    assert df[3] == 6


def test_other_roles_spread_is_borrowed() -> None:
    t, df = deviations(Peers(np.array([0.0, 2.0, -2.0, 10.0]), 1.0, borrowed=Spread(9.0, 6.0)))
    assert t[3] == pytest.approx(10 / np.sqrt((2 * 4 + 4 * 1 + 6 * 9) / 12 * (1 + 1 / 3)))
    assert df[3] == 12


def test_the_spread_is_no_less_than_what_each_value_is_uncertain_by() -> None:
    noisy, _ = deviations(Peers(np.array([0.0, 2.0, -2.0, 10.0]), 1.0, noise_ns=3.0))
    # What the others show, 4, is less than 3²; and healthy ranks differ by 1 and by that noise.
    assert noisy[3] == pytest.approx(10 / np.sqrt((2 * 9 + 4 * (1 + 9)) / 6 * (1 + 1 / 3)))
    certain, _ = deviations(Peers(np.array([0.0, 2.0, -2.0, 10.0]), 1.0, noise_ns=1.0))
    assert certain[3] == pytest.approx(10 / np.sqrt((2 * 4 + 4 * (1 + 1)) / 6 * (1 + 1 / 3)))


def mixed(above: float, own: float, df: int, scale: float, usual: float, wide: float) -> float:
    """P of such a distance by both priors; each counts as it foretold the others' variance (scaled F, by scipy)."""
    priors = ((0.9, usual), (0.1, wide))
    foretold = [weight * scipy.stats.f.pdf(own / of, df, 4) / of for weight, of in priors]
    tails = [scipy.stats.t.sf(above / np.sqrt((df * own + 4 * of) / (df + 4)) / scale, df + 4) for _, of in priors]
    return float(np.dot(foretold, tails) / sum(foretold))


@pytest.mark.parametrize("spread", [0.1, 0.3, 1.0, 3.0])
def test_the_prior_gives_way_to_a_wider_one_as_the_ranks_differ(spread: float) -> None:
    values = spread * np.array([0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 12.0])
    own = float(values[:7].var(ddof=1))
    p = single(Peers(values, 0.3, wide_ns=3.0))[7]
    expected = 8 / 0.6 * mixed(12 * spread, own, 6, np.sqrt(1 + 1 / 7), 0.09, 9.0)
    assert p == pytest.approx(min(1, expected), rel=1e-6)


def test_ranks_that_differ_by_3_percent_accuse_none_of_6_more() -> None:
    differ = np.array([0.0, 3.0, -3.0, 2.0, -2.0, 1.0, -1.0, 9.0])
    assert sets(Peers(differ, 0.3, wide_ns=3.0)) == []
    assert sets(Peers(differ / 10 + np.eye(8)[7] * 8.1, 0.3, wide_ns=3.0)) == [(7,)]


def test_a_role_of_two_takes_from_the_other_roles_how_much_ranks_differ() -> None:
    two = np.array([0.0, 4.0])
    assert sets(Peers(two, 0.3, borrowed=Spread(0.01, 6.0), wide_ns=3.0)) == [(1,)]
    assert sets(Peers(two, 0.3, borrowed=Spread(9.0, 6.0), wide_ns=3.0)) == []


def test_from_twenty_ranks_on_several_slow_ones_do_not_widen_the_spread() -> None:
    values = np.array([-1.0, 1.0] * 11 + [9.0, 9.0])
    t, df = deviations(Peers(values, 1.0))
    # Their median is 1, their median distance from it 2; that has 0.37 · 23 degrees of freedom.
    spread = (8.51 * (1.4826 * 2) ** 2 + 4) / 12.51
    assert df[-1] == pytest.approx(12.51)
    assert t[-1] == pytest.approx((9 - 1) / np.sqrt(spread * (1 + 1 / 24)))


def test_ranks_that_are_known_to_be_slow_are_no_reference() -> None:
    values = np.array([0.0, 2.0, -2.0, 10.0, 50.0])
    reference = np.array([True, True, True, True, False])
    assert deviations(Peers(values, 1.0), reference)[0][3] == deviations(Peers(values[:4], 1.0))[0][3]


def test_the_recording_itself_must_tell_the_spread() -> None:
    assert peers(0, 9).known_df == 0
    assert (sets(peers(0, 9)), sets(peers(0, 0, 9)), sets(peers(0, 0, 0, 9))) == ([], [], [(3,)])
    borrowed = Peers(np.array([0.0, 9.0]), 0.3, borrowed=Spread(0.09, 6.0))
    assert borrowed.known_df == 6
    assert sets(borrowed) == [(1,)]


def test_what_other_roles_show_is_their_median_variance() -> None:
    roles = [np.array([0.0, 2.0]), np.array([0.0, 4.0]), np.array([0.0, 40.0]), np.array([7.0])]
    assert pooled_spread(roles) == Spread(8.0, 3.0)
    assert pooled_spread([np.arange(20.0)]) == Spread(35.0, 6.0)
    assert pooled_spread([np.array([7.0])]) is None
    assert pooled_spread([]) is None


def test_ranks_of_one_tensor_parallel_group_count_as_one() -> None:
    values, unit = np.repeat([0.0, 0.0, 0.0, 5.0], 4), np.repeat(range(4), 4)
    found = most_outlying(Peers(values, 0.3, unit=unit))
    assert found is not None and found.members == (12, 13, 14, 15)
    # One group of four, its peers alike (2 degrees of freedom): 4 groups could have been it, or any two.
    t = 5 / np.sqrt(0.09 * 4 / 6 * (1 + 1 / 3))
    assert found.p_value == pytest.approx(4 * 2 / 0.4 * 2 * scipy.stats.t.sf(t, 6))
    apart = most_outlying(Peers(values, 0.3))
    assert apart is not None and apart.p_value < found.p_value / 1000


def test_ranks_of_different_groups_count_one_by_one() -> None:
    values, unit = np.zeros(16), np.repeat(range(4), 4)
    values[[3, 7, 11]] = 5
    found, apart = most_outlying(Peers(values, 0.3, unit=unit)), most_outlying(Peers(values, 0.3))
    assert found == apart and found is not None and found.members == (3, 7, 11)
