"""Small Kineto traces for tests: events in microseconds, as PyTorch's profiler writes them."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Event = dict[str, Any]
MAIN = 100
"""The thread (and process) that runs the training loop."""


def event(
    name: str, cat: str, ts: float, dur: float, *, pid: object = MAIN, tid: object = MAIN, **args: object
) -> Event:
    """A complete event."""
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def step(number: int, ts: float, dur: float) -> Event:
    """A step mark of the profiler."""
    return event(f"ProfilerStep#{number}", "user_annotation", ts, dur)


def op(name: str, ts: float, dur: float, *, tid: int = MAIN, **args: object) -> Event:
    """A host operator."""
    return event(name, "cpu_op", ts, dur, tid=tid, **args)


def annotation(name: str, ts: float, dur: float, *, tid: int = MAIN, **args: object) -> Event:
    """A scope, such as record_function gives."""
    return event(name, "user_annotation", ts, dur, tid=tid, **args)


def launch(ts: float, dur: float, correlation: int, *, tid: int = MAIN, name: str = "cudaLaunchKernel") -> Event:
    """A call that launches device work."""
    return event(name, "cuda_runtime", ts, dur, tid=tid, correlation=correlation)


def kernel(name: str, ts: float, dur: float, correlation: int, *, stream: int = 7, **args: object) -> Event:
    """A device operation."""
    return event(name, "kernel", ts, dur, pid=0, tid=stream, correlation=correlation, **args)


def training_steps(count: int = 3, *, first: int = 2, period: float = 1000, operators: int = 4) -> list[Event]:
    """`count` steps of a GPU job: host operators that launch one kernel each, and one all-reduce."""
    events: list[Event] = []
    for number in range(count):
        begin = 10_000 + number * period
        events.append(step(first + number, begin, period - 10))
        for at in range(operators):
            correlation = 1000 * (number + 1) + at
            events.append(op(f"aten::op{at}", begin + 10 + at * 100, 50))
            events.append(launch(begin + 20 + at * 100, 5, correlation))
            events.append(kernel(f"kernel{at}", begin + 40 + at * 100, 60, correlation))
        correlation = 1000 * (number + 1) + 900
        events.append(launch(begin + 600, 5, correlation))
        events.append(kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", begin + 620, 200, correlation, stream=20))
    return events


def trace(events: Sequence[Event], *, rank: int | None = 0, world: int | None = 1, **header: object) -> dict[str, Any]:
    """A whole trace; no distributedInfo where `rank` is None."""
    distributed = {} if rank is None else {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world}}
    return {"schemaVersion": 1, **distributed, **header, "traceEvents": list(events), "traceName": "t.json"}


def write(path: Path, content: dict[str, Any] | list[Event], *, indent: int | None = None) -> Path:
    """Writes a trace as JSON, compressed where the name ends in .gz."""
    text = json.dumps(content, indent=indent).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def write_job(folder: Path, ranks: Sequence[int], *, world: int | None = None, count: int = 3) -> Path:
    """One trace per rank, of `training_steps(count)`."""
    for rank in ranks:
        content = trace(training_steps(count), rank=rank, world=world or len(ranks))
        write(folder / f"rank{rank}.json.gz", content)
    return folder
