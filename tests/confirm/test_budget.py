"""How large doses are, how long an experiment will take, and that it never costs more than was allowed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kair_engine.confirm.budget import Account, allowed_us, dose_us, forecast_steps, require_steps, sweep_us
from kair_engine.errors import InputError


@pytest.mark.parametrize(
    ("step", "excess", "spread", "timeout", "dose"),
    [
        (200_000, 8_000, 0, None, 4_000),
        (200_000, 80_000, 0, None, 10_000),
        (200_000, 1_000, 0, None, 2_000),
        (200_000, 8_000, 1_500, None, 7_500),
        (20e6, 9e6, 0, None, 250_000),
        (200_000, 80_000, 0, 500_000, 5_000),
    ],
)
def test_the_dose(step: float, excess: float, spread: float, timeout: float | None, dose: float) -> None:
    assert dose_us(step, excess, spread, timeout) == dose


@pytest.mark.parametrize(
    ("step", "spread", "timeout"), [(200_000, 2_500, None), (200_000, 0, 100_000), (60e6, 0, None), (0, 0, None)]
)
def test_no_dose_is_both_safe_and_seen(step: float, spread: float, timeout: float | None) -> None:
    with pytest.raises(InputError):
        dose_us(step, 8_000, spread, timeout)


def test_a_sweep_goes_beyond_the_excess() -> None:
    doses = sweep_us(200_000, 30_000)
    assert list(doses) == sorted(set(doses))
    assert doses[0] < 30_000 < doses[-1] == 40_000
    assert sweep_us(200_000, 190_000)[-1] == 60_000
    with pytest.raises(InputError, match="worth nothing"):
        sweep_us(200_000, 0)


def test_a_job_whose_steps_vary_too_much_is_refused_with_the_steps_it_would_take() -> None:
    assert forecast_steps(4_000, 2_000) == 160
    assert forecast_steps(10, 2_000) == 55
    assert require_steps(4_000, 2_000, 400) == 160
    with pytest.raises(InputError, match="about 4,000 steps"):
        require_steps(20_000, 2_000, 400)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e6, 1e7)), max_size=30))
def test_the_account_is_never_overdrawn(leases: list[tuple[float, float]]) -> None:
    account = Account(allowed_us(200_000, 1_000))
    for charge, cost in leases:
        if charge > account.left_us:
            with pytest.raises(ValueError, match="left"):
                account.charged(charge)
            continue
        account = account.charged(charge).settled(charge, cost)
        assert account.held_us == 0
        assert 0 <= account.spent_us <= account.allowed_us * (1 + 1e-9)


def test_what_was_not_held_cannot_be_settled() -> None:
    with pytest.raises(ValueError, match="held"):
        Account(100).settled(50, 10)
    assert Account(100).charged(60).left_us == 40
    assert Account(100).charged(60).settled(60, 10).left_us == 90
