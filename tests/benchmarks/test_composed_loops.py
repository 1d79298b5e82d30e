"""Jobs composed of recordings of single processes on a GPU, on recordings small enough to check by hand."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from on_gpu import loop_reading
from on_gpu.ask_loops import (
    innocent_of,
    is_priced,
    is_right,
    names_rank,
    page,
    peer_cost_us,
    read_kept,
    slower_of,
    write_kept,
)
from on_gpu.compose import jobs_of, read_seed, summary, write_job
from on_gpu.loop_drawing import Loop, draw_loop
from on_gpu.loop_program import GAP, HAND_OVER, LATENCY, Program
from on_gpu.loop_reading import program_of
from on_gpu.loop_replay import FREED, RELEASED, replay

Event = dict[str, Any]
HOST, THREAD, COMPUTE, COMMUNICATION = 500, 500, 7, 9
FIRST, TRANSFER, LAST = 100.0, 20.0, 50.0
"""What a step's three kernels last: two on the compute stream, and between them one that stands for a collective."""
CALL = 10.0
PERIOD = GAP + FIRST + HAND_OVER + TRANSFER + HAND_OVER + LAST
"""Of a step where all is launched already."""


class Recorder:
    """Writes what the profiler would write of the loop, in microseconds."""

    def __init__(self, *, first: float, pause: float, synced: bool) -> None:
        self.first, self.pause, self.synced = first, pause, synced
        self.events: list[Event] = []
        self.host = 1000.0
        self.ends: dict[int, float] = {}
        self.correlation = 40

    def document(self, steps: int = 2) -> Event:
        for step in range(steps):
            begin, kernels = self.host, len(self.events)
            self._step()
            self._range(f"ProfilerStep#{step}", begin, self.host)
            first = next(one["ts"] for one in self.events[kernels:] if one["cat"] == "kernel")
            self._range(f"ProfilerStep#{step}", first, self.ends[COMPUTE], category="gpu_user_annotation", tid=COMPUTE)
        over = max(self.ends.values())
        self._call("cudaDeviceSynchronize", max(over + 5.0 - self.host - 1.0, 30.0))
        return {"schemaVersion": 1, "baseTimeNanoseconds": 17, "traceEvents": self.events}

    def _step(self) -> None:
        """60 us of the host and its pause: three launches, and in a synchronised loop a wait for the last."""
        self.host += 5.0 + self.pause
        self._launch(COMPUTE, self.first, self.ends.get(COMPUTE, 0.0) + GAP)
        begin = self.host
        self.host += 10.0
        self._launch(COMMUNICATION, TRANSFER, self.ends[COMPUTE] + HAND_OVER, name="spin_kernel")
        self._range("nccl:all_reduce", begin, self.host)
        self._range("wait_all_reduce", self.host + 5.0, self.host + 7.0)
        self.host += 10.0
        self._launch(COMPUTE, LAST, self.ends[COMMUNICATION] + HAND_OVER)
        if self.synced:
            self._call("cudaStreamSynchronize", self.ends[COMPUTE] + RELEASED - self.host)
        self.host += 5.0

    def _launch(self, stream: int, duration: float, ready: float, name: str = "gemm") -> None:
        self._call("cudaLaunchKernel", CALL)
        begin = max(self.host + LATENCY, ready)
        self.ends[stream] = begin + duration
        args = {"correlation": self.correlation, "stream": stream, "device": 0, "External id": 1}
        self._add("kernel", name, begin, duration, 0, stream, args)
        place = {"id": self.correlation, "cat": "ac2g", "name": "ac2g"}
        self.events.append({"ph": "s", **place, "pid": HOST, "tid": THREAD, "ts": self.host - CALL})
        self.events.append({"ph": "f", **place, "pid": 0, "tid": stream, "ts": begin, "bp": "e"})

    def _call(self, name: str, duration: float) -> None:
        self.correlation += 1
        args = {"correlation": self.correlation, "External id": 1}
        self._add("cuda_runtime", name, self.host, duration, HOST, THREAD, args)
        self.host += duration

    def _range(self, name: str, begin: float, end: float, category: str = "user_annotation", tid: int = THREAD) -> None:
        self._add(category, name, begin, end - begin, HOST if tid == THREAD else 0, tid, {"External id": 2})

    def _add(self, category: str, name: str, begin: float, duration: float, pid: int, tid: int, args: Event) -> None:
        place = {"pid": pid, "tid": tid, "ts": begin, "dur": duration}
        self.events.append({"ph": "X", "cat": category, "name": name, **place, "args": args})


