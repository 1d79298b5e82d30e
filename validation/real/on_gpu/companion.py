"""Another process that computes on the GPU when it is told to, for recordings that do not have it to themselves."""

from __future__ import annotations

import argparse
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from on_gpu.loop_parts import heard, next_line, part, tell


class Companion:
    """Another process that computes on the GPU when it is told to."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(part("companion"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.said = heard(self.process.stdout)
        self.ready = False

    def __enter__(self) -> Companion:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    @contextmanager
    def busy(self, severity: float) -> Iterator[None]:
        """Compute for the share of the time that costs the others so much. Raises RuntimeError where it is gone."""
        if not self.ready and next_line(self.said, 40.0) is None:
            raise RuntimeError("the other process cannot use the GPU")
        self.ready = True
        self._order(min(0.9, severity / (1 + severity)))
        try:
            yield
        finally:
            self._order(0.0)
            next_line(self.said, 5.0)

    def _order(self, share: float) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{share}\n")
        self.process.stdin.flush()


BURST_MS: Final = 3.0


def accompany(_options: argparse.Namespace) -> int:
    """Be the other process: for each share on stdin compute for that share of the time, until the next one."""
    import torch

    left = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(left)
    for _ in range(10):
        torch.mm(left, left, out=out)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(20):
        torch.mm(left, left, out=out)
    torch.cuda.synchronize()
    in_burst = max(1, round(BURST_MS / 1000 / ((time.perf_counter() - begin) / 20)))
    orders: queue.Queue[float] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            orders.put(float(line))
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    tell("ready")
    share = 0.0
    while True:
        if share == 0.0:
            share = orders.get()
        with suppress(queue.Empty):
            share = orders.get_nowait()
            if share == 0.0:
                tell("idle")
        if share > 0.0:
            begin = time.perf_counter()
            for _ in range(in_burst):
                torch.mm(left, left, out=out)
            torch.cuda.synchronize()
            time.sleep(min(0.05, (time.perf_counter() - begin) * (1 - share) / share))
