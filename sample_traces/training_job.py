"""One rank of a small data-parallel training job on an emulated accelerator, recorded by torch.profiler.

Its matrices are too small to matter. A step takes its time because two operators keep the host waiting, as
an accelerator would: were they to compute, the ranks would fight for the cores of one small machine, and the
fight would drown the fault. The rest is real: DDP over gloo, a DataLoader, an optimizer, the profiler.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from faults import SLOW_OCCURRENCE, SLOW_OPERATOR, FaultPlan
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler
from torch.utils.data import DataLoader, Dataset, DistributedSampler

# DDP settles its buckets in the first two steps, and a profiler's first steps are slow.
WAIT_STEPS = 2
WARMUP_STEPS = 2
FIRST_RECORDED_STEP = WAIT_STEPS + WARMUP_STEPS

# The real host name would only tell whose machine made the recording.
HOST_ALIAS = "node0"

LAYERS = 3
WIDTH = 64
BATCH = 4
# Room for two of the six weights: three all-reduces a step, of which the first two overlap the backward pass.
BUCKET_MB = 0.03

FETCH_S = 0.003
DEVICE_S = {
    "kair_sample::attention": 0.003,
    "kair_sample::attention_backward": 0.006,
    "kair_sample::mlp": 0.004,
    "kair_sample::mlp_backward": 0.008,
}
HEALTHY_STEP_S = FETCH_S + LAYERS * sum(DEVICE_S.values())


def run_rank(rank: int, world_size: int, folder: str, plan: FaultPlan) -> None:
    """Train as `rank`, meet the others in `folder`, and leave `node0_<pid>.<time>.pt.trace.json` there."""
    torch.set_num_threads(1)
    torch.manual_seed(plan.seed)
    # A file to meet at, and not a port: nobody can take it before the ranks do.
    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=world_size)
    register_device_operators(plan.share_lost("slow_operator", rank) * HEALTHY_STEP_S)
    host = Host(plan, rank)
    layers = nn.Sequential(*(Layer(index, host) for index in range(LAYERS)))
    model = DistributedDataParallel(layers, bucket_cap_mb=BUCKET_MB)
    fetch_s = FETCH_S + plan.share_lost("slow_input", rank) * HEALTHY_STEP_S
    samples = Samples(plan.steps.stop * BATCH * world_size, fetch_s)
    loader = DataLoader(samples, BATCH, sampler=DistributedSampler(samples, world_size, rank, seed=plan.seed))
    with recording(len(plan.steps), folder) as profiler:
        train(model, loader, host, profiler)
    dist.destroy_process_group()


def recording(step_count: int, folder: str) -> profile:
    """A profiler that writes `step_count` steps, the first of them ProfilerStep#FIRST_RECORDED_STEP."""
    return profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=WAIT_STEPS, warmup=WARMUP_STEPS, active=step_count, repeat=1),
        on_trace_ready=tensorboard_trace_handler(folder, f"{HOST_ALIAS}_{os.getpid()}"),
        record_shapes=True,
    )


def train(model: nn.Module, loader: DataLoader[Tensor], host: Host, profiler: profile) -> None:
    """Pass once over `loader`; each batch is a step."""
    # fused: one operator in the trace, where the default writes eight for each parameter.
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)
    for step, batch in enumerate(loader):
        host.begin_step(step)
        loss = nn.functional.mse_loss(model(batch), batch)
        host.between_operators()
        loss.backward()
        host.between_operators()
        optimizer.step()
        optimizer.zero_grad()
        profiler.step()


class Host:
    """What the Python thread does between two operators: nothing, unless its rank is to be slow there."""

    # Layer.forward has four such places, train two. Backward has none: there C++ launches the operators.
    PLACES = LAYERS * 4 + 2
    STALL_PLACE = PLACES // 2

    def __init__(self, plan: FaultPlan, rank: int) -> None:
        self._busy_s = plan.share_lost("busy_host", rank) * HEALTHY_STEP_S / self.PLACES
        self._stall_s = plan.share_lost("intermittent_stall", rank) * HEALTHY_STEP_S
        self._stalled_steps = frozenset(plan.affected_steps)
        self._step = 0
        self._place = 0

    def begin_step(self, step: int) -> None:
        """Count places from the first again, in `step`."""
        self._step = step
        self._place = 0

    def between_operators(self) -> None:
        """Lose this place's time: computing in Python if the host is busy, off the processor if it stalls."""
        self._place += 1
        if self._place == self.STALL_PLACE and self._step in self._stalled_steps:
            time.sleep(self._stall_s)
        until = time.perf_counter() + self._busy_s
        while time.perf_counter() < until:
            pass


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


class Layer(nn.Module):
    """A transformer layer in outline: two real matrix products, and two operators on the emulated device."""

    def __init__(self, index: int, host: Host) -> None:
        super().__init__()
        self._index = index
        self._host = host
        self._project = nn.Linear(WIDTH, WIDTH, bias=False)
        self._expand = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, width) to the same shape."""
        self._host.between_operators()
        hidden = self._project(x)
        self._host.between_operators()
        hidden = DeviceOperator.apply(hidden, "attention", self._index)
        self._host.between_operators()
        hidden = self._expand(hidden).relu()
        self._host.between_operators()
        return x + DeviceOperator.apply(hidden, "mlp", self._index)


class DeviceContext(FunctionCtx):
    """What DeviceOperator's forward pass leaves for its backward pass."""

    name: str
    layer: int


class DeviceOperator(torch.autograd.Function):
    """The operator kair_sample::<name> forwards, kair_sample::<name>_backward backwards."""

    @staticmethod
    def forward(ctx: DeviceContext, x: Tensor, name: str, layer: int) -> Tensor:
        """Negate x."""
        ctx.name, ctx.layer = name, layer
        return getattr(torch.ops.kair_sample, name)(x, layer)

    @staticmethod
    def backward(ctx: DeviceContext, grad: Tensor) -> tuple[Tensor, None, None]:
        """Negate the gradient."""
        return getattr(torch.ops.kair_sample, f"{ctx.name}_backward")(grad, ctx.layer), None, None


def register_device_operators(slow_extra_s: float) -> None:
    """Register DEVICE_S's operators; the slow one takes `slow_extra_s` longer at its slow occurrence."""
    for name, seconds in DEVICE_S.items():
        by_layer = [seconds] * LAYERS
        if name == SLOW_OPERATOR:
            by_layer[SLOW_OCCURRENCE] += slow_extra_s
        torch.library.define(name, "(Tensor x, int layer) -> Tensor")
        torch.library.impl(name, "cpu", device_kernel(by_layer))


def device_kernel(seconds_by_layer: list[float]) -> Callable[[Tensor, int], Tensor]:
    """A kernel that takes its layer's seconds in all: the host's part first, then the emulated device's."""

    def kernel(x: Tensor, layer: int) -> Tensor:
        until = time.perf_counter() + seconds_by_layer[layer]
        y = -x
        sleep_until(until)
        return y

    return kernel


def sleep_until(until: float) -> None:
    """Sleep up to `until` on time.perf_counter's clock; return at once if it has passed."""
    time.sleep(max(0.0, until - time.perf_counter()))
