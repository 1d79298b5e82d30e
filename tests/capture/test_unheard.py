"""A coordinator that hears no rank, though some train, says so with the reason; two stores are told apart."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fault
import pytest
from support.captured import agent_of, rows_for
from support.cli_samples import kair
from support.live_status import STATUS, write_status
from support.patience import PATIENCE_S, wait_until

from kair_capture import unheard
from kair_capture.agent.step_rows import Journal
from kair_capture.coordinator import coordinator as of_coordinator
from kair_capture.coordinator.coordinator import Coordinator, CoordinatorSettings
from kair_capture.coordinator.step_log import attempts_in, read_all
from kair_capture.places import JobPlaces
from kair_capture.ring import process_namespace, start_ticks
from kair_capture.settings import default_run_dir
from kair_capture.unheard import agent_in, note_agent, run_dir_of, why_no_step, why_unheard
from kair_capture.wire import Beat, Datagram, Kind, make_key, sealed
from kair_mitigate import controller as of_controller
from kair_mitigate.controller import Controller


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run folder of `job` on this host, in which two ranks have trained for a minute."""
    monkeypatch.setattr(unheard, "default_run_dir", lambda job: tmp_path / "run" / job)
    folder = tmp_path / "run" / "job"
    folder.mkdir(parents=True)
    for rank in range(2):
        began = start_ticks(os.getpid())
        lives = {"pid": os.getpid(), "start_ticks": began, "pid_namespace": process_namespace()}
        stated = {**lives, "started_ns": time.time_ns() - 60 * 10**9}
        (folder / f"rank-{rank}.json").write_text(json.dumps(stated))
    return folder


def places_of(tmp_path: Path, store: str = "store") -> JobPlaces:
    return JobPlaces(tmp_path / store, "job")


AT = ("127.0.0.1", 7433)


def test_the_reason_is_said_where_it_can_be_found(here: Path, tmp_path: Path) -> None:
    places = places_of(tmp_path)
    begin = "no rank of job job is heard, though 2 train on this host: "
    assert why_unheard(places, AT) == f"{begin}no agent lives on this host (kair capture run starts one)"
    note_agent(here, places_of(tmp_path, "other"), places.key, None)
    told = why_unheard(places, AT) or ""
    assert told.startswith(f"{begin}their agent (process {os.getpid()}) serves the store {tmp_path}/other, not ")
    note_agent(here, places, places.key, ("login", 7500))
    assert (
        f"{begin}their agent speaks with login:7500 (KAIR_COORDINATOR), the coordinator has port 7433"
        == why_unheard(places, AT)
    )
    assert "has no coordinator" in (why_unheard(places) or "")
    note_agent(here, places, tmp_path / "key", None)
    assert "does not reach the coordinator at 127.0.0.1:7433" in (why_unheard(places, AT) or "")
    told = why_unheard(places, AT, refused=12) or ""
    assert f"12 datagrams have another key's signature (its agent uses {tmp_path}/key, the coordinator" in told


def test_nothing_is_said_of_ranks_that_just_began_or_have_ended(here: Path, tmp_path: Path) -> None:
    for rank, change in enumerate(({"started_ns": time.time_ns()}, {"start_ticks": 1})):
        path = here / f"rank-{rank}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert why_unheard(places_of(tmp_path), AT) is None
    (here / "rank-0.json").write_text("[")
    assert why_unheard(places_of(tmp_path), AT) is None


@contextmanager
def coordinator_of(places: JobPlaces, said: list[str]) -> Iterator[Coordinator]:
    made = Coordinator(CoordinatorSettings(places, ("127.0.0.1", 0)), said.append)
    yield made
    made._store.start()
    made._close()


