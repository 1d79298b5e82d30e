"""Opening a job on the screen: as it goes, when it fails, when it is stopped."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
from support import kineto_builder as kb
from support.cli_samples import kair, store_variables
from support.patience import PATIENCE_S
from support.places import SAMPLES
from support.screen_text import answered, go, opened, played, screen_text, until
from support.terminals import full_screen, terminal_environment

from kair.app.jobs import JobSource
from kair_engine.recording import importing
from kair_tui.cli.failures import ExitCode
from kair_tui.cli.wanted import JobWanted
from kair_tui.render.terminal import Look
from kair_tui.tui.frame import opening
from kair_tui.tui.frame.app import KairApp
from kair_tui.tui.frame.opening import OpeningScreen
from kair_tui.tui.screens.jobs import JobsScreen

pytestmark = pytest.mark.slow


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


@pytest.fixture
def held_at_rank2(monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """The file of rank 2, and those after it, are parsed only once the event is set."""
    go_on, parse = Event(), importing.import_file

    def held(task: importing.ImportTask) -> importing.ImportOutcome:
        if "rank2" in task.source.name:
            go_on.wait(PATIENCE_S)
        return parse(task)

    monkeypatch.setattr(importing, "import_file", held)
    yield go_on
    go_on.set()


@played
async def test_ranks_are_listed_as_they_arrive(tmp_path: Path, held_back: Event) -> None:
    job = kb.write_job(tmp_path / "job", [0, 1, 2])
    app = KairApp(JobWanted(str(job)), Look())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "1 of 3 files parsed" in screen_text(app))
        assert "rank 0: 3 steps, 990 µs a step, 42 operations" in screen_text(app)
        assert "rank 1" not in screen_text(app)
        held_back.set()
        await until(pilot, lambda: answered(app))
        assert "3 ranks · 3 steps" in screen_text(app)


@played
async def test_esc_stops_the_parsing_and_it_can_go_on(tmp_path: Path, held_back: Event) -> None:
    job = kb.write_job(tmp_path / "job", [0, 1, 2])
    app = KairApp(JobWanted(str(job)), Look())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "1 of 3 files parsed" in screen_text(app))
        await pilot.press("escape")
        assert "stopped: what was parsed so far is kept" in screen_text(app)
        held_back.set()
        await until(pilot, lambda: not app.is_busy)
        assert isinstance(app.screen, OpeningScreen)
        await go(app, pilot, "r")
        assert "3 ranks · 3 steps" in screen_text(app)


@played
async def test_what_is_no_job_is_told_like_by_the_commands(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    for rank in range(2):
        (folder / f"rank{rank}.json.gz").write_bytes(b"nothing of the kind")
    app = KairApp(JobWanted(str(folder)), Look())
    async with app.run_test(size=(160, 24)) as pilot:
        await until(pilot, lambda: "kair: error" in screen_text(app))
        shown = " ".join(screen_text(app).split())
        said = kair("triage", str(folder)).err.split("hint: ")
        assert " ".join(said[0].split()) in shown
        assert " ".join(said[1].split()) in shown
        assert "rank0.json.gz is no trace" in shown
        await pilot.press("q")
    assert app.return_value == 3


@played
async def test_what_could_be_read_of_a_broken_job_is_answered_with_a_warning(tmp_path: Path) -> None:
    job = kb.write_job(tmp_path / "job", [0, 1, 2])
    file = job / "rank1.json.gz"
    file.write_bytes(file.read_bytes()[:-200])
    async with opened(str(job), size=(100, 40)) as (app, _):
        shown = screen_text(app)
        assert "3 ranks · 3 steps" in shown
        assert "1 warning at the end" in shown or "warnings at the end" in shown
        assert "rank1.json.gz" in shown


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


def test_leaving_does_not_wait_for_what_is_being_parsed(tmp_path: Path) -> None:
    endless = (
        "import sys, threading, kair_tui.cli.main, kair_engine.recording.importing as importing\n"
        "importing.import_file = lambda task: threading.Event().wait()\n"
        "sys.exit(kair_tui.cli.main.main(['tui', sys.argv[1]]))"
    )
    job = str(kb.write_job(tmp_path / "job", [0]))
    program = (sys.executable, "-c", endless)
    with full_screen(job, environment=terminal_environment(tmp_path), program=program) as terminal:
        terminal.wait_for("opening")
        terminal.settle(1.0)
        terminal.press("q")
        assert terminal.status() == 0


def test_esc_leads_back_to_the_list_where_the_job_was_chosen(
    tmp_path: Path, held_at_rank2: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    kair("import", str(kb.write_job(tmp_path / "first", [0, 1])), "--job", "first")
    job = kb.write_job(tmp_path / "job", [0, 1, 2, 3])
    # A stored job is opened without parsing: this one takes its time.
    monkeypatch.setattr("kair.app.jobs.is_stored", lambda name, root: False)  # noqa: ARG005
    monkeypatch.setattr("kair_tui.cli.wanted.locate", lambda name, store, more: _source(job))  # noqa: ARG005

    @played
    async def play() -> None:
        app = KairApp(JobWanted(), Look())
        async with app.run_test() as pilot:
            await until(pilot, lambda: "1 job in" in screen_text(app))
            await pilot.press("enter")
            await until(pilot, lambda: "2 of 4 files parsed" in screen_text(app))
            await pilot.press("escape")
            assert isinstance(app.screen, JobsScreen)
            held_at_rank2.set()
            await until(pilot, lambda: not app.is_busy)
            assert isinstance(app.screen, JobsScreen)
            assert app.session is None

    play()


def _source(job: Path) -> JobSource:
    return JobSource("first", job, stored=False)


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
        app = KairApp(JobWanted(str(job)), Look())
        async with app.run_test(size=(100, 30)) as pilot:
            await until(pilot, lambda: "kair: error: " in screen_text(app))
            assert message in screen_text(app)
            await pilot.press("y")
            assert app.clipboard != "" or name != "broken"
            await pilot.press("q")
        assert app.return_value == ExitCode.INPUT

    play()
    told = kair("triage", job)
    assert told.status == ExitCode.INPUT
    assert message in told.err


def test_a_retry_sees_what_was_mended(tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()

    @played
    async def play() -> None:
        app = KairApp(JobWanted(str(job)), Look())
        async with app.run_test(size=(100, 30)) as pilot:
            await until(pilot, lambda: "kair: error: " in screen_text(app))
            for file in (SAMPLES / "healthy").glob("*.gz"):
                shutil.copy(file, job)
            await go(app, pilot, "r")
            assert "kair: error" not in screen_text(app)

    play()


def test_a_file_that_takes_long_does_not_hide_those_before_it(tmp_path: Path, held_at_rank2: Event) -> None:
    job = kb.write_job(tmp_path / "job", [0, 1, 2, 3])

    @played
    async def play() -> None:
        app = KairApp(JobWanted(str(job)), Look())
        async with app.run_test() as pilot:
            await until(pilot, lambda: "2 of 4 files parsed" in screen_text(app))
            assert "rank 1: 3 steps" in screen_text(app)
            held_at_rank2.set()
            await until(pilot, lambda: answered(app))

    play()


@played
async def test_a_watched_job_opens_by_itself_once_its_first_steps_are_in_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_LOOK_S", 0.01)
    kb.write_job(tmp_path / "files", [0, 1])
    (tmp_path / "job123" / "capture").mkdir(parents=True)
    app = KairApp(JobWanted("job123", store=tmp_path), Look())
    async with app.run_test(size=(160, 24)) as pilot:
        await until(pilot, lambda: "job job123 has no coordinator" in " ".join(screen_text(app).split()))
        line = ("import", str(tmp_path / "files"), "--job", "job123", "--replace", "--store", str(tmp_path))
        assert kair(*line).status == 0
        await until(pilot, lambda: answered(app))
