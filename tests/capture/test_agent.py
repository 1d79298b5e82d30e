import gzip
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.captured import MS, OneRank, fragment_of, window_of
from support.patience import PATIENCE_S

from kair_capture.agent.agent import Agent, agent_settings
from kair_capture.agent.heartbeat import Coordinator as Reached
from kair_capture.agent.heartbeat import Heartbeat, Link, Packet
from kair_capture.agent.run_folders import DEAD_AFTER_S, UNDELIVERED_AFTER_S, remove_dead_folders
from kair_capture.agent.spool import Spool, deliver_file, read_name
from kair_capture.agent.step_rows import COLUMNS, ROW, Journal, ScopeSum, ScopeSums
from kair_capture.agent.windows import HostOfWindow, convert, window_files
from kair_capture.clocks import ClockFit
from kair_capture.control import RankControl
from kair_capture.delays import DELAYS_FILE, Mode, Order, Place, to_json
from kair_capture.files import locked
from kair_capture.job.windows import ControlWords
from kair_capture.ring import Kind, process_namespace
from kair_capture.unheard import mark_of
from kair_capture.wire import Beat, BeatReply, Delays, read_key
from kair_engine.trace.format import read_metadata

KEY = b"k" * 32


def written(journal: Journal) -> list[tuple[int, int]]:
    """Rank and step of the rows that wait."""

    rows = np.frombuffer(b"".join(journal.first(10_000)), ROW)
    return list(zip(rows["rank"].tolist(), rows["step"].tolist(), strict=True))


def test_a_steps_row_has_what_its_threads_recorded(tmp_path: Path) -> None:
    rank = OneRank(tmp_path)
    rank.rings[1].emit(Kind.COLLECTIVE, 107 * MS, 2 * MS, 1, 0)  # within the other wait: 6 to 10 ms of the step
    rank.rings[0].emit(Kind.GC, 101 * MS, 1 * MS, 1)
    rank.rings[0].emit(Kind.INPUT, 100 * MS, 500_000, 1)
    rank.step(1, 100)
    drained = rank.reader().peek()
    assert drained is not None
    assert drained.rows is not None
    row = dict(zip(COLUMNS, drained.rows[0].tolist(), strict=True))
    assert row | {"rank": 3, "step": 1, "step_us": 10_000, "waited_us": 4000, "self_us": 6000} == row
    assert row | {"forward_us": 3000, "backward_us": 0, "gc_us": 1000, "input_us": 500} == row
    assert row["begin_us"] == 5_100_000


def test_steps_of_a_process_that_was_captured_twice_are_told_apart(tmp_path: Path) -> None:
    """`stop()` and `start()` again, as in notebooks: each time steps are counted from 0, and the agent may be late."""
    rank = OneRank(tmp_path)
    for begin_ms in (100, 200, 300):
        rank.rings[0].emit(Kind.SCOPE, begin_ms * MS, MS, 0, rank.names.number("augment"))
        rank.step(0, begin_ms)
    drained = rank.reader().peek()
    assert drained is not None and drained.rows is not None
    rows = [tuple(drained.rows[name].tolist()) for name in ("forward_us", "waited_us", "self_us")]
    assert rows == [(3000,) * 3, (4000,) * 3, (6000,) * 3]
    assert [(one.scope, one.time_us, one.calls) for one in drained.scopes] == [("augment", 1000, 1)] * 3


def test_a_step_that_is_not_over_stays_in_the_ring(tmp_path: Path) -> None:
    rank, journal = OneRank(tmp_path), Journal(tmp_path / "journal")
    rank.step(1, 100)
    rank.rings[0].emit(Kind.SCOPE, 111 * MS, 1 * MS, 2, rank.names.number("forward"))
    rings = rank.reader()
    first = rings.peek()
    assert first is not None
    assert first.rows is not None
    journal.append(first.rows)
    rings.take(first)
    assert rings.peek() is None
    rank.step(2, 110)
    second = rings.peek()
    assert second is not None
    assert second.rows is not None
    assert second.rows["step"].tolist() == [2]


