"""Opening a path: what is found, what is cached, and how ranks and steps come together."""

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from support import kineto_builder as kb
from support.patience import PATIENCE_S
from support.places import CASES2

from kair_engine.errors import BusyError, InputError, UnwritableError
from kair_engine.recording.cache import cache_size, clear, evict, tidy_cache
from kair_engine.recording.importing import ImportTask, UnwrittenError, import_files
from kair_engine.recording.kept_files import hold
from kair_engine.recording.opening import open_sources, open_trace
from kair_engine.recording.step_numbers import incomplete_cells, usable_steps
from kair_engine.trace.format import FragmentWriter
from kair_engine.trace.model import ImportOutcome, StepTimes, Trace


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def flip(file: Path, place: int) -> None:
    """Damages one bit of a file."""
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def codes(trace: Trace) -> list[str]:
    return [warning.code for warning in trace.job.warnings]


def test_a_folder_of_traces_nested_and_of_any_name(tmp_path: Path, cache: Path) -> None:
    job = tmp_path / "job"
    for rank, name in enumerate(("a/one.bin", "a/b/two", "three.json.gz")):
        kb.write(job / name, kb.trace(kb.training_steps(3), rank=rank, world=3))
    (job / "README.md").write_text("notes")
    (job / "truth.json").write_text('{"guilty": 2}')
    (job / "long.json").write_text(json.dumps({"text": "x" * 100_000}))
    (job / "meta.yaml").write_text("a: 1")
    (job / ".hidden.json").write_text("{")
    trace = open_trace(job, cache=cache)
    assert (trace.job.name, trace.job.world_size, trace.job.ranks) == ("job", 3, (0, 1, 2))
    assert trace.job.steps == trace.steps == (2, 3, 4)
    assert trace.job.warnings == ()
    assert trace.scan().collect().height == trace.job.operations + 9


def test_one_file_is_a_trace(tmp_path: Path, cache: Path) -> None:
    source = kb.write(tmp_path / "rank1.pt.trace.json.gz", kb.trace(kb.training_steps(2), rank=1, world=1))
    trace = open_trace(source, cache=cache)
    assert (trace.job.name, trace.job.ranks, trace.job.steps) == ("rank1", (1,), (2, 3))


def test_progress_counts_the_files_that_are_parsed(tmp_path: Path, cache: Path) -> None:
    job = kb.write_job(tmp_path / "job", [0, 1, 2])
    calls: list[tuple[int, int, str]] = []
    ranks: list[tuple[int, ...]] = []

    def progress(done: int, total: int, what: str, outcome: ImportOutcome) -> None:
        calls.append((done, total, what))
        ranks.append(outcome.info.ranks if outcome.info else ())

    open_trace(job, cache=cache, progress=progress)
    assert calls == [(1, 3, "rank0.json.gz"), (2, 3, "rank1.json.gz"), (3, 3, "rank2.json.gz")]
    assert ranks == [(0,), (1,), (2,)]
    open_trace(job, cache=cache, progress=lambda *call: calls.append(call))
    assert len(calls) == 3


def test_what_was_parsed_before_the_user_stopped_is_kept(tmp_path: Path, cache: Path) -> None:
    job = kb.write_job(tmp_path / "job", [0, 1, 2])

    def stopping(done: int, total: int, what: str, outcome: ImportOutcome) -> None:  # noqa: ARG001
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_trace(job, cache=cache, progress=stopping)
    parsed: list[str] = []
    open_trace(job, cache=cache, progress=lambda done, total, what, outcome: parsed.append(what))  # noqa: ARG005
    assert parsed == ["rank2.json.gz"]


