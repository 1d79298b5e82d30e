"""The store: jobs appear whole, are found by name, and a hostile job.json leads nowhere."""

import fcntl
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import kineto_builder as kb
from support.stored_jobs import edit_job_file, told

from kair.app.jobs import blaming_files
from kair_engine.errors import BusyError, DamagedJobError, InputError, NameTakenError, UnwritableStoreError, UsageError
from kair_engine.recording.job_file import recordings_in, tidy_store
from kair_engine.recording.opening import open_trace
from kair_engine.store.jobs import Store
from kair_engine.trace import files as permissions


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    return kb.write_job(tmp_path / "traces", [0, 1])


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def flip(file: Path, place: int | None = None) -> None:
    """Damages one bit of a file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2 if place is None else place] ^= 1
    file.write_bytes(content)


def test_an_imported_job_is_listed_and_opens(store: Store, traces: Path, cache: Path) -> None:
    imported = store.import_traces([traces], "job1", cache=cache)
    raw = open_trace(traces, cache=cache)
    (job,) = store.jobs()
    assert (job.name, job.world_size, job.ranks, job.steps) == ("job1", 2, 2, 3)
    assert (job.operations, job.source) == (raw.job.operations, str(traces))
    assert imported.job.name == "job1"
    assert imported.job.steps == raw.job.steps
    assert store.open("job1").scan().collect().equals(imported.scan().collect())
    assert imported.scan().collect().height == raw.scan().collect().height


def test_a_job_folder_opens_as_a_path(store: Store, traces: Path, cache: Path) -> None:
    store.import_traces([traces], "job1", cache=cache)
    assert open_trace(store.root / "job1", cache=cache) == store.open("job1")


def test_fragments_lie_by_host_and_outlive_the_cache_and_the_source(store: Store, tmp_path: Path, cache: Path) -> None:
    name = "node a_42.1700000000000000000.pt.trace.json.gz"
    source = kb.write(tmp_path / "one" / name, kb.trace(kb.training_steps(2), rank=3, world=4))
    store.import_traces([source], "job1", cache=cache)
    source.unlink()
    for path in (cache / "fragments").iterdir():
        path.unlink()
    trace = store.open("job1")
    (fragment,) = trace.fragments
    assert fragment.relative_to(store.root).parts[::2][:2] == ("job1", "fragments")
    assert fragment.parent.name == "host=node%20a"
    assert trace.scan().collect().height == 2 * 14 + 2
    assert [warning.code for warning in trace.job.warnings] == ["missing_ranks"]


def test_several_sources_make_one_job(store: Store, tmp_path: Path, cache: Path) -> None:
    sources = [kb.write_job(tmp_path / f"node{rank}", [rank], world=2) for rank in (0, 1)]
    assert store.import_traces(sources, "both", cache=cache).job.ranks == (0, 1)


def test_warnings_about_the_input_are_kept(store: Store, traces: Path, cache: Path) -> None:
    (traces / "broken.json").write_text('{"traceEvents": [')
    imported = store.import_traces([traces], "job1", cache=cache)
    assert [warning.code for warning in imported.job.warnings] == ["unreadable_file"]
    assert store.open("job1").job == imported.job


def test_a_name_that_is_taken_needs_replace(store: Store, traces: Path, cache: Path, tmp_path: Path) -> None:
    store.import_traces([traces], "job1", cache=cache)
    with pytest.raises(NameTakenError):
        store.import_traces([traces], "job1", cache=cache)
    other = kb.write_job(tmp_path / "other", [0, 1, 2])
    (store.root / "job1" / "bookmarks.json").write_text("[]")
    store.import_traces([other], "job1", cache=cache, replace=True)
    assert store.open("job1").job.world_size == 3
    assert (store.root / "job1" / "bookmarks.json").read_text() == "[]"  # the user's own
    assert [path.name for path in store.root.iterdir()] == ["job1"]


@pytest.mark.parametrize("name", ["", ".hidden", "../up", "a/b", "a b", "-x", "x" * 101, "é", "a\n"])
def test_names_that_are_no_folder_names_are_refused(store: Store, traces: Path, cache: Path, name: str) -> None:
    with pytest.raises(UsageError):
        store.import_traces([traces], name, cache=cache)
    with pytest.raises(UsageError):
        store.open(name)


def test_the_job_in_use_and_the_latest(store: Store, traces: Path, cache: Path) -> None:
    assert (store.current(), store.latest(), store.jobs()) == (None, None, [])
    for name in ("zeta", "alpha"):
        store.import_traces([traces], name, cache=cache)
    assert store.latest() == "alpha"
    store.use("zeta")
    assert store.current() == "zeta"
    with pytest.raises(UsageError, match="no job gamma"):
        store.use("gamma")
    (store.root / ".current").write_text("../../etc")
    assert store.current() is None


def test_nothing_is_left_of_an_import_that_fails(
    store: Store, traces: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kair_engine.store.jobs.create_file", no_space)
    with pytest.raises(UnwritableStoreError, match="No space left on device") as failure:
        store.import_traces([traces], "job1", cache=cache)
    assert "\n" not in str(failure.value)
    assert list(store.root.iterdir()) == []


def test_an_import_without_traces_leaves_nothing(store: Store, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError):
        store.import_traces([tmp_path / "empty"], "job1", cache=cache)
    assert store.jobs() == []


@pytest.mark.parametrize(("version", "by"), [(99, "a newer kair"), (1, "an older kair")])
def test_a_job_file_of_another_version_says_so(store: Store, traces: Path, cache: Path, version: int, by: str) -> None:
    store.import_traces([traces], "job1", cache=cache)
    edit_job_file(store.root / "job1", version=version)
    with pytest.raises(InputError, match=by):
        store.open("job1")
    assert store.jobs() == []


@pytest.mark.parametrize("path", ["../../secret.parquet", "/etc/passwd", "a\0b", 7])
def test_a_job_file_cannot_point_out_of_its_folder(store: Store, traces: Path, cache: Path, path: object) -> None:
    store.import_traces([traces], "job1", cache=cache)
    document = told(store.root / "job1")
    document["fragments"][0]["path"] = path
    edit_job_file(store.root / "job1", fragments=document["fragments"])
    with pytest.raises(DamagedJobError):
        store.open("job1")


def test_a_job_file_cannot_point_out_through_a_link(store: Store, traces: Path, cache: Path, tmp_path: Path) -> None:
    store.import_traces([traces], "job1", cache=cache)
    (tmp_path / "outside").mkdir()
    (store.root / "job1" / "link").symlink_to(tmp_path / "outside")
    document = told(store.root / "job1")
    document["fragments"][0]["path"] = "link/x.parquet"
    edit_job_file(store.root / "job1", fragments=document["fragments"])
    with pytest.raises(InputError, match="out of the job"):
        store.open("job1")


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{"fragments": {}}, {"fragments": [[]]}, {"warnings": [1]}, {"name": 5}, {"fragments": [{"path": "x"}]}]
)
def test_a_damaged_job_file_is_an_input_error(store: Store, traces: Path, cache: Path, changes: dict[str, Any]) -> None:
    store.import_traces([traces], "job1", cache=cache)
    edit_job_file(store.root / "job1", **changes)
    with pytest.raises(InputError) as failure:
        store.open("job1")
    assert "\n" not in str(failure.value)


def test_a_job_file_of_someone_else_is_just_a_file(traces: Path, cache: Path) -> None:
    (traces / "job.json").write_text('{"scheduler": "slurm"}')
    assert open_trace(traces, cache=cache).job.ranks == (0, 1)


def test_fragments_that_are_gone_are_a_warning(store: Store, traces: Path, cache: Path) -> None:
    fragment = store.import_traces([traces], "job1", cache=cache).fragments[0]
    fragment.unlink()
    for _ in range(2):
        job = store.open("job1").job
        assert (job.ranks, [warning.code for warning in job.warnings]) == ((1,), ["unreadable_file", "missing_ranks"])
        fragment.unlink(missing_ok=True)
        fragment.symlink_to(fragment.name)  # to itself: it leads nowhere, not out of the job


def test_a_damaged_fragment_is_left_out_and_the_rest_answers(store: Store, traces: Path, cache: Path) -> None:
    first, second = store.import_traces([traces], "job1", cache=cache).fragments
    flip(first)
    trace = store.open("job1")
    assert (trace.job.ranks, trace.fragments) == ((1,), (second,))
    assert trace.job.warnings[0].message.endswith(", a fragment of the job, is damaged, and left out")
    flip(second)
    with pytest.raises(DamagedJobError, match="gone or damaged"):
        store.open("job1")


def test_any_bit_of_a_job_file_that_is_wrong_is_seen(store: Store, traces: Path, cache: Path) -> None:
    store.import_traces([traces], "job1", cache=cache)
    file = store.root / "job1" / "job.json"
    whole = file.read_bytes()
    for place in range(0, len(whole), 61):
        flip(file, place)
        with pytest.raises(InputError):
            store.open("job1")
        file.write_bytes(whole)
    file.unlink()
    with pytest.raises(DamagedJobError):
        store.open("job1")
    assert [warning.code for warning in store.listing()[1]] == ["damaged_job"]
    store.remove("job1")
    assert list(store.root.iterdir()) == []


def test_damage_to_the_cache_is_none_to_the_store(store: Store, traces: Path, cache: Path) -> None:
    trace = store.import_traces([traces], "job1", cache=cache)
    before = trace.scan().collect()
    for path in (cache / "fragments").glob("*.parquet"):
        flip(path)
    assert store.open("job1").scan().collect().equals(before)


def test_who_reads_a_job_while_it_is_replaced_reads_the_old_one(
    store: Store, traces: Path, cache: Path, tmp_path: Path
) -> None:
    old = store.import_traces([traces], "job1", cache=cache)
    rows = old.scan().collect()
    other = kb.write_job(tmp_path / "other", [0, 1, 2])
    store.import_traces([other], "job1", cache=cache, replace=True)
    assert old.scan().collect().equals(rows)
    assert store.open("job1").job.world_size == 3
    tidy_store(store.root)
    assert len(recordings_in(store.root / "job1")) == 2
    del old
    tidy_store(store.root)
    (left,) = recordings_in(store.root / "job1")
    assert store.open("job1").fragments[0].is_relative_to(left)


def test_a_replacement_that_stops_at_the_last_moment_leaves_the_job(
    store: Store, traces: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.import_traces([traces], "job1", cache=cache)
    other = kb.write_job(tmp_path / "other", [0, 1, 2])
    replace = Path.replace

    def stop(path: Path, target: Path) -> Path:
        if target == store.root / "job1" / "job.json":
            raise KeyboardInterrupt
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        store.import_traces([other], "job1", cache=cache, replace=True)
    monkeypatch.undo()
    assert store.open("job1").job.world_size == 2
    tidy_store(store.root)
    assert [path.name for path in store.root.iterdir()] == ["job1"]
    assert len(recordings_in(store.root / "job1")) == 1


def test_files_that_a_killed_process_wrote_go_and_one_that_is_being_written_stays(
    store: Store, traces: Path, cache: Path
) -> None:
    store.import_traces([traces], "job1", cache=cache)
    (store.root / ".baselines").mkdir()
    (recording,) = recordings_in(store.root / "job1")
    coordinators = store.root / "job1" / "capture"
    coordinators.mkdir()
    folders = (store.root, store.root / ".baselines", recording, coordinators)
    left = [folder / ".what.json.4711.0123abcd" for folder in folders]
    for path in left:
        path.write_text("{")
    with left[0].open("rb") as being_written:
        fcntl.flock(being_written, fcntl.LOCK_EX)
        tidy_store(store.root)
    assert [path.exists() for path in left] == [True, False, False, False]
    tidy_store(store.root)
    assert sorted(path.name for path in store.root.iterdir()) == [".baselines", "job1"]


def test_a_file_that_another_process_takes_for_a_leftover_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its making and its lock."""
    create, made = permissions.create_file, []

    def create_and_lose(path: Path, modes: permissions.Modes) -> int:
        made.append(path)
        descriptor = create(path, modes)
        if len(made) == 1:
            permissions.remove_unwritten(tmp_path)
        return descriptor

    monkeypatch.setattr(permissions, "create_file", create_and_lose)
    permissions.write_whole(tmp_path / "file", b"whole")
    assert len(made) == 2
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"whole"}


