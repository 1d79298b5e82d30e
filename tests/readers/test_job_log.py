"""Time-outs of NCCL's watchdog in logs, as several versions of PyTorch word them: the same verdicts as of dumps."""

import shutil
from pathlib import Path

import pytest
from support.cli_samples import kair
from support.hang_texts import caught, failed, failed_in_2_4, signalled, timed_out
from support.hangs import Call, Hang
from support.places import SAMPLES

from kair_engine.errors import InputError
from kair_engine.readers.formats import NotATraceError
from kair_engine.readers.job_log import read_job_log
from kair_engine.recording.opening import open_trace
from kair_engine.results.triage import TriageResult
from kair_engine.triage.analysis import triage


def answer(place: Path, *lines: str, name: str = "job.log") -> TriageResult:
    place.mkdir(exist_ok=True)
    (place / name).write_text("\n".join(lines) + "\n")
    return triage(open_trace(place / name, cache=place / "cache"))


def test_who_did_not_call_what_the_others_wait_in(tmp_path: Path) -> None:
    result = answer(tmp_path, "world_size=8", *timed_out((0, 1, 2, 3, 4, 6, 7)), signalled(5))
    (finding,) = result.findings
    assert (result.verdict, finding.ranks, finding.operator) == ("straggler", (5,), "all_reduce")
    assert finding.evidence[0].figures == {"sequence": 808, "waiting": 7, "members": 8}
    assert "workspace/train.py:120 step" in {one.about for one in finding.evidence if one.kind == "called_at"}


@pytest.mark.parametrize("line", [failed, failed_in_2_4])
def test_the_one_rank_that_reports_nothing(line: object, tmp_path: Path) -> None:
    assert callable(line)
    reports = [text for rank in range(7) for text in (caught(rank), line(rank))]
    (finding,) = answer(tmp_path, "torchrun ... nranks 8 ...", *reports).findings
    assert (finding.ranks, finding.evidence[0].kind) == ((7,), "no_report")


def test_who_called_with_another_size(tmp_path: Path) -> None:
    reports = [line for rank in range(8) for line in (caught(rank, elements=9 if rank == 3 else 4096), failed(rank))]
    (finding,) = answer(tmp_path, "world_size: 8", *reports).findings
    assert (finding.ranks, finding.evidence[0].kind) == ((3,), "other_call")


def test_all_are_in_it_and_how_many_there_are_decides_what_that_means(tmp_path: Path) -> None:
    known = answer(tmp_path / "known", "WORLD_SIZE=4", *timed_out(range(4)))
    assert (known.verdict, known.findings[0].ranks) == ("job_wide", ())
    unknown = answer(tmp_path / "unknown", *timed_out(range(4)))
    assert (unknown.verdict, [one.code for one in unknown.warnings]) == ("inconclusive", ["members_untold"])


