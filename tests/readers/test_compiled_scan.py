"""Scanned by compiled code, events are what they are decoded."""

import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.places import ROOT, SAMPLES

from kair_engine.readers.formats import NotATraceError
from kair_engine.readers.kineto import event_stream
from kair_engine.readers.kineto.compiled import build, keys, scan_columns
from kair_engine.readers.kineto.compiled.library import library
from kair_engine.readers.kineto.compiled.scanner import Scanner, scan_of
from kair_engine.readers.kineto.event_stream import EventStream
from kair_engine.readers.kineto.events import RECORD, EventArgs, Records
from kair_engine.readers.kineto.reader import read_kineto
from kair_engine.readers.kineto.tables import EventTables

_COLLECTIVE = {
    "External id": 3,
    "Collective name": "allreduce",
    "Process Group Name": "0",
    "Process Group Ranks": "[0, 1]",
    "Seq": 7,
    "In msg nelems": 1024,
    "dtype": "Float",
}


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The scan, of the text that is here: `make` compiles it in place."""
    with pytest.MonkeyPatch.context() as patch:
        if library() is None:
            patch.setattr(build, "LIBRARY", tmp_path_factory.mktemp("compiled") / "libscan.so")
            if failed := build.build(build.LIBRARY):
                pytest.skip(failed)
            library.cache_clear()
        yield
    library.cache_clear()


def event(**fields: object) -> dict[str, Any]:
    usual = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10.5, "dur": 3}
    return {name: value for name, value in (usual | fields).items() if value is not ...}


_SEEDS: list[dict[str, Any]] = [
    event(args={"External id": 1, "Concrete Inputs": ["", "[2]"], "Input Dims": [[4, 2048], []], "Ev Idx": 0}),
    event(cat="user_annotation", name="ProfilerStep#3", ts=1706850122846038, dur=603240),
    event(cat="cuda_runtime", name="cudaLaunchKernel", args={"cbid": 211, "correlation": 9, "External id": 9}),
    event(cat="kernel", name="ncclDevKernel_AllReduce", pid=0, tid=7, args=_COLLECTIVE | {"correlation": 9}),
    event(cat="gpu_memcpy", name="Memcpy HtoD", pid=0, tid="stream 7", args={"bytes": 4096, "correlation": 8}),
    event(name="record_param_comms", args=_COLLECTIVE),
    event(name="record_param_comms", args={"Concrete Inputs": ["", "369", "('0', 'default_pg')", "0"]}),
    event(name="record_param_comms", args={"Concrete Inputs": ["", "41", "('0', 'default_pg')", "0"]}),
    event(name="record_param_comms", args={"Concrete Inputs": ["382", "0", "('0', 'default_pg')"]}),
    event(name="aten::to", args={"Concrete Inputs": ["", "", "5"]}),
    event(name="aten::to", args={"Concrete Inputs": ["", "[4, 8]"]}),
    event(name="c10d::send", args={"Concrete Inputs": ["", "", "1", "0"], "Input type": ["TensorList", "", "", ""]}),
    event(name="Länge · ✓", cat="Operator", args=None),
    event(ph="f", id=9, bp="e"),
    event(ph="M", name="process_name", args={"name": "python"}, dur=...),
    event(ph="B", name="begun", dur=...),
    event(ph="E", ts=20, dur=...),
]
_TEXTS = ["", "X", "B", "12", "a\\u00e9", "é\ud800", "}, {", "Optimizer.step#SGD.step"]
_NUMBERS = [0, -0.0, -1, 7, 1 << 63, 10**30, 0.0005, 1e15, 1e300, float("nan"), 1706850122846038.1255]
_WRITTEN = ["7", "42.5", "1706850122846038.125", "12345678", "123456789.5", "99999999.999", "0.25", "-3", "01", "1e3"]
_INPUTS = ["7", "0", "1706850122", "007", "1234567890123456789", "4x", ""]
_VALUES = st.sampled_from([..., None, True, [], [{"a": [1]}], {}, {"a": {}}, *_TEXTS, *_NUMBERS])
_KEYS = st.sampled_from(["ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "id", "n\\ame"])
_ARGUMENTS = st.sampled_from([*keys.ARGUMENTS, "Input Dims", "Input type", "Concrete Inputs", "stream"])


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """Events of which some have values that nobody expects, as text of which some bytes are not what they were."""
    events = [dict(one) for one in draw(st.lists(st.sampled_from(_SEEDS), max_size=8))]
    for one in events:
        if draw(st.integers(0, 3)) == 0:
            one[draw(_KEYS)] = draw(_VALUES)
        if draw(st.integers(0, 3)) == 0:
            one["args"] = dict(one.get("args") or {}) if isinstance(one.get("args"), dict | None) else {}
            one["args"][draw(_ARGUMENTS)] = draw(_VALUES)
    # From the third time on an event is expected where it came before.
    first, often = list(events), draw(st.integers(0, 4))
    events += [alike(one, draw) for _ in range(often) for one in first if draw(st.integers(0, 4))]
    written = [{name: value for name, value in one.items() if value is not ...} for one in events]
    as_is = draw(st.booleans())
    parts = [json.dumps(drop(one), ensure_ascii=as_is, indent=draw(st.sampled_from([None, 1]))) for one in written]
    text = "[" + draw(st.sampled_from([", ", ",\n", "\n"])).join(parts) + "]"
    text = _WRITES.sub(lambda match: _WRITTEN[int(match[1])], text)
    signs = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(signs)))
        signs[at : at + draw(st.integers(0, 2))] = draw(st.sampled_from([b"", *(bytes([sign]) for sign in _SIGNS)]))
    return bytes(signs)


_WRITES = re.compile(r'"written (\d)"')


def alike(one: dict[str, Any], draw: st.DrawFn) -> dict[str, Any]:
    """The event with other numbers."""
    number = st.integers(0, len(_WRITTEN) - 1).map(lambda at: f"written {at}")
    args = one.get("args")
    if isinstance(args, dict):
        args = {key: draw(number) if isinstance(value, int) else value for key, value in args.items()}
        if isinstance(inputs := args.get("Concrete Inputs"), list):
            args["Concrete Inputs"] = [draw(st.sampled_from([one, *_INPUTS])) for one in inputs]
    return one | {"ts": draw(number), "dur": draw(number)} | ({} if "args" not in one else {"args": args})


_SIGNS = b'{}[],:"\\0.-eEu\x00\x1f\x7f\x80\xff\n tn9'


def drop(value: object) -> object:
    """The value without what JSON cannot have."""
    if isinstance(value, dict):
        return {key: drop(one) for key, one in value.items() if one is not ...}
    return value


def read(blocks: Sequence[bytes], *, scanned: bool, chunk: int = 1 << 20) -> tuple[Any, int]:
    """All that is known of a text's events, and how much of it was scanned."""
    tables = EventTables()
    of_file = Scanner(tables)
    taken: list[int] = []

    def counted(text: bytes, begin: int, end: int) -> Iterator[tuple[Records, int]]:
        for records, at in of_file.records(text[:end], begin, end):
            taken.append(len(records))
            yield records, at

    stream = EventStream(iter(blocks), scan=counted if scanned else None, chunk_size=chunk)
    batches = [np.empty(0, RECORD)]
    try:
        batches += [tables.records(batch) if isinstance(batch, list) else batch for batch in stream]
    except NotATraceError as error:
        return str(error), 0
    records = np.concatenate(batches)
    known = (
        records[[field for field in RECORD.names or () if field != "detail"]].tolist(),
        [tables.details[number] if number >= 0 else None for number in records["detail"].tolist()],
        *(tables.names.items_, tables.tracks.items_),
        *(tables.bad_events, tables.without_category, tables.unpaired),
        *(stream.bad_events, stream.complete, stream.header),
    )
    return known, sum(taken)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(text=texts(), chunk=st.sampled_from([1, 200, 1 << 20]))
