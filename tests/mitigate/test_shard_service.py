"""The shard service: workers that die, hang and come back, a service that goes away, and strangers who ask."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.patience import PATIENCE_S, wait_until

from kair_mitigate.audit import audit
from kair_mitigate.shards.client import ShardClient
from kair_mitigate.shards.connection import Connection
from kair_mitigate.shards.service import ShardService
from kair_mitigate.shards.shard import ShardError, StaleGenerationError
from kair_mitigate.shards.store import ShardStore
from kair_mitigate.shards.wire import CHALLENGE_BYTES, GREETING, HEAD, MOST_BYTES, Message, sign

KEY = b"the job's key"
LEASE_S = 1.5
"""Where a lease ends within a test: a busy machine may hold up one thread of several for a second."""
Address = tuple[str, int]


@contextmanager
def serving(store: ShardStore, *, lease_s: float = 30.0, port: int = 0) -> Iterator[tuple[ShardService, Address]]:
    service = ShardService(store, KEY, lease_s=lease_s, port=port)
    address = service.start()
    try:
        yield service, address
    finally:
        service.stop()


def everything(client: ShardClient) -> list[int]:
    indices: list[int] = []
    for shard in client.shards():
        indices.extend(shard)
        client.done()
    return indices


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ShardStore]:
    store = ShardStore(tmp_path / "shards.sqlite", most_tries=1000)
    yield store
    store.close()


def test_workers_share_the_epochs(store: ShardStore) -> None:
    store.make(103, 5, seed=3, epochs=2)
    seen: list[tuple[int, int]] = []

    def work(address: Address, worker: str) -> None:
        with ShardClient(address, KEY, worker) as client:
            for shard in client.shards():
                seen.extend((shard.epoch, index) for index in shard)
                client.done()

    with serving(store) as (_, address):
        threads = [threading.Thread(target=work, args=(address, f"worker {number}")) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(seen) == [(epoch, index) for epoch in (0, 1) for index in range(103)]


def test_a_checkpoint_inside_a_shard_and_the_return_to_it(store: ShardStore) -> None:
    store.make(10, 10, seed=3)
    with serving(store) as (_, address):
        client = ShardClient(address, KEY, "a")
        shard = next(client.shards())
        indices = iter(shard)
        trained = [next(indices) for _ in range(4)]
        with pytest.raises(RuntimeError, match="progress"):
            client.position()
        client.progress(4)
        client.commit("step 4", {"a": client.position()})
        client.restore("step 4")
        with pytest.raises(StaleGenerationError):
            client.done()
        client.close()
        with ShardClient(address, KEY, "a") as client:
            rest = everything(client)
    assert sorted(trained + rest) == list(range(10))


def test_a_shard_has_to_be_ended(store: ShardStore) -> None:
    store.make(4, 2, seed=3)
    with serving(store) as (_, address), ShardClient(address, KEY, "a") as client:
        shards = client.shards()
        next(shards)
        with pytest.raises(RuntimeError, match="neither done nor failed"):
            next(shards)
        with pytest.raises(RuntimeError, match="no shard in hand"):
            ShardClient(address, KEY, "b").done()


def test_a_shard_that_fails_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = ShardStore(tmp_path / "shards.sqlite", most_tries=2)
    store.make_files(["good", "bad", "fine"], seed=3, commit="push")
    ended = []
    with serving(store) as (_, address), ShardClient(address, KEY, "a") as client:
        for shard in client.shards():
            if shard.file == "bad":
                client.failed("cannot be read")
            else:
                client.done()
                ended.append(shard.file)
    assert sorted(map(str, ended)) == ["fine", "good"]
    assert "cannot be read" in capsys.readouterr().err
    store.close()


def test_a_stream_grows_while_workers_wait(store: ShardStore) -> None:
    store.make_files([], seed=3, growing=True)
    files: list[str | None] = []

    def work(address: Address) -> None:
        with ShardClient(address, KEY, "a") as client:
            for shard in client.shards():
                files.append(shard.file)
                client.done(records=3)

    with serving(store) as (_, address):
        thread = threading.Thread(target=work, args=(address,))
        thread.start()
        producer = ShardClient(address, KEY, "producer")
        for name in ("x", "y"):
            producer.add([name])
            wait_until(lambda name=name: name in files)  # type: ignore[misc]
        producer.end_stream()
        thread.join()
        producer.close()
    assert files == ["x", "y"]


def test_a_worker_that_is_not_heard_loses_its_shard(store: ShardStore) -> None:
    store.make(4, 4, seed=3)
    with serving(store, lease_s=LEASE_S) as (_, address):
        silent = Connection(address, KEY)
        generation = silent.ask({"do": "join", "worker": "silent"})["generation"]
        silent.ask({"do": "claim", "worker": "silent", "generation": generation})
        with ShardClient(address, KEY, "b") as client:
            assert sorted(everything(client)) == [0, 1, 2, 3]
        with pytest.raises(StaleGenerationError):
            silent.ask({"do": "beat", "worker": "silent", "generation": generation})
        silent.close()


def test_a_worker_that_beats_keeps_its_shard_and_tells_where_it_is(store: ShardStore) -> None:
    store.make(4, 4, seed=3)
    with serving(store, lease_s=LEASE_S) as (_, address), ShardClient(address, KEY, "a") as client:
        next(client.shards())
        for cursor in (1, 2, 3, 4):  # a sign of life each, in all longer than a lease
            client.progress(cursor)
            wait_until(lambda cursor=cursor: store.status().doing.get("a") == (0, cursor))  # type: ignore[misc]
        client.done()


def test_a_service_that_goes_away_is_waited_for_with_one_warning(
    store: ShardStore, capsys: pytest.CaptureFixture[str]
) -> None:
    store.make(40, 2, seed=3)
    seen: list[int] = []
    held, gone = threading.Event(), threading.Event()

    def work(address: Address) -> None:
        with ShardClient(address, KEY, "a") as client:
            for shard in client.shards():
                held.set()
                gone.wait()
                seen.extend(shard)
                client.done()

    with serving(store) as (_, address):
        thread = threading.Thread(target=work, args=(address,))
        thread.start()
        held.wait()
    gone.set()
    wait_until(lambda: len(seen) == 2)
    told: list[str] = []

    def warned() -> bool:
        told.append(capsys.readouterr().err)
        return "waits for the shard service" in "".join(told)

    wait_until(warned)
    with serving(store, port=address[1]):
        thread.join()
    assert sorted(seen) == list(range(40))
    assert "".join([*told, capsys.readouterr().err]).count("warning") == 1


def raw(address: Address) -> tuple[socket.socket, bytes]:
    connected = socket.create_connection(address, timeout=PATIENCE_S)
    greeting = b""
    while len(greeting) < len(GREETING) + CHALLENGE_BYTES:
        greeting += connected.recv(len(GREETING) + CHALLENGE_BYTES - len(greeting))
    return connected, greeting[len(GREETING) :]


def frame(message: bytes, challenge: bytes, key: bytes = KEY) -> bytes:
    return HEAD.pack(len(message), sign(key, challenge, message)) + message


def is_closed(connected: socket.socket) -> bool:
    """Whether the service ends the conversation, after whatever it replied."""
    with suppress(ConnectionError):
        while connected.recv(1 << 16):
            pass
    return True


def content(store: ShardStore) -> list[str]:
    return list(store._connection.iterdump())


DONE: Message = {"do": "done", "worker": "a", "generation": 1, "shard": 1}


def body(message: Message, number: int = 0) -> bytes:
    return json.dumps({"number": number, **message}).encode()


def test_what_is_replayed_forged_oversized_or_out_of_order_changes_nothing(store: ShardStore) -> None:
    store.make(4, 2, seed=3)
    with serving(store) as (service, address):
        first, challenge = raw(address)
        join = frame(body({"do": "join", "worker": "a"}), challenge)
        first.sendall(join)
        assert first.recv(1)
        store.claim("a", 1)
        before = content(store)
        other, its_challenge = raw(address)
        bad = [
            (first, join),  # the same again
            (other, join),  # in another conversation
            (raw(address)[0], HEAD.pack(MOST_BYTES + 1, bytes(32))),
        ]
        for connected, sent in bad:
            connected.sendall(sent)
            assert is_closed(connected)
            connected.close()
        for message, key, number in ((DONE, b"another key", 0), (DONE, KEY, 1), (DONE, KEY, -1)):
            connected, its_challenge = raw(address)
            connected.sendall(frame(body(message, number), its_challenge, key))
            assert is_closed(connected)
            connected.close()
        assert content(store) == before
        assert service.refused == 6


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
stale = st.fixed_dictionaries(
    {
        "do": st.sampled_from(("claim", "beat", "done", "fail", "leave", "commit", "add", "other")) | values,
        "worker": st.just("a"),
        "generation": st.just(1) | values.filter(lambda value: value != 2),
    },
    optional={
        "shard": st.integers(0, 3) | values,
        "cursor": st.integers(0, 5) | values,
        "reason": st.text(max_size=3),
        "checkpoint": st.text(max_size=3) | values,
        "positions": st.sampled_from(({"a": [1, 1, 1]}, {"a": [1, None, 0]}))
        | values.filter(lambda value: value != {}),
        "files": st.just(["x"]) | values,
    },
).filter(lambda message: not (message["do"] == "claim" and isinstance(message["generation"], int)))


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(random=st.binary(min_size=1, max_size=200), signed=st.binary(max_size=60), requests=st.lists(stale, max_size=4))
def test_random_bytes_and_requests_of_the_past_change_nothing(
    fuzzed: tuple[ShardStore, Address], random: bytes, signed: bytes, requests: list[Message]
) -> None:
    store, address = fuzzed
    before = content(store)
    connected, challenge = raw(address)
    connected.sendall(random)
    connected.shutdown(socket.SHUT_WR)
    assert is_closed(connected)
    connected.close()
    connected, challenge = raw(address)
    for number, request in enumerate(requests):
        connected.sendall(frame(body(request, number), challenge))
    connected.sendall(frame(signed, challenge))
    assert is_closed(connected)
    connected.close()
    assert content(store) == before


@pytest.fixture
def fuzzed(store: ShardStore) -> Iterator[tuple[ShardStore, Address]]:
    """A worker of generation 2, which has a shard."""
    store.make(6, 3, seed=3)
    store.claim("a", 1)
    store.claim("a", 2)
    with serving(store) as (_, address):
        yield store, address


def test_a_service_without_the_key_is_not_believed(store: ShardStore) -> None:
    store.make(4, 2, seed=3)
    with serving(store) as (_, address):
        connection = Connection(address, b"another key")
        with pytest.raises(ConnectionError):
            connection.ask({"do": "status"})

    with socket.create_server(("127.0.0.1", 0)) as listening:

        def impostor() -> None:
            connected, _ = listening.accept()
            with connected:
                connected.sendall(GREETING + bytes(CHALLENGE_BYTES))
                connected.recv(1000)
                reply = b'{"nothing":"finished"}'
                connected.sendall(HEAD.pack(len(reply), bytes(32)) + reply)

        thread = threading.Thread(target=impostor)
        thread.start()
        connection = Connection(listening.getsockname(), KEY)
        with pytest.raises(ConnectionError, match="not signed"):
            connection.ask({"do": "status"})
        thread.join()


@pytest.mark.parametrize("message", [{}, {"do": "fly"}, {"do": 1}, {"do": "join", "worker": "\ud800"}])
def test_a_signed_request_that_makes_no_sense_is_answered(store: ShardStore, message: Message) -> None:
    store.make(4, 2, seed=3)
    with serving(store) as (_, address):
        connection = Connection(address, KEY)
        with pytest.raises(ShardError):
            connection.ask(message)
        assert connection.ask({"do": "status"})["shards"] == {"TODO": 2}
        connection.close()


WORKER = """
import sys
from pathlib import Path
from kair_mitigate.audit import AuditLog
from kair_mitigate.shards.client import ShardClient