def recorded(*, first: float = FIRST, pause: float = 0.0, synced: bool = False) -> Event:
    return Recorder(first=first, pause=pause, synced=synced).document()


def program(*, first: float = FIRST, pause: float = 0.0, synced: bool = False) -> Program:
    return program_of(recorded(first=first, pause=pause, synced=synced))


def test_draws_are_the_same_everywhere() -> None:
    loop = draw_loop(18)
    assert (loop.model, loop.blocks, loop.width, loop.step_ms, loop.way) == ("convolution", 4, 128, 24.72, "eager")
    assert (loop.sync, loop.input, loop.optimizer, loop.buckets) == ("never", "pinned", "fused", 2)
    assert [(one.cause, one.severity) for one in loop.faults] == [("slow_input", 1.1143), ("co_running", 0.0485)]
    assert all(draw_loop(seed) == draw_loop(seed) == Loop.of(draw_loop(seed).told()) for seed in range(40))


def test_a_recording_becomes_its_program() -> None:
    made = program()
    assert (made.steps, made.compute, len(made.calls), made.host_us) == (2, COMPUTE, 6, 60.0)
    first, reduced, last = made.operations[3:]
    assert first.gap == pytest.approx(GAP)
    assert (first.duration, first.waits) == (FIRST, ())
    # The collective waits for the kernel before it, and the last kernel for the collective.
    assert (reduced.collective, reduced.waits, last.waits) == (True, (3,), (4,))
    assert made.device_us == pytest.approx((2 * (FIRST + LAST) + 4 * GAP) / 2, abs=0.1)


def test_a_launch_that_met_a_full_queue_is_not_the_hosts_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_reading, "PLACES", 3)
    document = recorded()
    launch = [one for one in document["traceEvents"] if one["name"] == "cudaLaunchKernel"][5]
    # The host was held up for 70 us in its last launch, on a stream with three launches outstanding.
    launch["dur"] += 70.0
    for one in document["traceEvents"]:
        if one["name"] == "ProfilerStep#1" and one["cat"] == "user_annotation":
            one["dur"] += 70.0
    assert program_of(document).calls[5].own == CALL
    assert program_of(document).host_us == 60.0


def test_the_period_is_the_devices_where_the_host_is_ahead_and_else_the_hosts() -> None:
    assert replay([program()]).period_us == pytest.approx(PERIOD)
    assert replay([program(pause=300.0)]).period_us == pytest.approx(360.0)
    synced = CALL + LATENCY + PERIOD - GAP + RELEASED + 10.0
    assert replay([program(synced=True)]).period_us == pytest.approx(synced)


def test_a_collective_ends_when_the_last_rank_has_come() -> None:
    replayed = replay([program(), program(first=140.0)], places=6)
    quick, slow = replayed.ranks
    assert replayed.period_us == pytest.approx(PERIOD + 40.0)
    assert replayed.steady
    collectives = [at for at in range(len(quick.ends)) if quick.program.operations[at % 6].collective]
    assert all(quick.ends[at] == slow.ends[at] == slow.begins[at] + TRANSFER for at in collectives)
    assert quick.ends[collectives[-1]] - quick.begins[collectives[-1]] == pytest.approx(TRANSFER + 40.0)


