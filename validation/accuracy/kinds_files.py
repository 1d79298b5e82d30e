"""Writes the jobs of kinds_jobs.py as the files that PyTorch's profiler exports on GPUs of several vendors."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
from device_operations import COLLECTIVES, KERNELS
from kinds_jobs import Job, Ran, Run
from kineto import BASE_NS
from kineto_events import collective_args, microseconds
from layouts import Group

Event = dict[str, Any]
_DESCRIPTIONS: Final = {"world": "default_pg", "tp": "mesh_tp", "cp": "mesh_cp", "dp": "mesh_dp"}
START_NS: Final = 90 * 10**9
_OPEN_NS: Final = 15_000
"""Where hosts run ahead, the profiler's window opens this long before the first recorded step."""


@dataclass(frozen=True)
class Vendor:
    """What a vendor's runtime and library are called in a recording."""

    runtime: str
    launch: str
    copy: str
    wait: str
    """The call that lasts until the device is done."""
    device: str
    backend: str
    collective: str
    """The kernel's name, of {name}; empty for NCCL's own."""


VENDORS: Final = {
    "cuda": Vendor(
        "cuda_runtime",
        "cudaLaunchKernel",
        "cudaMemcpyAsync",
        "cudaStreamSynchronize",
        "NVIDIA H100 80GB HBM3",
        "nccl",
        "",
    ),
    "xpu": Vendor(
        "xpu_runtime",
        "urEnqueueKernelLaunch",
        "urEnqueueMemBufferCopy",
        "urQueueFinish",
        "Intel(R) Data Center GPU Max 1550",
        "xccl",
        "void ccl::{name}_large<ccl::v1::bf16>",
    ),
    # On ROCm the copy of `item` is itself the wait.
    "hip": Vendor(
        "cuda_runtime",
        "hipLaunchKernel",
        "hipMemcpyWithStream",
        "hipMemcpyWithStream",
        "AMD Instinct MI300X",
        "nccl",
        "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
    ),
    "hpu": Vendor(
        "privateuse1_runtime", "synLaunch", "synMemCopyAsync", "synHostWait", "GAUDI3", "hccl", "hccl::{name}_kernel"
    ),
}


def write(job: Job, run: Run, folder: Path, clocks_ns: list[int], *, left_out: Collection[int] = ()) -> None:
    """Writes a file for each rank but those `left_out`; `clocks_ns` is how far each host's clock is ahead."""
    folder.mkdir(parents=True, exist_ok=True)
    groups = _groups(job)
    for rank in range(job.ranks):
        if rank in left_out:
            continue
        host, pid = rank // job.per_host, 21_000 + 113 * rank
        events = list(_Trace(job, run, rank, groups).events())
        for event in events:
            event["ts"] = microseconds(event["ts"] + START_NS + clocks_ns[host])
            event["dur"] = microseconds(event["dur"])
        text = msgspec.json.encode({**_header(job, rank, groups), "traceEvents": events})
        stem = {
            "host and process": f"gpu-n{host}_{pid}.{BASE_NS + rank}.pt.trace",
            "host number": f"host{host}_rank{rank}.pt.trace",
            "rank": f"rank{rank}_trace",
        }[job.names]
        (folder / f"{stem}.json").write_bytes(text)


def _groups(job: Job) -> list[tuple[str, Group]]:
    kinds = ["world", *({"tp": ["dp", "tp"], "cp": ["cp"]}.get(job.layout, []))]
    found: dict[tuple[str, tuple[int, ...]], Group] = {}
    for kind in kinds:
        for rank in range(job.ranks):
            ranks = job.members(kind, rank)
            found.setdefault((kind, ranks), Group(str(len(found)), _DESCRIPTIONS[kind], ranks))
    return [(kind, group) for (kind, _), group in found.items()]


def _header(job: Job, rank: int, groups: list[tuple[str, Group]]) -> dict[str, Any]:
    vendor = VENDORS[job.vendor]
    name = job.models[rank] if job.models else vendor.device
    own = [group for _, group in groups if rank in group.ranks]
    return {
        "schemaVersion": 1,
        "deviceProperties": [
            {"id": number, "name": name, "warpSize": 32, "numSms": 132}
            for number in range(min(job.per_host, job.ranks))
        ],
        "record_shapes": 1,
        "distributedInfo": {
            "backend": vendor.backend,
            "rank": rank,
            "world_size": job.ranks,
            "pg_count": len(own),
            "pg_config": [
                {
                    "pg_name": group.name,
                    "pg_desc": group.description,
                    "backend_config": f"{job.vendor}:{vendor.backend}",
                    "pg_size": len(group.ranks),
                    "ranks": list(group.ranks),
                }
                for group in own
            ],
        },
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE_NS,
    }


