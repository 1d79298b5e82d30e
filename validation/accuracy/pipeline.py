"""A stage of a pipeline that runs 1F1B: one microbatch forward, one backward, once the pipeline is full."""

from collections.abc import Iterator

from device_operations import Operation
from layouts import JobLayout
from stage_builder import StageBuilder

STEP_MS = 90.0
"""Of a step's computing and bubbles, whatever the number of stages and microbatches."""
LAYERS_TIMES_MICROBATCHES = 8
FORWARD = (("layer_norm", 0.04), ("gemm", 0.26), ("attention", 0.28), ("tp", 0.06), ("gemm", 0.30), ("tp", 0.06))
BACKWARD = (
    ("gemm_backward", 0.28),
    ("tp", 0.04),
    ("attention_backward", 0.34),
    ("gemm_backward", 0.26),
    ("layer_norm_backward", 0.04),
    ("tp", 0.04),
)
"""What a layer runs, each with its share of the layer's time; `tp` is an all-reduce among the tensor parallel ranks."""
EMBEDDING_MS, LOSS_MS = 0.05, 0.1
P2P_MS, REDUCE_MS, GATHER_MS = 0.15, 2.0, 1.5
NORM_MS, NORM_REDUCE_MS, OPTIMIZER_MS = 0.3, 0.05, 1.5
ACTIVATION_BYTES, GRADIENT_BYTES = 32 << 20, 150 << 20


def pipeline_stage(layout: JobLayout, stage: int) -> tuple[Operation, ...]:
    """The operations of every rank of one stage: 1F1B, gradient reduction, a sharded optimizer."""
    return _Stage(layout, stage).operations()


def one_forward_one_backward(layout: JobLayout, stage: int) -> Iterator[tuple[str, int]]:
    """(direction, microbatch) in the order in which a stage runs them."""
    ahead = min(layout.pp - stage - 1, layout.microbatches)
    yield from (("forward", microbatch) for microbatch in range(ahead))
    for microbatch in range(layout.microbatches - ahead):
        yield "forward", ahead + microbatch
        yield "backward", microbatch
    yield from (("backward", microbatch) for microbatch in range(layout.microbatches - ahead, layout.microbatches))


class _Stage:
    def __init__(self, layout: JobLayout, stage: int) -> None:
        self._layout, self._stage = layout, stage
        self._builder = StageBuilder()
        self._layers = max(1, LAYERS_TIMES_MICROBATCHES // layout.microbatches)
        # A microbatch's backward takes twice as long as its forward; all stages but one idle while the pipeline fills.
        self._forward_ms = STEP_MS / (3 * (layout.microbatches + layout.pp - 1))

    def operations(self) -> tuple[Operation, ...]:
        builder = self._builder
        sent = []
        for direction, microbatch in one_forward_one_backward(self._layout, self._stage):
            step = self._forward if direction == "forward" else self._backward
            sent += step(microbatch)
        several = self._layout.dp > 1
        if several:
            sent += [builder.collective("reduce_scatter", "backward", REDUCE_MS, GRADIENT_BYTES) for _ in range(2)]
        builder.wait_for(*sent)
        # The norm of all gradients, which are clipped by it, is what all ranks of the job wait for in every step.
        builder.compute("norm", "optimizer", NORM_MS)
        builder.wait_for(builder.collective("norm_all_reduce", "optimizer", NORM_REDUCE_MS, 4, "world"))
        builder.compute("optimizer", "optimizer", OPTIMIZER_MS)
        if several:
            builder.wait_for(builder.collective("all_gather", "optimizer", GATHER_MS, GRADIENT_BYTES))
        builder.keep_loss(self._layout)
        return tuple(builder.operations)

    def _forward(self, microbatch: int) -> list[int]:
        builder, stage = self._builder, self._stage
        if stage > 0:
            builder.receive(stage - 1, "forward", P2P_MS, ACTIVATION_BYTES, microbatch=microbatch)
        else:
            builder.compute("embedding", "forward", EMBEDDING_MS, microbatch)
        self._run_layers(FORWARD, "forward", self._forward_ms, microbatch)
        if stage < self._layout.pp - 1:
            return [builder.send(stage, "forward", P2P_MS, ACTIVATION_BYTES, microbatch=microbatch)]
        builder.compute("loss", "forward", LOSS_MS, microbatch)
        return []

    def _backward(self, microbatch: int) -> list[int]:
        builder, stage = self._builder, self._stage
        if stage < self._layout.pp - 1:
            builder.receive(stage, "backward", P2P_MS, ACTIVATION_BYTES, microbatch=microbatch)
        self._run_layers(BACKWARD, "backward", 2 * self._forward_ms, microbatch)
        if stage > 0:
            return [builder.send(stage - 1, "backward", P2P_MS, ACTIVATION_BYTES, microbatch=microbatch)]
        return []

    def _run_layers(
        self, layer: tuple[tuple[str, float], ...], direction: str, total_ms: float, microbatch: int
    ) -> None:
        builder = self._builder
        for _ in range(self._layers):
            for label, share in layer:
                ms = share * total_ms / self._layers
                if label != "tp":
                    builder.compute(label, direction, ms, microbatch)
                elif self._layout.tp > 1:
                    builder.wait_for(builder.collective("all_reduce", direction, ms, ACTIVATION_BYTES, "tp"))
