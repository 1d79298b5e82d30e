"""Evidence found in folders: what is read, what is passed over, whose it is, and how it is kept with a job."""

import gzip
import math
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kineto_builder import write_job

import kair_engine.trace.evidence_table
from kair_engine.errors import InputError, UnwritableError
from kair_engine.readers.evidence.formats import NotEvidenceError, read_file
from kair_engine.recording import evidence_files
from kair_engine.recording.evidence_files import (
    add_to_job,
    host_in_path,
    keep_in_job,
    read_evidence_of,
    stored_evidence,
)
from kair_engine.recording.opening import find_files, open_trace
from kair_engine.store.remote import fetch_evidence, mirror_of
from kair_engine.trace.evidence_table import (
    EvidenceFile,
    EvidenceRows,
    described,
    read_evidence,
    together,
    write_evidence,
)
from kair_engine.trace.evidence_time import JobTime
from kair_engine.trace.measures import HOST, EvidenceSource, gpu

XID = (
    "2026-11-27T14:03:20,123456+00:00 NVRM: Xid (PCI:0000:1b:00): 79, pid=1896, GPU has fallen off the bus.\n"
    "2026-11-27T14:03:21,000000+00:00 mlx5_core 0000:5e:00.0 eth0: Link down\n"
)
SECOND_NS = 1_795_788_200_000_000_000


def log(path: Path, text: str = XID) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def clocks(*mhz: float, host: str | None = None, name: str = "clocks") -> EvidenceFile:
    """A device's clock, one value a second."""
    rows = EvidenceRows()
    for second, value in enumerate(mhz):
        rows.add(
            SECOND_NS + second * 10**9,
            gpu("GPU-5f3e0000-0000-0000-0000-000000000000"),
            "gpu_sm_clock",
            value,
            host=host,
        )
    return described(rows, EvidenceSource(name=name, kind="capture", clock="unix"))


def hosts(evidence: EvidenceFile) -> list[str | None]:
    """Of the rows, in order of the sources and then of time."""
    rows = evidence.table.sort_by([("source", "ascending"), ("time_ns", "ascending")])
    return [row["host"] for row in rows.select(["host"]).to_pylist()]


def codes(warnings: object) -> list[str]:
    assert isinstance(warnings, list)
    return [one.code for one in warnings]


def test_a_folder_is_read_with_all_its_kinds_and_its_traces_pass_in_silence(tmp_path: Path) -> None:
    write_job(tmp_path, [0, 1])
    log(tmp_path / "logs" / "dmesg.txt")
    write_evidence(tmp_path / "clocks.parquet", clocks(1755.0, 1395.0))
    found, warnings = read_evidence_of([tmp_path])
    assert warnings == []
    assert [(one.name, one.kind) for one in found.sources] == [("clocks", "capture"), ("logs/dmesg.txt", "kernel log")]
    assert set(found.table["name"].to_pylist()) == {"gpu_sm_clock", "xid", "link_down"}
    assert found.table["time_ns"].to_pylist() == sorted(found.table["time_ns"].to_pylist())
    assert {row["name"]: row["source"] for row in found.table.to_pylist()}["xid"] == 1


def test_compressed_files_are_read_as_others(tmp_path: Path) -> None:
    found = read_file(log(tmp_path / "dmesg.txt.gz"))
    assert "xid" in found.table["name"].to_pylist()


def test_what_nothing_reads_is_named_where_no_trace_lies_beside_it(tmp_path: Path) -> None:
    log(tmp_path / "dmesg.txt")
    (tmp_path / "shopping.txt").write_text("milk\n")
    (tmp_path / "identity-00003.json").write_text("{}")
    _, (warning,) = read_evidence_of([tmp_path])
    assert warning.code == "unknown_evidence"
    assert "shopping.txt" in warning.message
    assert "identity" not in warning.message
    write_job(tmp_path, [0])
    assert read_evidence_of([tmp_path])[1] == []


