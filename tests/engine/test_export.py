"""A job in one file: what is written is what was recorded, in Perfetto's own schema too."""

import gzip
import json
import resource
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support import kineto_builder as kb
from support.answers import recorded
from support.places import MEGATRON, SAMPLES
from support.trace_builder import trace

from kair_engine.errors import UnwritableError, UsageError
from kair_engine.export.writing import export, write_timelines
from kair_engine.recording.opening import open_trace
from kair_engine.trace.model import Trace
from kair_engine.whatif.analysis import model_of

pytestmark = pytest.mark.slow

CROSSING = """
    step 0: 0+100
    0-1 main | outer 0+50 | inner 10+20 | crosses 40+30 | after 80+5
    0-1 gpu7 | gemm 5+30 | gemm 35+30
"""
"""`crosses` begins in `outer` and ends after it: no row of nested slices can hold both."""


def packets(path: Path) -> Any:  # noqa: ANN401 - of a class that Perfetto makes when it is imported
    """The file, read with Perfetto's own classes."""
    schema = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    read = schema.Trace()
    read.ParseFromString(path.read_bytes())
    return read.packet


def slices_of(path: Path) -> list[tuple[int, str, int, int]]:
    """(track, name, begin, duration) of every slice, as Perfetto's importer stacks begins and ends."""
    names: dict[int, str] = {}
    events = []
    for at, packet in enumerate(packets(path)):
        names |= {one.iid: one.name for one in packet.interned_data.event_names}
        if packet.HasField("track_event"):
            event = packet.track_event
            events.append((packet.timestamp, at, event.type, event.track_uuid, names.get(event.name_iid, "")))
    found = []
    under_way: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for time, _, sort, track, name in sorted(events):
        if sort == 1:
            under_way[track].append((name, time))
        elif sort == 2:
            begun, since = under_way[track].pop()
            found.append((track, begun, since, time - since))
    assert not any(under_way.values())
    return found


def recorded_rows(of: Trace) -> Counter[tuple[str, int]]:
    """(name, duration) of every operation."""
    steps = (pl.col("kind").cast(pl.String) == "scope") & (pl.col("name").cast(pl.String) == "step")
    rows = of.scan().filter(~steps).select(pl.col("name").cast(pl.String), "duration_ns").collect()
    return Counter(rows.iter_rows())


def two_ranks_of(source: Path, folder: Path) -> Trace:
    """All that a rank's GPU did, as often as is needed to see it."""
    (folder / "job").mkdir()
    for file in sorted(source.glob("*.json.gz"))[:2]:
        (folder / "job" / file.name).symlink_to(file)
    return open_trace(folder / "job", cache=folder / "cache")


@pytest.mark.parametrize("source", [SAMPLES / "slow_operator", MEGATRON], ids=["sample", "megatron"])
def test_perfetto_reads_a_slice_for_every_operation(tmp_path: Path, source: Path) -> None:
    if not source.exists():
        pytest.skip("no such recording beside the checkout")
    job = recorded(source) if source != MEGATRON else two_ranks_of(source, tmp_path)
    done = export(job, tmp_path / "job.pftrace", plain=True)
    found = slices_of(tmp_path / "job.pftrace")
    assert done.rows == len(found) == job.job.operations
    assert Counter((name, length) for _, name, _, length in found) == recorded_rows(job)


def test_perfetto_reads_the_timelines_of_what_if(tmp_path: Path) -> None:
    job = recorded(SAMPLES / "slow_operator")
    model = model_of(job.select(job.steps[:1]))
    write_timelines(model, tmp_path / "job.pftrace")
    write_timelines(model, tmp_path / "job.json")
    events = json.loads((tmp_path / "job.json").read_text())["traceEvents"]
    drawn = Counter((one["name"], round(one["dur"] * 1e3)) for one in events if one["ph"] == "X")
    assert Counter((name, length) for _, name, _, length in slices_of(tmp_path / "job.pftrace")) == drawn