def test_an_agent_that_is_killed_anywhere_loses_no_step_and_counts_none_twice(tmp_path: Path) -> None:
    rank = OneRank(tmp_path)
    for number in range(1, 4):
        rank.step(number, 100 + 10 * number)
    drained = rank.reader().peek()
    assert drained is not None
    assert drained.rows is not None
    Journal(tmp_path / "journal").append(drained.rows)  # killed before the records left the ring
    for number in range(4, 6):
        rank.step(number, 100 + 10 * number)
    journal, rings = Journal(tmp_path / "journal"), rank.reader()
    again = rings.peek()
    assert again is not None
    new = again.new_rows(journal.last_step.get(3))
    assert new is not None
    journal.append(new)
    rings.take(again)
    assert written(journal) == [(3, number) for number in range(1, 6)]
    journal.acknowledge(2)
    assert written(Journal(tmp_path / "journal")) == [(3, 3), (3, 4), (3, 5)]
    journal.acknowledge(3)
    assert written(Journal(tmp_path / "journal")) == []


def test_a_journal_that_is_cut_in_a_row_goes_on(tmp_path: Path) -> None:
    rank = OneRank(tmp_path)
    rank.step(1, 100)
    drained = rank.reader().peek()
    assert drained is not None
    assert drained.rows is not None
    path = tmp_path / "journal"
    Journal(path).append(drained.rows)
    path.write_bytes(path.read_bytes() + b"half a row")
    assert written(Journal(path)) == [(3, 1)]


def test_damaged_lines_of_scopes_are_left_out(tmp_path: Path) -> None:
    """Who cannot read one would not read the others either, at no start."""
    sums = ScopeSums(tmp_path)
    sums.add([ScopeSum(0, step, 10**15, "augment", 70, 2) for step in range(3)])
    (journal,) = tmp_path.glob("scopes.journal")
    lines = journal.read_bytes().splitlines(keepends=True)
    far = lines[1].replace(b"augment", b"far").replace(b"[0,", b"[99999999999,")
    assert far != lines[1].replace(b"augment", b"far")
    journal.write_bytes(lines[0] + lines[1].replace(b"augment", b"\xff") + far + b"[" * 5000 + b"\n" + lines[2])
    spool = Spool(tmp_path / "spool", 1 << 20, tmp_path / "store" / "fragments", "node-1")
    sums.deliver(spool, tmp_path, b"k" * 32, at_once=True)
    spool.deliver_waiting()
    assert pq.read_table(tmp_path / "store")["step"].to_pylist() == [0, 2]


