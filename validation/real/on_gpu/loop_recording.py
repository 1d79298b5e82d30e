"""One run of a loop under the profiler, healthy or with a fault, beside the times that the loop measures itself."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from on_gpu.accelerator import Accelerator
from on_gpu.loop_drawing import Loop, LoopFault
from on_gpu.loops import UNIT, Program, busy, product_rows

KERNELS_OF_A_TRACE: Final = 2600
FEWEST_STEPS: Final = 4
WARM_UP_MS: Final = 700.0
FEWEST_WARM_UP_STEPS, MOST_WARM_UP_STEPS = 14, 60


class Plan:
    """How many steps a recording has: before the profiler is ready, until the queue is full, and profiled."""

    def __init__(self, loop: Loop, kernels: int, step_ms: float) -> None:
        before = max(FEWEST_WARM_UP_STEPS, min(MOST_WARM_UP_STEPS, round(WARM_UP_MS / max(step_ms, 0.1))))
        self.wait = before // 3
        self.warm_up = before - self.wait
        self.active = max(FEWEST_STEPS, min(loop.steps, KERNELS_OF_A_TRACE // kernels))

    @property
    def total(self) -> int:
        return self.wait + self.warm_up + self.active


class LossReader:
    """What the host does with the loss, as drawn."""

    def __init__(self, loop: Loop, on: Accelerator) -> None:
        import torch

        self.loop, self.on = loop, on
        self.kept = [torch.zeros((), pin_memory=on.device == "cuda") for _ in range(8)]
        self.copied: list[tuple[Any, Any]] = []
        self.last = 0.0
        self.count = 0

    def step(self, loss: Any) -> None:  # noqa: ANN401
        """After every step."""
        self.count += 1
        if self.loop.sync in ("every_step", "every_k"):
            if self.count % self.loop.sync_every == 0:
                self.last = loss.item()
        elif self.loop.sync in ("copied", "lagged"):
            place = self.kept[self.count % len(self.kept)]
            place.copy_(loss, non_blocking=True)
            self.copied.append((self.on.mark(), place))
            self._read()

    def _read(self) -> None:
        if self.loop.sync == "lagged":
            if len(self.copied) > self.loop.sync_every:
                mark, place = self.copied.pop(0)
                self.on.await_mark(mark)
                self.last = float(place)
            return
        while self.copied and self.on.passed(self.copied[0][0]):
            self.last = float(self.copied.pop(0)[1])


class Recording:
    """One run of the loop under the profiler."""

    def __init__(self, program: Program, on: Accelerator, plan: Plan) -> None:
        self.program, self.on, self.plan = program, on, plan
        self.steps: list[dict[str, Any]] = []

    def run(self, trace: Path) -> dict[str, Any]:
        """Record; the times that the loop measured."""
        torch, on, plan = self.program.torch, self.on, self.plan
        kinds = [torch.profiler.ProfilerActivity.CPU]
        if on.device == "cuda":
            kinds.append(torch.profiler.ProfilerActivity.CUDA)
        on.synchronize()
        origin_ns, origin = time.time_ns(), on.mark()
        on.synchronize()
        schedule = torch.profiler.schedule(wait=plan.wait, warmup=plan.warm_up, active=plan.active, repeat=1)
        reader, marks = LossReader(self.program.loop, on), []
        with torch.profiler.profile(activities=kinds, schedule=schedule) as recorder:
            for _ in range(plan.total):
                begin = time.time_ns()
                loss = self.program.step()
                reader.step(loss)
                marks.append(on.mark())
                self.steps.append({"host_begin_ns": begin, "host_end_ns": time.time_ns()})
                recorder.step()
        on.synchronize()
        for step, mark in zip(self.steps, marks, strict=True):
            step["device_end_us"] = round(on.elapsed_us(origin, mark), 1)
        recorder.export_chrome_trace(str(trace))
        return self._measured(origin_ns, reader.last)

    def _measured(self, origin_ns: int, loss: float) -> dict[str, Any]:
        first = self.plan.wait + self.plan.warm_up
        ends = [step["device_end_us"] for step in self.steps]
        ended = zip(ends, self.steps, strict=True)
        return {
            "origin_ns": origin_ns,
            "steps": self.steps,
            "first_profiled": first,
            "period_us": round((ends[-1] - ends[first - 1]) / self.plan.active, 1),
            "period_before_us": round((ends[first - 1] - ends[first - 5]) / 4, 1),
            "device_step_us": [round(after - before, 1) for before, after in pairwise(ends)],
            "lead_us": [round(end - (step["host_end_ns"] - origin_ns) / 1000, 1) for end, step in ended],
            "loss": loss if math.isfinite(loss) else None,
        }


@contextmanager
def with_more_data(program: Program, fault: LoopFault, on: Accelerator) -> Iterator[Program]:
    """The same program with as many more examples a step as the fault says."""
    unit = UNIT[program.loop.model] * program.loop.accumulation
    times = program.examples // unit
    examples = unit * max(times + 1, round(times * (1 + fault.severity)))
    if program.loop.way == "eager" or on.device == "cpu":
        before = program.examples
        program.resize(examples)
        try:
            yield program
        finally:
            program.resize(before)
        return
    # What was captured knows no other number of examples.
    larger = Program(program.loop, examples, on)
    larger.transfer_us = program.transfer_us
    larger.enlarge_product(len(program.rows))
    larger.step()
    larger.prepare()
    yield larger


@contextmanager
def faulty(
    program: Program, fault: LoopFault, on: Accelerator, step_ms: float, chance: np.random.Generator
) -> Iterator[list[int]]:
    """The program with the fault, but for those of data and of another process; the delays of the host, in ns."""
    delays: list[int] = []
    lost_ms = fault.severity * step_ms

    def sometimes(delay: Callable[[float], None]) -> Callable[[], None]:
        def act() -> None:
            begin = time.perf_counter_ns()
            if chance.random() < fault.probability:
                delay(lost_ms)
            delays.append(time.perf_counter_ns() - begin)

        return act

    rows = len(program.rows)
    if fault.cause == "larger_product":
        program.enlarge_product(rows + product_rows(program, on, lost_ms))
    elif fault.cause == "slow_input":
        program.batches.delay = sometimes(busy)
    elif fault.cause in ("sleeping_host", "busy_python"):
        act = sometimes((lambda ms: time.sleep(ms / 1000)) if fault.cause == "sleeping_host" else count_for)
        place = "before_forward" if program.loop.seed % 2 else "before_optimizer"
        setattr(program, place, act)
    try:
        yield delays
    finally:
        if fault.cause == "larger_product":
            program.enlarge_product(rows)
        program.batches.delay = program.before_forward = program.before_optimizer = lambda: None


def count_for(milliseconds: float) -> None:
    """Python, and nothing else."""
    until = time.perf_counter_ns() + int(1e6 * milliseconds)
    counted = 0
    while time.perf_counter_ns() < until:
        for number in range(100):
            counted += number % 7
