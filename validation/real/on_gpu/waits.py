"""How long a rank on a GPU waits for the others, measured by itself: the truth about it.

A collective's wait begins when the rank's own work is done, on the host and on the GPU, and ends when the host goes
on. What is left of a step is the rank's own time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

Wait = tuple[int, int]


class Waits:
    """Watches every wait of this process for a collective, while it is used as a context."""

    def __init__(self, device: str) -> None:
        self.on_gpu = device == "cuda"
        self.kind: Any = torch._C._distributed_c10d.Work
        self.wait: Any = self.kind.wait
        self.found: list[tuple[int, Any, int]] = []
        self.ready: tuple[int, Any] | None = None
        self.left = self.count = 0
        self.lock = threading.Lock()

    def __enter__(self) -> Waits:
        self.origin = self.mark()
        if self.on_gpu:
            # The GPU was idle, so the event's time is the host's.
            torch.cuda.synchronize()
            self.origin = self.mark()
            torch.cuda.synchronize()
        watcher, original = self, self.wait

        def wait(work: Any, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 -- as torch calls it
            begin = watcher.mark()
            try:
                return original(work, *arguments, **named)
            finally:
                watcher.found.append((*begin, time.time_ns()))

        self.kind.wait = wait
        return self

    def __exit__(self, *_: object) -> None:
        self.kind.wait = self.wait

    def mark(self) -> tuple[int, Any]:
        """This moment, and an event after all that the GPU has been given so far."""
        event = None
        if self.on_gpu:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        return time.time_ns(), event

    def watch_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """DDP waits where Python cannot see it: from the last gradient to the end of the backward pass."""
        self.left = self.count = len(parameters)

        def counted(_weight: torch.Tensor) -> None:
            with self.lock:
                self.left -= 1
                if self.left == 0:
                    self.left, self.ready = self.count, self.mark()

        for weight in parameters:
            weight.register_post_accumulate_grad_hook(counted)

    def backward_is_over(self) -> None:
        """The host goes on."""
        if self.ready is not None:
            self.found.append((*self.ready, time.time_ns()))
            self.ready = None

    def over(self, steps: Sequence[dict[str, Any]]) -> list[list[Wait]]:
        """The waits within each step, as nanoseconds since the epoch."""
        if self.on_gpu:
            torch.cuda.synchronize()
        waits = [(max(begin, self.at(event)), end) for begin, event, end in self.found]
        return [
            [(max(begin, step["begin_ns"]), end) for begin, end in waits if step["begin_ns"] < end <= step["end_ns"]]
            for step in steps
        ]

    def at(self, event: Any) -> int:  # noqa: ANN401 -- torch's event, or nothing
        """When the GPU came to the event; 0 without a GPU."""
        begin, origin = self.origin
        return 0 if event is None else begin + int(origin.elapsed_time(event) * 1e6)
