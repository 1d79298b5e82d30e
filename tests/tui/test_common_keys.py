"""The keys that work on every screen, tried on the overview."""

import json
import re
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.cli_samples import kair
from support.places import SAMPLES
from support.screen_text import answered, front, go, opened, played, screen_text, type_line, until

from kair_tui.cli.registry import COMMANDS
from kair_tui.render.terminal import Look
from kair_tui.tui.frame.output import OutputScreen, help_lines
from kair_tui.tui.screen_registry import SCREENS
from kair_tui.tui.screens.overview import OverviewScreen
from kair_tui.tui.session import Place
from kair_tui.tui.widgets.lists import Findings

SLOW = str(SAMPLES / "slow_operator")


pytestmark = [pytest.mark.usefixtures("own_places"), pytest.mark.slow]


@played
async def test_help_lists_every_key_screen_and_command() -> None:
    async with opened(SLOW) as (app, pilot):
        assert isinstance(app.screen, OverviewScreen)
        text = "\n".join(line for line, _ in help_lines(app.screen))
        for key in ("enter", "+ -", "tab", "?", "q", ":", "ctrl+p", "o", "y", "e", "g", "m", "R", "/", "s", "S"):
            assert re.search(rf"^  (.*, )?{re.escape(key)}(, .*)?  ", text, re.MULTILINE), key
        assert all(f"  {entry.name} " in text for entry in COMMANDS if entry.is_single)
        assert all(f"{entry.name}: {entry.title}" in " ".join(text.split()) for entry in SCREENS)
        assert max(map(len, text.splitlines())) <= 80
        await pilot.press("question_mark")
        assert "slow_operator › overview › help" in screen_text(app)
        await pilot.press("escape")
        assert isinstance(app.screen, OverviewScreen)


@played
async def test_a_typed_command_shows_its_output_in_place() -> None:
    async with opened(SLOW) as (app, pilot):
        await pilot.press("colon", *"steps", "enter")
        await until(pilot, lambda: isinstance(app.screen, OutputScreen))
        first = screen_text(app).splitlines()[2].strip()
        assert first == kair("steps", SLOW).out.splitlines()[0][: len(first)]
        await pilot.press("escape", "colon", *"triag", "enter")
        await until(pilot, lambda: "kair: error" in screen_text(app))
        assert "kair: error: no such command 'triag' (did you mean triage?)" in screen_text(app)


@played
async def test_the_commands_behind_the_view_print_what_it_shows() -> None:
    async with opened(SLOW) as (app, pilot):
        screen = front(app, OverviewScreen)
        await pilot.press("o")
        shown = screen_text(app)
        for command in screen.commands():
            assert command in shown
            assert kair(*command.split()[1:]).status == 0
        told = kair(*screen.commands()[1].split()[1:]).out
        assert told.startswith("straggler: rank 2 (compute, 22.3 of the 95.0 ms step)")


@played
async def test_a_copy_is_in_a_file_too() -> None:
    async with opened(SLOW) as (app, pilot):
        await pilot.press("y")
        assert "straggler: rank 2 (compute, 22.3 of the 95.0 ms step)" in app.clipboard
        assert f"kair triage {SLOW}" in app.clipboard
        said = screen_text(app)
        assert "copied to the clipboard and to" in said
        from kair.app.places import cache_root

        assert (cache_root() / "copied.txt").read_text() == f"{app.clipboard}\n"


@played
async def _export(folder: Path, typed: str) -> None:
    async with opened(SLOW) as (app, pilot):
        await type_line(pilot, "e", typed)
        await pilot.press("enter")
        await until(pilot, lambda: "saved" in screen_text(app))
    assert list(folder.iterdir())


