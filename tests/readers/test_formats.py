"""Formats are told by content; what is known and not read is named, with the way to convert it."""

import gzip
import re
from importlib import import_module
from pathlib import Path

import pytest
from support.kineto_builder import write_job
from support.places import ROOT
from support.xplane_builder import tpu_host

from kair_engine.errors import InputError
from kair_engine.readers.formats import FORMATS, UnsupportedFormatError, detect_format
from kair_engine.recording.opening import open_trace

KNOWN = {
    "run.nsys-rep": (b"\x00\x01binary", "nsys export --type sqlite"),
    "run.qdrep": (b"\x00\x01binary", "nsys export --type sqlite"),
    "results.db": (b"SQLite format 3\x00" + b"\x00" * 80 + b"CREATE TABLE rocpd_kernel", "rocprofv3"),
    "run.pftrace": (b"\x0a\x10\x00\x01", "traceconv json"),
    "chakra.0.et": (b"\x07\x0a\x05\x00\x01", "Kineto"),
    "traces.otf2": (b"OTF2\x01", "torch.profiler"),
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_known_and_not_read_says_how_to_convert_it(tmp_path: Path, name: str) -> None:
    content, way_out = KNOWN[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UnsupportedFormatError) as found:
        detect_format(tmp_path / name)
    assert way_out in (found.value.hint or "")
    with pytest.raises(InputError, match=f"{re.escape(name)} is an? .*not read") as refused:
        open_trace(tmp_path, cache=tmp_path / "cache")
    assert way_out in (refused.value.hint or "")


MANGLED = {
    "host.xplane.pb": tpu_host((0, 1)),
    "rank0.pt.trace.json.gz": gzip.compress(b'{"traceEvents": [' + b'{"ph": "X", "name": "step", "ts": 1},' * 900),
    "report.sqlite": b"SQLite format 3\x00" + bytes(range(256)) * 8,
    "rank_0": b"\x80\x02}q\x00(U\x09pg_config" + bytes(range(128, 256)) * 4,
}


@pytest.mark.parametrize("name", MANGLED)
def test_a_binary_file_that_was_written_as_text_is_said_to_be_damaged_so(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(MANGLED[name].decode("utf-8", "replace").encode())
    with pytest.raises(InputError, match=r"is damaged: .* as UTF-8 text .* EF BF BD in \d+ places") as found:
        open_trace(tmp_path / name, cache=tmp_path / "cache")
    assert "binary" in (found.value.hint or "")


def test_in_a_folder_what_was_written_as_text_is_left_out_with_a_warning(tmp_path: Path) -> None:
    write_job(tmp_path / "job", range(2))
    (tmp_path / "job" / "host.xplane.pb").write_bytes(tpu_host((0, 1)).decode("utf-8", "replace").encode())
    job = open_trace(tmp_path / "job", cache=tmp_path / "cache").job
    assert job.ranks == (0, 1)
    assert any("host.xplane.pb is damaged" in warning.message for warning in job.warnings)


def test_text_that_holds_replaced_characters_is_text(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("a log with \ufffd\ufffd\ufffd in it\n" * 50)
    found = detect_format(path)
    assert found is not None
    assert found.name == "job_log"


def test_a_mixed_folder_is_answered_from_what_is_read(tmp_path: Path) -> None:
    write_job(tmp_path / "job", range(2))
    for name, (content, _) in KNOWN.items():
        (tmp_path / "job" / name).write_bytes(content)
    (tmp_path / "job" / "notes.bin").write_bytes(b"\x00\x01\x02")
    job = open_trace(tmp_path / "job", cache=tmp_path / "cache").job
    assert (job.format, job.ranks) == ("kineto", (0, 1))
    told = [warning.message for warning in job.warnings if warning.code == "unsupported_format"]
    assert len(told) == len(KNOWN)
    assert any("run.nsys-rep" in text and "nsys export" in text for text in told)


def test_names_do_not_make_a_format(tmp_path: Path) -> None:
    write_job(tmp_path / "job", range(1))
    (trace,) = (tmp_path / "job").iterdir()
    found = detect_format(trace.rename(tmp_path / "job" / "trace.xplane.pb"))
    assert found is not None
    assert found.name == "kineto"


def test_every_row_has_its_reader_and_its_documentation() -> None:
    text = (ROOT / "docs" / "formats.md").read_text()
    for form in FORMATS:
        module, function = form.reader.split(":")
        assert callable(getattr(import_module(module), function))
        assert f"`{form.name}`" in text
