"""`kair confirm` from the command to the ranks' agent: who may ask, what is answered, and how an order travels."""

import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.captured import rows_for
from support.cli_samples import RESULTS, assert_valid, kair
from support.patience import PATIENCE_S
from support.watched_job import watched_job

from kair_capture.agent.heartbeat import Coordinator as Reached
from kair_capture.agent.heartbeat import Heartbeat, Link, Packet, hear_all
from kair_capture.coordinator.coordinator import Coordinator, CoordinatorSettings
from kair_capture.coordinator.store_work import remote_job_of
from kair_capture.delays import TakesDelays, from_json
from kair_capture.places import JobPlaces
from kair_capture.wire import (
    Beat,
    BeatReply,
    Communication,
    Datagram,
    Delays,
    Host,
    Kind,
    Values,
    read_key,
    sealed,
    unsealed,
)
from kair_engine.results.confirm import ConfirmRun, DelayEffect
from kair_engine.store.confirmed import latest_confirmed
from kair_engine.store.remote import fetch_confirmed, mirror_of
from kair_tui.render.answer import PageOptions
from kair_tui.render.page import Page
from kair_tui.render.triage import VIEW as TRIAGE_VIEW


@contextmanager
def coordinating(store: Path, *, allow: bool = True) -> Iterator[Coordinator]:
    """A coordinator of a job of four ranks, which have told 200 steps."""
    settings = CoordinatorSettings(JobPlaces(store, "job"), ("127.0.0.1", 0), allow_delays=allow)
    coordinator = Coordinator(settings)
    coordinator.on_host(1, Host("node-1", 4, (0, 1, 2, 3)))
    coordinator.on_beat(1, Beat(ranks=4))
    chance = np.random.default_rng(2)
    for rank in range(4):
        rows = rows_for(rank, range(200), step_us=100_000, begin_us=10**15)
        rows["self_us"] = 90_000 + chance.normal(0, 500, 200)
        rows["attempt"] = 1
        coordinator._table.add(rows)
    # As if it had been looked at: that would take a second.
    coordinator._watching._attempt, coordinator._watching._looked = 1, 199
    coordinator._watching.step_us = 100_000.0
    coordinator._watching.interval_s = 0.2
    yield coordinator


@contextmanager
def running(coordinator: Coordinator) -> Iterator[None]:
    """Its loop."""
    thread = threading.Thread(target=coordinator.run)
    thread.start()
    try:
        yield
    finally:
        coordinator.stop()
        thread.join()


def start(**asked: str) -> Values:
    return Values({"do": "start", **asked})


def test_an_order_reaches_the_agent_by_the_heartbeat_and_so_does_its_end(tmp_path: Path) -> None:
    with coordinating(tmp_path) as coordinator:
        places = JobPlaces(tmp_path, "job")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        agent, other, reached = Link(ours), Link(theirs), Reached(None, places.address)
        heartbeat = Heartbeat(other, reached)
        heartbeat.use(read_key(places.key, "job"))
        now, packets = time.monotonic(), list[Delays]()

        def until(done: Callable[[], object]) -> None:
            nonlocal now
            for _ in range(400):
                if done():
                    return
                now += 0.3
                heartbeat.turn(now)
                coordinator.endpoint.turn()
                hear_all(reached.socket(), heartbeat, now)
                packets.extend(Delays.read(content) for kind, content in agent.received() if kind == Packet.DELAYS)
            pytest.fail("it does not come to that")

        assert coordinator.on_confirm(start(ranks="1", dose_us="2000", budget="5%")).why_not == ""
        coordinator._confirming.turn()
        until(lambda: packets)
        order = from_json(packets[0].order)
        assert (order.generation, order.accused, order.doses_ns) == (packets[0].number, (1,), (2_000_000,))
        assert order.first_step > 200
        coordinator.on_confirm(Values({"do": "stop"}))
        until(lambda: len(packets) > 1)
        assert packets[-1].order == b""
        assert packets[-1].number > order.generation
        for one in (reached, agent, other):
            one.close()
        coordinator.stop()
        coordinator.run()


def test_an_order_that_is_signed_otherwise_or_sent_again_delays_nobody(tmp_path: Path) -> None:
    with (
        coordinating(tmp_path) as coordinator,
        running(coordinator),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock,
    ):
        sock.settimeout(PATIENCE_S)
        sock.connect(("127.0.0.1", coordinator.endpoint.port))
        key, sender = read_key(JobPlaces(tmp_path, "job").key, "job"), secrets.randbits(64)

        def asked(sequence: int, epoch: int, values: Values, by: bytes = key) -> bytes:
            return sealed(by, Datagram(Kind.CONFIRM, epoch, sender, sequence, values.packed()))

        wanted, look = start(ranks="1", dose_us="2000"), Values({"do": "look"})
        sock.send(asked(1, 0, wanted))
        reply = unsealed(key, sock.recv(2000))
        assert reply.kind == Kind.EPOCH_REPLY
        epoch = reply.epoch
        recorded = asked(2, epoch, wanted)
        for data in (recorded, asked(3, epoch, Values({"do": "stop"}))):
            sock.send(data)
            assert unsealed(key, sock.recv(2000)).kind == Kind.CONFIRM_REPLY
        sock.send(recorded)
        sock.send(asked(4, epoch, wanted, by=b"x" * 32))
        sock.send(asked(5, epoch, look))
        found = unsealed(key, sock.recv(2000))
        assert found.sequence == 5
        assert Values.read(found.body).values["state"] == "over"
        assert coordinator.endpoint.refused["replay"] == coordinator.endpoint.refused["signature"] == 1


