"""The timelines for Perfetto of recordings without operation types."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from support.answers import recorded
from support.places import MEGATRON, SAMPLES
from support.prices import price_steps
from support.run_ahead import AheadJob, write_ahead_job
from support.trace_builder import trace

from kair_engine.export.writing import write_timelines
from kair_engine.recording.opening import open_trace
from kair_engine.results.whatif import Fix
from kair_engine.trace.model import Trace
from kair_engine.whatif.analysis import model_of

ROUNDED_US = 0.01
"""Times are written in whole nanoseconds; sums of some may be off by a few."""
Event = dict[str, Any]


class Timelines:
    """What a file holds: the slices of the recorded and of the ideal timeline."""

    def __init__(self, made: Trace, path: Path) -> None:
        write_timelines(model_of(made), path)
        self.events: list[Event] = json.loads(path.read_text())["traceEvents"]
        self.processes = {one["pid"]: one["args"]["name"] for one in self.events if one["name"] == "process_name"}
        self._rows = {
            (one["pid"], one["tid"]): one["args"]["name"] for one in self.events if one["name"] == "thread_name"
        }

    def slices(self, title: str, *, critical_path: bool) -> list[Event]:
        """Those of the operations, or those of the critical path."""
        return [
            one
            for one in self.events
            if one["ph"] == "X"
            and self.processes[one["pid"]].startswith(title)
            and (self._rows[one["pid"], one["tid"]] == "critical path") == critical_path
        ]

    def path(self, title: str) -> dict[int, list[Event]]:
        """step → its critical path."""
        found: dict[int, list[Event]] = defaultdict(list)
        for one in self.slices(title, critical_path=True):
            found[one["args"]["step"]].append(one)
        return found


def assert_sound(made: Trace, found: Timelines) -> None:
    """What holds of any recording."""
    recorded = found.slices("recorded", critical_path=False)
    assert len(recorded) == len(found.slices("ideal", critical_path=False)) == made.scan().collect().height
    assert all(one["dur"] >= 0 for one in found.events if one["ph"] == "X")
    for title in ("recorded", "ideal"):
        paths = found.path(title)
        assert set(paths) == set(made.steps)
        for path in paths.values():
            for before, after in pairwise(path):
                assert after["ts"] == pytest.approx(before["ts"] + before["dur"], abs=ROUNDED_US)
        # Arrows lead from slice to slice.
    slices = [one for one in found.events if one["ph"] == "X"]
    for kind, length in (("s", 0), ("f", 1)):
        # They arrive at a slice's end, so that they lead on in time.
        over = [round(one["ts"] + length * max(one["dur"] - 1e-3, 0.0), 3) for one in slices]
        places = {(one["pid"], one["tid"], at) for one, at in zip(slices, over, strict=True)}
        assert all((one["pid"], one["tid"], one["ts"]) in places for one in found.events if one["ph"] == kind)
    ends = [one for one in found.events if one["ph"] in {"s", "f"}]
    assert sorted(one["id"] for one in ends if one["ph"] == "s") == sorted(
        one["id"] for one in ends if one["ph"] == "f"
    )


FOUR_RANKS = """
    step 0: 0+65
    0-3 main | launch 0+1 ^1 | launch 2+1 ^2 | cudaDeviceSynchronize 4+61 :sync
    0,1 gpu7 | gemm 5+20 ^1
    2 gpu7   | gemm 5+40 ^1
    3 gpu7   | gemm 5+50 ^1
    0,1 gpu20 | allreduce@dp#1 25+40 ^2
    2 gpu20 | allreduce@dp#1 45+20 ^2
    3 gpu20 | allreduce@dp#1 55+10 ^2
