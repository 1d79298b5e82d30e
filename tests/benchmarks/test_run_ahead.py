"""Simulated jobs whose hosts run ahead of their devices: the launch queue, and what a recording of them holds."""

from __future__ import annotations

import gzip
import hashlib
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import ahead_report
import numpy as np
import pytest
import report
from ahead_faults import DeviceStalls, HostBoundBeyond, HostBoundHidden, HostStalls, SlowInputBeyond, SlowInputHidden
from compute_faults import SlowGpu
from fault_model import Fault, Truth
from job_folder import truth_of, write_ahead_folder
from launch_queue import launches_of, nominal_period
from layouts import AHEAD, STANDARD, JobLayout
from programs import program_of
from run_ahead import ABSORBED, Ahead, AheadRecording, ahead_of, ahead_with
from scenarios import scenarios
from scoring import Answer, Claim, score
from simulator import JobSpec, simulate, simulate_ahead
from trials import Batch, Trial, run_batch

from kair_engine.recording.opening import open_trace

DP4 = JobLayout("dp", 4, reads_loss=0)
EVERY_THIRD = JobLayout("dp", 4, reads_loss=3)
PIPELINE = JobLayout("3d", dp=2, pp=2, tp=2, microbatches=3, reads_loss=0)
GRAPHED = JobLayout("dp", 4, host_share=0.0, graphed=True, reads_loss=0)
SHAPES = {"dp": (DP4, 60), "every third": (EVERY_THIRD, 60), "3d": (PIPELINE, 90), "graph": (GRAPHED, 3)}


def simulated(layout: JobLayout, queue: int, *faults: Fault, steps: int = 4) -> AheadRecording:
    spec = JobSpec(layout, steps, 1, faults, ahead=ahead_with(layout, queue))
    return simulate_ahead([spec])[0]


def cost(layout: JobLayout, queue: int, fault: Fault) -> float:
    """Of the period."""
    faulty, healthy = simulated(layout, queue, fault), simulated(layout, queue)
    return 1 - healthy.period_ns / faulty.period_ns


def launched(recording: AheadRecording, stage: int = 0, rank: int = 0) -> list[tuple[int, int, int]]:
    """(begin of the launch, its return, end of what it launched) of all launches of a rank in their order."""
    times = recording.simulated.stages[stage]
    every = recording.layout.reads_loss
    return [
        (
            int(times.launch_begin[step, one.slots[0], rank]),
            int(times.launch_end[step, one.slots[0], rank]),
            int(times.end[step, list(one.slots), rank].max()),
        )
        for step in range(len(times.begin))
        for one in launches_of(recording.simulated.program)[stage]
        if not (every and (step + 1) % every and one.number == len(times.begin[0]) - 1)
    ]


def traces(folder: Path) -> list[list[dict[str, Any]]]:
    """The events of each rank."""
    return [json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] for path in sorted(folder.iterdir())]


def of(events: list[dict[str, Any]], *categories: str) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == "X" and event["cat"] in categories]


