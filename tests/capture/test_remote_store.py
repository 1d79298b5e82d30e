"""Stores behind URLs: what agents deliver becomes a job there, which commands read by its mirror."""

import hashlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.captured import fragment_of
from support.patience import PATIENCE_S, wait_until

from kair_capture.agent.spool import Spool
from kair_capture.coordinator.committing import Committer
from kair_capture.coordinator.store_work import RemoteJob, remote_job_of
from kair_capture.places import JobPlaces, store_root
from kair_engine.errors import InputError, UsageError
from kair_engine.recording.job_file import open_job_folder, tidy_store
from kair_engine.store.jobs import Store
from kair_engine.store.remote import (
    RemoteStore,
    _fetching,
    fetch_job,
    fetch_jobs,
    fetch_status,
    mirror_of,
    place_of,
    remote_of,
    url_in,
)
from kair_tui.cli.main import main

KEY = hashlib.sha256(b"the job's").digest()


class Away(RemoteStore):
    """One whose next write is the last for a while."""

    writes = 0

    def put(self, source: Path, name: str) -> None:
        self.writes -= 1
        if self.writes == 0:
            raise OSError("the network is down")
        super().put(source, name)


def deliver(tmp_path: Path, places: JobPlaces, first: int) -> None:
    """What an agent does, on a host of its own."""
    spool = Spool(tmp_path / "spool", 1 << 30, places.delivered, "node-1", remote_of(places.store))
    spool.put(fragment_of(tmp_path / "work", range(2), first=first), first, first + 3, KEY)
    spool.start()
    wait_until(lambda: not spool.waiting)
    spool.stop(PATIENCE_S)


