"""What fixing the fault of a recorded sample saves, beside what its truth.json says the fault took."""

import json
from pathlib import Path

import pytest

from kair_engine.errors import UsageError
from kair_engine.opening import open_trace
from kair_engine.whatif.analysis import whatif
from kair_engine.whatif.fixes import parse_fix

SAMPLES = Path(__file__).parent.parent / "sample_traces"
MEGATRON = Path(__file__).parent.parent / "../shared/traces/megatron-tp8"


@pytest.mark.parametrize(
    "name", ["slow_operator", "slow_input", "busy_host", "intermittent_stall", "slow_host", "two_hosts_slow_input"]
)
def test_fixing_the_guilty_ranks_saves_about_what_the_fault_took(name: str, tmp_path: Path) -> None:
    truth = json.loads((SAMPLES / name / "truth.json").read_text())
    kind = {"compute": "compute", "input": "input", "host": "host"}[truth["cause"]]
    ranks = ",".join(map(str, truth["ranks"]))
    result = whatif(open_trace(SAMPLES / name, cache=tmp_path), [parse_fix(f"rank={ranks}+kind={kind}")])
    lost_us = truth["lost_us"] * len(truth["affected_steps"]) / len(truth["steps"])
    # Cores are shared: ranks that need not wait any more run at the same time and slow each other down. And what gloo
    # hides of a delay behind reductions in two levels is inferred from gaps.
    assert 0.75 * lost_us < result.fixes[0].saved_us < 1.4 * lost_us
    assert set(list(result.by_rank)[: len(truth["ranks"])]) == set(truth["ranks"])
    assert result.simulation_error < 0.01


def test_fixing_the_slow_operator_alone_saves_what_it_took(tmp_path: Path) -> None:
    truth = json.loads((SAMPLES / "slow_operator" / "truth.json").read_text())
    trace = open_trace(SAMPLES / "slow_operator", cache=tmp_path)
    alone, others = whatif(trace, [parse_fix(f"op={truth['operator']}"), parse_fix("op=aten::*")]).fixes[:2]
    assert alone.saved_us == pytest.approx(truth["lost_us"], rel=0.15)
    assert others.saved_us < 0.1 * truth["lost_us"]


def test_a_healthy_job_has_little_to_gain_from_any_rank(tmp_path: Path) -> None:
    result = whatif(open_trace(SAMPLES / "healthy", cache=tmp_path))
    assert max(result.by_rank.values()) - min(result.by_rank.values()) < 0.05
    assert "slow worker" not in result.verdict


@pytest.mark.skipif(not MEGATRON.is_dir(), reason="the megatron traces are not beside the checkout")
def test_fixing_ranks_0_and_6_of_megatron_saves_more_than_nothing_and_less_than_the_step(tmp_path: Path) -> None:
    result = whatif(open_trace(MEGATRON, cache=tmp_path), [parse_fix("rank=0,6+kind=host")])
    assert 0 < result.fixes[0].saved_us < result.step_time_us
    assert result.simulation_error < 0.01


@pytest.mark.parametrize("text", ["rank=99", "host=elsewhere", "stage=5", "op=no_such_operator*"])
def test_a_fix_of_something_that_the_recording_lacks_is_a_usage_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing in the chosen steps fits"):
        whatif(open_trace(SAMPLES / "healthy", cache=tmp_path), [parse_fix(text)])


def test_a_job_of_more_ranks_than_are_priced_one_by_one_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kair_engine.whatif.execution_analysis.MOST_RANKS", 3)
    result = whatif(open_trace(SAMPLES / "slow_operator", cache=tmp_path))
    assert result.by_rank == {}
    assert result.pattern == "unknown"
    assert [warning.code for warning in result.warnings] == ["too_many_workers", "upper_bound"]
    assert result.slowdown > 1.2