"""


def test_the_critical_path_leads_over_the_slow_rank(tmp_path: Path) -> None:
    made = trace(tmp_path, FOUR_RANKS)
    found = Timelines(made, tmp_path / "timeline.json")
    assert_sound(made, found)
    assert list(found.processes.values())[3:5] == ["recorded: rank 3", "ideal: rank 0"]
    path = found.path("recorded")[0]
    assert (path[0]["ts"], path[-1]["ts"] + path[-1]["dur"]) == (0, 65)
    # From its launch, the delay before it included.
    assert ("gemm", 4, 1, 54) in [(one["name"], one["pid"], one["ts"], one["dur"]) for one in path]
    marked = {(one["pid"], one["name"]) for one in found.events if one.get("cname")}
    assert (4, "gemm") in marked
    assert (1, "gemm") not in marked


def test_in_the_ideal_timeline_all_are_as_fast_as_their_peers(tmp_path: Path) -> None:
    made = trace(tmp_path, FOUR_RANKS)
    found = Timelines(made, tmp_path / "timeline.json")
    ideal = found.slices("ideal", critical_path=False)
    kernels = [(one["ts"], one["dur"]) for one in ideal if one["name"] == "gemm"]
    assert kernels == [(5, 20)] * 4
    assert [(one["ts"], one["dur"]) for one in ideal if one["name"] == "allreduce"] == [(25, 10)] * 4
    assert {one["ts"] + one["dur"] for one in ideal if one["name"] == "cudaDeviceSynchronize"} == {35}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["slow_operator", "pipeline_slow_operator", "slow_host"])
def test_the_recorded_timeline_is_the_recording(name: str, tmp_path: Path) -> None:
    made = recorded(SAMPLES / name)
    made = made.select(made.steps[:3])
    found = Timelines(made, tmp_path / "timeline.json")
    assert_sound(made, found)
    rows = made.scan().select("rank", "start_ns", "duration_ns", pl.col("name").cast(pl.String)).collect()
    ranks = dict(zip(sorted(made.job.ranks), sorted(found.processes)[: len(made.job.ranks)], strict=True))
    for rank, pid in ranks.items():
        drawn = sorted(
            (one["ts"], one["dur"]) for one in found.slices("recorded", critical_path=False) if one["pid"] == pid
        )
        own = rows.filter(pl.col("rank") == rank).sort("start_ns", "duration_ns")
        assert sorted(dur for _, dur in drawn) == pytest.approx(sorted((own["duration_ns"] / 1e3).to_list()), abs=2e-3)
    prices = price_steps(made, [Fix()])
    for at, step in enumerate(made.steps):
        path = found.path("recorded")[step]
        length = path[-1]["ts"] + path[-1]["dur"] - path[0]["ts"]
        assert length == pytest.approx(prices.measured_ns[at] / 1e3, rel=0.1)


def test_a_slow_operator_is_shorter_in_the_ideal_timeline(tmp_path: Path) -> None:
    made = recorded(SAMPLES / "slow_operator")
    found = Timelines(made.select(made.steps[:2]), tmp_path / "timeline.json")
    took = {}
    for title in ("recorded", "ideal"):
        calls = [one for one in found.slices(title, critical_path=False) if one["name"] == "kair_sample::mlp"]
        took[title] = sum(
            one["dur"] for one in calls if found.processes[one["pid"]].split("(")[0].strip().endswith("rank 2")
        )
    assert took["ideal"] < 0.75 * took["recorded"]


def test_names_are_text_and_nothing_else(tmp_path: Path) -> None:
    made = trace(tmp_path, FOUR_RANKS.replace("gemm", 'x"}],"\\'))
    found = Timelines(made, tmp_path / "timeline.json")
    assert 'x"}],"\\' in {one["name"] for one in found.events}


@pytest.mark.slow
@pytest.mark.skipif(not MEGATRON.is_dir(), reason="the megatron traces are not beside the checkout")
def test_the_timelines_of_a_real_step(tmp_path: Path) -> None:
    made = recorded(MEGATRON)
    assert_sound(made, Timelines(made, tmp_path / "timeline.json"))


# Where the operations of a step lie with fixes made.


@pytest.mark.slow
@pytest.mark.parametrize(
    "job",
    [
        AheadJob(kernels=(50.0,) * 60, slow={1: 1.5}, queue=40),
        AheadJob(kernels=(5.0,) * 60, slow={2: 2.0}, queue=None),
        AheadJob(kernels=(60.0, 80.0) * 8, fetch={3: 900.0}),
    ],
    ids=["full queues", "hosts hold devices up", "one host that fetches"],
)
def test_a_step_that_comes_again_and_again_is_as_long_as_it_is_priced(job: AheadJob, tmp_path: Path) -> None:
    made = open_trace(write_ahead_job(tmp_path, job), cache=tmp_path / "cache")
    model = model_of(made.select(made.steps[2:3]))
    for fixes in ((), (Fix(ranks=(1,)),), (Fix(),)):
        moved = model.moved(fixes)
        ((priced,),) = model.replay([fixes]).times
        # Times of a recording are in whole nanoseconds.
        assert np.median(moved.length_ns) == pytest.approx(priced, abs=2)
        assert (moved.end_ns >= moved.start_ns).all()
        # On a stream nothing begins before what was launched before it is over.
        rows = np.flatnonzero(moved.ops.on_stream)
        same = np.diff(moved.ops.lane_key[rows]) == 0
        assert (moved.start_ns[rows][1:] - moved.end_ns[rows][:-1])[same].min() >= -2


def test_without_a_fix_every_operation_of_a_step_lies_where_it_was_recorded() -> None:
    made = recorded(SAMPLES / "slow_operator")
    moved = model_of(made.select([15])).moved(())
    assert np.abs(moved.start_ns - moved.ops.start_ns).max() < 1_000
    assert np.abs(moved.end_ns - moved.ops.end_ns).max() < 100_000
    assert np.abs(moved.length_ns - moved.ops.length_ns).max() < 1_000
