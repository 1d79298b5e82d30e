"""What names say: collectives that are not NCCL's are communication, ranges around a fetch are input."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tensor_parallel import write_tensor_parallel

from kair_engine.localize.analysis import localize
from kair_engine.readers.kineto import classify
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


@pytest.mark.parametrize(
    "name", ["data", "Input", "data_loading", "load batch", "get_next_batch", "dataload", "fetch-data"]
)
def test_ranges_around_fetching_a_batch(name: str) -> None:
    assert name_class_of(name) is NameClass.DATA_LOADER


@pytest.mark.parametrize("name", ["data_parallel", "batch", "aten::batch_norm", "input_projection", "database"])
def test_ranges_around_something_else(name: str) -> None:
    assert name_class_of(name) is NameClass.PLAIN


@pytest.mark.slow
@given(data=st.data())
def test_a_name_is_of_the_first_class_whose_pattern_it_has(data: st.DataObject) -> None:
    """Whatever words are looked for before."""
    patterns = [(name_class, pattern) for name_class, _, pattern in classify._RULES]
    pattern = data.draw(st.sampled_from([pattern for _, pattern in patterns]))
    name = data.draw(st.from_regex(pattern))
    found = next((name_class for name_class, one in patterns if one.match(name)), NameClass.PLAIN)
    assert name_class_of(name) is found


UNKNOWN = "void house_kernels::push<__nv_bfloat16, 8>(int*)"


@pytest.mark.slow
@pytest.mark.parametrize("collective", ["userbuffers_fp16_sum_inplace_gpu_rr_rs_oop", UNKNOWN])
def test_of_two_tensor_parallel_groups_only_the_slow_rank_is_accused(tmp_path: Path, collective: str) -> None:
    """Its three innocent peers spend as much longer in the kernel as they wait for it, whatever that is called."""
    job = write_tensor_parallel(tmp_path / "job", collective=collective, slow={1: 1.3})
    trace = open_trace(job, cache=tmp_path / "cache", workers=1)
    result = triage(trace)
    assert (result.verdict, [finding.ranks for finding in result.findings]) == ("straggler", [(1,)])
    told = [warning.message for warning in result.warnings if warning.code == "unknown_communication"]
    assert [UNKNOWN in message for message in told] == [True] * (collective == UNKNOWN)
    assert [row.rank for row in localize(trace).scores if row.flagged] == [1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "slow", "priced_by", "unmatched"), [((4, 5), 1.3, "replay", False), ((4, 4), 2.0, "excess", True)]
)
def test_collectives_that_name_no_group_are_matched_where_programs_tell_them_apart(
    tmp_path: Path, layers: tuple[int, int], slow: float, priced_by: str, unmatched: bool
) -> None:
    """Of one program, and at paces of their own, groups cannot be told apart: the fault is told at its estimate."""
    job = write_tensor_parallel(tmp_path / "job", collective=NCCL, slow={1: slow}, layers=layers)
    result = triage(open_trace(job, cache=tmp_path / "cache", workers=1))
    assert (result.verdict, [finding.ranks for finding in result.findings]) == ("straggler", [(1,)])
    assert result.findings[0].priced_by == priced_by
    assert any(warning.code == "unmatched_collectives" for warning in result.warnings) == unmatched
    if unmatched:
        assert result.findings[0].time_lost_us_per_step == pytest.approx(1600, rel=0.05)
