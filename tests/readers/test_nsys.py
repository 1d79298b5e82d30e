"""Exports of Nsight Systems: ranks, steps, phases and links from their tables; what is hostile or damaged."""

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
from support.nsys_builder import Export, thread_of, training, write_job

from kair_engine.errors import InputError
from kair_engine.readers.formats import NotATraceError
from kair_engine.readers.nsys import read_nsys
from kair_engine.recording.opening import open_trace
from kair_engine.triage.analysis import triage


@pytest.mark.slow
def test_a_job_of_four_ranks(tmp_path: Path) -> None:
    trace = open_trace(write_job(tmp_path / "job", range(4), slow=2), cache=tmp_path / "cache")
    job = trace.job
    assert (job.format, job.ranks, job.world_size, job.steps) == ("nsys", (0, 1, 2, 3), 4, tuple(range(20, 28)))
    assert (job.device, job.absolute_time, job.warnings) == ("NVIDIA A100-SXM4-80GB", True, ())
    assert job.hosts == {0: "node0", 1: "node0", 2: "node1", 3: "node1"}
    rows = trace.scan().with_columns(pl.col("kind", "phase", "name", "lane").cast(pl.String)).collect()
    first = rows.filter((pl.col("step") == 20) & (pl.col("rank") == 0))
    by_name = {row["name"]: row for row in first.iter_rows(named=True)}
    # Kernels are of the phase that launched them.
    phases = {name: row["phase"] for name, row in by_name.items() if row["lane"].startswith("stream")}
    assert phases["gemm_forward(float*)"] == "forward"
    assert phases["gemm_backward(float*)"] == "backward"
    assert phases["adam(float*)"] == "optimizer"
    assert by_name["Memcpy HtoD"]["bytes"] == 4096
    assert by_name["cudaStreamSynchronize"]["kind"] == "sync"
    assert by_name["forward"]["kind"] == "scope"
    (reduced,) = (row for name, row in by_name.items() if name.startswith("nccl"))
    assert (reduced["kind"], reduced["lane"]) == ("collective", "stream 20")
    result = triage(trace)
    (finding,) = (one for one in result.findings if one.ranks)
    assert (result.verdict, finding.ranks, finding.cause) == ("straggler", (2,), "compute")
    assert finding.operator == "gemm_forward(float*)"
    assert finding.time_lost_us_per_step == pytest.approx(150, abs=5)


@pytest.mark.slow
@pytest.mark.parametrize(("held", "ranks"), [([0, 1, 2, 3], ()), ([2], (2,))], ids=["all ranks", "one of them"])
def test_what_the_profiler_holds_up_is_told_as_its_own_work(
    tmp_path: Path, held: list[int], ranks: tuple[int, ...]
) -> None:
    """150 of the 1,000 µs of a step it writes out buffers, within a launch: both tables have that."""
    folder = write_job(tmp_path / "job", range(4), held=held)
    for path in folder.iterdir():
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_OVERHEAD AS SELECT * FROM PROFILER_OVERHEAD")
            connection.commit()
    result = triage(open_trace(folder, cache=tmp_path / "cache"))
    (finding,) = (one for one in result.findings if one.cause == "profiler")
    assert finding.ranks == ranks
    assert finding.time_lost_us_per_step == pytest.approx(150, abs=5)
    (told,) = (one for one in finding.evidence if one.kind == "profiler")
    # Less what the device still computes meanwhile, where it is the account's.
    assert told.figures["held_us_per_step"] == pytest.approx(150, abs=5)


def test_overheads_are_of_the_profiler_but_for_loading_code_and_on_a_thread_or_nowhere(tmp_path: Path) -> None:
    export = Export(tmp_path / "a.sqlite")
    thread = thread_of(4000)
    training(export, 4000, steps=1)
    export.connection.executescript(
        "CREATE TABLE ENUM_CUPTI_OVERHEAD_TYPE (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_OVERHEAD (start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER, "
        "overheadType INTEGER);"
    )
    for number, label in ((4, "CUPTI instrumentation"), (7, "Lazy function loading"), (8, None)):
        export.insert("ENUM_CUPTI_OVERHEAD_TYPE", number, "", label)
    nameless = export.text("")
    # Around them are a launch of another thread, and a call that waits anyway: neither is held up by them.
    export.call(thread_of(4000, 4007), "cudaLaunchKernel_v7000", 599, 699)
    export.call(thread, "cudaDeviceSynchronize_v3020", 599, 679)
    for at, on, name, sort in (
        (600, thread, nameless, 4),
        (610, thread, nameless, 7),
        (620, thread, export.text("Activity buffer request"), "?"),
        (630, None, nameless, 4),
        (640, thread, None, 4),
    ):
        row = (at * 1000, (at + 9) * 1000, on, name, sort)
        export.insert("CUPTI_ACTIVITY_KIND_OVERHEAD", *row)
    export.overhead(thread, "CUDA profiling stop overhead", 650, 659)
    export.overhead(thread, "CUDA profiling data flush overhead", 660, 669)
    read_nsys(export.close(), tmp_path / "out.parquet", rank_hint=0)
    rows = pl.read_parquet(tmp_path / "out.parquet").with_columns(pl.col("name", "lane").cast(pl.String))
    told = rows.filter(pl.col("duration_ns") == 9000).sort("start_ns").select("name", "lane").rows()
    assert told == [
        ("Instrumentation", "thread 4000"),
        ("Lazy function loading", "thread 4000"),
        ("Activity Buffer Request", "thread 4000"),
        ("Instrumentation", "thread 4000"),
        ("Instrumentation", "thread 4000"),
        ("Buffer Flush", "thread 4000"),
    ]
    around = (
        rows.filter(pl.col("duration_ns").is_in([80_000, 100_000])).sort("duration_ns").select("name", "lane").rows()
    )
    assert around == [("cudaDeviceSynchronize", "thread 4000"), ("cudaLaunchKernel", "thread 4007")]