@example(b'[{"ph": "X", "name": "a", "ts": "1e3", "dur": 1e0, "cat": "kernel"}, {}]', 1 << 20)
@example(b'[{"ph": "X", "name": "a", "cat": "", "ts": 0.00050, "dur": 0.0015}, {"ph": "i"}]', 1 << 20)
@example(b'[{"ph": "X", "name": "a", "name": "b", "args": {"bytes": 3}, "args": null}, {"ph": "i"}]', 1 << 20)
@example(b'[{"ph": "X", "name": "\x80", "cat": "kernel"}, {"ph": "X", "name": "a", "cat": "cpu_op"}, {}]', 1 << 20)
@example(b'[{"ph": "X", "name": "a", "args": {"x": %s}}, {}]' % (b"[" * 200 + b"]" * 200), 1 << 20)
def test_a_scan_finds_what_decoding_finds(text: bytes, chunk: int) -> None:
    assert read([text], scanned=True, chunk=chunk)[0] == read([text], scanned=False, chunk=chunk)[0]


def test_usual_events_are_all_scanned() -> None:
    usual = [one for one in _SEEDS if one["ph"] not in "BE"]
    text = json.dumps([*usual * 50, {}], ensure_ascii=False).encode()
    found, scanned = read([text], scanned=True)
    assert found == read([text], scanned=False)[0]
    assert scanned == len(found[0]) == 650


