"""Columns of the operations table as arrays: nothing is lost on the way, and what is left out was not asked for."""

import gc
import weakref
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.trace_builder import trace

from kair_engine.arrays import NONE
from kair_engine.trace import columns
from kair_engine.trace.columns import joined, read_columns
from kair_engine.trace.large_steps import texts_counted
from kair_engine.trace.model import Trace

BEYOND_FLOATS = 2**53 + 1


@pytest.fixture
def made(tmp_path: Path) -> Trace:
    """A file per rank; the ranks' names come in another order."""
    table = f"""
    step 3: 0+100
    0 main | a 1+2 ^{BEYOND_FLOATS} | b 4+10 /input
    1 main | b 1+2 /input | a 4+10
    step 4: 100+100
    0-1 main | c 101+2
    """
    return trace(tmp_path, table, apart=True)


def test_numbers_beside_nulls_stay_exact_and_names_have_one_code(made: Trace) -> None:
    rows = read_columns(made, ("name", "phase", "correlation"), [3])
    assert rows.text("name") == ["step", "a", "b", "step", "b", "a"]
    assert rows.of["correlation"].tolist() == [NONE, BEYOND_FLOATS, *[NONE] * 4]
    assert rows.of["name"].tolist() == [0, 1, 2, 0, 2, 1]
    assert rows.is_any("phase", ("input",)).tolist() == [False, False, True, False, True, False]


def test_of_steps_that_ranks_number_differently_the_right_rows_are_read(made: Trace) -> None:
    ahead = replace(made, job=replace(made.job, step_shift={1: 1}), steps=(3,))
    rows = read_columns(ahead, ("name",))
    assert rows.of["step"].tolist() == [3] * 5
    assert list(zip(rows.of["rank"].tolist(), rows.text("name"), strict=True))[3:] == [(1, "step"), (1, "c")]


def test_ranks_whose_record_of_a_step_is_cut_are_left_out(made: Trace) -> None:
    cut = replace(made, job=replace(made.job, cut_off={4: (1,)}))
    assert set(read_columns(cut, ("name",), [4]).of["rank"].tolist()) == {0}
    assert set(read_columns(cut, ("name",), [3]).of["rank"].tolist()) == {0, 1}


def test_parts_that_were_read_one_by_one_are_the_whole(made: Trace) -> None:
    whole, parts = read_columns(made, ("name",)), [read_columns(made, ("name",), [step]) for step in (4, 3)]
    assert sorted(joined(parts).text("name")) == sorted(whole.text("name"))


def test_of_steps_and_ranks_of_other_sizes_in_one_file_the_right_rows_are_read(tmp_path: Path) -> None:
    table = """
    step 3: 0+100
    0 main | a 1+2 | b 4+10 | c 15+1 | d 17+1 | e 19+1
    1 main | a 1+2
    2 main | b 1+2 | c 4+10
    step 4: 100+100
    0-2 main | c 101+2
    """
    whole = trace(tmp_path, table)
    assert read_columns(whole, ("name",), [3]).text("name") == [*("step", *"abcde"), "step", "a", "step", "b", "c"]
    apart = read_columns(whole.of_ranks([0, 2]), ("name", "start_ns"))
    assert apart.text("name") == [*("step", *"abcde"), "step", "b", "c", "step", "c", "step", "c"]
    assert apart.of["rank"].tolist() == [0] * 6 + [2] * 3 + [0] * 2 + [2] * 2


def test_operations_are_counted_the_most_frequent_first(made: Trace) -> None:
    assert [*texts_counted(made, ("name", "phase")).items()] == [(("a", ""), 2), (("b", "input"), 2), (("c", ""), 2)]
    assert texts_counted(made.of_ranks([1]), ("name",)) == {("a",): 1, ("b",): 1, ("c",): 1}
    assert texts_counted(made, ("name",), scopes=True) == {("step",): 4}


def test_no_footer_is_held_but_of_the_files_that_are_read(made: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not in a set: the hash of a footer asks for its schema.
    read: list[weakref.ref[pq.FileMetaData]] = []

    def noted(fragment: Path) -> pq.FileMetaData:
        return Noted(fragment).metadata

    def held() -> int:
        return sum(footer() is not None for footer in read)

    class Noted(pq.ParquetFile):
        @property
        def metadata(self) -> pq.FileMetaData:
            footer = super().metadata
            read.append(weakref.ref(footer))
            return footer

    monkeypatch.setattr(pq, "read_metadata", noted)
    monkeypatch.setattr(pq, "ParquetFile", Noted)
    # Of a large recording the collector comes by when too much is held already.
    gc.disable()
    try:
        assert not len(read_columns(made, ("name",), [9]))
        assert len(read) == 2
        assert held() == 0
        assert len(read_columns(made, ("name",), [3]))
        assert held() == 2  # a file per rank, which the next step is read from as well
        columns._footer.cache_clear()
        assert held() == 0
    finally:
        gc.enable()
