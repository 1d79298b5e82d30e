"""Every evidence of a finding can be checked: its sentence says its figures, and its command shows the same."""

import json
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from compute_faults import ChangingCulprit, SequenceImbalance, SlowGpu, StageImbalance
from fault_model import Fault
from host_faults import GarbageCollection
from layouts import JobLayout
from network_faults import SlowEdge, SlowLink
from simulator import JobSpec, simulate
from support import answers
from support.cli_samples import kair, store_variables
from support.evidence_figures import check, unsaid_figures
from support.pauses_builder import table
from support.places import ROOT
from support.trace_builder import trace
from table import write_table

from kair.app.jobs import JobSource
from kair_engine.trace.batches import keeping_steps
from kair_engine.trace.model import Trace

Ask = Callable[[str], dict[str, Any]]
DP8 = JobLayout("dp", 8)
PIPELINE = JobLayout("3d", dp=2, pp=2, tp=4, microbatches=3)


def recorded(source: Path) -> Callable[[Path], Trace]:
    def made(_: Path) -> Trace:
        if not source.exists():
            pytest.skip(f"{source} is not on this machine")
        return answers.recorded(source)

    return made


def simulated(layout: JobLayout, *faults: Fault, steps: int = 12) -> Callable[[Path], Trace]:
    return lambda folder: write_table(simulate([JobSpec(layout, steps, 3, faults)])[0], folder)


JOBS: dict[str, tuple[Callable[[Path], Trace], set[str]]] = {
    "slow_operator": (recorded(ROOT / "sample_traces" / "slow_operator"), {"slow_operator", "made_late"}),
    "slow_input": (recorded(ROOT / "sample_traces" / "slow_input"), {"slow_operator", "made_late"}),
    "intermittent_stall": (recorded(ROOT / "sample_traces" / "intermittent_stall"), {"large_delays", "made_late"}),
    "busy_host": (recorded(ROOT / "sample_traces" / "busy_host"), {"excess"}),
    "slow_host": (recorded(ROOT / "sample_traces" / "slow_host"), {"excess"}),
    "pipeline_slow_operator": (
        recorded(ROOT / "sample_traces" / "pipeline_slow_operator"),
        {"excess", "slow_operator", "made_late"},
    ),
    "one step": (lambda folder: trace(folder, table(1, 6, {2: [0, 1, 2, 3, 5], 6: [4]})), {"host_pauses", "made_late"}),
    "two slow GPUs": (simulated(DP8, SlowGpu(2, 1.2), SlowGpu(5, 1.2)), {"excess", "whole_device"}),
    "slow link": (simulated(PIPELINE, SlowLink(2, 4.0)), {"slow_link"}),
    "slow edge": (simulated(PIPELINE, SlowEdge(0, dp=1, tp=2, extra_ms=5)), {"slow_link", "links_in_common"}),
    "uneven stage": (simulated(PIPELINE, StageImbalance(1, 1.4)), {"uneven_stages"}),
    "uneven sequences": (simulated(DP8, SequenceImbalance(0.3)), {"uneven_batches", "longest_batch"}),
    "garbage collection": (simulated(DP8, GarbageCollection(0.1, 40)), {"delays_on_changing_ranks", "longest_delays"}),
    "changing culprit": (simulated(DP8, ChangingCulprit(1.5)), {"delays_on_changing_ranks", "longest_delays"}),
    "production, ST": (recorded(ROOT.parent / "shared/traces/bytedance/trace-ST.parquet"), {"uneven_stages"}),
    "production, SE": (
        recorded(ROOT.parent / "shared/traces/bytedance/trace-SE.parquet"),
        {"uneven_batches", "longest_batch", "uneven_stages"},
    ),
}
"""Jobs, and the kinds of sentences that are said about them, besides who came last."""


@pytest.fixture(params=JOBS)
def job(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Ask, set[str]]:
    """How to ask kair about the job, and the kinds of sentences it shall say."""
    make, kinds = JOBS[request.param]
    made = keeping_steps(make(tmp_path / "job"))
    store_variables(monkeypatch, tmp_path)
    monkeypatch.setattr("kair.app.jobs.open_source", lambda *_, **__: made)
    source = JobSource("the-job", tmp_path / "job", stored=False)
    monkeypatch.setattr("kair_tui.cli.wanted.locate", lambda *_, **__: source)

    @cache
    def ask(command: str) -> dict[str, Any]:
        name, *arguments = shlex.split(command)[1:]
        outcome = kair(name, "the-job", *arguments, "--json")
        assert outcome.status == 0, outcome.err
        data: dict[str, Any] = json.loads(outcome.out)["data"]
        return data

    return ask, kinds


def longer_on_equal_inputs(ask: Ask, rank: int) -> float:
    """What a rank spends beyond its role's median on operators that the role gives equally much, µs a step."""
    operators, roles = (
        ask("kair operators --by-rank"),
        {one["rank"]: one["role"] for one in ask("kair localize")["scores"]},
    )
    role = [place for place, one in enumerate(operators["ranks"]) if roles[one] == roles[rank]]
    telling = [one for one in operators["operators"] if one["by_rank_input_bytes"]]
    alike = [one for one in telling if len({one["by_rank_input_bytes"][place] for place in role}) == 1]
    own = operators["ranks"].index(rank)
    return sum(max(one["by_rank_us"][own] - median(one["by_rank_us"][place] for place in role), 0) for one in alike)


@pytest.mark.slow
@pytest.mark.usefixtures("own_places")
def test_the_command_shows_what_the_evidence_says(job: tuple[Ask, set[str]]) -> None:
    ask, expected = job
    result, kinds = ask("kair triage"), set()
    assert result["findings"]
    for finding in result["findings"]:
        sentences = [evidence["sentence"] for evidence in finding["evidence"]]
        assert len(set(sentences)) == len(sentences)
        for evidence in finding["evidence"]:
            assert unsaid_figures(evidence) == []
            if evidence["command"] is not None:
                kinds.add(check(evidence, ask(evidence["command"])))
            elif evidence["kind"] == "estimated":
                assert finding["priced_by"] == "excess"
                after = result["step_time_us"] - finding["time_lost_us_per_step"]
                assert evidence["figures"] == pytest.approx({"before_us": result["step_time_us"], "after_us": after})
            elif evidence["kind"] == "same_inputs":
                (rank,), (longer,) = evidence["ranks"], evidence["figures"].values()
                assert longer == pytest.approx(longer_on_equal_inputs(ask, rank), rel=0.1)
            else:
                assert evidence["figures"] == {}
    assert kinds - {"came_last", "replayed", "others_nearly_as_late"} == expected
    assert ("replayed" in kinds) == any(finding["priced_by"] == "replay" for finding in result["findings"])
