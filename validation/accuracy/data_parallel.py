"""A data-parallel step, with replicated (DDP) or with sharded parameters (FSDP)."""

from device_operations import Operation
from layouts import JobLayout
from stage_builder import StageBuilder

LAYERS = 4
BUCKET_MS, BUCKET_BYTES = 5.0, 200 << 20
GATHER_MS, SCATTER_MS, SHARD_BYTES = 4.0, 5.0, 200 << 20
FORWARD = (("layer_norm", 0.4), ("gemm", 2.3), ("attention", 1.6), ("gemm", 2.1), ("gelu", 0.4))
BACKWARD = (("gemm_backward", 4.6), ("attention_backward", 3.8), ("gemm_backward", 4.3), ("layer_norm_backward", 0.8))
"""Kernels of a layer with their ms."""


def data_parallel_stage(layout: JobLayout) -> tuple[Operation, ...]:
    """Gradients are reduced in a bucket per layer while the next layer's are computed; the optimizer waits for all.

    With activation checkpointing (`recomputes`) each layer's forward kernels run again before its backward ones.
    """
    stage = StageBuilder()
    buckets: list[int] = []
    for microbatch in range(layout.accumulates):
        reduces = microbatch == layout.accumulates - 1
        buckets += _forward_and_backward(stage, microbatch, recomputes=layout.recomputes, reduces=reduces)
    stage.wait_for(*buckets)
    stage.compute("optimizer", "optimizer", 4.0)
    stage.keep_loss(layout)
    return tuple(stage.operations)


def _forward_and_backward(stage: StageBuilder, microbatch: int, *, recomputes: bool, reduces: bool) -> list[int]:
    """One microbatch; returns the reductions of its gradients."""
    buckets = []
    stage.compute("embedding", "forward", 0.5, microbatch)
    for _ in range(LAYERS):
        _layer(stage, "forward", microbatch)
    stage.compute("gemm", "forward", 1.8, microbatch)
    stage.compute("loss", "forward", 0.7, microbatch)
    stage.compute("loss", "backward", 0.7, microbatch)
    stage.compute("gemm_backward", "backward", 3.4, microbatch)
    if reduces:
        buckets.append(stage.collective("all_reduce", "backward", BUCKET_MS, BUCKET_BYTES))
    for _ in range(LAYERS):
        if recomputes:
            for label, ms in FORWARD:
                stage.compute(label, "backward", ms, microbatch)
        _layer(stage, "backward", microbatch)
        if reduces:
            buckets.append(stage.collective("all_reduce", "backward", BUCKET_MS, BUCKET_BYTES))
    return buckets


def sharded_stage(layout: JobLayout) -> tuple[Operation, ...]:
    """A layer's parameters are gathered one layer ahead, forward and backward; its gradients are scattered at once."""
    stage = StageBuilder()
    ahead = stage.collective("all_gather", "forward", GATHER_MS, SHARD_BYTES)
    stage.compute("embedding", "forward", 0.5, 0)
    for layer in range(LAYERS):
        ahead = _gathered_layer(stage, "forward", ahead, last=layer == LAYERS - 1)
    stage.compute("gemm", "forward", 1.8, 0)
    stage.compute("loss", "forward", 0.7, 0)
    stage.compute("loss", "backward", 0.7, 0)
    ahead = stage.collective("all_gather", "backward", GATHER_MS, SHARD_BYTES)
    stage.compute("gemm_backward", "backward", 3.4, 0)
    scattered = []
    for layer in range(LAYERS):
        ahead = _gathered_layer(stage, "backward", ahead, last=layer == LAYERS - 1)
        scattered.append(stage.collective("reduce_scatter", "backward", SCATTER_MS, SHARD_BYTES))
    stage.wait_for(*scattered)
    stage.compute("optimizer", "optimizer", 1.0)
    stage.keep_loss(layout)
    return tuple(stage.operations)


def _gathered_layer(stage: StageBuilder, direction: str, gathered: int, *, last: bool) -> int:
    """A layer whose parameters are `gathered`; returns the gathering of the next one's, begun before."""
    ahead = gathered if last else stage.collective("all_gather", direction, GATHER_MS, SHARD_BYTES)
    stage.wait_for(gathered)
    _layer(stage, direction)
    return ahead


def _layer(stage: StageBuilder, direction: str, microbatch: int = 0) -> None:
    for label, ms in FORWARD if direction == "forward" else BACKWARD:
        stage.compute(label, direction, ms, microbatch)
