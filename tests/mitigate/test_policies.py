"""Which action each policy takes on a job that a user would recognise."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kair_mitigate.policy.policies import (
    NOTHING,
    Action,
    BackupWorkers,
    Continuous,
    Deterministic,
    EachStep,
    Policy,
    Static,
    View,
)
from kair_mitigate.policy.rates import Rates

Ints = npt.NDArray[np.int64]
Rows = Any

EVEN = np.full(4, 16)
HEALTHY = np.full(4, 0.08)
SLOW = np.array([0.08, 0.08, 0.24, 0.08])


def view_after(compute: Rows, sizes: Ints = EVEN, rest: Sequence[float] = (0.02,), **changes: Any) -> View:  # noqa: ANN401
    """The view of a job whose steps took so long to compute (rows of steps) at these sizes."""
    rates = Rates(len(sizes))
    for step, row in enumerate(compute):
        rates.add(step, np.asarray(row), sizes, rest_s=rest[min(step, len(rest) - 1)])
    view = View(
        step=len(compute) - 1,
        steps_left=100_000,
        sizes=sizes,
        pending=False,
        lowest=np.full(len(sizes), 2),
        highest=4 * sizes,
        rates=rates,
        compute_s=np.asarray(compute[-1]),
        done=sizes,
    )
    return replace(view, **changes)


def decided_at_each(
    policy: Policy,
    compute: Rows,
    rest: Sequence[float],
    **changes: Any,  # noqa: ANN401
) -> dict[str, tuple[int, Action]]:
    """The actions of a policy asked after every step, while nothing it says is done; by step."""
    rates = Rates(4)
    actions: dict[str, tuple[int, Action]] = {}
    view = view_after([compute[0]], rates=rates, **changes)
    for step, (row, rest_s) in enumerate(zip(compute, rest, strict=True)):
        rates.add(step, row, EVEN, rest_s=rest_s)
        action = policy.decide(replace(view, step=step, steps_left=view.steps_left - step, compute_s=row))
        if action.kind != "none":
            actions.setdefault(action.kind, (step, action))
    return actions


def test_static_does_nothing() -> None:
    assert Static().decide(view_after([SLOW] * 50)) is NOTHING


@pytest.mark.parametrize("policy", [EachStep, Continuous, Deterministic, BackupWorkers])
def test_one_unit_has_nothing_to_share(policy: type[Policy]) -> None:
    one = view_after([[0.08]] * 200, sizes=np.array([16]))
    assert policy().decide(one).kind == "none"


@pytest.mark.parametrize("policy", [EachStep, Continuous, Deterministic])
def test_equal_units_stay_as_they_are(policy: type[Policy]) -> None:
    assert policy().decide(view_after([HEALTHY] * 200)).kind == "none"


def test_each_step_follows_speeds_at_once() -> None:
    action = EachStep().decide(view_after([SLOW]))
    assert action.kind == "adjust_bs"
    assert action.sizes.tolist() == [19, 19, 6, 20]


def test_the_first_move_goes_half_way_and_says_what_it_saves() -> None:
    action = Continuous().decide(view_after([SLOW] * 40))
    assert action.kind == "adjust_bs"
    assert action.sizes.sum() == 64
    assert 6 < action.sizes[2] < 16
    assert action.sizes[2] == (16 + 6) // 2
    assert action.price.now_s == pytest.approx(0.26)
    assert action.price.after_s == pytest.approx(0.24 * 11 / 16 + 0.02)
    assert action.price.after_s < action.price.worst_after_s < action.price.now_s
    assert action.units.tolist() == [0, 1, 2, 3]
    assert all(isinstance(value, float) for value in action.reason.values())


def test_the_second_move_goes_all_the_way() -> None:
    sizes = np.array([18, 17, 11, 18])
    view = view_after([SLOW] * 40)
    for step in range(40, 60):
        view.rates.add(step, SLOW * sizes / 16, sizes, rest_s=0.02)
    action = Continuous().decide(replace(view, step=59, sizes=sizes))
    assert action.sizes.tolist() == [19, 19, 6, 20]
    assert action.price.after_s == pytest.approx(0.1 + 0.02, rel=0.01)


def test_a_saving_below_the_dead_band_is_left_alone() -> None:
    nearly = view_after([[0.08, 0.08, 0.083, 0.08]] * 40)
    assert Continuous().decide(nearly).kind == "none"
    longer = view_after([[0.08, 0.08, 0.1, 0.08]] * 40)
    assert Continuous().decide(longer).kind == "adjust_bs"
    assert Continuous(dead_band=0.3).decide(longer).kind == "none"


def test_no_plan_is_made_while_one_is_to_come_or_its_first_steps_run() -> None:
    assert Continuous().decide(view_after([SLOW] * 40, pending=True)).kind == "none"
    view, sizes = view_after([SLOW] * 40), np.array([18, 17, 11, 18])
    for step in range(40, 46):
        view.rates.add(step, SLOW, sizes)
    assert Continuous().decide(replace(view, sizes=sizes)).kind == "none"


def test_a_unit_is_given_no_more_than_it_can_hold() -> None:
    action = Continuous().decide(view_after([SLOW] * 40, highest=np.array([17, 20, 20, 20])))
    assert action.sizes[0] <= 17


def test_a_deadline_is_proposed_once_where_it_would_have_paid() -> None:
    policy = Continuous(deadline=1.25)
    action = policy.decide(view_after([SLOW] * 40))
    assert (action.kind, action.deadline) == ("backup_workers", 1.25)
    assert action.price.after_s < action.price.now_s
    assert policy.decide(view_after([SLOW] * 40, has_deadline=True)).kind == "adjust_bs"
    assert Continuous(deadline=1.25).decide(view_after([HEALTHY] * 40)).kind == "none"


def test_backup_workers_are_one_of_sixteen() -> None:
    assert BackupWorkers().decide(view_after([np.full(32, 0.08)], sizes=np.full(32, 16))).spare == 2
    assert BackupWorkers(spare=3).decide(view_after([HEALTHY])).spare == 3


def test_deterministic_decides_once_after_the_long_window() -> None:
    policy = Deterministic()
    assert policy.decide(view_after([SLOW] * 100)).kind == "none"
    action = policy.decide(view_after([SLOW] * 200))
    assert action.sizes.tolist() == [19, 19, 6, 20]
    assert action.micro_batches.tolist() == [1, 1, 1, 1]
    assert policy.decide(view_after([SLOW] * 200)) == action  # until it is in force
    assert policy.decide(view_after([SLOW] * 200, pending=True)).kind == "none"
    assert policy.decide(view_after([SLOW] * 200, sizes=action.sizes)).kind == "none"
    assert policy.decide(view_after([SLOW] * 200)).kind == "none"


def test_deterministic_gives_fast_units_more_micro_batches_where_memory_holds_no_more() -> None:
    action = Deterministic().decide(view_after([SLOW] * 200, highest=np.full(4, 16)))
    assert action.sizes.tolist() == [19, 19, 6, 20]
    assert action.micro_batches.tolist() == [2, 2, 1, 2]
    within = Deterministic(most_micro_batches=1).decide(view_after([SLOW] * 200, highest=np.full(4, 17)))
    assert within.sizes.tolist() == [17, 17, 13, 17]


def test_deterministic_is_within_5_percent_of_the_best_that_trying_all_finds() -> None:
    rng = np.random.default_rng(5)
    slope = np.array([1.0, 1.4, 3.0, 0.7]) * 0.005
    noise = np.exp(0.03 * rng.standard_normal((200, 4)))
    action = Deterministic().decide(view_after(16 * slope * noise))
    every = np.array([(*some, 64 - sum(some)) for some in product(range(2, 61), repeat=3) if 2 <= 64 - sum(some) <= 64])
    assert (slope * action.sizes).max() <= 1.05 * (slope * every).max(axis=1).min()


def slow_from(step: int, slow: Rows, steps: int) -> list[Rows]:
    return [HEALTHY] * step + [np.asarray(slow)] * (steps - step)


def test_a_slow_network_is_restarted_when_it_has_cost_a_third_of_a_restart() -> None:
    rest = [0.02] * 200 + [0.16] * 300
    actions = decided_at_each(
        Continuous(), [HEALTHY] * 500, rest, restart_s=20.0, steps_left=3000, slow_network=np.array([2, 3])
    )
    step, action = actions["kill_restart"]
    # .14 s a step reach a third of 20 s after 48 steps; the mean of weight .3 is 2.3 steps behind.
    assert 248 < step < 254
    assert action.units.tolist() == [2, 3]
    assert action.price.holds
    assert action.price.gain_s == pytest.approx(0.14 * (3000 - step), rel=0.01)
    assert action.price.already_lost_s == pytest.approx(20 / 3, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"steps_left": 390},  # at step 250, where it would be due, 140 steps of .14 s do not pay 20 s
        {"restart_s": None},  # cannot be restarted
        {"slow_network": np.zeros(0, dtype=int)},  # nobody knows whom to restart
        {"lost_steps": 10_000.0},  # nearly all would be done again
    ],
)
def test_a_restart_that_does_not_pay_is_not_proposed(changes: dict[str, Any]) -> None:
    rest = [0.02] * 200 + [0.16] * 250
    known = {"restart_s": 20.0, "steps_left": 3000, "slow_network": np.array([2, 3])} | changes
    assert "kill_restart" not in decided_at_each(Continuous(), [HEALTHY] * 450, rest, **known)


@pytest.mark.slow
def test_units_slow_since_the_start_are_not_restarted() -> None:
    actions = decided_at_each(Continuous(), [SLOW] * 400, [0.02] * 400, restart_s=2.0)
    assert "kill_restart" not in actions
    later = decided_at_each(Continuous(), slow_from(200, SLOW, 400), [0.02] * 400, restart_s=2.0)
    assert later["kill_restart"][1].units.tolist() == [2]


@pytest.mark.slow
def test_who_recovers_is_not_restarted() -> None:
    # Sizes cannot get back .02 s a step: 40 slow steps cost .8 s, a third of a restart 1 s; then all begins anew.
    spells = slow_from(200, SLOW, 240) + slow_from(100, SLOW, 140) * 3
    lasting = decided_at_each(Continuous(), slow_from(200, SLOW, 400), [0.02] * 400, restart_s=3.0)
    assert "kill_restart" in lasting
    assert "kill_restart" not in decided_at_each(Continuous(), spells, [0.02] * len(spells), restart_s=3.0)
