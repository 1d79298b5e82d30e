"""Bad input: what is good in it is answered with a warning, and what is not gets one line."""

import gzip
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest
from support import chrome_builder
from support import kineto_builder as kb
from support.patience import PATIENCE_S

from kair_engine.errors import InputError
from kair_engine.readers.kineto import reader, tables
from kair_engine.recording.opening import open_trace
from kair_engine.trace.format import MAX_NAME_LENGTH
from kair_engine.trace.model import Trace


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def warned(trace: Trace, code: str) -> str:
    """The message of the only warning, which must have this code."""
    (warning,) = trace.job.warnings
    assert warning.code == code
    assert "\n" not in warning.message
    assert len(warning.message) <= 200
    return warning.message


def refusal(source: Path, cache: Path) -> str:
    with pytest.raises(InputError) as failure:
        open_trace(source, cache=cache)
    assert "\n" not in str(failure.value)
    return str(failure.value)


def names(trace: Trace) -> list[str]:
    return trace.scan().select(pl.col("name").cast(pl.String)).collect()["name"].to_list()


def one(tmp_path: Path, events: list[kb.Event], **header: object) -> Path:
    return kb.write(tmp_path / "rank0.json", kb.trace(events, **header))


def test_a_missing_path(tmp_path: Path, cache: Path) -> None:
    assert "no such file or folder" in refusal(tmp_path / "nowhere", cache)


