"""Opening a job on the screen: as it goes, when it fails, when it is stopped."""

import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import kineto_builder as kb
import pytest
from cli_samples import kair, store_variables
from pseudo_terminal import BareTerminal, terminal_environment
from screen_text import SAMPLES, answered, opened, played, screen_text, until

from kair_engine import importing
from kair_tui.job_source import JobWanted
from kair_tui.screens.app import KairApp
from kair_tui.screens.opening import OpeningScreen
from kair_tui.terminal import Look


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_variables(monkeypatch, tmp_path / "kair")


@pytest.fixture
def held_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """Files after the first are parsed only once the event is set."""
    go_on, parse, seen = Event(), importing.import_file, []

    def held(task: importing.ImportTask) -> importing.ImportOutcome:
        if seen:
            go_on.wait()
        seen.append(task)
        return parse(task)

    monkeypatch.setattr(importing, "import_file", held)
    yield go_on
    go_on.set()


@played
async def _watched(job: Path, go_on: Event) -> None:
    app = KairApp(JobWanted(str(job)), Look())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "1 of 3 files parsed" in screen_text(app))
        assert "rank 0: 3 steps, 990 µs a step, 42 operations" in screen_text(app)
        assert "rank 1" not in screen_text(app)
        go_on.set()
        await until(pilot, lambda: answered(app))
        assert "3 ranks · 3 steps" in screen_text(app)


def test_ranks_are_listed_as_they_arrive(tmp_path: Path, held_back: Event) -> None:
    _watched(kb.write_job(tmp_path / "job", [0, 1, 2]), held_back)


@played
async def _stopped(job: Path, go_on: Event) -> None:
    app = KairApp(JobWanted(str(job)), Look())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "1 of 3 files parsed" in screen_text(app))
        await pilot.press("escape")
        assert "stopped: what was parsed so far is kept" in screen_text(app)
        go_on.set()
        await until(pilot, lambda: not app.is_busy)
        assert isinstance(app.screen, OpeningScreen)
        await pilot.press("r")
        await until(pilot, lambda: answered(app))
        assert "3 ranks · 3 steps" in screen_text(app)


def test_esc_stops_the_parsing_and_it_can_go_on(tmp_path: Path, held_back: Event) -> None:
    _stopped(kb.write_job(tmp_path / "job", [0, 1, 2]), held_back)


@played
async def _failed(job: Path) -> None:
    app = KairApp(JobWanted(str(job)), Look())
    async with app.run_test(size=(160, 24)) as pilot:
        await until(pilot, lambda: "kair: error" in screen_text(app))
        shown = " ".join(screen_text(app).split())
        said = kair("triage", str(job)).err.split("hint: ")
        assert " ".join(said[0].split()) in shown
        assert " ".join(said[1].split()) in shown
        assert "rank0.json.gz is no trace" in shown
        await pilot.press("q")
    assert app.return_value == 3


def test_what_is_no_job_is_told_like_by_the_commands(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    for rank in range(2):
        (folder / f"rank{rank}.json.gz").write_bytes(b"nothing of the kind")
    _failed(folder)


@played
async def _broken(job: Path) -> None:
    async with opened(str(job), size=(100, 40)) as (app, _):
        shown = screen_text(app)
        assert "3 ranks · 3 steps" in shown
        assert "1 warning at the end" in shown or "warnings at the end" in shown
        assert "rank1.json.gz" in shown


def test_what_could_be_read_of_a_broken_job_is_answered_with_a_warning(tmp_path: Path) -> None:
    job = kb.write_job(tmp_path / "job", [0, 1, 2])
    file = job / "rank1.json.gz"
    file.write_bytes(file.read_bytes()[:-200])
    _broken(job)


@played
async def test_steps_that_are_no_choice_are_told_on_the_screen() -> None:
    app = KairApp(JobWanted(str(SAMPLES / "slow_operator"), "900"), Look())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "kair: error" in screen_text(app))
        assert "step 900 is not among the complete steps of this job (4-15)" in screen_text(app)
        await pilot.press("q")
    assert app.return_value == 2


@played
async def test_chosen_steps_narrow_the_first_answer() -> None:
    async with opened(str(SAMPLES / "slow_operator"), step="6-9") as (app, _):
        assert "only steps 6-9" in screen_text(app)
        assert "4 steps analysed (6-9)" in screen_text(app)


def test_leaving_does_not_wait_for_what_is_being_parsed(tmp_path: Path) -> None:
    endless = (
        "import sys, threading, kair_tui.main, kair_engine.importing as importing\n"
        "importing.import_file = lambda task: threading.Event().wait()\n"
        "sys.exit(kair_tui.main.main(['tui', sys.argv[1]]))"
    )
    job = str(kb.write_job(tmp_path / "job", [0]))
    program = (sys.executable, "-c", endless)
    with BareTerminal(job, environment=terminal_environment(tmp_path), program=program) as terminal:
        terminal.wait_for("opening")
        terminal.settle(1.0)
        terminal.press("q")
        assert terminal.status() == 0
