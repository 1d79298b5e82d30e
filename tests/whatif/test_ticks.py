"""Operations that end with the scheduler's tick: told whatever they compute, and from operators that only take long."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.trace_builder import trace

from kair_engine.results.whatif import Fix, HostStops
from kair_engine.trace.model import StepTimes, Trace
from kair_engine.whatif.analysis import model_of
from kair_engine.whatif.model import Baseline

STEPS, RANKS, OPERATORS = 16, 2, 6
TICK = 4000.0
Times = Callable[[int, np.random.Generator], float]
"""What an operator takes, µs."""


def at_ticks(operator: int, drawn: np.random.Generator) -> float:
    """One to three turns, the last of which mostly ends with a tick; it begins soon after one, or at any time."""
    early = drawn.uniform(0, 600) if drawn.random() < 0.6 else drawn.uniform(0, 4000)
    return TICK * float(drawn.integers(1, 3 + operator % 2)) - float(early)


def steady(operator: int, drawn: np.random.Generator) -> float:
    """Each operator takes its own time, and one that is far from the others' phase."""
    return 2600 + 1790 * operator + float(drawn.normal(0, 60))


def varied(operator: int, drawn: np.random.Generator) -> float:
    return (3000 + 1000 * operator) * float(np.exp(drawn.normal(0, 0.5)))


def to_the_microsecond(operator: int, drawn: np.random.Generator) -> float:
    return TICK * float(drawn.integers(1, 3 + operator % 2))


def durations(times: Times, seed: int, steps: int) -> list[list[list[float]]]:
    """Of each step and rank those of its operators."""
    drawn = np.random.default_rng(seed)
    return [
        [[round(times(operator, drawn), 1) for operator in range(OPERATORS)] for _ in range(RANKS)]
        for _ in range(steps)
    ]


def job(folder: Path, times: Times, seed: int = 0, steps: int = STEPS) -> Trace:
    """Ranks that run operators one after another, and meet at the end of each step."""
    lines = []
    for step, took in enumerate(durations(times, seed, steps)):
        begin = step * 1_000_000
        end = begin + max(map(sum, took)) + 100
        lines.append(f"step {step}: {begin}+{end - begin}")
        for rank, of_rank in enumerate(took):
            at = float(begin)
            for operator, duration in enumerate(of_rank):
                lines.append(f"{rank} main | op{operator} {at}+{duration}")
                at += duration
            lines.append(f"{rank} th2 | allreduce@dp#{step} {at}+{end - at}")
    return trace(folder, "\n".join(lines))


def stops(made: Trace) -> HostStops | None:
    return model_of(made).host_stops()


def test_operations_that_end_with_ticks_wait_for_them_whatever_they_compute(tmp_path: Path) -> None:
    made = job(tmp_path, at_ticks)
    found = stops(made)
    assert found is not None and found.tick_us == TICK
    assert found.ticked_share > 0.8
    recorded, without = model_of(made).replay([Baseline.RECORDED, (Fix(kinds=("stops",)),)]).times.mean(axis=1)
    assert without < 0.1 * recorded


@pytest.mark.slow
@pytest.mark.parametrize("times", [steady, varied, to_the_microsecond])
def test_operations_that_take_long_do_not(tmp_path: Path, times: Times) -> None:
    found = stops(job(tmp_path, times))
    assert found is None or found.tick_us is None


def taking_turns(made: Trace, times: Times, seed: int, steps: int, *, ready: float) -> Trace:
    """As measured: threads compute for half of their own time, and helpers for the other half; they are `ready` for so
    much of it, and have no core, or wait asleep."""
    took = durations(times, seed, steps)
    rows = []
    for row in made.job.step_times.rows(plain=True):
        half = round(500 * sum(took[row[1]][row[0]]))
        rows.append((*row, half, round(2 * ready * half) - half, -1, -1, -1, -1, half))
    return replace(made, job=replace(made.job, step_times=StepTimes.of_rows(rows)))


@pytest.mark.slow
def test_where_threads_and_helpers_take_turns_fewer_steps_tell_it(tmp_path: Path) -> None:
    told = dict.fromkeys(("unmeasured", "turns", "asleep"), 0)
    for seed in range(12):
        made = job(tmp_path / str(seed), at_ticks, seed, steps=6)
        turns, asleep = (taking_turns(made, at_ticks, seed, 6, ready=ready) for ready in (1.0, 0.95))
        for name, one in zip(told, (made, turns, asleep), strict=True):
            found = stops(one)
            told[name] += found is not None and found.tick_us is not None
    assert told["unmeasured"] == told["asleep"] < told["turns"]


def test_operators_of_a_time_of_their_own_do_not_even_where_threads_take_turns(tmp_path: Path) -> None:
    for times in (steady, varied):
        found = stops(taking_turns(job(tmp_path / times.__name__, times), times, 0, STEPS, ready=1.0))
        assert found is not None and found.tick_us is None


@pytest.mark.slow
def test_operators_of_any_length_are_hardly_ever_taken_for_it(tmp_path: Path) -> None:
    """Forty jobs whose operators take a time of their own each, steadily or not."""
    told = 0
    for seed in range(40):
        own = np.random.default_rng(seed).uniform(2000, 20_000, OPERATORS)
        spread = float(np.random.default_rng(seed).choice([0.01, 0.05, 0.2]))
        found = stops(
            job(tmp_path / str(seed), lambda of, drawn, own=own, by=spread: own[of] * np.exp(drawn.normal(0, by)), seed)
        )
        told += found is not None and found.tick_us is not None
    assert told <= 1
