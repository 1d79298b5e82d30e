"""The device operations that simulated programs are made of, as PyTorch names them."""

from dataclasses import dataclass
from typing import Final, Literal

OperationKind = Literal["compute", "collective", "send", "recv", "memory"]

MS: Final = 1e6
COMPUTE_STREAM: Final = 7
COLLECTIVE_STREAMS: Final = {"world": 16, "dp": 20, "tp": 24, "ep": 22}
P2P_STREAMS: Final = {
    ("send", "forward"): 28,
    ("recv", "forward"): 29,
    ("send", "backward"): 30,
    ("recv", "backward"): 31,
}
_STORAGE: Final = "(ncclDevKernelArgsStorage<4096ul>)"
_ELEMENTWISE: Final = "void at::native::vectorized_elementwise_kernel<4, at::native::{}>"
_GEMM: Final = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_{}_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off"
_MULTI_TENSOR: Final = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<{}>"
KERNELS: Final = {
    "embedding": "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long, 2, 2, -2, true>",
    "layer_norm": "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>",
    "gemm": _GEMM.format("tn_n"),
    "attention": "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t>>",
    "gelu": _ELEMENTWISE.format("GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)"),
    "loss": "void (anonymous namespace)::cunn_SoftMaxForward<4, float, float, float>",
    "gemm_backward": _GEMM.format("nt_n"),
    "attention_backward": "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64, 128, 8>>",
    "layer_norm_backward": "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel<c10::BFloat16, float>",
    "norm": _MULTI_TENSOR.format("LpNormFunctor<float, NormType::L2>"),
    "optimizer": _MULTI_TENSOR.format("FusedAdamMathFunctor<float, 4>"),
    "loss_sum": "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
    "copy": "Memcpy DtoH (Device -> Pageable)",
    "copy_behind": "Memcpy DtoH (Device -> Pinned)",
    "all_reduce": f"ncclDevKernel_AllReduce_Sum_bf16_RING_LL{_STORAGE}",
    "norm_all_reduce": f"ncclDevKernel_AllReduce_Sum_f32_RING_LL{_STORAGE}",
    "reduce_scatter": f"ncclDevKernel_ReduceScatter_Sum_f32_RING_LL{_STORAGE}",
    "all_gather": f"ncclDevKernel_AllGather_RING_LL{_STORAGE}",
    "p2p": f"ncclDevKernel_SendRecv{_STORAGE}",
    "all_to_all": f"ncclDevKernel_SendRecv{_STORAGE}",
}
"""By the short name that faults may use for it."""
COLLECTIVES: Final = {
    "all_reduce": ("allreduce", "c10d::allreduce_", "BFloat16"),
    "norm_all_reduce": ("allreduce", "c10d::allreduce_", "Float"),
    "reduce_scatter": ("_reduce_scatter_base", "c10d::_reduce_scatter_base_", "Float"),
    "all_gather": ("_allgather_base", "c10d::_allgather_base_", "BFloat16"),
    "all_to_all": ("all_to_allv", "c10d::alltoall_base_", "BFloat16"),
    "send": ("send", "c10d::send", "BFloat16"),
    "recv": ("recv", "c10d::recv_", "BFloat16"),
}
"""The profiler's name of a collective, the operator that issues it, and the elements it moves."""
ELEMENT_BYTES: Final = {"BFloat16": 2, "Float": 4}

_OPTIMIZER: Final = {"norm": "aten::_foreach_norm", "optimizer": "aten::_fused_adamw_"}
_FORWARD: Final = {
    "embedding": "aten::embedding",
    "layer_norm": "aten::native_layer_norm",
    "gemm": "aten::mm",
    "attention": "flash_attn::_flash_attn_forward",
    "gelu": "aten::gelu",
    "loss": "aten::_log_softmax",
    "loss_sum": "aten::add_",
}
_BACKWARD: Final = {
    "loss": "LogSoftmaxBackward0",
    "gemm_backward": "MmBackward0",
    "attention_backward": "FlashAttnFuncBackward",
    "layer_norm_backward": "NativeLayerNormBackward0",
}
_EVALUATE: Final = "autograd::engine::evaluate_function: "


@dataclass(frozen=True)
class HostScope:
    """A row of the host's thread around a launch."""

    name: str
    annotation: bool = False
    """A user's annotation, not an operator."""


@dataclass(frozen=True)
class Operation:
    """A device operation that every rank of a stage runs once in a step."""

    label: str
    kind: OperationKind
    phase: str
    stream: int
    nominal_ns: float
    """On the compute stream its duration, of communication the transfer alone."""
    awaits: tuple[int, ...]
    """Indices of earlier operations on other streams of the same rank."""
    scopes: tuple[HostScope, ...]
    """From the outermost to the innermost."""
    dimension: str | None = None
    """Of communication: which of its process groups a rank uses."""
    size: int | None = None
    """Bytes."""
    microbatch: int | None = None
    edge: int | None = None
    """Of a send or receive: the stage before the edge of the pipeline."""

    @property
    def name(self) -> str:
        """What the trace calls it."""
        return KERNELS["p2p" if self.kind in ("send", "recv") else self.label]

    @property
    def launch_name(self) -> str:
        """The call of the runtime that launches it."""
        return "cudaMemcpyAsync" if self.kind == "memory" else "cudaLaunchKernel"

    @property
    def communication(self) -> bool:
        """Whether other ranks take part."""
        return self.kind in ("collective", "send", "recv")

    @property
    def across_stages(self) -> bool:
        """Whether other pipeline stages take part."""
        return self.edge is not None or self.dimension == "world"


def compute_scopes(label: str, phase: str) -> tuple[HostScope, ...]:
    """The operators around the launch of a compute kernel."""
    if phase == "optimizer":
        return HostScope("Optimizer.step#AdamW.step", annotation=True), HostScope(_OPTIMIZER[label])
    if phase == "backward" and label in _FORWARD and label not in _BACKWARD:
        return HostScope(_EVALUATE + "CheckpointFunctionBackward"), HostScope(_FORWARD[label])
    if phase == "backward":
        return (HostScope(_EVALUATE + _BACKWARD[label]),)
    return (HostScope(_FORWARD[label]),)


def communication_scopes(label: str, phase: str) -> tuple[HostScope, ...]:
    """The operators around the launch of a collective, a send or a receive, and what marks the phase."""
    calls = (HostScope(COLLECTIVES[label][1]), HostScope("record_param_comms"))
    if phase == "optimizer":
        return (HostScope("Optimizer.step#DistributedOptimizer.step", annotation=True), *calls)
    if phase == "backward" and label in ("send", "recv"):
        return (HostScope(f"backward-{label}", annotation=True), *calls)
    if phase == "backward":
        return (HostScope(f"{_EVALUATE}torch::autograd::AccumulateGrad"), *calls)
    return calls
