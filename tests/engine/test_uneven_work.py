"""Work that is uneven on nobody in particular: long batches in pipelines, and what no finding explains."""

from pathlib import Path

import pytest
from compute_faults import SequenceImbalance, SlowGpu, StageImbalance
from costs import Noise
from fault_model import Fault
from layouts import JobLayout
from network_faults import SlowEdge
from simulator import JobSpec, simulate
from support.answers import triaged
from support.places import CASES
from table import write_table

from kair_engine.results.triage import TriageResult
from kair_engine.results.whatif import Fix
from kair_engine.triage.analysis import triage
from kair_tui.render.triage import triage_in_words

pytestmark = pytest.mark.slow

DP8 = JobLayout("dp", 8)
PIPELINE = JobLayout("3d", dp=2, pp=4, tp=2, microbatches=6)
needs_cases = pytest.mark.skipif(not CASES.is_dir(), reason="the cases are not beside the checkout")


def asked(
    folder: Path, layout: JobLayout, *faults: Fault, seed: int = 103, noise: float = Noise().operation
) -> tuple[TriageResult, float]:
    """The answer, and what the faults cost as a share of the step."""
    spec = JobSpec(layout, 10, seed, faults, Noise(operation=noise))
    faulty, healthy = simulate([spec])[0], simulate([spec.healthy()])[0]
    return triage(write_table(faulty, folder)), 1 - healthy.step_time_ns / faulty.step_time_ns


@pytest.mark.parametrize("seed", [103, 106])
def test_uneven_batches_of_a_pipeline_are_named_with_what_even_ones_would_save(seed: int, tmp_path: Path) -> None:
    """Two replicas, whose lengths resemble those of the step before by chance: stages tell them from a rank's speed."""
    result, cost = asked(tmp_path, PIPELINE, SequenceImbalance(0.2), seed=seed)
    (finding,) = result.findings
    assert (result.verdict, finding.cause, finding.ranks) == ("job_wide", "sequence_imbalance", ())
    assert (finding.priced_by, finding.fix) == ("replay", (Fix(kinds=("compute",), even=True),))
    assert finding.time_lost_us_per_step / result.step_time_us == pytest.approx(cost, rel=0.25)
    assert "microbatches of even length" in triage_in_words(result).findings[0].evidence[-1].sentence


@pytest.mark.parametrize("fault", [None, SlowGpu(5, 1.2), StageImbalance(2, 1.3)], ids=["healthy", "GPU", "stage"])
def test_a_pipeline_with_even_batches_has_no_uneven_ones(fault: Fault | None, tmp_path: Path) -> None:
    result, _ = asked(tmp_path, PIPELINE, *filter(None, [fault]))
    assert "sequence_imbalance" not in {finding.cause for finding in result.findings}
    assert "uneven" not in {item.kind for item in result.open}


def test_a_slow_link_s_loss_is_not_told_again_as_exposed_communication(tmp_path: Path) -> None:
    result, cost = asked(tmp_path, PIPELINE, SlowEdge(1, dp=0, tp=1, factor=40.0))
    (finding,) = result.findings
    assert (finding.cause, sorted(finding.ranks)) == ("communication", [5, 9])
    assert finding.time_lost_us_per_step / result.step_time_us == pytest.approx(cost, rel=0.05)


@pytest.mark.parametrize(("noise", "verdict"), [(0.02, "no_straggler"), (0.3, "job_wide"), (0.6, "job_wide")])
def test_work_that_another_rank_has_most_of_each_time_is_nobodys_fault(
    noise: float, verdict: str, tmp_path: Path
) -> None:
    """Every kernel of every rank takes longer or shorter by so much, each by itself."""
    result, _ = asked(tmp_path, DP8, seed=1, noise=noise)
    causes = [finding.cause for finding in result.findings]
    assert (result.verdict, causes) == (verdict, ["uneven_work"] if noise > 0.1 else [])
    assert not any(finding.ranks for finding in result.findings)
    assert ("uneven work" in triage_in_words(result).summary) == (noise > 0.1)


@needs_cases
def test_case_sequence_imbalance() -> None:
    result = triaged(CASES / "sequence_imbalance_3d" / "input")
    (finding,) = result.findings
    assert (result.verdict, finding.cause) == ("job_wide", "sequence_imbalance")
    assert finding.time_lost_us_per_step / result.step_time_us == pytest.approx(1 / 6, rel=0.25)


@needs_cases
def test_case_slow_link() -> None:
    result = triaged(CASES / "slow_link_3d" / "input")
    (finding,) = result.findings
    assert (result.verdict, finding.cause, finding.ranks) == ("straggler", "communication", (5, 9))