def test_no_window_is_ordered_while_ranks_are_delayed_nor_the_other_way_round(tmp_path: Path) -> None:
    from kair_capture.wire import Capture

    with coordinating(tmp_path) as coordinator:
        assert coordinator.on_confirm(start(ranks="1", dose_us="2000")).why_not == ""
        assert "kair confirm runs" in coordinator.on_capture(Capture(4)).why_not
        assert coordinator._watching.holds_off
        coordinator.on_confirm(Values({"do": "stop"}))
        assert coordinator.on_capture(Capture(4)).first_step > 200
        assert "are being sampled" in coordinator.on_confirm(start(ranks="1", dose_us="2000")).why_not
        coordinator.stop()
        coordinator.run()


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--rank", "9"), 3, "rank 9 is not among those that are heard"),
        (("--rank", "1", "--place", "on_device"), 2, "on_device"),
        (("--rank", "1", "--dose", "90"), 3, "5% of the step"),
        (("--rank", "1", "--all"), 2, "--all accuses nobody"),
        (("--stop",), 3, "no rank is being delayed"),
    ],
)
def test_what_cannot_be_is_told_in_a_line_and_by_the_status(
    tmp_path: Path, words: tuple[str, ...], status: int, said: str
) -> None:
    with coordinating(tmp_path) as coordinator, running(coordinator):
        told = kair("confirm", "job", *words, "--store", str(tmp_path))
        assert told.status == status
        assert said in told.err.splitlines()[0]


def test_without_being_allowed_it_says_what_to_do(tmp_path: Path) -> None:
    with coordinating(tmp_path, allow=False) as coordinator, running(coordinator):
        told = kair("confirm", "job", "--rank", "1", "--store", str(tmp_path))
        assert told.status == 3
        assert "--allow-delays" in told.err
        assert "KAIR_CAPTURE_DELAYS=1" in told.err


ANSWER = ConfirmRun(
    accused=(5,),  # type: ignore[arg-type]  # ranks are numbers
    place="before_forward",
    dose_us=4000.0,
    effects=(
        DelayEffect("accused", (5,), 30, 4010.0, 0.98, 0.86, 1.1, 3900.0, 3400.0, 4400.0, 80.0, 0.0, 560.0),  # type: ignore[arg-type]
        DelayEffect("others", (0, 1), 31, 4010.0, 0.02, -0.08, 0.12, 100.0, -300.0, 500.0, 3900.0, 3500.0, None),  # type: ignore[arg-type]
        DelayEffect("all", (0, 1, 5), 1, 4000.0),  # type: ignore[arg-type]
    ),
    p=0.0005,
    verdict="confirmed",
    held_up_by=(5,),  # type: ignore[arg-type]
    saving_us=3900.0,
    saving_low_us=3500.0,
    saving_high_us=4300.0,
    would_see_us=900.0,
    steps_needed=0,
    steps_covered=160,
    steps_used=140,
    noise_us=1800.0,
    cost_us=80_000.0,
    job="job",
    step_time_us=200_000.0,
    excess_us=22_000.0,
    budget=0.01,
    ranks=3,
)


def test_the_answer_is_shown_as_a_table_and_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = JobPlaces(tmp_path, "job")
    places.confirm.mkdir(parents=True)
    (places.confirm / "1.json").write_bytes(msgspec.json.encode(ANSWER))
    answers = iter([{"state": "running"}, {"state": "over", "file": "../confirm/1.json"}])
    monkeypatch.setattr("kair_tui.commands.confirm.ask_coordinator", lambda *_: next(answers))
    monkeypatch.setattr("kair_tui.commands.confirm._LOOK_S", 0.0)
    told = kair("confirm", "job", "--store", str(tmp_path), "--json")
    assert told.status == 0, told.err
    found = json.loads(told.out)
    assert_valid(found, "confirm")
    assert found["data"]["verdict"] == "confirmed"
    monkeypatch.setattr("kair_tui.commands.confirm.ask_coordinator", lambda *_: {"state": "over", "file": "1.json"})
    told = kair("confirm", "job", "--store", str(tmp_path))
    assert told.out.startswith("confirmed: rank 5 holds up the job, and a fix is worth 3.50 ms a step or more\n")
    assert "cost: 0.4 steps, 80.0 ms, 0.24 GPU-seconds of 3 ranks; the budget is 1.0 % of the job's time" in told.out
    assert "all others" in told.out


