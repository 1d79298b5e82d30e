"""`kair whatif` of profiler recordings through the command line: fixes, stores, and recordings that are not whole."""

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import kineto_builder as kb
from support.cli_samples import Outcome, assert_valid, kair, store_variables, whatif
from support.places import SAMPLES

from kair_engine.causes import CAUSES

OPERATOR = str(SAMPLES / "slow_operator")
STAGES = str(SAMPLES / "pipeline_slow_operator")
HOSTS = str(SAMPLES / "slow_host")


pytestmark = pytest.mark.usefixtures("own_places")


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_variables(monkeypatch, tmp_path)


def answered(outcome: Outcome, *codes: str) -> dict[str, Any]:
    """The data of an answer with warnings of just these kinds."""
    assert outcome.status == 0, outcome.err
    document = json.loads(outcome.out)
    assert_valid(document, "whatif")
    assert sorted(warning["code"] for warning in document["warnings"]) == sorted(codes)
    data: dict[str, Any] = document["data"]
    return data


def saved(job: str, *fixes: str) -> list[float]:
    """What each fix saves per step, µs."""
    asked = [part for fix in fixes for part in ("--fix", fix)]
    data = json.loads(kair("whatif", job, "--step", "4-9", "--json", *asked).out)["data"]
    assert [one["fix"] for one in data["fixes"]] == [*fixes, *(["all together"] if len(fixes) > 1 else [])]
    return [one["saved_us"] for one in data["fixes"]]


def test_fixes_by_rank_operator_and_kind_can_be_joined_and_repeated() -> None:
    rank, operator, kind, joined, nobody, together = saved(
        OPERATOR,
        "rank=2",
        "op=kair_sample::m*",
        "kind=compute",
        "rank=2+op=kair_sample::mlp+kind=compute",
        "rank=0,1,3",
    )
    assert 15_000 < joined <= min(rank, operator, kind)
    assert nobody < 0.2 * joined
    assert together >= max(rank, operator, kind)


@pytest.mark.slow
def test_fixes_by_host_and_stage() -> None:
    slow, other, part = saved(HOSTS, "host=node1", "host=node0", "host=node1+rank=4")[:3]
    assert slow > 5 * other
    assert part < slow
    first, last = saved(STAGES, "stage=0", "stage=1")[:2]
    assert first > 5 * last


@pytest.mark.slow
def test_an_imported_job_gives_the_same_answer_as_its_traces() -> None:
    fixes = ("--fix", "rank=1", "--fix", "stage=0", "--fix", "kind=compute")
    direct = json.loads(kair("whatif", STAGES, "--json", *fixes).out)
    assert kair("import", STAGES, "--job", "again").status == 0
    imported = json.loads(kair("whatif", "again", "--json", *fixes).out)
    assert imported["data"] == direct["data"]
    assert imported["warnings"] == direct["warnings"]


@pytest.mark.slow
def test_an_imported_job_has_the_same_timeline_as_its_traces(tmp_path: Path) -> None:
    assert kair("import", STAGES, "--job", "again").status == 0
    paths = [tmp_path / "direct.json", tmp_path / "imported.json"]
    for job, path in zip((STAGES, "again"), paths, strict=True):
        assert kair("whatif", job, "--step", "5", "--timeline", str(path)).status == 0
    slices = [
        sorted((one["pid"], one["tid"], one["ts"], one["dur"], one["name"]) for one in events if one["ph"] == "X")
        for events in (json.loads(path.read_text())["traceEvents"] for path in paths)
    ]
    assert slices[0] == slices[1]


