"""Steps that are read column by column are the rows that are read one by one: of parts, journals and attempts alike."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kair_capture.agent.step_rows import COLUMNS, ROW, Rows
from kair_capture.coordinator.step_columns import StepColumns
from kair_capture.coordinator.step_log import attempts_in, last_attempt, read_all, read_columns, write_part

CHOSEN = ("rank", "step", "begin_us", "step_us", "gc_us", "attempt")
TOLD = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 9), st.integers(1, 3)), min_size=1, max_size=40
)


def rows_of(told: list[tuple[int, int, int, int]]) -> Rows:
    rows = np.zeros(len(told), ROW)
    for at, (rank, step, begin, attempt) in enumerate(told):
        rows[at]["rank"], rows[at]["step"], rows[at]["attempt"] = rank, step, attempt
        rows[at]["begin_us"], rows[at]["step_us"] = 10**15 + begin * 10**6, 100 + at
    return rows


def written(folder: Path, *files: Rows) -> Path:
    """Parts, and the last as a journal."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(files[:-1], 1):
        write_part(folder / f"part-{number:08}.parquet", rows)
    (folder / f"steps-{len(files):08}.journal").write_bytes(files[-1].tobytes())
    return folder


def require_same(columns: StepColumns, rows: Rows) -> None:
    assert len(columns) == len(rows)
    for name, column in columns.items():
        assert column.dtype == rows[name].dtype and column.tolist() == rows[name].tolist(), name


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(told=TOLD, cuts=st.tuples(st.integers(0, 40), st.integers(0, 40)), most=st.none() | st.integers(1, 40))
def test_whatever_was_recorded_in_whatever_files_the_rows_are_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    told: list[tuple[int, int, int, int]],
    cuts: tuple[int, int],
    most: int | None,
) -> None:
    first, second = sorted(cuts)
    rows = rows_of(told)
    parts = [part for part in (rows[:first], rows[first:second]) if len(part)]
    folder = written(tmp_path_factory.mktemp("steps") / "steps", *parts, rows[second:])
    for names in (COLUMNS, CHOSEN):
        one_by_one, columns = read_all(folder, most, names), read_columns(folder, most, names)
        require_same(columns, one_by_one)
        require_same(last_attempt(columns), last_attempt(one_by_one))
        require_same(last_attempt(columns, 1), last_attempt(one_by_one, 1))
        assert attempts_in(columns) == attempts_in(one_by_one)


def test_a_job_that_went_back_to_a_checkpoint_has_the_steps_since_then(tmp_path: Path) -> None:
    before = rows_of([(rank, step, step, 1) for step in range(10) for rank in range(2)])
    after = rows_of([(rank, step, step + 10, 1) for step in range(6, 9) for rank in range(2)])
    found = last_attempt(read_columns(written(tmp_path / "steps", before, after)))
    assert sorted(zip(found["rank"].tolist(), found["step"].tolist(), strict=True)) == [
        (rank, step) for rank in range(2) for step in range(6, 9)
    ]


def test_a_part_of_an_earlier_version_has_zeros_for_what_it_did_not_tell(tmp_path: Path) -> None:
    rows = rows_of([(rank, step, step, 0) for step in range(4) for rank in range(2)])
    folder = written(tmp_path / "steps", rows, rows[:0])
    (part,) = folder.glob("part-*.parquet")
    known = COLUMNS[: COLUMNS.index("samples")]
    pq.write_table(pq.read_table(part, columns=list(known)), part)
    require_same(read_columns(folder), read_all(folder))
    assert not read_columns(folder)["samples"].any()


def test_what_no_rank_told_takes_no_memory(tmp_path: Path) -> None:
    rows = rows_of([(rank, step, step, 1) for step in range(500) for rank in range(8)])
    columns = read_columns(written(tmp_path / "steps", rows[:3000], rows[3000:]))
    kept = columns[columns["rank"] > 0].without("flags")
    for of in (columns, kept):
        assert of["gc_us"].strides == (0,) and of["step_us"].strides == (4,)
    assert (len(kept["gc_us"]), "flags" in dict(kept.items())) == (3500, False)