def test_what_crosses_gets_a_row_of_its_own(tmp_path: Path) -> None:
    export(trace(tmp_path / "job", CROSSING), tmp_path / "job.pftrace", plain=True)
    found = slices_of(tmp_path / "job.pftrace")
    tracks = {name: track for track, name, *_ in found}
    assert tracks["outer"] == tracks["inner"] == tracks["after"] != tracks["crosses"]
    assert Counter(name for _, name, *_ in found)["gemm"] == 4


def test_findings_are_marks_and_blame_leads_along_arrows(tmp_path: Path) -> None:
    job = recorded(SAMPLES / "slow_operator")
    done = export(job, tmp_path / "job.json.gz")
    events = json.loads(gzip.decompress((tmp_path / "job.json.gz").read_bytes()))["traceEvents"]
    of = defaultdict(list)
    for event in events:
        of[event["ph"]].append(event)
    assert len(of["X"]) == done.rows == job.job.operations
    marks = [event for event in of["i"] if event["cat"] == "finding"]
    assert {(event["name"], event["pid"]) for event in marks} == {("finding: compute in kair_sample::mlp", 3)}
    assert len(marks) == done.findings == len(job.steps)
    assert sorted(event["id"] for event in of["s"]) == sorted(event["id"] for event in of["f"])
    assert len(of["s"]) == done.arrows > 0
    # Arrows lead on in time, from the guilty rank to others.
    begins = {event["id"]: event for event in of["s"]}
    assert all(begins[event["id"]]["ts"] <= event["ts"] for event in of["f"])
    assert any(begins[event["id"]]["pid"] == 3 != event["pid"] for event in of["f"])


@pytest.mark.parametrize("name", ["job.parquet", "job.csv", "job.arrow"])
def test_the_table_is_the_recording(tmp_path: Path, name: str) -> None:
    job = recorded(SAMPLES / "slow_operator").select([4, 5])
    done = export(job, tmp_path / name)
    read = {"parquet": pl.read_parquet, "csv": pl.read_csv, "arrow": pl.read_ipc}[name.partition(".")[2]]
    table = read(tmp_path / name)
    assert (len(table), set(table["step"])) == (done.rows, {4, 5})
    assert table["duration_ns"].sum() == job.scan().select(pl.col("duration_ns").sum()).collect().item()


def test_names_obey_no_terminal_and_no_spreadsheet(tmp_path: Path) -> None:
    names = ("=1+1", "\uff1d1+1", "@SUM(1)", "a\x1b[2Jb", "\u202egnp.exe", "\x9b31m", "del\x7f")
    events = kb.training_steps(2)
    for one, name in zip([one for one in events if one["name"] != "ProfilerStep#2"][2:], names, strict=False):
        one["name"] = name
    job = open_trace(kb.write(tmp_path / "rank0.json", kb.trace(events)), cache=tmp_path / "cache")
    export(job, tmp_path / "job.csv")
    export(job, tmp_path / "job.json", plain=True)
    table = set(pl.read_csv(tmp_path / "job.csv")["name"])
    assert table >= {"'=1+1", "'\uff1d1+1", "'@SUM(1)", "a\ufffd[2Jb", "\ufffdgnp.exe", "\ufffd31m", "del\ufffd"}
    text = (tmp_path / "job.json").read_text(encoding="ascii")
    assert {one.get("name") for one in json.loads(text)["traceEvents"]} >= set(names)
    assert not {"\x1b", "\x7f"} & set(text)


@pytest.mark.parametrize(("name", "said"), [("job.txt", "has no known ending"), ("no/folder/job.csv", "cannot write")])
def test_what_cannot_be_written_leaves_nothing_behind(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        export(recorded(SAMPLES / "slow_operator").select([4]), tmp_path / name, plain=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["job.parquet", "job.csv", "job.json"])
def test_a_full_disk_is_no_wrong_usage(tmp_path: Path, name: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    job = recorded(SAMPLES / "slow_operator").select([4])
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(UnwritableError) as failure:
            export(job, tmp_path / name, plain=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(failure.value) == f"cannot write {tmp_path / name}: File too large"
    assert list(tmp_path.iterdir()) == []
