"""The mitigation screen: where a job under `kair mitigate` stands, and what is decided there by a key."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.cli_samples import kair, store_variables
from support.places import SAMPLES
from support.screen_text import answered, assert_snapshot, played, screen_lines, screen_text, type_line, until
from textual.pilot import Pilot
from textual.widgets import Input

from kair.app.places import store_root
from kair_capture.agent.step_rows import ROW
from kair_capture.coordinator.step_log import StepLog
from kair_mitigate import job_state, orders, records
from kair_mitigate.job_state import StateWriter
from kair_mitigate.plans import Plan, State
from kair_mitigate.records import Records
from kair_mitigate.shards.store import ShardStore
from kair_tui.cli.wanted import JobWanted
from kair_tui.render.terminal import Look
from kair_tui.tui.frame.app import KairApp
from kair_tui.tui.frame.opening import OpeningScreen
from kair_tui.tui.screens import mitigation
from kair_tui.tui.screens.mitigation import MitigationScreen
from kair_tui.tui.widgets.shares import cells_of

pytestmark = pytest.mark.slow

NOW = 1_782_900_000.0
PRICE = {"now_s": 0.129, "after_s": 0.107, "worst_after_s": 0.114, "saving": 0.17, "units": 3.0, "moved": 2.0}


@pytest.fixture(autouse=True)
def _store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty store, a user, a clock that stands still, and looks that follow each other soon.

    Sooner, the program would never be idle, and each key waits until it is.
    """
    store_variables(monkeypatch, tmp_path)
    monkeypatch.setenv("LOGNAME", "kim")
    monkeypatch.setattr(mitigation, "_LOOK_S", 0.2)
    for module in (job_state, records):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: NOW))


@pytest.fixture
def folder() -> Path:
    """That of a job of three ranks, of which the second computes four times as long; it was resized once."""
    made = store_root(None) / "job7" / "mitigate"
    one = Records(made)
    StateWriter(made, 0).write(State(1, 0, 0, 0, Plan(0, 0, (8, 8, 8))), 2000, 2)
    plan = one.order((9, 6, 9), "auto", proposal=one.propose("adjust_bs", (9, 6, 9), PRICE))
    one.decide(1, "approved", "auto")
    StateWriter(made, 0).write(State(1, 0, 960, 40, Plan(plan.version, 24, (9, 6, 9))), 2000, 2)
    rows = np.zeros(3 * 40, ROW)
    rows["step"], rows["rank"] = np.divmod(np.arange(120), 3)
    samples = np.where(rows["step"] < 24, 8, np.where(rows["rank"] == 1, 6, 9))
    rows["begin_us"] = (NOW - 0.1 * (40 - rows["step"])) * 1e6
    rows["self_us"] = samples * np.where(rows["rank"] == 1, 16_000, 4_000)
    rows["step_us"] = 129_000
    StepLog(made.parent / "steps").append(rows)
    return made


@asynccontextmanager
async def shown(
    wanted: JobWanted | None = None, *, size: tuple[int, int] = (80, 24), look: Look | None = None
) -> AsyncIterator[tuple[KairApp, Pilot[int]]]:
    """The screen, as it is reached from the list of jobs."""
    app = KairApp(wanted or JobWanted(), look or Look())
    async with app.run_test(size=size) as pilot:
        await pilot.press("M")
        await until(pilot, lambda: isinstance(app.screen, MitigationScreen) and "job" in screen_lines(app)[2])
        yield app, pilot


def says(app: KairApp, *words: str) -> bool:
    text = screen_text(app)
    return all(word in text for word in words)


@pytest.mark.parametrize(
    ("name", "size", "look"),
    [
        ("mitigation_80x24", (80, 24), Look()),
        ("mitigation_160x50", (160, 50), Look(light=True)),
        ("mitigation_ascii", (80, 24), Look(ascii_only=True)),
        ("mitigation_no_colour", (80, 24), Look(colours="none")),
    ],
)
def test_it_looks_like_its_picture(name: str, size: tuple[int, int], look: Look, folder: Path) -> None:
    Records(folder).propose("adjust_bs", (10, 4, 10), PRICE)

    @played
    async def pictured() -> None:
        async with shown(size=size, look=look) as (app, pilot):
            await until(pilot, lambda: says(app, "16.0 ms"))
            assert_snapshot(app, name)

    pictured()


