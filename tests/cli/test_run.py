"""`kair run`: runbooks, as the full screen records them, from anywhere."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli_samples import kair, store_variables
from support.places import SAMPLES

from kair_tui.tui.runbook import Recorder, from_anywhere

SLOW = SAMPLES / "slow_operator"


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    store_variables(monkeypatch, tmp_path / "kair")
    monkeypatch.chdir(tmp_path)
    return


def test_a_recording_runs_from_anywhere_and_asks_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "traces").symlink_to(SLOW)
    recorder = Recorder()
    recorder.start(Path("night.kair"), "traces")
    for command in ("steps", "triage", "info", "triage"):
        recorder.add(f"kair {command} traces")
    recorder.add("kair triage traces --json")
    assert recorder.file is not None
    book = recorder.file
    assert os.access(book, os.X_OK)
    first, *_ = lines = book.read_text().splitlines()
    assert first == "#!/usr/bin/env -S kair run"
    assert lines[2:5] == [f"kair {command} {tmp_path}/traces" for command in ("steps", "triage", "info")]
    asked = []
    from kair_engine.triage import analysis

    real = analysis.triage
    monkeypatch.setattr(analysis, "triage", lambda *of, **how: asked.append(of) or real(*of, **how))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    outcome = kair("run", str(book))
    assert outcome.status == 0
    assert len(asked) == 1
    assert f"night.kair:4: kair triage {tmp_path}/traces" in outcome.err
    text, _, document = outcome.out.partition("{\n")
    assert "straggler: rank 2 (compute, 22.8 ms a step)" in text
    assert json.loads("{" + document)["data"]["verdict"] == "straggler"


def test_names_of_stored_jobs_stay_and_other_places_become_whole(tmp_path: Path) -> None:
    assert kair("import", str(SLOW), "--job", "night").status == 0
    (tmp_path / "night").mkdir()
    assert from_anywhere("kair triage night") == "kair triage night"
    assert from_anywhere("kair blame night --rank 2 --store other") == (
        f"kair blame {tmp_path}/night --rank 2 --store {tmp_path}/other"
    )
    assert from_anywhere("kair import night --job x") == f"kair import {tmp_path}/night --job x"


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("kair schema\nrm -rf /", 2, "book.kair:2: 'rm -rf /' is no kair command"),
        ("kair tui x", 2, "book.kair:1: not for a runbook: kair tui"),
        ("kair run book.kair", 2, "book.kair:1: not for a runbook: kair run"),
        ("kair schema 'x", 2, "book.kair:1: a quote is not closed"),
        ("kair schema nothing\nkair schema", 2, "no schema 'nothing'"),
        ("kair triage ./gone\nkair schema", 3, "no such file or folder"),
        ("# nothing but a comment\n", 0, ""),
    ],
)
def test_what_is_wrong_is_told_and_nothing_after_it_is_run(text: str, status: int, said: str) -> None:
    Path("book.kair").write_text(text)
    outcome = kair("run", "book.kair")
    assert (outcome.status, outcome.out) == (status, "")
    assert said in outcome.err


def test_it_goes_on_where_that_is_wanted_and_tells_what_failed() -> None:
    Path("book.kair").write_text("kair schema nothing\nkair schema blame\n")
    outcome = kair("run", "-k", "-q", "book.kair")
    assert outcome.status == 2
    assert json.loads(outcome.out)["title"] == "kair blame --json"
    assert "book.kair" not in outcome.err


def test_a_runbook_can_come_from_standard_input_and_fail_on_what_it_finds() -> None:
    line = f"kair triage {SLOW} --fail-on straggler --fields rank\n"
    run = subprocess.run(
        [sys.executable, "-m", "kair_tui", "run", "-"], input=line, capture_output=True, text=True, check=False
    )
    assert run.returncode == 10
    assert run.stdout.startswith("straggler")
