"""A series that becomes slower shows from which step on, until which, and by how much; a noisy one shows nothing."""

import numpy as np
import pytest

from kair_engine.arrays import Floats
from kair_engine.localize.anomalies import FALSE_ALARM_RATE
from kair_engine.localize.change_points import Change, change_points
from kair_engine.localize.peers import Spread

OF_WORK = Spread(0.006, 0.05)
"""What healthy devices differ by."""


def change_of(*values: float) -> Change | None:
    (found,) = change_points(np.array(values, dtype=float)[:, None], OF_WORK)
    return found


def flat(level: float, steps: int) -> list[float]:
    """About as long in every step: a hundredth more or less."""
    return [level + level / 100 * (step % 3 - 1) for step in range(steps)]


def test_a_rise_is_told_from_its_first_step_on_to_the_last() -> None:
    found = change_of(*flat(100, 6), *flat(200, 7))
    assert found is not None
    assert (found.begin, found.end, found.before, found.since) == (6, 13, 100, 200)
    assert found.factor == 2
    assert found.p_value < FALSE_ALARM_RATE


def test_a_rise_that_ends_has_an_end() -> None:
    found = change_of(*flat(100, 6), *flat(200, 5), *flat(100, 5))
    assert found is not None
    assert (found.begin, found.end) == (6, 11)
    assert found.p_value < FALSE_ALARM_RATE


@pytest.mark.parametrize(
    "values",
    [
        flat(100, 13),
        [*flat(200, 6), *flat(100, 7)],
        [900.0, *flat(100, 12)],
        [*flat(100, 5), 5000.0, *flat(100, 7)],
        [*flat(100, 10), 300.0, 300.0, 300.0][:12],
        [100.0, 300.0] * 7,
        [100.0 + step for step in range(13)],
        flat(100, 5),
    ],
    ids=["even", "faster", "warm-up", "one step", "two last steps", "every second", "drift", "few steps"],
)
def test_what_is_no_lasting_rise_is_none_beyond_chance(values: list[float]) -> None:
    found = change_of(*values)
    assert found is None or found.p_value > FALSE_ALARM_RATE


def test_a_slow_first_step_and_a_stall_hide_no_rise() -> None:
    values = [700.0, *flat(100, 11), *flat(150, 12)]
    values[18] = 900.0
    found = change_of(*values)
    assert found is not None
    assert (found.begin, found.end) == (12, 24)
    assert found.p_value < FALSE_ALARM_RATE


def test_what_all_do_together_is_no_change_of_one() -> None:
    together = np.array([[*flat(100, 6), *flat(150, 7)] for _ in range(4)]).T
    alone = together.copy()
    alone[6:, 2] *= 1.5
    assert all(one is None or one.p_value > 0.1 for one in change_points(together, OF_WORK, relative=True))
    found = change_points(alone, OF_WORK, relative=True)
    assert [at for at, one in enumerate(found) if one is not None and one.p_value < FALSE_ALARM_RATE] == [2]


def test_who_stays_while_the_others_become_faster_did_not_change() -> None:
    faster = np.array([[*flat(100, 6), *flat(85, 7)] for _ in range(4)]).T
    faster[:, 0] = flat(100, 13)
    assert all(one is None or one.p_value > 0.1 for one in change_points(faster, OF_WORK, relative=True))


def noise(kind: str, steps: int, things: int) -> Floats:
    random = np.random.default_rng([steps, things, len(kind)])
    if kind == "walk":
        return np.asarray(np.exp(np.cumsum(random.normal(0, 0.005, (steps, things)), axis=0)))
    if kind == "stalls":
        return np.asarray(np.exp(random.normal(0, 0.02, (steps, things)) + (random.random((steps, things)) < 0.2)))
    if kind == "heavy tails":
        return np.asarray(np.exp(0.03 * random.standard_t(2, (steps, things))))
    return np.asarray(np.exp(random.normal(0, 0.1, (steps, things))))


@pytest.mark.slow
@pytest.mark.parametrize("steps", [8, 13, 40])
@pytest.mark.parametrize("kind", ["normal", "walk", "stalls", "heavy tails"])
def test_healthy_noise_seldom_looks_like_a_change(kind: str, steps: int) -> None:
    values = noise(kind, steps, 400)
    found = change_points(values, OF_WORK)
    assert np.mean([one is not None and one.p_value < FALSE_ALARM_RATE for one in found]) <= 2 * FALSE_ALARM_RATE


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e6])
def test_the_unit_of_time_changes_nothing(unit: float) -> None:
    values = np.array([*flat(100, 6), *flat(130, 9)])[:, None]
    (found,), (scaled,) = change_points(values, OF_WORK), change_points(values * unit, OF_WORK)
    assert found is not None
    assert scaled is not None
    assert (scaled.begin, scaled.end) == (found.begin, found.end)
    assert scaled.p_value == pytest.approx(found.p_value)
    assert scaled.factor == pytest.approx(found.factor)
