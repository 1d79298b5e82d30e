"""Training loops of one process on one GPU, as drawn, recorded beside the device time that the loop measures itself.

Where DistributedDataParallel would reduce a bucket of gradients, a kernel on a second stream stands for the
collective: it lasts as long as the bucket would take at the drawn bandwidth, and what follows waits for it as it
would wait for the collective. Every place where a stream waits for another one has a range of its own, so that
`compose.py` finds them:

- `nccl:all_reduce`: the second stream waits for what was launched on the compute stream, then runs the stand-in;
- `wait_all_reduce`: the compute stream waits for the second one, before the optimizer;
- `copy_ahead`: the next batch is copied on a third stream; `wait_copy`: the compute stream waits for that one.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import numpy as np

from on_gpu.accelerator import Accelerator
from on_gpu.loop_drawing import HEALTHY, Loop

COMPILE_LIMIT_S: Final = 20
FEATURES: Final = 256
WORDS: Final = 8192
SEQUENCE: Final = 256
IMAGE: Final = 32
PRODUCT_WIDTH: Final = 4096
"""Of the product that a fault makes larger; the same in every loop."""
PRODUCT_SHARE: Final = 0.04
"""Of a step, without the fault."""
UNIT: Final = {"mlp": 64, "transformer": 1, "convolution": 8}
"""Examples are a multiple of this."""
MOST_TRANSFER: Final = 0.4
"""Of a step, by kernels that stand for collectives."""


class TooSlowError(Exception):
    """Something took longer than it may."""


class Batches:
    """The dataset: batches that are there already, after some work of the host for each."""

    def __init__(self, pool: list[Any], work_ms: float) -> None:
        self.pool, self.work_ms = pool, work_ms
        self.delay: Callable[[], object] = lambda: None

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401
        busy(self.work_ms)
        self.delay()
        return self.pool[index % len(self.pool)]


class Program:
    """The model, its input and its step."""

    def __init__(self, loop: Loop, examples: int, on: Accelerator) -> None:
        import torch

        self.torch: Any = torch
        self.loop, self.on = loop, on
        torch.manual_seed(loop.seed)
        self.stem, self.body = make_model(loop, on.device)
        self.parameters = [*self.stem.parameters(), *self.body.parameters()]
        self.optimizer = make_optimizer(loop, self.parameters)
        self.communication, self.copies = on.stream(), on.stream()
        self.forward_body: Callable[[Any], Any] = self.run_blocks
        self.graph: Any = None
        self.hooked = True
        self.last_part = True
        self.transfer_us = [0.0] * loop.buckets
        self.alone_ms = (0.0, 0.0)
        """Of a step on the device where all is launched already, and of launching it."""
        self.before_forward: Callable[[], object] = lambda: None
        self.before_optimizer: Callable[[], object] = lambda: None
        self._make_buckets()
        self._make_product(UNIT["mlp"])
        self.resize(examples)

    def resize(self, examples: int) -> None:
        """Train on so many examples a step."""
        torch = self.torch
        self.examples = examples
        first = make_batch(self.loop, examples)
        pool = [first, first.clone()]
        if self.on.device == "cuda" and self.loop.input in ("pinned", "pinned_ahead"):
            pool = [batch.pin_memory() for batch in pool]
        if self.loop.input == "on_device":
            pool = [batch.to(self.on.device) for batch in pool]
        self.batches = Batches(pool, self.loop.input_ms)
        self.loader = iter(torch.utils.data.DataLoader(self.batches, batch_size=None, num_workers=0))
        self.ahead: Any = None

    def step(self) -> Any:  # noqa: ANN401
        """One step; the loss, on the device."""
        given = self._next_batch()
        self.before_forward()
        for flat in self.buckets:
            flat.zero_()
        if self.graph is not None:
            self.static_batch.copy_(given)
            self.graph.replay()
            for bucket in range(len(self.buckets)):
                self._reduce(bucket)
            loss = self.static_loss
        else:
            loss = self._forward_and_backward(given)
        self.torch.mm(self.rows, self.weights, out=self.product)
        with self.torch.profiler.record_function("wait_all_reduce"):
            self.on.wait(self.on.compute, self.communication)
        self.before_optimizer()
        if self.loop.clipped:
            self.torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        return loss

    def prepare(self) -> None:
        """Capture or compile, as drawn. Raises TooSlowError."""
        if self.loop.way == "compile":
            with limit(COMPILE_LIMIT_S):
                self.forward_body = self.torch.compile(self.body)
                self.step()
                self.on.synchronize()
        elif self.on.device == "cuda" and self.loop.way == "graphed_blocks":
            self._graph_blocks()
        elif self.on.device == "cuda" and self.loop.way == "whole_graph":
            self._graph_all()

    def enlarge_product(self, rows: int) -> None:
        """Have so many rows in the product."""
        self._make_product(rows)

    def precision(self) -> AbstractContextManager[object]:
        """What the forward pass runs in; captured casts are made anew in every pass."""
        context: AbstractContextManager[object] = self.torch.autocast(
            self.on.device,
            self.torch.bfloat16,
            enabled=self.loop.precision == "bfloat16",
            cache_enabled=self.loop.way in ("eager", "compile"),
        )
        return context

    def run_blocks(self, hidden: Any) -> Any:  # noqa: ANN401
        """The blocks one after the other."""
        for block in self.body:
            hidden = block(hidden)
        return hidden

    def _next_batch(self) -> Any:  # noqa: ANN401
        if self.loop.input != "pinned_ahead":
            return next(self.loader).to(self.on.device, non_blocking=True)
        if self.ahead is None:
            self._copy_ahead()
        with self.torch.profiler.record_function("wait_copy"):
            self.on.wait(self.on.compute, self.copies)
        given = self.ahead
        self.on.used_by(given, self.on.compute)
        self._copy_ahead()
        return given

    def _copy_ahead(self) -> None:
        batch = next(self.loader)
        with self.torch.profiler.record_function("copy_ahead"), self.on.on(self.copies):
            self.ahead = batch.to(self.on.device, non_blocking=True)

    def _forward_and_backward(self, given: Any) -> Any:  # noqa: ANN401
        parts = given.chunk(self.loop.accumulation)
        for index, part in enumerate(parts):
            self.last_part = index == len(parts) - 1
            self.left = list(self.in_bucket)
            with self.precision():
                loss = self.forward_body(self.stem(part)).float().square().mean()
            loss.backward()
        return loss.detach()

    def _make_buckets(self) -> None:
        """Gradients as parts of flat tensors, the last parameters' first; a collective for each tensor."""
        total = sum(weight.numel() for weight in self.parameters)
        share, members, seen = math.ceil(total / self.loop.buckets), [], 0
        for weight in reversed(self.parameters):
            members.append((seen // share, weight))
            seen += weight.numel()
        used = sorted({bucket for bucket, _ in members})
        self.buckets, self.in_bucket = [], []
        for place, bucket in enumerate(used):
            weights = [weight for of, weight in members if of == bucket]
            flat = self.torch.zeros(sum(weight.numel() for weight in weights), device=self.on.device)
            for weight, part in zip(weights, flat.split([weight.numel() for weight in weights]), strict=True):
                weight.grad = part.view_as(weight)
                weight.register_post_accumulate_grad_hook(self._counting(place))
            self.buckets.append(flat)
            self.in_bucket.append(len(weights))
        self.left = list(self.in_bucket)

    def _counting(self, bucket: int) -> Callable[[Any], None]:
        def ready(_weight: Any) -> None:  # noqa: ANN401
            if self.hooked and self.last_part:
                self.left[bucket] -= 1
                if self.left[bucket] == 0:
                    self._reduce(bucket)

        return ready

    def _reduce(self, bucket: int) -> None:
        """What stands for the collective."""
        with self.torch.profiler.record_function("nccl:all_reduce"):
            self.on.wait(self.communication, self.on.compute)
            with self.on.on(self.communication):
                self.on.spin(self.transfer_us[bucket])

    def set_transfers(self, step_ms: float) -> None:
        """How long each bucket's collective would take, in a step of so long."""
        ring = 2 * (HEALTHY - 1) / HEALTHY
        wanted = [8.0 + 4e-3 * flat.numel() * ring / self.loop.bandwidth for flat in self.buckets]
        shorter = min(1.0, MOST_TRANSFER * 1000 * step_ms / sum(wanted))
        self.transfer_us = [one * shorter for one in wanted]

    def _make_product(self, rows: int) -> None:
        torch, kind = self.torch, self.torch.bfloat16 if self.loop.precision == "bfloat16" else self.torch.float32
        self.rows = torch.zeros(rows, PRODUCT_WIDTH, dtype=kind, device=self.on.device)
        self.weights = torch.zeros(PRODUCT_WIDTH, PRODUCT_WIDTH, dtype=kind, device=self.on.device)
        self.product = torch.empty(rows, PRODUCT_WIDTH, dtype=kind, device=self.on.device)

    def _graph_blocks(self) -> None:
        """Every block's forward and backward pass is a graph."""
        part = self.batches.pool[0].to(self.on.device).chunk(self.loop.accumulation)[0]
        samples = []
        with self.precision():
            with self.torch.no_grad():
                hidden = self.stem(part)
                for block in self.body:
                    samples.append((self.torch.randn_like(hidden).requires_grad_(),))
                    hidden = block(hidden)
            blocks = self.torch.cuda.make_graphed_callables(tuple(self.body), tuple(samples))
        self.graphed = list(blocks)

        def run(hidden: Any) -> Any:  # noqa: ANN401
            for block in self.graphed:
                hidden = block(hidden)
            return hidden

        self.forward_body = run

    def _graph_all(self) -> None:
        """Forward and backward passes are one graph."""
        self.static_batch = self.batches.pool[0].to(self.on.device).clone()
        self.hooked = False
        for _ in range(3):
            self._forward_and_backward(self.static_batch)
        self.on.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph, stream=self.on.compute):
            self.static_loss = self._forward_and_backward(self.static_batch)
        self.graph = graph


def make_model(loop: Loop, device: str) -> tuple[Any, Any]:
    """What makes numbers of the input, and the blocks."""
    from torch import nn

    width = loop.width
    if loop.model == "mlp":
        stem: Any = nn.Linear(FEATURES, width)
        blocks = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(loop.blocks)]
    elif loop.model == "transformer":
        stem = nn.Embedding(WORDS, width)
        heads = max(1, width // 64)
        blocks = [
            nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(loop.blocks)
        ]
    else:
        stem = nn.Conv2d(3, width, 3, padding=1)
        blocks = [
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
            for _ in range(loop.blocks)
        ]
    return stem.to(device), nn.Sequential(*blocks).to(device)


def make_batch(loop: Loop, examples: int) -> Any:  # noqa: ANN401
    """A batch in the host's memory."""
    import torch

    if loop.model == "mlp":
        return torch.randn(examples, FEATURES)
    if loop.model == "transformer":
        return torch.randint(WORDS, (examples, SEQUENCE))
    return torch.randn(examples, 3, IMAGE, IMAGE)


def make_optimizer(loop: Loop, parameters: list[Any]) -> Any:  # noqa: ANN401
    """AdamW with the kernels drawn."""
    from torch import optim

    ways = {"fused": {"fused": True}, "foreach": {"foreach": True}, "for_loop": {"foreach": False, "fused": False}}
    return optim.AdamW(parameters, lr=1e-5, **ways[loop.optimizer])


def busy(milliseconds: float) -> None:
    """Compute on the host for so long."""
    until = time.perf_counter_ns() + int(1e6 * milliseconds)
    numbers = np.arange(512.0)
    while time.perf_counter_ns() < until:
        numbers = np.sort(numbers)[::-1]


@contextmanager
def limit(seconds: int) -> Iterator[None]:
    """Raises TooSlowError where what is inside takes longer."""

    def late(*_: object) -> None:
        raise TooSlowError(f"took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def alone_ms(program: Program, on: Accelerator) -> tuple[float, float]:
    """What a step takes on the device where all is launched already, and what launching it takes, in ms.

    A kernel that spins holds the device back meanwhile.
    """
    steps = []
    for _ in range(3):
        on.synchronize()
        on.spin(40_000.0)
        begun, mark = time.perf_counter_ns(), on.mark()
        program.step()
        end, launched = on.mark(), time.perf_counter_ns()
        on.synchronize()
        steps.append((on.elapsed_us(mark, end) / 1000, (launched - begun) / 1e6))
    device = sorted(one for one, _ in steps)[1]
    return device, sorted(one for _, one in steps)[1]


def calibrated(loop: Loop, on: Accelerator, *, shortest: bool = False) -> Program:
    """The program with as many examples as a step of the drawn time takes, captured or compiled as drawn.

    `shortest` takes as few examples as there can be, for a rehearsal.
    """
    unit = UNIT[loop.model] * loop.accumulation
    program = Program(loop, unit, on)
    for _ in range(2):
        program.step()
    times = 1
    for _ in range(0 if shortest else 5):
        device_ms, _ = alone_ms(program, on)
        wanted = max(1, min(64 * times, round(times * loop.step_ms * (1 - PRODUCT_SHARE) / max(device_ms, 1e-3))))
        if abs(wanted - times) <= 0.08 * times:
            break
        times = wanted
        program.resize(unit * times)
        program.step()
    program.set_transfers(loop.step_ms)
    program.enlarge_product(product_rows(program, on, PRODUCT_SHARE * loop.step_ms))
    program.prepare()
    program.step()
    program.alone_ms = alone_ms(program, on)
    on.synchronize()
    return program


def period_ms(program: Program, on: Accelerator) -> float:
    """What a step takes where others go before and after it, in ms."""
    for _ in range(3):
        program.step()
    first, steps = on.mark(), 5
    for _ in range(steps):
        program.step()
    last = on.mark()
    on.synchronize()
    return on.elapsed_us(first, last) / 1000 / steps


def product_rows(program: Program, on: Accelerator, milliseconds: float) -> int:
    """So many rows that the product takes so long."""
    if on.device == "cpu":
        return UNIT["mlp"]
    rows = PRODUCT_WIDTH
    program.enlarge_product(rows)
    took = []
    for _ in range(4):
        first = on.mark()
        for _ in range(4):
            program.torch.mm(program.rows, program.weights, out=program.product)
        last = on.mark()
        on.synchronize()
        took.append(on.elapsed_us(first, last) / 4000)
    return int(max(128, 128 * round(rows * milliseconds / min(took) / 128)))


def kernels_of_a_step(program: Program, on: Accelerator) -> int:
    """How many operations of the device a step has, as the profiler counts them."""
    torch = program.torch
    if on.device == "cpu":
        return 100
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorder:
        program.step()
        on.synchronize()
    of_device = torch.autograd.DeviceType.CUDA
    return max(1, sum(bool(event.device_type() == of_device) for event in recorder.profiler.kineto_results.events()))