def test_processes_of_one_report_are_ranks(tmp_path: Path) -> None:
    export = Export(tmp_path / "all.sqlite")
    # One launcher for all of them: its own environment says nothing of theirs.
    export.environment(SLURM_PROCID=0, SLURM_NTASKS=1)
    for pid in (4001, 4000):
        training(export, pid, steps=3)
    info = read_nsys(export.close(), tmp_path / "out.parquet")
    assert (info.ranks, info.rank_known, info.world_size) == ((0, 1), False, None)
    assert len(info.step_times.step) == 6


@pytest.mark.parametrize("name", ["h100_2gpu_1s.sqlite", "run_rank3.sqlite", "report7.sqlite"])
def test_a_number_in_the_name_of_a_report_of_several_processes_is_no_rank(tmp_path: Path, name: str) -> None:
    export = Export(tmp_path / "job" / name)
    for pid in (4000, 4001):
        training(export, pid, steps=3)
    export.close()
    (tmp_path / "job" / name.replace(".", "_notes_5.")).write_text("no trace")  # a name that tells numbers apart
    job = open_trace(tmp_path / "job", cache=tmp_path / "cache").job
    assert (job.ranks, job.missing_ranks) == ((0, 1), ())
    single = open_trace(tmp_path / "job" / name, cache=tmp_path / "cache").job
    assert (single.ranks, single.missing_ranks) == ((0, 1), ())


def test_reports_of_several_hosts_are_numbered_on(tmp_path: Path) -> None:
    for host in range(2):
        export = Export(tmp_path / "job" / f"node_{host}.sqlite", host=f"node{host}")
        for pid in (4000, 4001):
            training(export, pid, steps=3)
        export.close()
    job = open_trace(tmp_path / "job", cache=tmp_path / "cache").job
    assert (job.ranks, job.hosts[1], job.hosts[2]) == ((0, 1, 2, 3), "node0", "node1")


def test_processes_may_say_their_ranks(tmp_path: Path) -> None:
    export = Export(tmp_path / "all.sqlite")
    for pid, rank in ((4000, 3), (4001, 2)):
        training(export, pid, steps=2)
        export.span(thread_of(pid), f"MPI Rank {rank}", 1, None)
    info = read_nsys(export.close(), tmp_path / "out.parquet")
    assert (info.ranks, info.rank_known) == ((2, 3), True)


def test_ranks_from_the_file_s_name_and_unnumbered_steps(tmp_path: Path) -> None:
    export = Export(tmp_path / "run_rank5.sqlite")
    thread = thread_of(4000)
    for at in (0.0, 1000.0, 2000.0):
        export.span(thread, "train_step", at, at + 900)
        export.kernel(thread, "gemm(float*)", at + 20, at + 500, launched=at + 5)
    info = read_nsys(export.close(), tmp_path / "out.parquet")
    assert (info.ranks, info.rank_known, info.step_times.step) == ((5,), True, (0, 1, 2))
    assert [warning.code for warning in info.warnings] == ["steps_inferred"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mark", "told_by"),
    [
        ("execute_context_0(0)_generation_8(8)", "execute_context_"),
        ("[Executor] iteration of the server, 8 requests", "[Executor] iteration of the server,"),
        (None, "what repeats up to adam"),
    ],
)
def test_steps_without_numbers_are_told_by_what_spans_or_repeats(
    mark: str | None, told_by: str, tmp_path: Path
) -> None:
    trace = open_trace(write_job(tmp_path / "job", range(4), slow=2, mark=mark), cache=tmp_path / "cache")
    assert trace.steps == tuple(range(8))
    (told,) = (one.message for one in trace.job.warnings)
    assert f"its 8 steps are found by {told_by}" in told
    (finding,) = (one for one in triage(trace).findings if one.ranks)
    assert finding.ranks == (2,)
    assert finding.time_lost_us_per_step == pytest.approx(150, abs=5)


