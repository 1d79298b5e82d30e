"""A step of a mixture of experts: every rank sends its tokens to the ranks with their experts, and gets them back."""

from device_operations import Operation
from layouts import JobLayout
from stage_builder import StageBuilder

LAYERS = 4
EXCHANGE_MS, EXCHANGE_BYTES = 1.2, 48 << 20
"""Of an all-to-all; experts take equally many tokens (a capacity), so that no host has to read how many there are."""
BUCKET_MS, BUCKET_BYTES = 2.5, 100 << 20
"""Of the gradients that all ranks share: those of attention and router."""
ATTENTION = (("layer_norm", 0.4), ("gemm", 1.2), ("attention", 1.6), ("gemm", 0.8))
EXPERTS = (("gemm", 2.6), ("gelu", 0.4), ("gemm", 2.4))
EXPERTS_BACKWARD = (("gemm_backward", 5.2), ("gemm_backward", 4.8))
ATTENTION_BACKWARD = (("gemm_backward", 1.6), ("attention_backward", 3.8), ("gemm_backward", 2.2))
"""Kernels with their ms."""


def expert_stage(layout: JobLayout) -> tuple[Operation, ...]:
    """Tokens are dispatched to experts and combined in every layer; the next kernel waits for either."""
    stage = StageBuilder()
    stage.compute("embedding", "forward", 0.5, 0)
    for _ in range(LAYERS):
        _layer(stage, "forward", ATTENTION, EXPERTS)
    stage.compute("gemm", "forward", 1.8, 0)
    stage.compute("loss", "forward", 0.7, 0)
    stage.compute("loss", "backward", 0.7, 0)
    stage.compute("gemm_backward", "backward", 3.4, 0)
    buckets = []
    for _ in range(LAYERS):
        _layer(stage, "backward", (), EXPERTS_BACKWARD, ATTENTION_BACKWARD)
        buckets.append(stage.collective("all_reduce", "backward", BUCKET_MS, BUCKET_BYTES))
    stage.wait_for(*buckets)
    stage.compute("optimizer", "optimizer", 3.0)
    stage.keep_loss(layout)
    return tuple(stage.operations)


def _layer(stage: StageBuilder, direction: str, *parts: tuple[tuple[str, float], ...]) -> None:
    """The parts of a layer, and an exchange of tokens between one and the next as well as after the second."""
    for index, part in enumerate(parts):
        for label, ms in part:
            stage.compute(label, direction, ms, 0)
        if index < 2:
            stage.wait_for(stage.collective("all_to_all", direction, EXCHANGE_MS, EXCHANGE_BYTES, "ep"))
