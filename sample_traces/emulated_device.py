"""Operators that keep the host waiting, as an accelerator would, instead of computing.

Were they to compute, the ranks would fight for the cores of one small machine, and the fight would drown the
fault.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

DEVICE_S = {
    "kair_sample::attention": 0.003,
    "kair_sample::attention_backward": 0.006,
    "kair_sample::mlp": 0.004,
    "kair_sample::mlp_backward": 0.008,
}
LAYER_S = sum(DEVICE_S.values())


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


def register_device_operators(seconds: Mapping[str, list[float]]) -> None:
    """Register DEVICE_S's operators; a call of one takes the `seconds` of its name and layer."""
    for name in DEVICE_S:
        torch.library.define(name, "(Tensor x, int layer) -> Tensor")
        torch.library.impl(name, "cpu", device_kernel(seconds[name]))


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
