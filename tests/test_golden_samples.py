"""The recordings in sample_traces, made with known faults: the triage says what their truth.json says."""

import json
from pathlib import Path
from typing import Any

import pytest

from kair_engine.model import Trace
from kair_engine.opening import open_trace
from kair_engine.results import SensitivityResult, TriageResult
from kair_engine.sensitivity import sensitivity
from kair_engine.stages.blame import blame
from kair_engine.stages.localize import localize
from kair_engine.stages.pinpoint import pinpoint
from kair_engine.triage import triage

SAMPLES = Path(__file__).resolve().parents[1] / "sample_traces"
HEALTHY_STEP_US = 66_000
"""What a severity of 1 costs (training_job.py, HEALTHY_STEP_S)."""

Sample = tuple[dict[str, Any], Trace, TriageResult]


@pytest.fixture(scope="module", params=sorted(path.parent.name for path in SAMPLES.glob("*/truth.json")))
def sample(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sample:
    folder = SAMPLES / request.param
    trace = open_trace(folder, cache=tmp_path_factory.mktemp("cache"))
    return json.loads((folder / "truth.json").read_text()), trace, triage(trace)


def test_the_verdict_is_the_truth(sample: Sample) -> None:
    truth, trace, found = sample
    assert list(trace.steps) == truth["steps"]
    assert found.verdict == ("no_straggler" if truth["rank"] is None else "straggler")
    assert [finding.ranks for finding in found.findings] == ([] if truth["rank"] is None else [(truth["rank"],)])


def test_the_finding_is_the_fault(sample: Sample) -> None:
    truth, _, found = sample
    for finding in found.findings:
        assert (finding.cause, finding.pattern) == (truth["cause"], truth["pattern"])
        assert list(finding.steps) == truth["affected_steps"]
        if truth["operator"] is not None:
            assert finding.operator == truth["operator"]
        severity = truth["severity"] * len(truth["affected_steps"]) / len(truth["steps"])
        assert finding.time_lost_us_per_step == pytest.approx(severity * HEALTHY_STEP_US, rel=0.15)


def test_every_stage_points_at_the_guilty_rank(sample: Sample) -> None:
    truth, trace, found = sample
    if truth["rank"] is None:
        return
    assert found.ranking[0].rank == localize(trace).scores[0].rank == truth["rank"]
    result = blame(trace)
    assert result.by_rank[0].rank == truth["rank"]
    assert result.by_rank[0].share > 0.9
    of_guilty = [cause for cause in result.root_causes if cause.rank == truth["rank"]]
    assert of_guilty[0].cause == truth["cause"]
    if truth["operator"] is not None:
        first = pinpoint(trace, rank=truth["rank"]).outliers[0]
        assert first.operator == truth["operator"]
        assert truth["occurrence"] in {None, first.occurrence}


def smallest(trace: Trace) -> dict[str, float | None]:
    result: SensitivityResult = sensitivity(trace, draws=40)
    return {fault.fault: fault.smallest_share_of_step for fault in result.faults}


def test_the_recording_says_that_it_shows_a_fault_of_that_size(sample: Sample) -> None:
    truth, trace, _ = sample
    if truth["rank"] is None:
        return
    kinds = {"compute": "slow_operator", "input": "slow_input", "host": "slow_host"}
    kind = "stall" if truth["pattern"] == "intermittent" else kinds[truth["cause"]]
    result = sensitivity(trace, draws=40)
    (fault,) = (fault for fault in result.faults if fault.fault == kind)
    assert result.corrected_ranks == (truth["rank"],)
    assert fault.smallest_us_per_step is not None
    severity = truth["severity"] * len(truth["affected_steps"]) / len(truth["steps"])
    assert fault.smallest_us_per_step < severity * HEALTHY_STEP_US


def test_what_the_healthy_recording_can_show(tmp_path: Path) -> None:
    found = smallest(open_trace(SAMPLES / "healthy", cache=tmp_path))
    expected = {"slow_device": 0.055, "slow_operator": 0.026, "slow_input": 0.018, "slow_host": 0.06, "stall": 0.125}
    for fault, share in expected.items():
        assert found[fault] == pytest.approx(share, rel=0.4), fault
    assert found["slow_link"] is None
