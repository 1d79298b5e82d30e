"""The screen of `kair confirm`: a forest plot of what delays showed, live, and the keys that begin and stop them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest
from support.cli_samples import kair
from support.patience import PATIENCE_S, wait_until
from support.places import ROOT
from support.program import KAIR
from support.screen_text import (
    answered,
    assert_says,
    assert_snapshot,
    front,
    opened,
    played,
    screen_text,
    type_line,
    until,
)
from support.watched_job import watched_job

import kair as api
from kair_capture.coordinator.step_log import read_all
from kair_capture.places import JobPlaces
from kair_engine.errors import InputError
from kair_engine.results.confirm import ConfirmRun, DelayEffect, SweptDose, Worth
from kair_engine.results.watch import WatchResult
from kair_engine.store.confirmed import latest_run
from kair_engine.trace.json_text import kept_json
from kair_tui.render.terminal import Look
from kair_tui.tui.frame import watching
from kair_tui.tui.frame.app import KairApp
from kair_tui.tui.screens import confirm as screen_module
from kair_tui.tui.screens.confirm import ConfirmScreen

pytestmark = pytest.mark.slow

RUN = ConfirmRun(
    accused=(1,),  # type: ignore[arg-type]  # ranks are numbers
    place="before_forward",
    dose_us=600.0,
    effects=(
        DelayEffect("accused", (1,), 30, 610.0, 0.98, 0.86, 1.1, 598.0, 525.0, 671.0, 12.0, 0.0, 85.0),  # type: ignore[arg-type]
        DelayEffect("others", (0, 2, 3), 31, 612.0, 0.02, -0.1, 0.14, 12.0, -61.0, 86.0, 600.0, 526.0, None),  # type: ignore[arg-type]
        DelayEffect("all", (0, 1, 2, 3), 9, 611.0, 1.1, 0.8, 1.4, 672.0, 489.0, 855.0, 0.0, 0.0, 122.0),  # type: ignore[arg-type]
    ),
    p=0.0005,
    verdict="confirmed",
    held_up_by=(1,),  # type: ignore[arg-type]
    saving_us=600.0,
    saving_low_us=526.0,
    saving_high_us=673.0,
    would_see_us=200.0,
    steps_needed=0,
    steps_covered=160,
    steps_used=140,
    noise_us=140.0,
    cost_us=12_000.0,
    worth=Worth(
        2400.0,
        2200.0,
        2600.0,
        tuple(
            SweptDose(dose, 20, min(dose, 2400.0), min(dose, 2400.0) - 150, min(dose, 2400.0) + 150)
            for dose in (600.0, 1200.0, 1800.0, 2400.0, 3000.0, 3600.0)
        ),
    ),
    job="job",
    at="2026-01-01T10:00:00.000+00:00",
    first_step=100,
    last_step=239,
    step_time_us=12_000.0,
    excess_us=2700.0,
    budget=0.01,
    allowed_us=28_800.0,
    ranks=4,
    steps_allowed=400,
)
OPEN = replace(RUN, verdict="open", held_up_by=(), worth=None, state="running", steps_needed=40, p=None)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobPlaces:
    """A watched job that is over; looks follow each other soon, and nobody looks whether the job has grown."""
    monkeypatch.setattr(watching, "_LOOK_S", 1000.0)
    monkeypatch.setenv("KAIR_STORE", str(tmp_path / "store"))
    monkeypatch.setattr(screen_module, "_LOOK_S", 0.2)
    return watched_job(tmp_path / "store")


def write(places: JobPlaces, run: ConfirmRun) -> None:
    """As the coordinator does; of delays that go on just now."""
    places.confirm.mkdir(exist_ok=True)
    now = datetime.now(UTC).isoformat(timespec="milliseconds") if run.state == "running" else run.at
    whole = places.confirm / ".new"
    whole.write_bytes(msgspec.json.encode(replace(run, at=now)))
    whole.replace(places.confirm / "1.json")


def says(app: KairApp, text: str) -> bool:
    return text in screen_text(app)


def is_there(app: KairApp) -> bool:
    return isinstance(app.screen, ConfirmScreen) and answered(app)


@pytest.mark.parametrize(
    ("name", "size", "look", "run"),
    [
        ("confirm_80x24", (80, 24), Look(), RUN),
        ("confirm_160x50", (160, 50), Look(), RUN),
        ("confirm_ascii", (80, 24), Look(ascii_only=True), replace(RUN, worth=None)),
        (
            "confirm_no_colour",
            (80, 24),
            Look(colours="none"),
            replace(OPEN, state="over", ended_because="stopped by hand"),
        ),
    ],
)
def test_it_looks_like_its_picture(
    name: str, size: tuple[int, int], look: Look, run: ConfirmRun, places: JobPlaces
) -> None:
    write(places, run)

    @played
    async def pictured() -> None:
        async with opened("job", size=size, look=look) as (app, pilot):
            await pilot.press("K")
            await until(pilot, lambda: is_there(app))
            assert_snapshot(app, name)

    pictured()


@played
async def test_it_shows_delays_while_they_go_on_and_what_they_came_to(places: JobPlaces) -> None:
    async with opened("job") as (app, pilot):
        await pilot.press("K")
        await until(pilot, lambda: is_there(app))
        assert_says(app, "no rank of job was ever delayed", "--allow-delays", "b begin")
        assert "X stop" not in screen_text(app)
        write(places, replace(OPEN, effects=(), steps_needed=55))
        await until(
            pilot, lambda: "open: about 55 more steps decide whether rank 1 holds up the job" in screen_text(app)
        )
        write(places, OPEN)
        await until(pilot, lambda: "open: about 40 more steps" in screen_text(app))
        assert_says(app, "cost so far: 1.0 steps, 12.0 ms, 0.05 GPU-seconds of 4 ranks", "delays go on", "X stop")
        await pilot.press("down")
        row = "all others · 31 steps by 612 µs · a step +12.0 µs ± 73.5 µs · slack 526 µs or more"
        await until(pilot, lambda: front(app, ConfirmScreen).described == row)
        write(places, RUN)
        await until(pilot, lambda: "the delays are over" in screen_text(app))
        assert_says(app, "confirmed: rank 1 holds up the job, and a fix is worth 2.40 ms a step", "b begin")
        (export,) = app.screen.exports()  # type: ignore[attr-defined]
        printed, typed = kair("confirm", "job", "--last", "--json").out, api.open("job", progress=False).confirmed()
        shown = [json.loads(text)["data"] for text in (export.write("json"), printed, typed.to_json())]
        assert shown[0] == shown[1] == shown[2]
        assert typed.held_up_by == (1,)


@played
async def test_a_coordinator_that_is_gone_is_told(places: JobPlaces) -> None:
    write(places, OPEN)
    old = places.confirm / "1.json"
    old.write_bytes(old.read_bytes().replace(b'"at":"2', b'"at":"1'))
    async with opened("job") as (app, pilot):
        await pilot.press("K")
        await until(pilot, lambda: is_there(app))
        assert_says(app, "the coordinator is gone", "delays end by themselves after 64", "b begin")


@played
async def test_nothing_is_begun_without_a_yes_and_the_key_ends_it(
    places: JobPlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, dict[str, str]]] = []
    terms = {"ranks": "1", "dose_us": "600", "most_us": "28800", "needed": "55"}

    def answer(_: JobPlaces, do: str, values: dict[str, str] | None = None) -> dict[str, str]:
        asked.append((do, values or {}))
        if do == "start":
            write(places, OPEN)
        elif do == "stop":
            write(places, replace(OPEN, state="over", ended_because="stopped by hand"))
        return {"state": "over", "file": "1.json"} if do == "stop" else terms

    for module in ("kair_tui.commands.confirm", "kair_tui.tui.screens.confirm"):
        monkeypatch.setattr(f"{module}.ask_coordinator", answer)
    async with opened("job") as (app, pilot):
        await pilot.press("K")
        await until(pilot, lambda: is_there(app))
        for yes, said in (("n", "nothing was done"), ("y", "begun: X takes")):
            await type_line(pilot, "b", "1 worth")
            await until(
                pilot, lambda: "delay rank 1 by 600 µs for about 55 steps, at most 28.8 ms lost" in screen_text(app)
            )
            await pilot.press(yes, "enter")
            await until(pilot, partial(says, app, said))
        await until(pilot, lambda: "delays go on" in screen_text(app))
        await pilot.press("X")
        await until(pilot, lambda: "the delays are taken back" in screen_text(app))
        assert_says(app, "The delays ended: stopped by hand.")
    wanted = {"ranks": "1", "worth": "1"}
    assert asked == [("plan", wanted), ("plan", wanted), ("start", wanted), ("stop", {})]


@played
async def test_what_the_coordinator_refuses_is_said(places: JobPlaces, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> dict[str, str]:
        raise InputError("no rank is delayed: delays are not allowed")

    monkeypatch.setattr("kair_tui.tui.screens.confirm.ask_coordinator", refuse)
    async with opened("job") as (app, pilot):
        await pilot.press("K")
        await until(pilot, lambda: is_there(app))
        await type_line(pilot, "b", "all")
        await until(pilot, lambda: "no rank is delayed: delays are not allowed" in screen_text(app))
        app.framed.say("read again: 20 more steps")
        app.screen.renewed()  # type: ignore[attr-defined]
        await pilot.pause()
        assert_says(app, "no rank is delayed: delays are not allowed")
    assert not list(places.confirm.glob("*"))


@contextmanager
def trained(folder: Path) -> Iterator[JobPlaces]:
    """A job of two ranks that sleep, under capture, with a coordinator that may delay them; rank 1 is slow."""
    fault, places = folder / "fault.json", JobPlaces(folder / "store", "real")
    fault.write_text('{"rank": 1, "excess": 0.2}')
    own = {"KAIR_STORE": str(places.store), "KAIR_JOB": places.job, "KAIR_RUN_DIR": str(folder / "run")}
    environment = {**os.environ, **own, "KAIR_SPOOL_DIR": str(folder / "spool"), "OMP_NUM_THREADS": "1"}
    command = [*KAIR]
    coordinator = [*command, "coordinator", "--listen", "127.0.0.1:0", "--allow-delays", "--max-overhead", "0%", "-q"]
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "2"]
    script = [str(ROOT / "validation" / "confirm" / "real_job.py"), "--fault", str(fault), "--step-ms", "40"]
    job = [*command, "capture", "run", "--", *torchrun, *script]
    processes = [subprocess.Popen(one, env=environment, cwd=ROOT) for one in (coordinator, job)]
    try:
        yield places
    finally:
        fault.unlink()  # the job ends by that
        processes[1].wait(PATIENCE_S)
        processes[0].terminate()
        processes[0].wait(PATIENCE_S)


@pytest.mark.live
@pytest.mark.skipif(find_spec("torch") is None, reason="training needs torch: pip install 'kair[record]'")
def test_the_key_takes_delays_of_a_real_job_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAIR_STORE", str(tmp_path / "store"))

    def step_of(places: JobPlaces) -> int:
        status = kept_json(places.status, WatchResult)
        return -1 if status is None else status.step

    def reach(places: JobPlaces, step: int) -> None:
        wait_until(lambda: step_of(places) >= step, every_s=0.1)

    with trained(tmp_path) as places:
        reach(places, 160)

        def is_under_way() -> bool:
            run = latest_run(places.confirm)
            return run is not None and run.steps_covered > 0

        def is_stopped() -> bool:
            run = latest_run(places.confirm)
            return run is not None and run.state == "over"

        @played
        async def stopped() -> None:
            async with opened("real") as (app, pilot):
                await pilot.press("K")
                await until(pilot, lambda: is_there(app))
                while not says(app, "delay rank 1 by"):
                    # On a busy machine steps vary too much at first, or the rank is not known to be slow yet.
                    await type_line(pilot, "b", "1")
                    await until(pilot, lambda: says(app, "delay rank 1 by") or says(app, "allow more steps"))
                    reach(places, step_of(places) + 40)
                    await pilot.pause()
                await pilot.press("y", "enter")
                await until(pilot, lambda: is_under_way() and says(app, "X stop"))
                await pilot.press("X")
                await until(pilot, is_stopped)

        stopped()
        run = latest_run(places.confirm)
        assert run is not None and (run.state, run.ended_because) == ("over", "stopped by hand")
        at = step_of(places)
        reach(places, at + 120)
    rows = read_all(places.steps)
    late = rows[rows["step"] > at + 40]  # an order holds no longer on a rank that hears of its end
    assert (rows["inserted_us"] > 0).any()
    assert len(late) and not (late["inserted_us"] > 0).any()
