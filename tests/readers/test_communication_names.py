"""Collectives that are not NCCL's are communication: who waits in one is no slow rank."""

from pathlib import Path

import pytest
from support.tensor_parallel import write_tensor_parallel

from kair_engine.readers.kineto.classify import NameClass, name_class_of
from kair_engine.recording.opening import open_trace
from kair_engine.triage.analysis import triage

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"


@pytest.mark.parametrize(
    "name",
    [
        NCCL,
        "userbuffers_fp16_sum_inplace_gpu_rr_rs_oop",
        "kuserbuffers_pushsend(int*, int*)",
        "void deep_ep::internode::dispatch<false, 4, true>(int4*, float*)",
        "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(__nv_bfloat16*)",
        "void dpsk::ep::internode_ll::dispatch<true, 3>(void*)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
        "void sglang::cross_device_reduce_2stage<half, 4>(sglang::RankData*)",
        "multimem_all_reduce_kernel<c10::BFloat16>",
        "void c10d::symmetric_memory::one_shot_all_reduce_kernel<float, 16>(float**)",
        "void tensorrt_llm::kernels::twoShotAllReduceKernel<half, 8>(AllReduceParams)",
        "nvshmemi_transfer_rma_p2p<long>",
        "HcclAllReduce",
        "hcom_allReduce__123_0",
        "triton_all_gather_0",
    ],
)
def test_kernels_that_communicate(name: str) -> None:
    assert name_class_of(name) is NameClass.DEVICE_COLLECTIVE


@pytest.mark.parametrize(
    "name",
    [
        "void deep_ep::layout::get_dispatch_layout<256, 32>(long const*)",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >",
        "small_reduce_kernel",
        "void at::native::vectorized_gather_kernel<16, long>",
        "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn",
        "all_gather_gemm_kernel",
    ],
)
def test_kernels_that_compute(name: str) -> None:
    assert name_class_of(name) is NameClass.PLAIN


def test_of_two_tensor_parallel_groups_only_the_slow_rank_is_accused(tmp_path: Path) -> None:
    """Its three innocent peers spend as much longer in the kernel as they wait for it."""
    job = write_tensor_parallel(
        tmp_path / "job", collective="userbuffers_fp16_sum_inplace_gpu_rr_rs_oop", slow={1: 1.3}
    )
    result = triage(open_trace(job, cache=tmp_path / "cache", workers=1))
    assert (result.verdict, [finding.ranks for finding in result.findings]) == ("straggler", [(1,)])


def test_a_fault_that_no_replay_can_price_is_told_at_its_estimate(tmp_path: Path) -> None:
    """Groups of different programs that name no group: nothing matches, so a replay would save nothing."""
    job = write_tensor_parallel(tmp_path / "job", collective=NCCL, slow={1: 1.3}, layers=(4, 5))
    result = triage(open_trace(job, cache=tmp_path / "cache", workers=1))
    assert (result.verdict, [finding.ranks for finding in result.findings]) == ("straggler", [(1,)])
    (finding,) = result.findings
    assert (finding.priced_by, finding.time_lost_us_per_step) == ("excess", pytest.approx(480, rel=0.05))
    assert any("60 of 60 collectives could not be matched" in warning.message for warning in result.warnings)
