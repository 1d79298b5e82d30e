"""A slow device slows all of its kernels; a family of kernels alone is its work, copies their link; by hand."""

import numpy as np
import pytest
from support.excess_builder import COMPUTE, HOST, STEP_NS, job, nothing

from kair_engine.localize.anomalies import Anomaly
from kair_engine.localize.compared import Compared
from kair_engine.localize.excess import JobExcess
from kair_engine.results.evidence_kinds import Evidence
from kair_engine.timeline.kernel_families import family_of
from kair_engine.triage.ranks.diagnosis import Diagnosis
from kair_engine.triage.ranks.within_rank import slower_throughout, within_rank

STEPS, RANKS, SLOW = 6, 4, 3
KERNELS = ("gemm", "flash", "norm", "copy", "adam")


def made(of_kernels: dict[str, float], in_all: float, *, on_device: bool = True, ranks: int = RANKS) -> JobExcess:
    """The last rank computes for 80 % of the step, `in_all` of that beyond its peers; kernels take 5 % and that."""
    slow = np.eye(ranks)[ranks - 1]
    percents = nothing(STEPS, ranks)
    percents[:, COMPUTE] += in_all * slow
    kernels = {name: np.tile(excess * slow, (STEPS, 1)) for name, excess in of_kernels.items()}
    return job(percents, operators=kernels, work=work(80 - in_all * (1 - slow)), on_device=on_device)


def work(computed: np.ndarray) -> np.ndarray:
    """(classes × ranks), or of each step: what ranks compute, and little else, in percent of the step."""
    return np.stack([computed, np.ones_like(computed), np.ones_like(computed), np.zeros_like(computed)], axis=-2)


def told(of: JobExcess, row: int = COMPUTE, kind: str = "persistent") -> Evidence | None:
    last = len(of.ranks) - 1
    found = slower_throughout(Compared(of, Anomaly(kind, (last,), row, 0.001, STEP_NS / 10)))  # type: ignore[arg-type]
    if found is None:
        return None
    assert found.cause == "compute"
    (shown,) = found.evidence
    return shown


def test_all_kernels_a_quarter_longer_are_a_slower_device() -> None:
    """Peers compute for 64 % of the step, this rank for 80: 1.25 times. So it is in each kernel of 5 %: 1.25 % more."""
    found = told(made(dict.fromkeys(KERNELS, 1.25), 16))
    assert found is not None
    assert (found.kind, found.ranks) == ("whole_device", (SLOW,))
    assert found.figures == pytest.approx(
        {"ratio": 1.25, "least_ratio": 1.25, "most_ratio": 1.25, "kernels": 5, "peers": 3}
    )


def test_kernels_need_not_take_exactly_as_much_longer() -> None:
    found = told(made(dict(zip(KERNELS, (0.8, 1.25, 1.5, 1.25, 1.0), strict=True)), 16))
    assert found is not None
    assert (found.figures["ratio"], found.figures["least_ratio"]) == pytest.approx((1.25, 1.16))


def test_of_two_ranks_the_other_is_the_peer() -> None:
    """80 % of the step beside 64, each 8 % off their median of 72; and so in kernels, 5.56 beside 4.44 %."""
    apart = np.array([-1.0, 1.0])
    percents = nothing(STEPS, 2)
    percents[:, COMPUTE] += 8 * apart
    kernels = {name: np.tile(5 / 9 * apart, (STEPS, 1)) for name in KERNELS}
    found = told(job(percents, operators=kernels, work=work(72 + 8 * apart)))
    assert found is not None
    assert (found.figures["ratio"], found.figures["peers"]) == pytest.approx((80 / 64, 1))
    assert found.figures["most_ratio"] == pytest.approx(1.25)


def test_ratios_are_against_those_that_nobody_accuses() -> None:
    """Two of four are twice as long, 60 beside 30 % of the step: their role's median, 45, is nobody's time."""
    percents = nothing(STEPS, 4)
    percents[:, COMPUTE] += np.array([-15.0, -15, 15, 15])
    kernels = {name: np.tile([-5 / 3, -5 / 3, 5 / 3, 5 / 3], (STEPS, 1)) for name in KERNELS}
    of = job(percents, operators=kernels, work=work(np.array([30.0, 30, 60, 60])))
    both, one = (Anomaly("group", places, COMPUTE, 0.001, STEP_NS / 10) for places in ((2, 3), (3,)))
    for anomaly, accused in ((both, ()), (one, (2, 3))):
        found = slower_throughout(Compared(of, anomaly), accused)
        assert found is not None
        assert (found.evidence[0].figures["ratio"], found.evidence[0].figures["peers"]) == pytest.approx((2.0, 2))
        assert found.evidence[0].figures["most_ratio"] == pytest.approx(2.0)


