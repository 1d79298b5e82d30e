"""Puts the operations of one rank's step in launch order, and has each wait for what it needs."""

from dataclasses import replace
from typing import Literal

from device_operations import (
    COLLECTIVE_STREAMS,
    COMPUTE_STREAM,
    MS,
    P2P_STREAMS,
    HostScope,
    Operation,
    communication_scopes,
    compute_scopes,
)
from layouts import JobLayout, p2p_dimension

COPY_NS = 6_000.0
LOSS_SUM_MS = 0.004
"""Of adding the loss to the sum of those that were not read yet."""


class StageBuilder:
    """Operations in launch order. Communication waits for the computing launched before it, as PyTorch's does."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._last_compute: int | None = None
        self._to_await: list[int] = []

    def compute(self, label: str, phase: str, ms: float, microbatch: int | None = None) -> None:
        """A kernel on the compute stream, after all communication it was told to await."""
        scopes = compute_scopes(label, phase)
        self._add_compute(
            Operation(label, "compute", phase, COMPUTE_STREAM, ms * MS, (), scopes, None, None, microbatch)
        )

    def copy_of_loss(self) -> None:
        """The copy behind `loss.item()`, which the host waits for."""
        scopes = (HostScope("aten::item"),)
        self._add_compute(Operation("copy", "memory", "forward", COMPUTE_STREAM, COPY_NS, (), scopes, size=4))

    def keep_loss(self, layout: JobLayout) -> None:
        """What the step does with its loss at its end, which also awaits all communication that is left."""
        if layout.copies_loss:
            scopes = (HostScope("aten::to"), HostScope("aten::_to_copy"), HostScope("aten::copy_"))
            self._add_compute(
                Operation("copy_behind", "memory", "forward", COMPUTE_STREAM, COPY_NS, (), scopes, size=4)
            )
            return
        if layout.runs_ahead:
            self.compute("loss_sum", "forward", LOSS_SUM_MS)
        if layout.reads_loss:
            self.copy_of_loss()

    def collective(self, label: str, phase: str, ms: float, size: int, dimension: str = "dp") -> int:
        """A collective; returns its index, for `wait_for`."""
        stream = COLLECTIVE_STREAMS[dimension]
        scopes = communication_scopes(label, phase)
        return self._add_communication(
            Operation(label, "collective", phase, stream, ms * MS, (), scopes, dimension, size)
        )

    def send(self, edge: int, direction: str, ms: float, size: int, *, microbatch: int) -> int:
        """A send over the edge after stage `edge`, forward or backward; returns its index, for `wait_for`."""
        operation = _point_to_point("send", edge, direction, ms=ms, size=size, microbatch=microbatch)
        return self._add_communication(operation)

    def receive(self, edge: int, direction: str, ms: float, size: int, *, microbatch: int) -> None:
        """A receive, which the next kernel waits for."""
        operation = _point_to_point("recv", edge, direction, ms=ms, size=size, microbatch=microbatch)
        self.wait_for(self._add_communication(operation))

    def wait_for(self, *communication: int) -> None:
        """Has the next kernel wait for these operations."""
        self._to_await.extend(communication)

    def _add_compute(self, operation: Operation) -> None:
        self._last_compute = self._add(operation, self._to_await)
        self._to_await = []

    def _add_communication(self, operation: Operation) -> int:
        return self._add(operation, [] if self._last_compute is None else [self._last_compute])

    def _add(self, operation: Operation, awaits: list[int]) -> int:
        self.operations.append(replace(operation, awaits=tuple(awaits)))
        return len(self.operations) - 1


def _point_to_point(
    kind: Literal["send", "recv"], edge: int, direction: str, *, ms: float, size: int, microbatch: int
) -> Operation:
    return Operation(
        label=kind,
        kind=kind,
        phase=direction,
        stream=P2P_STREAMS[kind, direction],
        nominal_ns=ms * MS,
        awaits=(),
        scopes=communication_scopes(kind, direction),
        dimension=p2p_dimension(edge, direction),
        size=size,
        microbatch=microbatch,
        edge=edge,
    )
