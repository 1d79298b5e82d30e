"""A coordinator and its agents, over the loopback: what they say to one another, and what comes of it."""

import fcntl
import json
import os
import random
import socket
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from support.captured import rows_for
from support.patience import PATIENCE_S

from kair_capture import wire as messages
from kair_capture.agent.heartbeat import Coordinator as Reached
from kair_capture.agent.heartbeat import Heartbeat, Link, Packet, hear_all
from kair_capture.agent.step_rows import Rows
from kair_capture.coordinator import coordinator
from kair_capture.coordinator.coordinator import Coordinator, CoordinatorSettings
from kair_capture.coordinator.endpoint import Hosts
from kair_capture.coordinator.status import lines_of
from kair_capture.coordinator.step_log import StepLog, read_all
from kair_capture.files import BusyError
from kair_capture.places import JobPlaces
from kair_capture.ring import StepFlag
from kair_capture.wire import (
    Beat,
    BeatReply,
    Capture,
    CaptureReply,
    Communication,
    Datagram,
    Host,
    Kind,
    read_key,
    sealed,
    unsealed,
)

KEY = b"k" * 32


class Talk:
    """A coordinator and a heartbeat in this process, over the loopback."""

    def __init__(self, tmp_path: Path) -> None:
        self.places = JobPlaces(tmp_path / "store", "job")
        self.said: list[str] = []
        self.coordinator = self.begin()
        self.key = read_key(self.places.key, "job")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.agent = Link(ours)
        self.reached = Reached(None, self.places.address)
        self.other = Link(theirs)
        self.heartbeat = Heartbeat(self.other, self.reached)
        self.heartbeat.use(self.key)
        self.packets: list[tuple[Packet, bytes]] = []
        self.batch = 0
        self.now = time.monotonic()

    def begin(self) -> Coordinator:
        settings = CoordinatorSettings(self.places, ("127.0.0.1", 0))
        return Coordinator(settings, self.said.append)

    def end(self) -> None:
        self.coordinator.stop()
        self.coordinator.run()

    def close(self) -> None:
        self.end()
        self.reached.close()
        self.agent.close()
        self.other.close()

    def until(self, done: Callable[[], object], most: int = 400) -> None:
        """Lets both talk, faster than by the clock, until something is so."""
        for _ in range(most):
            if done():
                return
            self.now += 0.3
            self.turn()
        pytest.fail("it does not come to that")

    def turn(self) -> None:
        self.heartbeat.turn(self.now)
        self.coordinator.endpoint.turn()
        self.coordinator._watch(time.monotonic())
        hear_all(self.reached.socket(), self.heartbeat, self.now)
        self.packets += self.agent.received()

    def tell(self, rows: Rows) -> None:
        for part in np.array_split(rows, (len(rows) - 1) // messages.MOST_ROWS + 1):
            self.batch += 1
            self.agent.send(Packet.ROWS, messages.Rows(self.batch, part.tobytes()).packed())

    def kept(self) -> set[int]:
        return {messages.Number.read(content).number for kind, content in self.packets if kind == Packet.KEPT}

    def replies(self) -> list[BeatReply]:
        return [BeatReply.read(content) for kind, content in self.packets if kind == Packet.REPLY]

    def orders(self) -> list[BeatReply]:
        return [one for one in self.replies() if one.steps]

    def count(self, ranks: int, unsent_rows: int = 0, sampled_every: int = 0) -> None:
        """What the agent counts."""
        beat = Beat(ranks=ranks, unsent_rows=unsent_rows, sampled_every=sampled_every)
        self.agent.send(Packet.BEAT, beat.packed())


def test_what_an_agent_counts_when_it_leaves_is_heard_so_that_nobody_waits_for_it(tmp_path: Path) -> None:
    talk = Talk(tmp_path)

    def unsent_rows() -> int:
        talk.coordinator._write_status(time.monotonic())
        return talk.coordinator.status.hosts[0].unsent_rows if talk.coordinator.status else -1

    talk.agent.send(Packet.HOST, Host("node-1", 1, (0,)).packed())
    talk.count(1, 4, 100)
    talk.until(lambda: list(talk.coordinator._hosts) and unsent_rows() == 4)
    assert talk.coordinator.status is not None
    assert talk.coordinator.status.hosts[0].sampled_every == 100
    talk.count(0)
    talk.agent.close()
    talk.heartbeat.take_leave()
    talk.coordinator.endpoint.turn()
    assert unsent_rows() == 0
    talk.close()


def test_what_a_coordinator_keeps_is_its_owner_s(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        talk = Talk(tmp_path)
        talk.close()
    finally:
        os.umask(umask)
    found = [talk.places.store, *talk.places.store.rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in found} == {0}


def test_what_killed_coordinators_and_agents_were_writing_goes(tmp_path: Path) -> None:
    talk = Talk(tmp_path)
    talk.end()
    host = talk.places.delivered / "host=node-1"
    for folder in (host, talk.places.scopes):
        folder.mkdir(parents=True)
    left = [
        talk.places.capture / ".status.json.4711.0123abcd",
        talk.places.capture / ".key.4711.0123abcd",
        talk.places.steps / ".part-00000001.parquet",
        talk.places.scopes / ".joined-node-1.parquet",
    ]
    of_agents = [host / f".steps-{number}.parquet.4711.0123abcd" for number in (1, 2)]
    for path in (*left, *of_agents):
        path.write_text("half")
    with of_agents[0].open("rb") as being_delivered:
        fcntl.flock(being_delivered, fcntl.LOCK_EX)
        talk.coordinator = talk.begin()
        talk.close()
    assert not any(path.exists() for path in left)
    assert [path.exists() for path in of_agents] == [True, False]


def test_an_agent_finds_its_coordinator_and_a_slow_rank_is_sampled(tmp_path: Path) -> None:
    talk = Talk(tmp_path)
    with pytest.raises(BusyError):
        talk.begin()
    talk.agent.send(Packet.HOST, Host("node-1", 4, (0, 1, 2, 3)).packed())
    for rank in range(4):
        talk.agent.send(Packet.COMMUNICATION, Communication(rank, 4, groups=((4, 10),)).packed())
    chance = random.Random(2)
    for first in range(0, 200, 20):
        for rank in range(4):
            work = 900 if rank == 2 and first >= 100 else 700
            rows = rows_for(rank, range(first, first + 20))
            rows["self_us"] = [work + chance.randrange(20) for _ in range(20)]
            talk.tell(rows)
        talk.until(lambda: talk.kept() == set(range(1, talk.batch + 1)))
    talk.until(talk.orders)
    order = talk.orders()[-1]
    assert order.ranks == (0, 1, 2, 3)
    assert order.first_step > 120
    talk.coordinator._write_status(time.monotonic())
    status = talk.coordinator.status
    assert status is not None
    assert [(one.kind, one.ranks, one.hosts) for one in status.alerts] == [("slow_rank", (2,), ("node-1",))]
    assert 100 < status.alerts[0].step <= 130
    assert [one.rank for one in status.ranks if one.slow] == [2]
    assert status.sampling.windows[0].first_step == order.first_step
    assert status.hosts[0].clock_bound_us is not None
    assert abs(status.hosts[0].clock_offset_us or 0) <= status.hosts[0].clock_bound_us
    text = "\n".join(lines_of(status))
    assert 'kair_slow{job="job",rank="2",host="node-1"} 1' in text
    assert 'kair_slow{job="job",rank="1",host="node-1"} 0' in text
    missing = rows_for(1, range(200, 201))
    missing["flags"] = StepFlag.MISSED
    talk.tell(missing)
    talk.until(lambda: talk.coordinator._memory.windows[-1].missed == (1,))
    talk.end()
    earned = talk.coordinator._sampler.budget.elapsed_us
    # A coordinator that starts again knows what was told, and does not order the same once more.
    talk.coordinator = talk.begin()
    assert talk.coordinator._sampler.budget.elapsed_us == earned > 0  # what it reads again is not earned twice
    talk.packets.clear()
    talk.batch += 1000
    assert len(talk.coordinator._watching.roles.reports) == 4
    talk.tell(rows_for(1, range(201, 215)))
    talk.until(lambda: len(talk.kept()) == 1)
    assert {(one.generation, one.first_step) for one in talk.orders()} <= {(order.generation, order.first_step)}
    assert len(read_all(talk.places.steps)) == 4 * 200 + 15
    assert [one.ranks for one in talk.coordinator._watching.alerts] == [(2,)]
    assert talk.coordinator._watching.slow == {2}
    talk.close()


def test_what_ranks_sample_unasked_is_of_the_same_budget_and_their_agent_hears_of_it(tmp_path: Path) -> None:
    talk = Talk(tmp_path)
    talk.agent.send(Packet.HOST, Host("node-1", 4, (0, 1)).packed())
    for rank in (0, 1):
        rows = rows_for(rank, range(80))
        rows["flags"][[30, 60]] = StepFlag.SAMPLED
        rows["begin_us"][31:] += 2000
        rows["begin_us"][61:] += 2000
        talk.tell(rows)
    budget = talk.coordinator._sampler.budget
    talk.until(lambda: budget.spent_us == 4000 and budget.elapsed_us > 60_000)
    assert budget.held_us < 0
    took = round(budget.overhead * 1e6)
    talk.until(lambda: (took, 0) in [(one.overhead_ppm, one.sampled_every) for one in talk.replies()])
    # The ranks here sample one step in 100; on another host one can afford one in 400, until it falls silent.
    other = Beat(ranks=4, sampled_every=400)
    talk.coordinator._hosts.introduce(Host("node-2", 4, (2, 3)), 77, time.monotonic())
    talk.coordinator._hosts.hear(77, other, time.monotonic())
    talk.count(2, sampled_every=100)
    talk.until(lambda: (talk.replies()[-1].overhead_ppm, talk.replies()[-1].sampled_every) == (took, 400))
    next(one for one in talk.coordinator._hosts if one.name == "node-2").heard_s -= 100
    talk.until(lambda: talk.replies()[-1].sampled_every == 100)
    talk.end()
    # A coordinator that starts again charges nothing twice.
    talk.coordinator = talk.begin()
    for _ in range(5):
        talk.turn()
    assert talk.coordinator._sampler.budget.spent_us == 4000
    talk.close()


def test_a_window_is_heard_of_with_the_answer_to_the_next_steps_and_not_with_the_next_beat(tmp_path: Path) -> None:
    talk = Talk(tmp_path)
    talk.agent.send(Packet.HOST, Host("node-1", 2, (0, 1)).packed())
    for rank in (0, 1):
        talk.tell(rows_for(rank, range(60)))
    talk.until(lambda: len(talk.kept()) == 8)
    talk.until(lambda: any(kind == Packet.FIT for kind, _ in talk.packets))
    assert talk.coordinator.on_capture(Capture(4)).first_step > 60
    talk.now += 0.001  # a beat is not due
    talk.tell(rows_for(0, range(60, 62)))
    for _ in range(3):
        talk.turn()
    assert [one.ranks for one in talk.orders()] == [(0, 1)]
    talk.close()


def test_a_job_that_starts_once_more_is_not_over_before_its_ranks_are_there(tmp_path: Path) -> None:
    talk = Talk(tmp_path)

    def state() -> str | None:
        talk.coordinator._write_status(time.monotonic())
        return talk.coordinator.status and talk.coordinator.status.state

    talk.tell(rows_for(0, range(60)))  # of the attempt before: its agent could not tell them any more
    talk.agent.send(Packet.HOST, Host("node-1", 1, ()).packed())
    talk.until(lambda: len(talk.coordinator._hosts) and talk.kept())
    assert state() == "waiting"
    for ranks, expected in (((0,), "training"), ((), "over")):
        talk.count(len(ranks))
        talk.agent.send(Packet.HOST, Host("node-1", 1, ranks).packed())
        talk.until(lambda expected=expected: state() == expected)
    talk.close()


@pytest.mark.parametrize("ahead_s", [-15, 0, 3600])
def test_a_host_whose_clock_is_wrong_is_not_taken_for_one_that_is_late(tmp_path: Path, ahead_s: int) -> None:
    talk = Talk(tmp_path)
    coordinator, begin_us = talk.coordinator, round((time.time() + ahead_s) * 1e6)
    coordinator.on_host(7, Host("node-1", 1, (0,)))
    coordinator.on_beat(7, Beat(offset_ns=ahead_s * 10**9, bound_ns=20_000, ranks=1))
    for first in (0, 20, 40):
        rows = rows_for(0, range(first, first + 20), begin_us=begin_us - 60_000)
        assert coordinator.on_rows(7, messages.Rows(1, rows.tobytes())) is not None
        coordinator._watch(time.monotonic())
    # As many steps ahead as the beats and a tenth of a second take.
    assert 60 < coordinator._watching.first_step() < 1200
    talk.close()


def test_agents_that_give_the_same_name_to_their_hosts_are_told_apart() -> None:
    hosts, order = Hosts(), {1: (0, 1), 2: (2, 3)}
    for sender in order:
        assert hosts.introduce(Host("node", 4, ()), sender, 0.0)
    for sender, ranks in order.items():
        hosts.introduce(Host("node", 4, ranks), sender, 1.0)
    heard = {sender: hosts.hear(sender, Beat(ranks=2), 2.0) for sender in order}
    assert {sender: state and state.ranks for sender, state in heard.items()} == order
    assert sorted(state.name for state in hosts) == ["node", "node#2"]
    assert hosts.ranks() == [0, 1, 2, 3]
    # One that was killed and started again has its place, whether it knows its ranks at once or not.
    hosts.introduce(Host("node", 4, ()), 3, 2.5)
    hosts.introduce(Host("node", 4, (2, 3)), 3, 3.0)
    assert sorted(state.name for state in hosts) == ["node", "node#2"]
    assert hosts.hear(2, Beat(ranks=2), 3.0) is None
    # A rank that ends before the others was on its host all the same.
    hosts.introduce(Host("node", 4, (3,)), 3, 4.0)
    assert [hosts.by_rank()[rank] for rank in (2, 3, 1)] == ["node#2", "node#2", "node"]
    assert hosts.ranks() == [0, 1, 3]
    # An agent of the next attempt: the one before is gone.
    hosts.introduce(Host("node", 4, (5,)), 4, 100.0)
    assert len(hosts) == 2


def asked(talk: Talk, datagram: Datagram, key: bytes | None = None) -> Datagram | None:
    """What the coordinator answers to one datagram."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.connect(("127.0.0.1", talk.coordinator.endpoint.port))
        sock.send(sealed(key or talk.key, datagram))
        talk.coordinator.endpoint.turn()
        try:
            return unsealed(talk.key, sock.recv(2000))
        except BlockingIOError:
            return None


def test_a_stranger_is_not_heard_and_nothing_is_heard_twice(tmp_path: Path) -> None:
    talk = Talk(tmp_path)
    capture = Datagram(Kind.CAPTURE, 0, 7, 1, Capture(5).packed())
    assert asked(talk, capture, b"x" * 32) is None
    first = asked(talk, capture)
    assert first is not None
    assert first.kind == Kind.EPOCH_REPLY
    epoch = first.epoch
    told = asked(talk, replace(capture, epoch=epoch))
    assert told is not None
    assert CaptureReply.read(told.body).why_not == "no rank has reported enough steps yet"
    assert asked(talk, replace(capture, epoch=epoch)) is None  # recorded, and sent again
    assert len(sealed(talk.key, first)) <= len(sealed(talk.key, capture))
    # A flood from the same address, and of what was recorded, silences nobody.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as flood:
        flood.connect(("127.0.0.1", talk.coordinator.endpoint.port))
        recorded = sealed(talk.key, replace(capture, epoch=epoch))
        for _ in range(50):
            for _ in range(50):
                flood.send(b"x" * 60)
                flood.send(recorded)
            talk.coordinator.endpoint.turn()
    refused = talk.coordinator.endpoint.refused
    assert refused == {"signature": 1, "format": 2500, "replay": 2501}  # and none for its rate
    refused.clear()
    for rank in range(4):
        talk.coordinator._table.add(rows_for(rank, range(60)))
    talk.coordinator._watch(time.monotonic())
    unknown = asked(talk, Datagram(Kind.CAPTURE, epoch, 7, 2, Capture(5, (9,)).packed()))
    assert unknown is not None
    assert "rank 9" in CaptureReply.read(unknown.body).why_not
    ordered = asked(talk, Datagram(Kind.CAPTURE, epoch, 7, 3, Capture(5, (1, 3)).packed()))
    assert ordered is not None
    assert CaptureReply.read(ordered.body).first_step > 60
    assert refused == {}
    talk.close()
    assert json.loads((talk.places.capture / "status.json").read_text())["sampling"]["windows"][0]["ranks"] == [1, 3]


def test_a_store_that_is_full_is_told_and_no_stall_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk(tmp_path)
    talk.agent.send(Packet.HOST, Host("node-1", 1, (0,)).packed())
    talk.count(1)
    talk.tell(rows_for(0, range(40)))
    talk.until(lambda: len(talk.kept()) == 3)
    append = StepLog.append

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(StepLog, "append", full)
    talk.tell(rows_for(0, range(40, 50)))
    talk.until(lambda: talk.coordinator._unwritten_since)
    later = time.monotonic() + 100
    talk.coordinator._watch(later)
    talk.coordinator._watch(later + 20)
    talk.coordinator._write_status(time.monotonic())
    status = talk.coordinator.status
    assert status is not None
    assert (status.state, status.unwritten_since is None) == ("training", False)
    monkeypatch.setattr(StepLog, "append", append)
    talk.until(lambda: len(talk.kept()) == 4)
    talk.coordinator._write_status(time.monotonic())
    assert [line for line in talk.said if "written" in line] == [
        "the store cannot be written (No space left on device): agents keep what they have until it can be",
        "the store can be written again",
    ]
    assert talk.coordinator.status is not None
    talk.close()


def test_a_coordinator_that_no_rank_comes_to_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "_FIRST_RANK_S", 0.0)
    places = JobPlaces(tmp_path / "store", "job")
    coordinator.Coordinator(CoordinatorSettings(places, ("127.0.0.1", 0), leave_after_s=0.0)).run()
    assert json.loads(places.status.read_bytes())["state"] == "waiting"


def test_a_coordinator_leaves_a_job_that_was_over_before_any_beat_named_a_rank(tmp_path: Path) -> None:
    settings = CoordinatorSettings(JobPlaces(tmp_path / "store", "job"), ("127.0.0.1", 0), leave_after_s=0.0)
    short = coordinator.Coordinator(settings)
    assert short.on_rows(7, messages.Rows(1, rows_for(0, range(3)).tobytes())) is not None
    leaving = Thread(target=short.run)
    leaving.start()
    leaving.join(PATIENCE_S)
    left = not leaving.is_alive()
    short.stop()
    leaving.join()
    assert left, "it waited for its first rank"
