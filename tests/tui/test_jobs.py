"""The store's jobs on the screen: listed, sifted, chosen, opened."""

import json
import re
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.cli_samples import kair, store_variables
from support.patience import PATIENCE_S
from support.places import SAMPLES
from support.screen_text import (
    answered,
    assert_says,
    assert_snapshot,
    front,
    go,
    played,
    screen_lines,
    screen_text,
    type_line,
    until,
)
from support.stored_jobs import edit_job_file
from textual.pilot import Pilot

from kair.app.places import store_root
from kair.app.question import Question
from kair_engine.recording.job_file import recordings_in
from kair_engine.results.triage import TriageResult, Verdict
from kair_engine.store.kept_answers import keep_verdict
from kair_tui.cli.wanted import JobWanted
from kair_tui.render.terminal import Look
from kair_tui.tui.frame.app import KairApp
from kair_tui.tui.frame.opening import OpeningScreen
from kair_tui.tui.frame.output import OutputScreen
from kair_tui.tui.screens import overview
from kair_tui.tui.screens.jobs import JobsScreen
from kair_tui.tui.screens.overview import OverviewScreen
from kair_tui.tui.session import Session

pytestmark = [
    pytest.mark.skipif(not (SAMPLES / "healthy").exists(), reason="the sample traces are not recorded yet"),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def _store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Three jobs, two of them triaged; the last imported is the one without a verdict."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("kair")
        store_variables(patch, folder)
        patch.setenv("XDG_DATA_HOME", str(folder / "data"))
        for name, sample in (("night", "slow_operator"), ("calm", "healthy"), ("fresh", "two_hosts_slow_input")):
            assert kair("import", str(SAMPLES / sample), "--job", name).status == 0
        for name in ("night", "calm"):
            assert kair("triage", name).status == 0
        yield store_root(None)


@pytest.fixture
def _no_job_in_use(_store: Path) -> Iterator[None]:
    yield
    (_store / ".current").unlink(missing_ok=True)


@asynccontextmanager
async def listed(
    wanted: JobWanted | None = None, *, size: tuple[int, int] = (80, 24), look: Look | None = None
) -> AsyncIterator[tuple[KairApp, Pilot[int]]]:
    """The program as it begins without a job, its store read."""
    app = KairApp(wanted or JobWanted(), look or Look())
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: is_listed(app))
        yield app, pilot


def is_listed(app: KairApp) -> bool:
    """Whether the store has been read."""
    return any(said in screen_text(app) for said in ("job in", "jobs in", "no job yet"))


def chosen(app: KairApp) -> str | None:
    screen = front(app, JobsScreen)
    return screen.chosen.name if screen.chosen else None


def shown(app: KairApp) -> list[str]:
    """The names on the screen, in their order."""
    names = ("night", "calm", "fresh")
    words = [line[3:].split("  ")[0].strip() for line in screen_lines(app)]
    return [word for word in words if word in names]


@pytest.mark.usefixtures("_store")
@played
async def test_without_a_job_the_jobs_are_shown_with_their_last_verdicts() -> None:
    async with listed() as (app, _):
        text = screen_text(app)
        assert "3 jobs in " in text
        assert shown(app) == ["calm", "fresh", "night"]
        assert "▲ night" in text
        assert "straggler: rank 2 (compute" in text
        assert "no straggler: 4 ranks, 12 steps" in text
        assert "not triaged yet" in text
        assert chosen(app) == "fresh"  # the most recent, which a command without a job would take


@pytest.mark.usefixtures("_no_job_in_use")
@played
async def test_the_job_in_use_is_preselected_and_can_be_chosen_here() -> None:
    kair("use", "calm")
    async with listed() as (app, pilot):
        assert chosen(app) == "calm"
        await pilot.press("end", "u")
        await until(pilot, lambda: "take night now" in screen_text(app))
        assert chosen(app) == "night"
        assert json.loads(kair("jobs", "--json").out)["data"]["current"] == "night"
        assert "in use · 4 ranks" in screen_text(app)


@pytest.mark.usefixtures("_store")
@played
async def test_enter_opens_a_job_and_esc_leads_back_to_the_list() -> None:
    async with listed() as (app, pilot):
        await go(app, pilot, "end", "enter")
        assert isinstance(app.screen, OverviewScreen)
        assert "jobs › night › overview" in screen_text(app)
        first = app.session
        await pilot.press("escape")
        assert chosen(app) == "night"
        await pilot.press("enter")
        assert app.session is first
        await pilot.press("8", "home", "enter")
        await until(pilot, lambda: app.session is not first and answered(app))
        assert "jobs › calm › overview" in screen_text(app)


@pytest.mark.usefixtures("_store")
@played
async def test_another_job_takes_the_place_of_the_open_one() -> None:
    app = KairApp(JobWanted("night"), Look())
    async with app.run_test() as pilot:
        await until(pilot, lambda: answered(app))
        await pilot.press("8")
        await until(pilot, lambda: is_listed(app))
        assert "night › overview › jobs" in screen_text(app)
        assert chosen(app) == "night"
        await pilot.press("escape", "8")
        await until(pilot, lambda: is_listed(app))
        await pilot.press("home", "enter")
        await until(pilot, lambda: answered(app) and "calm › overview" in screen_text(app))
        assert "night" not in screen_text(app)
        assert len(app.framed_screens) == 1


