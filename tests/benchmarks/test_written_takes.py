"""Takes of training scripts: drawn by seed, compared with what each rank took before, and one recorded whole."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from drawing import ALL_RANKS, ONE_RANK
from support.patience import PATIENCE_S
from support.places import ROOT
from take_scoring import RIGHT_CAUSES, mean_excess
from truth import peers
from written.script_drawing import FIXED_BATCH, ONLY_HERE, SCRIPTS, WITH_RELU, WrittenTake, draw_written

from kair_engine.recording.opening import open_trace
from kair_engine.triage.analysis import triage

REAL = ROOT / "validation" / "real"


@cache
def takes() -> list[WrittenTake]:
    return [draw_written(seed) for seed in range(600)]


def test_every_script_is_drawn_and_half_of_all_takes_are_healthy() -> None:
    assert [draw_written(seed) for seed in range(50)] == takes()[:50]
    assert {take.script for take in takes()} == set(SCRIPTS)
    assert {path.stem for path in (REAL / "written" / "scripts").glob("[a-z]*.py")} == set(SCRIPTS)
    assert 0.4 < sum(not take.faults for take in takes()) / len(takes()) < 0.6
    assert all(2 <= take.ranks <= 6 and 4 <= take.steps <= 30 and take.hosts == 1 for take in takes())


def test_a_script_has_only_faults_that_it_can_have() -> None:
    kinds = {(take.script, fault.kind) for take in takes() for fault in take.faults}
    assert {kind for _, kind in kinds} == (ONE_RANK.keys() | ONLY_HERE.keys() | ALL_RANKS.keys()) - {"slow_link"}
    assert ONLY_HERE.keys() <= RIGHT_CAUSES.keys()
    assert not {script for script, kind in kinds if kind == "larger_batch"} & FIXED_BATCH
    assert {script for script, kind in kinds if kind == "slower_kernel"} <= WITH_RELU


def test_authors_profile_in_different_ways() -> None:
    uses = [take.profiler for take in takes()]
    assert {use.scheduled for use in uses} == {True, False}
    assert {(use.handler, use.name is None) for use in uses} == {
        ("chrome", False),
        ("tensorboard", False),
        ("tensorboard", True),
    }
    assert all(use.name is None or "{rank" in use.name for use in uses)


def test_a_stage_of_its_own_is_compared_with_what_it_took_before() -> None:
    """Stages of 10, 20 and 40 ms, of which the second comes to take 50: 30 more of a step of 100."""
    before, now = [10.0, 20.0, 40.0], [10.0, 50.0, 40.0]
    step = {"begin_ns": 0, "end_ns": 100_000_000, "delay_ns": 0}
    step |= dict.fromkeys(("injected_wall_ns", "injected_run_ns", "injected_delay_ns"), 0)
    ranks = [
        {"reference": {"own_ns": was * 1e6}, "steps": [step | {"run_ns": int(took * 1e6)}] * 8}
        for was, took in zip(before, now, strict=True)
    ]
    document = {"take": {"ranks": 3, "parallel": "stages", "faults": []}, "stops": [], "ranks": ranks}
    assert peers(document, 1) == []
    assert mean_excess(document, 1) == pytest.approx(0.30)
    # The others compare with each other and with the slow one: the median of as long as ever and 2.5 times as long.
    assert mean_excess(document, 0) == pytest.approx(-0.075)


@pytest.mark.live
@pytest.mark.skipif(find_spec("torch") is None, reason="recording needs torch: pip install 'kair[record]'")
def test_a_script_is_recorded_as_its_author_profiles_it(tmp_path: Path) -> None:
    seed = next(
        seed
        for seed, take in enumerate(takes())
        if (take.script, take.ranks, take.load, take.profiler.scheduled) == ("flat", 2, "none", True)
    )
    command = [sys.executable, str(REAL / "record.py"), "--written", "--seeds", str(seed), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    folder = tmp_path / f"seed{seed:04d}"
    assert (folder / "take.json").exists(), done.stdout + done.stderr
    document, take = json.loads((folder / "take.json").read_text(encoding="utf-8")), takes()[seed]
    assert [len(rank["steps"]) for rank in document["ranks"]] == [take.steps] * 2
    assert {path.name for path in (folder / "traces").iterdir()} == {rank["trace"] for rank in document["ranks"]}
    trace = open_trace(folder / "traces", cache=tmp_path / "cache", workers=1)
    assert len(triage(trace).steps) == take.steps
