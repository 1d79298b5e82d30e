"""Flight Recorder dumps: who has not arrived at which collective, from what torch really dumped."""

import json
import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.answers import recorded, triaged
from support.cli_samples import kair
from support.places import RECORDINGS

from kair_engine.errors import InputError
from kair_engine.readers.flight_recorder import read_flight_recorder
from kair_engine.readers.plain_pickle import NotPlainError, load_plain
from kair_engine.recording.opening import open_trace
from kair_engine.triage.analysis import triage

DUMPS = RECORDINGS / "flight_recorder"


@pytest.mark.parametrize("name", ["hang", "hang_pickled"])
def test_a_rank_that_stopped_is_named_with_the_collective(name: str) -> None:
    result = triaged(DUMPS / name)
    (finding,) = result.findings
    assert (result.verdict, finding.cause, finding.ranks, finding.operator) == ("straggler", "hang", (2,), "all_gather")
    absent, *where, last, idle = finding.evidence
    assert (absent.kind, absent.ranks) == ("not_arrived", (2,))
    assert absent.figures == {"sequence": 4, "waiting": 3, "members": 4}
    assert (last.kind, last.about, last.figures) == ("last_completed", "all_reduce", {"sequence": 3})
    assert (idle.kind, idle.ranks, {one.kind for one in where} - {"called_at"}) == ("in_no_call", (2,), set())
    assert [row.rank for row in result.ranking if row.flagged] == [2]
    job = recorded(DUMPS / name).job
    assert (job.format, job.ranks, job.world_size, job.steps, job.warnings) == (
        "flight_recorder",
        (0, 1, 2, 3),
        4,
        (),
        (),
    )


def test_a_rank_that_called_something_else() -> None:
    (finding,) = triaged(DUMPS / "other").findings
    assert finding.ranks == (2,)
    assert (finding.evidence[0].kind, finding.evidence[0].about) == (
        "other_call",
        "broadcast where the others called all_gather, in process group 0 (default_pg)",
    )


def test_who_waits_in_another_group_is_not_accused() -> None:
    (finding,) = triaged(DUMPS / "groups").findings
    assert finding.ranks == (2,)
    absences = [one for one in finding.evidence if one.kind == "not_arrived"]
    assert [one.figures["waiting"] for one in absences] == [2, 1]


def test_nobody_is_accused_where_all_are_through() -> None:
    result = triaged(DUMPS / "healthy")
    assert (result.verdict, result.findings) == ("no_straggler", ())


def copied(folder: Path, name: str, ranks: tuple[int, ...]) -> Path:
    folder.mkdir()
    for rank in ranks:
        shutil.copy(DUMPS / name / f"rank{rank}.json", folder)
    return folder


def test_a_rank_without_a_dump_is_the_one_that_is_missing(tmp_path: Path) -> None:
    trace = open_trace(copied(tmp_path / "job", "hang", (0, 1, 3)), cache=tmp_path / "cache")
    (finding,) = triage(trace).findings
    assert (finding.ranks, finding.evidence[0].kind) == ((2,), "no_dump")
    assert [warning.code for warning in trace.job.warnings] == ["missing_ranks"]


def test_dumps_of_some_who_wait_for_nothing_leave_it_open(tmp_path: Path) -> None:
    trace = open_trace(copied(tmp_path / "job", "healthy", (0, 3)), cache=tmp_path / "cache")
    result = triage(trace)
    assert (result.verdict, [warning.code for warning in result.warnings]) == ("inconclusive", ["dumps_missing"])


def test_a_collective_that_nobody_leaves_accuses_nobody(tmp_path: Path) -> None:
    folder = copied(tmp_path / "job", "hang", (0, 1, 3))
    for rank in (0, 1, 3):
        (folder / f"rank{rank}.json").rename(folder / f"rank{min(rank, 2)}.json")
    result = triage(open_trace(folder, cache=tmp_path / "cache"))
    (finding,) = result.findings
    assert (result.verdict, finding.ranks, finding.seen_on) == ("job_wide", (), (0, 1, 2))
    assert finding.evidence[0].kind == "all_arrived"


def nccl(folder: Path, rank: int, *, called: int, completed: int) -> None:
    """A dump as NCCL's groups write it: members listed, states seen on the device, numbers as numbers."""
    calls: list[dict[str, Any]] = [
        {
            "pg_id": 0,
            "process_group": ["0", "default_pg"],
            "collective_seq_id": number,
            "p2p_seq_id": 0,
            "profiling_name": "nccl:all_reduce",
            "time_created_ns": 1_700_000_000_000_000_000 + number,
            "input_sizes": [[8]],
            "output_sizes": [[8]],
            "state": "completed" if number <= completed else "started",
            "retired": number <= completed,
            "is_p2p": False,
        }
        for number in range(1, called + 1)
    ]
    dump = {
        "version": "2.4",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}},
        "pg_status": {"0": {"last_enqueued_collective": called, "last_completed_collective": completed}},
        "entries": calls,
    }
    (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))