@pytest.mark.usefixtures("_store")
@played
async def test_what_is_asked_ahead_of_a_job_that_is_replaced_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, asks = threading.Event(), overview.asked_ahead

    def slowly(session: Session, triage: TriageResult) -> Iterator[Question]:
        go_on.wait(PATIENCE_S)
        return asks(session, triage)

    monkeypatch.setattr(overview, "asked_ahead", slowly)
    app = KairApp(JobWanted("night"), Look())
    async with app.run_test() as pilot:
        await until(pilot, lambda: answered(app) and app.is_busy)
        await pilot.press("8")
        await until(pilot, lambda: is_listed(app))
        await pilot.press("home", "enter")
        await until(pilot, lambda: answered(app) and "calm › overview" in screen_text(app))
        go_on.set()
        await until(pilot, lambda: not app.is_busy)
        assert app.return_code is None and "calm › overview" in screen_text(app)


@pytest.mark.usefixtures("_store")
@played
async def test_a_recording_goes_on_with_the_next_job() -> None:
    runbook = store_root(None).parent / "two jobs.kair"
    app = KairApp(JobWanted("night"), Look())
    async with app.run_test() as pilot:
        await until(pilot, lambda: answered(app))
        assert app.session is not None
        app.session.recorder.start(runbook, "night")
        await pilot.press("8")
        await until(pilot, lambda: is_listed(app))
        await go(app, pilot, "home", "enter")
        assert f"● {runbook.name}" in screen_text(app)
    assert runbook.read_text().splitlines()[2:] == ["kair jobs", "kair steps calm", "kair triage calm"]


@pytest.mark.usefixtures("_store")
@played
async def test_jobs_are_filtered_and_sorted_with_the_cursor_on_its_job() -> None:
    async with listed() as (app, pilot):
        await pilot.press("s", "s")
        assert "sorted by imported" in screen_text(app)
        assert shown(app) == ["fresh", "calm", "night"]
        await pilot.press("s")
        assert shown(app) == ["night", "calm", "fresh"]
        assert chosen(app) == "fresh"
        await pilot.press("S")
        assert shown(app) == ["fresh", "calm", "night"]
        await type_line(pilot, "slash", "verdict:^straggler")
        assert shown(app) == ["night"]
        assert "1 of 3 jobs" in screen_text(app)
        await type_line(pilot, "slash", "ranks:8")
        assert shown(app) == ["fresh"]


@pytest.mark.usefixtures("_store")
@played
async def test_the_list_is_what_its_command_prints() -> None:
    async with listed() as (app, pilot):
        await pilot.press("o")
        assert "kair jobs" in screen_text(app)
        await pilot.press("escape")
        screen = front(app, JobsScreen)
        (export,) = screen.exports()
        assert export.write("csv") == kair("jobs", "-o", "csv").out
        assert json.loads(export.write("json"))["data"] == json.loads(kair("jobs", "--json").out)["data"]
        await pilot.press("y")
        assert app.clipboard.startswith("fresh: not triaged yet")
        assert app.clipboard.endswith("kair jobs")


@played
async def test_the_fleet_opens_with_its_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _store: Path) -> None:
    monkeypatch.setenv("KAIR_STORE", str(shutil.copytree(_store, tmp_path / "store")))
    async with listed() as (app, pilot):
        await pilot.press("J")
        await until(pilot, lambda: isinstance(app.screen, OutputScreen))
        assert "jobs slowed by 10 % or more" in screen_text(app)
        await pilot.press("o")
        assert "kair fleet" in screen_text(app)


@pytest.mark.usefixtures("_store")
@played
async def test_commands_run_here_before_a_job_is_open() -> None:
    async with listed() as (app, pilot):
        await type_line(pilot, "colon", "steps night")
        await until(pilot, lambda: isinstance(app.screen, OutputScreen))
        first = screen_lines(app)[2].strip()
        assert first.startswith("4 ranks: step ")
        assert kair("steps", "night").out.startswith(first)
        await pilot.press("escape")
        await type_line(pilot, "colon", "info")
        await until(pilot, lambda: isinstance(app.screen, OutputScreen))
        await pilot.press("o")
        assert "kair info fresh" in screen_text(app)


@played
async def test_an_empty_store_says_how_to_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_variables(monkeypatch, tmp_path)
    folder = store_root(None)
    async with listed() as (app, pilot):
        text = screen_text(app)
        assert f"no job yet in {folder}".replace(" ", "") in "".join(text.split())  # wherever it is broken
        assert "kair import FOLDER --job NAME" in text
        assert chosen(app) is None
        await pilot.press("enter", "u", "slash", "s")
        assert screen_text(app) == text
        await type_line(pilot, "colon", f"import {SAMPLES / 'healthy'} --job mine")
        await until(pilot, lambda: isinstance(app.screen, OutputScreen))
        await pilot.press("escape")
        await until(pilot, lambda: "1 job in" in screen_text(app))
        assert chosen(app) == "mine"