def test_a_report_without_marks_is_one_step(tmp_path: Path) -> None:
    export = Export(tmp_path / "a.sqlite")
    export.kernel(thread_of(4000), "gemm(float*)", 20, 500, launched=5)
    info = read_nsys(export.close(), tmp_path / "out.parquet")
    assert [warning.code for warning in info.warnings] == ["no_step_marks"]
    assert info.operations == 2


def test_values_that_are_no_numbers_stay_within_their_rows(tmp_path: Path) -> None:
    export = Export(tmp_path / "a.sqlite")
    training(export, 4000, steps=2)
    for change in (
        "CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon' WHERE rowid = 1",
        "CUPTI_ACTIVITY_KIND_KERNEL SET end = 9223372036854775807 WHERE rowid = 2",
        "CUPTI_ACTIVITY_KIND_KERNEL SET correlationId = NULL, demangledName = x'00' WHERE rowid = 3",
        "CUPTI_ACTIVITY_KIND_RUNTIME SET correlationId = 'x' WHERE rowid = 4",
    ):
        export.connection.execute(f"UPDATE {change}")
    info = read_nsys(export.close(), tmp_path / "out.parquet", rank_hint=0)
    assert [warning.code for warning in info.warnings] == ["bad_events"]
    # Of 15 the first step lost a kernel without a time, and one that never ends.
    assert info.step_times.operations == (13, 15)


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (
            "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL; CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE c(x) AS "
            "(SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x AS start, x AS end, x AS deviceId, x AS streamId, "
            "x AS correlationId FROM c",
            "CUPTI_ACTIVITY_KIND_KERNEL is a view",
        ),
        ("DROP TABLE PROFILER_OVERHEAD; CREATE VIEW PROFILER_OVERHEAD AS SELECT 1 AS start", "OVERHEAD is a view"),
        ("CREATE VIEW ENUM_CUPTI_OVERHEAD_TYPE AS SELECT 1 AS id, 'x' AS label", "OVERHEAD_TYPE is a view"),
        ("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL; DROP TABLE CUPTI_ACTIVITY_KIND_MEMCPY", "no operations of a GPU"),
    ],
)
def test_hostile_and_empty_schemas_are_refused_in_one_line(tmp_path: Path, change: str, refusal: str) -> None:
    export = Export(tmp_path / "a.sqlite")
    training(export, 4000, steps=2)
    export.connection.executescript(change)
    with pytest.raises(InputError, match=refusal) as found:
        read_nsys(export.close(), tmp_path / "out.parquet")
    assert "\n" not in str(found.value)


def test_other_databases_are_no_traces(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "a.sqlite") as connection:
        connection.execute("CREATE TABLE metrics (value REAL)")
    connection.close()
    with pytest.raises(NotATraceError):
        read_nsys(tmp_path / "a.sqlite", tmp_path / "out.parquet")


def test_nothing_is_left_beside_a_report(tmp_path: Path) -> None:
    source = write_job(tmp_path / "job", range(1))
    before = {path: path.read_bytes() for path in source.iterdir()}
    open_trace(source, cache=tmp_path / "cache")
    assert {path: path.read_bytes() for path in source.iterdir()} == before


def test_damaged_reports_give_an_answer_or_one_line(tmp_path: Path) -> None:
    export = Export(tmp_path / "a.sqlite")
    training(export, 4000, steps=2)
    content, chance = export.close().read_bytes(), random.Random(5)
    source, refused = tmp_path / "b.sqlite", 0
    for _ in range(60):
        text = bytearray(content[: chance.randrange(100, len(content))] if chance.random() < 0.2 else content)
        for _ in range(chance.randrange(1, 30)):
            text[chance.randrange(16, len(text))] = chance.randrange(256)
        source.write_bytes(text)
        try:
            read_nsys(source, tmp_path / "out.parquet")
        except InputError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 0


def test_steps_that_were_launched_before_the_recording_are_none_of_it(tmp_path: Path) -> None:
    """A host twelve steps ahead of its device: what runs first was launched before, what is launched runs later."""
    export, thread = Export(tmp_path / "a.sqlite"), thread_of(4000)
    for number in range(24):
        for at, name in enumerate(("gemm(float*)", "adam(float*)")):
            start = 1000.0 * number + 450 * at
            export.kernel(thread, name, start, start + 400, launched=1000.0 * (number - 12) + 50 * at)
    export.connection.execute("DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE start < 0")
    info = read_nsys(export.close(), tmp_path / "out.parquet", rank_hint=0)
    assert all(length > 0 for length in info.step_times.duration_ns)
    begins = info.step_times.begin_ns
    assert list(begins) == sorted(begins)
    assert info.step_times.step == tuple(range(len(begins)))
    assert len(begins) == 12
