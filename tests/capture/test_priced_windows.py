"""`kair watch --whatif`: what stragglers cost in each window of sampled steps, and the alert."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from support.cli_samples import kair
from support.live_status import STATUS, WINDOW, write_status
from support.places import SAMPLES
from support.screen_text import go, opened, played, screen_text, until

from kair import api
from kair.app.answers import windows as answering
from kair.app.answers.windows import with_windows
from kair_capture.coordinator import coordinator as coordinating
from kair_capture.coordinator.alert_text import in_words
from kair_capture.coordinator.coordinator import CoordinatorSettings
from kair_capture.coordinator.pricing import Pricing
from kair_capture.places import JobPlaces
from kair_engine.results.windows import PricedWindow, WindowsResult
from kair_tui.cli.follow import fitted
from kair_tui.render.answer import Document, PageOptions
from kair_tui.render.watch import VIEW
from kair_tui.render.written import written
from kair_tui.tui.screens.whatif import WhatifScreen
from kair_tui.tui.screens.windows import WindowsScreen


def watched(folder: Path, sample: str) -> Path:
    """A store with a sample as a watched job, whose steps were ordered as two windows."""
    store = folder / "store"
    assert kair("import", str(SAMPLES / sample), "--job", "job123", "--store", str(store)).status == 0
    steps = json.loads(kair("steps", "job123", "--json", "--store", str(store)).out)["job"]["steps"]
    middle = steps[len(steps) // 2]
    ordered = (
        replace(WINDOW, first_step=steps[0], last_step=middle - 1),
        replace(WINDOW, number=2, first_step=middle, last_step=steps[-1]),
    )
    write_status(store, replace(STATUS, alerts=(), sampling=replace(STATUS.sampling, windows=ordered)))
    return store


@pytest.mark.slow
def test_each_window_has_the_figures_that_whatif_has_of_its_steps(tmp_path: Path) -> None:
    store = watched(tmp_path, "slow_operator")
    document = json.loads(kair("watch", "job123", "--whatif", "--json", "--store", str(store)).out)
    Draft202012Validator(json.loads(kair("schema", "watch").out)).validate(document)
    priced = document["data"]["priced_windows"]
    assert len(priced) == 2
    for one in priced:
        steps = f"{one['first_step']}-{one['last_step']}"
        whatif = json.loads(kair("whatif", "job123", "--step", steps, "--json", "--store", str(store)).out)["data"]
        shared = ("slowdown", "m_w", "slowest_ranks", "by_rank", "heatmap", "simulation_error")
        assert {name: one[name] for name in shared} == {name: whatif[name] for name in shared}
        assert one["verdict"] == "straggler"
    assert priced[0]["last_step"] + 1 == priced[1]["first_step"]
    by_api = api.open("job123", store=store, progress=False).windows().windows
    assert json.loads(msgspec.json.encode(by_api)) == priced
    told = kair("watch", "job123", "--whatif", "--once", "--store", str(store)).out
    assert "S_w over time" in told
    assert "S_w: slowdown by each worker alone" in told


@pytest.mark.slow
def test_a_window_is_priced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = watched(tmp_path, "slow_operator")
    look = ("watch", "job123", "--whatif", "--json", "--store", str(store))
    first = json.loads(kair(*look).out)["data"]["priced_windows"]
    from kair_tui.commands import watch

    watch._windows.cache_clear()
    monkeypatch.setattr(answering, "_priced", lambda _: pytest.fail("it was priced"))
    assert json.loads(kair(*look).out)["data"]["priced_windows"] == first
    kept = store / "job123" / "capture" / "windows.json"
    kept.write_text("{")
    watch._windows.cache_clear()
    monkeypatch.undo()
    assert json.loads(kair(*look).out)["data"]["priced_windows"] == first


@pytest.mark.slow
def test_a_high_slowdown_fails_a_pipeline_that_asks_for_it(tmp_path: Path) -> None:
    # The second has an S of 1.15, as high as noise makes it.
    for sample, status in (("slow_host", 10), ("two_hosts_healthy", 0), ("healthy", 0)):
        store = watched(tmp_path / sample, sample)
        asked = ("watch", "job123", "--once", "--store", str(store), "--fail-on", "high_slowdown")
        assert kair(*asked, "--whatif").status == status
        assert kair(*asked).status == 0


def test_nothing_is_priced_before_anything_is_sampled(tmp_path: Path) -> None:
    write_status(tmp_path, STATUS)
    told = kair("watch", "job123", "--whatif", "--json", "--store", str(tmp_path))
    assert (told.status, json.loads(told.out)["data"]["priced_windows"]) == (0, [])


@pytest.mark.slow
def test_a_coordinator_prices_what_was_sampled_and_tells_an_alert_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = watched(tmp_path, "slow_operator")
    monkeypatch.setattr(coordinating, "_COMMITTED_S", 0.0)
    command = (sys.executable, "-m", "kair_tui", "watch", "job123", "--whatif", "--json", "--store", str(store))
    settings = CoordinatorSettings(JobPlaces(store, "job123"), ("127.0.0.1", 0), leave_after_s=0.0, pricing=command)
    monkeypatch.setattr(coordinating, "_FIRST_RANK_S", 0.0)
    for _ in "ab":
        said: list[str] = []
        coordinating.Coordinator(settings, said.append).run()
        status = json.loads(kair("watch", "job123", "--json", "--store", str(store)).out)["data"]
        assert [one["verdict"] for one in status["priced_windows"]] == ["straggler"]
        assert [one["kind"] for one in status["alerts"]] == ["high_slowdown"]
    assert not any("rank 2 alone" in line for line in said)
    noted = (store / "job123" / "capture" / "alerts.ndjson").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in noted] == ["high_slowdown"]


def test_a_coordinator_says_that_it_cannot_price(tmp_path: Path) -> None:
    for command, why in ((("false",), "status 1"), ((str(tmp_path / "none"),), "No such file")):
        pricing = Pricing(command, tmp_path / "windows.json")
        told = None
        while pricing.is_open:
            told = pricing.turn()
        assert told is not None
        assert why in told
    assert Pricing((), tmp_path / "windows.json").turn() is None


@pytest.mark.slow
@pytest.mark.usefixtures("own_places")
@played
async def test_the_screen_leads_from_a_window_to_its_prices() -> None:
    async with opened(str(SAMPLES / "slow_operator")) as (app, pilot):
        await go(app, pilot, "P", to=WindowsScreen)
        assert "S is 1.1 or more beyond noise in 1 of 1 window" in screen_text(app)
        assert "2 (S_w 1.33" in screen_text(app)
        await go(app, pilot, "enter", to=WhatifScreen)
        assert "times slower than without any straggler" in screen_text(app)


HIGH = PricedWindow(
    1, 8, "2026-01-01T10:00:00.000+00:00", 1.2, 0.9, (2,), {2: 1.19}, ((1.19,),), False, 0.0, "straggler"
)


MANY = tuple(
    replace(
        HIGH,
        first_step=1000 * number,
        last_step=1000 * number + 7,
        by_rank={rank: 1.19 - rank / 1000 for rank in range(64)},
        heatmap=(tuple(1.19 - rank / 1000 for rank in range(64)),),
    )
    for number in range(1, 13)
)
"""More windows and ranks than a screen has lines."""


def test_what_matters_most_of_many_windows_fits_a_screen_of_24_lines() -> None:
    ranks = tuple(replace(STATUS.ranks[0], rank=rank) for rank in range(64))
    status = with_windows(replace(STATUS, ranks=ranks, alerts=()), WindowsResult(MANY))
    page = written(Document("watch", status, None, ()), VIEW, "table", PageOptions(width=80, height=24))
    lines = fitted(page, 24).splitlines()
    assert len(lines) == 23  # and the one that the cursor is on
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "S is 1.1 or more beyond noise in 12 of 12 windows" in text
    assert text.index("12000-12007") < text.index("11000-11007") < text.index("S_w over time") < text.index("step 1007")
    assert lines[-1].endswith("more lines: --once prints them all, kair-tui JOB shows them)")
    whole = written(Document("watch", status, None, ()), VIEW, "table", PageOptions(width=80))
    assert fitted(whole, None) == whole
    assert " 1000-1007" in whole and "scale" in whole


@pytest.mark.slow
@pytest.mark.usefixtures("own_places")
def test_the_screen_shows_the_last_windows_first_and_leads_to_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "windows", lambda _: WindowsResult(MANY))

    @played
    async def shown() -> None:
        async with opened(str(SAMPLES / "slow_operator")) as (app, pilot):
            await go(app, pilot, "P", to=WindowsScreen)
            await until(pilot, lambda: "the last 5 of 12" in screen_text(app))
            heads = [line for line in screen_text(app).splitlines() if line.startswith("  rank")]
            assert heads[0].split()[1:6] == ["8000-8007", "9000-9007", "10000-10007", "11000-11007", "12000-12007"]
            await pilot.press(*["down"] * 4)
            await until(pilot, lambda: "the last 6 of 8" in screen_text(app))
            await pilot.press("G")
            await until(pilot, lambda: "steps 1000-1007: S 1.2000" in screen_text(app))

    shown()


@pytest.mark.parametrize(
    ("windows", "alerts"),
    [
        ((HIGH, HIGH), [False]),
        ((HIGH, replace(HIGH, slowdown=1.05)), [False, True]),
        ((replace(HIGH, verdict="no_straggler"), replace(HIGH, simulation_error=0.06)), []),
    ],
)
def test_an_alert_is_raised_where_it_begins_and_is_over_where_it_ends(
    windows: tuple[PricedWindow, ...], alerts: list[bool]
) -> None:
    found = with_windows(replace(STATUS, alerts=()), WindowsResult(windows)).alerts
    assert [(one.kind, one.over) for one in found] == [("high_slowdown", over) for over in alerts]


@pytest.mark.slow
def test_what_is_missing_from_the_recording_is_said(tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    shutil.copytree(SAMPLES / "slow_operator", recording)
    next(recording.glob("*.gz")).unlink()
    look = ("watch", "job123", "--whatif", "--once", "--store", str(watched(tmp_path, str(recording))))
    told = [one["message"] for one in json.loads(kair(*look, "--json").out)["warnings"]]
    assert any("left no trace" in message for message in told)
    assert all(kair(*look).err.count(message) == 1 for message in told)


def test_an_alert_says_by_how_much_and_what_triage_finds() -> None:
    (alert,) = with_windows(replace(STATUS, alerts=()), WindowsResult((replace(HIGH, verdict="job_wide"),))).alerts
    text = (
        "step 8: uneven ranks slow the sampled steps by 20%: rank 2 alone makes S 1.19; triage of these steps: job-wide"
    )
    assert in_words(alert) == text