def test_events_alike_are_told_by_their_numbers() -> None:
    chance = random.Random(2)

    def number() -> int:
        return chance.randrange(10 ** chance.randint(1, 15))

    usual = [one for one in _SEEDS if one["ph"] in "Xf"] * 40
    for at, one in enumerate(usual):
        args = {key: number() if isinstance(value, int) else value for key, value in (one.get("args") or {}).items()}
        usual[at] = one | {"ts": number() + chance.randrange(1000) / 1000, "dur": number(), "args": args}
    text = json.dumps([*usual, {}], ensure_ascii=False).encode()
    found, scanned = read([text], scanned=True)
    assert found == read([text], scanned=False)[0]
    assert scanned == len(found[0]) == 520


@pytest.mark.slow
def test_what_is_not_known_costs_a_window_and_not_the_scan() -> None:
    events = [event(name=f"op {number}", tid=number % 7) for number in range(3000)]
    events[10]["name"] = "\ud800"
    text = json.dumps([*events, {}]).encode()
    found, scanned = read([text], scanned=True)
    assert found == read([text], scanned=False)[0]
    assert 0.7 * len(found[0]) < scanned < len(found[0])


@pytest.mark.slow
def test_more_names_than_there_is_room_for_at_first() -> None:
    text = json.dumps([*(event(name=f"op {number}" * 9) for number in range(4500)), {}]).encode()
    found, scanned = read([text], scanned=True)
    assert found == read([text], scanned=False)[0]
    assert scanned == 4500


def test_texts_of_equal_hash_do_not_slow_a_scan() -> None:
    # One that is made for that purpose must not make each search as long as there are names.
    chance = random.Random(1)
    tables = EventTables()
    of_file = Scanner(tables)
    of_file._tokens["slots"][:] = 1  # all taken, by another text
    of_file._tokens.count = 2
    text = json.dumps([event(name=str(chance.random()))])[1:-1].encode()
    found = list(of_file.records(text, 0, len(text)))
    assert [len(records) for records, _ in found] == [1]
    assert len(of_file._tokens["slots"]) > 4 * 4096


@pytest.mark.parametrize(
    "number", ["10.0005", "10.0015", "10.00150000001", "-0.5", "-10.0025", "0", "9e2", "4000000000000000"]
)
def test_times_are_rounded_as_decimals_are(number: str) -> None:
    text = json.dumps([event(ts=...), {}]).replace('"ph"', f'"ts": {number}, "ph"').encode()
    assert read([text], scanned=True)[0] == read([text], scanned=False)[0]


def test_the_types_that_are_looked_at_are_those_that_are_decoded() -> None:
    kinds = {int | None: scan_columns.MAYBE_INTEGER, str | None: scan_columns.MAYBE_TEXT}
    typed = {field.encode_name: field.type for field in msgspec.structs.fields(EventArgs) if field.type != msgspec.Raw}
    assert {*typed, "Concrete Inputs"} == set(keys.ARGUMENTS)
    assert all(keys.ARGUMENTS[name] == kinds.get(kind, keys.ARGUMENTS[name]) for name, kind in typed.items())
    assert {name for name, kind in typed.items() if kind is int} == {"correlation", "External id", "bytes"}


def test_of_a_file_only_the_events_at_its_end_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = [event(ts=number, args={"External id": number}) for number in range(50)]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": [*usual, event(ph="M")]}))
    decoded, decode = [], event_stream.decode_events
    monkeypatch.setattr(event_stream, "decode_events", lambda text: decoded.append(decode(text)) or decoded[-1])
    found = read_kineto(tmp_path / "trace.json", tmp_path / "out.parquet")
    assert found.operations == len(usual)
    assert sum(map(len, decoded)) == 1


@pytest.mark.parametrize("text", [None, "not a library", "another"])
def test_events_are_decoded_where_no_scan_of_this_text_is_there(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "LIBRARY", tmp_path / "libscan.so")
    if text == "another":
        with monkeypatch.context() as patch:
            patch.setattr(build, "SOURCE", tmp_path / "scan.c")
            patch.setattr(build, "checksum", lambda: 7)
            shutil.copy(Path(build.__file__).with_name("scan.c"), build.SOURCE)
            assert build.build(build.LIBRARY) is None
    elif text is not None:
        build.LIBRARY.write_text(text)
    library.cache_clear()
    try:
        assert scan_of(EventTables()) is None
    finally:
        library.cache_clear()


def test_who_has_no_compiler_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build.build(tmp_path / "libscan.so") == "there is no C compiler"
    monkeypatch.setenv("CC", f"{sys.executable} -c 'raise SystemExit(1)'")
    assert str(build.build(tmp_path / "libscan.so")).startswith(f"{sys.executable} failed")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_damaged_events_touch_no_memory_but_the_scans_own() -> None:
    if shutil.which("gcc") is None:
        pytest.skip("its sanitizers are gcc's")
    traces = sorted((SAMPLES / "healthy").glob("*.json.gz"))[:2]
    program = [sys.executable, ROOT / "validation" / "fuzz" / "scan.py", "--each", "10", *traces]
    ran = subprocess.run(program, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "20 parts of 2 traces passed\n"
