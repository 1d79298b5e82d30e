"""What fixing the fault of a recorded sample saves, beside what its truth.json says the fault took."""

import json

import pytest
from support.answers import once, recorded
from support.places import MEGATRON, SAMPLES
from support.prices import delayed_error

from kair_engine.causes import CAUSES
from kair_engine.errors import UsageError
from kair_engine.results.fixes import parse_fix
from kair_engine.whatif import analysis
from kair_tui.render.warnings import warnings_in_words

pytestmark = pytest.mark.slow
whatif = once(analysis.whatif)


@pytest.mark.parametrize(
    "name",
    [
        "slow_operator",
        "slow_input",
        "busy_host",
        "intermittent_stall",
        "recompilation",
        "slow_host",
        "two_hosts_slow_input",
    ],
)
def test_fixing_the_guilty_ranks_saves_about_what_the_fault_took(name: str) -> None:
    truth = json.loads((SAMPLES / name / "truth.json").read_text())
    kind = CAUSES[truth["cause"]].fix_kind
    ranks = ",".join(map(str, truth["ranks"]))
    trace = recorded(SAMPLES / name)
    result = whatif(trace, [parse_fix(f"rank={ranks}+kind={kind}")])
    lost_us = truth["lost_us"] * len(truth["affected_steps"]) / len(truth["steps"])
    # Cores are shared: ranks that need not wait any more run at the same time and slow each other down. And what gloo
    # hides of a delay behind reductions in two levels is inferred from gaps.
    assert 0.75 * lost_us < result.fixes[0].saved_us < 1.4 * lost_us
    assert set(list(result.by_rank)[: len(truth["ranks"])]) == set(truth["ranks"])
    assert delayed_error(trace) < 0.01


def test_fixing_the_slow_operator_alone_saves_what_it_took() -> None:
    truth = json.loads((SAMPLES / "slow_operator" / "truth.json").read_text())
    trace = recorded(SAMPLES / "slow_operator")
    alone, others = whatif(trace, [parse_fix(f"op={truth['operator']}"), parse_fix("op=aten::*")]).fixes[:2]
    assert alone.saved_us == pytest.approx(truth["lost_us"], rel=0.15)
    assert others.saved_us < 0.1 * truth["lost_us"]


def test_a_healthy_job_has_little_to_gain_from_any_rank() -> None:
    result = whatif(recorded(SAMPLES / "healthy"))
    assert max(result.by_rank.values()) - min(result.by_rank.values()) < 0.05
    assert all(cause.kind != "slow_workers" for cause in result.causes)


@pytest.mark.skipif(not MEGATRON.is_dir(), reason="the megatron traces are not beside the checkout")
def test_fixing_ranks_0_and_6_of_megatron_saves_more_than_nothing_and_less_than_the_step() -> None:
    trace = recorded(MEGATRON)
    result = whatif(trace, [parse_fix("rank=0,6+kind=host")])
    assert 0 < result.fixes[0].saved_us < result.step_time_us
    assert delayed_error(trace) < 0.01


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("rank=99", "the ranks are 0-3"),
        ("host=elsewhere", "the hosts are node0"),
        ("op=no_such_operator*", "there are aten::"),
        ("rank=1+kind=gc", ""),
        ("rank=1+op=aten::mm+kind=communication", "there are gloo:all_reduce"),
    ],
)
def test_a_fix_of_something_that_the_recording_lacks_is_a_usage_error(text: str, hint: str) -> None:
    with pytest.raises(UsageError, match="nothing in the chosen steps fits") as failure:
        whatif(recorded(SAMPLES / "healthy"), [parse_fix(text)])
    assert (failure.value.hint or "").startswith(hint)


def test_stages_that_the_recording_does_not_tell_cannot_be_fixed() -> None:
    with pytest.raises(UsageError, match="does not say which ranks make up a pipeline stage") as failure:
        whatif(recorded(SAMPLES / "healthy"), [parse_fix("stage=0")])
    assert failure.value.hint is not None
    assert failure.value.hint.startswith("name the stage's ranks instead: rank=")


def test_stages_that_process_groups_tell_can_be_fixed() -> None:
    trace = recorded(SAMPLES / "pipeline_slow_operator")
    result = whatif(trace, [parse_fix("stage=0"), parse_fix("stage=1"), parse_fix("rank=1+stage=0")])
    assert list(result.by_stage) == [0, 1]
    of_slow_stage, of_other, of_rank = (fix.saved_us for fix in result.fixes[:3])
    assert 0 <= of_other < of_rank <= of_slow_stage
    with pytest.raises(UsageError, match="nothing in the chosen steps fits"):
        whatif(trace, [parse_fix("rank=1+stage=1")])


def test_a_slow_host_is_priced_as_one() -> None:
    result = whatif(recorded(SAMPLES / "slow_host"))
    assert list(result.by_host) == ["node1", "node0"]
    assert result.by_host["node1"] > 1.25
    assert result.by_host["node0"] < 1.1


def test_of_too_many_ranks_those_that_can_cost_most_are_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = recorded(SAMPLES / "slow_operator")
    everybody = whatif(trace)
    monkeypatch.setattr("kair_engine.whatif.operators.attribution.LARGEST", 0)
    monkeypatch.setattr("kair_engine.whatif.operators.attribution.FEWEST_RANKS", 2)
    few = analysis.whatif(trace)
    assert len(few.by_rank) == 2
    assert few.by_rank.items() <= everybody.by_rank.items()
    assert next(iter(few.by_rank)) == 2
    assert (few.slowdown, few.m_w, few.pattern) == (everybody.slowdown, everybody.m_w, everybody.pattern)
    assert few.by_dp_rank == {}
    (warning,) = warnings_in_words(few.warnings)
    assert warning.code == "too_many_workers"
    assert warning.message.startswith("of 4 ranks the 2 that exceed their peers most are priced one by one")
    # What the others are said to cost at most is no less than what they cost.
    bound = float(warning.message.split()[-3])
    assert all(100 * (cost - 1) <= bound for rank, cost in everybody.by_rank.items() if rank not in few.by_rank)
