"""Evidence as the field writes it (tests/cases/evidence): what is read of each file, and that damage ends in words."""

import json
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.cases import cases_of, copied, input_of, name_of, require_expected

from kair_engine.errors import InputError
from kair_engine.readers.evidence.formats import IMPORTERS, read_file
from kair_engine.trace.evidence_table import SCHEMA, EvidenceFile, read_evidence, write_evidence
from kair_engine.trace.measures import EvidenceSource

CASES = cases_of("evidence")
READERS = {one.module: import_module(f"kair_engine.readers.evidence.{one.module}") for one in IMPORTERS}
COLUMNS = ("time_ns", "host", "rank", "entity", "name", "value", "text", "raw")
PLAIN = asdict(EvidenceSource("", ""))


def told(file: EvidenceFile) -> dict[str, Any]:
    """What a file of evidence says; of its source what is not as it usually is."""
    (source,) = file.sources
    rows = file.table.to_pylist()
    return {
        "source": {name: value for name, value in asdict(source).items() if value != PLAIN[name]},
        "devices": [asdict(one) for one in file.devices],
        "rows": [[row[name] for name in COLUMNS] for row in rows],
    }


def answered(read: Callable[[], EvidenceFile], folder: Path) -> dict[str, Any]:
    """The same, or the words in which the file is refused."""
    try:
        return told(read())
    except InputError as error:
        return {"error": str(error).replace(f"{folder}/", ""), "hint": error.hint}


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_file_is_read_as_its_case_says(case: Path, tmp_path: Path) -> None:
    path = copied(case, tmp_path)
    found = answered(lambda: read_file(path), tmp_path)
    require_expected(case, found)
    for text in [*found.values(), *(cell for row in found.get("rows", ()) for cell in row)]:
        assert not isinstance(text, str) or (text.isprintable() and len(text) <= 400)
    if "rows" in found:
        write_evidence(tmp_path / "out.parquet", evidence := read_file(path))
        assert told(read_evidence(tmp_path / "out.parquet")) == told(evidence) == found
        assert evidence.table.schema == SCHEMA


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_the_reader_that_a_case_is_named_for_takes_it(case: Path) -> None:
    reader, content = case.parts[-2], input_of(case).read_bytes()[: 64 << 10]
    takers = [name for name, one in READERS.items() if one.fits(input_of(case).name, content)]
    # The kernel's comes behind all others, as any text can hold lines of the kernel.
    assert takers in ([reader], [reader, "kernel_log"])


@pytest.mark.parametrize("reader", READERS)
def test_what_others_write_is_no_evidence(reader: str) -> None:
    others = (
        b"[Wed Oct 11 14:32:52 2000] [error] [client 127.0.0.1] client denied\n",
        b"[    12.528] (EE) NVIDIA(0): Error recovery was successful.\n",
        b'{"traceEvents": []}',
        b"[2026-11-27 14:02:51,123] [INFO] step 3 loss 2.1\n",
        b"\x80\x04}q\x00.",
        b"",
    )
    assert not any(READERS[reader].fits("file", content) for content in others)


@pytest.mark.parametrize("reader", READERS)
def test_a_file_that_is_not_there_is_one_line(reader: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        READERS[reader].read(tmp_path / "none")


PUT = st.one_of(st.binary(max_size=12), st.sampled_from((b"9" * 25, b"-1", b"null", b"[]", b"{}", b'"', b"1e999")))


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, bytes]:
    """A file of a reader, of which parts are replaced; or anything."""
    case = draw(st.sampled_from(CASES))
    if draw(st.integers(0, 3)) == 0:
        return case.parts[-2], draw(st.binary(max_size=400))
    content = input_of(case).read_bytes()
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        content = content[:start] + draw(PUT) + content[start + draw(st.integers(0, 30)) :]
    return case.parts[-2], content


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("evidence")


@pytest.mark.slow
@given(damaged())
@example(("kernel_log", b"[Fri Feb 31 99:99:99 0000] hello\n"))
@example(("kernel_log", b"1 9999-12-31T23:59:59Z node-7 kernel - - - hello"))
@example(("nccl_ras", b'{"communicators": [{"size": 1e400, "ranks": [{"rank": 3}]}]}'))
@example(("slurm", b'{"jobs": [{"state": null, "time": {"end": [1]}, "steps": [{"step": 4}]}]}'))
@example(("kubernetes", b'{"items": [{"kind": ["Pod"]}, {"kind": "Pod", "status": {"containerStatuses": [3]}}]}'))
def test_whatever_is_in_a_file_it_is_read_or_refused_in_words(place: Path, of: tuple[str, bytes]) -> None:
    reader, content = READERS[of[0]], of[1]
    path = place / "rank1_file"
    path.write_bytes(content)
    assert reader.fits("rank1_file", content[: 64 << 10]) in (True, False)
    found = answered(lambda: reader.read(path), place)
    if "error" in found:
        assert found["error"].isprintable()
        return
    assert found["source"].get("rows", 0) == len(found["rows"])
    write_evidence(place / "out.parquet", reader.read(path))
    assert len(read_evidence(place / "out.parquet").table) == len(found["rows"])
    assert json.dumps(found["rows"])
