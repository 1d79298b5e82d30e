"""Files of samples that an agent joins in the store: every row stays, once, wherever it is killed."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from kair_capture.agent.telemetry import joining
from kair_capture.agent.telemetry.joining import DeliveredFiles
from kair_capture.agent.telemetry.rows import Rows, Series
from kair_engine.recording.evidence_files import read_evidence_of, stored_evidence
from kair_engine.store.remote import RemoteStore, fetch_evidence, mirror_of
from kair_engine.trace.evidence_table import EvidenceFile, read_evidence, write_evidence
from kair_engine.trace.measures import HOST

NS = 10**9
BEGIN_S = 1_790_000_000
THERE = "evidence/host=node-7"


class Killed(BaseException):
    """Nothing catches it."""


class OfHost:
    """What one host's agent delivers into a store's job; `before` is called before each of its changes."""

    def __init__(self, root: Path, before: Callable[[], None] = lambda: None) -> None:
        self.root, self.before, self.minutes = root, before, 0
        self.job = root / "store" / "job"
        self.files = self.another()

    def another(self) -> DeliveredFiles:
        """The agent after one that was killed."""
        return DeliveredFiles(self.root / "delivered", self.put, self.remove)

    def put(self, path: Path, name: str) -> None:
        self.before()
        target = self.job / THERE / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())

    def remove(self, name: str) -> None:
        self.before()
        (self.job / THERE / name).unlink(missing_ok=True)

    def deliver(self, minutes: int) -> None:
        """A file of each minute, of three seconds."""
        for minute in range(self.minutes, self.minutes + minutes):
            rows, series = Rows("node-7", (1.0,)), Series(HOST, "memory_available", 0)
            for second in range(3):
                at_s = BEGIN_S + 60 * minute + second
                rows.looked(0, at_s * NS)
                rows.add(series, at_s * NS, float(at_s))
            evidence = rows.take(())
            assert evidence is not None
            path = self.root / f"samples-{(BEGIN_S + 60 * minute) * 1000}.parquet"
            write_evidence(path, evidence)
            self.put(path, path.name)
            self.files.keep(path)
        self.minutes += minutes

    def names(self) -> list[str]:
        return sorted(path.name for path in (self.job / THERE).iterdir())

    def require_all(self, job: Path | None = None) -> None:
        """All rows are found once, by both ways of reading a folder, of a source that tells how many."""
        wanted = [float(BEGIN_S + 60 * minute + second) for minute in range(self.minutes) for second in range(3)]
        found, warnings = stored_evidence(job or self.job)
        assert found.table["value"].to_pylist() == wanted and not warnings
        (source,) = found.sources
        assert (source.rows, source.first_ns, source.interval_s) == (len(wanted), BEGIN_S * NS, 1.0)
        found, warnings = read_evidence_of([(job or self.job) / "evidence"])
        assert found.table["value"].to_pylist() == wanted and not warnings


@pytest.fixture
def host(tmp_path: Path) -> OfHost:
    return OfHost(tmp_path)


def test_many_files_of_a_host_become_one_and_say_the_same(host: OfHost) -> None:
    host.deliver(joining.JOIN_FROM - 1)
    host.files.join()
    assert len(host.names()) == joining.JOIN_FROM - 1
    before = stored_evidence(host.job)[0]
    host.deliver(1)
    host.files.join()
    assert [name.partition("-")[0] for name in host.names()] == ["joined"]
    host.require_all()
    assert stored_evidence(host.job)[0].sources[0].notes == before.sources[0].notes
    host.deliver(2)
    host.files.join()
    host.require_all()
    assert len(host.names()) == 3
    host.files.join(is_last=True)  # the agent ends
    host.require_all()
    assert len(host.names()) == 2 and not (host.root / "delivered").exists()


def test_few_large_files_are_joined_too(host: OfHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "JOIN_BYTES", 1)
    host.deliver(2)
    host.files.join()
    assert len(host.names()) == 1
    host.deliver(1)
    host.files.join()
    assert len(host.names()) == 2  # there is nothing to join one with
    host.require_all()


def test_after_a_store_was_away_no_more_is_joined_at_once_than_at_other_times(
    host: OfHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.deliver(3)
    size = max(path.stat().st_size for path in (host.job / THERE).iterdir())
    monkeypatch.setattr(joining, "JOIN_BYTES", 4 * size)
    host.deliver(20)
    host.files.join()
    joined = [read_evidence(host.job / THERE / name) for name in host.names() if name.startswith("joined")]
    assert len(joined) > 1 and all(2 <= len(one.parts) <= 8 for one in joined)
    host.require_all()


def test_a_joined_file_hides_no_more_than_samples_up_to_its_own(host: OfHost) -> None:
    host.deliver(3)
    first, last = host.names()[0], host.names()[-1]
    one = read_evidence(host.job / THERE / first)
    number = first.removeprefix("samples-")
    wrong = EvidenceFile(one.table, one.sources, (first, last, f"joined-{number}"))
    write_evidence(host.job / THERE / f"joined-{number}", wrong)
    host.require_all()


@pytest.mark.slow
def test_wherever_an_agent_is_killed_each_row_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each change of the store and of its own folder."""
    unlink, changes = Path.unlink, 0

    def die_at(place: int) -> Callable[[], None]:
        left = count(place, -1)

        def before() -> None:
            if next(left) == 0:
                raise Killed

        return before

    for place in count():
        host = OfHost(tmp_path / str(place))
        host.root.mkdir()
        host.deliver(4)
        before = die_at(place)

        def unlinked(path: Path, missing_ok: bool = False, *, before: Callable[[], None] = before) -> None:
            before()
            unlink(path, missing_ok=missing_ok)

        host.before = before
        with monkeypatch.context() as patched:
            patched.setattr(Path, "unlink", unlinked)
            try:
                host.files.join(is_last=True)
            except Killed:
                changes = place
            else:
                break
        host.require_all()
        host.before = lambda: None
        host.files = host.another()
        host.deliver(2)
        host.files.join()
        host.require_all()
        host.files.join(is_last=True)
        host.require_all()
        assert not [name for name in host.names() if name.startswith("samples")]
    assert changes > 10


