"""Causes other than a slow machine: garbage collection, flapping communication, and what only looks like them."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from support.pipeline_builder import costs, pipeline_job, written

from kair_engine.recording.opening import open_trace
from kair_engine.results.whatif import WhatifResult
from kair_engine.whatif.analysis import whatif
from kair_tui.render.whatif import verdict_in_words

STEPS, DP, PP, MICROBATCHES = 6, 4, 2, 6
Where = Mapping[str, int | str]


def at_times(share: float, **where: int | str) -> bool:
    """True of so many operations, the same ones in every run."""
    seed = [ord(str(value)) if isinstance(value, str) else value for value in where.values()]
    return bool(np.random.default_rng(seed).random() < share)


def job(folder: Path, factor: Callable[[str, Where], float], *, steps: int = STEPS, dp: int = DP) -> WhatifResult:
    """A job with 3 % of noise in which operations take `factor` times as long as they should."""

    def cost(operation: str, step: int, dp: int, stage: int, microbatch: int) -> float:
        where = {"operation": operation[0], "step": step, "dp": dp, "stage": stage, "microbatch": microbatch}
        noise = 1 + 0.03 * np.random.default_rng([ord(operation[0]), step, dp, stage, microbatch]).standard_normal()
        return costs(operation, step, dp, stage, microbatch) * noise * factor(operation, where)

    rows = pipeline_job(dp=dp, pp=PP, microbatches=MICROBATCHES, steps=range(steps), cost=cost)
    return whatif(open_trace(written(folder, rows), cache=folder / "cache"))


def named(result: WhatifResult) -> list[str]:
    return [cause.kind for cause in result.causes]


def pauses(operation: str, where: Where) -> float:
    return 3.0 if operation == "F" and at_times(0.06, **where) else 1.0


def test_pauses_of_forward_alone_on_random_ranks_are_garbage_collection(tmp_path: Path) -> None:
    result = job(tmp_path, pauses)
    assert named(result) == ["garbage_collection"]
    (cause,) = result.causes
    # The ideal is a mean that has the pauses in it: without them the job is faster still.
    assert cause.share is not None
    assert 1 < cause.share < 1.5
    assert len(cause.ranks) >= 3
    assert "garbage collection" in verdict_in_words(result)


def test_what_garbage_collection_costs_is_what_the_job_is_slower_by(tmp_path: Path) -> None:
    result = job(tmp_path, pauses)
    (tmp_path / "quiet").mkdir()
    quiet = job(tmp_path / "quiet", lambda *_: 1.0)
    share = result.causes[0].share
    assert share is not None
    lost = share * (result.step_time_us - result.ideal_step_time_us)
    assert lost == pytest.approx(result.step_time_us - quiet.step_time_us, rel=0.05)


def test_planned_collection_saves_all_pauses_but_the_longest_once_in_500_steps(tmp_path: Path) -> None:
    result = job(tmp_path, pauses)
    (remedy,) = result.remedies
    share = result.causes[0].share
    assert (remedy.remedy, remedy.every_steps) == ("planned_gc", 500)
    assert share is not None
    assert remedy.collection_us is not None
    # A forward computation of 1 s, 3 % of noise, takes three times as long.
    assert remedy.collection_us == pytest.approx(2e6, rel=0.15)
    lost = share * (result.step_time_us - result.ideal_step_time_us)
    assert remedy.saved_us == pytest.approx(lost - remedy.collection_us / 500)
    assert remedy.step_time_us == pytest.approx(result.step_time_us - remedy.saved_us)


def slow_rank(operation: str, where: Where) -> float:
    return 2.0 if operation in {"F", "B"} and (where["dp"], where["stage"]) == (1, 0) else 1.0


def slow_rank_at_times(operation: str, where: Where) -> float:
    return 3.0 if operation == "F" and (where["dp"], where["stage"]) == (1, 0) and at_times(0.4, **where) else 1.0


def pauses_of_both(operation: str, where: Where) -> float:
    return 3.0 if operation in {"F", "B"} and at_times(0.06, **where) else 1.0


def long_sequences(operation: str, where: Where) -> float:
    sequence = {key: where[key] for key in ("step", "dp", "microbatch")}
    return 2.0 if operation in {"F", "B"} and at_times(0.2, **sequence) else 1.0


def slow_first_microbatch(operation: str, where: Where) -> float:
    return 3.0 if operation == "F" and where["microbatch"] == 0 else 1.0


def short_pauses(operation: str, where: Where) -> float:
    return 1.2 if operation == "F" and at_times(0.06, **where) else 1.0


def pauses_in_one_step(operation: str, where: Where) -> float:
    return 3.0 if operation == "F" and where["step"] == 2 and at_times(0.3, **where) else 1.0


def slow_stage(operation: str, where: Where) -> float:
    return 2.0 if operation in {"F", "B"} and where["stage"] == PP - 1 else 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factor", "causes"),
    [
        (slow_rank, ["slow_workers"]),
        (slow_rank_at_times, ["slow_workers"]),
        (pauses_of_both, []),
        (long_sequences, ["sequence_imbalance"]),
        (slow_first_microbatch, []),
        (short_pauses, []),
        (pauses_in_one_step, []),
        (slow_stage, ["stage_imbalance"]),
        (lambda *_: 1.0, []),
    ],
)
def test_what_only_looks_like_garbage_collection_is_not_called_so(
    tmp_path: Path, factor: Callable[[str, Where], float], causes: list[str]
) -> None:
    assert named(job(tmp_path, factor)) == causes


def flapping(operation: str, where: Where) -> float:
    return 12.0 if operation == "send" and at_times(0.06, **where) else 1.0


def flapping_reduction(operation: str, where: Where) -> float:
    return 12.0 if operation == "scatter" and where["step"] in {1, 4} else 1.0


@pytest.mark.parametrize(
    ("factor", "operation"), [(flapping, "forward-send"), (flapping_reduction, "grads-reduce-scatter")]
)
def test_transfers_that_take_far_longer_at_times_are_flapping(
    tmp_path: Path, factor: Callable[[str, Where], float], operation: str
) -> None:
    result = job(tmp_path, factor)
    assert named(result) == ["communication_flapping"]
    assert operation in result.causes[0].operation_types


def slow_link(operation: str, where: Where) -> float:
    return 12.0 if operation == "send" and (where["dp"], where["stage"]) == (1, 0) else 1.0


def congestion(operation: str, where: Where) -> float:
    return 2.5 if operation == "send" and at_times(0.06, **where) else 1.0


def rare_flaps(operation: str, where: Where) -> float:
    # Most of the slowdown is a slow rank's.
    return 12.0 if operation == "send" and at_times(0.005, **where) else slow_rank(operation, where)


@pytest.mark.slow
@pytest.mark.parametrize("factor", [slow_link, congestion, rare_flaps, slow_rank, pauses, lambda *_: 1.0])
def test_what_only_looks_like_flapping_is_not_called_so(tmp_path: Path, factor: Callable[[str, Where], float]) -> None:
    assert "communication_flapping" not in named(job(tmp_path, factor))


def test_a_transfer_whose_other_end_is_not_recorded_may_have_waited(tmp_path: Path) -> None:
    rows = pipeline_job(dp=2, pp=2, steps=range(STEPS))
    sends = [row for row in rows if row["optype"] == "forward-send"]
    # The last stage is not recorded: how late it came is not known.
    for row in sends[:: len(sends) // 4]:
        row["duration"] *= 40
    alone = [row for row in rows if row["stage"] == 0]
    assert named(whatif(open_trace(written(tmp_path, alone), cache=tmp_path / "cache"))) == []


@pytest.mark.slow
def test_one_step_cannot_tell_long_sequences_from_a_slow_rank(tmp_path: Path) -> None:
    def factor(operation: str, where: Where) -> float:
        # Long sequences everywhere, and by chance most of them on one rank.
        length = 1 + 0.15 * int(where["microbatch"]) + 2 * ((where["dp"], where["stage"]) == (1, 0))
        return length if operation in {"F", "B"} else 1.0

    result = job(tmp_path, factor, steps=1, dp=16)
    assert named(result)[0] == "sequence_imbalance"
    assert "or slow ranks 2: one step is too few to decide" in verdict_in_words(result)
    (tmp_path / "more").mkdir()
    assert named(job(tmp_path / "more", factor, steps=3, dp=16))[0] == "slow_workers"