def test_a_device_that_became_slow_midway_has_its_factor_from_then_on() -> None:
    """64 % of the step, from step 3 on 80: 1.25 times, not the 72 of all steps beside 56."""
    percents = nothing(STEPS, RANKS)
    percents[3:, COMPUTE, SLOW] += 16
    kernels = dict.fromkeys(KERNELS, percents[:, COMPUTE] * 1.25 / 16)
    of = job(percents, operators=kernels, work=work(64 + percents[:, COMPUTE]))
    found = slower_throughout(Compared(of, Anomaly("persistent", (SLOW,), COMPUTE, 0.001, STEP_NS / 10, since=3)))
    assert found is not None
    assert found.evidence[0].figures["ratio"] == pytest.approx(1.25)


@pytest.mark.parametrize(
    "of",
    [
        pytest.param(made({**dict.fromkeys(KERNELS, 0.0), "gemm": 16.0}, 16), id="one kernel alone"),
        pytest.param(made(dict.fromkeys(KERNELS, 0.0), 16), id="only what is in no kernel of these"),
        pytest.param(made({"gemm": 1.25, "flash": 1.25, "norm": 1.25}, 16), id="too few kernels"),
        pytest.param(made(dict.fromkeys(KERNELS, 1.25), 16, on_device=False), id="threads"),
        pytest.param(made(dict.fromkeys(KERNELS, -1.0), -8), id="a faster one"),
    ],
)
def test_what_is_no_slower_device(of: JobExcess) -> None:
    assert told(of) is None


def test_delays_now_and_then_or_of_the_host_are_none() -> None:
    of = made(dict.fromkeys(KERNELS, 1.25), 16)
    assert told(of, row=HOST) is None
    assert told(of, kind="intermittent") is None


NAMES = {
    "gemm": "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNN",
    "flash_fwd": "flash::flash_fwd_kernel",
    "flash_bwd": "flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel",
    "grouped": "cutlass::gemm::GroupProblemShape",
    "norm": "vectorized_layer_norm_kernel",
    "lookup": "indexSelectLargeIndex",
    "in": "Memcpy HtoD (Pinned -> Device)",
    "out": "Memcpy DtoH (Device -> Pinned)",
}


def slow_in(percents: dict[str, float], *, others: tuple[str, ...] = ("gemm", "norm"), rest: float = 0.0) -> JobExcess:
    """The last rank takes so much longer for kernels of 5 % of the step, and `rest` in what is in no such kernel."""
    slow = np.eye(RANKS)[SLOW]
    of_kernels = {**dict.fromkeys(others, 0.0), **percents}
    in_all = nothing(STEPS, RANKS)
    in_all[:, COMPUTE] += (sum(of_kernels.values()) + rest) * slow
    return job(
        in_all,
        work=work(50 + in_all[:, COMPUTE]),
        operators={NAMES[name]: np.tile(more * slow, (STEPS, 1)) for name, more in of_kernels.items()},
    )


def of_family(of: JobExcess) -> Diagnosis | None:
    largest = Anomaly("persistent", (SLOW,), COMPUTE, 0.001, STEP_NS / 10)
    return within_rank(Compared(of, largest))


