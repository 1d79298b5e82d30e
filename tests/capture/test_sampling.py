"""When a coordinator samples, and what it may cost."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.captured import rows_for

from kair_capture.coordinator.sampling import Budget, Sampler, Unasked, cost_us
from kair_capture.coordinator.step_table import StepTable
from kair_capture.ring import StepFlag


def test_sampling_keeps_to_its_budget_and_does_not_repeat_itself() -> None:
    sampler = Sampler(Budget(0.01), chance=random.Random(1))
    sizes = []
    for step in range(5, 50_000, 5):
        sampler.budget.pass_time(1000.0, step)
        if steps := sampler.affordable(1000.0):
            ordered = sampler.order(
                [(3, 0.2)], range(64), first=9, steps=steps, step_us=1000.0, now_s=0.0, why="slow ranks"
            )
            # What was guessed turns out to be right, and later to be half of it.
            sizes.append(ordered.steps)
            sampler.settle(ordered.steps * (500.0 if len(sizes) < 50 else 250.0))
            assert sampler.budget.overhead <= 0.01
    # The first after 100 steps, of the two steps that these have earned.
    assert sizes[:3] == [2, 2, 2]
    assert len(sizes) > 300
    window = sampler.window
    assert window is not None
    assert len(window.ranks) == 16
    assert 3 in window.ranks
    assert not sampler.is_due(3, 0.2, 100.0)
    assert sampler.is_due(3, 0.4, 100.0)
    assert sampler.is_due(5, 0.2, 100.0)


WINDOWS_TO_BE = st.tuples(
    st.integers(1, 400),  # steps until a window is wanted
    st.booleans(),  # for a rank that is slow beyond doubt
    st.floats(0, 3e6),  # what a step of it turns out to cost, if it is had
)


@given(
    share=st.sampled_from([0.0, 0.001, 0.01, 0.05]),
    step_us=st.floats(100, 2e6),
    wanted=st.lists(WINDOWS_TO_BE, max_size=40),
)
def test_sampling_costs_at_no_time_more_than_its_share_and_one_window(
    share: float, step_us: float, wanted: list[tuple[int, bool, float]]
) -> None:
    sampler, step, dearest = Sampler(Budget(share), chance=random.Random(1)), 0, 0.0
    for later, is_known, step_costs_us in wanted:
        step += later
        sampler.budget.pass_time(step_us, step)
        steps = sampler.affordable(step_us, is_known=is_known)
        assert share or not steps
        if steps:
            assert 2 <= steps <= 8
            sampler.order([(0, 0.2)], [0], first=step, steps=steps, step_us=step_us, now_s=0.0, why="")
            sampler.settle(steps * step_costs_us)
            dearest = max(dearest, steps * step_costs_us)
        budget = sampler.budget
        assert budget.spent_us <= share * budget.elapsed_us + dearest + 1e-3


def test_who_is_slow_beyond_doubt_is_sampled_before_it_is_earned_and_then_it_is_paid_off() -> None:
    sampler = Sampler(Budget(0.01))
    sampler.budget.pass_time(50_000.0, 120)
    assert sampler.affordable(50_000.0) == 2
    assert sampler.affordable(50_000.0, is_known=True) == 8
    sampler.order([(2, 0.2)], range(4), first=140, steps=8, step_us=5e4, now_s=0.0, why="slow ranks")
    sampler.settle(100_000.0)  # two steps' time, of which one was earned
    sampler.budget.pass_time(50_000.0, 199)
    assert sampler.affordable(50_000.0, is_known=True) == 0
    sampler.budget.pass_time(50_000.0, 201)
    assert sampler.affordable(50_000.0, is_known=True) == 8
    assert sampler.affordable(50_000.0) == 0


def test_a_window_costs_its_pauses_and_its_longer_steps() -> None:
    table, sampled = StepTable(), range(60, 64)
    for rank in range(4):
        rows = rows_for(rank, range(100), step_us=1000)
        within = np.isin(rows["step"], sampled)
        rows["flags"][within] = StepFlag.SAMPLED
        rows["step_us"][within] = [1250, 1250, 9000, 1250]  # one with a checkpoint in it
        # Rank 3 needs longest until what was seen is written: 20 ms; the profiler starts within 0.3.
        pause = np.where(rows["step"] == 59, 300, 0) + np.where(rows["step"] == 63, 17_000 + 1000 * rank, 0)
        lengths = rows["step_us"].astype(np.int64) + pause
        rows["begin_us"] = 10**15 + np.concatenate([[0], np.cumsum(lengths)[:-1]])
        table.add(rows)
    assert cost_us(table, (0, 1, 2, 3), 60, 63) == pytest.approx(4 * 250 + 300 + 20_000)
    assert cost_us(table, (0, 1), 60, 63) == pytest.approx(4 * 250 + 300 + 18_000)
    assert cost_us(table, (0, 1), 70, 73) == 0.0  # nobody sampled
    assert cost_us(table, (7,), 60, 63) is None
    table.add(rows_for(0, range(100, 400)))
    assert cost_us(table, (0,), 60, 63) is None


def test_windows_that_nobody_asked_for_are_charged_once() -> None:
    table, unasked, charged = StepTable(), Unasked(), 0.0
    begin = {0: 10**15, 1: 10**15}
    for first in range(0, 400, 10):
        for rank in (0, 1):
            rows = rows_for(rank, range(first, first + 10))
            # Both ranks by themselves, the second in more steps; 200 to 203 they were asked for.
            within = (rows["step"] % (50 if rank == 0 else 25) == 0) | ((rows["step"] >= 200) & (rows["step"] < 204))
            rows["flags"][within] = StepFlag.SAMPLED
            rows["step_us"][within] = 1300
            lengths = rows["step_us"].astype(np.int64) + np.where(within, 2000 + 1000 * rank, 0)
            rows["begin_us"] = begin[rank] + np.concatenate([[0], np.cumsum(lengths)[:-1]])
            begin[rank] += int(lengths.sum())
            table.add(rows)
        charged += unasked.cost_us(table, [(200, 203)])
    # All of steps 25, 50 … 375 but for 200: 0.3 ms longer, then 3 ms on the rank that takes longest. (What is usual is
    # not known at step 0.)
    assert charged == pytest.approx(14 * 3300)
    again = Unasked(unasked.until)
    assert again.cost_us(table, [(200, 203)]) == 0.0
    # Back at a checkpoint, it goes on from there.
    later = rows_for(0, range(300, 340), begin_us=2 * 10**15)
    later["flags"][later["step"] == 325] = StepFlag.SAMPLED
    later["step_us"][later["step"] == 325] = 1400
    later["begin_us"][later["step"] > 325] += 400
    table.add(later)
    table.add(rows_for(1, range(300, 340), begin_us=2 * 10**15))
    assert unasked.cost_us(table, []) == 0.0
    table.add(rows_for(0, range(340, 350), begin_us=2 * 10**15 + 400))
    table.add(rows_for(1, range(340, 350), begin_us=2 * 10**15 + 400))
    assert unasked.until == 338
    assert unasked.cost_us(table, []) == 0.0
