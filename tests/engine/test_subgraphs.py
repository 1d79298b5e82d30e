"""Scopes that a program annotated are sub-graphs: what they take, when they run, and what a fix of one saves."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.answers import recorded
from support.places import SAMPLES
from support.trace_builder import trace

from kair_engine.errors import UsageError
from kair_engine.results.fixes import parse_fix
from kair_engine.results.rank import RankProfileResult
from kair_engine.timeline.graph import scopes_named, spans_ns
from kair_engine.trace.loading import load_step
from kair_engine.views.frequency import frequency
from kair_engine.views.rank_profile import rank_profile
from kair_engine.whatif.analysis import model_of, price_fixes

SAMPLE = SAMPLES / "slow_operator"
FORWARD, OPTIMIZER = "DistributedDataParallel.forward", "Optimizer.step#SGD.step"


def scopes(result: RankProfileResult) -> dict[str, tuple[float, float, float | None]]:
    return {one.subgraph: (one.calls, one.own_us, one.span_us) for one in result.subgraphs if one.sort == "scope"}


def test_a_scope_has_what_its_thread_runs_in_it(tmp_path: Path) -> None:
    table = """
        step 0: 0+100
        0 main | block 0+60 :scope | mm 10+30 | inner 15+5 | relu 50+5 | add 70+20 | block 95+5 :scope
        0 th2 | helper 20+10
        1 main | block 0+40 :scope | mm 10+20 | relu 30+5 | add 70+20
    """
    result = rank_profile(trace(tmp_path, table), rank=0)
    assert scopes(result) == {"block": (2, 35, 65)}
    (block,) = [one for one in result.subgraphs if one.sort == "scope"]
    assert (block.typical_us, block.typical_span_us) == (30, 52.5)


def test_a_host_that_runs_ahead_is_in_a_scope_for_as_long(tmp_path: Path) -> None:
    table = """
        step 0: 0+100
        0 main | block 0+60 :scope | mm 10+30
        1 main | block 0+40 :scope | mm 10+20
    """
    ops = load_step(trace(tmp_path, table), 0)
    scopes = scopes_named(ops, lambda _: True)
    # Times count from when the device begins with the step.
    ahead = replace(ops, start_ns=ops.start_ns - 1_000_000)
    assert spans_ns(ahead, scopes).tolist() == spans_ns(ops, scopes).tolist() == [60_000, 40_000]


def test_on_a_device_a_scope_has_what_it_launches(tmp_path: Path) -> None:
    table = """
        step 0: 0+100
        0 main | outer 0+30 :scope | inner 10+10 :scope | launch 2+2 ^1 | launch 12+2 ^2 | launch 40+2 ^3
        0 gpu7 | gemm 5+20 ^1 | gemm 35+15 ^2 | gemm 60+7 ^3
    """
    assert scopes(rank_profile(trace(tmp_path, table), rank=0)) == {"outer": (1, 35, 30), "inner": (1, 15, 10)}


@pytest.mark.slow
def test_phases_and_scopes_show_where_a_slow_rank_loses_its_time() -> None:
    result = rank_profile(recorded(SAMPLE), rank=2)
    of = {one.subgraph: one.own_us - (one.typical_us or 0.0) for one in result.subgraphs}
    assert {"forward", "backward", "optimizer", "input", FORWARD, OPTIMIZER} <= set(of)
    assert of[FORWARD] > 10_000
    assert abs(of[OPTIMIZER]) < 1000


def test_the_frequency_view_knows_scopes() -> None:
    job = recorded(SAMPLE)
    begun = frequency(job, operator="Optimizer.step#")
    assert [sum(row.counts) for row in begun.counts] == [len(job.steps)] * 4
    inside, everything = frequency(job, scope="Optimizer.step#"), frequency(job)
    for within, of_all in zip(inside.counts, everything.counts, strict=True):
        assert 0 < sum(within.counts) < sum(of_all.counts)
    with pytest.raises(UsageError, match="no operation matches 'nowhere'") as error:
        frequency(job, scope="nowhere")
    assert FORWARD in str(error.value.hint)


def test_no_window_is_missing_in_which_nothing_is_expected() -> None:
    for operator in ("gloo", "kair_sample::mlp", "Optimizer.step#", None):
        for window in frequency(recorded(SAMPLE), operator=operator).degraded:
            assert window.count < window.expected


def test_a_fix_of_a_scope_is_priced() -> None:
    model = model_of(recorded(SAMPLE).select([4, 5, 6]))
    fixes = map(parse_fix, ("rank=2", f"rank=2+scope={FORWARD}", f"scope={OPTIMIZER}", f"scope={FORWARD}+kind=compute"))
    whole, forward, optimizer, compute = (one.saved_us for one in price_fixes(model, list(fixes)).fixes[:4])
    assert 0.4 * whole < forward <= whole * 1.01
    assert compute > 0.4 * whole
    assert optimizer < 0.05 * whole
    with pytest.raises(UsageError, match="nothing in the chosen steps fits scope=nowhere") as error:
        price_fixes(model, [parse_fix("scope=nowhere")])
    assert FORWARD in str(error.value.hint)
