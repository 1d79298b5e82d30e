"""The screen while a job is opened: what arrives, what goes wrong, and how it is left."""

import shutil
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import kineto_builder as kb
import pytest
from cli_samples import kair, store_variables
from screen_text import SAMPLES, answered, played, screen_text, until
from textual.pilot import Pilot

from kair_engine import importing
from kair_engine.importing import ImportOutcome, ImportTask
from kair_tui.exit_codes import ExitCode
from kair_tui.job_source import JobWanted
from kair_tui.screens.app import KairApp
from kair_tui.screens.jobs import JobsScreen
from kair_tui.screens.opening import OpeningScreen
from kair_tui.terminal import Look

_PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_variables(monkeypatch, tmp_path)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Files from rank 2 on are parsed once it is open."""
    opened, parse = threading.Event(), importing.import_file

    def held_back(task: ImportTask) -> ImportOutcome:
        if "rank2" in task.source.name:
            assert opened.wait(_PATIENCE_S)
        return parse(task)

    monkeypatch.setattr(importing, "import_file", held_back)
    return opened


@asynccontextmanager
async def opening(job: Path | str) -> AsyncIterator[tuple[KairApp, Pilot[int]]]:
    app = KairApp(JobWanted(str(job)), Look())
    async with app.run_test(size=(100, 30)) as pilot:
        yield app, pilot


def says(app: KairApp, text: str) -> Callable[[], bool]:
    return lambda: text in screen_text(app)


def test_each_rank_is_seen_as_it_arrives(tmp_path: Path, gate: threading.Event) -> None:
    job = kb.write_job(tmp_path / "job", [0, 1, 2, 3])

    @played
    async def play() -> None:
        async with opening(job) as (app, pilot):
            await until(pilot, says(app, "2 of 4 files parsed"))
            text = screen_text(app)
            assert "rank 0: " in text
            assert "rank 1: " in text
            assert "rank 2: " not in text
            gate.set()
            await until(pilot, lambda: answered(app))
            assert "4 ranks" in screen_text(app)

    try:
        play()
    finally:
        gate.set()


def test_esc_ends_the_opening_and_r_goes_on_where_it_ended(tmp_path: Path, gate: threading.Event) -> None:
    job = kb.write_job(tmp_path / "job", [0, 1, 2, 3])

    @played
    async def play() -> None:
        async with opening(job) as (app, pilot):
            await until(pilot, says(app, "2 of 4 files parsed"))
            await pilot.press("escape")
            assert "stopped" in screen_text(app)
            assert isinstance(app.screen, OpeningScreen)
            gate.set()
            await until(pilot, lambda: not app.is_busy)
            assert isinstance(app.screen, OpeningScreen)
            await pilot.press("r")
            await until(pilot, lambda: answered(app))
            assert "4 ranks" in screen_text(app)

    before = threading.active_count()
    try:
        play()
    finally:
        gate.set()
    assert threading.active_count() == before
    parsed = list((tmp_path / "cache").rglob("*.parquet"))
    assert len(parsed) == 4


def test_q_leaves_in_the_middle(tmp_path: Path, gate: threading.Event) -> None:
    job = kb.write_job(tmp_path / "job", [0, 1, 2, 3])

    @played
    async def play() -> None:
        async with opening(job) as (app, pilot):
            await until(pilot, says(app, "2 of 4 files parsed"))
            await pilot.press("q")
            gate.set()
        assert app.return_value == ExitCode.ANSWERED

    try:
        play()
    finally:
        gate.set()


def test_esc_leads_back_to_the_list_where_the_job_was_chosen(
    tmp_path: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    kair("import", str(kb.write_job(tmp_path / "first", [0, 1])), "--job", "first")
    job = kb.write_job(tmp_path / "job", [0, 1, 2, 3])
    # A stored job is opened without parsing: this one takes its time.
    monkeypatch.setattr("kair_tui.job_source.is_stored", lambda name, root: False)  # noqa: ARG005
    monkeypatch.setattr("kair_tui.screens.opening.locate", lambda name, store: _source(job))  # noqa: ARG005

    @played
    async def play() -> None:
        app = KairApp(JobWanted(), Look())
        async with app.run_test() as pilot:
            await until(pilot, says(app, "1 job in"))
            await pilot.press("enter")
            await until(pilot, says(app, "2 of 4 files parsed"))
            await pilot.press("escape")
            assert isinstance(app.screen, JobsScreen)
            gate.set()
            await until(pilot, lambda: not app.is_busy)
            assert isinstance(app.screen, JobsScreen)
            assert app.session is None

    try:
        play()
    finally:
        gate.set()


def _source(job: Path) -> object:
    from kair_tui.job_source import JobSource

    return JobSource("first", job, stored=False)


def test_a_broken_file_is_told_and_the_rest_is_shown(tmp_path: Path, gate: threading.Event) -> None:
    job = kb.write_job(tmp_path / "job", [0, 1, 2, 3])
    (job / "rank1.json.gz").unlink()
    (job / "rank1.json").write_text('{"traceEvents": [1,')
    (job / "notes.txt").write_text("not a trace")

    @played
    async def play() -> None:
        async with opening(job) as (app, pilot):
            await until(pilot, says(app, "3 of 5 files parsed"))
            assert "▲ rank1.json" in screen_text(app)
            assert "notes.txt is no trace" in screen_text(app)
            gate.set()
            await until(pilot, lambda: answered(app))
            text = screen_text(app)
            assert "3 ranks" in text
            assert "warning" in text

    try:
        play()
    finally:
        gate.set()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("empty", "is empty: no trace in it"),
        ("nowhere", "nowhere: no such file or folder"),
        ("broken", "rank0.json"),
        ("notes", "is not a trace"),
    ],
)
def test_what_cannot_be_opened_says_why_and_ends_like_the_command(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for folder, content in (("broken", '{"traceEvents": [1,'), ("notes", "text")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rank0.json").write_text(content)
    job = f"./{name}"

    @played
    async def play() -> None:
        async with opening(job) as (app, pilot):
            await until(pilot, says(app, "kair: error: "))
            assert message in screen_text(app)
            await pilot.press("y")
            assert app.clipboard != "" or name != "broken"
            await pilot.press("q")
        assert app.return_value == ExitCode.INPUT

    play()
    told = kair("triage", job)
    assert told.status == ExitCode.INPUT
    assert message in told.err


@pytest.mark.skipif(not (SAMPLES / "healthy").exists(), reason="the sample traces are not recorded yet")
def test_a_retry_sees_what_was_mended(tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()

    @played
    async def play() -> None:
        async with opening(job) as (app, pilot):
            await until(pilot, says(app, "kair: error: "))
            for file in (SAMPLES / "healthy").glob("*.gz"):
                shutil.copy(file, job)
            await pilot.press("r")
            await until(pilot, lambda: answered(app))
            assert "kair: error" not in screen_text(app)

    play()