def test_a_pipe_in_a_store_is_no_file(store: Store, traces: Path, cache: Path) -> None:
    """Who opens one waits for somebody to write into it."""
    store.import_traces([traces], "job1", cache=cache)
    (recording,) = recordings_in(store.root / "job1")
    os.mkfifo(recording / "verdict.json")
    os.mkfifo(store.root / ".current")
    (store.root / "job2" / "recording-1").mkdir(parents=True)
    os.mkfifo(store.root / "job2" / "job.json")
    found, warnings = store.listing()
    assert ([(job.name, job.last) for job in found], store.current()) == ([("job1", None)], None)
    assert [warning.message for warning in warnings] == [
        f"job job2 is left out: cannot read {store.root / 'job2' / 'job.json'}: it is no file"
    ]


def test_of_two_imports_of_one_name_the_second_says_so(store: Store, traces: Path, cache: Path) -> None:
    def meanwhile(*_: object) -> None:
        with pytest.raises(BusyError, match="another kair is at work on the job job1"):
            store.import_traces([traces], "job1", cache=cache, replace=True)

    store.import_traces([traces], "job1", cache=cache, progress=meanwhile)
    assert store.open("job1").job.world_size == 2


def test_a_store_is_its_owner_s_unless_its_folder_is_a_group_s(store: Store, traces: Path, cache: Path) -> None:
    store.import_traces([traces], "job1", cache=cache)
    assert {path.stat().st_mode & 0o077 for path in (store.root, *store.root.rglob("*"))} == {0}
    store.root.chmod(0o2770)
    before = os.umask(0o007)
    try:
        store.import_traces([traces], "job2", cache=cache)
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in (store.root / "job2").rglob("*")}
    assert modes == {0o770, 0o660}