def test_nccl_s_dumps_and_what_is_said_of_them(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    for rank, (called, completed) in enumerate(((9, 8), (9, 8), (8, 8))):
        nccl(folder, rank, called=called, completed=completed)
    outcome = kair("triage", str(folder), "--fail-on", "straggler", "--no-color")
    assert outcome.status == 10
    assert outcome.out.splitlines()[0] == ("straggler: rank 2 (hang, the job is stuck at all_reduce number 9)")
    assert "rank 2 has not called all_reduce number 9 of process group 0 (default_pg)" in outcome.out
    assert "the last collective that all members of that group finished is number 8, all_reduce" in outcome.out
    refused = kair("localize", str(folder))
    assert (refused.status, "kair triage says who has not arrived" in refused.err) == (2, True)


@pytest.mark.parametrize(("cut", "ranks"), [(0, (2,)), (2, (2,)), (1, (2,))])
def test_a_dump_that_is_cut_tells_how_far_its_rank_came_by_its_status(
    cut: int, ranks: tuple[int, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    for rank, (called, completed) in enumerate(((9, 8), (9, 8), (8, 8))):
        nccl(folder, rank, called=called, completed=completed)
    path = folder / f"nccl_trace_rank_{cut}"
    path.write_bytes(path.read_bytes()[:-300])
    trace = open_trace(folder, cache=tmp_path / "cache")
    assert [finding.ranks for finding in triage(trace).findings] == [ranks]
    assert [warning.code for warning in trace.job.warnings] == ["truncated_file"]


def test_a_dump_that_is_cut_before_its_status_leaves_it_open(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    for rank, (called, completed) in enumerate(((9, 8), (9, 8), (8, 8))):
        nccl(folder, rank, called=called, completed=completed)
    path = folder / "nccl_trace_rank_2"
    for size in (0, 10, 60):
        path.write_bytes(path.read_bytes()[:size])
        result = triage(open_trace(folder, cache=tmp_path / "cache"))
        assert (result.verdict, [warning.code for warning in result.warnings]) == ("inconclusive", ["who_is_missing"])


class _Runs:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (print, ("run",))


@pytest.mark.parametrize("protocol", range(6))
def test_plain_pickles_are_read_and_no_others(protocol: int) -> None:
    value = {"entries": [{"a": 1, "b": [1.5, None, True, "text", -(10**12)], "c": ("x", (), (1, 2, 3, 4))}], "d": {}}
    value["shared"] = [value["d"], value["d"]]
    assert load_plain(pickle.dumps(value, protocol=protocol)) == value
    for hostile in (_Runs(), {1, 2}, Path("x"), b"bytes" if protocol > 2 else _Runs()):
        with pytest.raises(NotPlainError):
            load_plain(pickle.dumps({"entries": [hostile]}, protocol=protocol))


def test_a_pickle_that_would_run_something_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "nccl_trace_rank_0"
    source.write_bytes(pickle.dumps({"pg_config": {}, "entries": [_Runs()]}, protocol=2))
    with pytest.raises(InputError, match="more than plain values") as found:
        read_flight_recorder(source, tmp_path / "out.parquet")
    assert "JSON" in (found.value.hint or "")
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_damaged_dumps_give_an_answer_or_one_line(tmp_path: Path) -> None:
    chance, refused = random.Random(7), 0
    contents = [(DUMPS / "hang" / "rank0.json").read_bytes(), (DUMPS / "hang_pickled" / "trace_rank_0").read_bytes()]
    odd = json.dumps({"entries": [1, {"process_group": 3, "collective_seq_id": "x"}], "pg_status": [], "pg_config": 4})
    for text in (odd.encode(), *contents * 150):
        damaged = bytearray(text)
        for _ in range(chance.randrange(4)):
            damaged[chance.randrange(2, len(damaged))] = chance.randrange(256)
        (tmp_path / "rank0").write_bytes(damaged[: chance.randrange(1, len(damaged))] if text[:3] == b"x" else damaged)
        try:
            read_flight_recorder(tmp_path / "rank0", tmp_path / "out.parquet")
        except InputError as error:
            assert "\n" not in str(error)
            refused += 1
    assert 0 < refused < 300