def test_a_full_queue_holds_the_host_back() -> None:
    replayed = replay([program()], places=3)
    (rank,) = replayed.ranks
    assert replayed.period_us == pytest.approx(PERIOD)
    # Three launches of the compute stream before the last step's first one is the last kernel of two steps before.
    returned, over = rank.laps[-1].calls[3][1], rank.ends[-7]
    assert returned == pytest.approx(over + FREED)
    # A pause of the host costs nothing where enough is launched. Where only one kernel can be, each waits for the one
    # before it, and the pause begins when the last but one is over.
    assert replay([program(pause=100.0)], places=3).period_us == pytest.approx(PERIOD)
    assert replay([program(pause=100.0)], places=1).period_us == pytest.approx(FIRST + FREED + 120.0 + LATENCY)


def test_jobs_and_their_truth(tmp_path: Path) -> None:
    folder = tmp_path / "seed0018"
    folder.mkdir()
    for name, fault in [*((f"healthy{rank}", None) for rank in range(4)), ("fault0", "larger_product")]:
        document = recorded(first=FIRST if fault is None else 140.0)
        (folder / f"{name}.pt.trace.json.gz").write_bytes(gzip.compress(json.dumps(document).encode()))
        told = {
            "seed": 18,
            "loop": replace(draw_loop(18), buckets=1).told(),
            "bucket_elements": [1024],
            "fault": None if fault is None else {"cause": fault, "severity": 0.2, "probability": 1.0},
            "measured": {"period_us": PERIOD if fault is None else PERIOD + 40.0},
        }
        (folder / f"{name}.json").write_text(json.dumps(told))
    healthy, faulty = jobs_of("seed0018", read_seed(folder))
    truth = write_job(healthy, tmp_path / healthy.name)
    assert (truth["verdict"], truth["faults"], truth["period_us"]) == ("no_straggler", [], round(PERIOD, 1))

    truth = write_job(faulty, tmp_path / faulty.name)
    (fault,) = truth["faults"]
    (guilty,) = fault["ranks"]
    assert (truth["verdict"], truth["absorbed"], fault["cause"]) == ("straggler", False, "compute")
    assert (truth["loss_us"], truth["ranks"][guilty]["recording"]) == (40.0, "fault0")
    assert truth["loss_of_period"] == pytest.approx(40.0 / (PERIOD + 40.0), abs=1e-4)
    assert [rank for rank, one in enumerate(truth["ranks"]) if one["costs_of_period"] > 0.01] == [guilty]
    assert json.loads((tmp_path / faulty.name / "truth.json").read_text()) == truth
    assert "straggler" in summary(truth)
    check_traces(sorted((tmp_path / faulty.name / "input").iterdir()), guilty)


def check_traces(paths: list[Path], guilty: int) -> None:
    """The window holds a lap of every rank, on one clock, and what was under way when it began."""
    assert len(paths) == 4
    ends = []
    for rank, path in enumerate(paths):
        document = json.loads(gzip.decompress(path.read_bytes()))
        events = document["traceEvents"]
        assert (document["distributedInfo"]["rank"], document["distributedInfo"]["world_size"]) == (rank, 4)
        launched = {one["args"]["correlation"] for one in events if one.get("name") == "cudaLaunchKernel"}
        kernels = [one for one in events if one.get("cat") == "kernel"]
        under_way = [one for one in kernels if one["args"]["correlation"] not in launched]
        assert launched <= {one["args"]["correlation"] for one in kernels}
        assert under_way
        assert max(one["args"]["correlation"] for one in under_way) < min(launched)
        assert not any("External id" in one["args"] for one in under_way)
        described = [one for one in kernels if "Seq" in one["args"]]
        assert [one["args"]["In msg nelems"] for one in described] == [1024, 1024]
        assert all(one["name"].startswith("ncclDevKernel_AllReduce") for one in described)
        comms = [one for one in events if one["name"] == "record_param_comms"]
        assert [one["args"]["Seq"] for one in comms] == [one["args"]["Seq"] for one in described]
        assert [one["args"]["External id"] for one in comms] == [one["args"]["External id"] for one in described]
        ends.append([round(one["ts"] + one["dur"], 2) for one in described])
        waited = described[-1]["dur"] - TRANSFER
        assert waited == pytest.approx(0.0 if rank == guilty else 40.0, abs=0.01)
        mark = next(one for one in events if one.get("cat") == "gpu_user_annotation")
        assert mark["dur"] == pytest.approx(PERIOD + 40.0 - GAP, abs=0.01)
    assert ends[0] == ends[1] == ends[2] == ends[3]