def test_a_job_that_is_removed_is_gone(store: Store, traces: Path, cache: Path) -> None:
    store.import_traces([traces], "job1", cache=cache)
    store.use("job1")
    store.remove("job1")
    assert (store.jobs(), store.current(), list(store.root.iterdir())) == ([], None, [])
    with pytest.raises(UsageError, match="no job job1"):
        store.remove("job1")


def test_a_removal_that_is_killed_leaves_no_name_without_a_job(
    store: Store, traces: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.import_traces([traces], "job1", cache=cache)
    store.use("job1")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "rename", killed)
        store.remove("job1")
    assert ([job.name for job in store.jobs()], store.current()) == (["job1"], None)
    store.remove("job1")
    assert list(store.root.iterdir()) == []


def test_a_table_under_a_seal_that_fits_is_told_where_a_question_fails_for_it(
    store: Store, traces: Path, cache: Path
) -> None:
    """Checksums tell damage, not who wrote a file; a defect of an analysis stays one."""
    trace = store.import_traces([traces], "job1", cache=cache)
    with pytest.raises(ZeroDivisionError), blaming_files(trace):
        1 / 0  # noqa: B018
    path = trace.fragments[0]
    table = pq.read_table(path)
    for changed in (table.drop(["occurrence"]), table.slice(0, 5), table.slice(0, 0), _with_negative_times(table)):
        pq.write_table(changed.combine_chunks(), path)
        with pytest.raises(InputError, match=path.name), blaming_files(trace):
            1 / 0  # noqa: B018
    path.unlink()
    with pytest.raises(InputError, match="removed while it was read"), blaming_files(trace):
        1 / 0  # noqa: B018


def _with_negative_times(table: pa.Table) -> pa.Table:
    at = table.schema.get_field_index("duration_ns")
    return table.set_column(at, table.schema.field(at), pa.array([-1] * len(table), pa.int64()))


def test_a_damaged_verdict_is_none(store: Store, traces: Path, cache: Path) -> None:
    trace = store.import_traces([traces], "job1", cache=cache)
    assert trace.job.stored_in is not None
    (Path(trace.job.stored_in) / "verdict.json").write_bytes(b'{"verdict": "\xe8"}')
    assert [job.last for job in store.jobs()] == [None]
