"""Writes a recording as the traces that PyTorch's profiler exports: one JSON file per rank."""

import gzip
from pathlib import Path
from typing import Any, Final

import msgspec
from kineto_events import MAIN_PROCESS, event_rows, trace_events
from layouts import RANKS_PER_HOST, JobLayout
from recording import Recording
from run_ahead import AheadRecording
from table import DEVICE, EPOCH_NS

# Kineto counts from the last multiple of this, so that its times are small enough for float64.
_TRIMESTER_NS: Final = 7_889_238 * 10**9
BASE_NS: Final = EPOCH_NS // _TRIMESTER_NS * _TRIMESTER_NS
_COMPRESSION: Final = 4


def write_kineto(
    recording: Recording | AheadRecording, folder: Path, *, collective_args: bool = True, compress: bool = True
) -> tuple[Path, ...]:
    """Writes a file per rank into `folder`, named by host and process as the profiler's handler does.

    Without `collective_args` they are like those of older releases, which say neither which collective a kernel
    belongs to nor which process groups there are. Raises OSError when the disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    layout = recording.layout
    of_rank = event_rows(recording.columns(host_operators=True), layout.ranks)
    paths = []
    for rank, rows in enumerate(of_rank):
        groups = layout.groups.all if collective_args else ()
        marks = isinstance(recording, AheadRecording)
        events = trace_events(rows, rank, groups, since_ns=BASE_NS - EPOCH_NS, device_marks=marks)
        text = msgspec.json.encode({**_header(layout, rank, collective_args), "traceEvents": events})
        name = f"{layout.host(rank)}_{MAIN_PROCESS + rank}.{EPOCH_NS}.pt.trace.json"
        path = folder / (f"{name}.gz" if compress else name)
        path.write_bytes(gzip.compress(text, _COMPRESSION, mtime=0) if compress else text)
        paths.append(path)
    return tuple(paths)


def _header(layout: JobLayout, rank: int, collective_args: bool) -> dict[str, Any]:
    distributed: dict[str, Any] = {"backend": "nccl", "rank": rank, "world_size": layout.ranks}
    if collective_args:
        groups = _process_groups(layout, rank)
        distributed |= {"pg_count": len(groups), "pg_config": groups, "nccl_version": "2.21.5"}
    return {
        "schemaVersion": 1,
        "deviceProperties": [
            {"id": number, "name": DEVICE, "computeMajor": 9, "computeMinor": 0, "warpSize": 32, "numSms": 132}
            for number in range(RANKS_PER_HOST)
        ],
        "cuda_runtime_version": 12040,
        "cuda_driver_version": 12060,
        "distributedInfo": distributed,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE_NS,
    }


def _process_groups(layout: JobLayout, rank: int) -> list[dict[str, Any]]:
    """The groups the rank is in. PyTorch lists no ranks of one that has all of them."""
    return [
        {
            "pg_name": group.name,
            "pg_desc": group.description,
            "backend_config": "cuda:nccl",
            "ranks": [] if len(group.ranks) == layout.ranks else list(group.ranks),
            "group_size": len(group.ranks),
            "group_count": len(layout.groups.all),
        }
        for group in layout.groups.all
        if rank in group.ranks
    ]