def test_a_second_opening_gives_the_same_without_parsing(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = kb.write_job(tmp_path / "job", [0, 1])
    first = open_trace(job, cache=cache)
    monkeypatch.setattr("kair_engine.recording.opening.import_files", None)
    assert open_trace(job, cache=cache) == first


def test_a_known_job_opens_without_the_heavy_libraries(tmp_path: Path, cache: Path) -> None:
    job = kb.write_job(tmp_path / "job", [0, 1])
    open_trace(job, cache=cache)
    program = (
        "import sys; from pathlib import Path; from kair_engine.recording.opening import open_trace\n"
        "open_trace(Path(sys.argv[1]), cache=Path(sys.argv[2]))\n"
        "print([name for name in ('numpy', 'pyarrow', 'polars') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, job, cache], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert done.stdout.strip() == "[]"


def test_a_changed_file_is_parsed_again(tmp_path: Path, cache: Path) -> None:
    job = kb.write_job(tmp_path / "job", [0], count=2)
    assert open_trace(job, cache=cache).job.steps == (2, 3)
    kb.write_job(tmp_path / "job", [0], count=3)
    assert open_trace(job, cache=cache).job.steps == (2, 3, 4)


def test_equal_files_of_different_ranks_stay_different(tmp_path: Path, cache: Path) -> None:
    for rank in (0, 1):
        path = kb.write(tmp_path / "job" / f"rank{rank}.json", kb.trace(kb.training_steps(2), rank=None))
        os.utime(path, ns=(10**18, 10**18))
    trace = open_trace(tmp_path / "job", cache=cache)
    assert trace.job.ranks == (0, 1)
    assert sorted(trace.scan().collect()["rank"].unique().to_list()) == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage", ["truncated", "emptied", "removed", "flipped", "json", "json fields", "json flipped"]
)
def test_a_damaged_cache_entry_is_made_again(tmp_path: Path, cache: Path, damage: str) -> None:
    job = kb.write_job(tmp_path / "job", [0])
    first = open_trace(job, cache=cache)
    (fragment,) = first.fragments
    sidecar = fragment.with_suffix(".json")
    if damage == "truncated":
        fragment.write_bytes(fragment.read_bytes()[:-10])
    elif damage == "emptied":
        fragment.write_bytes(b"")
    elif damage == "removed":
        fragment.unlink()
    elif damage == "flipped":
        flip(fragment, fragment.stat().st_size // 2)
    elif damage == "json flipped":
        flip(sidecar, sidecar.read_bytes().index(b'"operations":') + 13)
    elif damage == "json":
        sidecar.write_text("{not json")
    else:
        sidecar.write_text(json.dumps({**json.loads(sidecar.read_text()), "body": {"ranks": "all"}}))
    again = open_trace(job, cache=cache)
    assert again == first
    assert again.scan().collect().height == first.job.operations + 3


def test_an_unwritable_cache_falls_back_to_a_temporary_one(tmp_path: Path) -> None:
    job = kb.write_job(tmp_path / "job", [0])
    (tmp_path / "file").write_text("no folder")
    trace = open_trace(job, cache=tmp_path / "file" / "cache")
    assert codes(trace) == ["cache_unwritable"]
    assert trace.scan().collect().height == trace.job.operations + 3


def test_the_cache_is_never_beside_the_traces(tmp_path: Path, cache: Path) -> None:
    job = kb.write_job(tmp_path / "job", [0, 1])
    before = sorted(job.rglob("*"))
    open_trace(job, cache=cache)
    assert sorted(job.rglob("*")) == before
    assert {path.suffix for path in (cache / "fragments").iterdir()} == {".parquet", ".json"}


@pytest.mark.slow
def test_workers_give_the_same_as_one_process(tmp_path: Path, cache: Path) -> None:
    job = kb.write_job(tmp_path / "job", [0, 1, 2])
    (job / "broken.json").write_text('{"traceEvents": [')
    (job / "other.json").write_text(json.dumps({"text": "x" * 100_000}))
    alone = open_trace(job, cache=cache)
    together = open_trace(job, cache=tmp_path / "cache2", workers=2)
    assert together.job == alone.job
    assert codes(alone) == ["unreadable_file"]


def test_importing_stops_where_nothing_can_be_written(tmp_path: Path) -> None:
    source = kb.write(tmp_path / "rank0.json", kb.trace(kb.training_steps(1)))
    with pytest.raises(UnwrittenError, match="No such file"):
        list(import_files([ImportTask(source, tmp_path / "missing" / "out.parquet")]))


def test_files_of_one_rank_are_joined_when_their_steps_differ(tmp_path: Path, cache: Path) -> None:
    for first in (2, 10):
        content = kb.trace(kb.training_steps(3, first=first), rank=0, world=1)
        kb.write(tmp_path / "job" / f"window{first}.json", content)
    trace = open_trace(tmp_path / "job", cache=cache)
    assert (trace.job.steps, codes(trace), len(trace.fragments)) == ((2, 3, 4, 10, 11, 12), [], 2)


def test_files_that_do_not_say_their_rank_are_numbered_by_name(tmp_path: Path, cache: Path) -> None:
    for name in ("beta.json", "alpha.json", "gamma.json"):
        count = {"alpha.json": 2, "beta.json": 3, "gamma.json": 4}[name]
        kb.write(tmp_path / "job" / name, kb.trace(kb.training_steps(count), rank=None))
    for _ in range(2):
        trace = open_trace(tmp_path / "job", cache=cache)
        assert trace.job.ranks == (0, 1, 2)
        steps = {rank: trace.job.step_times.rank.count(rank) for rank in (0, 1, 2)}
        assert steps == {0: 2, 1: 3, 2: 4}
        assert codes(trace)[0] == "rank_from_order"
        assert sorted(trace.scan().collect()["rank"].unique().to_list()) == [0, 1, 2]


def test_a_single_file_without_a_rank_is_rank_0(tmp_path: Path, cache: Path) -> None:
    source = kb.write(tmp_path / "trace.json", kb.trace(kb.training_steps(2), rank=None))
    trace = open_trace(source, cache=cache)
    assert (trace.job.ranks, trace.job.world_size, codes(trace)) == ((0,), 1, ["rank_from_order"])


def test_hosts_come_together(tmp_path: Path, cache: Path) -> None:
    for rank in (0, 1):
        name = f"node{rank}_42.1700000000000000000.pt.trace.json.gz"
        kb.write(tmp_path / "job" / name, kb.trace(kb.training_steps(2), rank=rank, world=2))
    assert open_trace(tmp_path / "job", cache=cache).job.hosts == {0: "node0", 1: "node1"}


def test_the_places_that_ranks_state_come_together(tmp_path: Path, cache: Path) -> None:
    for rank in (0, 1):
        groups = [{"pg_name": "1", "pg_desc": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": [0, 1]}]
        distributed = {"rank": rank, "world_size": 2, "pg_config": groups}
        content = kb.trace(kb.training_steps(2), rank=None, distributedInfo=distributed)
        kb.write(tmp_path / "job" / f"{rank}.json", content)
    layout = open_trace(tmp_path / "job", cache=cache).job.layout
    assert layout is not None
    assert (layout.pp, layout.dp, layout.pipeline_stage) == (2, None, {0: 0, 1: 1})


def test_a_step_cut_at_the_edge_is_set_aside(tmp_path: Path, cache: Path) -> None:
    for rank in (0, 1):
        events = kb.training_steps(4)
        last = max(one["ts"] for one in events if one["name"].startswith("ProfilerStep"))
        events = [one for one in events if one["ts"] < last + 150]
        kb.write(tmp_path / "job" / f"rank{rank}.json", kb.trace(events, rank=rank, world=2))
    trace = open_trace(tmp_path / "job", cache=cache)
    assert trace.steps == (2, 3, 4)
    assert codes(trace) == ["incomplete_steps"]
    assert set(trace.job.step_times.step) == {2, 3, 4, 5}
    assert trace.scan().select(pl.col("step").max()).collect().item() == 4


def test_incomplete_is_judged_against_the_rank_s_own_steps_first() -> None:
    pipeline = {(rank, step): 100 if rank < 3 else 10 for rank in range(4) for step in range(5)}
    assert incomplete_cells(pipeline) == set()
    assert incomplete_cells({**pipeline, (0, 4): 40, (3, 0): 4}) == {(0, 4), (3, 0)}
    assert incomplete_cells({(0, 0): 100, (1, 0): 100, (2, 0): 10}) == {(2, 0)}
    assert incomplete_cells({(0, 0): 10, (0, 1): 100}) == {(0, 0)}
    assert incomplete_cells({(0, 0): 10}) == set()


def test_steps_before_a_rank_did_far_more_are_whole() -> None:
    later = {(0, step): 400 for step in range(3, 10)}
    assert incomplete_cells({**later, (0, 0): 100, (0, 1): 103, (0, 2): 99}) == set()
    assert incomplete_cells({**later, (0, 0): 0, (0, 1): 0, (0, 2): 0}) == {(0, 0), (0, 1), (0, 2)}
    assert incomplete_cells({**later, (0, 1): 100, (0, 2): 30}) == {(0, 1)}


def test_no_step_in_the_middle_is_cut_off() -> None:
    """While one rank evaluates, the others run a barrier."""
    steps = {(rank, step): 100 for rank in range(3) for step in (*range(5), *range(20, 25))}
    waiting = {(1, 3): 4, (2, 3): 4, (1, 22): 4}
    assert incomplete_cells({**steps, **waiting}) == set()
    # At the edge of each row of steps, and where a file is cut off, they may be.
    assert incomplete_cells({**steps, (1, 4): 4, (1, 20): 4}) == {(1, 4), (1, 20)}
    assert incomplete_cells({**steps, **waiting}, truncated=(2,)) == {(2, 3)}


def test_each_step_that_is_set_aside_has_its_reason() -> None:
    recorded = {(rank, step): 100 for rank in range(4) for step in range(6)}
    for rank in (1, 2, 3):
        del recorded[rank, 3]
    recorded |= {(rank, 5): 10 for rank in range(4)} | {(rank, 2): 0 for rank in range(4)}
    times = StepTimes.of_rows((*cell, 0, 1000, operations) for cell, operations in recorded.items())
    (aside,) = usable_steps(times, (0, 1, 2, 3)).warnings
    assert aside.message == (
        "step 2 set aside: without operations; step 3 set aside: recorded by 1 of 4 ranks; "
        "step 5 set aside: cut off at the recording's edge"
    )


@pytest.mark.slow
def test_two_openings_at_once_do_not_disturb_each_other(tmp_path: Path, cache: Path) -> None:
    job = kb.write_job(tmp_path / "job", range(4))
    program = (
        "import sys; from pathlib import Path; from kair_engine.recording.opening import open_trace\n"
        "trace = open_trace(Path(sys.argv[1]), cache=Path(sys.argv[2])); print(trace.scan().collect().height)"
    )
    command = [sys.executable, "-c", program, str(job), str(cache)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    heights = {process.communicate(timeout=PATIENCE_S)[0].strip() for process in running}
    assert heights == {str(4 * (3 * 14 + 3))}
    assert not [path for path in (cache / "fragments").iterdir() if path.name.startswith(".")]


def test_a_folder_of_several_runs_lists_them_and_picks_none(tmp_path: Path, cache: Path) -> None:
    kb.write_job(tmp_path / "jobs" / "monday", range(2))
    kb.write_job(tmp_path / "jobs" / "tuesday", range(2))
    with pytest.raises(InputError, match=r"jobs holds 2 runs: monday \(ranks 0, 1\), tuesday \(ranks 0, 1\)") as raised:
        open_trace(tmp_path / "jobs", cache=cache)
    assert raised.value.hint == f"name one of them: {tmp_path / 'jobs' / 'monday'}"


def test_named_folders_of_two_runs_are_refused_and_those_of_one_are_a_job(tmp_path: Path, cache: Path) -> None:
    monday, tuesday = (kb.write_job(tmp_path / day, range(2)) for day in ("monday", "tuesday"))
    with pytest.raises(InputError, match="the named files hold 2 runs") as raised:
        open_sources([tuesday, monday], name="both", cache=cache)
    assert raised.value.hint == f"name one of them, or compare them: kair compare {tuesday} {monday}"
    (tmp_path / "link").symlink_to(monday)
    third = kb.write_job(tmp_path / "node1", [2], world=3)
    fourth = kb.write_job(tmp_path / "node2", [0, 1], world=3)
    for sources, ranks in (([monday, tmp_path / "link"], (0, 1)), ([third, fourth], (0, 1, 2))):
        assert open_sources(sources, name="one", cache=cache).trace.job.ranks == ranks


def test_runs_of_different_sizes_are_several(tmp_path: Path, cache: Path) -> None:
    kb.write_job(tmp_path / "jobs" / "small", [0], world=2)
    kb.write_job(tmp_path / "jobs" / "large", [1], world=4)
    with pytest.raises(InputError, match="holds 2 runs: large"):
        open_trace(tmp_path / "jobs", cache=cache)


def test_a_folder_for_each_rank_or_window_is_one_run(tmp_path: Path, cache: Path) -> None:
    for rank in range(2):
        kb.write_job(tmp_path / "job" / f"rank{rank}" / "first", [rank], world=2)
        later = kb.trace(kb.training_steps(first=20), rank=rank, world=2)
        kb.write(tmp_path / "job" / f"rank{rank}" / "later" / "t.json", later)
    opened = open_trace(tmp_path / "job", cache=cache)
    assert (opened.job.ranks, len(opened.steps)) == ((0, 1), 6)


def test_a_full_disk_is_no_reason_not_to_answer(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = kb.write_job(tmp_path / "job", [0, 1])
    write, written = FragmentWriter.write, []

    def until_full(writer: FragmentWriter, table: pa.Table) -> None:
        written.append(table)
        if len(written) > 4 and writer.path.is_relative_to(cache):
            raise OSError(28, "No space left on device")
        write(writer, table)

    monkeypatch.setattr(FragmentWriter, "write", until_full)
    trace = open_trace(job, cache=cache)
    assert [trace.fragments[0].is_relative_to(cache), trace.fragments[1].is_relative_to(cache)] == [True, False]
    (warning,) = trace.job.warnings
    assert warning.code == "cache_unwritable"
    assert "No space left on device; $KAIR_CACHE" in warning.message
    assert trace.scan().collect().height == trace.job.operations + 6
    assert list((cache / "unfinished").iterdir()) == []


def test_without_room_anywhere_the_error_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = kb.write_job(tmp_path / "job", [0])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FragmentWriter, "write", full)
    with pytest.raises(UnwritableError, match="No space left") as failure:
        open_trace(job, cache=tmp_path / "cache")
    assert failure.value.hint == "free some space there, or choose another place with $KAIR_CACHE"
    assert UnwritableError(tmp_path, PermissionError(13, "Permission denied")).hint == "choose another place"


def test_a_cache_that_others_can_write_to_is_not_used(tmp_path: Path, cache: Path) -> None:
    job = kb.write_job(tmp_path / "job", [0])
    open_trace(job, cache=cache)
    for path in (cache, cache / "fragments"):
        path.chmod(0o777)
        trace = open_trace(job, cache=cache)
        assert codes(trace) == ["cache_unwritable"]
        assert "can be written by others" in trace.job.warnings[0].message
        assert not trace.fragments[0].is_relative_to(cache)
        path.chmod(0o700)
    assert codes(open_trace(job, cache=cache)) == []


def test_the_cache_is_its_owner_s_alone(tmp_path: Path, cache: Path) -> None:
    open_trace(kb.write_job(tmp_path / "job", [0]), cache=cache)
    modes = {path.stat().st_mode & 0o777 for path in cache.rglob("*") if path.is_file()}
    assert (modes, cache.stat().st_mode & 0o777) == ({0o600}, 0o700)
    assert {path.stat().st_mode & 0o777 for path in cache.iterdir()} == {0o700}


def test_names_that_are_not_utf_8_are_read_and_shown(tmp_path: Path, cache: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    for rank in (0, 1):
        kb.write(
            Path(os.fsdecode(os.fsencode(folder) + b"/host=n\xff/rank%d.json" % rank)), kb.trace(kb.training_steps(2))
        )
    for _ in range(2):
        trace = open_trace(folder, cache=cache)
        assert trace.scan().collect().height == trace.job.operations + 2 * len(trace.fragments)
    undecodable = Path(os.fsdecode(os.fsencode(tmp_path) + b"/c\xff"))
    assert "not UTF-8" in open_trace(folder, cache=undecodable).job.warnings[0].message


def test_what_was_not_used_for_longest_makes_room(tmp_path: Path, cache: Path) -> None:
    for number in range(3):
        open_trace(kb.write_job(tmp_path / f"job{number}", [number], world=3), cache=cache)
    entries = sorted((cache / "fragments").glob("*.json"), key=lambda path: path.stat().st_mtime)
    for at, sidecar in enumerate(entries):
        for path in (sidecar, sidecar.with_suffix(".parquet")):
            os.utime(path, (10**9 + at, 10**9 + at))
    held = cache_size(cache)
    assert held.entries == 3
    assert evict(cache, held.bytes).entries == 0
    assert evict(cache, held.bytes - 1).entries == 1
    assert not entries[0].exists()
    open_trace(tmp_path / "job1", cache=cache)  # used just now: that one stays
    assert evict(cache, 0).entries == 1
    assert (clear(cache).entries, cache_size(cache).bytes) == (1, 0)


def test_what_a_killed_import_left_goes_and_what_one_at_work_has_stays(tmp_path: Path, cache: Path) -> None:
    open_trace(kb.write_job(tmp_path / "job", [0]), cache=cache)
    left, in_use = cache / "unfinished" / "left", cache / "unfinished" / "used"
    for folder in (left, in_use):
        folder.mkdir()
        (folder / "half.parquet").write_bytes(b"PAR1")
    with hold(in_use):
        tidy_cache(cache)
        assert (left.exists(), in_use.exists()) == (False, True)
        with pytest.raises(BusyError):
            clear(cache)
    tidy_cache(cache)
    assert not in_use.exists()


@pytest.mark.parametrize("anew", [False, True], ids=["nobody put one there since", "another import did"])
def test_half_an_entry_goes_with_what_else_a_killed_import_left(tmp_path: Path, cache: Path, anew: bool) -> None:
    open_trace(kb.write_job(tmp_path / "job", [0]), cache=cache)
    (fragment,) = (cache / "fragments").glob("*.parquet")
    fragment.with_suffix(".json").unlink()
    (cache / "unfinished" / "left").mkdir()
    (cache / "unfinished" / "left" / f"{fragment.stem}.moving").write_text(str(fragment.stat().st_ino))
    if anew:
        (tmp_path / "other").write_bytes(b"PAR1")
        (tmp_path / "other").replace(fragment)
    tidy_cache(cache)
    assert fragment.exists() == anew


@pytest.mark.slow
@pytest.mark.skipif(not CASES2.is_dir(), reason="needs ../shared")
def test_a_step_in_which_one_rank_evaluates_is_analysed(cache: Path) -> None:
    trace = open_trace(CASES2 / "eval_on_rank0_set_aside" / "input", cache=cache)
    assert trace.steps == tuple(range(10, 22))
    assert not {"incomplete_steps", "uneven_steps"} & set(codes(trace))
