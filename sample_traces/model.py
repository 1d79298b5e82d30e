"""What a rank trains and how it is slowed: the layers, their samples, and the Python thread between operators."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
import torch._dynamo.utils
from emulated_device import DEVICE_S, LAYER_S, DeviceOperator, sleep_until
from faults import SLOW_OPERATOR, UPGRADED_FACTOR, UPGRADED_OPERATOR, FaultPlan, slow_layer
from job import Job
from torch import Tensor, nn
from torch.utils.data import Dataset

WIDTH = 64
FETCH_S = 0.003


def healthy_step_s(job: Job) -> float:
    """The emulated time of a step of a rank without a fault."""
    return job.stretch * (FETCH_S + job.passes * job.layers * LAYER_S)


def fetch_s(plan: FaultPlan, job: Job, rank: int) -> float:
    """The time in which `rank` fetches a batch."""
    return job.stretch * FETCH_S + plan.share_lost("slow_input", rank) * healthy_step_s(job)


def device_seconds(plan: FaultPlan, job: Job, rank: int) -> dict[str, list[float]]:
    """The time of each device operator on `rank`, by layer."""
    step_s = healthy_step_s(job)
    on_device_s = job.stretch * job.passes * job.layers * LAYER_S
    slowdown = job.stretch * (1 + plan.share_lost("slow_host", rank) * step_s / on_device_s)
    seconds = {name: [once * slowdown] * job.layers for name, once in DEVICE_S.items()}
    if plan.fault == "upgrade":
        seconds[UPGRADED_OPERATOR] = [once * UPGRADED_FACTOR for once in seconds[UPGRADED_OPERATOR]]
        of_layer = plan.share_lost("upgrade", rank) * step_s / (job.passes * job.layers)
        seconds[SLOW_OPERATOR] = [once + of_layer for once in seconds[SLOW_OPERATOR]]
    seconds[SLOW_OPERATOR][slow_layer(job)] += plan.share_lost("slow_operator", rank) * step_s / job.passes
    return seconds


class Samples(Dataset[Tensor]):
    """Vectors of noise; a batch takes `fetch_s` seconds to fetch, whatever its size."""

    def __init__(self, count: int, fetch_s: float) -> None:
        self._vectors = torch.randn(count, WIDTH)
        self._fetch_s = fetch_s

    def __len__(self) -> int:
        return len(self._vectors)

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        until = time.perf_counter() + self._fetch_s
        vectors = [self._vectors[index] for index in indices]
        sleep_until(until)
        return vectors


class Host:
    """What the Python thread does between two operators: nothing, unless its rank is to be slow there."""

    # The backward pass has no such places: there C++ launches the operators.
    PLACES_IN_LAYER = 4
    PLACES_IN_STEP = 2

    def __init__(self, plan: FaultPlan, job: Job, rank: int) -> None:
        places = job.passes * (job.layers * self.PLACES_IN_LAYER) + self.PLACES_IN_STEP
        self._busy_s = plan.share_lost("busy_host", rank) * healthy_step_s(job) / places
        self._stall_s = plan.share_lost("intermittent_stall", rank) * healthy_step_s(job)
        self._stall_place = places // 2
        self._stalled_steps = frozenset(plan.affected_steps)
        self.more_samples = partial(plan.more_samples, rank)
        self._first_step = plan.steps.start
        self._compiled_before_s = 0.0
        self._step = 0
        self._place = 0

    @property
    def compiled_s(self) -> float:
        """How long Dynamo has compiled since the first recorded step, by its own clock."""
        return compiling_s() - self._compiled_before_s

    def begin_step(self, step: int) -> None:
        """Count places from the first again, in `step`."""
        self._step = step
        self._place = 0
        if step == self._first_step:
            self._compiled_before_s = compiling_s()

    def between_operators(self) -> None:
        """Lose this place's time: computing in Python if the host is busy, off the processor if it stalls."""
        self._place += 1
        if self._place == self._stall_place and self._step in self._stalled_steps:
            time.sleep(self._stall_s)
        until = time.perf_counter() + self._busy_s
        while time.perf_counter() < until:
            pass


def compiled(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Compile `function` anew for every size of its input, as far as no C++ compiler is needed for it."""
    torch._dynamo.config.recompile_limit = 64
    torch._dynamo.config.optimize_ddp = False
    return torch.compile(function, backend="aot_eager", dynamic=False)


def compiling_s() -> float:
    """How long Dynamo has compiled in this process."""
    return torch._dynamo.utils.calculate_time_spent()["total_wall_time"]


class Layer(nn.Module):
    """A transformer layer in outline: two real matrix products, and two operators on the emulated device."""

    def __init__(self, index: int, host: Host, *, compiles: bool) -> None:
        super().__init__()
        self._index = index
        self._host = host
        self._project = nn.Linear(WIDTH, WIDTH, bias=False)
        self._expand = nn.Linear(WIDTH, WIDTH, bias=False)
        self._expanded = compiled(self._expand.forward) if compiles else self._expand

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, width) to the same shape."""
        self._host.between_operators()
        hidden = self._project(x)
        self._host.between_operators()
        hidden = DeviceOperator.apply(hidden, "attention", self._index)
        self._host.between_operators()
        hidden = self._expanded(hidden).relu()
        self._host.between_operators()
        return x + DeviceOperator.apply(hidden, "mlp", self._index)
