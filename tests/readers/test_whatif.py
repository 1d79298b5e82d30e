"""What-if traces become the same table, with the layout that their columns state."""

import json
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.cases import CASES, require_expected

from kair_engine.errors import InputError
from kair_engine.readers import whatif_parquet as columns
from kair_engine.readers.formats import NotATraceError
from kair_engine.readers.paths import parse_sizes
from kair_engine.readers.whatif_parquet import read_whatif
from kair_engine.trace.model import FragmentInfo

Row = dict[str, Any]
CASE = CASES / "whatif" / "two_by_two"


def operation(optype: str, start: float, duration: float, *, stage: int = 0, dp: int = 0, **more: object) -> Row:
    """One row; the rank of stage s and dp rank d is 2 (2 s + d): every worker stands for two ranks."""
    absent = {"seq_id": 0, "mc": -1, "gmc": -1, "mb_id": -1}
    place = {"dp_rank": dp, "stage": stage, "rank": 2 * (2 * stage + dp), "step": 5}
    return {"optype": optype, "start_ts": start, "duration": duration, **place, **absent, **more}


def small_job() -> list[Row]:
    return json.loads((CASE / "rows.json").read_text())  # type: ignore[no-any-return]


def read(tmp_path: Path, rows: list[Row], meta: str = "") -> tuple[pl.DataFrame, FragmentInfo]:
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "trace-X.parquet")
    if meta:
        (tmp_path / "meta-X.yaml").write_text(meta)
    info = read_whatif(tmp_path / "trace-X.parquet", tmp_path / "out.parquet")
    rows_found = pl.read_parquet(tmp_path / "out.parquet").with_columns(pl.col(pl.Categorical).cast(pl.String))
    return rows_found, info


def test_operations_are_read_as_the_case_says(tmp_path: Path) -> None:
    """Both ends of a transfer share group and number; collectives are numbered alike on all members of a group."""
    rows, info = read(tmp_path, small_job())
    found = {"columns": rows.columns, "rows": rows.rows()}
    about = ("layout", "world_size", "ranks", "absolute_time", "operations", "step_times")
    require_expected(CASE, {name: msgspec.to_builtins(getattr(info, name), str_keys=True) for name in about} | found)


def test_the_metadata_beside_it_states_the_sizes(tmp_path: Path) -> None:
    _, info = read(tmp_path, small_job(), "trial_name: X\ndp_size: 2\npp_size: 2\ntp_size: 1 # none\nworld_size: 16\n")
    assert info.layout is not None
    assert (info.layout.tp, info.world_size) == (1, 16)


def row(rows: pl.DataFrame, rank: int, name: str) -> dict[str, Any]:
    (found,) = rows.filter((pl.col("rank") == rank) & (pl.col("name") == name)).to_dicts()
    return found


def test_a_column_of_chunks_that_is_the_same_on_all_stages_does_not_say_which_it_is(tmp_path: Path) -> None:
    rows, _ = read(tmp_path, [one | {"gmc": 0} for one in small_job()])
    assert [row(rows, rank, "forward-compute")["chunk"] for rank in (0, 2, 4, 6)] == [0, 0, 1, 1]


def test_steps_follow_each_other_on_one_clock(tmp_path: Path) -> None:
    rows = [operation("forward-compute", 0.0, 2.0), operation("optimizer", 2.0, 0.5)]
    later = [{**one, "step": 9} for one in rows]
    _, info = read(tmp_path, later + rows)
    assert info.step_times.step == (5, 9)
    assert info.step_times.begin_ns == (0, 2_500_000_000)
    assert info.step_times.duration_ns == (2_500_000_000, 2_500_000_000)


def test_bad_rows_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [operation("forward-compute", 0.0, 1.0)]
    rows += [operation("optimizer", start, duration) for start, duration in ((0, -1.0), (float("nan"), 1), (0, 1e300))]
    _, info = read(tmp_path, rows)
    assert info.operations == 1
    assert info.warnings[0].code == "bad_events"
    assert "3 rows" in info.warnings[0].message


