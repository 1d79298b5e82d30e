"""The board: digests of what it asks, the rules of others, what counts as right, and its page."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from board.catalogue import Entry, Source, Truth, read_catalogue
from board.copies import NotHereError, blob_id, read_files
from board.inputs import Prepared, prepare
from board.page import Row, rendered
from board.processes import ADDRESS_SPACE_GB
from board.rules import last_arrival, nvrx_stragglers, z_outliers
from board.scoring import score
from board.tools import TOOLS, TRACELENS, Answer, ask_hta, ask_tracelens, kair_answer
from support.places import ROOT, TRACES

SLOW_RANK = Truth("ranks", "test", ranks=(2,), causes=("compute",), lost_us=1000.0)
NOBODY = Truth("job_wide", "test", causes=("contention",))
HEALTHY = Truth("healthy", "test")
LOG = Truth("since", "test", since=(8, 20))


def accused(*ranks: int, cause: str | None = None, lost_us: float | None = None) -> Answer:
    return Answer("accused", ranks, (cause,) if cause else (), lost_us=lost_us, note="a sentence")


@pytest.mark.parametrize(
    ("truth", "answer", "expected"),
    [
        (SLOW_RANK, accused(2, cause="compute"), "right"),
        (SLOW_RANK, accused(2, 3), "wrong"),
        (SLOW_RANK, accused(3), "wrong"),
        (SLOW_RANK, Answer("nobody"), "wrong"),
        (SLOW_RANK, Answer("job_wide", causes=("input",)), "wrong"),
        (SLOW_RANK, Answer("open"), "no answer"),
        (SLOW_RANK, Answer("unread"), "unread"),
        (NOBODY, Answer("job_wide", causes=("contention",)), "right"),
        (NOBODY, Answer("nobody"), "right"),
        (NOBODY, Answer("nobody", note="no straggler"), "wrong"),
        (NOBODY, accused(0), "wrong"),
        (HEALTHY, Answer("nobody"), "right"),
        (HEALTHY, Answer("open"), "no answer"),
        (HEALTHY, accused(0), "wrong"),
        (LOG, Answer("open", since=(9, 22)), "right"),
        (LOG, Answer("open", since=(9,)), "wrong"),
        (LOG, Answer("open", since=(13, 20)), "wrong"),
        (LOG, Answer("open"), "no answer"),
        (Truth("untold", "nobody"), accused(1), "untold"),
    ],
)
def test_right_is_a_guilty_rank_alone_and_an_open_answer_never_is(truth: Truth, answer: Answer, expected: str) -> None:
    assert score(truth, answer).rank == expected


def test_of_candidates_one_guilty_rank_is_enough_but_none_is_right_where_nobody_is_guilty() -> None:
    assert score(SLOW_RANK, accused(7, 2), candidates=True).rank == "right"
    assert score(HEALTHY, accused(7, 2), candidates=True).innocent


def test_a_price_is_scored_where_rank_and_cause_are_right_alone() -> None:
    assert score(SLOW_RANK, accused(2, cause="compute", lost_us=1200.0)).price_error == pytest.approx(0.2)
    assert score(SLOW_RANK, accused(2, cause="input", lost_us=1000.0)).price_error is None
    assert score(SLOW_RANK, accused(1, cause="compute", lost_us=1000.0)).price_error is None


def test_last_arrival_names_who_came_last_most_often_and_the_lowest_of_equals() -> None:
    assert last_arrival([3, 1, 3, 2]) == (3,)
    assert last_arrival([5, 1]) == (1,)
    assert last_arrival([]) == ()


def test_z_scores_cannot_accuse_anybody_of_ten_ranks_but_do_of_eleven() -> None:
    # One of n ranks that differs has z = (n − 1)/√n · √(n/(n − 1)) = √(n − 1): 3 of ten, 3.16 of eleven.
    assert z_outliers(dict.fromkeys(range(9), 100.0) | {9: 1000.0}) == ()
    assert z_outliers(dict.fromkeys(range(10), 100.0) | {10: 1000.0}) == (10,)
    assert z_outliers({0: 5.0, 1: 5.0}) == ()


def test_nvrx_names_ranks_below_the_threshold_slowest_first() -> None:
    assert nvrx_stragglers({0: 1.0, 1: 0.7, 2: 0.5, 3: 0.75}, 0.75) == (2, 1)


def test_digests_are_gits_and_other_contents_are_refused(tmp_path: Path) -> None:
    copy = tmp_path / "owner" / "name"
    copy.mkdir(parents=True)
    (copy / "a.log").write_bytes(b"hello\n")
    # What `git hash-object` says of these six bytes.
    assert blob_id(b"hello\n") == "ce013625030ba8dba906f756967f9e9ca394464a"
    assert read_files(entry("ce013625030ba8dba906f756967f9e9ca394464a"), tmp_path) == {"a.log": b"hello\n"}
    with pytest.raises(NotHereError, match="is not that of"):
        read_files(entry(blob_id(b"other\n")), tmp_path)
    with pytest.raises(NotHereError, match="no copy of"):
        read_files(entry("0" * 40), tmp_path / "owner")


def test_files_are_read_from_a_bare_git_directory(tmp_path: Path) -> None:
    copy = tmp_path / "owner" / "name"
    subprocess.run(["git", "init", "--quiet", "--bare", str(copy)], check=True)
    add = ["git", "-C", str(copy), "hash-object", "-w", "--stdin"]
    subprocess.run(add, input=b"hello\n", check=True, capture_output=True)
    assert read_files(entry(blob_id(b"hello\n")), tmp_path) == {"a.log": b"hello\n"}
    with pytest.raises(NotHereError, match="has no"):
        read_files(entry(blob_id(b"other\n")), tmp_path)


def entry(digest: str) -> Entry:
    return Entry("one", "group", "log", HEALTHY, Source("owner/name", "c0ffee00", "MIT"), {"a.log": digest}, "a.log")


def test_what_is_written_for_tools_keeps_the_folders_below_the_common_one(tmp_path: Path) -> None:
    prepared = prepare(Entry("one", "group", "csv", HEALTHY), {"x/y/a/1": b"1", "x/y/b/1": b"2"}, tmp_path)
    assert [(prepared.recording / name / "1").read_bytes() for name in "ab"] == [b"1", b"2"]


def test_every_recording_is_pinned_and_says_who_told_its_truth() -> None:
    catalogue = read_catalogue()
    assert len({one.name for one in catalogue}) == len(catalogue)
    groups = Counter(one.group for one in catalogue)
    assert groups["PipeMorph"] == 61
    assert groups["ByteDance"] == 3
    for one in catalogue:
        assert one.source is None or (one.files and len(one.source.commit) == 40)
        assert all(len(digest) == 40 for digest in one.files.values())
        assert one.made or one.source
        assert one.truth is None or one.truth.told_by


def test_kairs_data_become_an_answer() -> None:
    finding = {"ranks": [3], "cause": "input", "time_lost_us_per_step": 5.0}
    shared = {"ranks": [], "cause": "contention", "time_lost_us_per_step": 2.0}
    data = {"verdict": "straggler", "findings": [finding, shared], "log": None, "summary": "s"}
    assert kair_answer(data) == Answer("accused", (3,), ("input", "contention"), (), 7.0, "s")


def test_the_page_shows_what_kair_got_wrong_first_and_counts_no_untold_truth() -> None:
    rows = [
        row("fine", SLOW_RANK, accused(2, cause="compute")),
        row("open", SLOW_RANK, Answer("open")),
        row("bad", SLOW_RANK, accused(1, cause="compute")),
        row("secret", Truth("untold", "nobody"), accused(1)),
        row("ours", Truth("job_wide", "Kair's authors", causes=("contention",), by_kair=True), accused(1)),
    ]
    page = rendered(rows, ["gone: no copy"])
    lines = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("|")]
    known = ("fine", "open", "bad", "secret", "ours")
    assert [name for name in lines if name in known] == ["bad", "ours", "open", "fine", "secret"]
    others, _, own = page.partition("## Truth from Kair's authors")
    assert "right rank, of 3" in others
    assert "nobody guilty, of 0" in others
    assert "nobody guilty, of 1" in own
    assert "- skipped: gone: no copy" in page


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_hta_is_asked_in_its_own_environment_and_not_of_other_formats(tmp_path: Path) -> None:
    traces = Prepared(tmp_path, (tmp_path / "rank0_trace.json", tmp_path / "rank1_trace.json"), HEALTHY)
    noisy = program(tmp_path / "hta", "echo 'a line of its own'; echo 'answer: [3, 1]'")
    assert (ask_hta(traces, noisy).said, ask_hta(traces, noisy).ranks) == ("accused", (3, 1))
    broken = program(tmp_path / "broken", "echo 'ValueError: no kernels' >&2; exit 1")
    assert (ask_hta(traces, broken).said, ask_hta(traces, broken).note) == ("unread", "ValueError: no kernels")
    assert ask_hta(traces, None).said == "not run"
    assert ask_hta(Prepared(tmp_path, (), HEALTHY), noisy).said == "unread"


def test_tracelens_straggler_is_the_first_row_of_its_summary(tmp_path: Path) -> None:
    traces = Prepared(tmp_path, (tmp_path / "rank0_trace.json.gz", tmp_path / "rank1_trace.json.gz"), HEALTHY)
    table = 'printf "rank,total_wait_time_us\\n5,1\\n2,9\\n" > "$6/straggler_summary.csv"; echo "$@" > "$0.asked"'
    tool = program(tmp_path / TRACELENS, table)
    assert ask_tracelens(traces, tmp_path / "python").ranks == (5,)
    asked = tool.with_name(f"{TRACELENS}.asked").read_text()
    assert f"--trace_pattern {tmp_path}/rank*_trace.json.gz --world_size 2 " in asked


def test_what_runs_out_of_memory_is_stopped_and_nothing_is_unlimited(tmp_path: Path) -> None:
    greedy = f"'{sys.executable}' -c 'bytearray({ADDRESS_SPACE_GB + 1} << 30)'"
    traces = Prepared(tmp_path, (tmp_path / "rank0_trace.json",), HEALTHY)
    answer = ask_hta(traces, program(tmp_path / "greedy", greedy))
    assert (answer.said, answer.note) == ("stopped", f"more than {ADDRESS_SPACE_GB} GB")


@pytest.mark.slow
def test_a_fetched_recording_is_asked_and_one_that_is_not_here_is_skipped(tmp_path: Path) -> None:
    shared = TRACES / "bytedance"
    if not shared.is_dir():
        pytest.skip("the shared traces are absent")
    checkout = tmp_path / "ByteDance-Seed" / "StragglerAnalysis"
    checkout.mkdir(parents=True)
    (checkout / "data").symlink_to(shared)
    command = [sys.executable, "-m", "validation.board", "--copies", str(tmp_path), "--only", "ByteDance"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    cells = {line.split("|")[1].strip(): line.split("|") for line in done.stdout.splitlines() if "|" in line}
    assert cells["ByteDance ST"][3].strip() == "nobody: stage imbalance"
    assert "ByteDance AR" not in cells
    assert "skipped: ByteDance AR: the copy of ByteDance-Seed/StragglerAnalysis has no data/trace-AR" in done.stderr


def row(name: str, truth: Truth, kair: Answer) -> Row:
    others = dict.fromkeys(TOOLS[1:], Answer("not run"))
    answers = {"Kair": kair, **others}
    scores = {tool: score(truth, answer) for tool, answer in answers.items()}
    source = Source("owner/name", "c0ffee00", "MIT")
    return Row(Entry(name, "group", "log", truth, source), truth, answers, scores)