@pytest.mark.parametrize(
    ("percents", "cause", "kind", "about"),
    [
        pytest.param({"flash_fwd": 11.0, "flash_bwd": 11.0}, "uneven_work", "one_family", "attention", id="attention"),
        pytest.param({"grouped": 8.0}, "uneven_work", "one_family", "experts", id="experts"),
        pytest.param({"lookup": 8.0}, "uneven_work", "one_family", "lookups", id="lookups"),
        pytest.param({"in": 10.0, "out": 12.0}, "host_link", "one_family", "copies", id="copies in both directions"),
        pytest.param(
            {"flash_fwd": 8.0, "flash_bwd": 0.0}, "compute", "one_kernel", NAMES["flash_fwd"], id="not its backward"
        ),
        pytest.param({"gemm": 4.0, "flash_fwd": 5.0}, "compute", "one_family", "arithmetic", id="a low clock"),
        pytest.param({"in": 10.0, "out": 0.0}, "compute", "one_kernel", NAMES["in"], id="copies in one direction"),
    ],
)
def test_one_family_of_kernels_alone_is_no_slow_device(
    percents: dict[str, float], cause: str, kind: str, about: str
) -> None:
    found = of_family(slow_in(percents))
    assert found is not None
    (shown,) = found.evidence
    assert (found.cause, shown.kind, shown.about) == (cause, kind, about)
    lost = sum(percents.values())
    usual = 5 * sum(more > 0 for more in percents.values())
    assert shown.figures["excess_us_per_step"] == pytest.approx(lost / 100 * STEP_NS / 1e3)
    assert shown.figures["ratio"] == pytest.approx(1 + lost / usual)
    assert (shown.figures["others_ratio"], shown.figures["others_share"]) == pytest.approx(
        (1, (50 - usual) / (50 + lost))
    )


def test_all_that_memory_bounds_is_slow_memory() -> None:
    """35 of 50 % of the step are neither products nor named, and take twice as long, as do two kernels of 5 %."""
    found = of_family(slow_in({"norm": 5.0, "lookup": 5.0}, rest=35.0))
    assert found is not None
    (shown,) = found.evidence
    assert (found.cause, shown.about) == ("compute", "memory")
    assert (shown.figures["ratio"], shown.figures["others_ratio"]) == pytest.approx((2, 1))


@pytest.mark.parametrize(
    "of",
    [
        pytest.param(slow_in({"flash_fwd": 10.0, "gemm": 2.0}), id="products are slower, too, and not alike"),
        pytest.param(slow_in({"flash_fwd": 10.0, "flash_bwd": 10.0}, rest=15.0), id="all the rest is slower, too"),
        pytest.param(
            slow_in({"gemm": 10.0}, others=("norm",)), id="arithmetic alone: a low clock does not slow memory"
        ),
        pytest.param(slow_in({"flash_fwd": 10.0}, others=("norm",)), id="attention without products to compare"),
    ],
)
def test_what_may_be_a_slow_device_all_the_same(of: JobExcess) -> None:
    assert of_family(of) is None


@pytest.mark.parametrize(
    ("family", "names"),
    [
        (
            "attention",
            "flash_fwd_splitkv_kernel,fmha_cutlassF_bf16_aligned_64x64_rf_sm80,_attn_fwd,triton_tem_fused_flex_attention_0,"
            "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16,ck_tile::FmhaFwdKernel,mha_varlen_fwd,"
            "void pytorch_flash::flash_bwd_convert_dq_kernel,FlashAttnFwdSm90,efficient_attention_backward",
        ),
        (
            "experts",
            "fused_moe_kernel,sm90_fp8_m_grouped_gemm_contiguous,cutlass::gemm::kernel::GemmGrouped,moe_align_block_size,"
            "_grouped_mm,grouped_matmul",
        ),
        (
            "lookups",
            "indexSelectLargeIndex,embedding_dense_backward,vectorized_gather_kernel,EmbeddingBag_updateOutput",
        ),
        (
            "matrix_products",
            "ampere_bf16_s16816gemm_bf16_128x128,Cijk_Alik_Bljk_BBH,nvjet_tst_64x8,cudnn::convolve_common",
        ),
        (
            "copies_to_device",
            "Memcpy HtoD (Pageable -> Device),[CUDA memcpy Host-to-Device],CopyHostToDevice,MemcpyH2D",
        ),
        (
            "copies_from_device",
            "Memcpy DtoH (Device -> Pinned),[CUDA memcpy Device-to-Host],CopyDeviceToHost,MemcpyD2H",
        ),
        (
            "others",
            "vectorized_layer_norm_kernel,Memcpy DtoD (Device -> Device),softmax_warp_forward,Memset (Device),"
            "multi_tensor_apply_kernel,triton_poi_fused_add_0,elementwise_kernel,rms_norm",
        ),
    ],
)
def test_names_of_kernels_tell_their_family(family: str, names: str) -> None:
    assert {name: family_of(name) for name in names.split(",")} == dict.fromkeys(names.split(","), family)
