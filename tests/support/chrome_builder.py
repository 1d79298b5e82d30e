"""Chrome's JSON as Ascend, rocprof, Horovod and Composer write it, for tests; times in microseconds."""

import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]
EPOCH_US = 1_700_000_000_000_000
STEPS = 8


def process(pid: object, name: str) -> Event:
    return {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}}


def span(name: str, pid: object, tid: object, ts: float, dur: float, **args: object) -> Event:
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def lines(path: Path, events: list[Event], *, close: bool = True) -> Path:
    """One event a line, as these profilers write them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "[\n" + ",\n".join(json.dumps(event) for event in events)
    path.write_text(text + ("\n]\n" if close else ",\n"))
    return path


def ascend(folder: Path, rank: int, *, late: float = 0) -> Path:
    """A rank's output folder as torch_npu.profiler leaves it; `late` µs longer takes its matrix product."""
    events = [process(1, "Python"), process(2, "Ascend Hardware"), process(3, "Communication"), process(4, "CANN")]
    for step in range(STEPS):
        at = EPOCH_US + 1000 * step
        events.append(span(f"ProfilerStep#{step + 3}", 1, 100, at, 990))
        events.append(span("aten::mm", 1, 100, at + 10, 20))
        events.append({"ph": "s", "id": f"{step}0", "name": "async_npu", "pid": 1, "tid": 100, "ts": f"{at + 12}.000"})
        events.append({"ph": "f", "id": f"{step}0", "name": "async_npu", "pid": 2, "tid": 7, "ts": f"{at + 40}.250"})
        events += [
            {**span("aclnnMatmul_MatMulV2", 2, 7, 0, 400 + late), "ts": f"{at + 40}.250"},
            {**span("hcom_allReduce__721_1_1", 2, 7, 0, 300), "ts": f"{at + 500}.000"},
            {**span(f"hcom_allReduce__721_{step}_1", 3, 20, 0, 400 - late), "ts": f"{at + 500 + late}.000"},
            {**span("Notify_Wait", 3, 21, 0, 10), "ts": f"{at + 510}.000"},
            {**span("aclnnAdam", 2, 7, 0, 50), "ts": f"{at + 920}.000"},
        ]
    output = folder / f"host{rank}_1_ascend_pt"
    (output / "ASCEND_PROFILER_OUTPUT").mkdir(parents=True)
    (output / f"profiler_info_{rank}.json").write_text("{}")
    path = output / "ASCEND_PROFILER_OUTPUT" / "trace_view.json"
    path.write_text(json.dumps(events))
    return path


def msprof(folder: Path, device: int, *, late: float = 0, steps: int = STEPS, rank: int | None = None) -> Path:
    """What msprof leaves of a device: a file of each kind and iteration; `late` µs longer takes its matrix product.

    An iteration takes 1,000 µs, of which it works 950; the all-reduce ends at 900 µs on all devices.
    """
    timeline = folder / f"PROF_00000{device + 1}" / f"device_{device}" / "timeline"
    timeline.mkdir(parents=True)
    told = {"hostname": "npu-0", "pid": str(4000 + device), "rank_id": device if rank is None else rank}
    (timeline.parent / f"info.json.{device}").write_text(json.dumps(told))
    named = {**process(9, "Step Trace"), "name": "thread_name", "tid": 77, "args": {"name": "Model ID:2"}}
    iterations = [process(9, "Step Trace"), named]
    iterations += [span(f"Iteration {step + 1}", 9, 77, 1000.0 * step, 950) for step in range(steps)]
    for step in range(steps):
        at = 1000.0 * step
        tasks = [
            process(2, "Ascend Hardware"),
            span("MatMul-op3", 2, 7, at + 5, 400 + late, **{"Stream Id": 7, "Task Id": 1}),
            span("EVENT_WAIT", 2, 7, at + 410 + late, 490 - late, **{"Stream Id": 7, "Task Id": 2}),
            span("NOTIFY_WAIT", 2, 12, at + 410 + late, 400 - late, **{"Stream Id": 12, "Task Id": 5}),
            span("REDUCE_ASYNC_V2", 2, 12, at + 810, 90, **{"Stream Id": 12, "Task Id": 6}),
            span("Adam-op4", 2, 7, at + 905, 40, **{"Stream Id": 7, "Task Id": 3}),
        ]
        reduced = [
            process(3, "HCCL"),
            span("Default/AllReduce-op534_0", 3, 70000, at + 410 + late, 490 - late),
            span("Notify_Wait", 3, 1, at + 410 + late, 400 - late, **{"stream id": 12, "task id": 5}),
            span("Reduce_Inline", 3, 1, at + 810, 90, **{"stream id": 12, "task id": 6}),
        ]
        own = [
            event for event in iterations if event["name"] in ("process_name", "thread_name", f"Iteration {step + 1}")
        ]
        of_kind = {"msprof": [*own, *tasks, *reduced], "task_time": tasks, "hccl": reduced, "step_trace": iterations}
        for kind, events in of_kind.items():
            (timeline / f"{kind}_{device}_2_{step + 1}.json").write_text(json.dumps(events))
    return timeline


