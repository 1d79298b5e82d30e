"""Parts of the step over all steps of a job: which became longer, on which rank, from which step on."""

from typing import Any, Literal

import numpy as np
import pytest

from kair_engine.results.views import ScopeTime
from kair_engine.views.scope_changes import ScopeSeries, scope_times


def series(
    time_us: Any,  # noqa: ANN401  # whatever makes an array
    scope: str = "forward",
    waiting: Literal["none", "some", "all"] = "none",
    first: int = 0,
) -> ScopeSeries:
    values = np.asarray(time_us, np.float64)
    return ScopeSeries(scope, np.arange(len(values)), np.arange(first, first + values.shape[1]), values, waiting)


def changed(rows: tuple[ScopeTime, ...]) -> dict[tuple[str, int | None], int | None]:
    return {(row.scope, row.rank): row.since_step for row in rows if row.since_step is not None}


def test_a_table_by_hand() -> None:
    # Three ranks take 100, 110, 120 µs, give or take one; rank 2 takes 30 more from step 63 on.
    wobble = np.tile([0, 1, -1, 0, 1], 24)
    times = np.array([[100], [110], [120]]) + wobble
    times[2, 63:] += 30
    rows = scope_times([series(times, first=1000)], 200.0)
    first, *rest = rows
    assert (first.scope, first.rank, first.since_step, first.steps) == ("forward", 2, 1063, 120)
    assert (first.before_us, first.after_us, first.change_us) == (120, 150, 30)
    assert first.p_value is not None
    assert first.p_value < 1e-6
    assert (first.median_us, first.peers_us, first.waits) == (121, 105, False)
    assert [(row.rank, row.median_us, row.peers_us, row.since_step) for row in rest] == [
        (None, 110, None, None),
        (0, 100, 110, None),
        (1, 110, 100, None),
    ]


def test_what_all_ranks_take_longer_for_is_nobodys_and_a_row_of_its_own() -> None:
    times = np.full((4, 200), 100.0) + np.random.default_rng(1).normal(0, 2, (4, 200))
    times[:, 150:] += 20
    (row,) = [row for row in scope_times([series(times)], 200.0) if row.since_step is not None]
    assert (row.rank, row.since_step) == (None, 150)
    assert row.change_us == pytest.approx(20, abs=1.5)


def test_a_longer_wait_is_anothers_fault_and_so_is_what_it_makes_longer() -> None:
    chance = np.random.default_rng(2)
    work = np.full((4, 200), 100.0) + chance.normal(0, 1, (4, 200))
    work[1, 80:] += 30
    waits = work.max(axis=0) - work + 5
    backward = 50 + waits
    given = [series(backward, "backward", "some"), series(waits, "waiting", "all"), series(work, "self")]
    rows = scope_times(given, 200.0)
    assert (rows[0].scope, rows[0].rank, rows[0].since_step, rows[0].waits) == ("self", 1, 80, False)
    found = [row for row in rows[1:] if row.since_step is not None]
    assert {row.scope for row in found} == {"backward", "waiting"}
    assert all(row.waits for row in found)


def test_a_change_is_found_in_a_long_job_as_soon_as_it_lasts_and_single_steps_are_none() -> None:
    chance = np.random.default_rng(3)
    times = np.full((3, 20_000), 1000.0) + chance.normal(0, 20, (3, 20_000))
    times[0, 500:508] += 5000
    assert changed(scope_times([series(times)], 2000.0)) == {}
    times[1, -60:] += 100
    ((place, since),) = changed(scope_times([series(times)], 2000.0)).items()
    assert place == ("forward", 1)
    assert since == pytest.approx(19_940, abs=3)


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_healthy_jobs_change_by_chance_alone(ranks: int) -> None:
    alarms = 0
    for seed in range(40):
        chance = np.random.default_rng(seed)
        times = 1000 * (1 + np.abs(chance.normal(0, 0.03, (ranks, 400))))
        # Slowly up and down, as other work on the hosts comes and goes.
        times *= 1 + 0.02 * np.sin(np.arange(400) / 40 + chance.random((ranks, 1)))
        alarms += bool(changed(scope_times([series(times)], 2000.0)))
    assert alarms <= 2


def test_of_two_ranks_the_other_is_the_peer_and_one_has_its_past_alone() -> None:
    times = np.full((2, 100), 100.0) + np.random.default_rng(4).normal(0, 1, (2, 100))
    times[1, 50:] += 20
    rows = scope_times([series(times)], 200.0)
    assert (rows[0].rank, rows[0].since_step) == (1, 50)
    assert rows[0].change_us == pytest.approx(20, abs=1.5)
    (alone,) = scope_times([series(times[1:])], 200.0)
    assert (alone.rank, alone.peers_us, alone.since_step) == (0, None, 50)


def test_steps_that_do_not_tell_a_scope_and_jobs_that_are_too_short_are_no_change() -> None:
    times = np.full((3, 100), np.nan)
    times[:, ::10] = 50  # a scope of every tenth step
    times[2, 50::10] = 90
    rows = scope_times([series(times), series(np.zeros((2, 0)), "none")], 200.0)
    assert [(row.rank, row.steps, row.median_us) for row in rows] == [
        (None, 10, 50),
        (0, 10, 50),
        (1, 10, 50),
        (2, 10, 70),
    ]
    assert changed(rows) == {}