def test_a_loop_without_an_end_of_its_steps_does_not_fill_the_ring(tmp_path: Path) -> None:
    rank = OneRank(tmp_path, capacity=64)
    rings = rank.reader()
    for at in range(200):
        rank.rings[0].emit(Kind.COLLECTIVE, (100 + at) * MS, MS // 2, 1, 0)
        if (drained := rings.peek()) is not None:
            assert drained.rows is None
            rings.take(drained)
    rank.rings[0].emit(Kind.STEP, 100 * MS, 200 * MS, 1)
    last = rings.peek()
    assert last is not None
    assert last.rows is not None
    assert rings.drops == 0
    assert last.rows["waited_us"].tolist() == [100_000]


def test_a_window_becomes_one_fragment_of_all_ranks_on_the_coordinators_clock(tmp_path: Path) -> None:
    window_of(tmp_path, range(2, 5))
    (tmp_path / "rank-9-5-8.json").write_text("no trace")
    fit = ClockFit(at_ns=1_700_000_000 * 10**9, offset_ns=5e6, drift=0.0, bound_ns=1e4, drift_doubt=0.0)
    made, refused = convert(
        window_files(tmp_path), tmp_path, HostOfWindow("node-1", 8, fit, 7, frozenset({2, 3, 4, 8, 9}))
    )
    (fragment,) = made
    assert [file.rank for file, _ in refused] == [9]
    assert fragment.ranks == (2, 3, 4)
    file = pq.ParquetFile(fragment.path)
    assert file.metadata.num_row_groups == 1
    rows = file.read(columns=["step", "rank", "start_ns"]).to_pylist()
    cells = [cell for cell, _ in groupby((one["step"], one["rank"]) for one in rows)]
    assert sorted(cells) == [(step, rank) for step in range(5, 9) for rank in (2, 3, 4)]
    metadata = read_metadata(fragment.path)
    assert metadata is not None
    assert metadata["hosts"] == {"2": "node-1", "3": "node-1", "4": "node-1"}
    assert metadata["capture"]["shifted_ns"] == 5_000_000
    assert metadata["capture"]["drops"] == 7
    assert metadata["capture"]["missing"] == [8, 9]
    assert min(metadata["step_times"]["begin_ns"]) == min(one["start_ns"] for one in rows)
    assert min(one["start_ns"] for one in rows) == int(1.7e18) + 10_000_000 - 5_000_000


def test_fragments_wait_for_a_store_that_is_away_and_the_oldest_go(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.write_text("a file, so that no folder can be made below it")
    first = fragment_of(tmp_path / "w", range(2), first=10)
    size = first.stat().st_size
    spool = Spool(tmp_path / "spool", int(2.5 * size), store / "fragments", "node-1")
    spool.put(first, 10, 13, KEY)
    for at in (20, 30):
        spool.put(fragment_of(tmp_path / "w", range(2), first=at), at, at + 3, KEY)
    assert (spool.waiting, spool.discarded) == (2, 1)
    names = [read_name(name) for name in sorted(path.name for path in spool.folder.iterdir())]
    assert [name.first for name in names if name] == [20, 30]
    assert all(name and name.is_of(spool.folder / name.text, "node-1", KEY) for name in names)
    assert not any(name and name.is_of(spool.folder / name.text, "node-2", KEY) for name in names)
    store.unlink()
    for name in names:
        assert name is not None
        target = store / "fragments" / name.text
        deliver_file(spool.folder / name.text, target)
        assert name.is_of(target, "node-1", KEY)


@contextmanager
def agent_with_link(folder: Path, **more: str) -> Iterator[tuple[Agent, Link]]:
    """An agent without processes of its own, and the heartbeat's end of its link."""
    environment = {
        "KAIR_JOB": "job", "KAIR_RUN_DIR": str(folder / "run"), "KAIR_STORE": str(folder / "store"),
        "KAIR_SPOOL_DIR": str(folder / "spool"), **more,
    }  # fmt: skip
    agent = Agent(agent_settings(environment))
    ours, theirs = (Link(one) for one in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    agent._link = ours
    yield agent, theirs
    agent.journal.close()
    os.close(agent._lock)
    for one in (ours, theirs):
        one.close()


def test_ranks_that_sample_unasked_hear_what_all_sampling_took_and_keep_to_one_interval(tmp_path: Path) -> None:
    with agent_with_link(tmp_path) as (agent, theirs):
        ranks = {rank: OneRank(tmp_path / "run", rank) for rank in (3, 4, 5)}
        for rank, every in ((3, 50), (5, 400)):
            ranks[rank].rings[0].emit(Kind.USER_EVENT, 1, every, 0, ranks[rank].names.number("sampling interval"))
        for one in ranks.values():
            one.step(0, 10)
        agent._look()
        agent._turn()

        def told() -> list[tuple[float, int] | None]:
            agent._hear()
            agent._look()
            paths = [tmp_path / "run" / f"rank-{rank}.control" for rank in ranks]
            words = [ControlWords(path) if path.exists() else None for path in paths]
            return [one and (one.overhead, one.sampled_every) for one in words]

        # Rank 4 samples nothing by itself. Without a coordinator those of a host agree.
        assert told() == [(0, 400), None, (0, 400)]
        theirs.send(Packet.REPLY, BeatReply(overhead_ppm=12_500, sampled_every=800).packed())
        assert told() == [(0.0125, 800), None, (0.0125, 800)]
        # Nobody answers any more: what was told is of long ago.
        theirs.send(Packet.REACHED, b"\0")
        assert told() == [(0, 400), None, (0, 400)]
        # One that has ended holds nobody up.
        agent._bury(ranks[5].trainer, agent._trainers[ranks[5].trainer])
        assert told()[0] == (0, 50)


def test_a_window_that_is_not_delivered_yet_is_told_so_that_no_coordinator_leaves_before_it(tmp_path: Path) -> None:
    with agent_with_link(tmp_path) as (agent, theirs):
        (tmp_path / "run" / "windows").mkdir()
        window_of(tmp_path / "run" / "windows", range(2))
        agent._look()
        beat = [Beat.read(content) for kind, content in theirs.received() if kind == Packet.BEAT][-1]
        assert (beat.ranks, beat.unsent_rows, beat.spooled) == (0, 0, 1)


def test_a_window_is_asked_for_once_whoever_counts_the_windows(tmp_path: Path) -> None:
    with agent_with_link(tmp_path) as (agent, theirs):
        OneRank(tmp_path / "run").step(0, 10)
        agent._look()
        control = ControlWords(tmp_path / "run" / "rank-3.control")
        found = []
        # The same again, of a coordinator that was started again; then one that has forgotten what was before.
        for generation, first in ((5, 100), (5, 100), (6, 150), (1, 200)):
            theirs.send(Packet.REPLY, BeatReply(0, 0, 1000, generation, first, 4, (3, 9)).packed())
            agent._hear()
            found.append(control.asked())
        assert [one and one.first for one in found] == [100, None, 150, 200]
        control.close()


def test_an_agent_has_the_key_that_its_heartbeat_found_last(tmp_path: Path) -> None:
    """A job's folder that was removed has another key once its coordinator is started again."""
    key_file = tmp_path / "key"
    with agent_with_link(tmp_path, KAIR_KEY_FILE=str(key_file)) as (agent, theirs):
        key_file.write_text("a" * 32)
        key_file.chmod(0o600)
        agent._look()
        assert agent._key.key == read_key(key_file, "job")
        Heartbeat(theirs, Reached(None, tmp_path / "nowhere")).use(KEY)
        agent._hear()
        assert agent._key.key == KEY


@pytest.mark.parametrize(
    ("key", "more", "said"),
    [
        (0o644, {}, "others can read the key"),
        (0o600, {}, "job job has no coordinator (kair coordinator --job job)"),
        (0o600, {"KAIR_COORDINATOR": "login:7433"}, "no coordinator of job job answers at login:7433"),
        (None, {"KAIR_COORDINATOR": "login:7433"}, "there is no key"),
    ],
)
def test_why_nobody_hears_a_host_is_told_once(
    tmp_path: Path,
    key: int | None,
    more: dict[str, str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("kair_capture.agent.agent._ALONE_S", -1.0)
    key_file = tmp_path / "key"
    if key is not None:
        key_file.write_text("k" * 32)
        key_file.chmod(key)
    with agent_with_link(tmp_path, KAIR_KEY_FILE=str(key_file), **more) as (agent, _):
        OneRank(tmp_path / "run").step(0, 10)
        for _ in range(3):
            agent._look()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kair: warning: ")
    assert said in line


def test_an_agent_removes_nothing_that_is_not_its_own(tmp_path: Path) -> None:
    """Who chooses a run folder, or a spool, chooses one with files in it by mistake."""
    spool = f"job.{mark_of(tmp_path / 'store')}"
    kept = [tmp_path / "run" / "work" / "results.parquet", tmp_path / "spool" / spool / ".env"]
    gone = [tmp_path / "run" / "work" / "window-5-8-0.parquet", tmp_path / "run" / "work" / "rank-1-5-8.parquet"]
    for path in (*kept, *gone):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text("x")
    with agent_with_link(tmp_path) as (agent, _):
        unfinished = agent.spool.folder / f".steps-0000000005-0000000008-{'a' * 8}-{'b' * 32}.parquet"
        unfinished.write_text("x")
        agent.spool.start()
        agent.conversion.start()
        agent.conversion.stop(PATIENCE_S)
        agent.spool.stop(PATIENCE_S)
    assert all(path.exists() for path in kept)
    assert not any(path.exists() for path in (*gone, unfinished))


def test_run_folders_of_dead_jobs_go_and_no_other(tmp_path: Path) -> None:
    own, now = tmp_path / "own", time.time()
    dead, living, attended, foreign, untold, other = (tmp_path / name for name in ("d", "l", "a", "f", "u", "o"))
    for folder in (own, dead, living, attended, foreign, untold, other):
        folder.mkdir()
    rank = OneRank(living)
    rank.step(1, 100)
    child = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    ended = {"pid": int(child.stdout), "start_ticks": 1, "pid_namespace": process_namespace()}
    for folder in (dead, attended, untold):
        (folder / "rank-0.json").write_text(json.dumps(ended))
        (folder / "agent.lock").touch()
    (foreign / "rank-0.json").write_text(json.dumps({**ended, "pid_namespace": 1}))
    (untold / "windows").mkdir()
    (untold / "windows" / "rank-0-5-8.json").touch()
    (other / "somebody's").touch()
    held = locked(attended / "agent.lock")
    assert remove_dead_folders(own) == []
    later = now + 2 * DEAD_AFTER_S
    assert remove_dead_folders(own, later) == ["d"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "f", "l", "o", "own", "u"]
    assert remove_dead_folders(own, now + 2 * UNDELIVERED_AFTER_S) == ["u"]
    os.close(held)
    (tmp_path / "link").symlink_to(tmp_path)
    assert remove_dead_folders(tmp_path / "link" / "own", later) == []
    assert remove_dead_folders(own, later) == ["a"]


@pytest.mark.slow
def test_a_file_beside_the_training_script_is_no_module_of_the_agents(tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text("1 / 0")
    environment = {
        **os.environ,
        "KAIR_RUN_DIR": str(tmp_path / "run"),
        "KAIR_STORE": str(tmp_path / "store"),
        "KAIR_AGENT_IDLE": "0",
        "PYTHONPATH": os.pathsep.join(place for place in sys.path if place),
    }
    command = [sys.executable, "-P", "-m", "kair_tui", "capture", "run", "--", "true"]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert b"Error" not in ran.stderr


def test_ranks_hear_what_is_set_while_the_job_runs_and_one_that_comes_later_too(tmp_path: Path) -> None:
    off = RankControl(False, 50).packed()
    with agent_with_link(tmp_path) as (agent, theirs):
        OneRank(tmp_path / "run", 3).step(0, 10)
        agent._look()
        theirs.send(Packet.REPLY, BeatReply(control=off).packed())
        agent._hear()
        OneRank(tmp_path / "run", 4).step(0, 10)
        agent._look()
        assert [ControlWords(tmp_path / "run" / f"rank-{rank}.control").control for rank in (3, 4)] == [off, off]
        theirs.send(Packet.REPLY, BeatReply().packed())
        agent._hear()
        assert ControlWords(tmp_path / "run" / "rank-3.control").control == 0


def test_what_was_recorded_besides_is_kept_as_the_profiler_wrote_it(tmp_path: Path) -> None:
    with agent_with_link(tmp_path) as (agent, theirs):
        OneRank(tmp_path / "run", 3).step(0, 10)
        agent._look()
        (tmp_path / "run" / "work").mkdir()
        file = tmp_path / "run" / "rank-3-100-103.json"
        file.write_text("{}")
        for generation, first, options in ((1, 100, 1), (2, 200, 0)):
            order = BeatReply(0, 0, 1000, generation, first, 4, (3,), options=options)
            theirs.send(Packet.REPLY, order.packed())
        agent._hear()
        agent.keep(file, 100)
        agent.keep(file, 200)
        (kept,) = (tmp_path / "store" / "job" / "profiles").rglob("*.gz")
        assert kept.parent.name == "steps-100"
        assert gzip.decompress(kept.read_bytes()) == b"{}"


def test_an_order_to_delay_ranks_is_left_for_them_if_it_is_sound_and_its_end_too(tmp_path: Path) -> None:
    order = Order(7, 1, 100, 140, Place.BEFORE_FORWARD, Mode.ARMS, (10**6,), (3,), (0.5, 0.2, 0.2, 0.1))
    with agent_with_link(tmp_path) as (agent, theirs):
        OneRank(tmp_path / "run").step(0, 10)
        agent._look()
        with closing(ControlWords(tmp_path / "run" / "rank-3.control")) as words:
            told = []
            # The order; one of another number; none at all; the end.
            for number, text in ((7, to_json(order)), (8, to_json(order)), (9, "{}"), (10, "")):
                theirs.send(Packet.DELAYS, Delays(number, text.encode()).packed())
                agent._hear()
                told.append((words.delays, (tmp_path / "run" / DELAYS_FILE).read_text()))
        assert told == [(7, to_json(order))] * 3 + [(10, "")]