Listing = Callable[[str], list[str]]


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Listing:
    """Where `kair jobs` says that a store and its jobs are."""
    monkeypatch.setenv("KAIR_CACHE", str(tmp_path / "commands"))

    def ask(url: str) -> list[str]:
        assert main(["jobs", "--store", url, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["data"]
        return [found["store"], *(one["path"] for one in found["jobs"])]

    return ask


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_what_agents_deliver_is_read_through_a_mirror(tmp_path: Path, scheme: str, listed: Listing) -> None:
    if scheme == "memory":
        pytest.importorskip("fsspec")
    url = f"{scheme}://{tmp_path}/remote" if scheme == "file" else f"memory://{tmp_path.name}"
    there = RemoteStore(url, tmp_path / "mirror")
    places = JobPlaces(mirror_of(url, tmp_path / "coordinators"), "job")
    remote, committer = remote_job_of(places), Committer(places, KEY)
    assert remote is not None
    remote.restore()
    deliver(tmp_path, places, 5)
    assert not places.delivered.exists()
    remote.take()
    committer.round()
    places.capture.mkdir()
    places.status.write_text("{}")
    places.steps.mkdir()
    (places.steps / "rows-00000000.journal").write_bytes(b"rows")
    remote.tell(is_last=True)

    mirror = mirror_of(url, tmp_path / "readers")
    fetch_jobs(mirror)
    assert listed(url) == [url, f"{url}/job"]
    fetch_job(mirror, "job")
    trace = Store(mirror).open("job")
    assert (trace.job.steps, trace.job.ranks, trace.job.warnings) == ((5, 6, 7, 8), (0, 1), ())
    fetch_status(mirror, "job")
    assert JobPlaces(mirror, "job").status.read_text() == "{}"

    # Joined, while somebody reads what was before; then that goes there as well.
    deliver(tmp_path, places, 20)
    remote.take()
    committer.round()
    assert committer.compact(least=2)
    committer.tidy()
    remote.tell(is_last=False)
    assert not [name for name in there.sizes("job/fragments") if name.endswith(".parquet")]
    fetch_job(mirror, "job")
    assert Store(mirror).open("job").job.steps == (*range(5, 9), *range(20, 24))

    # Another host's coordinator goes on with it.
    elsewhere = JobPlaces(mirror_of(url, tmp_path / "elsewhere"), "job")
    following = remote_job_of(elsewhere)
    assert following is not None
    following.restore()
    assert (elsewhere.steps / "rows-00000000.journal").read_bytes() == b"rows"
    deliver(tmp_path, elsewhere, 30)
    following.take()
    assert [window[:2] for window in Committer(elsewhere, KEY).round().windows] == [(30, 33)]
    following.tell(is_last=False)
    fetch_job(mirror, "job")
    assert len(Store(mirror).open("job").job.steps) == 12

    for change in (lambda: Store(mirror).remove("job"), lambda: Store(mirror).import_traces([], "x", cache=tmp_path)):
        with pytest.raises(UsageError, match="kair coordinator alone"):
            change()
    there.remove("job/job.json")
    fetch_jobs(mirror_of(url, tmp_path / "new"))
    assert Store(mirror_of(url, tmp_path / "new")).jobs() == []


def test_a_mark_that_someone_put_into_a_store_makes_it_no_mirror(tmp_path: Path) -> None:
    """Of a mirror goes what its store lacks: this one's jobs are its own."""
    places = JobPlaces(tmp_path / "store", "job")
    deliver(tmp_path, places, 5)
    Committer(places, KEY).round()
    for mark in (f"file://{tmp_path / 'empty'}".encode(), b"\xff\xfe"):
        (places.store / ".remote").write_bytes(mark)
        fetch_jobs(places.store)
        assert [job.name for job in Store(places.store).jobs()] == ["job"]


def test_what_is_wrong_with_a_store_is_told_with_its_url(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'there'}"
    (tmp_path / "there" / "job").mkdir(parents=True)
    (tmp_path / "there" / "job" / "job.json").write_text('{"x":')
    mirror = mirror_of(url, tmp_path / "cache")
    assert Store(mirror).address == url
    with pytest.raises(InputError, match=f"^{url}/job/job.json is damaged"):
        fetch_job(mirror, "job")


def test_wherever_the_store_fails_readers_find_a_whole_job(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/remote"
    places = JobPlaces(mirror_of(url, tmp_path / "coordinators"), "job")
    committer, broken = Committer(places, KEY), Away(url, places.store)
    remote = RemoteJob(places, broken)
    deliver(tmp_path, places, 5)
    remote.take()
    committer.round()
    remote.tell(is_last=True)
    deliver(tmp_path, places, 20)
    remote.take()
    committer.round()
    committer.compact(least=2)
    committer.tidy()
    expected = [(5, 6, 7, 8), (5, 6, 7, 8), (*range(5, 9), *range(20, 24))]
    for writes, steps in zip((1, 2, 0), expected, strict=True):
        broken.writes = writes
        if writes:
            with pytest.raises(OSError, match="the network is down"):
                remote.tell(is_last=True)
        else:
            remote.tell(is_last=True)
        mirror = mirror_of(url, tmp_path / f"reader-{writes}")
        fetch_job(mirror, "job")
        assert open_job_folder(mirror / "job").job.steps == steps
    assert not [name for name in broken.sizes() if "/." in name]


_KILLED_PUT = """
import os, shutil, signal, sys
from pathlib import Path
from kair_engine.store import remote
shutil.copyfileobj = lambda content, copy, _: (copy.write(b"half"), copy.close(), os.kill(os.getpid(), signal.SIGKILL))
remote.RemoteStore(sys.argv[1], Path()).put(Path(__file__ if "__file__" in vars() else sys.executable), sys.argv[2])
"""


@pytest.mark.slow
def test_what_a_killed_put_leaves_is_never_read_and_goes_when_it_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, name = f"file://{tmp_path}/remote", "job/fragments/host=node-1/steps.parquet"
    killed = subprocess.run([sys.executable, "-c", _KILLED_PUT, url, name], check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = (tmp_path / "remote" / "job" / "fragments" / "host=node-1").iterdir()
    (tmp_path / "remote" / "job" / ".own").touch()
    there = RemoteStore(url, tmp_path / "mirror")
    assert set(there.sizes()) == {"job", "job/fragments", "job/fragments/host=node-1"}
    assert list(there.unfinished("job")) == [f"job/fragments/host=node-1/{left.name}"]
    remote = RemoteJob(JobPlaces(mirror_of(url, tmp_path / "coordinators"), "job"), there)
    remote.tidy()
    assert left.exists()  # someone may still be writing it
    passed = [4000]
    clock = SimpleNamespace(time=lambda: began + passed[0], monotonic=lambda: began + passed[0])
    began = time.time()
    monkeypatch.setattr("kair_capture.coordinator.store_work.time", clock)
    remote.tidy()
    assert not left.exists()
    assert (tmp_path / "remote" / "job" / ".own").exists()
    # A file system that does not tell the time: an hour from when it was seen first.
    monkeypatch.setattr(there, "unfinished", lambda _: {"job/.x.0123abcd": None})
    removed: list[str] = []
    monkeypatch.setattr(there, "remove", removed.append)
    for passed[0] in (8000, 10_000, 12_000):
        remote.tidy()
    assert removed == ["job/.x.0123abcd"]


def test_a_key_that_leads_out_of_the_store_is_not_there(tmp_path: Path) -> None:
    """Whoever may write into a bucket must not write elsewhere on the hosts that read it."""
    from pyarrow.fs import FileInfo, FileType

    keys = ["bucket/kair/job/steps/part.parquet", "bucket/kair/job/steps/../../../../home/.profile"]
    listing = SimpleNamespace(get_file_info=lambda _: [FileInfo(key, FileType.File, size=3) for key in keys])
    there = RemoteStore("s3://bucket/kair", tmp_path)
    there._given = (listing, "bucket/kair")
    assert there.sizes("job") == {"job/steps/part.parquet": 3}


_KILLED = """
import os, signal, sys
from pathlib import Path
from kair_engine.store.remote import fetch_job, mirror_of
Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
fetch_job(mirror_of(sys.argv[1], Path(sys.argv[2])), "job")
"""


@pytest.mark.slow
def test_what_a_killed_fetch_leaves_goes_with_the_next_command(tmp_path: Path) -> None:
    url, cache = f"file://{tmp_path}/remote", tmp_path / "cache"
    places = JobPlaces(mirror_of(url, tmp_path / "coordinators"), "job")
    deliver(tmp_path, places, 5)
    remote = remote_job_of(places)
    assert remote is not None
    remote.take()
    Committer(places, KEY).round()
    remote.tell(is_last=True)
    mirror = mirror_of(url, cache)
    killed = subprocess.run([sys.executable, "-c", _KILLED, url, str(cache)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert list(mirror.glob(".*.fetching"))
    with _fetching(mirror) as used:
        tidy_store(mirror)
        assert list(mirror.glob(".*.fetching")) == [used]
    fetch_job(mirror, "job")
    assert sorted(path.name for path in mirror.iterdir()) == [".remote", "job"]
    assert len(Store(mirror).open("job").job.steps) == 4


def test_a_url_is_taken_wherever_a_store_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert url_in(Path("s3://bucket/a?region=x")) == "s3://bucket/a?region=x"
    assert url_in(Path("file:///srv/a")) == "file:///srv/a"
    assert url_in(tmp_path) is None
    environment = {"KAIR_STORE": f"file://{tmp_path}/remote", "KAIR_CACHE": str(tmp_path / "cache")}
    mirror = store_root(environment)
    assert mirror.is_relative_to(tmp_path / "cache")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main(["jobs"]) == 0
    with_password = mirror_of("s3://me:secret@bucket/kair/?region=x", tmp_path / "cache")
    shown = ("s3://bucket/kair/?region=x", "s3://bucket/kair/job?region=x")
    assert (place_of(with_password), place_of(with_password, "job")) == shown
    with pytest.raises(UsageError, match="nonsense"):
        RemoteStore("nonsense://x", tmp_path).sizes()
    with pytest.raises(InputError, match="cannot read the store"):
        blocked = tmp_path / "a file"
        blocked.write_text("")
        fetch_jobs(mirror_of(f"file://{blocked}", tmp_path / "cache"))