def test_where_a_store_removes_nothing_the_parts_stay_and_count_once(host: OfHost) -> None:
    def refuse(_: str) -> None:
        raise PermissionError("no deletion")

    host.files = DeliveredFiles(host.root / "delivered", host.put, refuse)
    host.deliver(3)
    host.files.join(is_last=True)
    assert len(host.names()) == 4
    host.require_all()
    host.deliver(2)
    host.files.join(is_last=True)
    assert len(host.names()) == 7
    host.require_all()


def test_a_store_that_is_away_gets_the_joined_file_later(host: OfHost) -> None:
    host.deliver(joining.JOIN_FROM)

    def away() -> None:
        raise OSError("away")

    host.before = away
    for _ in range(2):
        with pytest.raises(OSError, match="away"):
            host.files.join()
        host.require_all()
    host.before = lambda: None
    host.files.join()
    assert len(host.names()) == 1
    host.require_all()


def test_what_a_power_cut_damaged_on_the_host_costs_no_row_in_the_store(host: OfHost) -> None:
    host.deliver(3)
    (part, *_) = joining.in_order(host.root / "delivered")
    part.write_bytes(b"cut")
    (host.root / "delivered" / "joined-5.parquet").write_bytes(b"cut")
    host.files.join(is_last=True)
    assert len(host.names()) == 2 and part.name in host.names()
    host.require_all()


def test_a_host_without_room_leaves_its_files_alone(host: OfHost, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    host.deliver(3)
    monkeypatch.setattr(joining, "write_evidence", full)
    host.files.join(is_last=True)
    assert len(host.names()) == 3 and not (host.root / "delivered").exists()
    host.require_all()


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_behind_a_url_a_mirror_that_had_the_parts_counts_each_row_once(tmp_path: Path, scheme: str) -> None:
    if scheme == "memory":
        pytest.importorskip("fsspec")
    url = f"{scheme}://{tmp_path}/remote" if scheme == "file" else f"memory://{tmp_path.name}"
    host, there = OfHost(tmp_path), RemoteStore(url, tmp_path / "agents")
    host.files = DeliveredFiles(
        tmp_path / "delivered",
        lambda path, name: there.put(path, f"job/{THERE}/{name}"),
        lambda name: there.remove(f"job/{THERE}/{name}"),
    )
    host.put = lambda path, name: there.put(path, f"job/{THERE}/{name}")  # type: ignore[method-assign]
    host.deliver(3)
    early, late = (mirror_of(url, tmp_path / name) for name in ("early", "late"))
    fetch_evidence(early, "job")
    host.require_all(early / "job")
    host.files.join(is_last=True)
    assert len(there.sizes(f"job/{THERE}")) == 1
    for mirror in (early, late):
        fetch_evidence(mirror, "job")
        host.require_all(mirror / "job")
    assert len(list((late / "job" / THERE).iterdir())) == 1


def test_files_that_are_joined_while_they_are_fetched_are_fetched_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = OfHost(tmp_path)
    host.deliver(3)
    mirror, get = mirror_of(f"file://{tmp_path}/store", tmp_path / "cache"), RemoteStore.get

    def joined_meanwhile(self: RemoteStore, name: str, target: Path) -> None:
        host.files.join(is_last=True)
        get(self, name, target)

    monkeypatch.setattr(RemoteStore, "get", joined_meanwhile)
    fetch_evidence(mirror, "job")
    host.require_all(mirror / "job")