class _Trace:
    def __init__(self, job: Job, run: Run, rank: int, groups: list[tuple[str, Group]]) -> None:
        self._job, self._run, self._rank = job, run, rank
        self._vendor = VENDORS[job.vendor]
        self._of = {kind: group for kind, group in groups if rank in group.ranks}
        self._pid, self._device = 21_000 + 113 * rank, rank % job.per_host
        self._number, self._copy = 10, None

    def events(self) -> Iterator[Event]:
        """All events: marks, the host's and the device's, and the profiler's last wait."""
        job, marks = self._job, self._run.marks[self._rank]
        opened = marks[job.warm_up][0] - (_OPEN_NS if job.runs_ahead else 0)
        for number, (begin, end) in enumerate(marks[job.warm_up :]):
            yield self._host(f"ProfilerStep#{job.first + number}", "user_annotation", (begin, end))
        spans: dict[tuple[int, int], list[float]] = {}
        for ran in self._run.ran[self._rank]:
            recorded = ran.step >= job.warm_up
            if recorded:
                yield from self._of_host(ran)
            if ran.op.what in ("kernel", "collective", "read") and (recorded or ran.begin >= opened):
                yield self._of_device(ran, launched=recorded)
                span = spans.setdefault((ran.step, ran.op.stream), [ran.begin, ran.end])
                span[1] = max(span[1], ran.end)
        if job.runs_ahead:
            over = max(end for _, end in spans.values()) + 10_000
            yield self._host(self._vendor.wait, self._vendor.runtime, (marks[-1][1] + 5_000, over))
            for (step, stream), (begin, end) in spans.items():
                if step >= job.warm_up:
                    name = f"ProfilerStep#{job.first + step - job.warm_up}"
                    yield self._event(
                        name, "gpu_user_annotation", (self._device, stream), (begin, end), {"External id": 1}
                    )

    def _of_host(self, ran: Ran) -> Iterator[Event]:
        op, vendor = ran.op, self._vendor
        tid = self._pid + 900 * op.thread
        if op.what in ("host", "free"):
            if op.category == "wait":
                # On ROCm the copy is the wait.
                copy = self._copy if self._job.vendor == "hip" else None
                args = {"External id": self._number} | ({"correlation": self._correlation(copy)} if copy else {})
                begin = copy.launch if copy else ran.launch
                yield self._host(vendor.wait, vendor.runtime, (begin, ran.launched), tid, args)
            elif op.name:
                runtime = op.category == "runtime"
                yield self._host(op.name, vendor.runtime if runtime else op.category, (ran.launch, ran.launched), tid)
            return
        self._number += 1
        args: Event = {"External id": self._number, "Ev Idx": self._number}
        if op.shapes:
            args |= {"Input Dims": op.shapes, "Input type": ["c10::BFloat16"] * len(op.shapes)}
        begin, end = ran.launch - 0.4 * self._job.host_ns, ran.launched + 500
        if op.what == "collective":
            name = COLLECTIVES[op.name][1]
            yield self._host(name, "cpu_op", (begin, end + 1_000), tid, args)
            self._number += 1
            args = {
                "External id": self._number,
                "Ev Idx": self._number,
                "Seq": ran.seq,
                **collective_args(op.name, op.size, self._of[op.group]),
            }
            yield self._host("record_param_comms", "cpu_op", (begin + 500, end + 500), tid, args)
        else:
            yield self._host(op.scope, "cpu_op", (begin, end), tid, args)
        call = vendor.copy if op.name.startswith("Memcpy") else vendor.launch
        if op.what == "read":
            self._copy = ran
            if self._job.vendor == "hip":
                return
        args = {"cbid": 211, "correlation": self._correlation(ran), "External id": self._number}
        yield self._host(call, vendor.runtime, (ran.launch, ran.launched), tid, args)

    def _of_device(self, ran: Ran, *, launched: bool) -> Event:
        op, copy = ran.op, ran.op.name.startswith("Memcpy")
        args: Event = {"External id": self._number} if launched else {}
        args |= {"device": self._device, "context": 1, "correlation": self._correlation(ran)}
        args["sycl queue" if self._job.vendor == "xpu" else "stream"] = op.stream
        if copy:
            args["bytes"] = op.size
        name = op.name
        if op.what == "collective":
            args |= collective_args(op.name, op.size, self._of[op.group]) if launched else {}
            name = self._vendor.collective.format(name=COLLECTIVES[op.name][0].strip("_")) or KERNELS[op.name]
        category = "gpu_memcpy" if copy else "kernel"
        return self._event(name, category, (self._device, op.stream), (ran.begin, ran.end), args)

    def _correlation(self, ran: Ran) -> int:
        """The launch's number: its time in units no two launches of a rank share."""
        return int(ran.launch) // 1_000

    def _host(
        self, name: str, category: str, span: tuple[float, float], tid: int = 0, args: Event | None = None
    ) -> Event:
        return self._event(name, category, (self._pid, tid or self._pid), span, args or {"External id": 2})

    @staticmethod
    def _event(name: str, category: str, where: tuple[int, int], span: tuple[float, float], args: Event) -> Event:
        """Times are put on the host's clock when all are written."""
        begin = int(span[0])
        return {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": where[0],
            "tid": where[1],
            "ts": begin,
            "dur": max(0, int(span[1]) - begin),
            "args": args,
        }
