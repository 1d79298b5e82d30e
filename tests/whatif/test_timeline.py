"""The timelines for Perfetto."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.pipeline_builder import Cost, costs, pipeline_job, recorded_step, written

from kair_engine.errors import UnwritableError, UsageError
from kair_engine.export.writing import write_timelines
from kair_engine.recording.opening import open_trace
from kair_engine.whatif.analysis import model_of


def slow_last_stage(operation: str, step: int, dp: int, stage: int, microbatch: int) -> float:
    return costs(operation, step, dp, stage, microbatch) * (2.0 if stage == 1 and operation in {"F", "B"} else 1.0)


def events(
    tmp_path: Path, *, dp: int, pp: int, steps: Sequence[int] = (0,), cost: Cost = costs
) -> list[dict[str, Any]]:
    rows = pipeline_job(dp=dp, pp=pp, steps=steps, cost=cost)
    trace = open_trace(written(tmp_path, rows), cache=tmp_path / "cache")
    write_timelines(model_of(trace), tmp_path / "timeline.json")
    return list(json.loads((tmp_path / "timeline.json").read_text())["traceEvents"])


def test_both_timelines_hold_every_operation_on_named_lanes(tmp_path: Path) -> None:
    rows = pipeline_job(dp=2, pp=2)
    found = events(tmp_path, dp=2, pp=2)
    lanes = {(one["pid"], one["tid"]): one["args"]["name"] for one in found if one["name"] == "thread_name"}
    drawn = [one for one in found if one["ph"] == "X" and lanes[one["pid"], one["tid"]] != "critical path"]
    assert len(drawn) == 2 * len(rows)
    processes = [one["args"]["name"] for one in found if one["name"] == "process_name"]
    assert processes[0] == "recorded: rank 0 (dp 0, stage 0)"
    assert processes[4] == "ideal: rank 0 (dp 0, stage 0)"


def test_the_critical_path_is_as_long_as_the_step_and_without_gaps(tmp_path: Path) -> None:
    found = events(tmp_path, dp=2, pp=2, cost=slow_last_stage)
    lanes = {(one["pid"], one["tid"]): one["args"]["name"] for one in found if one["name"] == "thread_name"}
    critical = [one for one in found if one["ph"] == "X" and lanes[one["pid"], one["tid"]] == "critical path"]
    recorded = sorted((one["ts"], one["ts"] + one["dur"]) for one in critical if one["pid"] <= 4)
    assert recorded[0][0] == 0
    reached = 0.0
    for begin, end in recorded:
        assert begin == pytest.approx(reached, abs=0.01)
        reached = end
    assert reached == pytest.approx(recorded_step(pipeline_job(dp=2, pp=2, cost=slow_last_stage)) * 1e6)
    # The slow stage computes without a break; the other one is on the path where the step begins and ends.
    computing = sum(one["dur"] for one in critical if one["pid"] in {2, 4} and one["name"].endswith("compute"))
    assert computing > 0.7 * reached


def test_steps_follow_one_another(tmp_path: Path) -> None:
    found = [one for one in events(tmp_path, dp=1, pp=1, steps=(7, 8)) if one["ph"] == "X"]
    first = max(one["ts"] + one["dur"] for one in found if one["args"]["step"] == 7 and one["pid"] == 1)
    assert min(one["ts"] for one in found if one["args"]["step"] == 8 and one["pid"] == 1) == pytest.approx(first)


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    trace = open_trace(written(tmp_path, pipeline_job()), cache=tmp_path / "cache")
    with pytest.raises(UsageError, match="cannot write"):
        write_timelines(model_of(trace), tmp_path / "missing" / "timeline.json")
    if Path("/dev/full").exists():  # no room is no wrong usage
        with pytest.raises(UnwritableError, match="No space left on device"):
            write_timelines(model_of(trace), Path("/dev/full"))


def test_a_name_that_says_compressed_is_compressed(tmp_path: Path) -> None:
    model = model_of(open_trace(written(tmp_path, pipeline_job()), cache=tmp_path / "cache"))
    plain, packed = tmp_path / "timeline.json", tmp_path / "timeline.json.gz"
    write_timelines(model, plain)
    write_timelines(model, packed)
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