def rocprof_hip(path: Path, *, late: float = 0) -> Path:
    """`rocprof --hip-trace --roctx-trace`: times rounded to µs beside exact ones."""
    events = [process(1, "Markers and Ranges"), process(2, "CPU HIP API"), process(3, "COPY"), process(6, "GPU0")]

    def exact(name: str, pid: int, tid: int, ts: float, dur: float) -> Event:
        stamps = {"BeginNs": str(round(ts * 1000)), "EndNs": str(round((ts + dur) * 1000))}
        return {**span(name, str(pid), str(tid), 0, 0, **stamps), "ts": str(int(ts)), "dur": str(int(dur))}

    for step in range(STEPS):
        at = 5000.0 + 1000 * step
        events += [
            exact(f"step {step}", 1, 0, at, 990),
            exact("hipLaunchKernel", 2, 44, at + 5, 4),
            exact("Cijk_Ailk_Bljk_SB", 6, 1, at + 20.125, 400 + late),
            exact("hipDeviceSynchronize", 2, 44, at + 10, 890),
            exact("ncclDevKernel_Generic(ncclDevComm*)", 6, 2, at + 450 + late, 450 - late),
            exact("CopyHostToDevice", 3, 0, at + 910, 20),
        ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"traceEvents": [{}, *events]}))
    return path


def rocprofv3(path: Path, *, late: int = 0) -> Path:
    """`rocprofv3 --runtime-trace --output-format json`."""

    def record(kind: int, operation: int, number: int, start: int, end: int, **more: object) -> Event:
        correlation = {"internal": number, "external": 0}
        stamps = {"start_timestamp": start, "end_timestamp": end, "thread_id": 44, "correlation_id": correlation}
        return {"size": 64, "kind": kind, "operation": operation, **stamps, **more}

    kinds = ("hip_api", "marker_api", "kernel_dispatch", "memory_copy")
    records: dict[str, list[Event]] = {kind: [] for kind in kinds}
    marks = []
    for step in range(STEPS):
        at, number = 9_000_000 + 1_000_000 * step, 10 * step
        marks.append({"key": number + 9, "value": f"step {step}"})
        records["marker_api"].append(record(1, 0, number + 9, at, at + 990_000))
        for place, (kernel, start, end) in enumerate(
            ((1, 20_000, 420_000 + late), (2, 450_000 + late, 900_000), (1, 920_000, 970_000))
        ):
            records["hip_api"].append(record(0, 1, number + place, at + 5_000 + place, at + 9_000 + place))
            info = {"kernel_id": kernel, "agent_id": {"handle": 4}, "queue_id": {"handle": 1 + (kernel == 2)}}
            records["kernel_dispatch"].append(record(2, 0, number + place, at + start, at + end, dispatch_info=info))
        records["memory_copy"].append(record(3, 2, number + 5, at + 905_000, at + 910_000, bytes=4096))
    tool = {
        "metadata": {"pid": 44},
        "agents": [{"id": {"handle": 4}, "type": 2, "product_name": "AMD Instinct MI300X"}],
        "kernel_symbols": [
            {"kernel_id": 0},
            {"kernel_id": 1, "formatted_kernel_name": "Cijk_Ailk_Bljk_SB"},
            {"kernel_id": 2, "formatted_kernel_name": "ncclDevKernel_Generic(ncclDevComm*)"},
        ],
        "strings": {
            "buffer_records": [
                {"kind": "HIP_RUNTIME_API", "operations": ["hipInit", "hipLaunchKernel"]},
                {"kind": "MARKER_CORE_API", "operations": ["roctxThreadRange"]},
                {"kind": "KERNEL_DISPATCH", "operations": ["DISPATCH"]},
                {"kind": "MEMORY_COPY", "operations": ["", "", "MEMORY_COPY_HOST_TO_DEVICE"]},
            ],
            "marker_api": marks,
        },
        "buffer_records": records,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [tool]}))
    return path


def horovod(path: Path, *, ranks: int = 4, slow: int | None = None, late: float = 15_000) -> Path:
    """The coordinator's timeline: two tensors a step of 100 ms, each its own process; the list is never closed."""
    events = [process(1, "grads.dense"), process(2, "grads.embedding")]
    later = late if slow is not None else 0
    for step in range(STEPS):
        for tensor, offset in ((1, 30_000.0), (2, 70_000.0 + later)):
            at = (100_000.0 + later) * step + offset
            events.append({"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": at, "pid": tensor})
            for rank in range(ranks):
                ready = at + rank + (late if rank == slow and tensor == 1 else 0)
                events.append({"ph": "X", "name": str(rank), "ts": ready, "dur": 0, "pid": tensor})
            done = at + ranks + (late if slow is not None and tensor == 1 else 0)
            events.append({"ph": "E", "ts": done, "pid": tensor})
            events.append({"ph": "B", "name": "ALLREDUCE", "ts": done + 5, "pid": tensor})
            events.append({"ph": "B", "name": "NCCL_ALLREDUCE", "ts": done + 6, "pid": tensor})
            events.append({"ph": "E", "ts": done + 4000, "pid": tensor})
            events.append({"ph": "E", "ts": done + 4001, "pid": tensor, "args": {"dtype": "float32"}})
    return lines(path, events, close=False)


def composer(path: Path, rank: int, *, input_us: int = 20) -> Path:
    """One rank's file of Composer's JSONTraceHandler; all ranks leave the backward pass together."""

    def pair(name: str, at: int, length: int, **args: object) -> list[Event]:
        common = {"name": name, "cat": name, "pid": rank, "tid": 4000 + rank, "args": args}
        return [{**common, "ph": "B", "ts": at}, {**common, "ph": "E", "ts": at + length}]

    events = [{**process(rank, f"Rank {rank} training loop process"), "tid": 4000 + rank, "ts": EPOCH_US}]
    for batch in range(STEPS):
        at, arrived = EPOCH_US + 1000 * batch, 225 + input_us
        begin, end = pair("event/batch", at, 990, batch=batch)
        inner = pair("dataloader/train", at + 5, input_us) + pair("event/forward", at + 15 + input_us, 200)
        inner += pair("event/backward", at + arrived, 960 - arrived)
        events += [begin, *inner, end]
    return lines(path, events)