def test_the_last_record_is_shown_while_delays_go_on_and_when_nobody_writes_it(tmp_path: Path) -> None:
    places = watched_job(tmp_path)
    told = kair("confirm", "job", "--last", "--store", str(tmp_path))
    assert (told.status, told.err.splitlines()[0]) == (3, "kair: error: no rank of job job was ever delayed")
    places.confirm.mkdir()
    now = datetime.now(UTC).isoformat()
    is_open = replace(ANSWER, verdict="open", state="running", steps_needed=40, steps_allowed=400, at=now)
    for at, words in (
        (now, "140 steps of 400 at most"),
        ("2026-01-01T10:00:00.000+00:00", "nothing heard since 10:00:00 UTC"),
    ):
        (places.confirm / "1.json").write_bytes(msgspec.json.encode(replace(is_open, at=at)))
        told = kair("confirm", "job", "--last", "--store", str(tmp_path))
        assert words in told.out
        assert told.out.startswith("open: about 40 more steps decide") == (at == now)
    assert kair("confirm", "job", "--last", "--stop", "--store", str(tmp_path)).status == 2


def test_delays_that_showed_nothing_are_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = JobPlaces(tmp_path, "job")
    places.confirm.mkdir(parents=True)
    ended = replace(ANSWER, verdict="open", effects=(), ended_because="no step ends any more")
    (places.confirm / "1.json").write_bytes(msgspec.json.encode(ended))
    over = {"state": "over", "file": "1.json", "why": "no step ends any more"}
    monkeypatch.setattr("kair_tui.commands.confirm.ask_coordinator", lambda *_: over)
    told = kair("confirm", "job", "--store", str(tmp_path))
    assert (told.status, told.err) == (3, "kair: error: nothing was found: no step ends any more\n")
    assert latest_confirmed(places.confirm) is None


def test_in_ascii_the_forest_plot_has_signs_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = JobPlaces(tmp_path, "job")
    places.confirm.mkdir(parents=True)
    (places.confirm / "1.json").write_bytes(msgspec.json.encode(ANSWER))
    over = {"state": "over", "file": "1.json"}
    monkeypatch.setattr("kair_tui.commands.confirm.ask_coordinator", lambda *_: over)
    told = kair("confirm", "job", "--ascii", "--store", str(tmp_path))
    assert "-o-" in told.out
    assert told.out.isascii() and "\\u" not in told.out


def test_what_was_added_to_datagrams_travels_whole() -> None:
    reply = BeatReply(1, 2, 3, ranks=(1, 2), delays=2**63)
    assert BeatReply.read(reply.packed()) == reply
    said = Communication(3, 8, (1,), (2,), ((4, 9),), TakesDelays.YES)
    assert Communication.read(said.packed()) == said


def test_triage_shows_the_answer_beside_its_accusation() -> None:
    page = Page(PageOptions(width=160, color=False, ascii_only=False))
    TRIAGE_VIEW.body(replace(RESULTS["triage"], confirmed=ANSWER), page)
    assert "kair confirm: rank 5 holds up the job, and a fix is worth 3.50 ms a step or more" in page.getvalue()


def test_the_last_whole_answer_is_taken_whatever_else_is_in_the_folder(tmp_path: Path) -> None:
    kept = {"1": ANSWER, "2": replace(ANSWER, verdict="withdrawn"), "3": replace(ANSWER, state="running")}
    for name, one in kept.items():
        (tmp_path / f"{name}.json").write_bytes(msgspec.json.encode(one))
    (tmp_path / "4.json").write_text("[" * 100_000)
    (tmp_path / "5.json").write_text('{"verdict": 7}')
    assert latest_confirmed(tmp_path) == kept["2"]
    assert latest_confirmed(tmp_path, 4) is None
    assert latest_confirmed(tmp_path / "none") is None


def test_an_answer_is_found_behind_a_url_too(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/remote"
    places = JobPlaces(mirror_of(url, tmp_path / "coordinators"), "job")
    for folder in (places.confirm, places.capture):
        folder.mkdir(parents=True)
    (places.confirm / "1.json").write_bytes(msgspec.json.encode(ANSWER))
    remote = remote_job_of(places)
    assert remote is not None
    remote.tell(is_last=True)
    mirror = mirror_of(url, tmp_path / "readers")
    fetch_confirmed(mirror, "job")
    assert latest_confirmed(mirror / "job" / "confirm") == ANSWER


@pytest.mark.parametrize(("end", "status"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_ctrl_c_and_sigterm_end_the_delays(
    end: BaseException, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answer(_: JobPlaces, do: str, __: object = None) -> dict[str, str]:
        asked.append(do)
        if do == "look":
            raise end
        return {"state": "running"}

    monkeypatch.setattr("kair_tui.commands.confirm.ask_coordinator", answer)
    assert kair("confirm", "job", "--store", str(tmp_path)).status == status
    assert asked == ["start", "look", "stop"]