def test_an_empty_folder(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "is empty" in refusal(tmp_path / "empty", cache)


def test_a_folder_without_a_trace(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "job").mkdir()
    for name in ("a.txt", "b.json"):
        (tmp_path / "job" / name).write_text('{"a": 1}')
    assert "2 files looked at" in refusal(tmp_path / "job", cache)


@pytest.mark.parametrize(
    "content", [b"", b"hello", b'{"a": 1}', bytes(range(256)) * 300, b"[1, 2]", b"[]", b"\x1f\x8b"]
)
def test_not_a_trace(tmp_path: Path, cache: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    assert "not a trace" in refusal(tmp_path / "file", cache)


def test_long_json_without_events_is_not_a_trace(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "file").write_text(json.dumps({"a": ["x" * 50] * 5000}))
    assert "not a trace" in refusal(tmp_path / "file", cache)


def test_a_trace_without_operations(tmp_path: Path, cache: Path) -> None:
    assert "no operations" in refusal(one(tmp_path, []), cache)


def test_something_that_is_no_file(cache: Path) -> None:
    assert "neither a file nor a folder" in refusal(Path("/dev/null"), cache)


def test_a_truncated_gzip_is_answered_from_what_is_left(tmp_path: Path, cache: Path) -> None:
    content = gzip.compress(json.dumps(kb.trace(kb.training_steps(40))).encode(), mtime=0)
    (tmp_path / "rank0.json.gz").write_bytes(content[: len(content) * 3 // 4])
    trace = open_trace(tmp_path / "rank0.json.gz", cache=cache)
    assert 5 < len(trace.steps) < 40
    message = next(warning.message for warning in trace.job.warnings if warning.code == "truncated_file")
    assert "byte" in message


def test_a_gzip_with_damage_in_the_middle(tmp_path: Path, cache: Path) -> None:
    content = bytearray(gzip.compress(json.dumps(kb.trace(kb.training_steps(200))).encode(), 0, mtime=0))
    content[len(content) // 2 : len(content) // 2 + 4000] = b"\xff" * 4000
    (tmp_path / "rank0.json.gz").write_bytes(content)
    trace = open_trace(tmp_path / "rank0.json.gz", cache=cache)
    assert len(trace.steps) > 50


def test_json_cut_in_mid_object(tmp_path: Path, cache: Path) -> None:
    text = json.dumps(kb.trace(kb.training_steps(3)))
    cut = text.index('"ProfilerStep#4"') + 30
    (tmp_path / "rank0.json").write_text(text[:cut])
    trace = open_trace(tmp_path / "rank0.json", cache=cache)
    assert trace.steps == (2, 3)
    assert f"byte {cut}" in warned(trace, "truncated_file")


def test_bad_files_beside_good_ones(tmp_path: Path, cache: Path) -> None:
    job = kb.write_job(tmp_path / "job", [0, 1])
    (job / "rank2.json").write_text('{"traceEvents": [')
    trace = open_trace(job, cache=cache)
    assert trace.job.ranks == (0, 1)
    assert "rank2.json" in warned(trace, "unreadable_file")


@pytest.mark.parametrize(("name", "content"), [("rank2.json", b""), ("rank2.json.gz", b"\x1f\x8b")])
def test_a_file_without_content_beside_good_ones(tmp_path: Path, cache: Path, name: str, content: bytes) -> None:
    job = kb.write_job(tmp_path / "job", [0, 1])
    if name.endswith(".json"):
        for file in [*job.iterdir()]:
            file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
            file.unlink()
    (job / name).write_bytes(content)
    for other in ("__init__.py", "done"):
        (job / other).touch()
    (job / "settings.json").write_text('{"batch": 8}')
    for _ in range(2):  # the second time the others' fragments are kept
        trace = open_trace(job, cache=cache)
        assert trace.job.ranks == (0, 1)
        assert warned(trace, "unreadable_file") == f"{name} is empty; it is left out"


def test_only_bad_files(tmp_path: Path, cache: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.json").write_text('{"traceEvents": [')
    assert "rank0.json holds no operations (and 1 more files)" in refusal(tmp_path, cache)


def test_a_missing_rank(tmp_path: Path, cache: Path) -> None:
    trace = open_trace(kb.write_job(tmp_path / "job", [0, 1, 3], world=4), cache=cache)
    assert trace.job.missing_ranks == (2,)
    assert warned(trace, "missing_ranks") == "1 of 4 ranks left no trace: rank 2"


def test_two_files_of_one_rank(tmp_path: Path, cache: Path) -> None:
    job = kb.write_job(tmp_path / "job", [0, 1])
    kb.write(job / "again.json", kb.trace(kb.training_steps(2), rank=1, world=2))
    trace = open_trace(job, cache=cache)
    assert "again.json" in warned(trace, "duplicate_rank")
    assert trace.steps == (2, 3, 4)
    assert trace.scan().collect().height == 2 * (3 * 14 + 3)


def test_ranks_with_different_steps(tmp_path: Path, cache: Path) -> None:
    for rank, first in enumerate((2, 2, 3)):
        kb.write(tmp_path / "job" / f"rank{rank}.json", kb.trace(kb.training_steps(3, first=first), rank=rank, world=3))
    trace = open_trace(tmp_path / "job", cache=cache)
    assert trace.steps == (2, 3, 4)
    assert [warning.code for warning in trace.job.warnings] == ["incomplete_steps", "uneven_steps"]
    assert "rank 2 (rank 2 lacks 2)" in trace.job.warnings[1].message


def test_ranks_without_a_common_step(tmp_path: Path, cache: Path) -> None:
    for rank in range(4):
        content = kb.trace(kb.training_steps(2, first=10 * rank), rank=rank, world=4)
        kb.write(tmp_path / "job" / f"rank{rank}.json", content)
    trace = open_trace(tmp_path / "job", cache=cache)
    assert trace.steps == (0, 1, 10, 11, 20, 21, 30, 31)
    assert [warning.code for warning in trace.job.warnings] == ["uneven_steps"]


def test_different_world_sizes_mixed(tmp_path: Path, cache: Path) -> None:
    job = kb.write_job(tmp_path / "job", [0, 1, 2])
    kb.write(job / "other.json", kb.trace(kb.training_steps(3), rank=7, world=8))
    trace = open_trace(job, cache=cache)
    assert (trace.job.world_size, trace.job.ranks) == (3, (0, 1, 2))
    assert "other.json" in warned(trace, "mixed_world_sizes")


def test_no_collectives_at_all(tmp_path: Path, cache: Path) -> None:
    events = [event for event in kb.training_steps(3) if "nccl" not in event["name"]]
    trace = open_trace(one(tmp_path, events), cache=cache)
    assert (trace.steps, trace.job.warnings) == ((2, 3, 4), ())


def test_one_rank_only(tmp_path: Path, cache: Path) -> None:
    trace = open_trace(one(tmp_path, kb.training_steps(3)), cache=cache)
    assert (trace.job.world_size, trace.job.missing_ranks, trace.job.warnings) == (1, (), ())


def test_negative_and_nan_durations(tmp_path: Path, cache: Path) -> None:
    events = kb.training_steps(3)
    bad = [kb.op("bad", 10_010, dur) for dur in (-5, float("nan"), float("inf"), float("-inf"))]
    bad += [kb.op("bad", ts, 1) for ts in (float("nan"), float("inf"))]
    no_duration = kb.op("bad", 10_010, 1)
    del no_duration["dur"]
    trace = open_trace(one(tmp_path, [*events[:5], *bad, no_duration, *events[5:]]), cache=cache)
    assert "bad" not in names(trace)
    assert trace.job.operations == 3 * 14
    assert warned(trace, "bad_events").startswith("7 events")


@pytest.mark.parametrize("ts", [-1, -1e15, 1e15, 1e18, 1e300, 9223372036854775807, -(1 << 70), "9" * 4000])
def test_clock_jumps(tmp_path: Path, cache: Path, ts: float) -> None:
    events = [*kb.training_steps(3), kb.op("jumped", ts, 10), kb.op("endless", 10_020, 1e18)]
    trace = open_trace(one(tmp_path, events, baseTimeNanoseconds=1790000000000000000), cache=cache)
    assert trace.steps == (2, 3, 4)
    assert "jumped" not in names(trace)
    assert trace.job.operations == 3 * 14


def test_a_clock_jump_without_step_marks(tmp_path: Path, cache: Path) -> None:
    events = [kb.op("a", 0, 10), kb.op("b", 1e14, 10), kb.op("c", -1e14, 10)]
    trace = open_trace(one(tmp_path, events), cache=cache)
    assert trace.job.operations == 3


def test_numbers_beyond_int64(tmp_path: Path, cache: Path) -> None:
    huge = 1 << 70
    events = kb.training_steps(3)
    events.append(kb.kernel("huge", 10_050, 5, huge, **{"External id": -huge, "Seq": huge, "dtype": "Float"}))
    events.append(kb.kernel("ncclDevKernel_X", 10_060, 5, huge, **{"Seq": huge, "In msg nelems": huge, "dtype": "Int"}))
    events.append(kb.event("Memcpy", "gpu_memcpy", 10_070, 5, pid=huge, tid=huge, bytes=huge))
    events.append(kb.step(10**30, 10_000, 5))
    trace = open_trace(one(tmp_path, events), cache=cache)
    assert {"huge", "ncclDevKernel_X", "Memcpy"} <= set(names(trace))


def test_a_world_beyond_any_job(tmp_path: Path, cache: Path) -> None:
    distributed = {"rank": 1 << 30, "world_size": (1 << 31) - 1}
    content = kb.trace(kb.training_steps(3), rank=None, distributedInfo=distributed)
    trace = open_trace(kb.write(tmp_path / "rank1.json", content), cache=cache)
    assert (trace.job.ranks, trace.job.world_size) == ((1,), 2)


@pytest.mark.slow
def test_a_name_of_ten_million_characters(tmp_path: Path, cache: Path) -> None:
    long = "}, {" * 2_500_000
    events = kb.training_steps(3)
    source = one(tmp_path, [*events[:5], kb.op(long, 10_020, 5), kb.op(long + "2", 10_030, 5), *events[5:]])
    trace = open_trace(source, cache=cache)
    kept = {name for name in names(trace) if name.startswith("}, {")}
    assert [len(name) for name in kept] == [MAX_NAME_LENGTH] * 2
    assert trace.job.warnings == ()


def test_more_names_than_can_be_kept_become_one(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_ROOM_FOR_NAMES", 1500)
    events = [*kb.training_steps(3), *(kb.op(f"op of its own {number}", 10_020 + number, 1) for number in range(30))]
    trace = open_trace(one(tmp_path, events), cache=cache)
    assert trace.job.operations == 3 * 14 + 30
    assert 15 < names(trace).count("(other operations)") < 30
    assert "more names of operations than can be kept" in warned(trace, "many_names")


@pytest.mark.parametrize(("marked", "way_out"), [(True, "record fewer threads"), (False, "profiler.step()")])
def test_a_step_beyond_memory_is_refused(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, *, marked: bool, way_out: str
) -> None:
    monkeypatch.setattr(reader, "_LARGEST_STEP", 10)
    events = [event for event in kb.training_steps(2) if marked or "ProfilerStep" not in event["name"]]
    with pytest.raises(InputError, match=r"rank0\.json: .* operations, more than 10 cannot be analysed") as failure:
        open_trace(one(tmp_path, events), cache=cache)
    assert way_out in str(failure.value.hint)


def test_marks_of_steps_are_marks_in_any_case(tmp_path: Path, cache: Path) -> None:
    events = [
        {**event, "name": event["name"].replace("ProfilerStep", "PROFILERSTEP")} for event in kb.training_steps(3)
    ]
    assert open_trace(one(tmp_path, events), cache=cache).steps == (2, 3, 4)


@pytest.mark.parametrize(
    "name", ["\x1b[2J\x1b]0;owned\x07", "[red]evil[/red]", "a\nb\r\t\0", "\u202egnp.exe", "\ud800", "日本", ":smile:"]
)
def test_names_pass_unchanged(tmp_path: Path, cache: Path, name: str) -> None:
    trace = open_trace(one(tmp_path, [*kb.training_steps(3), kb.op(name, 10_020, 5)]), cache=cache)
    assert name.encode("utf-8", "replace").decode() in names(trace)


def test_bytes_that_are_no_text(tmp_path: Path, cache: Path) -> None:
    text = json.dumps(kb.trace([*kb.training_steps(3), kb.op("BAD", 10_020, 5)])).encode()
    (tmp_path / "rank0.json").write_bytes(text.replace(b"BAD", b"\xff\xfe\x80"))
    trace = open_trace(tmp_path / "rank0.json", cache=cache)
    assert trace.job.operations >= 3 * 14


def test_a_file_name_with_control_characters_stays_on_one_line(tmp_path: Path, cache: Path) -> None:
    job = kb.write_job(tmp_path / "job", [0, 1])
    (job / "evil\n\x1b[2J.json").write_text('{"traceEvents": [')
    warned(open_trace(job, cache=cache), "unreadable_file")


def test_a_symlink_loop_in_a_folder(tmp_path: Path, cache: Path) -> None:
    job = kb.write_job(tmp_path / "job", [0, 1])
    (job / "up").symlink_to(job)
    (job / "sub").mkdir()
    (job / "sub" / "back").symlink_to(job / "sub")
    (job / "self").symlink_to(job / "self")
    (job / "gone").symlink_to(tmp_path / "nowhere")
    (job / "copy.json").symlink_to(job / "rank0.json.gz")
    trace = open_trace(job, cache=cache)
    assert (trace.job.ranks, trace.job.warnings) == ((0, 1), ())


def test_a_link_to_a_folder_is_followed(tmp_path: Path, cache: Path) -> None:
    kb.write_job(tmp_path / "real", [0, 1])
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "link").symlink_to(tmp_path / "real")
    assert open_trace(tmp_path / "job", cache=cache).job.ranks == (0, 1)


def test_a_symlink_to_itself(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "self").symlink_to(tmp_path / "self")
    assert "cannot read" in refusal(tmp_path / "self", cache)


def run_as_a_user(program: str, *args: Path) -> str:
    """Runs a program without root's right to read everything; its output.

    What it imports is imported before: the checkout may be where only its user can read.
    """
    drop = "import os\nif os.getuid() == 0:\n    os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
    imports = (
        "import sys, numpy, numpy.ma, pyarrow, pyarrow.parquet, pyarrow.compute, msgspec\nfrom pathlib import Path\n"
        "from kair_engine.recording.opening import open_trace\nfrom kair_engine.errors import KairError\n"
        "import kair_engine.readers.kineto.reader, kair_engine.readers.whatif_parquet\n"
        "import kair_engine.recording.job_file\n"
    )
    command = [sys.executable, "-c", imports + drop + program, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


OPEN = """
try:
    trace = open_trace(Path(sys.argv[1]), cache=Path(sys.argv[2]))
    print(list(trace.job.ranks), *(f"{one.code}: {one.message}" for one in trace.job.warnings), sep="|")
except KairError as error:
    print(error.exit_code, error, error.hint, sep="|")
"""


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that any user can reach and write to: pytest's are its user's alone, and become so anew at any time."""
    with tempfile.TemporaryDirectory(prefix="kair-open-") as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


@pytest.mark.slow
def test_no_permission_to_read(open_to_all: Path) -> None:
    job = kb.write_job(open_to_all / "job", [0, 1])
    (job / "rank1.json.gz").chmod(0)
    (job / "private").mkdir(mode=0)
    output = run_as_a_user(OPEN, job, open_to_all / "cache")
    assert output.startswith("[0]|")
    assert "Permission denied" in output
    assert output.count("unreadable_file") == 2
    assert run_as_a_user(OPEN, job / "rank1.json.gz", open_to_all / "cache").startswith("3|cannot read")
    assert run_as_a_user(OPEN, job / "private", open_to_all / "cache").startswith("3|cannot read")


@pytest.mark.slow
def test_no_permission_to_write_the_cache(open_to_all: Path) -> None:
    job = kb.write_job(open_to_all / "job", [0, 1])
    (open_to_all / "cache").mkdir(mode=0o755)
    output = run_as_a_user(OPEN, job, open_to_all / "cache")
    assert output.startswith("[0, 1]|cache_unwritable")


FULL = "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"


@pytest.mark.slow
@pytest.mark.parametrize("limit", [0, 100, 4000])
def test_a_full_disk_while_importing(tmp_path: Path, limit: int) -> None:
    job = kb.write_job(tmp_path / "job", [0, 1], count=50)
    full = FULL + f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
    command = [sys.executable, "-c", "import sys\nfrom pathlib import Path\n"
               "from kair_engine.recording.opening import open_trace\n"
               "from kair_engine.errors import KairError\n" + full + OPEN,
               str(job), str(tmp_path / "cache")]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    code, message, hint = done.stdout.rstrip("\n").split("|")
    assert code == "3"
    assert message == f"cannot write {tmp_path / 'cache'}: File too large"
    assert hint == "choose another place with $KAIR_CACHE"
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("write", "found"),
    [
        (chrome_builder.horovod, '"name": "0"'),
        (chrome_builder.rocprof_hip, r'"EndNs": "\d+"'),
        (lambda path: kb.write(path, kb.trace(kb.training_steps(2)) | {"baseTimeNanoseconds": "1"}), "Nanoseconds.*?1"),
    ],
    ids=["horovod", "rocprof", "kineto"],
)
def test_a_number_of_thousands_of_digits_is_none(
    tmp_path: Path, cache: Path, write: Callable[[Path], Path], found: str
) -> None:
    """Python converts no text that is so long."""
    path = write(tmp_path / "recording.json")
    text, count = re.subn(
        rf"(?:{found})", lambda match: re.sub(r"\d+", "9" * 5000, match[0]), path.read_text(), count=3
    )
    path.write_text(text)
    assert count
    assert open_trace(path, cache=cache).job.operations