@played
async def test_a_proposal_is_approved_by_its_key_and_a_yes(folder: Path) -> None:
    number = Records(folder).propose("adjust_bs", (10, 4, 10), PRICE)
    async with shown() as (app, pilot):
        await until(pilot, lambda: says(app, "1 open of 2", "saves 11.6 % to 17.1 % of a step, pays at once"))
        await pilot.press("a")
        assert says(app, f"approve {number}, resize to 10,4,10 samples a step? y/n")
        await pilot.press("n", "enter")
        await until(pilot, lambda: says(app, "nothing was done"))
        assert Records(folder).proposals()[0].decision == "open"
        await type_line(pilot, "a", "y")
        await until(pilot, lambda: says(app, f"proposal {number} is approved", "0 open of 2", "10,4,10 samples a step"))
    decided = Records(folder).proposals()[0]
    assert (decided.decision, decided.decided_by) == ("approved", "kim")
    assert orders.read_plan(folder, orders.read_key(folder)) == Plan(2, 0, (10, 4, 10))
    assert Records(folder).history()[0].proposal == number


@played
async def test_one_that_is_denied_orders_nothing_and_is_decided_once(folder: Path) -> None:
    before = orders.read_plan(folder, orders.read_key(folder))
    number = Records(folder).propose("adjust_bs", (10, 4, 10), PRICE)
    async with shown() as (app, pilot):
        await until(pilot, lambda: says(app, "1 open of 2"))
        await type_line(pilot, "d", "yes")
        await until(pilot, lambda: says(app, f"proposal {number} is denied", "0 open of 2"))
        assert "d deny" not in screen_text(app)
    assert Records(folder).proposals()[0].decision == "denied"
    assert orders.read_plan(folder, orders.read_key(folder)) == before


@played
async def test_a_proposal_that_somebody_else_decided_first_is_told(folder: Path) -> None:
    number = Records(folder).propose("adjust_bs", (10, 4, 10), PRICE)
    async with shown() as (app, pilot):
        await until(pilot, lambda: says(app, "1 open of 2"))
        await pilot.press("a")
        Records(folder).decide(number, "denied", "robin")
        await pilot.press("y", "enter")
        await until(pilot, lambda: says(app, f"there is no open proposal {number}"))
        await until(pilot, lambda: says(app, "0 open of 2"))
        assert says(app, f"there is no open proposal {number}")
    assert Records(folder).history()[0].plan.version == 1


@played
async def test_undo_orders_the_sizes_before(folder: Path) -> None:
    async with shown() as (app, pilot):
        await until(pilot, lambda: says(app, "1 ordered"))
        await pilot.press("u")
        assert says(app, "back to 8 samples a step on each of 3 ranks? y/n")
        await pilot.press("y", "enter")
        await until(pilot, lambda: says(app, "the sizes before are ordered", "2 ordered"))
    assert orders.read_plan(folder, orders.read_key(folder)).sizes == (8, 8, 8)


@played
async def test_it_shows_what_happens_while_it_is_looked_at(folder: Path) -> None:
    async with shown() as (app, pilot):
        await until(pilot, lambda: says(app, "step 40, epoch 0", "0 open of 1"))
        Records(folder).propose("kill_restart", (8, 8, 8), {"now_s": 0.2, "after_s": 0.1, "cost_s": 30.0})
        await until(pilot, lambda: says(app, "proposal 2: restart to 8 samples a step", "pays after 300 steps"))
        state = State(1, 1, 480, 104, Plan(1, 24, (9, 6, 9)), (Plan(2, 112, (10, 4, 10)),))
        StateWriter(folder, 1).write(state, 2000, 2)
        await until(pilot, lambda: says(app, "step 104, epoch 1", "from step 112: 10,4,10 samples a step"))
        assert says(app, "480 done, 48 fetched, 1,472 to do", "attempt 1")


@pytest.mark.usefixtures("folder")
@played
async def test_a_rank_tells_from_which_step_on_it_took_how_many_samples() -> None:
    async with shown() as (app, pilot):
        await until(pilot, lambda: says(app, "16.0 ms"))
        await pilot.press("tab")
        assert says(app, "rank 1 · 8 from step 0, 6 from step 24 · 16.0 ms a sample")
        assert re.search(r"▸    1 +6 +16\.0 ms +\S+ µs  ▇+▅+$", screen_text(app), re.MULTILINE)
        await type_line(pilot, "slash", "rank:2")
        await until(pilot, lambda: says(app, "1 of 3 ranks"))
        await pilot.press("enter")
        await until(pilot, lambda: says(app, "no job is open"))


