"""`kair mitigate shards`: a service of its own process, and workers that find it; both may be killed at any moment."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.cli_samples import assert_valid, kair, store_variables
from support.program import KAIR

import kair_mitigate
from kair_mitigate.orders import make_key
from kair_mitigate.shards.meeting import default_name, find, publish
from kair_mitigate.shards.shard import AllOverError

Process = subprocess.Popen[str]
SERVE = [*KAIR, "mitigate", "shards", "job7"]
WORKER = """
import sys, kair_mitigate
with kair_mitigate.shard_client() as client:
    for shard in client.shards():
        for begin, end in shard.batches(4):
            sys.stdin.readline()
            client.push(begin, end)
            print(begin, end, flush=True)
        client.done()
"""
"""Does a batch for each line that it is given, and at the end of its input all that are left."""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    store_variables(monkeypatch, tmp_path)
    monkeypatch.setenv("KAIR_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("KAIR_MITIGATE_RUN", str(tmp_path / "store" / "job7" / "mitigate"))
    return tmp_path / "store" / "job7" / "mitigate"


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    """Starts processes, which end with the test."""
    started: list[Process] = []

    def begin(command: list[str], **variables: str) -> Process:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        environment = {**os.environ, **variables}
        started.append(subprocess.Popen(command, text=True, env=environment, **pipes))  # type: ignore[call-overload]
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        with process:  # closes its pipes
            pass


def one_batch(worker: Process) -> str:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write("\n")
    worker.stdin.flush()
    return worker.stdout.readline()


def first_line(service: Process) -> str:
    assert service.stderr is not None
    return service.stderr.readline()


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_kills_of_a_worker_and_of_the_service_leave_every_sample_once(start: Callable[..., Process]) -> None:
    workers = {rank: start([sys.executable, "-c", WORKER], RANK=rank) for rank in "012"}  # before the service is there
    service = start([*SERVE, "--samples", "120", "--shard-samples", "10", "--epochs", "2", "--seed", "3"])
    assert first_line(service).startswith("kair: shards of job job7 at 127.0.0.1:")
    for worker in workers.values():
        assert one_batch(worker)

    workers["1"].kill()
    workers["1"].wait()
    workers["1"] = start([sys.executable, "-c", WORKER], RANK="1")
    assert one_batch(workers["1"])

    refused = kair("mitigate", "shards", "job7")
    assert (refused.status, refused.err.count("\n")) == (3, 1)
    assert "job job7 has a shard service already" in refused.err

    service.kill()
    service.wait()
    service = start(SERVE)
    assert first_line(service)
    for worker in workers.values():  # all of them before any is waited for, since each may hold a shard
        assert worker.stdin is not None
        worker.stdin.close()
    assert [worker.wait() for worker in workers.values()] == [0, 0, 0]
    said, _ = service.communicate()
    assert (service.returncode, said.splitlines()[0]) == (0, "every sample once: 240 in 2 whole epochs")

    told = json.loads(kair("mitigate", "audit", "job7", "--json").out)
    assert_valid(told, "mitigate")
    audited = told["data"]["audited"]
    assert [audited["counted"], audited["missing"], audited["twice"]] == [240, [], []]
    assert sum(worker["samples"] for worker in audited["workers"]) == 240
    late = start([sys.executable, "-c", WORKER], RANK="3")
    assert late.communicate() == ("", "")


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_a_service_that_is_stopped_goes_on_and_ends_with_the_last_checkpoint(start: Callable[..., Process]) -> None:
    service = start([*SERVE, "--samples", "6", "--shard-samples", "2", "--commit", "checkpoint"])
    assert first_line(service)
    with kair_mitigate.shard_client("a") as client:
        shards = client.shards()
        next(shards)
        client.done()
        client.commit("1", {"a": client.position()})
        service.send_signal(signal.SIGTERM)
        said, _ = service.communicate()
        assert service.returncode == 0
        assert said.startswith("stopped: 1 of 3 shards of epoch 0 done, 0 in hand; the same command goes on")
        service = start(SERVE)
        assert first_line(service)
        for _ in shards:
            client.done()
        assert service.poll() is None  # since what no checkpoint has may return
        client.commit("2", {"a": client.position()})
    assert service.communicate()[0].startswith("every sample once: 6 in 1 whole epoch")


@pytest.mark.slow
def test_files_of_unknown_length_are_given_out_and_audited(start: Callable[..., Process], folder: Path) -> None:
    listed = folder.parents[1] / "list.txt"
    listed.parent.mkdir()
    listed.write_text("one\ntwo\n")
    service = start([*SERVE, "--files", str(listed), "--grows"])
    assert first_line(service)
    with kair_mitigate.shard_client("a") as client:
        client.add(["three"])
        shards = client.shards()
        for left in (2, 1, 0):
            shard = next(shards)
            client.push(0, len(str(shard.file)))
            client.done()
            if left == 0:
                client.end_stream()
        assert next(shards, None) is None
    assert service.communicate()[0].startswith("every sample once: 11 in 1 whole epoch")
    rows = folder / "trained" / "shards.jsonl"
    rows.write_text("".join(line for line in rows.read_text().splitlines(keepends=True) if "three" not in line))
    said = kair("mitigate", "audit", "job7").out
    assert said.startswith("5 samples missing, 0 twice")
    assert "three" in said


@pytest.mark.parametrize("damage", ["all", "a part"])
def test_a_damaged_database_is_one_clear_line(folder: Path, damage: str) -> None:
    folder.mkdir(parents=True)
    file = folder / "shards.sqlite"
    if damage == "all":
        file.write_bytes(b"no database" * 1000)
    else:
        from kair_mitigate.shards.store import ShardStore

        store = ShardStore(file)
        store.make(2000, 1, seed=0, commit="push")
        store.close()
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2] + b"\xff" * 4096 + whole[len(whole) // 2 + 4096 :])
    heard = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    said = kair("mitigate", "shards", "job7")
    assert (said.status, said.err.count("\n")) == (3, 1)
    assert f"cannot use {file}" in said.err
    assert heard == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)), "a notebook goes on"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        ((), 2, "the dataset is --samples and --shard-samples, or --files"),
        (("--samples", "9"), 2, "the dataset is --samples and --shard-samples, or --files"),
        (("--files", "nowhere.txt"), 3, "cannot read nowhere.txt"),
        (("--listen", "127.0.0.1:99999"), 2, "--listen: an address is host:port"),
        (("--listen", "192.0.2.1:1", "--samples", "9", "--shard-samples", "3"), 3, "cannot serve the shards"),
    ],
)
def test_what_cannot_be_served_is_said_in_a_line(words: tuple[str, ...], status: int, says: str) -> None:
    said = kair("mitigate", "shards", "job7", *words)
    assert (said.status, says in said.err) == (status, True)


def test_another_dataset_than_before_is_refused(folder: Path) -> None:
    from kair_mitigate.shards.store import ShardStore

    folder.mkdir(parents=True)
    store = ShardStore(folder / "shards.sqlite")
    store.make(9, 3, seed=0, commit="push")
    store.close()
    said = kair("mitigate", "shards", "job7", "--samples", "9", "--shard-samples", "3", "--epochs", "2")
    assert (said.status, "another dataset (epochs: 1 there, 2 asked for)" in said.err) == (2, True)


def test_a_worker_finds_the_address_only_while_there_is_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(parents=True)
    make_key(folder)
    with pytest.raises(FileNotFoundError):
        find(folder)
    for damaged in ("", "[]", '{"host": 1, "port": 2, "over": false}', '{"host": "a", "port": 70000, "over": false}'):
        (folder / "shards.json").write_text(damaged)
        with pytest.raises(ConnectionError, match="holds no address"):
            find(folder)
    publish(folder, ("node7", 7435))
    assert find(folder)[0] == ("node7", 7435)
    publish(folder, ("node7", 7435), over=True)
    with pytest.raises(AllOverError):
        find(folder)
    monkeypatch.setenv("RANK", "5")
    assert default_name().endswith("-5")
    monkeypatch.delenv("KAIR_MITIGATE_RUN")
    with pytest.raises(RuntimeError, match="belongs to no run"):
        kair_mitigate.shard_client()