def test_reports_of_different_groups_accuse_nobody_of_the_other_group(tmp_path: Path) -> None:
    pairs = ((0, "1"), (1, "1"), (2, "2"), (3, "2"))
    groups = {rank: f"PG ID 1 PG GUID {name}" for rank, name in pairs}
    reports = [
        line
        for rank, group in groups.items()
        for line in (caught(rank, number=rank // 2 + 5), failed(rank, number=rank // 2 + 5, group=group))
    ]
    result = answer(tmp_path, "world_size=4", *reports)
    assert (result.verdict, result.findings) == ("inconclusive", ())


def test_reports_of_untold_groups_of_different_calls_leave_it_open(tmp_path: Path) -> None:
    reports = [caught(rank, number=100 + rank).partition("]:")[2] for rank in range(3)]
    result = answer(tmp_path, *reports)
    assert (result.verdict, [one.code for one in result.warnings]) == ("inconclusive", ["group_untold"])


def test_sends_whose_other_end_the_log_does_not_tell(tmp_path: Path) -> None:
    result = answer(tmp_path, "world_size=2", caught(0, operation="SEND"), failed(0), signalled(1))
    assert (result.verdict, [one.code for one in result.warnings]) == ("inconclusive", ["transfers_open"])


def test_of_a_job_that_was_started_again_the_last_attempt_counts(tmp_path: Path) -> None:
    again = "[default] Worker group FAILED. 3/3 attempts left; will restart worker group"
    first = [line for rank in range(4) for line in (caught(rank, number=900), failed(rank, number=900))]
    result = answer(tmp_path, "world_size=4", *first, again, *timed_out((0, 1, 2)), signalled(3))
    assert [one.ranks for one in result.findings] == [(3,)]


def test_a_folder_with_a_log_of_each_rank(tmp_path: Path) -> None:
    for rank in range(4):
        folder = tmp_path / "logs" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        lines = ["world_size=4", *([signalled(rank)] if rank == 2 else timed_out([rank]))]
        (folder / "stderr.log").write_text("\n".join(lines))
        (folder / "stdout.log").write_text("step 1 loss 2.0\n")
    result = triage(open_trace(tmp_path / "logs", cache=tmp_path / "cache"))
    assert [one.ranks for one in result.findings] == [(2,)]


def test_dumps_go_before_logs_which_tell_the_ranks_without_one(tmp_path: Path) -> None:
    calls = [Call("0", "all_reduce", 120)] * 4
    one = Hang("", {"0": ("default_pg", (0, 1, 2, 3))}, [calls, calls, calls[:2], calls], (2,), "", 0).run()
    folder = one.write(tmp_path / "job", "2.10", ranks=(0, 1, 3))
    (folder / "job.log").write_text("\n".join((signalled(2, last=2), *timed_out((0, 1)))))
    trace = open_trace(folder, cache=tmp_path / "cache")
    (finding,) = triage(trace).findings
    assert (trace.job.format, trace.job.ranks, finding.ranks) == ("flight_recorder", (0, 1, 2, 3), (2,))
    assert finding.evidence[0].kind == "not_arrived"
    (warning,) = trace.job.warnings
    assert (warning.code, warning.message) == (
        "calls_from_log",
        "the calls are told by 3 Flight Recorder dumps, those of rank 2 by the log",
    )


def test_a_log_beside_traces_changes_nothing(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "slow_host", tmp_path / "job")
    (tmp_path / "job" / "train.log").write_text("\n".join(timed_out(range(4))))
    trace = open_trace(tmp_path / "job", cache=tmp_path / "cache")
    assert (trace.job.format, trace.job.progress) == ("kineto", {})


def test_what_is_recognised_and_not_read_has_its_way_out(tmp_path: Path) -> None:
    nccl = tmp_path / "nccl.log"
    nccl.write_text("host:1:2 [0] NCCL INFO comm 0x1 rank 0 nranks 8 cudaDev 0 - Init COMPLETE\n")
    with pytest.raises(NotATraceError, match="without a time-out") as found:
        read_job_log(nccl, tmp_path / "out.parquet")
    assert "ncclras" in (found.value.hint or "")
    said = kair("triage", str(tmp_path))
    assert (said.status, "ncclras" in said.err, said.err.count("\n")) == (3, True, 2)
    plain = tmp_path / "notes.txt"
    plain.write_text("nothing\n")
    with pytest.raises(NotATraceError):
        read_job_log(plain, tmp_path / "out.parquet")
    stacks = tmp_path / "stacks.txt"
    stacks.write_text('Process 123: python train.py\nPython v3.12.4 (/usr/bin/python3)\n\nThread 123 (active): "M"\n')
    with pytest.raises(InputError, match="py-spy"):
        open_trace(stacks, cache=tmp_path / "cache")
    refused = kair("triage", str(stacks))
    assert (refused.status, refused.err.count("\n"), "hint:" in refused.err) == (3, 2, True)


def test_names_in_a_log_reach_the_terminal_as_text(tmp_path: Path) -> None:
    evil = "\x1b[31mALLREDUCE\x1b[0m"
    lines = [line for rank in (0, 1, 2) for line in (caught(rank, operation=evil), failed(rank))]
    (tmp_path / "job.log").write_text("\n".join(("world_size=4", *lines, signalled(3))))
    outcome = kair("triage", str(tmp_path / "job.log"))
    assert outcome.status == 0 and "\x1b" not in outcome.out + outcome.err
    assert outcome.out.startswith("straggler: rank 3 ")


def test_lines_that_are_damaged_are_passed_over(tmp_path: Path) -> None:
    lines = ["world_size=4", caught(0)[:150], "[rank" + "9" * 40 + "]:" + caught(1), failed(0)[:120], "#0 x from y:1"]
    result = answer(tmp_path, *lines, *timed_out((0, 1, 2)), signalled(3), "\xff" * 10)
    assert [one.ranks for one in result.findings] == [(3,)]