def test_a_coordinator_that_hears_nobody_says_why_and_so_does_the_watch(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Datagrams come that another key signed: of the store's folder that was made anew, as an example."""
    monkeypatch.setattr(of_coordinator, "AFTER_S", 0.0)
    monkeypatch.setattr(of_coordinator, "_ASK_WHY_S", 0.0)
    places, said = places_of(tmp_path), list[str]()
    note_agent(here, places, places.key, None)
    with coordinator_of(places, said) as made:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for number in range(3):
                sock.sendto(
                    sealed(b"x" * 32, Datagram(Kind.BEAT, 0, 1, number, Beat().packed())),
                    (AT[0], made.endpoint.port),
                )
        made.endpoint.turn()
        made._write_status(time.monotonic())
        assert "3 datagrams have another key's signature" in said[-1]
        told = kair("watch", "job", "--once", "--store", str(places.store)).out.splitlines()[0]
        assert told.startswith("job: waiting for the first steps: no rank of job job is heard, though 2 train on this ")
        assert why_no_step(places) == made.status.unheard_because if made.status else False
        made._write_status(time.monotonic())
        assert "does not reach the coordinator" in (made.status.unheard_because or "" if made.status else "")
        for path in here.glob("rank-*.json"):
            path.unlink()
        made._write_status(time.monotonic())
        assert made.status is not None
        assert made.status.unheard_because is None


def test_a_watch_without_a_coordinator_says_that_ranks_train(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kair.app.answers import watch

    monkeypatch.setattr(watch, "_APPEARS_S", 0.0)
    write_status(tmp_path / "store", STATUS)
    note_agent(here, places_of(tmp_path, "other"), tmp_path / "key", None)
    told = kair("watch", "job", "--store", str(tmp_path / "store"))
    assert told.status == 3
    assert (
        f"though 2 train on this host: their agent (process {os.getpid()}) serves the store {tmp_path}/other"
        in told.err
    )


@pytest.mark.usefixtures("here")
def test_a_controller_to_which_no_step_comes_says_why_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    monkeypatch.setattr(of_controller, "AFTER_S", 0.0)
    monkeypatch.setattr(Controller, "look", lambda _: None)
    looks = iter(range(4))

    def sleep(_: float) -> None:
        if next(looks, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(of_controller.time, "sleep", sleep)
    controller = Controller(places_of(tmp_path), None, lambda: None, say=said.append)  # type: ignore[arg-type,return-value]
    with pytest.raises(KeyboardInterrupt):
        controller.run()
    begin = "no rank of job job is heard, though 2 train on this host"
    assert said == [f"{begin}: no agent lives on this host (kair capture run starts one)"]


def test_jobs_of_one_name_in_two_stores_have_run_folders_of_their_own(here: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    assert run_dir_of("job", one) == here
    # Before its agent is there: its command, which is this process, has the folder.
    assert run_dir_of("job", other) != here
    note_agent(here, JobPlaces(one, "job"), tmp_path / "key", None)
    (here / "claim.json").unlink()
    assert run_dir_of("job", one) == here
    second = run_dir_of("job", other)
    assert second.parent == here.parent
    assert second == run_dir_of("job", other) != here
    # A folder of that sort is looked into as well.
    second.mkdir()
    for path in here.glob("rank-*.json"):
        path.rename(second / path.name)
    note_agent(second, JobPlaces(other, "job"), tmp_path / "key", None)
    assert f"serves the store {other}, not {one}" in (why_unheard(JobPlaces(one, "job"), AT) or "")
    (here / "agent.json").write_text(json.dumps(json.loads((here / "agent.json").read_text()) | {"start_ticks": 1}))
    (here / "claim.json").unlink()
    Journal(here / "rows.journal").append(rows_for(0, range(3)))
    assert run_dir_of("job", other) == second  # what the first job left is for its own store
    (here / "rows.journal").unlink()
    assert run_dir_of("job", other) == here


@pytest.mark.live
def test_real_jobs_of_one_name_do_not_mix_at_the_same_time_or_one_after_the_other(tmp_path: Path) -> None:
    job = f"twin-{os.getpid()}"
    simulated = [sys.executable, str(fault.HERE / "simulated_job.py"), "--ranks", "0-1", "--world", "2"]

    def started(store: str, *words: str) -> subprocess.Popen[bytes]:
        own = {"KAIR_STORE": str(tmp_path / store), "KAIR_AGENT_IDLE": "1", "KAIR_SPOOL_DIR": str(tmp_path / "spool")}
        return subprocess.Popen([sys.executable, "-m", "kair_tui", *words], env={**os.environ, **own}, cwd=fault.ROOT)

    def trains(store: str, steps: int) -> subprocess.Popen[bytes]:
        return started(store, "capture", "run", "--job", job, "--", *simulated, "--steps", str(steps), "--step-ms", "9")

    unwatched = trains("unwatched", 40)
    assert unwatched.wait() == 0
    wait_until(lambda: agent_in(default_run_dir(job)) is None)
    watched = [
        started(store, "coordinator", "--job", job, "--listen", "127.0.0.1:0", "--leave-after", "3")
        for store in ("one", "two")
    ]
    for store in ("one", "two"):
        wait_until(JobPlaces(tmp_path / store, job).address.exists)
    assert [one.wait() for one in [trains("one", 80), trains("two", 160)]] == [0, 0]
    assert [one.wait() for one in watched] == [0, 0]
    for store, steps in (("one", 80), ("two", 160)):
        kept = read_all(JobPlaces(tmp_path / store, job).steps)
        assert [(one.number, one.ranks, one.last_step) for one in attempts_in(kept)] == [(1, (0, 1), steps - 1)]
    for left in default_run_dir(job).parent.glob(f"{job}*"):
        shutil.rmtree(left)


@pytest.mark.slow
def test_an_agent_says_that_another_store_s_has_the_folder(tmp_path: Path) -> None:
    make_key(JobPlaces(tmp_path / "store", "job").key)
    with agent_of(tmp_path) as agent:
        held = agent_in(agent.settings.run_dir)
        assert held is not None
        assert held.serves(tmp_path / "store")
        variables = {
            "KAIR_JOB": "job",
            "KAIR_RUN_DIR": str(tmp_path / "run"),
            "KAIR_SPOOL_DIR": str(tmp_path / "spool"),
        }
        for store, told in (
            ("store", ""),
            ("two", f"kair: job job is not captured into the store {tmp_path}/two: the agent "),
        ):
            ended = subprocess.run(
                [sys.executable, "-m", "kair_capture.agent"],
                env={**os.environ, **variables, "KAIR_STORE": str(tmp_path / store)},
                capture_output=True,
                text=True,
                check=True,
                timeout=PATIENCE_S,
            )
            assert ended.stderr[: len(told)] == told
            assert bool(ended.stderr) == bool(told)