@pytest.mark.parametrize("form", ["svg", "json", "csv"])
def test_an_export_is_what_the_command_prints(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _export(tmp_path, "svg" if form == "svg" else f"{form} triage")
    (file,) = tmp_path.iterdir()
    content = file.read_text()
    if form == "svg":
        assert file.name == "slow_operator-overview.svg"
        assert ElementTree.fromstring(content).tag == "{http://www.w3.org/2000/svg}svg"
        assert "straggler" in content
    elif form == "json":
        assert json.loads(content)["data"] == json.loads(kair("triage", SLOW, "--json").out)["data"]
    else:
        assert content.splitlines() == kair("triage", SLOW, "-o", "csv").out.splitlines()


@pytest.mark.parametrize("form", ["html", "md"])
def test_a_report_is_what_the_command_writes(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (there := tmp_path / "there").mkdir()
    monkeypatch.chdir(there)
    _export(there, f"{form} report")
    asked = tmp_path / f"slow_operator-report.{form}"
    assert kair("triage", SLOW, "--report", str(asked)).status == 0

    def without_time(file: Path) -> list[str]:
        return [line for line in file.read_text().splitlines() if "Made by kair" not in line]

    written = {file.name: without_time(file) for file in there.iterdir()}
    assert written == {file.name: without_time(file) for file in tmp_path.glob("slow_operator-report.*")}
    assert asked.name in written


@played
async def test_a_copy_of_a_finding_is_what_one_would_write_of_it() -> None:
    async with opened(SLOW) as (app, pilot):
        app.screen.query_one(Findings).focus()
        await pilot.press("y")
        lines = app.clipboard.splitlines()
        found = json.loads(kair("triage", SLOW, "--json").out)["data"]["findings"][0]
        assert lines[0].startswith("rank 2")
        assert lines[0].endswith("compute in kair_sample::mlp")
        assert lines[1].startswith("cost: 22.3 ms lost per step")
        proofs = [line.removeprefix("proof: ") for line in lines if line.startswith("proof: ")]
        assert len(proofs) == 2
        assert set(proofs) <= {one["sentence"] for one in found["evidence"]}
        assert lines[-2] == f"what to do: {found['suggestion']}"
        assert lines[-1] == f"kair triage {SLOW}"


@played
async def _bookmarked_twice(job: str) -> None:
    async with opened(job) as (app, pilot):
        assert app.session is not None
        bookmarks = app.session.bookmarks
        await pilot.press("m")
        assert [mark.title for mark in bookmarks.all()] == ["rank 2"]
        await pilot.press("ctrl+p", *"bookm")
        assert "m  rank 2" in screen_text(app)
        await pilot.press("escape", "m")
        assert bookmarks.all() == ()
        app.session.narrow((5, 6))
        await pilot.press("m")
    # The next time the program is started.
    async with opened(job) as (app, pilot):
        assert app.session is not None
        assert app.session.steps is None
        await go(app, pilot, "ctrl+p", *"bookm", "enter")
        assert "only steps 5-6" in screen_text(app)


def test_bookmarks_of_raw_traces_are_in_the_users_own_folder() -> None:
    before = set(Path(SLOW).iterdir())
    _bookmarked_twice(SLOW)
    assert set(Path(SLOW).iterdir()) == before


def test_bookmarks_of_a_stored_job_are_with_the_job() -> None:
    from kair.app.places import store_root

    kair("import", SLOW, "--job", "marked")
    _bookmarked_twice("marked")
    assert (store_root(None) / "marked" / "bookmarks.json").exists()
    assert kair("triage", "marked").status == 0


@played
async def _record(runbook: Path, verdicts: list[str]) -> None:
    async with opened(SLOW) as (app, pilot):
        await pilot.press("R", "enter")
        assert f"● {runbook.name}" in screen_text(app)
        verdicts += screen_text(app).splitlines()[2:3]
        await type_line(pilot, "colon", "use step 5-7")
        await until(pilot, lambda: app.session is not None and app.session.steps == (5, 6, 7))
        await until(pilot, lambda: answered(app))
        verdicts += screen_text(app).splitlines()[2:3]
        await type_line(pilot, "colon", "info")
        await until(pilot, lambda: isinstance(app.screen, OutputScreen))
        await pilot.press("escape", "R")
        assert "recorded to" in screen_text(app)


def test_a_recording_is_a_runbook_of_commands_that_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runbook = tmp_path / "slow_operator.kair"
    verdicts: list[str] = []
    _record(runbook, verdicts)
    assert runbook.read_text().splitlines() == [
        "#!/usr/bin/env -S kair run",
        "# what was looked at in slow_operator",
        f"kair steps {SLOW}",
        f"kair triage {SLOW}",
        f"kair triage {SLOW} --step 5-7",
        f"kair info {SLOW} --step 5-7",
    ]
    assert kair("run", str(runbook)).status == 0
    outcomes = [kair(*shlex.split(line)[1:]) for line in runbook.read_text().splitlines()[2:]]
    assert [outcome.status for outcome in outcomes] == [0] * 4
    # On the screen a long verdict goes on in the next line.
    assert [outcome.out.startswith(line.strip()) for outcome, line in zip(outcomes[1:3], verdicts, strict=True)] == [
        True,
        True,
    ]


@played
async def test_a_rank_that_the_job_does_not_have_is_named() -> None:
    async with opened(SLOW) as (app, pilot):
        await pilot.press("g", "9", "enter")
        assert "no rank 9 in this job (0-3)" in screen_text(app)


@played
async def test_going_back_to_where_one_was_makes_no_second_screen() -> None:
    async with opened(SLOW) as (app, pilot):
        overview = app.screen
        await pilot.press("question_mark")
        app.go(Place("overview"))
        await pilot.pause()
        assert app.screen is overview
        await pilot.press("escape")
        assert app.screen is overview


@played
async def test_in_ascii_nothing_else_is_on_any_screen() -> None:
    async with opened(SLOW, look=Look(ascii_only=True)) as (app, pilot):
        shown = [screen_text(app)]
        for keys in (("question_mark",), ("ctrl+p",), ("o",), ("e",), ("slash",), ("g",)):
            await pilot.press(*keys)
            shown.append(screen_text(app))
            await pilot.press("escape")
        await type_line(pilot, "colon", "localize")
        await until(pilot, lambda: isinstance(app.screen, OutputScreen))
        shown.append(screen_text(app))
        assert [line for text in shown for line in text.splitlines() if not line.isascii()] == []


def test_what_is_no_terminal_is_refused_with_a_pointer() -> None:
    outcome = kair("tui", SLOW)
    assert outcome.status == 2
    assert outcome.err.startswith("kair: error: kair-tui needs a terminal")
    assert "kair triage" in outcome.err
