"""Every sentence of a finding's evidence can be checked: the command it ends with shows the same figures."""

import json
import re
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from compute_faults import ChangingCulprit, SequenceImbalance, SlowGpu, StageImbalance
from fault_model import Fault
from host_faults import GarbageCollection
from layouts import JobLayout
from network_faults import SlowEdge, SlowLink
from simulator import JobSpec, simulate
from support.cli_samples import kair, store_variables
from support.evidence_figures import check, us
from support.pauses_builder import table
from support.places import ROOT
from support.trace_builder import trace
from table import write_table

import kair_tui.cli.invoke
from kair_engine.recording.opening import open_trace
from kair_engine.trace.model import Trace

Ask = Callable[[str], dict[str, Any]]
COMMAND = re.compile(r"(.*) \[(kair [^]]+)\]")
ESTIMATED = re.compile(r"without that the step would take about (.+) instead of (.+)")
WITHOUT_FIGURES = {
    "all members of a ring see the same duration, so this names the group and no rank in it",
    "that is little: without it, other ranks would have come nearly as late",
}

DP8 = JobLayout("dp", 8)
PIPELINE = JobLayout("3d", dp=2, pp=2, tp=4, microbatches=3)


def recorded(source: Path) -> Callable[[Path], Trace]:
    def made(folder: Path) -> Trace:
        if not source.exists():
            pytest.skip(f"{source} is not on this machine")
        return open_trace(source, cache=folder)

    return made


def simulated(layout: JobLayout, *faults: Fault, steps: int = 12) -> Callable[[Path], Trace]:
    return lambda folder: write_table(simulate([JobSpec(layout, steps, 3, faults)])[0], folder)


JOBS: dict[str, tuple[Callable[[Path], Trace], set[str]]] = {
    "slow_operator": (recorded(ROOT / "sample_traces" / "slow_operator"), {"excess", "operator", "made late"}),
    "slow_input": (recorded(ROOT / "sample_traces" / "slow_input"), {"operator", "made late"}),
    "intermittent_stall": (recorded(ROOT / "sample_traces" / "intermittent_stall"), {"delays", "made late"}),
    "busy_host": (recorded(ROOT / "sample_traces" / "busy_host"), {"excess"}),
    "slow_host": (recorded(ROOT / "sample_traces" / "slow_host"), {"excess"}),
    "pipeline_slow_operator": (recorded(ROOT / "sample_traces" / "pipeline_slow_operator"), {"excess", "made late"}),
    "two_hosts_slow_input": (recorded(ROOT / "sample_traces" / "two_hosts_slow_input"), {"operator", "made late"}),
    "one step": (lambda folder: trace(folder, table(1, 6, {2: [0, 1, 2, 3, 5], 6: [4]})), {"delays", "made late"}),
    "two slow GPUs": (simulated(DP8, SlowGpu(2, 1.2), SlowGpu(5, 1.2)), {"excess"}),
    "slow link": (simulated(PIPELINE, SlowLink(10, 4.0)), {"link"}),
    "slow edge": (simulated(PIPELINE, SlowEdge(0, dp=1, tp=2, extra_ms=5)), {"link", "links in common"}),
    "uneven stage": (simulated(PIPELINE, StageImbalance(1, 1.4)), {"stage"}),
    "uneven sequences": (simulated(DP8, SequenceImbalance(0.3)), {"batches", "longest batch"}),
    "garbage collection": (simulated(DP8, GarbageCollection(0.1, 40)), {"scattered", "longest delays"}),
    "changing culprit": (simulated(DP8, ChangingCulprit(1.5)), {"scattered", "longest delays"}),
    "production, ST": (recorded(ROOT.parent / "shared/traces/bytedance/trace-ST.parquet"), {"stage"}),
    "production, SE": (
        recorded(ROOT.parent / "shared/traces/bytedance/trace-SE.parquet"),
        {"batches", "longest batch", "stage"},
    ),
}
"""Jobs, and the kinds of sentences that are said about them, besides who came last."""


@pytest.fixture(params=JOBS)
def job(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Ask, set[str]]:
    """How to ask kair about the job, and the kinds of sentences it shall say."""
    make, kinds = JOBS[request.param]
    made = make(tmp_path / "job")
    store_variables(monkeypatch, tmp_path)
    monkeypatch.setattr(kair_tui.cli.invoke, "open_job", lambda *_, **__: made)

    @cache
    def ask(command: str) -> dict[str, Any]:
        name, *arguments = shlex.split(command)[1:]
        outcome = kair(name, "the-job", *arguments, "--json")
        assert outcome.status == 0, outcome.err
        data: dict[str, Any] = json.loads(outcome.out)["data"]
        return data

    return ask, kinds


@pytest.mark.slow
def test_the_command_shows_what_the_sentence_says(job: tuple[Ask, set[str]]) -> None:
    ask, expected = job
    result, kinds = ask("kair triage"), set()
    assert result["findings"]
    for finding in result["findings"]:
        sentences = finding["evidence"]
        assert len(set(sentences)) == len(sentences)
        for sentence in sentences:
            if found := COMMAND.fullmatch(sentence):
                kinds.add(check(found[1], ask(found[2])))
            elif found := ESTIMATED.fullmatch(sentence):
                assert finding["priced_by"] == "excess"
                assert result["step_time_us"] == us(found[2])
                assert result["step_time_us"] - finding["time_lost_us_per_step"] == us(found[1])
            else:
                assert sentence in WITHOUT_FIGURES
    assert kinds - {"came last", "replayed", "covered"} == expected
    assert ("replayed" in kinds) == any(finding["priced_by"] == "replay" for finding in result["findings"])
