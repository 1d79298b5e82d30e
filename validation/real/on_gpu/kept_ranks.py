"""Ranks on a GPU, kept from take to take: a process needs seconds until it can use one."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from job import Parent, run_rank
from outside import Outside, end, fork
from ranks import DroppedError, Ranks

from on_gpu.gpu_drawing import GpuTake

TIME_LIMIT_S = 60.0


class Processes:
    """Processes that take the parts of ranks, one take after another; none outlives the context."""

    def __init__(self) -> None:
        self.pids: list[int] = []
        self.inboxes: list[int] = []
        self.outboxes: list[int] = []
        self.errors = Path(tempfile.mkdtemp())

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self.errors.rmdir()

    def start(self, count: int) -> None:
        """Have so many."""
        for number in range(len(self.pids), count):
            from_rank, to_parent = os.pipe()
            from_parent, to_rank = os.pipe()
            self.pids.append(fork(lambda: serve(Parent(from_parent, to_parent)), self.errors / f"rank{number}.error"))  # noqa: B023 -- called at once
            os.close(to_parent)
            os.close(from_parent)
            self.inboxes.append(from_rank)
            self.outboxes.append(to_rank)

    def end(self) -> None:
        """End them all."""
        for pid in self.pids:
            end(pid)
        for descriptor in (*self.inboxes, *self.outboxes):
            os.close(descriptor)
        for error in self.errors.iterdir():
            error.unlink()
        self.pids, self.inboxes, self.outboxes = [], [], []


def serve(parent: Parent) -> None:
    """Be a rank of one take after another."""
    while True:
        order = parent.hear()
        run_rank(GpuTake.of(order["take"]), order["rank"], Path(order["folder"]), [], parent)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        parent.tell({"idle": True})


class KeptRanks(Ranks):
    """The ranks of a take, as the processes that are kept; they end only where the take is dropped."""

    take: GpuTake

    def __init__(self, take: GpuTake, scratch: Path, outside: Outside, processes: Processes) -> None:
        super().__init__(take, scratch, outside)
        self.processes = processes
        self.deadline = time.monotonic() + TIME_LIMIT_S

    def __enter__(self) -> KeptRanks:
        self.processes.start(self.take.ranks)
        self.outside.pids = self.processes.pids[: self.take.ranks]
        self.inboxes = self.processes.inboxes[: self.take.ranks]
        self.outboxes = self.processes.outboxes[: self.take.ranks]
        order = {"take": self.take.told(), "folder": str(self.scratch)}
        self.tell_all([order | {"rank": rank} for rank in range(self.take.ranks)])
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            with self.ended_where_dropped():
                self.tell_all([{"end": True}] * self.take.ranks)
                self.hear_all("idle")
        else:
            self.processes.end()

    @contextmanager
    def ended_where_dropped(self) -> Iterator[None]:
        try:
            yield
        except DroppedError:
            self.processes.end()

    def error_of(self, rank: int) -> Path:
        """Where the process leaves what it failed of."""
        return self.processes.errors / f"rank{rank}.error"
