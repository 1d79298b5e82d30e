import fcntl
import json
import os
import random
import shutil
import socket
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.captured import fragment_of, rows_for

from kair_capture.agent.fragment_names import named
from kair_capture.agent.heartbeat import Coordinator as Reached
from kair_capture.agent.heartbeat import Heartbeat, hear_all
from kair_capture.agent.link import COUNTERS, OVERHEAD, Link, Packet
from kair_capture.agent.scopes import ScopeSums
from kair_capture.agent.spool import Spool
from kair_capture.agent.step_rows import Rows, ScopeSum
from kair_capture.alone import BusyError
from kair_capture.coordinator.budget import Budget
from kair_capture.coordinator.coordinator import Coordinator
from kair_capture.coordinator.detection import STEPS, When, Who
from kair_capture.coordinator.hosts import Hosts
from kair_capture.coordinator.keeping import step_log
from kair_capture.coordinator.keeping.committing import Committed, Committer
from kair_capture.coordinator.keeping.scope_log import ScopeLog
from kair_capture.coordinator.keeping.step_log import StepLog, read_all
from kair_capture.coordinator.metrics import lines_of
from kair_capture.coordinator.roles import Roles, role_names
from kair_capture.coordinator.sampling import Sampler
from kair_capture.coordinator.settings import CoordinatorSettings
from kair_capture.coordinator.step_table import Recent, StepTable
from kair_capture.coordinator.watching import Watching
from kair_capture.places import JobPlaces
from kair_capture.ring.layout import StepFlag
from kair_capture.wire import messages
from kair_capture.wire.datagram import Datagram, Kind, sealed, unsealed
from kair_capture.wire.keys import read_key
from kair_capture.wire.messages import Beat, BeatReply, Capture, CaptureReply, Communication, Host
from kair_engine.recording.changes import state_of
from kair_engine.recording.job_file import open_job_folder
from kair_engine.triage.analysis import triage

KEY = b"k" * 32


# What is slow.


def recent_of(self_us: "np.ndarray[tuple[int, int], np.dtype[np.float64]]") -> Recent:
    ranks, count = self_us.shape
    step_us = np.broadcast_to(self_us.max(axis=0), self_us.shape)
    return Recent(np.arange(ranks), np.arange(count), step_us, self_us, self_us * np.nan, self_us)


