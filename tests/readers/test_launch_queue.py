"""How deep the launch queue is, which launches waited for a place in it, and what was launched before the recording."""

from pathlib import Path

import numpy as np
import pytest
from support.kineto_builder import kernel, launch, op, step, trace, write
from support.run_ahead import AheadJob, write_ahead_job

from kair_engine.readers.fragment_writer import RankRecording, Rows, write_recording
from kair_engine.readers.kineto.reader import read_kineto
from kair_engine.readers.launch_queue import Launched, LongCalls, usual_ns, waits_for_place
from kair_engine.readers.step_marks import Steps
from kair_engine.recording.opening import open_trace
from kair_engine.trace.loading import load_step
from kair_engine.trace.model import LaunchQueue

NOTHING = np.zeros(0, dtype=np.int64)


def saturated(depth: int, calls: int, *, streams: int = 1) -> tuple[Launched, LongCalls]:
    """Kernels of 100 µs on some streams by turns; each launch waits for the one `depth` before on its stream."""
    over = np.zeros((calls, streams), dtype=np.int64)
    begin, duration = [], []
    host = np.int64(0)
    for call in range(calls):
        for stream in range(streams):
            back = max(host + 5_000, over[call - depth, stream] + 1_000 if call >= depth else 0)
            begin.append(host)
            duration.append(back - host)
            host = back
            over[call, stream] = max(over[call - 1, stream] if call else 0, back + 3_000) + 100_000 + 7_000 * stream
    stream_of = np.tile(np.arange(streams), calls)
    lasted = np.array(duration)
    long = np.flatnonzero(lasted > 5_000)
    return (
        Launched(over.ravel(), stream_of, NOTHING, NOTHING),
        LongCalls(long, np.array(begin)[long], lasted[long], np.full(len(long), 5_000)),
    )


@pytest.mark.parametrize(("depth", "streams"), [(3, 1), (20, 1), (64, 1), (16, 2)])
def test_the_depth_of_a_full_queue_is_exact(depth: int, streams: int) -> None:
    found = waits_for_place(*saturated(depth, 4 * depth + 20, streams=streams))
    assert found is not None
    queue, waited = found
    assert (queue.depth, queue.per_stream or streams == 1) == (depth, True)
    assert (waited > 0).mean() > 0.9


def test_a_queue_filled_before_the_recording_is_told_by_what_was_launched_then() -> None:
    """Of the recorded launches the first ones wait for kernels that have no launch."""
    launched, long = saturated(40, 70)
    late = 40
    over, kept = launched.over_ns, long.place >= late
    began = int(long.begin_ns[kept][0])
    earlier = np.sort(over[:late][over[:late] > began])
    found = waits_for_place(
        Launched(over[late:], launched.stream[late:], earlier, np.zeros(len(earlier), dtype=np.int64)),
        LongCalls(long.place[kept] - late, long.begin_ns[kept], long.duration_ns[kept], long.usual_ns[kept]),
    )
    assert found is not None
    assert found[0].depth == 40


def test_a_place_behind_a_late_collective_is_not_free_though_kernels_after_it_are_over() -> None:
    """Every fifth launch is a collective on a stream of its own, and one of these waits 60 ms for another rank."""
    depth, late = 20, 60
    over: list[int] = []
    begin, duration, free = [], [], [0, 0]
    for call in range(140):
        host = begin[-1] + duration[-1] if begin else 0
        back = max(host + 5_000, over[call - depth] + 1_000 if call >= depth else 0)
        begin.append(host)
        duration.append(back - host)
        on = int(call % 5 == 0)
        free[on] = max(free[on], back + 3_000) + 100_000 + (60_000_000 if call == late else 0)
        over.append(free[on])
    lasted = np.array(duration)
    long = np.flatnonzero(lasted > 5_000)
    stream = (np.arange(140) % 5 == 0).astype(np.int64)
    calls = LongCalls(long, np.array(begin)[long], lasted[long], np.full(len(long), 5_000))
    found = waits_for_place(Launched(np.array(over), stream, NOTHING, NOTHING), calls)
    assert found is not None
    queue, waited = found
    assert not queue.per_stream
    longest = int(lasted[long].argmax())
    assert waited[longest] > 50_000_000