def said(ranks: list[int], cause: str = "compute", price: float = 10_000.0, **changed: object) -> Event:
    """A job whose rank 1 is slow at a cost of 10 of 100 ms, and what is said of it."""
    finding = {"cause": cause, "pattern": "persistent", "ranks": ranks, "operator": None, "price_us": price}
    answer = {"verdict": "straggler", "period_us": 1e5, "ahead": True, "queues": [[1022, True]], "first": 1}
    return {
        "name": "seed0018_fault0_larger_product",
        "verdict": "straggler",
        "absorbed": False,
        "period_us": 100_000.0,
        "healthy_period_us": 90_000.0,
        "loss_us": 10_000.0,
        "loss_of_period": 0.1,
        "faults": [{"fault": "larger_product", "cause": "compute", "ranks": [1], "operator": None}],
        "shape": {"sync": "never"},
        "costs": [0.0, 0.1, 0.0, 0.0],
        "alone_us": [90e3, 100e3, 90e3, 90e3],
        "lead_us": 50_000.0,
        "steps": 10,
        "answer": {**answer, "findings": [finding] if ranks else [], "warnings": []},
        **changed,
    }


def test_answers_are_compared_with_the_truth() -> None:
    right, wrong_cause, dear = said([1]), said([1], "input"), said([1], price=12_000.0)
    both, nobody, other = said([1, 3]), said([]), said([3])
    assert (slower_of(right), innocent_of(right), innocent_of(both)) == ({1}, set(), {3})
    assert [names_rank(one) for one in (right, wrong_cause, both, nobody, other)] == [True, True, False, False, False]
    assert [is_right(one) for one in (right, wrong_cause, both)] == [True, False, False]
    assert [is_priced(one, peer_cost_us(one)) for one in (right, dear)] == [True, False]
    # Where rank 3 really is slower, too, it is no innocent.
    assert innocent_of(said([3]) | {"alone_us": [90e3, 100e3, 90e3, 99e3]}) == set()


def test_tables_of_kept_answers(tmp_path: Path) -> None:
    healthy = said([], faults=[], absorbed=False, loss_of_period=0.0, costs=[0.0] * 4, alone_us=[90e3] * 4)
    hidden = said([3], absorbed=True, loss_of_period=0.001, costs=[0.0] * 4, alone_us=[90e3] * 4)
    loop = {
        "name": "seed0018/healthy0",
        "shape": {"sync": "never"},
        "fault": None,
        "kernels": 100,
        "period_us": 100_500.0,
        "lead_us": 50_000.0,
        "answer": said([])["answer"],
    }
    path = tmp_path / "answers.json.xz"
    write_kept(path, {"loops": [loop], "jobs": [healthy, said([1]), said([1], "input"), hidden]})
    kept = read_kept(path)
    text = page(kept["loops"], kept["jobs"], every=True)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    of = {(len(row), row[0]): row[1:] for row in rows}
    assert of[10, "never"] == ["1", "0", "1", "1 of 1", "–", "1 of 1", "0.5%, at most 0.5%", "1022–1022 of 1", "–"]
    assert of[6, "all"] == ["1", "0 of 1", "0 of 1", "–", "0 of 1"]
    faults = ["2", "2 of 2", "1 of 2", "2", "2 of 2", "1 of 2", "1 of 1", "1 of 1", "1", "1 of 1", "0"]
    assert of[12, "larger_product"] == of[12, "all"] == of[12, "all hosts ahead"] == faults
    assert "WRONG: input [1]" in text
    assert "seed0018/healthy0" in text
