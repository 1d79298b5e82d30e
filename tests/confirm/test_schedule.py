"""Which rank is delayed when: every rank computes the same alone, and orders that are not sound are refused."""

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.patience import PATIENCE_S

from kair_capture.delays import (
    DEFAULT_SHARES,
    FEWEST_FREE,
    LONGEST_LEASE,
    Arm,
    Mode,
    Order,
    Place,
    arm_of,
    dose_of,
    from_json,
    most_cost_ns,
    renewed,
    to_json,
)
from kair_engine.results.confirm import DelayPlace

SEEDS = st.integers(0, (1 << 63) - 1)


def order(mode: Mode = Mode.ARMS, seed: int = 7, first: int = 100, accused: tuple[int, ...] = (2,)) -> Order:
    return Order(
        generation=1,
        seed=seed,
        first_step=first,
        last_step=first + LONGEST_LEASE - 1,
        place=Place.BEFORE_FORWARD,
        mode=mode,
        doses_ns=(1_000_000, 2_000_000, 4_000_000) if mode is Mode.SWEEP else (4_000_000,),
        accused=() if mode is Mode.HALVES else accused,
        shares=DEFAULT_SHARES[mode],
    )


@given(SEEDS, st.integers(0, 1 << 40), st.sampled_from(Mode), st.sets(st.integers(0, 15), min_size=1, max_size=15))
def test_every_rank_that_reads_the_order_is_delayed_as_its_arm_says(
    seed: int, first: int, mode: Mode, accused: set[int]
) -> None:
    sent = order(mode, seed, first, tuple(sorted(accused)))
    read = from_json(to_json(sent).encode())
    for step in range(first, first + 8):
        arm = arm_of(read, step)
        doses = [dose_of(sent if rank % 2 else read, step, rank) for rank in range(16)]
        delayed = {rank for rank in range(16) if doses[rank]}
        assert len(set(doses) - {0}) <= 1
        if mode is not Mode.HALVES:
            everybody = set(range(16))
            assert delayed == {
                Arm.NONE: set(),
                Arm.ACCUSED: accused,
                Arm.OTHERS: everybody - accused,
                Arm.ALL: everybody,
            }.get(arm)
        else:
            assert arm is Arm.HALF or not delayed


def test_another_process_draws_the_same() -> None:
    asked = order(Mode.HALVES)
    script = (
        "import sys; from kair_capture.delays import *; order = from_json(sys.argv[1])\n"
        "print([dose_of(order, step, 5) for step in range(100, 164)], 'numpy' in sys.modules)"
    )
    told = subprocess.run(
        [sys.executable, "-c", script, to_json(asked)], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    # The training process may have no NumPy.
    assert told.stdout.strip() == f"{[dose_of(asked, step, 5) for step in range(100, 164)]} False"


@pytest.mark.parametrize("mode", Mode)
def test_four_steps_in_ten_or_more_are_free_and_the_lease_costs_what_it_says(mode: Mode) -> None:
    asked, free = order(mode), 0
    for _ in range(20):
        steps = range(asked.first_step, asked.last_step + 1)
        delayed = [step for step in steps if arm_of(asked, step) is not Arm.NONE]
        free += len(steps) - len(delayed)
        per_step = [max(dose_of(asked, step, rank) for rank in range(16)) for step in delayed]
        assert sum(per_step) == most_cost_ns(asked)
        asked = renewed(asked)
    assert free / (20 * LONGEST_LEASE) > FEWEST_FREE


@given(SEEDS, st.integers(1, LONGEST_LEASE))
def test_a_renewed_order_goes_on_as_if_it_had_been_one(seed: int, steps: int) -> None:
    whole = order(seed=seed)
    part = replace(whole, last_step=whole.first_step + steps - 1)
    after = renewed(part)
    assert (after.generation, after.first_step) == (2, part.last_step + 1)
    for step in range(whole.first_step, whole.last_step + 1):
        assert arm_of(part if step <= part.last_step else after, step) is arm_of(whole, step)


def test_nobody_is_delayed_outside_the_lease() -> None:
    asked = order()
    around = (*range(asked.first_step - 50, asked.first_step), *range(asked.last_step + 1, asked.last_step + 50))
    assert {dose_of(asked, step, rank) for step in around for rank in range(4)} == {0}


def test_a_sweep_gives_every_dose_to_all_others_at_once() -> None:
    asked = order(Mode.SWEEP)
    seen = {dose_of(asked, step, 0) for step in range(100, 164)}
    assert seen == {0, *asked.doses_ns}
    assert {dose_of(asked, step, 2) for step in range(100, 164)} == {0}


def test_halves_are_others_in_every_step() -> None:
    asked = order(Mode.HALVES)
    halves = {tuple(dose_of(asked, step, rank) > 0 for rank in range(16)) for step in range(100, 164)}
    assert len(halves) > 20
    assert all(2 <= sum(half) <= 14 for half in halves if any(half))


@pytest.mark.parametrize(
    "changes",
    [
        {"last_step": 164},
        {"last_step": 99},
        {"first_step": -1},
        {"generation": True},
        {"seed": 1.0},
        {"seed": 1 << 63},
        {"doses_ns": (250_000_001,)},
        {"doses_ns": (0,)},
        {"doses_ns": ()},
        {"doses_ns": (1000, 2000)},
        {"doses_ns": [1000]},
        {"accused": ()},
        {"accused": (2, 1)},
        {"accused": (1, 1)},
        {"accused": (-1,)},
        {"accused": [1]},
        {"shares": (0.39, 0.3, 0.3, 0.01)},
        {"shares": (0.5, 0.3, 0.3, 0.1)},
        {"shares": (0.5, float("nan"), 0.3, 0.1)},
        {"shares": (0.5, 0.5)},
        {"shares": (True, 0, 0, 0)},
        {"place": "before_forward"},
        {"mode": Mode.HALVES},
        {"mode": Mode.SWEEP},
        {"mode": Mode.HALVES, "accused": ()},
        {"mode": Mode.HALVES, "accused": (), "shares": (1.0, 0.0, 0.0, 0.0)},
    ],
)
def test_an_order_that_is_not_sound_cannot_be_made(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        replace(order(), **changes)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{}",
        "[" * 60_000,
        "x" * 70_000,
        b"\xff\xfe\x00",
        to_json(order()).replace("0.48", "NaN"),
        to_json(order()).replace('"seed":7', '"seed":7,"more":1'),
        to_json(order()).replace('"seed":7', '"seed":"7"'),
        to_json(order()).replace('"seed":7', '"seed":' + "9" * 5000),
        to_json(order()).replace("before_forward", "anywhere"),
        to_json(order()).replace('"arms"', "[]"),
        to_json(order()).replace("[2]", "2"),
        to_json(order()).replace("[2]", '["2"]'),
    ],
)
def test_other_texts_are_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_json(text)


@given(
    st.recursive(st.none() | st.integers() | st.floats() | st.text(), st.lists), st.sampled_from(sorted(vars(order())))
)
def test_a_field_of_any_other_kind_is_refused_or_read_back(value: object, name: str) -> None:
    text = json.dumps({**json.loads(to_json(order())), name: value})
    try:
        read = from_json(text)
    except ValueError:
        return
    assert from_json(to_json(read)) == read


def test_results_name_the_places_that_orders_have() -> None:
    assert set(get_args(DelayPlace)) == set(Place)