def test_calls_that_last_long_now_and_then_are_no_full_queue() -> None:
    """Each at another fill of the queue, as where a host loses its core."""
    over = np.arange(1, 201, dtype=np.int64) * 100_000
    place = np.array([10, 40, 80, 120, 160, 190])
    begin = np.array([0, 900_000, 2_500_000, 6_100_000, 9_000_000, 18_300_000])
    long = LongCalls(place, begin, np.full(6, 150_000), np.full(6, 5_000))
    assert waits_for_place(Launched(over, np.zeros(200, dtype=np.int64), NOTHING, NOTHING), long) is None


def test_the_usual_time_of_what_always_waits_is_that_of_the_commonest_call() -> None:
    name = np.array([0] * 9 + [1] * 3)
    assert usual_ns(name, np.array([5_000] * 9 + [900_000] * 3)).tolist() == [5_000, 15_000, 5_000]


def test_a_waiting_launch_is_two_operations(tmp_path: Path) -> None:
    """The wait is a synchronisation; the launch itself takes what launches take."""
    job = open_trace(write_ahead_job(tmp_path / "job", AheadJob(queue=9)), cache=tmp_path / "cache").job
    assert job.launch_queue == dict.fromkeys(range(4), LaunchQueue(9, per_stream=False))
    trace_of_job = open_trace(tmp_path / "job", cache=tmp_path / "cache")
    ops = load_step(trace_of_job, trace_of_job.steps[2])
    waits = np.flatnonzero(ops.queue_full)
    assert len(waits)
    calls = [row for row in range(len(ops)) if ops.operator(row) == "cudaLaunchKernel"]
    assert max(ops.duration_ns[calls].tolist()) <= 25_000
    assert not ops.queue_full[calls].any()


def test_what_was_launched_before_the_recording_is_of_no_step(tmp_path: Path) -> None:
    """Two kernels run into it; their launches have numbers before the first that was recorded."""
    events = [step(3, 1000, 400), step(4, 1400, 400)]
    for at, begin in enumerate((1010, 1410)):
        events += [op("aten::add", begin, 20), launch(begin + 2, 5, 10 + at), kernel("add", begin + 90, 50, 10 + at)]
    events += [kernel("add", 1005, 40, 8), kernel("add", 1050, 40, 9)]
    info = read_kineto(write(tmp_path / "a.json", trace(events)), tmp_path / "out.parquet")
    assert info.step_times.operations == (3, 3)
    assert [warning.code for warning in info.warnings] == ["launched_before"]
    assert "2 operations" in info.warnings[0].message


def test_recordings_of_all_formats_tell_of_a_full_queue(tmp_path: Path) -> None:
    """120 launches of 5 µs, kernels of 100, at most 20 under way: the later ones wait."""
    rows, over, host = Rows(), list[int](), 0
    for number in range(120):
        back = max(host + 5_000, over[number - 20] + 1_000 if number >= 20 else 0)
        rows.add("thread 1", "cudaLaunchKernel", "host", host, back - host, correlation=number + 1)
        over.append(max(over[-1] if over else 0, back + 3_000) + 100_000)
        rows.add("stream 7", "gemm", "compute", over[-1] - 100_000, 100_000, correlation=number + 1, moment=host)
        host = back
    half = np.array([0, host // 2, host + 1])
    steps = Steps(np.array([0, 1]), half[:-1], half[1:] - half[:-1])
    made = RankRecording(0, rows, steps, "thread 1")
    options = {"form": "nsys", "rank_known": True, "has_device": True, "mark": ""}
    info = write_recording(tmp_path / "job.sqlite", tmp_path / "out", [made], **options)
    assert {rank: queue.depth for rank, queue in info.launch_queue.items()} == {0: 20}
