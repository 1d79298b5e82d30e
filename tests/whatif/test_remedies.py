"""Published remedies against their papers' formulas, and on jobs worked out by hand; times in units of one forward."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from support.pipeline_builder import pipeline_job, written

import kair
from kair_engine.errors import UsageError
from kair_engine.whatif.pipeline.schedules import (
    PipelineJob,
    Schedule,
    deferred_last,
    merged_microbatches,
    one_forward_one_backward,
    redealt_counts,
    rescheduled,
    spans,
    twice,
    zero_bubble,
)


def pipeline(stages: int, microbatches: int, lag: Sequence[float] | float = 0.0) -> PipelineJob:
    """A forward takes 1, a backward 2: 1 for activations' gradients and 1 for weights'."""
    forward = np.ones((stages, microbatches, 1))
    return PipelineJob(forward, 2 * forward, np.broadcast_to(np.array(lag, dtype=float), stages - 1))


def bubble(job: PipelineJob, schedule: Schedule) -> float:
    return float(spans(job, schedule)[0]) - 3 * job.microbatches


def most_held(schedule: Schedule) -> list[int]:
    """Per stage the most microbatches between their forward and their W."""
    runs = [np.cumsum([{"F": 1, "B": 0, "W": -1}[kind] for kind, _ in order]) for order in schedule.order]
    return [int(of.max()) for of in runs]


@pytest.mark.parametrize("stages", [4, 8])
def test_bubbles_and_memory_are_those_of_the_papers(stages: int) -> None:
    job = pipeline(stages, 3 * stages)
    assert bubble(job, one_forward_one_backward(job)) == 3 * (stages - 1)
    h1 = zero_bubble(job, 0.5, range(stages, 0, -1))
    # (p - 1)(F + B - W), with the memory of 1F1B.
    assert bubble(job, h1) == stages - 1
    assert most_held(h1) == [stages] * stages
    h2 = zero_bubble(job, 0.5, twice(stages))
    assert bubble(job, h2) == 0
    assert most_held(h2) == [2 * stages - 1] * stages


def test_transfers_by_the_cpu_and_longer_warm_up_hide_a_slow_link() -> None:
    job = pipeline(4, 16, [0.0, 0.0, 2.0])
    blocking, by_cpu = (zero_bubble(job, 0.5, twice(4), blocking=one) for one in (True, False))
    found = [bubble(job, one) for one in (one_forward_one_backward(job), blocking, by_cpu, rescheduled(job, 0.5))]
    assert found[3] < found[2] < found[1]
    assert found[2] < found[0]


def test_merged_microbatches_trade_lags_for_bubble() -> None:
    few = merged_microbatches(pipeline(4, 8), 2)
    assert few.microbatches == 4
    # Without lags the bubble is (p - 1) · (F + B), and each is twice as long.
    assert spans(few, one_forward_one_backward(few))[0] - 24 == 18


def test_slow_ranks_get_fewer_microbatches() -> None:
    assert redealt_counts(np.array([1.0, 1.0, 2.0]), 10, 1).tolist() == [12, 12, 6]


def test_the_last_rank_saves_nothing_by_coming_late_each_time() -> None:
    always = np.array([[1.0] * 4, [1.0] * 4, [2.0] * 4])
    in_turn = np.where(np.arange(3)[:, None] == np.arange(3)[None], 2.0, 1.0)
    assert deferred_last(always)[1] == deferred_last(in_turn)[1] == 1.0
    assert deferred_last(always)[0] == pytest.approx(2.0, abs=0.3)
    assert deferred_last(in_turn)[0] < 1.7


def test_every_remedy_can_be_asked_for_by_name(tmp_path: Path) -> None:
    path = written(tmp_path, pipeline_job(dp=2, pp=4, microbatches=8, steps=(0, 1)))
    names = ("zb-h1", "zb-2p", "zb-cpu", "reschedule", "larger-microbatches", "redealt-microbatches")
    found = kair.open(path).whatif(remedy=(*names, "partial-collectives")).remedies
    assert [one.remedy.replace("_", "-") for one in found] == [*names, "partial-collectives"]
    # Of 3 s a microbatch and 0.25 s a transfer: 1F1B's bubble of 9 s becomes 3 s, and none; nobody is slow.
    saved = {one.remedy: one.saved_us / 1e6 for one in found}
    assert saved["zb_h1"] == pytest.approx(6, abs=2)
    assert saved["zb_2p"] == pytest.approx(9, abs=3)
    assert saved["zb_cpu"] >= saved["zb_2p"]
    assert saved["partial_collectives"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(("names", "message"), [(("zb",), "zb is no remedy"), (("zb-h1",), "no pipeline to schedule")])
def test_what_cannot_be_priced_is_refused_in_one_line(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    path = written(tmp_path, pipeline_job(dp=2, pp=1))
    with pytest.raises(UsageError, match=message):
        kair.open(path).whatif(remedy=names)
