"""The audit finds each sample that was trained not at all or twice, and knows what a restart has undone."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kair_mitigate.audit import Audit, AuditLog, Row, audit, audit_files, audit_rows


def step_row(gen: int, step: int, begin: int, end: int, epoch: int = 0) -> Row:
    return Row(gen, epoch, begin, end, step, None, None, None)


def shard_row(begin: int, end: int, epoch: int = 0, gen: int = 1, checkpoint: str | None = None) -> Row:
    return Row(gen, epoch, begin, end, None, "a", None, checkpoint)


def test_two_epochs_in_order() -> None:
    rows = [step_row(0, epoch * 2 + step, 4 * step, 4 * step + 4, epoch) for epoch in (0, 1) for step in (0, 1)]
    assert audit_rows(rows, 8, 2) == Audit({}, {}, {}, 16, 0, 0)
    assert audit_rows(rows, 8, 3).missing == {2: ((0, 8),)}


@pytest.mark.parametrize(
    ("rows", "missing", "twice", "outside"),
    [
        ([(0, 4)], {0: ((4, 8),)}, {}, {}),
        ([(2, 4), (5, 8)], {0: ((0, 2), (4, 5))}, {}, {}),
        ([(0, 8), (1, 2), (2, 3), (1, 2)], {}, {0: ((1, 3),)}, {}),
        ([(0, 10)], {}, {}, {0: ((8, 10),)}),
        ([(-1, 8)], {}, {}, {0: ((-1, 0),)}),
        ([(0, 8), (3, 3)], {}, {}, {}),
    ],
)
def test_what_is_wrong_is_told_as_ranges(
    rows: list[tuple[int, int]],
    missing: dict[int, tuple[tuple[int, int], ...]],
    twice: dict[int, tuple[tuple[int, int], ...]],
    outside: dict[int, tuple[tuple[int, int], ...]],
) -> None:
    found = audit_rows([shard_row(begin, end) for begin, end in rows], 8, 1)
    assert (found.missing, found.twice, found.outside) == (missing, twice, outside)
    assert found.exactly_once == (not missing and not twice and not outside)


def test_of_two_generations_the_later_counts_from_its_first_step_on() -> None:
    first = [step_row(0, step, step, step + 1) for step in range(6)]
    again = [step_row(1, step, step, step + 1) for step in range(4, 7)]
    from_before = [step_row(2, step, step, step + 1) for step in range(3, 8)]
    found = audit_rows([*from_before, *first, *again], 8, 1)
    assert found == Audit({}, {}, {}, counted=8, undone=6, damaged=0)


def test_rows_of_a_checkpoint_count_with_it() -> None:
    lost = shard_row(4, 8, gen=1, checkpoint="2")
    rows = [shard_row(0, 4, gen=1, checkpoint="1"), lost, shard_row(4, 8, gen=2, checkpoint="2")]
    assert audit_rows(rows, 8, 1, committed={"1": {"a": 1}, "2": {"a": 2}}).exactly_once
    assert audit_rows(rows, 8, 1, committed={"1": {"a": 1}}).missing == {0: ((4, 8),)}


def test_files_are_audited_each_by_its_records(tmp_path: Path) -> None:
    with AuditLog(tmp_path / "a") as log:
        for file, end in (("x", 3), ("y", 4), ("z", 1)):
            log.write({"gen": 1, "worker": "a", "shard": 1, "file": file, "epoch": 0, "begin": 0, "end": end})
    found = audit_files([tmp_path / "a"], {"x": 3, "y": 5}, 1)
    assert found["x"].exactly_once
    assert found["y"].missing == {0: ((4, 5),)}
    assert found["z"].outside == {0: ((0, 1),)}


def row_text(begin: int, end: int) -> str:
    return json.dumps({"gen": 0, "rank": 0, "step": begin, "epoch": 0, "begin": begin, "end": end})


@pytest.mark.parametrize("cut", range(1, len(row_text(2, 3)) - 1))
def test_a_row_cut_by_a_kill_costs_only_itself(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "rows"
    path.write_text(row_text(0, 2) + "\n" + row_text(2, 3)[:cut])
    assert audit([path], 2, 1) == Audit({}, {}, {}, 2, 0, 1)
    with path.open("a") as file:  # who goes on without a look at what is there
        file.write(row_text(2, 4) + "\n")
    assert audit([path], 4, 1) == Audit({}, {}, {}, 4, 0, 1)


def test_a_log_goes_on_behind_a_cut_row(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_text(row_text(0, 2)[:-5])
    with AuditLog(path) as log:
        log.write(json.loads(row_text(0, 2)))
    assert audit([path], 2, 1) == Audit({}, {}, {}, 2, 0, 1)


@given(st.binary(max_size=200))
def test_any_bytes_are_read(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any-bytes"
    path.write_bytes(content)
    assert audit([path], 1, 1).damaged <= content.count(b"\n") + content.count(b"\r") + 1


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)), max_size=12))
def test_ranges_say_what_counting_says(pieces: list[tuple[int, int]]) -> None:
    found = audit_rows([shard_row(begin, begin + length) for begin, length in pieces], 10, 1)
    times = [sum(begin <= at < begin + length for begin, length in pieces) for at in range(20)]

    def inside(ranges: dict[int, tuple[tuple[int, int], ...]]) -> list[int]:
        return [at for begin, end in ranges.get(0, ()) for at in range(begin, end)]

    assert inside(found.missing) == [at for at in range(10) if times[at] == 0]
    assert inside(found.twice) == [at for at in range(20) if times[at] > 1]
    assert inside(found.outside) == [at for at in range(10, 20) if times[at]]


WRITER = """
import sys
from pathlib import Path
from kair_mitigate.audit import AuditLog
log = AuditLog(Path(sys.argv[1]))
for step in range(1_000_000_000):
    log.write({"gen": 0, "rank": 0, "step": step, "epoch": 0, "begin": step, "end": step + 1})
    if step == 100:
        print("written", flush=True)
"""


def test_what_a_killed_process_wrote_is_there(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        os.kill(process.pid, signal.SIGKILL)
    found = audit([path], 101, 1)
    assert not found.missing
    assert not found.twice
    assert found.damaged <= 1
