"""Hosts that allocate or compile within steps, on one rank or on all; tables by hand, in µs."""

from collections.abc import Collection
from pathlib import Path

import pytest
from support.trace_builder import trace

from kair_engine.results.triage import TriageResult
from kair_engine.triage.analysis import triage

STEPS, RANKS = 10, 4


def job(folder: Path, calls: Collection[tuple[str, float]], ranks: Collection[int], every: int = 1) -> TriageResult:
    """Four ranks run two kernels of 1 ms and meet; before the second one, some `ranks` make host `calls`."""
    lines = []
    for step in range(STEPS):
        begin, late = 20_000 * step, [0.0] * RANKS
        at_begin = len(lines)
        for rank in range(RANKS):
            jitter = (7 * step + 3 * rank) % 5
            first, at = begin + 10 + jitter, begin + 100.0
            lines.append(f"{rank} main | aten::mm {begin}+6 | launch {begin + 1}+4 ^{step * 10}")
            lines.append(f"{rank} gpu7 | gemm {first}+1000 ^{step * 10}")
            for name, took in calls if rank in ranks and step % every == 0 else ():
                lines.append(f"{rank} main | {name} {at}+{took}")
                at += took
            second = max(at + 10, first + 1000)
            lines.append(f"{rank} main | aten::gelu {at}+6 | launch {at + 1}+4 ^{step * 10 + 1}")
            lines.append(f"{rank} gpu7 | gelu {second}+1000 ^{step * 10 + 1}")
            late[rank] = second + 1000
        for rank, end in enumerate(late):
            lines.append(f"{rank} gpu7 | allreduce@dp#{step} {end}+{max(late) - end + 500}")
        lines.insert(at_begin, f"step {step}: {begin}+{max(late) + 600 - begin}")
    return triage(trace(folder, "\n".join(lines)))


ALLOCATES = (("cudaFree", 1500.0), ("cudaMalloc", 500.0))
COMPILES = (("_compile.compile_inner", 2000.0),)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("calls", "cause", "operator"),
    [(ALLOCATES, "allocator", "cudaFree"), (COMPILES, "compilation", "_compile.compile_inner")],
)
def test_one_rank_that_allocates_or_compiles_is_the_straggler(
    tmp_path: Path, calls: Collection[tuple[str, float]], cause: str, operator: str
) -> None:
    """Its device idles from the first kernel's end to the second's launch, 1.1 of 2 ms that the calls take."""
    found = job(tmp_path, calls, ranks={2})
    assert found.verdict == "straggler"
    (finding,) = found.findings
    assert (finding.ranks, finding.cause) == ((2,), cause)
    (shown,) = (one for one in finding.evidence if one.kind == "in_calls")
    assert shown.figures["idle_us_per_step"] == pytest.approx(1088, abs=5)
    assert shown.figures["peers_us_per_step"] == 0
    assert finding.time_lost_us_per_step == pytest.approx(1100, rel=0.05)
    assert finding.operator in {operator, "aten::gelu"}


@pytest.mark.slow
@pytest.mark.parametrize(("calls", "cause"), [(ALLOCATES, "allocator"), (COMPILES, "compilation")])
@pytest.mark.parametrize("every", [1, 5])
def test_what_all_hosts_do_is_job_wide(
    tmp_path: Path, calls: Collection[tuple[str, float]], cause: str, every: int
) -> None:
    """1.1 ms of a step of some 3.6 in every step; in one of five four times as long, a fifth of all steps."""
    scaled = [(name, took if every == 1 else 4 * took) for name, took in calls]
    found = job(tmp_path, scaled, range(RANKS), every)
    assert found.verdict == "job_wide"
    (finding,) = found.findings
    assert (finding.cause, finding.ranks, finding.pattern) == (cause, (), "job_wide")
    lost = 1100 if every == 1 else 7100 / 5
    assert finding.time_lost_us_per_step == pytest.approx(lost, rel=0.1)


def test_one_rank_that_compiles_now_and_then_compiles(tmp_path: Path) -> None:
    found = job(tmp_path, (("compile_fx_inner", 9000.0),), ranks={1}, every=3)
    assert found.verdict == "straggler"
    (finding,) = found.findings
    assert (finding.ranks, finding.cause, finding.operator) == ((1,), "compilation", "compile_fx_inner")


def test_calls_that_no_device_waits_for_cost_nothing(tmp_path: Path) -> None:
    found = job(tmp_path, (("cudaFree", 400.0), ("cudaMalloc", 400.0)), range(RANKS))
    assert found.verdict == "no_straggler"
    assert not found.findings