@pytest.mark.parametrize("name", ["trace", "text", "empty", "parquet"])
def test_a_file_that_is_named_and_is_no_evidence_is_refused(tmp_path: Path, name: str) -> None:
    files = {
        "trace": write_job(tmp_path, [0]) / "rank0.json.gz",
        "text": log(tmp_path / "a.txt", "milk\n"),
        "empty": log(tmp_path / "b.txt", ""),
        "parquet": _other_parquet(tmp_path / "a.parquet"),
    }
    with pytest.raises(NotEvidenceError) as failure:
        read_evidence_of([files[name]])
    assert failure.value.exit_code == 3
    assert "\n" not in str(failure.value)


def _other_parquet(path: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"host": ["a"]}), path)
    return path


def test_a_damaged_file_is_told_and_the_good_ones_are_answered(tmp_path: Path) -> None:
    log(tmp_path / "dmesg.txt")
    write_evidence(tmp_path / "clocks.parquet", clocks(1755.0))
    whole = (tmp_path / "clocks.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    found, warnings = read_evidence_of([tmp_path])
    assert len(found.sources) == 2
    assert codes(warnings) == ["unreadable_evidence"]
    assert "cut.parquet" in warnings[0].message
    with pytest.raises(InputError, match=r"cut\.parquet"):
        read_evidence_of([tmp_path / "cut.parquet"])


def test_nothing_at_all_is_an_error_that_says_what_is_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        read_evidence_of([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no evidence in") as failure:
        read_evidence_of([tmp_path / "empty"])
    assert "kair help sources" in str(failure.value.hint)
    assert read_evidence_of([], beside=tmp_path / "empty") == read_evidence_of([])
    assert len(read_evidence_of([])[0].table) == 0


def test_more_files_and_bytes_than_are_read_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        log(tmp_path / f"{number}.log", XID + f"# {number}\n")
    monkeypatch.setattr(evidence_files, "MOST_FILES", 3)
    found, warnings = read_evidence_of([tmp_path])
    assert (len(found.sources), codes(warnings)) == (3, ["evidence_left_out"])
    found, warnings = read_evidence_of([tmp_path / f"{number}.log" for number in range(3)], 2 * len(XID) + 20)
    assert (len(found.sources), codes(warnings)) == (2, ["evidence_left_out"])
    assert "2.log" in warnings[0].message


def test_a_file_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    file = log(tmp_path / "evidence" / "dmesg.txt")
    (tmp_path / "evidence" / "link.txt").symlink_to(file)
    found, _ = read_evidence_of([file, tmp_path], beside=tmp_path / "evidence")
    assert len(found.sources) == 1
    assert found.table.num_rows == 2


def test_pipes_and_hidden_files_are_passed_over(tmp_path: Path) -> None:
    log(tmp_path / "dmesg.txt")
    log(tmp_path / ".hidden" / "dmesg.txt")
    os.mkfifo(tmp_path / "pipe")
    assert len(read_evidence_of([tmp_path])[0].sources) == 1


@pytest.mark.parametrize(
    ("path", "job", "host"),
    [
        ("host=node-7/dmesg.txt", (), "node-7"),
        ("host=node-7/node-8.log", ("node-8",), "node-7"),
        ("dmesg-node-7.txt", ("node-7", "node-8"), "node-7"),
        ("node-7.dmesg", ("node-7",), "node-7"),
        ("NODE-7.dmesg", ("node-7",), "node-7"),
        ("node-70.dmesg", ("node-7",), None),
        ("anode-7.dmesg", ("node-7",), None),
        ("dmesg-node-7.txt", (), None),
        ("node-7-to-node-8.txt", ("node-7", "node-8"), None),
        ("node-7.rack2.log", ("node-7", "node-7.rack2"), "node-7.rack2"),
        ("n.7.log", ("n.7",), "n.7"),
        ("nx7.log", ("n.7",), None),
        ("", ("",), None),
    ],
)
def test_whose_a_file_is_by_its_path(path: str, job: tuple[str, ...], host: str | None) -> None:
    assert host_in_path(Path("/logs", path), job) == host


def test_a_name_gives_rows_their_host_where_the_content_does_not(tmp_path: Path) -> None:
    write_evidence(tmp_path / "node-7.parquet", clocks(1755.0))
    write_evidence(tmp_path / "node-8.parquet", clocks(1395.0, host="other"))
    found, _ = read_evidence_of([tmp_path], hosts=["node-7", "node-8"])
    assert hosts(found) == ["node-7", "other"]
    assert found.sources[0].hosts == ("node-7",)
    assert any("node-7" in note for note in found.sources[0].notes)
    assert found.sources[1].notes == ()
    assert hosts(read_evidence_of([tmp_path])[0]) == [None, "other"]


def test_what_is_added_is_read_again_from_the_jobs_folder(tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    log(tmp_path / "dmesg node-7;$(x).txt")
    (one,), warnings = add_to_job(job, [tmp_path / "dmesg node-7;$(x).txt"], hosts=["node-7"])
    assert (warnings, one.kinds, one.rows, one.was_there) == ([], ("kernel log",), 2, False)
    (file,) = job.rglob("*.parquet")
    assert file.name == one.file
    assert file.relative_to(job).parts[:2] == ("evidence", "added")
    assert set(file.name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._=-")
    found, warnings = stored_evidence(job)
    assert (hosts(found), warnings) == (["node-7", "node-7"], [])
    assert found.sources[0].kind == "kernel log"


def test_the_same_content_again_changes_nothing(tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    first, second = log(tmp_path / "dmesg.txt"), log(tmp_path / "copy.txt")
    add_to_job(job, [first])
    (before,) = job.rglob("*.parquet")
    state = before.stat()
    ((again,), _), ((copy,), _) = add_to_job(job, [first]), add_to_job(job, [second])
    assert (again.was_there, copy.was_there) == (True, True)
    assert [*job.rglob("*.parquet")] == [before]
    assert (before.stat().st_mtime_ns, before.stat().st_ino) == (state.st_mtime_ns, state.st_ino)


def test_equal_logs_of_two_hosts_are_two(tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    for host in ("node-7", "node-8"):
        log(tmp_path / "logs" / f"host={host}" / "dmesg.txt")
    added, _ = add_to_job(job, [tmp_path / "logs"])
    assert [one.was_there for one in added] == [False, False]
    assert sorted(map(str, hosts(stored_evidence(job)[0]))) == ["node-7", "node-7", "node-8", "node-8"]


def test_what_a_server_told_is_kept_once(tmp_path: Path) -> None:
    name = "http://prometheus:9090/"
    assert keep_in_job(tmp_path, name, clocks(1.0, 2.0)).was_there is False
    assert keep_in_job(tmp_path, name, clocks(1.0, 2.0)).was_there is True
    assert keep_in_job(tmp_path, name, clocks(1.0, 3.0)).was_there is False
    assert len(stored_evidence(tmp_path)[0].table) == 4


def test_of_added_files_the_damaged_are_told_and_a_full_store_too(tmp_path: Path) -> None:
    job, place = tmp_path / "job", tmp_path / "logs"
    job.mkdir()
    log(place / "dmesg.txt")
    (place / "cut.parquet").write_bytes(b"PAR1 and nothing more")
    added, warnings = add_to_job(job, [place])
    assert (len(added), codes(warnings)) == (1, ["unreadable_evidence"])
    with pytest.raises(InputError, match="not evidence"):
        add_to_job(job, [log(tmp_path / "milk.txt", "milk\n")])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "evidence").write_text("a file")
    with pytest.raises(UnwritableError):
        add_to_job(tmp_path / "full", [place])


def test_a_stored_table_that_is_damaged_is_left_out(tmp_path: Path) -> None:
    assert stored_evidence(tmp_path)[1] == []
    (tmp_path / "evidence" / "host=node-7").mkdir(parents=True)
    write_evidence(tmp_path / "evidence" / "host=node-7" / "0001.parquet", clocks(1.0, 2.0, host="node-9"))
    (tmp_path / "evidence" / "bad.parquet").write_text("no table")
    (tmp_path / "evidence" / ".half.parquet.12.0123abcd").write_text("half")
    (tmp_path / "evidence" / "identity-0.json").write_text("{}")
    found, warnings = stored_evidence(tmp_path)
    assert hosts(found) == ["node-9", "node-9"]
    assert codes(warnings) == ["unreadable_evidence"]


def test_files_that_are_joined_while_they_are_read_are_read_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "evidence" / "host=node-9"
    folder.mkdir(parents=True)
    for number in (1, 2, 3):
        write_evidence(folder / f"samples-{number}.parquet", clocks(float(number), host="node-9"))

    def joined_meanwhile(path: Path, when: JobTime | None) -> EvidenceFile:
        found = read_evidence(path, when)
        names = tuple(f"samples-{number}.parquet" for number in (1, 2, 3))
        if (folder / names[0]).exists():
            joined = together(read_evidence(folder / name) for name in names)
            write_evidence(folder / "joined-3.parquet", EvidenceFile(joined.table, joined.sources, names))
            for name in names:
                (folder / name).unlink()
        return found

    monkeypatch.setattr(evidence_files, "read_evidence", joined_meanwhile)
    found, warnings = stored_evidence(tmp_path)
    assert (sorted(found.table["value"].to_pylist()), warnings) == ([1.0, 2.0, 3.0], [])
    assert [one.rows for one in found.sources] == [3]


def test_of_more_samples_than_are_read_at_once_the_latest_are_read(tmp_path: Path) -> None:
    for place in ("host=a", "host=b", "added"):
        (tmp_path / "evidence" / place).mkdir(parents=True)
        for ms in (500, 1500, 2000):
            write_evidence(tmp_path / "evidence" / place / f"samples-{ms}.parquet", clocks(float(ms), host=place))
    (tmp_path / "evidence" / "added").rename(tmp_path / "evidence" / "own")
    write_evidence(tmp_path / "evidence" / "log.parquet", clocks(7.0, host="any"))
    found, (warning,) = stored_evidence(tmp_path, 7)
    assert sorted(found.table["value"].to_pylist()) == [7.0, 1500.0, 1500.0, 1500.0, 2000.0, 2000.0, 2000.0]
    assert warning.code == "evidence_left_out"
    assert warning.message.startswith("there are more than 7 rows: of 10 files the 3 with the oldest samples are left")


def test_a_folder_of_evidence_below_traces_holds_no_trace(tmp_path: Path) -> None:
    folder = write_job(tmp_path / "run", [0, 1])
    log(folder / "evidence" / "rank7.json", '{"traceEvents": [')
    log(folder / "evidence" / "dmesg.txt")
    (folder / "evidence" / "cut.parquet").write_bytes(b"PAR1 and nothing more")
    trace = open_trace(folder, cache=tmp_path / "cache")
    assert trace.job.ranks == (0, 1)
    assert "unreadable_file" not in {one.code for one in trace.job.warnings}
    # Who names that folder itself has traces in it.
    assert len(find_files(folder / "evidence").files) == 3


def test_an_entity_of_the_host_keeps_its_rows_apart_by_host(tmp_path: Path) -> None:
    for host in ("node-7", "node-8"):
        rows = EvidenceRows()
        rows.add(SECOND_NS, HOST, "memory_available", 1e9)
        (tmp_path / f"host={host}").mkdir()
        source = EvidenceSource(name="memory.parquet", kind="capture", clock="unix")
        write_evidence(tmp_path / f"host={host}" / "memory.parquet", described(rows, source))
    found, _ = read_evidence_of([tmp_path])
    assert hosts(found) == ["node-7", "node-8"]
    assert [one.name for one in found.sources] == ["host=node-7/memory.parquet", "host=node-8/memory.parquet"]


_TABLE = clocks(1755.0, 1395.0, 1400.0, host="node-7")


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4), kept=st.floats(0, 1)
)
def test_a_damaged_table_is_refused_or_sound(
    tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[float, int]], kept: float
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "clocks.parquet"
    write_evidence(path, _TABLE)
    content = bytearray(path.read_bytes())
    for at, value in flips:
        content[int(at * len(content))] = value
    path.write_bytes(content if kept > 0.3 else content[: int(kept * len(content))])
    try:
        found, _ = read_evidence_of([path], hosts=["clocks"])
    except InputError:
        return
    rows = found.table.to_pylist()
    assert all(0 <= row["source"] < len(found.sources) and row["time_ns"] is not None for row in rows)


def test_a_time_that_no_clock_shows_costs_its_line_alone(tmp_path: Path) -> None:
    lines = "".join(
        f"{year}/11/27 14:03:20.123, GPU-5f3e0000-0000-0000-0000-000000000000, 1395 MHz\n" for year in (9999, 2026)
    )
    file = log(tmp_path / "smi.csv", f"timestamp, uuid, clocks.current.sm [MHz]\n{lines}")
    found = read_file(file)
    assert (found.table.num_rows, found.sources[0].passed_over) == (1, 1)


def test_evidence_of_a_store_behind_a_url_is_fetched_once(tmp_path: Path) -> None:
    far = tmp_path / "far" / "job1" / "evidence" / "host=node-7"
    far.mkdir(parents=True)
    write_evidence(far / "0001.parquet", clocks(1.0, 2.0, host="node-7"))
    (far / "notes.txt").write_text("not asked for")
    store = mirror_of(f"file://{tmp_path / 'far'}", tmp_path / "cache")
    fetch_evidence(store, "job1")
    found, warnings = stored_evidence(store / "job1")
    assert (found.table.num_rows, warnings) == (2, [])
    here = store / "job1" / "evidence" / "host=node-7"
    before = (here / "0001.parquet").stat().st_ino
    write_evidence(far / "0002.parquet", clocks(3.0, host="node-7"))
    fetch_evidence(store, "job1")
    assert sorted(path.name for path in here.iterdir()) == ["0001.parquet", "0002.parquet"]
    assert (here / "0001.parquet").stat().st_ino == before
    fetch_evidence(store, "nowhere")


def test_the_files_of_one_sampler_are_one_source_and_logs_of_one_name_are_not() -> None:
    def file(kind: str, begin_s: int) -> EvidenceFile:
        rows = EvidenceRows()
        for at in range(begin_s, begin_s + 5):
            rows.add(at * 10**9, "host", "psi_io_time", float(at), host="a")
        return described(rows, EvidenceSource("capture, every 1 s", kind, "host", hosts=("a",)))

    sampled = together([file("capture", 0), file("capture", 5)])
    assert [(one.rows, one.first_ns, one.last_ns) for one in sampled.sources] == [(10, 0, 9 * 10**9)]
    assert set(sampled.table["source"].to_pylist()) == {0}
    assert len(together([file("kernel log", 0), file("kernel log", 5)]).sources) == 2


def test_a_joined_file_names_parts_beside_it_alone(tmp_path: Path) -> None:
    rows = EvidenceRows()
    rows.add(1, HOST, "xid", 63.0)
    one = described(rows, EvidenceSource("a", "kernel log", "unix"))
    names = ("samples-1.parquet", "../host=b/samples-1.parquet", "/etc/passwd", "..")
    write_evidence(tmp_path / "joined-1.parquet", EvidenceFile(one.table, one.sources, names))
    assert read_evidence(tmp_path / "joined-1.parquet").parts == ("samples-1.parquet",)


def test_a_table_that_is_damaged_or_unpacks_to_too_much_is_turned_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = EvidenceRows()
    rows.add(1, HOST, "xid", math.nan)
    rows.add(2, HOST, "xid", 63.0)
    path = tmp_path / "a.parquet"
    write_evidence(path, described(rows, EvidenceSource("a", "kernel log", "unix")))
    assert read_evidence(path).table["value"].to_pylist() == [63.0]
    write_evidence(path, described(rows, EvidenceSource("a", "kernel log", "unix", bound_s=1e300)))
    with pytest.raises(InputError, match="times of a source cannot be"):
        read_evidence(path)
    write_evidence(path, EvidenceFile(rows.table(), ()))
    assert not len(read_evidence(path).table)
    monkeypatch.setattr(kair_engine.trace.evidence_table, "MOST_ROWS", 1)
    with pytest.raises(InputError, match="1 at most are read of a file"):
        read_evidence(path)