@played
async def test_of_thousands_of_ranks_those_stand_first_that_differ() -> None:
    made = store_root(None) / "large" / "mitigate"
    Records(made)
    sizes = [8] * 2048
    sizes[1900], sizes[7] = 4, 12
    StateWriter(made, 0).write(State(1, 0, 0, 0, Plan(0, 0, (8,) * 2048)), 1 << 30, 0)
    StateWriter(made, 0).write(State(1, 0, 16384, 64, Plan(1, 32, tuple(sizes))), 1 << 30, 0)
    async with shown() as (app, pilot):
        await until(pilot, lambda: says(app, "a step on 2,048 ranks"))
        first = next(at for at, line in enumerate(screen_lines(app)) if "sizes over steps" in line) + 1
        assert [line.split()[:2] for line in screen_lines(app)[first : first + 2]] == [["▸", "7"], ["1900", "4"]]


@played
async def test_the_shards_of_a_service_are_counted(folder: Path) -> None:
    store = ShardStore(folder / "shards.sqlite")
    store.make(1000, 100, seed=1)
    store.claim("a", store.join("a"))
    async with shown() as (app, pilot):
        await until(pilot, lambda: says(app, "shards", "1 in hand, 9 to do"))
        store.close()
        for log in folder.glob("shards.sqlite-*"):  # stay where the screen was reading as the store closed
            log.unlink()
        (folder / "shards.sqlite").write_bytes(b"no database" * 1000)
        await until(pilot, lambda: says(app, "kair: error: cannot work on job job7"))
        assert says(app, "step 40, epoch 0")


@played
async def test_a_job_that_is_not_run_under_it_says_how_that_is_done() -> None:
    async with shown() as (app, pilot):
        assert says(app, "no job of the store is run under kair mitigate")
        assert says(app, "kair mitigate run --job JOB -- torchrun")
        await pilot.press("a", "d", "u", "e")
        assert isinstance(app.screen, MitigationScreen)
        Records(store_root(None) / "late" / "mitigate")
        await until(pilot, lambda: says(app, "job late has not reported yet"))


@pytest.mark.skipif(not (SAMPLES / "healthy").exists(), reason="the sample traces are not recorded yet")
@played
async def test_of_an_open_job_it_is_about_that_one_and_leads_to_others(folder: Path) -> None:
    app = KairApp(JobWanted(str(SAMPLES / "healthy")), Look())
    async with app.run_test() as pilot:
        await until(pilot, lambda: answered(app))
        await pilot.press("M")
        await until(pilot, lambda: says(app, "job healthy is not run under kair mitigate", "in this store: job7"))
        await pilot.press("]")
        await until(pilot, lambda: says(app, "job job7: step 40"))
        await pilot.press("o")
        assert says(app, "kair mitigate status job7", "kair mitigate history job7")
        await pilot.press("escape", "escape")
        assert says(app, "healthy › overview")
    assert folder.is_dir()


@pytest.mark.usefixtures("folder")
@played
async def test_a_job_without_traces_yet_leads_here_too() -> None:
    app = KairApp(JobWanted("job7"), Look())
    async with app.run_test() as pilot:
        await until(pilot, lambda: says(app, "kair: error: no job 'job7'"))
        assert isinstance(app.screen, OpeningScreen)
        await pilot.press("M")
        await until(pilot, lambda: says(app, "job job7: step 40"))


@played
async def test_what_it_shows_is_what_its_command_prints(folder: Path) -> None:
    Records(folder).propose("evil\x1b[31m", (), {"\x07figure": 1.0})
    async with shown() as (app, pilot):
        await until(pilot, lambda: says(app, "16.0 ms", "␛[31m", "␇figure 1"))
        assert isinstance(app.screen, MitigationScreen)
        (export,) = app.screen.exports()
        assert export.write("csv") == kair("mitigate", "status", "job7", "-o", "csv").out
        await pilot.press("a")
        assert not app.screen.query(Input) or says(app, "y/n")


@pytest.mark.parametrize(
    ("numbers", "cells"), [([960, 48, 992], [4, 1, 5]), ([0, 0, 0], [0, 0, 0]), ([1, 1, 9998], [1, 1, 8])]
)
def test_what_is_there_has_a_cell(numbers: list[int], cells: list[int]) -> None:
    assert cells_of(numbers, 10) == cells