@pytest.mark.slow
@pytest.mark.parametrize("width", [None, "80"])
@pytest.mark.parametrize("sample", sorted(path.parent.name for path in SAMPLES.glob("*/truth.json")))
def test_people_read_what_a_machine_reads(sample: str, width: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = json.loads((SAMPLES / sample / "truth.json").read_text())
    if width:
        monkeypatch.setenv("COLUMNS", width)
    outcome = kair("whatif", str(SAMPLES / sample), "--ascii", "--no-color", terminal=width is not None)
    assert outcome.status == 0
    lines = outcome.out.splitlines()
    assert outcome.out.isascii()
    assert all(len(line) <= 80 for line in lines) or width is None
    assert not [line for line in lines if re.search(r"\s0\.0 %$", line)]
    if truth["ranks"] and width is None:
        costs = [line.split()[1] for line in lines if line.startswith("rank ") and line.split()[1].isdecimal()]
        assert {int(rank) for rank in costs[: len(truth["ranks"])]} == set(truth["ranks"])
        kinds = lines[lines.index(next(line for line in lines if line.startswith("kind of time"))) + 2]
        assert kinds.split()[0] == CAUSES[truth["cause"]].fix_kind
        of_host = truth["fault"] in ("slow_host", "upgrade")
        named = "host node1" if of_host else f"rank {truth['ranks'][0]}"
        assert named in lines[0]


def test_one_worker_has_no_peers_to_be_held_against(tmp_path: Path) -> None:
    kb.write(tmp_path / "job" / "rank0.json", kb.trace(kb.training_steps(3)))
    data = answered(kair("whatif", str(tmp_path / "job"), "--json"), "no_peers", "simulation_error")
    assert (data["slowdown"], data["by_rank"], data["m_w"]) == (1, {}, None)


def test_ranks_that_left_no_trace_are_said_to_be_missing(tmp_path: Path) -> None:
    job = kb.write_job(tmp_path / "job", [0, 1, 3], world=4)
    data = answered(kair("whatif", str(job), "--json"), "missing_ranks", "simulation_error")
    assert set(data["by_rank"]) == {"0", "1", "3"}


@pytest.mark.slow
def test_a_cut_off_file_is_answered_from_its_whole_steps(tmp_path: Path) -> None:
    job = kb.write_job(tmp_path / "job", [0, 1], count=20)
    path = job / "rank1.json.gz"
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 4])
    outcome = kair("whatif", str(job), "--json")
    document = json.loads(outcome.out)
    assert "truncated_file" in {warning["code"] for warning in document["warnings"]}
    assert 0 < len(document["data"]["per_step"]) <= 20
    assert all(len(line) < 300 for line in outcome.err.splitlines())


def test_one_step_is_enough(tmp_path: Path) -> None:
    job = kb.write_job(tmp_path / "job", [0, 1], count=1)
    data = answered(kair("whatif", str(job), "--json"), "simulation_error")
    assert len(data["per_step"]) == 1


def test_a_step_without_duration_is_left_out(tmp_path: Path) -> None:
    for rank in range(2):
        events = [*kb.training_steps(3), kb.step(9, 20_000, 0)]
        kb.write(tmp_path / "job" / f"rank{rank}.json", kb.trace(events, rank=rank, world=2))
    data = answered(kair("whatif", str(tmp_path / "job"), "--json"), "incomplete_steps", "simulation_error")
    assert [step["step"] for step in data["per_step"]] == [2, 3, 4]


def test_only_damaged_files_are_no_trace(tmp_path: Path) -> None:
    for rank in range(2):
        whole = gzip.compress(json.dumps(kb.trace(kb.training_steps(3), rank=rank, world=2)).encode())
        (tmp_path / f"rank{rank}.json.gz").write_bytes(whole[:40])
    outcome = kair("whatif", str(tmp_path), "--json")
    assert (outcome.status, outcome.out) == (3, "")
    assert outcome.err.startswith("kair: error: ")
    assert "\n" not in outcome.err.split("hint:")[0].rstrip("\n")


def test_ranks_share_a_row_for_transfers_and_not_for_delays_of_their_own() -> None:
    saved = {2: 9_000.0, 5: 8_990.0, 0: 1_500.0, 1: 1_495.0, 3: 1_490.0, 4: 0.0}
    result = replace(whatif("communication"), saved_by_operator_type_us={"communication": 1_500.0})
    assert replace(result, saved_by_rank_us=saved).ranks_by_saving == ((2,), (5,), (0, 1, 3), (4,))
    assert replace(result, saved_by_operator_type_us={}, saved_by_rank_us=saved).ranks_by_saving == tuple(
        (rank,) for rank in saved
    )