name, port, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
with ShardClient(("127.0.0.1", port), b"the job's key", name) as client:
    log = AuditLog(folder / f"{name}-{client.generation}")
    for shard in client.shards():
        checkpoint = f"{name}-{client.generation}-{shard.id}"
        row = {"gen": client.generation, "worker": name, "shard": shard.number, "epoch": shard.epoch}
        for begin, end in shard.batches(2):
            log.write({**row, "begin": begin, "end": end, "checkpoint": f"{checkpoint}-{end}"})
            client.progress(end)
            client.commit(f"{checkpoint}-{end}", {name: client.position()})
        client.done()
    client.commit(f"{name}-{client.generation}-end", {name: client.position()})
"""


@pytest.mark.slow
@pytest.mark.parametrize("kills", [2, pytest.param(16, marks=pytest.mark.slow)])
def test_workers_killed_at_any_moment_leave_nothing_out_and_do_nothing_twice(
    store: ShardStore, tmp_path: Path, kills: int
) -> None:
    store.make(120, 5, seed=3, epochs=kills // 2)
    rows = tmp_path / "rows"
    rows.mkdir()

    def start(port: int, name: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, "-c", WORKER, name, str(port), str(rows)])

    with serving(store) as (_, address):
        workers = {name: start(address[1], name) for name in ("a", "b")}
        for kill in range(kills):
            name = "ab"[kill % 2]
            begun = rows / f"{name}-{kill // 2 + 1}"  # of this generation, which gets to work first
            process, least = workers[name], kill % 5 * 70

            def is_due(begun: Path = begun, process: "subprocess.Popen[bytes]" = process, least: int = least) -> bool:
                return process.poll() is not None or (begun.exists() and begun.stat().st_size > least)

            wait_until(is_due)
            process.kill()
            process.wait()
            workers[name] = start(address[1], name)
        assert [process.wait() for process in workers.values()] == [0, 0]
    found = audit(sorted(rows.iterdir()), 120, kills // 2, committed=store.checkpoints())
    assert found.exactly_once
    assert found.counted == 60 * kills
