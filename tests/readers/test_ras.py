"""What NCCL's RAS prints of a job: text that lists outliers alone, and JSON that lists all."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.cli_samples import kair
from support.hang_texts import HEAD, NONE, OF_ALL, mismatch, process

from kair_engine.errors import InputError
from kair_engine.recording.opening import open_trace
from kair_engine.results.triage import TriageResult
from kair_engine.triage.analysis import triage


def answer(folder: Path, text: str) -> TriageResult:
    folder.mkdir(exist_ok=True)
    (folder / "ras.txt").write_text(text)
    return triage(open_trace(folder / "ras.txt", cache=folder / "cache"))


def test_the_ranks_that_are_behind_are_named_though_only_the_others_are_listed(tmp_path: Path) -> None:
    counts = ("30 ranks have launched up to operation 640", "2 ranks have launched up to operation 641")
    result = answer(tmp_path, HEAD + OF_ALL + NONE + mismatch(*counts, process(12), process(13)))
    (finding,) = result.findings
    assert (result.verdict, finding.ranks) == ("straggler", (*range(12), *range(14, 32)))
    assert (finding.operator, finding.evidence[0].figures) == (
        "all_gather",
        {"sequence": 641, "waiting": 2, "members": 32},
    )


def test_one_rank_behind_in_its_own_line(tmp_path: Path) -> None:
    counts = (
        "31 ranks have launched up to operation 12",
        "Rank 7 has launched up to operation 11 -- GPU 7 managed by x",
    )
    (finding,) = answer(tmp_path, HEAD + OF_ALL + NONE + mismatch(*counts, kind="AllReduce")).findings
    assert (finding.ranks, finding.operator) == ((7,), "all_reduce")


def test_a_rank_that_launched_something_else(tmp_path: Path) -> None:
    gather = ("31 ranks have launched up to operation 5", "Rank 3 has launched up to operation 4 -- GPU 3 managed by x")
    reduce = ("31 ranks have launched up to operation 8", "Rank 3 has launched up to operation 9 -- GPU 3 managed by x")
    text = mismatch(*gather) + mismatch(*reduce, kind="AllReduce").partition("\n")[2]
    (finding,) = answer(tmp_path, HEAD + OF_ALL + NONE + text).findings
    assert finding.ranks == (3,)
    assert "other_call" in {one.kind for one in finding.evidence}


def test_a_process_that_does_not_answer(tmp_path: Path) -> None:
    row = "    0         1         4       7-8        32        32   RUNNING  INCOMPLETE\n"
    lost = "#0-0 (cf264af53edbe986) INCOMPLETE\n  Missing communicator data from 1 rank\n  The missing rank: 21\n"
    outcome = answer(tmp_path, f"{HEAD}{row}\nErrors\n======\n\n{lost}\nWarnings\n========\n\n")
    (finding,) = outcome.findings
    assert (finding.ranks, finding.evidence[0].kind) == ((21,), "unreachable")


def test_classes_of_which_nobody_is_listed_leave_it_open(tmp_path: Path) -> None:
    counts = ("20 ranks have launched up to operation 7", "12 ranks have launched up to operation 6")
    result = answer(tmp_path, HEAD + OF_ALL + NONE + mismatch(*counts))
    assert (result.verdict, [one.code for one in result.warnings]) == ("inconclusive", ["ranks_untold"])


def test_ranks_of_a_smaller_communicator_are_not_taken_for_the_job_s(tmp_path: Path) -> None:
    row = "    0         8         4         1         4        32   RUNNING  MISMATCH\n"
    counts = ("3 ranks have launched up to operation 7", f"Rank 2 has launched up to operation 6 -- {process(2)[10:]}")
    result = answer(tmp_path, HEAD + row + NONE + mismatch(*counts, name="#0-3 (aa)"))
    assert (result.verdict, result.findings) == ("inconclusive", ())


def test_a_job_whose_ranks_have_launched_as_much_is_not_said_to_be_well(tmp_path: Path) -> None:
    result = answer(tmp_path, HEAD + OF_ALL.replace("MISMATCH", "OK") + NONE)
    assert (result.verdict, [one.code for one in result.warnings]) == ("inconclusive", ["completion_untold"])


def rank_of(number: int, device: int, *, reduced: int) -> dict[str, Any]:
    counts = {"Broadcast": 0, "AllGather": 3, "AllReduce": reduced}
    return {"rank": number, "host": "10.0.0.1", "pid": 100 + device, "nvml_dev": device, "collective_counts": counts}


def communicators(*behind: int) -> dict[str, Any]:
    of_all = [rank_of(rank, rank, reduced=5) for rank in range(8)]
    odd = [rank_of(rank, 2 * rank + 1, reduced=8 if 2 * rank + 1 in behind else 9) for rank in range(4)]
    told = [
        {"hash": "0xae", "size": 8, "ranks": of_all, "missing_ranks": []},
        {"hash": "0xb7", "size": 4, "ranks": odd, "missing_ranks": []},
    ]
    return {"nccl_version": "2.29.1", "communicators_count": 2, "communicators": told, "ras": {"timeouts_count": 0}}


def test_json_translates_the_ranks_of_a_smaller_communicator(tmp_path: Path) -> None:
    (finding,) = answer(tmp_path, json.dumps(communicators(5))).findings
    assert (finding.ranks, finding.operator) == ((5,), "all_reduce")
    assert finding.evidence[0].figures["members"] == 4


def test_json_that_is_cut_off_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "ras.json").write_text(json.dumps(communicators(5))[:-200])
    with pytest.raises(InputError, match="cut off"):
        open_trace(tmp_path / "ras.json", cache=tmp_path / "cache")
    refused = kair("triage", str(tmp_path / "ras.json"))
    assert (refused.status, "ncclras" in refused.err) == (3, True)