def noticed(
    ranks: int, slow_by: float, *, steps: int = 400, slow_from: int = 200, seed: int = 1, stages: int = 1
) -> dict[int, int]:
    """rank → the first step at which it counts as slow; times with 3 % noise, spikes, and lasting differences.

    Stages of a pipeline are unequally long, by a third each.
    """
    chance = np.random.default_rng(seed)
    own = (1 + chance.normal(0, 0.005, ranks)) * (1 + np.arange(ranks) * stages // ranks / 3)
    times = own[:, None] * (1 + np.abs(chance.normal(0, 0.03, (ranks, steps))))
    times += (chance.random((ranks, steps)) < 0.005) * chance.exponential(0.3, (ranks, steps))
    times[ranks // 2, slow_from:] *= 1 + slow_by
    who, found = Who(), {}
    role = pipelines(ranks, stages).codes(np.arange(ranks))
    for until in range(STEPS, steps, 5):
        recent = recent_of(times[:, until - STEPS : until] * 1e5)
        _, slow = who.look(recent, role, whole_block=until % STEPS == 0)
        for rank in slow:
            found.setdefault(rank, until)
    return found


def pipelines(ranks: int, stages: int) -> Roles:
    """What such ranks tell: each sends to the same place of the next stage and of the one before."""
    wide = ranks // stages
    roles = Roles()
    for rank in range(ranks):
        others = tuple(one for one in (rank - wide, rank + wide) if stages > 1 and 0 <= one < ranks)
        roles.tell(Communication(rank, ranks, others, others, ((wide, 15),)))
    return roles


@pytest.mark.parametrize("ranks", [4, 8, 2048])
def test_a_rank_that_becomes_slow_is_noticed_within_30_steps_and_no_other(ranks: int) -> None:
    found = noticed(ranks, 0.2, steps=300)
    assert list(found) == [ranks // 2]
    assert found[ranks // 2] <= 230


@pytest.mark.parametrize("ranks", [4, 256])
def test_healthy_jobs_are_left_alone(ranks: int) -> None:
    assert not noticed(ranks, 0.0, steps=2000)


@pytest.mark.parametrize(("ranks", "stages"), [(4, 4), (8, 4), (16, 4)])
def test_a_slow_rank_is_slow_for_its_stage_and_long_stages_are_not(ranks: int, stages: int) -> None:
    found = noticed(ranks, 0.2, steps=650, slow_from=600, stages=stages)
    assert list(found) == [ranks // 2]
    assert 600 < found[ranks // 2] <= 630


def test_what_all_ranks_of_a_pipeline_do_slower_is_nobodys_fault() -> None:
    chance, who = np.random.default_rng(3), Who()
    times = np.arange(1, 5)[:, None] * (1 + np.abs(chance.normal(0, 0.03, (4, 400))))
    times[:, 200:] *= 1.4
    for until in range(STEPS, 400, 5):
        recent = recent_of(times[:, until - STEPS : until] * 1e5)
        assert who.look(recent, np.arange(4), whole_block=until % STEPS == 0)[1] == []


def told(ranks: int, **of: Callable[[int], tuple[int, ...]]) -> dict[int, Communication]:
    sends, receives = of["sends"], of.get("receives", of["sends"])
    return {rank: Communication(rank, ranks, sends(rank), receives(rank), ((ranks, 10),)) for rank in range(ranks)}


def test_roles_are_told_by_who_communicates_how() -> None:
    first, second = pipelines(8, 4), {0: 0, 1: 0, 6: 3, 7: 3}
    assert {rank: first.name(rank) for rank in second} == {rank: f"stage {at} of 4" for rank, at in second.items()}
    alike = dict.fromkeys(range(8), "all")
    assert role_names(told(8, sends=lambda _: ())) == alike
    # Keys and values passed round a ring, and everybody to everybody, are no pipelines; one that begins anew is.
    assert role_names(told(8, sends=lambda at: ((at + 1) % 8,), receives=lambda at: ((at - 1) % 8,))) == alike
    assert role_names(told(8, sends=lambda at: tuple({*range(8)} - {at}))) == alike
    again = role_names(told(8, sends=lambda at: ((at + 1) % 8, (at - 1) % 8)))
    assert len(set(again.values())) == 8
    # Groups of other sizes are another program; one call more in a hundred is not.
    mixed = {rank: Communication(rank, 8, groups=((2, 100),) if rank < 4 else ((4, 100),)) for rank in range(8)}
    assert len(set(role_names(mixed).values())) == 2
    mixed = {rank: Communication(rank, 8, groups=((8, 100), *(((2, 1),) if rank < 2 else ()))) for rank in range(8)}
    assert role_names(mixed) == alike


def test_longer_steps_are_told_once() -> None:
    chance, when, told = random.Random(1), When(), []
    for until in range(STEPS, 800, 5):
        base = 1000 if until < 500 else 1300
        steps = np.array([[base * (1 + abs(chance.gauss(0, 0.03))) for _ in range(STEPS)]])
        *_, is_longer = when.look(recent_of(steps), whole_block=until % STEPS == 0)
        if is_longer:
            told.append(until)
            when.accept()
    assert len(told) == 1
    assert 500 <= told[0] <= 530


# Step times.


def test_steps_are_counted_once_in_whatever_order_they_come(tmp_path: Path) -> None:
    rows = np.concatenate([rows_for(rank, range(1, 101)) for rank in range(4)])
    parts = np.array_split(rows, 40)
    random.Random(1).shuffle(parts)
    table, log = StepTable(), StepLog(tmp_path)
    for part in [*parts, *parts[:20]]:
        new = table.unknown(part)
        log.append(new)
        table.add(new)
    assert table.last_common_step == 100
    kept = read_all(tmp_path)
    assert len(kept) == 400
    assert len(np.unique(kept[["rank", "step"]])) == 400
    again = StepTable()
    again.add(StepLog(tmp_path).recover())
    assert not len(again.unknown(rows))
    # Back to a checkpoint: the same numbers later.
    later = rows_for(2, range(90, 95), begin_us=2 * 10**15)
    assert len(again.unknown(later)) == 5
    again.add(later)
    assert again.latest.tolist() == [100, 100, 94, 100]


def test_a_coordinator_killed_between_a_part_and_its_journal_counts_nothing_twice(tmp_path: Path) -> None:
    log = StepLog(tmp_path)
    log.append(rows_for(0, range(10)))
    (journal,) = tmp_path.glob("*.journal")
    from kair_capture.coordinator.keeping.step_log import write_part

    write_part(tmp_path / "part-00000001.parquet", read_all(tmp_path))
    assert len(read_all(tmp_path)) == 10
    again = StepLog(tmp_path)
    again.append(rows_for(0, range(10, 15)))
    assert not journal.exists()
    assert read_all(tmp_path)["step"].tolist() == list(range(15))


def test_a_journal_that_is_full_while_the_store_is_away_goes_on_and_counts_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_log, "ROWS_A_PART", 10)
    folder, away = tmp_path / "steps", tmp_path / "away"
    log = StepLog(folder)
    folder.rename(away)
    # What is open stays open: these rows are written, though no next journal can be made.
    log.append(rows_for(0, range(12)))
    away.rename(folder)
    log.append(rows_for(0, range(12, 14)))
    log.append(rows_for(0, range(14, 16)))
    log.pack()
    assert len(list(folder.glob("*.parquet"))) == 1
    assert read_all(folder)["step"].tolist() == list(range(16))


def test_a_rank_that_is_heard_for_the_first_time_late_is_no_return_to_a_checkpoint() -> None:
    table, hosts = StepTable(), Hosts()
    watching = Watching(table, hosts, Sampler(Budget(0.01)), Roles())
    for first in range(0, 240, 20):
        for rank in range(4):
            table.add(rows_for(rank, range(first, first + 20), self_us=900 if rank == 2 else 700))
        watching.turn(0.0)
    table.add(rows_for(4, range(200), self_us=700))
    watching.turn(0.0)
    assert [(alert.kind, alert.ranks, alert.over) for alert in watching.alerts] == [("slow_rank", (2,), False)]


@pytest.mark.parametrize(("sleep_us", "delay_us", "noticed_as"), [(0, 8000, [2]), (40_000, 0, [])])
def test_who_computes_more_is_noticed_among_ranks_that_wait_for_cores(
    sleep_us: int, delay_us: int, noticed_as: list[int]
) -> None:
    table, chance = StepTable(), np.random.default_rng(4)
    watching = Watching(table, Hosts(), Sampler(Budget(0.01)), Roles())
    for first in range(0, 300, 20):
        for rank in range(4):
            rows = rows_for(rank, range(first, first + 20), step_us=100_000)
            cpu = 2000 * (1.25 if rank == 2 and first >= 160 else 1) * (1 + chance.normal(0, 0.01, 20))
            # Waiting for a core takes as long as it likes, other than a device's work.
            delay = chance.exponential(delay_us, 20) if delay_us else np.zeros(20)
            rows["cpu_us"], rows["delay_us"] = cpu, delay
            rows["self_us"] = cpu + delay + sleep_us
            table.add(rows)
        watching.turn(0.0)
    assert sorted(watching.slow) == noticed_as


# The store.


def delivered(places: JobPlaces, work: Path, host: str, ranks: range, first: int) -> Path:
    """A fragment as an agent leaves it in the store."""
    made = fragment_of(work, ranks, host=host, first=first)
    target = places.delivered / f"host={host}" / named(made, host, first, first + 3, KEY).text
    target.parent.mkdir(parents=True, exist_ok=True)
    made.rename(target)
    return target


def test_what_agents_deliver_becomes_a_job_that_can_be_read_at_any_time(tmp_path: Path) -> None:
    places, work = JobPlaces(tmp_path / "store", "job"), tmp_path / "work"
    committer = Committer(places, KEY)
    assert committer.round() == Committed()
    one = delivered(places, work, "node-1", range(2), 5)
    copy = one.with_name(named(one, "node-1", 5, 8, KEY).text)
    shutil.copy(one, copy)  # a second delivery of the same steps
    stranger = one.with_name(one.name.replace(one.name[-40:-8], "0" * 32))
    shutil.copy(one, stranger)
    no_file = one.with_name(named(one, "node-1", 5, 8, KEY).text)
    no_file.mkdir()
    done = committer.round()
    assert [window[:2] for window in done.windows] == [(5, 8)]
    assert (done.refused, done.duplicates) == (2, 1)
    trace = open_job_folder(places.folder)
    assert (trace.job.ranks, trace.job.steps) == ((0, 1), (5, 6, 7, 8))
    before = triage(trace).verdict
    for first in (20, 30):
        delivered(places, work, "node-1", range(2), first)
    seen = state_of(places.folder)
    assert len(committer.round().windows) == 2
    assert state_of(places.folder) != seen  # who follows the job reads it again
    assert open_job_folder(places.folder).job.steps == (*range(5, 9), *range(20, 24), *range(30, 34))
    assert committer.compact(least=2)
    committer.tidy()
    assert one.exists()  # `trace` still reads it
    compacted = open_job_folder(places.folder)
    assert compacted.job.operations == 3 * trace.job.operations
    assert len(compacted.fragments) == 1
    assert not any(warning.code == "unreadable_file" for warning in compacted.job.warnings)
    assert triage(compacted.select((5, 6, 7, 8))).verdict == before
    del trace
    committer.tidy()
    assert list(places.delivered.glob("host=*/*")) == [no_file]
    assert committer.round() == Committed()
    no_file.rmdir()
    assert len(open_job_folder(places.folder).job.steps) == 12
    assert Committer(places, KEY).round() == Committed()


def test_sums_of_scopes_are_kept_once_and_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kair_capture.coordinator.keeping.scope_log.JOIN_FROM", 3)
    places, log = JobPlaces(tmp_path / "store", "job"), ScopeLog(JobPlaces(tmp_path / "store", "job"), KEY)
    spool = Spool(tmp_path / "spool", 1 << 20, places.delivered, "node-1")

    def delivered_sums(step: int) -> None:
        sums = ScopeSums(tmp_path)
        sums.add([ScopeSum(0, step, 10**15 + step, "augment", 70, 2), ScopeSum(1, step, 10**15 + step, "x", 5, 1)])
        sums.deliver(spool, tmp_path, KEY, at_once=True)
        spool.deliver_waiting()

    delivered_sums(1)
    (path,) = places.delivered.glob("host=*/*")
    path.with_name(path.name.replace(path.name[-40:-8], "0" * 32)).write_bytes(path.read_bytes())
    log.round()
    assert log.refused == 1
    for step in (2, 3):
        delivered_sums(step)
        kept = {one.name: one.read_bytes() for one in places.scopes.iterdir()}
        log.round()
    assert [one.name.partition("-")[0] for one in places.scopes.iterdir()] == ["joined"]
    # Killed before what was joined had gone.
    for name, content in kept.items():
        (places.scopes / name).write_bytes(content)
    # Of a bucket that others write to.
    (victim := tmp_path / "store" / "job.json").touch()
    empty = pa.table({}).replace_schema_metadata({b"kair.sources": b"../../job.json\n..\n."})
    pq.write_table(empty, places.scopes / "joined-evil.parquet")
    delivered_sums(4)
    log.round()
    assert victim.exists()
    (places.scopes / "joined-evil.parquet").unlink(missing_ok=True)
    rows = pq.read_table(places.scopes).to_pylist()
    assert sorted((one["step"], one["scope"]) for one in rows) == [
        (step, scope) for step in range(1, 5) for scope in ("augment", "x")
    ]


# The conversation.


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
        for part in np.array_split(rows, len(rows) // 20 + 1):
            self.batch += 1
            self.agent.send(Packet.ROWS, self.batch.to_bytes(8, "little") + part.tobytes())

    def kept(self) -> set[int]:
        return {int.from_bytes(content, "little") for kind, content in self.packets if kind == Packet.KEPT}


def test_what_an_agent_counts_when_it_leaves_is_heard_so_that_nobody_waits_for_it(tmp_path: Path) -> None:
    talk = Talk(tmp_path)

    def unsent_rows() -> int:
        talk.coordinator._write_status(time.monotonic())
        return talk.coordinator.status.hosts[0].unsent_rows if talk.coordinator.status else -1

    talk.agent.send(Packet.HOST, Host("node-1", 1, (0,)).packed())
    talk.agent.send(Packet.COUNTERS, COUNTERS.pack(1, 0, 0, 0, 0, 0, 4, 100))
    talk.until(lambda: list(talk.coordinator._hosts) and unsent_rows() == 4)
    assert talk.coordinator.status is not None
    assert talk.coordinator.status.hosts[0].sampled_every == 100
    talk.agent.send(Packet.COUNTERS, COUNTERS.pack(0, 0, 0, 0, 0, 0, 0, 0))
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
    talk.until(lambda: any(kind == Packet.ORDER for kind, _ in talk.packets))
    order = [BeatReply.read(content) for kind, content in talk.packets if kind == Packet.ORDER][-1]
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
    assert len(talk.coordinator._watching.roles.told) == 4
    talk.tell(rows_for(1, range(201, 220)))
    talk.until(lambda: len(talk.kept()) == 1)
    again = [BeatReply.read(content) for kind, content in talk.packets if kind == Packet.ORDER]
    assert {(one.generation, one.first_step) for one in again} <= {(order.generation, order.first_step)}
    assert len(read_all(talk.places.steps)) == 4 * 200 + 20
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
    overhead = OVERHEAD.pack(round(budget.overhead * 1e6))
    talk.until(lambda: (Packet.OVERHEAD, overhead) in talk.packets)
    talk.end()
    # A coordinator that starts again charges nothing twice.
    talk.coordinator = talk.begin()
    for _ in range(5):
        talk.turn()
    assert talk.coordinator._sampler.budget.spent_us == 4000
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
        talk.agent.send(Packet.COUNTERS, COUNTERS.pack(len(ranks), 0, 0, 0, 0, 0, 0, 0))
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
        assert coordinator.on_rows(7, messages.Rows(1, rows.tobytes()))
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
    epoch = int.from_bytes(first.body, "little")
    told = asked(talk, replace(capture, epoch=epoch))
    assert told is not None
    assert CaptureReply.read(told.body).why_not == "no rank has told enough steps yet"
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
