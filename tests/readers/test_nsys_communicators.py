"""Communicators of NCCL's kernels, from the payloads of its NVTX ranges and the schemas that a report holds."""

import struct
from pathlib import Path

import polars as pl
import pytest
from support.nsys_builder import US, Export, thread_of

from kair_engine.readers.nsys import read_nsys
from kair_engine.recording.opening import open_trace
from kair_engine.trace.model import FragmentInfo
from kair_engine.views.overview import info

WORLD, PAIR = 0xABC0_0000_0000_0001, 0xFFEE_0000_0000_0002
INIT, REDUCE, GATHER, TRANSFER = 16777218, 16777223, 16777220, 16777226
ENTRIES = {
    INIT: [(18, "NCCL communicator ID", None), (5, "No. of ranks", 8), (5, "Rank", 12), (5, "CUDA device", 16)],
    REDUCE: [
        (18, "NCCL communicator ID", None),
        (22, "Message size [bytes]", 8),
        (16777232, "Reduction operation", 16),
    ],
    GATHER: [(18, "NCCL communicator ID", None), (22, "Message size [bytes]", 8)],
    TRANSFER: [(18, "NCCL communicator ID", None), (22, "Message size [bytes]", 8), (5, "Peer rank", 16)],
}
"""The schemas as NCCL registers them: type, name and offset of each entry."""
SCHEMA = """
CREATE TABLE NVTX_PAYLOAD_SCHEMAS (domainId INTEGER, schemaId INTEGER, name TEXT, type INTEGER, flags INTEGER,
    numEntries INTEGER, payloadSize INTEGER, alignTo INTEGER);
CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId INTEGER NOT NULL, schemaId INTEGER NOT NULL, idx INTEGER NOT NULL,
    flags INTEGER, type INTEGER, name TEXT, description TEXT, arrayOrUnionDetail INTEGER, offset INTEGER);
ALTER TABLE NVTX_EVENTS ADD COLUMN binaryData TEXT;
"""
REDUCTION = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)"
EXCHANGE = "ncclDevKernel_SendRecv(args)"


class Report:
    """A report of two processes that know each other's calls; times in µs."""

    def __init__(self, path: Path, *, blobs: bool = True) -> None:
        self.export, self._blobs = Export(path), blobs
        self.export.connection.executescript(SCHEMA)
        # Each of two processes registered the same ones.
        for schema, entries in [*ENTRIES.items(), *ENTRIES.items()]:
            self.export.insert("NVTX_PAYLOAD_SCHEMAS", 1, schema, None, 1, None, len(entries), 24, None)
            for at, (sort, name, offset) in enumerate(entries):
                row = (1, schema, at, None, sort, name, None, None, offset)
                self.export.insert("NVTX_PAYLOAD_SCHEMA_ENTRIES", *row)

    def span(self, thread: int, name: str, start: float, end: float, payload: bytes | None = None) -> None:
        """A range of NCCL's, with a payload or without."""
        row = (round(start * US), round(end * US), 59, None, None, None, None, thread, None, self.export.text(name), 1)
        self.export.insert("NVTX_EVENTS", *row, payload if self._blobs else None)

    def step(self, thread: int, number: int) -> None:
        """A step of 1 ms from `number` ms on."""
        row = (number * 1000 * US, (number * 1000 + 990) * US, 59, None, None, None, f"step {number}", thread)
        self.export.insert("NVTX_EVENTS", *row, None, None, 0, None)

    def read(self, out: Path) -> tuple[FragmentInfo, pl.DataFrame]:
        """The fragment's description, and the rows of NCCL's kernels in order."""
        found = read_nsys(self.export.close(), out)
        rows = pl.read_parquet(out).with_columns(pl.col("name", "kind", "group").cast(pl.String))
        return found, rows.filter(pl.col("name").str.starts_with("nccl") & (pl.col("kind") != "scope")).sort(
            "rank", "start_ns"
        )


def payload(schema: int, *values: int) -> bytes:
    """A payload as Nsight Systems stores it: a header of 32 bytes, then the fields."""
    layout = {INIT: "<Q3i4x", REDUCE: "<QQi4x", GATHER: "<QQ", TRANSFER: "<QQi4x"}[schema]
    content = struct.pack(layout, *values)
    return struct.pack("<4I2Q", 1, 0, schema, 0, len(content), 32 + len(content)) + content


