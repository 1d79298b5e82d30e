"""The ring: what one process writes, another reads, whole and in order, also while it is written and after a kill."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kair_capture.agent.ring_reader import NotARingError, RingReader
from kair_capture.ring import MOST_NAMES, WORD_HEAD, WORD_MAGIC, Kind, NameReader, NameWriter, Ordering, RingProducer

SPEAKING_WRITER = """
import sys
from pathlib import Path
from kair_capture.ring import Kind
from kair_capture.ring import RingProducer

path, steps, told = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
ring = RingProducer(path, 1 << 12)
print("made", flush=True)
number = 0
for step in range(steps):
    for _ in range(10):
        number += ring.emit(Kind.SCOPE, number, number * 3 + 1, step, 1, 2, 5, number ^ 0xABCDEF)
    ring.commit(step)
    if step == told:
        print("told", flush=True)
print(number, ring.drops, flush=True)
"""


@contextmanager
def writer(path: Path, steps: int, told: int) -> Iterator[tuple["subprocess.Popen[str]", IO[str]]]:
    command = [sys.executable, "-c", SPEAKING_WRITER, str(path), str(steps), str(told)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "made\n"
        yield process, process.stdout


operations = st.lists(st.one_of(st.just("read"), st.integers(0, 40)), max_size=30)


@given(operations, st.sampled_from((1, 4, 16)))
def test_what_fits_is_read_in_order_and_the_rest_is_counted(operations: list[int | str], capacity: int) -> None:
    path = Path(f"/dev/shm/kair-test-{os.getpid()}.ring")
    path.unlink(missing_ok=True)
    ring = RingProducer(path, capacity, Ordering.AT_ONCE)
    reader = RingReader(path)
    written: list[int] = []
    seen: list[int] = []
    emitted = 0
    for operation in [*operations, "read"]:
        if isinstance(operation, str):
            seen += reader.read()["value"].tolist()
            continue
        for _ in range(operation):
            emitted += 1
            if ring.emit(Kind.SCOPE, emitted, emitted * 7, 1):
                written.append(emitted * 7)
            assert reader.waiting <= capacity
    assert seen == written
    assert ring.drops == reader.drops == emitted - len(written)
    assert reader.lost == 0
    reader.close()
    ring.close()
    path.unlink()


def test_every_field_arrives_at_its_full_width(tmp_path: Path) -> None:
    ring = RingProducer(tmp_path / "a.ring", 4)
    ring.emit(Kind.USER_EVENT, 2**64 - 1, 2**64 - 2, 2**32 - 1, 2**32 - 2, 2**16 - 1, 2**32 - 3, 2**64 - 3)
    (record,) = RingReader(tmp_path / "a.ring").read()
    assert record.item() == (
        2**64 - 1, 2**64 - 2, 2**32 - 1, 2**32 - 2, Kind.USER_EVENT, 2**16 - 1, 2**32 - 3, 2**64 - 3, 1,
    )  # fmt: skip


@pytest.mark.slow
def test_a_concurrent_reader_sees_whole_records_in_order(tmp_path: Path) -> None:
    path = tmp_path / "a.ring"
    with writer(path, 30_000, told=-1) as (process, said):
        reader, count, is_over = RingReader(path), 0, False
        while not is_over:
            # Asked before the last look: what was written until then is read by it.
            is_over = process.poll() is not None
            records = reader.read()
            numbers = records["time_ns"]
            assert (numbers == np.arange(count, count + len(records), dtype=np.uint64)).all()
            assert (records["value"] == numbers * 3 + 1).all()
            assert (records["detail"] == numbers ^ 0xABCDEF).all()
            count += len(records)
        written, drops = map(int, said.read().split())
    assert (count, reader.drops, reader.lost) == (written, drops, 0)
    assert written + drops == 300_000


def test_a_killed_writer_leaves_all_but_its_current_step(tmp_path: Path) -> None:
    path = tmp_path / "a.ring"
    with writer(path, 10**9, told=100) as (process, said):
        assert said.readline() == "told\n"
        reader = RingReader(path)
        assert reader.is_producing
        process.send_signal(signal.SIGKILL)
    assert not reader.is_producing
    committed = reader.committed()
    records = reader.read()
    assert committed is not None
    assert committed[0] >= 100
    assert reader.lost == 0
    assert (records["value"] == records["time_ns"] * 3 + 1).all()
    last = min(committed[0], (4096 - 1) // 10)  # nobody read, so the ring was full after 4,096 records
    assert all((records["step"] == step).sum() == 10 for step in range(last))


def test_a_restarted_reader_goes_on_where_the_first_one_was(tmp_path: Path) -> None:
    ring = RingProducer(tmp_path / "a.ring", 8)
    for number in range(3):
        ring.emit(Kind.SCOPE, number, 0, 0)
    first = RingReader(tmp_path / "a.ring")
    assert first.read(limit=2)["time_ns"].tolist() == [0, 1]
    first.close()
    ring.emit(Kind.SCOPE, 3, 0, 0)
    assert RingReader(tmp_path / "a.ring").read()["time_ns"].tolist() == [2, 3]


def test_without_ordered_stores_a_step_is_readable_when_the_next_one_is_over(tmp_path: Path) -> None:
    ring = RingProducer(tmp_path / "a.ring", 64, Ordering.STEP_LATE)
    reader = RingReader(tmp_path / "a.ring")
    readable = []
    for step in range(3):
        ring.emit(Kind.SCOPE, step, 0, step)
        assert reader.waiting == max(0, step - 1)
        ring.commit(step)
        readable.append((reader.waiting, reader.committed()))
    assert readable == [(0, None), (1, (0, 1)), (2, (1, 2))]
    ring.close()
    assert RingReader(tmp_path / "a.ring").waiting == 3


def test_a_record_that_interrupts_another_is_dropped_and_counted(tmp_path: Path) -> None:
    ring = RingProducer(tmp_path / "a.ring", 8)

    class Interrupting:
        def __index__(self) -> int:
            assert not ring.emit(Kind.GC, 9, 9, 9)
            return 5

    assert ring.emit(Kind.SCOPE, Interrupting(), 0, 0)  # type: ignore[arg-type]  # what a signal's handler does, at a moment that is known
    assert RingReader(tmp_path / "a.ring").read()["time_ns"].tolist() == [5]
    assert ring.drops == 1


def test_a_record_that_cannot_be_packed_leaves_the_ring_usable(tmp_path: Path) -> None:
    import struct

    ring = RingProducer(tmp_path / "a.ring", 8)
    with pytest.raises(struct.error):
        ring.emit(Kind.SCOPE, -1, 0, 0)
    ring.emit(Kind.SCOPE, 1, 0, 0)
    assert RingReader(tmp_path / "a.ring").read()["time_ns"].tolist() == [1]


def test_a_file_that_is_no_ring_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.ring"
    ring = RingProducer(path, 8)
    with pytest.raises(FileExistsError):
        RingProducer(path, 8)
    ring._words[WORD_HEAD] = 10**18
    assert RingReader(path).read().size == 0
    ring._words[WORD_MAGIC] = 1
    with pytest.raises(NotARingError):
        RingReader(path)
    (tmp_path / "short").write_bytes(b"x" * 100)
    with pytest.raises(NotARingError):
        RingReader(tmp_path / "short")
    with pytest.raises(ValueError, match="power of two"):
        RingProducer(tmp_path / "b.ring", 12)


def test_names_are_read_while_they_are_added(tmp_path: Path) -> None:
    names, reader = NameWriter(tmp_path / "a.names"), NameReader(tmp_path / "a.names")
    first = names.number("forward")
    assert reader.text(first) == "forward"
    hostile = names.number("back\nward\t\x1b[2J" + "x" * 500)
    assert names.number("forward") == first
    assert reader.text(hostile).startswith("back�ward��[2Jxxx")
    assert len(reader.text(hostile)) == 200
    assert reader.text(99) == "?"
    assert reader.text(0) == ""
    numbers = [names.number(str(number)) for number in range(MOST_NAMES)]
    assert numbers[-1] == 0
    assert reader.text(numbers[100]) == "100"
