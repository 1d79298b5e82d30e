"""The forest plot: hand-made estimates, drawn to the sign."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kair_tui.render.forest import Axis, Estimate, axis_of, forest, legend, scale
from kair_tui.render.terminal import ASCII, UNICODE

AXIS = Axis(-1000.0, 3000.0, 2000.0, 41)
"""100 µs a sign; zero is the 11th, a dose of 1 ms the 21st, the claim the 31st."""
HELD_UP = Estimate(1000.0, 800.0, 1300.0, 1000.0)
TIMES = st.floats(-1e6, 1e6)


@pytest.mark.parametrize(
    ("one", "row"),
    [
        (HELD_UP, "          │       ──●───      ┃          "),
        (Estimate(0.0, -300.0, 400.0, 1000.0), "       ───●────     ⋮         ┃          "),
        (Estimate(100.0, -300.0, 400.0, 1000.0), "       ───┼●───     ⋮         ┃          "),
        (Estimate(2900.0, 1500.0, 5000.0, 1000.0), "          │         ⋮    ──────────────●…"),
        (Estimate(-5000.0, -9000.0, -2000.0, 1000.0), "●         │         ⋮         ┃          "),
        (Estimate(None, None, None, 1000.0), "          │         ⋮         ┃          "),
        (replace(HELD_UP, dose_us=9000.0), "          │       ──●───      ┃          "),
    ],
)
def test_a_row_is_its_interval_over_the_marks(one: Estimate, row: str) -> None:
    assert forest(one, AXIS, UNICODE) == row
    assert forest(one, AXIS, ASCII) == row.translate(str.maketrans("│─●┼⋮┃…", "|-o+:#~"))


def test_the_axis_holds_every_interval_and_the_claim() -> None:
    axis = axis_of([HELD_UP, Estimate(0.0, -700.0, 400.0, 1000.0)], 2500.0, 40)
    assert (axis.low_us, axis.high_us) == (-700.0, pytest.approx(2750.0))
    assert not axis.is_beyond(2500.0)


def test_a_claim_far_beyond_the_doses_is_pointed_at() -> None:
    axis = axis_of([HELD_UP], 22_000.0, 40)
    assert axis.high_us == 3000.0
    assert forest(HELD_UP, axis, UNICODE).endswith("▸")
    assert legend([HELD_UP], axis, UNICODE, "claimed 22.0 ms").endswith("▸ claimed 22.0 ms")
    assert "22" not in scale(axis, 1000.0)


def test_the_scale_names_zero_the_claim_and_the_dose_where_there_is_room() -> None:
    assert scale(AXIS, 1000.0) == "          0      1.00 ms   2.00 ms       "
    assert scale(replace(AXIS, width=12), 1000.0).split() == ["0", "2.00", "ms"]


def test_nothing_is_explained_before_there_is_an_estimate() -> None:
    nothing = Estimate(None, None, None, 0.0)
    axis = axis_of([nothing], None, 30)
    assert legend([nothing], axis, UNICODE, "") == ""
    assert len(forest(nothing, axis, UNICODE)) == 30


@given(
    us=TIMES,
    below=st.floats(0, 1e6),
    above=st.floats(0, 1e6),
    dose=st.floats(0, 1e6),
    claimed=TIMES,
    width=st.integers(2, 90),
)
def test_every_row_and_the_scale_are_as_wide_as_asked(
    us: float, below: float, above: float, dose: float, claimed: float, width: int
) -> None:
    one = Estimate(us, us - below, us + above, dose)
    axis = axis_of([one], claimed, width)
    assert len(forest(one, axis, ASCII)) == len(scale(axis, dose)) == width
    assert forest(one, axis, ASCII).count(ASCII.recording) == 1