def test_collectives_have_the_communicator_and_bytes_of_the_call_that_launched_them(tmp_path: Path) -> None:
    """An all-reduce by itself, then two all-gathers of a group in one kernel; the kernels run later."""
    report, thread = Report(tmp_path / "a.sqlite"), thread_of(4000)
    report.step(thread, 0)
    report.span(thread, "ncclAllReduce", 100, 120, payload(REDUCE, WORLD, 4096, 0))
    report.export.kernel(thread, REDUCTION, 300, 400, launched=110)
    for at in (130, 132):
        report.span(thread, "ncclAllGather", at, at + 1, payload(GATHER, PAIR, 100))
    report.span(thread, "ncclGroupEnd", 135, 150)
    report.export.kernel(thread, "ncclDevKernel_AllGather_RING_LL(args)", 400, 500, launched=140)
    report.export.kernel(thread, REDUCTION, 500, 600, launched=200)
    _, rows = report.read(tmp_path / "out.parquet")
    assert rows.select("kind", "group", "bytes").rows() == [
        ("collective", "communicator abc0000000000001", 4096),
        ("collective", "communicator ffee000000000002", 200),
        # No call explains the last one.
        ("collective", None, None),
    ]


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        # An exchange of all with all, oneself among them.
        ([("Send", 0), ("Recv", 0), ("Send", 1), ("Recv", 1), ("Send", 2), ("Recv", 2)], ("collective", "", 300)),
        ([("Send", 2)], ("send", ", 1 and 2", 100)),
        ([("Recv", 0)], ("recv", ", 0 and 1", 100)),
        ([("Send", 2), ("Recv", 2)], ("collective", ", 1 and 2", 100)),
        # With a ring's neighbours: whom each kernel waits for is no one set of ranks.
        ([("Send", 2), ("Recv", 0)], ("collective", None, 100)),
    ],
)
def test_transfers_are_among_those_that_their_calls_name(
    tmp_path: Path, calls: list[tuple[str, int]], expected: tuple[str, str | None, int]
) -> None:
    report, thread = Report(tmp_path / "a.sqlite"), thread_of(4000)
    report.step(thread, 0)
    report.span(thread, "ncclCommInitRankConfig", 10, 20, payload(INIT, WORLD, 3, 1, 1))
    for at, (name, peer) in enumerate(calls):
        report.span(thread, f"nccl{name}", 100 + at, 100.5 + at, payload(TRANSFER, WORLD, 100, peer))
    report.span(thread, "ncclGroupEnd", 200, 250)
    report.export.kernel(thread, EXCHANGE, 300, 400, launched=210)
    _, rows = report.read(tmp_path / "out.parquet")
    kind, members, size = expected
    group = None if members is None else f"communicator abc0000000000001{members}"
    assert rows.select("kind", "group", "bytes").rows() == [(kind, group, size)]


def test_two_pairs_with_one_kernel_s_name_are_told_apart(tmp_path: Path) -> None:
    """Ranks 0 and 1 reduce while 2 and 3 do, at about the same times: order and ends alone would take all four."""
    report = Report(tmp_path / "job" / "a.sqlite")
    for rank in range(4):
        thread = thread_of(4000 + rank)
        for step in range(4):
            at = 1000.0 * step
            report.step(thread, step)
            communicator = (WORLD, PAIR)[rank // 2]
            report.span(thread, "ncclAllReduce", at + 100, at + 120, payload(REDUCE, communicator, 4096, 0))
            late = 100 * (rank % 2)
            report.export.kernel(thread, REDUCTION, at + 300 + late, at + 500 + rank // 2, launched=at + 110)
    report.export.close()
    found = info(open_trace(tmp_path / "job", cache=tmp_path / "cache"))
    assert (found.collectives, found.matched_collectives) == (8, 8)


def test_a_report_without_the_payloads_says_how_to_export_them(tmp_path: Path) -> None:
    report, thread = Report(tmp_path / "a.sqlite", blobs=False), thread_of(4000)
    report.step(thread, 0)
    report.span(thread, "ncclAllReduce", 100, 120, payload(REDUCE, WORLD, 4096, 0))
    report.export.kernel(thread, REDUCTION, 300, 400, launched=110)
    found, rows = report.read(tmp_path / "out.parquet")
    (told,) = (one.message for one in found.warnings if one.code == "no_communicators")
    assert "--include-blobs" in told
    assert rows["group"].to_list() == [None]


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"\xff" * 31,
        payload(REDUCE, WORLD, 4096, 0)[:40],
        struct.pack("<4I2Q", 9, 0, 9, 0, 1 << 63, 5) + b"x" * 100,
        struct.pack("<4I2Q", 1, 0, REDUCE, 0, 24, 56) + b"\xff" * 24,
    ],
    ids=["empty", "short", "cut off", "of no schema", "no such size"],
)
def test_payloads_that_fit_no_schema_tell_nothing(tmp_path: Path, blob: bytes) -> None:
    report, thread = Report(tmp_path / "a.sqlite"), thread_of(4000)
    report.step(thread, 0)
    report.span(thread, "ncclAllReduce", 100, 120, blob)
    report.export.kernel(thread, REDUCTION, 300, 400, launched=110)
    _, rows = report.read(tmp_path / "out.parquet")
    assert rows.select("group", "bytes").rows() == [(None, None)]
