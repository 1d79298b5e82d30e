"""A job that grows, is replaced or goes while it is open; and notes on it."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support.cli_samples import kair, store_variables
from support.live_status import SLOW, STATUS, write_status
from support.places import SAMPLES
from support.screen_text import answered, assert_says, opened, played, screen_text, type_line, until
from textual.pilot import Pilot

from kair.app.places import store_root
from kair_engine.recording.job_file import read_job_file
from kair_engine.recording.opening import state_of
from kair_tui.tui.frame import watching
from kair_tui.tui.frame.app import KairApp
from kair_tui.tui.screens.overview import OverviewScreen
from kair_tui.tui.screens.rank import RankScreen

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_variables(monkeypatch, tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    # It looks when a test has it look: what is the same in two looks is read, which on a slow machine came too early.
    monkeypatch.setattr(watching, "_LOOK_S", 1e6)


def imported(sample: str, name: str = "night") -> None:
    assert kair("import", str(SAMPLES / sample), "--job", name, "--replace").status == 0


async def looked(app: KairApp, pilot: Pilot[int]) -> None:
    """The program looks at the files now: a look under way may be of before."""

    def has_looked() -> bool:
        # What a thread saw is known a message later than it ends.
        return not app.is_busy and not app.job_watch._is_looking

    await until(pilot, has_looked)
    app.job_watch.look()
    await until(pilot, has_looked)


@played
async def test_a_job_that_is_replaced_shows_no_old_figures_over_new_ones() -> None:
    imported("slow_operator")
    async with opened("night") as (app, pilot):
        imported("healthy")
        await pilot.press("enter")
        assert isinstance(app.screen, RankScreen)
        await until(pilot, lambda: "kair: error" in screen_text(app))
        assert_says(app, "night was replaced or deleted while it was open", "ctrl+r reads it again")
        await looked(app, pilot)
        assert "changed on disk: ctrl+r" in screen_text(app).splitlines()[0]
        await pilot.press("escape", "ctrl+r")
        await until(pilot, lambda: answered(app) and "no straggler: 4 ranks" in screen_text(app))
        await until(pilot, lambda: "read again: no straggler, was straggler; no more: rank 2 (" in screen_text(app))
        assert "changed on disk" not in screen_text(app)
        shutil.rmtree(store_root(None) / "night")
        await looked(app, pilot)
        assert "gone from disk" in screen_text(app).splitlines()[0]
        assert "night was deleted: the screen shows its last state" in screen_text(app)
        # A bookmark or a note on it makes no job of it again.
        await type_line(pilot, "N", "gone")
        await pilot.press("m")
        await until(pilot, lambda: "cannot write" in screen_text(app))
        assert not (store_root(None) / "night").exists()


@played
async def test_a_running_job_that_is_followed_tells_its_step_and_alerts_as_they_come() -> None:
    imported("healthy")
    store = store_root(None)
    write_status(store, replace(STATUS, job="night"))
    async with opened("night") as (app, pilot):
        assert "rank 2 on node-1 is slow" not in screen_text(app)
        await pilot.press("f")
        await until(pilot, lambda: "step 124: rank 2 on node-1 is slow: its own time is 20%" in screen_text(app))
        assert "following step 150" in screen_text(app).splitlines()[0]
        later = replace(SLOW, step=300, ranks=(1,))
        write_status(store, replace(STATUS, job="night", step=310, alerts=(SLOW, later)))
        await looked(app, pilot)
        await until(pilot, lambda: "step 300: rank 1 on node-1 is slow" in screen_text(app))
        assert "step 124" not in screen_text(app)
        assert "following step 310" in screen_text(app).splitlines()[0]
        write_status(store, replace(STATUS, job="night", step=310, alerts=(SLOW, later), state="over"))
        await looked(app, pilot)
        assert screen_text(app).splitlines()[0].rstrip().endswith("following")


@played
async def test_a_folder_that_grows_is_followed(tmp_path: Path) -> None:
    files = sorted((SAMPLES / "slow_operator").glob("*.gz"))
    job = tmp_path / "job"
    job.mkdir()
    for file in files[:2]:
        shutil.copy(file, job)
    rest = files[2:]
    async with opened(str(job)) as (app, pilot):
        assert "2 ranks" in screen_text(app)
        await pilot.press("f")
        await looked(app, pilot)  # what the key looks for: it would take what is copied now for what was there
        assert "following" in screen_text(app).splitlines()[0]
        for file in rest:
            shutil.copy(file, job)
        await looked(app, pilot)  # it may still be written to
        assert "2 ranks" in screen_text(app)
        await looked(app, pilot)
        await until(pilot, lambda: answered(app) and "4 ranks" in screen_text(app))
        await until(pilot, lambda: "read again: straggler, was " in screen_text(app))
        await type_line(pilot, "ctrl+p", "changes")
        assert "2 more ranks (2-3)" in screen_text(app)
        await pilot.press("escape", "f")
        assert "following" not in screen_text(app).splitlines()[0]


def test_a_file_that_is_written_anew_is_another_state(tmp_path: Path) -> None:
    file = tmp_path / "rank0.json"
    assert state_of(tmp_path) is None
    file.write_text("{}")
    before = state_of(tmp_path)
    assert before == state_of(tmp_path)
    os.utime(file, ns=(1, 1))
    assert state_of(tmp_path) != before


def _recording() -> Path:
    """The folder of what is stored of the job."""
    folder = store_root(None) / "night"
    return folder / read_job_file(folder).recording


@played
async def test_a_stored_job_is_shown_with_what_was_found_before(monkeypatch: pytest.MonkeyPatch) -> None:
    imported("slow_operator")
    asked = kair("triage", "night", "--json")
    folder = _recording()
    with monkeypatch.context() as patch:
        patch.setattr("kair_engine.triage.analysis.triage", lambda *_, **__: pytest.fail("it was asked again"))
        async with opened("night") as (app, _):
            assert "straggler: rank 2 (compute, 22.3 of the 95.0 ms step)" in screen_text(app)
            assert isinstance(app.screen, OverviewScreen)
            (export,) = [one for one in app.screen.exports() if one.command == "triage"]
            assert json.loads(export.write("json")) == json.loads(asked.out)
    # Of another job, or damaged, it does not count.
    shutil.copy(folder / "triage.json", folder.parent / "kept")
    imported("healthy")
    folder = _recording()
    shutil.move(folder.parent / "kept", folder / "triage.json")
    assert json.loads(kair("triage", "night", "--json").out)["data"]["verdict"] == "no_straggler"
    (folder / "triage.json").write_text("{")
    assert json.loads(kair("triage", "night", "--json").out)["data"]["verdict"] == "no_straggler"


@played
async def test_a_job_that_was_replaced_is_read_again_when_it_is_chosen_from_the_list() -> None:
    imported("slow_operator")
    assert kair("triage", "night").status == 0
    old = _recording()
    async with opened("night") as (app, pilot):
        assert "straggler: rank 2 (" in screen_text(app)
        found = (old / "triage.json").read_bytes()
        imported("healthy")
        old.mkdir(exist_ok=True)
        (old / "triage.json").write_bytes(found)  # a triage of the old one that ends only now
        await pilot.press("8")
        await until(pilot, lambda: "1 job in" in screen_text(app))
        await pilot.press("enter")
        await until(pilot, lambda: answered(app) and "no straggler: 4 ranks" in screen_text(app))
        assert "changed on disk" not in screen_text(app)
        # Ranks of the old one may be on a screen for a moment yet.
        app.go_to_rank(99)
        await pilot.pause()
        assert "no rank 99 in this job (0-3)" in screen_text(app)
    assert json.loads(kair("triage", "night", "--json").out)["data"]["verdict"] == "no_straggler"


@played
async def test_notes_are_kept_with_the_job_and_leave_with_the_evidence() -> None:
    imported("slow_operator")
    async with opened("night") as (app, pilot):
        await type_line(pilot, "N", "node0 was drained on Monday")
        assert "noted on rank 2 (ctrl+p lists notes)" in screen_text(app)
        await pilot.press("N")
        assert "node0 was drained on Monday" in screen_text(app)
        await pilot.press("escape", "e")
        assert "md  notes" in screen_text(app)
    imported("slow_operator")
    (note,) = json.loads(kair("triage", "night", "--json").out)["notes"]
    assert (note["text"], note["rank"], note["screen"]) == ("node0 was drained on Monday", 2, "rank")
    async with opened("night") as (app, pilot):
        await type_line(pilot, "ctrl+p", "drained")
        assert isinstance(app.screen, RankScreen)
        await pilot.press("escape")
        await type_line(pilot, "N", "")
        assert app.session is not None
        assert app.session.notes.all() == ()
