"""Fragments that no reader wrote, found where an analysis has failed on them."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from support import kineto_builder as kb

from kair_engine.recording.opening import open_trace
from kair_engine.trace.columns import unsound_file


def test_texts_that_are_none_are_found(tmp_path: Path) -> None:
    trace = open_trace(kb.write_job(tmp_path / "job", range(1)), cache=tmp_path / "cache")
    (fragment,) = trace.fragments
    assert unsound_file(trace) is None
    table = pq.read_table(fragment)
    offsets, damaged = pa.array([0, 2], pa.int32()).buffers()[1], pa.py_buffer(b"s\xff")
    words = pa.StringArray.from_buffers(1, offsets, damaged)
    lanes = pa.DictionaryArray.from_arrays(pa.array([0] * len(table), pa.int32()), words)
    at = table.schema.get_field_index("lane")
    pq.write_table(table.set_column(at, table.schema.field(at), lanes), fragment)
    found = unsound_file(trace)
    assert found is not None
    assert found[0] == fragment
    assert "UTF8" in found[1]


def test_inputs_that_are_no_numbers_are_found(tmp_path: Path) -> None:
    trace = open_trace(kb.write_job(tmp_path / "job", range(1)), cache=tmp_path / "cache")
    (fragment,) = trace.fragments
    table = pq.read_table(fragment)
    at = table.schema.get_field_index("inputs")
    for text, why in (("8,4;2", None), ("", None), ("8,x", "it has dimensions of inputs that are no numbers")):
        inputs = pa.DictionaryArray.from_arrays(pa.array([0] * len(table), pa.int32()), pa.array([text]))
        pq.write_table(table.set_column(at, table.schema.field(at), inputs), fragment)
        found = unsound_file(trace)
        assert found == (None if why is None else (fragment, why))


def test_a_description_that_is_no_text_is_found(tmp_path: Path) -> None:
    trace = open_trace(kb.write_job(tmp_path / "job", range(1)), cache=tmp_path / "cache")
    (fragment,) = trace.fragments
    whole = fragment.read_bytes()
    assert whole.count(b"parquet-cpp-arrow") == 1
    fragment.write_bytes(whole.replace(b"parquet-cpp-arrow", b"parquet\xffcpp-arrow"))
    found = unsound_file(trace)
    assert found is not None
    assert "invalid utf8" in found[1]