def test_other_parquet_is_no_trace(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    with pytest.raises(NotATraceError, match="optype"):
        read_whatif(tmp_path / "a.parquet", tmp_path / "out.parquet")


def test_damaged_parquet_is_an_input_error(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(small_job()), tmp_path / "trace.parquet")
    content = (tmp_path / "trace.parquet").read_bytes()
    for damaged in (
        content[:-20],
        content[:4] + b"\xff" * (len(content) // 2) + content[4 + len(content) // 2 :],
        b"PAR1",
    ):
        (tmp_path / "trace.parquet").write_bytes(damaged)
        with pytest.raises(InputError):
            read_whatif(tmp_path / "trace.parquet", tmp_path / "out.parquet")


def test_operation_types_and_numbers_are_read_however_they_are_stored(tmp_path: Path) -> None:
    plain, _ = read(tmp_path, small_job())
    table = pq.read_table(tmp_path / "trace-X.parquet")
    stored = pa.dictionary(pa.uint32(), pa.large_string())
    table = table.set_column(0, "optype", table["optype"].cast(pa.string()).dictionary_encode().cast(stored))
    table = table.set_column(table.column_names.index("stage"), "stage", table["stage"].cast(pa.uint8()))
    pq.write_table(table, tmp_path / "trace-X.parquet")
    read_whatif(tmp_path / "trace-X.parquet", tmp_path / "out.parquet")
    assert pl.read_parquet(tmp_path / "out.parquet").with_columns(pl.col(pl.Categorical).cast(pl.String)).equals(plain)


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.int64(), pa.uint16()])
def test_null_is_absent_in_numbers_of_every_size(tmp_path: Path, kind: pa.DataType) -> None:
    plain, _ = read(tmp_path, small_job())
    table = pq.read_table(tmp_path / "trace-X.parquet")
    for name in ("mc", "gmc", "mb_id"):
        numbers = [None if number < 0 else number for number in table[name].to_pylist()]
        table = table.set_column(table.column_names.index(name), name, pa.array(numbers, kind))
    pq.write_table(table, tmp_path / "trace-X.parquet")
    read_whatif(tmp_path / "trace-X.parquet", tmp_path / "out.parquet")
    assert pl.read_parquet(tmp_path / "out.parquet").with_columns(pl.col(pl.Categorical).cast(pl.String)).equals(plain)


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_rows_without_a_time_or_type_are_bad(tmp_path: Path, kind: pa.DataType) -> None:
    table = pa.Table.from_pylist([operation("forward-compute", at, 0.5) for at in range(4)])
    table = table.set_column(1, "start_ts", pa.array([0.0, None, 2.0, 3.0], kind))
    table = table.set_column(2, "duration", pa.array([0.5, 0.5, None, 0.5], kind))
    types = pa.array(["forward-compute", "gc", "gc", None]).dictionary_encode()
    pq.write_table(table.set_column(0, "optype", types), tmp_path / "trace-X.parquet")
    info = read_whatif(tmp_path / "trace-X.parquet", tmp_path / "out.parquet")
    assert info.operations == 1
    assert "3 rows" in info.warnings[0].message


def test_more_operation_types_than_a_job_has_are_an_input_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kair_engine.readers.whatif_parquet._LARGEST", 30)
    with pytest.raises(InputError, match="8 operation types on 4 ranks"):
        read(tmp_path, [row for row in small_job() if row["optype"] not in {"backward-recv", "backward-send"}])


def test_columns_of_other_types_are_an_input_error(tmp_path: Path) -> None:
    rows = [{**operation("optimizer", 0, 1), "rank": "zero"}]
    with pytest.raises(InputError, match="type"):
        read(tmp_path, rows)


def test_metadata_is_read_as_flat_text(tmp_path: Path) -> None:
    path = tmp_path / "meta.yaml"
    path.write_text(
        "dp_size: 4\npp_size: many\n!!python/object/apply:os.system\nworld_size: -3\ntp_size: 99999999999\n"
        f"dsp_size: {1:010}{'0' * 5000}\n"
    )
    assert parse_sizes(path) == {"dp_size": 4}


def test_columns_of_different_lengths_are_an_input_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A footer whose count of rows is damaged; pyarrow writes no such file.
    whole = columns._integer_column

    def without_the_last(file: pq.ParquetFile, schema: pa.Schema, name: str) -> Any:  # noqa: ANN401
        values = whole(file, schema, name)
        return values[:-1] if name == "mb_id" else values

    monkeypatch.setattr(columns, "_integer_column", without_the_last)
    with pytest.raises(InputError, match="different lengths"):
        read(tmp_path, small_job())
