"""What a loop needs of a GPU, and a stand-in on which the same loop rehearses on the CPU."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

CALIBRATING_CYCLES = 20_000_000


class Accelerator(Protocol):
    """Streams, events and waits; a stream or an event is what the framework has for one."""

    device: str
    compute: Any
    """The stream that steps run on."""

    def synchronize(self) -> None:
        """Wait for all that was launched."""

    def stream(self) -> Any:  # noqa: ANN401
        """Another stream."""

    def on(self, stream: Any) -> AbstractContextManager[object]:  # noqa: ANN401
        """Launch on the stream."""

    def wait(self, waiting: Any, awaited: Any) -> None:  # noqa: ANN401
        """What is launched next on one stream waits for what was launched on the other."""

    def mark(self) -> Any:  # noqa: ANN401
        """An event after what was launched on the compute stream so far."""

    def passed(self, mark: Any) -> bool:  # noqa: ANN401
        """Whether the device has come to it."""

    def await_mark(self, mark: Any) -> None:  # noqa: ANN401
        """Make the host wait until the device comes to it."""

    def elapsed_us(self, first: Any, second: Any) -> float:  # noqa: ANN401
        """From one event to the other, when both are over."""

    def spin(self, microseconds: float) -> None:
        """Launch one kernel that lasts so long, on the current stream."""

    def used_by(self, tensor: Any, stream: Any) -> None:  # noqa: ANN401
        """Keep the tensor's memory until the stream is done with it."""


class Cuda:
    """The current CUDA device."""

    device = "cuda"

    def __init__(self) -> None:
        import torch

        self.torch: Any = torch
        self.compute: Any = torch.cuda.current_stream()
        self.cycles_per_us = self._cycles_per_us()

    def synchronize(self) -> None:
        self.torch.cuda.synchronize()

    def stream(self) -> Any:  # noqa: ANN401
        return self.torch.cuda.Stream()

    def on(self, stream: Any) -> AbstractContextManager[object]:  # noqa: ANN401
        context: AbstractContextManager[object] = self.torch.cuda.stream(stream)
        return context

    def wait(self, waiting: Any, awaited: Any) -> None:  # noqa: ANN401
        waiting.wait_stream(awaited)

    def mark(self) -> Any:  # noqa: ANN401
        event = self.torch.cuda.Event(enable_timing=True)
        event.record(self.compute)
        return event

    def passed(self, mark: Any) -> bool:  # noqa: ANN401
        return bool(mark.query())

    def await_mark(self, mark: Any) -> None:  # noqa: ANN401
        mark.synchronize()

    def elapsed_us(self, first: Any, second: Any) -> float:  # noqa: ANN401
        return 1000.0 * float(first.elapsed_time(second))

    def spin(self, microseconds: float) -> None:
        self.torch.cuda._sleep(max(1, int(microseconds * self.cycles_per_us)))

    def used_by(self, tensor: Any, stream: Any) -> None:  # noqa: ANN401
        tensor.record_stream(stream)

    def _cycles_per_us(self) -> float:
        """Of the clock that spinning kernels count, at the speed that the device has under load."""
        rates: list[float] = []
        for _ in range(5):
            begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            self.torch.cuda._sleep(CALIBRATING_CYCLES)
            end.record()
            end.synchronize()
            rates.append(CALIBRATING_CYCLES / (1000.0 * begin.elapsed_time(end)))
        return sorted(rates)[2]


class Rehearsed:
    """No device: everything is over when it has been called."""

    device = "cpu"
    compute: Any = None

    def synchronize(self) -> None:
        """Nothing is under way."""

    def stream(self) -> Any:  # noqa: ANN401
        return None

    def on(self, stream: Any) -> AbstractContextManager[object]:  # noqa: ANN401, ARG002
        return nullcontext()

    def wait(self, waiting: Any, awaited: Any) -> None:  # noqa: ANN401
        """Nothing is under way."""

    def mark(self) -> Any:  # noqa: ANN401
        return time.perf_counter_ns()

    def passed(self, mark: Any) -> bool:  # noqa: ANN401, ARG002
        return True

    def await_mark(self, mark: Any) -> None:  # noqa: ANN401
        """It is over."""

    def elapsed_us(self, first: Any, second: Any) -> float:  # noqa: ANN401
        return float(second - first) / 1000

    def spin(self, microseconds: float) -> None:
        """Launch nothing."""

    def used_by(self, tensor: Any, stream: Any) -> None:  # noqa: ANN401
        """Nothing is under way."""
