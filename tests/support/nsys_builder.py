"""Exports of Nsight Systems for tests: tables of schema 3.13 (2024.5), with the columns that matter."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE META_DATA_CAPTURE (name TEXT NOT NULL, value TEXT);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT NOT NULL, name TEXT NOT NULL,
    nameEnum INTEGER NOT NULL, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT);
CREATE TABLE ThreadNames (nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL,
    callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
    globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
    globalPid INTEGER, graphId INTEGER NOT NULL, graphExecId INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
    globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
    category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER,
    domainId INTEGER);
CREATE TABLE PROFILER_OVERHEAD (start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER,
    nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL);
"""
BEGIN_NS = 1_700_000_000_000_000_000
US = 1000


class Export:
    """One export under construction; times in microseconds since the session began."""

    def __init__(self, path: Path, *, host: str = "node0") -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.connection = sqlite3.connect(path)
        self.connection.executescript(SCHEMA)
        self._texts: dict[str, int] = {}
        self._correlation = 0
        self.insert("TARGET_INFO_SESSION_START_TIME", BEGIN_NS, "", "")
        self.insert("TARGET_INFO_GPU", 0, 0, "NVIDIA A100-SXM4-80GB", "")
        self.insert("TARGET_INFO_SYSTEM_ENV", 0, "", "Hostname", 0, host)

    def insert(self, table: str, *values: object) -> None:
        self.connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)

    def text(self, value: str) -> int:
        if value not in self._texts:
            self._texts[value] = len(self._texts) + 1
            self.insert("StringIds", self._texts[value], value)
        return self._texts[value]

    def environment(self, **variables: object) -> None:
        for name, value in variables.items():
            self.insert("META_DATA_CAPTURE", "PROCESS_0:ENVIRONMENT_VARIABLE", f'{name}="{value}"')

    def span(self, thread: int, name: str, start: float, end: float | None, *, registered: bool = False) -> None:
        text, number = (None, self.text(name)) if registered else (name, None)
        stop, kind = (None, 34) if end is None else (round(end * US), 59)
        self.insert("NVTX_EVENTS", round(start * US), stop, kind, None, None, None, text, thread, None, number, 0)

    def call(self, thread: int, name: str, start: float, end: float) -> int:
        self._correlation += 1
        row = (round(start * US), round(end * US), 0, thread, self._correlation, self.text(name), 0, None)
        self.insert("CUPTI_ACTIVITY_KIND_RUNTIME", *row)
        return self._correlation

    def overhead(self, thread: int, name: str, start: float, end: float) -> None:
        self.insert("PROFILER_OVERHEAD", round(start * US), round(end * US), thread, self.text(name), 0)

    def kernel(
        self, thread: int, name: str, start: float, end: float, *, launched: float, stream: int = 7, held: float = 0
    ) -> None:
        """`held`: for so long the profiler holds its launch up."""
        number = self.call(thread, "cudaLaunchKernel_v7000", launched, launched + 5 + held)
        if held:
            self.overhead(thread, "CUDA profiling data flush overhead", launched + 1, launched + 1 + held)
        process = thread >> 24 << 24
        short = self.text(name.partition("(")[0])
        row = (round(start * US), round(end * US), 0, 1, None, stream, number, process, self.text(name), short, None)
        self.insert("CUPTI_ACTIVITY_KIND_KERNEL", *row)

    def graph(self, thread: int, number: int, start: float, end: float, *, launched: float) -> int:
        """A CUDA graph as a whole, `--cuda-graph-trace=graph`; the launch's number."""
        launch = self.call(thread, "cudaGraphLaunch_v10000", launched, launched + 8)
        row = (round(start * US), round(end * US), 0, 1, None, 7, launch, thread >> 24 << 24, number, number)
        self.insert("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", *row)
        return launch

    def copy(self, thread: int, start: float, end: float, *, launched: float, size: int) -> None:
        number = self.call(thread, "cudaMemcpyAsync_v3020", launched, launched + 5)
        row = (round(start * US), round(end * US), 0, 1, None, 7, number, thread >> 24 << 24, size, 1)
        self.insert("CUPTI_ACTIVITY_KIND_MEMCPY", *row)

    def close(self) -> Path:
        self.connection.commit()
        self.connection.close()
        return self.path


def thread_of(pid: int, thread: int | None = None) -> int:
    """A thread as the report numbers it: the machine, the process, the thread."""
    return (1 << 48) | (pid << 24) | (pid if thread is None else thread)


def training(
    export: Export, pid: int, *, steps: int = 8, late_us: float = 0, held_us: float = 0, mark: str | None = "step {}"
) -> None:
    """A process' steps of 1 ms: forward, backward, the optimizer, and an all-reduce that ends at 900 µs for everybody.

    `late_us` longer takes the forward kernel; for `held_us` the profiler holds its launch up. `mark` is the range
    around a step, with its number in place of `{}`; None: the ranges within it are not there either.
    """
    thread = thread_of(pid)
    for number in range(steps):
        at = 1000.0 * number
        if mark is not None:
            export.span(thread, mark.format(20 + number), at, at + 990)
            export.span(thread, "forward", at + 10, at + 200 + held_us, registered=True)
            export.span(thread, "backward", at + 210 + held_us, at + 400 + held_us)
            export.span(thread, "optimizer", at + 910, at + 980)
        export.copy(thread, at + 15, at + 25, launched=at + 12, size=4096)
        late = at + held_us
        export.kernel(thread, "gemm_forward(float*)", late + 30, late + 230 + late_us, launched=at + 20, held=held_us)
        late += late_us
        export.kernel(thread, "gemm_backward(float*)", late + 240, late + 440, launched=at + held_us + 220)
        export.kernel(
            thread,
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            late + 450,
            at + 900,
            launched=at + held_us + 300,
            stream=20,
        )
        export.call(thread, "cudaStreamSynchronize_v3020", at + held_us + 400, at + 902)
        export.kernel(thread, "adam(float*)", at + 925, at + 970, launched=at + 915)


def write_job(
    folder: Path,
    ranks: Sequence[int],
    *,
    slow: int | None = None,
    held: Sequence[int] = (),
    mark: str | None = "step {}",
) -> Path:
    """An export for every rank, whose environment says it; the profiler holds up those of `held`."""
    for rank in ranks:
        export = Export(folder / f"report{rank + 7}.sqlite", host=f"node{rank // 2}")
        export.environment(RANK=rank, WORLD_SIZE=len(ranks), SLURM_PROCID=0, SLURM_NTASKS=1)
        late_us, held_us = 150 * (rank == slow), 150 * (rank in held)
        training(export, 4000 + rank, late_us=late_us, held_us=held_us, mark=mark)
        export.close()
    return folder
