"""What records a rank's steps: torch.profiler, as it is used here or by a script's author, or Kair's capture."""

from __future__ import annotations

import gzip
import os
import re
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from captured import CapturedSteps
from drawing import AnyTake
from on_gpu.gpu_drawing import GpuTake
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler
from written.script_drawing import ProfilerUse, WrittenTake

Recorder = profile | CapturedSteps


def recorder_of(
    take: AnyTake, rank: int, folder: Path, first: int
) -> AbstractContextManager[Recorder] | AbstractContextManager[None]:
    """What records the rank's steps, once those that lead to them are over: step `first` of the job's."""
    if isinstance(take, GpuTake) and take.profiled == "first" and rank > 0:
        return nullcontext()
    if take.captured:
        return CapturedSteps(folder, rank, first, take.steps)
    return used_profiler(take) if isinstance(take, WrittenTake) else profiler_of(take, rank)


def profiler_of(take: AnyTake, rank: int) -> profile:
    plan = schedule(wait=0, warmup=take.lead_steps, active=take.steps, repeat=1)
    deeply = isinstance(take, GpuTake) and take.profiled == "first_deeply" and rank == 0
    return profile(
        activities=activities(take), schedule=plan, record_shapes=take.record_shapes or deeply, with_stack=deeply
    )


def used_profiler(take: WrittenTake) -> profile:
    """As the script's author uses it."""
    use = take.profiler
    plan = schedule(wait=use.wait, warmup=use.warmup, active=take.steps, repeat=1) if use.scheduled else None
    return profile(
        activities=activities(take),
        schedule=plan,
        record_shapes=take.record_shapes,
        with_stack=use.stacks,
        profile_memory=use.memory,
    )


def activities(take: AnyTake) -> list[ProfilerActivity]:
    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if take.device == "cuda" else [])]


def export(recorder: Recorder | None, take: AnyTake, rank: int, folder: Path) -> str | None:
    """Write the trace; its name."""
    if recorder is None or isinstance(recorder, CapturedSteps):
        return recorder and recorder.end()
    if isinstance(take, WrittenTake):
        return exported_by_author(recorder, take.profiler, take.gzip, rank, folder / "traces")
    return exported(recorder, take, rank, folder)


def exported(recorder: profile, take: AnyTake, rank: int, folder: Path) -> str:
    """Under a name that tells its host, as torch's own handler would."""
    alias = f"host{take.host_of_rank[rank]}"
    name = f"{alias}_{os.getpid()}.{time.time_ns() // 1_000_000}.pt.trace.json"
    raw = folder / f"rank{rank}.raw.json"
    recorder.export_chrome_trace(str(raw))
    text = raw.read_text(encoding="utf-8")
    text = re.sub(r'"host_name": "[^"]*"', f'"host_name": "{alias}"', text)
    text = re.sub(r'"traceName": "[^"]*"', f'"traceName": "{name}"', text)
    if take.gzip:
        name += ".gz"
        (folder / "traces" / name).write_bytes(gzip.compress(text.encode(), 1, mtime=0))
    else:
        (folder / "traces" / name).write_text(text, encoding="utf-8")
    raw.unlink()
    return name


def exported_by_author(recorder: profile, use: ProfilerUse, packed: bool, rank: int, traces: Path) -> str:
    """As torch writes it for those who ask for it, at once or through its handler for TensorBoard."""
    name = use.name and use.name.format(rank=rank)
    if use.handler == "chrome":
        assert name
        name += ".gz" if packed else ""
        recorder.export_chrome_trace(str(traces / name))
        return name
    # Without a name torch takes the host's and the process'.
    name = name or f"{os.uname().nodename}_{os.getpid()}"
    tensorboard_trace_handler(str(traces), name, use_gzip=packed)(recorder)
    return next(path.name for path in traces.iterdir() if path.name.startswith(f"{name}."))