def correlations(events: list[dict[str, Any]]) -> set[int]:
    return {event["args"]["correlation"] for event in events}


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("dp4", "6ca88f4ddf821c75"),
        ("3d64", "af19b1cf58ad184a"),
    ],
)
def test_jobs_that_read_the_loss_in_every_step_are_what_they_were(layout: str, expected: str) -> None:
    (recording,) = simulate([JobSpec(STANDARD[layout], 2, 5, (SlowGpu(3, 1.1),))])
    digest = hashlib.sha256()
    for stage in recording.stages:
        for times in (stage.begin, stage.end, stage.launch_begin, stage.launch_end):
            digest.update(np.ascontiguousarray(times).tobytes())
    digest.update(np.ascontiguousarray(recording.step_end).tobytes())
    assert digest.hexdigest()[:16] == expected


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_a_launch_returns_once_the_kernel_a_queue_before_it_is_over(shape: str) -> None:
    layout, queue = SHAPES[shape]
    for stage in range(layout.pp):
        calls = launched(simulated(layout, queue), stage)
        waited = [
            (returned - over, returned - begin)
            for (begin, returned, _), (_, _, over) in zip(calls[queue:], calls[:-queue], strict=True)
        ]
        assert min(apart for apart, _ in waited) > 0
        blocked = [apart for apart, taken in waited if taken > 200_000]
        assert len(blocked) > len(waited) // 8
        assert max(blocked) < 20_000


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_no_more_launches_than_the_queue_holds_are_unfinished(shape: str) -> None:
    layout, queue = SHAPES[shape]
    calls = launched(simulated(layout, queue))
    returned, over = np.array([call[1] for call in calls]), np.array([call[2] for call in calls])
    unfinished = [(at + 1) - int(np.count_nonzero(over[: at + 1] <= moment)) for at, moment in enumerate(returned)]
    assert max(unfinished) <= queue
    if layout.reads_loss == 0:
        settled = unfinished[len(unfinished) // 2 :]
        assert np.median(settled) > 0.9 * queue - 2


def test_the_host_launches_in_order_and_marks_of_steps_bracket_its_launches() -> None:
    recording = simulated(DP4, 60)
    calls = launched(recording)
    assert all(one[1] < other[0] for one, other in pairwise(calls))
    whole, times = recording.simulated, recording.simulated.stages[0]
    assert (times.launch_begin[:, 0, 0] > whole.step_begin[:, 0]).all()
    assert (times.launch_end[:, -1, 0] < whole.step_end[:, 0]).all()
    assert (whole.step_begin[1:] > whole.step_end[:-1]).all()


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_a_stream_runs_one_operation_at_a_time_across_steps(shape: str) -> None:
    recording = simulated(*SHAPES[shape])
    for operations, times in zip(recording.simulated.program.stages, recording.simulated.stages, strict=True):
        for stream in {operation.stream for operation in operations}:
            slots = [slot for slot, one in enumerate(operations) if one.stream == stream and one.kind != "memory"]
            begin, end = (of_all[:, slots].reshape(-1, of_all.shape[2]) for of_all in (times.begin, times.end))
            assert (begin[1:] >= end[:-1]).all()


def test_a_queue_that_is_never_full_blocks_nobody_and_costs_nothing() -> None:
    endless, usual = (
        simulate_ahead([JobSpec(DP4, 4, 1, ahead=Ahead(queue, warm_up=12))])[0] for queue in (100_000, 60)
    )
    assert max(returned - begin for begin, returned, _ in launched(endless)) < 20_000
    assert endless.period_ns == pytest.approx(usual.period_ns, rel=1e-3)


def test_hosts_that_are_slower_than_their_devices_set_the_period() -> None:
    slow = STANDARD["dp8 slow hosts"]
    nominal = nominal_period(program_of(slow))
    assert nominal.period_ns == pytest.approx(max(nominal.host_ns), rel=1e-3)
    assert simulated(slow, 200).period_ns == pytest.approx(nominal.period_ns, rel=0.02)
    quick = nominal_period(program_of(STANDARD["dp8 quick hosts"]))
    assert max(quick.host_ns) < 0.15 * quick.period_ns


@pytest.mark.slow
@pytest.mark.parametrize("fault", [SlowInputHidden(2, 0.7), HostBoundHidden(2, 0.7), HostStalls(2, 3, 0.3)], ids=repr)
@pytest.mark.parametrize("queue", [60, 300])
def test_the_queue_hides_what_the_host_has_time_for(fault: Fault, queue: int) -> None:
    assert abs(cost(DP4, queue, fault)) < ABSORBED


@pytest.mark.parametrize("fault", [SlowInputBeyond(2, 0.2), HostBoundBeyond(2, 0.2)], ids=repr)
def test_what_the_host_has_no_time_for_costs_what_is_beyond_the_period(fault: Fault) -> None:
    assert cost(DP4, 100, fault) == pytest.approx(0.2 / 1.2, abs=0.02)


@pytest.mark.slow
def test_stalls_of_the_device_cost_as_much_in_a_short_recording_as_in_a_long_one() -> None:
    fault = DeviceStalls(1, 3, 0.4)
    assert cost(DP4, 100, fault) == pytest.approx(0.12 / 1.12, abs=0.02)
    for first in range(8):
        recording = simulated(DP4, 100 + 48 * first, fault, steps=10)
        assert sum(map(bool, recording.truths[0].by_step)) == 3


@pytest.mark.slow
def test_a_pipeline_that_synchronises_or_not_loses_as_much_by_a_slow_device() -> None:
    fault = SlowGpu(5, 1.3)
    spec = JobSpec(replace(PIPELINE, reads_loss=1), 20, 1, (fault,))
    slow, healthy = simulate([spec, spec.healthy()])
    assert cost(PIPELINE, 90, fault) == pytest.approx(1 - healthy.step_time_ns / slow.step_time_ns, abs=0.01)


def test_jobs_of_a_batch_are_what_they_are_alone_and_must_share_their_queue() -> None:
    spec = JobSpec(DP4, 2, 3, (SlowGpu(1, 1.2),), ahead=Ahead(60, 12))
    together = simulate_ahead([spec, spec.healthy()])
    alone = simulate_ahead([spec])[0]
    assert np.array_equal(alone.simulated.stages[0].end, together[0].simulated.stages[0].end)
    assert together[0].period_ns > together[1].period_ns
    with pytest.raises(ValueError, match="one queue"):
        simulate_ahead([spec, replace(spec, ahead=Ahead(61, 12))])
    with pytest.raises(ValueError, match="run ahead"):
        simulate([spec])
    with pytest.raises(ValueError, match="how far"):
        simulate_ahead([replace(spec, ahead=None)])


@pytest.mark.parametrize("layout", AHEAD)
def test_recordings_begin_once_three_queues_were_launched(layout: str) -> None:
    for seed in range(20):
        ahead = ahead_of(STANDARD[layout], seed)
        per_step = min(map(len, launches_of(program_of(STANDARD[layout]))))
        assert ahead.warm_up >= max(10, 3 * ahead.queue / per_step)
        assert STANDARD[layout].graphed or 40 <= ahead.queue <= 1024


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[AheadRecording, list[list[dict[str, Any]]]]:
    folder = tmp_path_factory.mktemp("ahead")
    spec = JobSpec(DP4, 3, 1, (SlowGpu(2, 1.3),), ahead=ahead_with(DP4, 120))
    write_ahead_folder(spec, folder)
    return simulate_ahead([spec])[0], traces(folder / "input")


def test_kernels_that_were_launched_before_the_window_have_no_launch(
    written: tuple[AheadRecording, list[list[dict[str, Any]]]],
) -> None:
    recording, ranks = written
    for events in ranks:
        kernels, launches = of(events, "kernel", "gpu_memcpy"), of(events, "cuda_runtime")
        before = [kernel for kernel in kernels if kernel["args"]["correlation"] not in correlations(launches)]
        opened = min(float(event["ts"]) for event in of(events, "user_annotation"))
        # All that was queued when the window opened, and at most one running kernel of each stream is left out.
        assert recording.ahead.queue - 3 <= len(before) <= recording.ahead.queue
        assert min(float(kernel["ts"]) for kernel in before) > opened - 20
        assert not any({"External id", "Seq"} & set(kernel["args"]) for kernel in before)
        known = len(kernels) - len(before)
        assert known == 3 * 48 == len(of(events, "cuda_runtime")) - 1
        assert len([event for event in events if event["ph"] == "f"]) == known


def test_the_host_s_marks_are_of_recorded_steps_and_the_device_s_of_their_kernels(
    written: tuple[AheadRecording, list[list[dict[str, Any]]]],
) -> None:
    _, ranks = written
    for events in ranks:
        marks = [event["name"] for event in of(events, "user_annotation") if "ProfilerStep" in event["name"]]
        assert len(marks) == 3
        on_device = [event for event in of(events, "gpu_user_annotation") if event["tid"] == 7]
        assert [event["name"] for event in on_device] == marks
        of_step = {event["name"]: float(event["ts"]) for event in of(events, "user_annotation")}
        assert all(float(event["ts"]) > of_step[event["name"]] for event in on_device)


def test_the_last_call_waits_for_the_device_outside_every_step(
    written: tuple[AheadRecording, list[list[dict[str, Any]]]],
) -> None:
    _, ranks = written
    for events in ranks:
        (wait,) = [event for event in of(events, "cuda_runtime") if "Synchronize" in event["name"]]
        assert wait["name"] == "cudaDeviceSynchronize"
        ends = {
            category: max(float(event["ts"]) + float(event["dur"]) for event in of(events, category))
            for category in ("kernel", "user_annotation")
        }
        assert float(wait["ts"]) > ends["user_annotation"]
        assert 0 < float(wait["ts"]) + float(wait["dur"]) - ends["kernel"] < 20


def test_a_loss_that_is_read_now_and_then_is_copied_and_waited_for_in_those_steps_alone(tmp_path: Path) -> None:
    spec = JobSpec(EVERY_THIRD, 6, 1, ahead=ahead_with(EVERY_THIRD, 60))
    write_ahead_folder(spec, tmp_path)
    for events in traces(tmp_path / "input"):
        names = [event["name"] for event in of(events, "cuda_runtime", "cpu_op", "gpu_memcpy")]
        reads = ("cudaStreamSynchronize", "aten::item", "cudaMemcpyAsync", "Memcpy DtoH (Device -> Pageable)")
        assert [names.count(name) for name in reads] == [2, 2, 2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("layout", [name for name in AHEAD if "64" not in name])
def test_the_engine_opens_every_kind_of_job(layout: str, tmp_path: Path) -> None:
    of_layout = next(one for one in scenarios() if one.layout == layout)
    truth = write_ahead_folder(replace(of_layout.spec(1), steps=2), tmp_path)
    trace = open_trace(tmp_path / "input", cache=tmp_path / "cache", workers=1)
    assert trace.job.ranks == tuple(range(8))
    assert truth["verdict"] == "no_straggler"


def test_the_truth_of_a_hidden_fault_is_that_there_is_no_straggler() -> None:
    healthy = simulated(DP4, 100)
    hidden = truth_of(simulated(DP4, 100, SlowInputHidden(2, 0.6)), healthy)
    assert (hidden["verdict"], hidden["absorbed"]) == ("no_straggler", True)
    slow = truth_of(simulated(DP4, 100, SlowGpu(2, 1.3)), healthy)
    assert (slow["verdict"], slow["absorbed"]) == ("straggler", False)


def trial(cost_us: float, answer: Answer, truth: Truth | None) -> Trial:
    truths = (truth,) if truth is not None else ()
    return Trial("key", 0, {"robust": score(truths, answer)}, 1000.0, cost_us, None, None, "said")


def test_the_report_counts_faults_by_what_they_cost() -> None:
    guilty = Truth("slow_input", "input", (3,))
    right = Answer("straggler", 3, (Claim("input", frozenset({3}), None, 110.0),))
    dear = Answer("straggler", 3, (Claim("input", frozenset({3}), None, 200.0),))
    nothing = Answer("no_straggler", 0, ())
    of_layout = {one.name: one for one in scenarios() if one.layout == "dp8 ahead"}
    trials = [trial(100, right, guilty), trial(100, dear, guilty), trial(60, nothing, guilty), trial(20, right, guilty)]
    hidden = [trial(0, right, None), trial(0, nothing, None)]
    results = [
        (of_layout["ahead: healthy"], [trial(0, nothing, None), trial(0, right, None)]),
        (of_layout["ahead: slow input, beyond the period"], trials),
        (of_layout["ahead: slow input, hidden"], hidden),
    ]
    by_layout, by_fault = ahead_report.ahead_tables(results)
    row, of_all = by_layout.rows
    assert of_all == {**row, "layout": "all"}
    cells = {name: str(cell) for name, cell in row.items()}
    assert (cells["healthy"], cells["any finding"]) == ("2", "50%")
    assert (cells["≥ 5 %"], cells["rank"], cells["right"].split()[0], cells["first"]) == ("3", "67%", "67%", "67%")
    assert (cells["≥ 10 %"], cells["right, ≥ 10 %"], cells["price"]) == ("2", "100%", "50%")
    assert (cells["between"], cells["absorbed"], cells["accused"]) == ("1", "2", "50%")
    assert [line["fault"] for line in by_fault.rows] == ["slow input, beyond the period", "slow input, hidden"]
    assert report.tables(results) == report.costs(results) == []
    assert len(report.misses(results)) == 3
    assert set(report.pages([by_layout, by_fault], "12 jobs.")) == {"ahead.md"}


@pytest.mark.slow
def test_a_trial_asks_of_the_traces_and_prices_by_the_device() -> None:
    scenario = next(one for one in scenarios() if (one.layout, one.name) == ("dp8 ahead", "ahead: slow GPU ×1.3"))
    (found,) = run_batch(Batch(scenario.key, (1001,), frozenset(), frozenset()))
    faulty, healthy = simulate_ahead([scenario.spec(1001), scenario.spec(1001).healthy()])
    assert found.step_us == faulty.period_ns / 1e3
    assert found.cost_us == pytest.approx((faulty.period_ns - healthy.period_ns) / 1e3)
    assert found.scores["robust"].first
