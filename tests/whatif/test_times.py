"""Step times under scenarios: steps replayed side by side end when they end by themselves."""

from pathlib import Path

import numpy as np
import pytest
from support.graph_builder import ends_of
from support.pipeline_builder import Cost, costs, pipeline_job, written

from kair_engine.recording.opening import open_trace
from kair_engine.whatif.pipeline import times as module
from kair_engine.whatif.pipeline.rows import all_but, everything, of_dp_rank, of_stage, read_pipeline
from kair_engine.whatif.pipeline.times import PipelineTimes, pipeline_times


def uneven(operation: str, step: int, dp: int, stage: int, microbatch: int) -> float:
    return costs(operation, step, dp, stage, microbatch) * (1 + 0.1 * (7 * step + 5 * dp + 3 * stage + microbatch) % 11)


def times_of(folder: Path, cost: Cost = uneven) -> PipelineTimes:
    """Steps 0 and 2 are alike, step 1 has fewer microbatches."""
    rows = pipeline_job(dp=3, pp=2, steps=(0, 2), cost=cost) + pipeline_job(
        dp=3, pp=2, steps=(1,), microbatches=3, cost=cost
    )
    of_steps = read_pipeline(open_trace(written(folder, rows), cache=folder / "cache"))
    return pipeline_times(of_steps)


def test_alike_steps_share_a_plan(tmp_path: Path) -> None:
    assert [of.steps.tolist() for of in times_of(tmp_path).alike] == [[0, 2], [1]]


@pytest.mark.parametrize("at_once", [1, 1 << 20])
def test_steps_side_by_side_end_as_in_one_graph_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(module, "AT_ONCE", at_once)
    times = times_of(tmp_path)
    rows = times.rows
    chosen = [everything, all_but(everything), of_stage(1), of_dp_rank(2)]
    durations = np.stack([np.where(choice(rows), times.own_ns, times.ideal_ns) for choice in chosen], axis=1)
    ends = ends_of(times.graph, durations)
    expected = [[ends[rows.step == step, at].max() for step in range(3)] for at in range(len(chosen))]
    assert times.steps_if(chosen) == pytest.approx(np.array(expected))
    assert times.ends(times.own_ns) == pytest.approx(ends[:, 0])
    assert times.steps_with(times.own_ns) == pytest.approx(np.array(expected[0]))