@played
async def _damaged() -> None:
    async with listed() as (app, _):
        text = screen_text(app)
        assert "1 job in" in text
        assert "▲ job torn is left out" in text
        assert "whole" in text


def test_a_damaged_job_is_told_and_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_variables(monkeypatch, tmp_path)
    for name in ("torn", "whole"):
        kair("import", str(SAMPLES / "healthy"), "--job", name)
    file = store_root(None) / "torn" / "job.json"
    file.write_bytes(file.read_bytes()[:300])
    _damaged()
    outcome = kair("jobs")
    assert "warning: job torn is left out" in outcome.err
    assert "torn" not in outcome.out


@pytest.mark.usefixtures("_store")
@played
async def test_the_environment_names_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAIR_JOB", "night")
    app = KairApp(JobWanted(), Look())
    async with app.run_test() as pilot:
        await until(pilot, lambda: answered(app))
        assert "night › overview" in screen_text(app)


@pytest.mark.usefixtures("_store")
@played
async def test_steps_that_were_chosen_with_the_command_are_those_of_the_first_job() -> None:
    async with listed(JobWanted(step="5-7")) as (app, pilot):
        await go(app, pilot, "end", "enter")
        assert app.session is not None
        assert app.session.steps == (5, 6, 7)
        await pilot.press("8", "home", "enter")
        await until(pilot, lambda: answered(app) and "calm" in screen_lines(app)[0])
        assert app.session.steps is None


@pytest.mark.usefixtures("_store")
@played
async def test_a_job_that_cannot_be_opened_leads_back_to_the_list() -> None:
    async with listed(JobWanted(step="999")) as (app, pilot):
        await pilot.press("enter")
        await until(pilot, lambda: "kair: error" in screen_text(app))
        assert isinstance(app.screen, OpeningScreen)
        assert "step 999 is not among" in screen_text(app)
        await pilot.press("escape")
        assert chosen(app) == "fresh"


@pytest.mark.parametrize(
    ("name", "size", "look"),
    [("jobs_80x24", (80, 24), Look()), ("jobs_160x50", (160, 50), Look(colours="none"))],
)
def test_it_looks_like_its_picture(
    name: str, size: tuple[int, int], look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _store: Path
) -> None:
    """From a copy of the store whose place, sources and times are always the same."""
    shutil.copytree(_store, tmp_path / "store")
    for hour, file in enumerate(sorted((tmp_path / "store").glob("*/job.json")), 10):
        moment = f"2026-07-01T{hour}:00:00+00:00"
        edit_job_file(file.parent, imported_at=moment, source=f"/traces/{file.parent.name}")
    for file in (tmp_path / "store").glob("*/*/verdict.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "triaged_at": "2026-07-02T09:00:00+00:00"}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAIR_STORE", "store")

    @played
    async def pictured() -> None:
        app = KairApp(JobWanted(), look)
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: "3 jobs in store" in screen_text(app))
            assert_snapshot(app, name)

    pictured()


@played
async def test_a_job_that_is_slowed_by_what_is_nobodys_fault_is_marked_and_comes_after_stragglers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_variables(monkeypatch, tmp_path)
    verdicts: dict[str, Verdict] = {"a": "no_straggler", "b": "job_wide", "c": "straggler"}
    for name, verdict in verdicts.items():
        assert kair("import", str(SAMPLES / "healthy"), "--job", name).status == 0
        (recording,) = recordings_in(store_root(None) / name)
        keep_verdict(recording, verdict, f"{verdict} is said")
    async with listed() as (app, pilot):
        assert_says(app, "△ b   job_wide is said", "▲ c   straggler is said")
        screen = front(app, JobsScreen)
        screen.sort_by("verdict", descending=False)
        await pilot.pause()
        said = [line for line in screen_lines(app) if " is said" in line]
        assert [line.split()[-3] for line in said] == ["straggler", "job_wide", "no_straggler"]


@played
async def test_what_stragglers_cost_stands_under_each_job_once_it_is_worked_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _store: Path
) -> None:
    monkeypatch.setenv("KAIR_STORE", str(shutil.copytree(_store, tmp_path / "store")))
    async with listed(size=(120, 30)) as (app, pilot):
        assert "GPU-hours" not in screen_text(app)
        await pilot.press("dollar_sign")
        await until(pilot, lambda: screen_text(app).count("GPU-hours a day") == 3)
        under = next(line for at, line in enumerate(screen_lines(app)) if "night" in screen_lines(app)[at - 1])
        assert re.search(r"\d+\.\d % waste, +\d+\.\d GPU-hours a day: compute", under)
        assert "of all steps of a job" in screen_text(app)
        screen = front(app, JobsScreen)
        screen.sort_by("waste", descending=False)
        await pilot.pause()
        assert shown(app)[-1] == "calm", "it wastes least"
        await type_line(pilot, "slash", "slowdown:>1.1")
        assert shown(app) == ["night", "fresh"]
