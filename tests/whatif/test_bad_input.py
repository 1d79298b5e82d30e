"""What `kair whatif` says of pipeline recordings that are not as they should be: partly good ones are answered."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.cli_samples import Outcome, kair, store_variables
from support.pipeline_builder import Row, costs, pipeline_job, recorded_step, written


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[Row]], Outcome]:
    store_variables(monkeypatch, tmp_path)
    return lambda rows: kair("whatif", str(written(tmp_path, rows)), "--json")


Asked = Callable[[Sequence[Row]], Outcome]


def job() -> list[Row]:
    return pipeline_job(dp=2, pp=2, steps=(0, 1))


def answer(outcome: Outcome, *codes: str) -> dict[str, Any]:
    """The data of an answered question, with just these warnings, each said on stderr too."""
    assert outcome.status == 0
    document = json.loads(outcome.out)
    assert [warning["code"] for warning in document["warnings"]] == list(codes)
    assert len(outcome.err.splitlines()) == len(codes)
    data: dict[str, Any] = document["data"]
    return data


def refused(outcome: Outcome, said: str) -> None:
    assert outcome.status == 3
    assert outcome.out == ""
    assert said in outcome.err.splitlines()[0]


SECONDS = recorded_step(job())


def test_operations_of_unknown_types_are_left_out_and_named(asked: Asked) -> None:
    outcome = asked([*job(), dict(job()[0], optype="evaluation\x1b[31m")])
    assert answer(outcome, "unknown_operation_types")["step_time_us"] == pytest.approx(SECONDS * 1e6)
    assert "evaluation" in outcome.err
    assert "\x1b" not in outcome.err


def test_only_operations_of_unknown_types(asked: Asked) -> None:
    refused(asked([dict(row, optype="evaluation") for row in job()]), "none of the operation types of a training step")


def backward_first(step: int) -> list[Row]:
    """A recording that says of the first stage that it went backward before it had gone forward in a step."""
    rows = job()
    for row in rows:
        if (row["step"], row["stage"], row["mb_id"], row["optype"]) == (step, 0, 0, "backward-compute"):
            row["start_ts"] = 0.1
    return rows


def test_a_step_whose_operations_wait_in_a_circle_is_left_out(asked: Asked) -> None:
    outcome = asked(backward_first(1))
    data = answer(outcome, "circular_dependencies")
    assert data["steps"] == [0]
    assert data["step_time_us"] == pytest.approx(SECONDS * 1e6)
    assert "1 of 2 steps are left out" in outcome.err


def test_a_worker_that_only_a_step_left_out_has(asked: Asked) -> None:
    rows = [row for row in backward_first(1) if row["step"] == 1 or row["dp_rank"] == 0]
    outcome = asked(rows)
    assert outcome.status == 0
    assert {warning["code"] for warning in json.loads(outcome.out)["warnings"]} >= {"circular_dependencies"}


def test_no_step_without_a_circle(asked: Asked) -> None:
    refused(asked([row for row in backward_first(1) if row["step"] == 1]), "wait for one another in a circle")


def test_a_member_that_is_missing_from_a_group(asked: Asked) -> None:
    rows = job()
    lost = next(row for row in rows if row["optype"] == "grads-reduce-scatter" and row["rank"] == 1)
    outcome = asked([row for row in rows if row is not lost])
    assert answer(outcome, "incomplete_groups")["step_time_us"] == pytest.approx(SECONDS * 1e6)
    assert "grads-reduce-scatter" in outcome.err


def test_a_worker_that_is_missing(asked: Asked) -> None:
    outcome = asked([row for row in job() if row["rank"] != 1])
    data = answer(outcome, "missing_ranks", "unpaired_transfers", "incomplete_groups")
    assert set(data["by_rank"]) == {"0", "2", "3"}


def test_a_rank_whose_step_has_no_end(asked: Asked) -> None:
    rows = [row for row in job() if (row["dp_rank"], row["step"], row["optype"]) != (1, 1, "optimizer")]
    data = answer(asked(rows))
    assert data["step_time_us"] == pytest.approx(SECONDS * 1e6)
    assert data["by_dp_rank"] == pytest.approx({"0": 1.0, "1": 1.0})


def test_a_step_that_took_no_time_is_left_out(asked: Asked) -> None:
    rows = [dict(row, start_ts=0.0, duration=0.0) if row["step"] == 1 else row for row in job()]
    data = answer(asked(rows), "empty_steps")
    assert data["steps"] == [0]
    assert data["slowdown"] == pytest.approx(1.0)


def test_only_steps_that_took_no_time(asked: Asked) -> None:
    data = answer(asked([dict(row, start_ts=0.0, duration=0.0) for row in job()]))
    assert data["slowdown"] == 1.0


def test_a_single_worker(asked: Asked) -> None:
    data = answer(asked(pipeline_job()))
    assert data["by_rank"] == {"0": 1.0}
    assert data["m_s"] is None


@pytest.mark.parametrize("meta", [None, "", "dp_size: many\n!!python/object/apply:os.system [true]\n"])
def test_a_metadata_file_that_is_absent_or_says_nothing(asked: Asked, tmp_path: Path, meta: str | None) -> None:
    if meta is not None:
        (tmp_path / "meta-job.yaml").write_text(meta)
    data = answer(asked(job()))
    assert set(data["by_stage"]) == {"0", "1"}


@pytest.mark.parametrize("number", [2**31 - 1, 2**31, 2**62, -7])
def test_numbers_beyond_any_chunk_or_microbatch(asked: Asked, number: int) -> None:
    rows = [dict(row, mb_id=number, gmc=number, mc=number) for row in job()]
    assert answer(asked(rows))["step_time_us"] == pytest.approx(SECONDS * 1e6)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["dp_rank", "stage"])
def test_a_worker_with_a_number_beyond_any(asked: Asked, place: str) -> None:
    rows = [row | {place: 1_000_000} if row["rank"] == job()[-1]["rank"] else row for row in job()]
    refused(asked(rows), "are numbered as if there were")


def test_a_missing_column(asked: Asked) -> None:
    refused(asked([{key: value for key, value in row.items() if key != "dp_rank"} for row in job()]), "dp_rank")


@pytest.mark.usefixtures("asked")
def test_a_damaged_file(tmp_path: Path) -> None:
    path = written(tmp_path, job())
    path.write_bytes(path.read_bytes()[:-40])
    refused(kair("whatif", str(path), "--json"), "damaged")


@pytest.mark.usefixtures("asked")
def test_a_recording_without_rows(tmp_path: Path) -> None:
    path = written(tmp_path, job())
    pq.write_table(pq.read_table(path).slice(0, 0), path)
    refused(kair("whatif", str(path), "--json"), "holds no operations")


@pytest.mark.slow
@pytest.mark.usefixtures("asked")
def test_triage_keeps_its_estimate_where_no_step_can_be_replayed(tmp_path: Path) -> None:
    def cost(operation: str, step: int, dp: int, stage: int, microbatch: int) -> float:
        slow = operation in {"F", "B"} and (dp, stage) == (3, 1)
        return costs(operation, step, dp, stage, microbatch) * (1.5 if slow else 1.0)

    rows = pipeline_job(dp=8, pp=2, steps=range(12), cost=cost)
    for row in rows:
        if (row["stage"], row["mb_id"], row["optype"]) == (0, 0, "backward-compute"):
            row["start_ts"] = 0.1
    outcome = kair("triage", str(written(tmp_path, rows)), "--json")
    (finding,) = json.loads(outcome.out)["data"]["findings"]
    assert (finding["ranks"], finding["priced_by"]) == ([7], "excess")
