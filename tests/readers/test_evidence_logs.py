"""What of logs and schedulers no case of a file shows (tests/cases/evidence): limits, and what is hostile."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.cases import CASES, input_of

from kair_engine.errors import InputError
from kair_engine.readers.evidence import kernel_log, nccl_inspector, slurm, torch_memory
from kair_engine.readers.evidence.kernel_events import OBSERVED
from kair_engine.trace import xids


def file_of(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


XID_63 = "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate."


def test_a_line_in_each_spelling_is_a_kernel_s() -> None:
    text = input_of(CASES / "evidence/kernel_log/each_spelling_of_a_line").read_bytes()
    assert [kernel_log.fits("log", line) for line in text.splitlines(keepends=True)] == [True] * 11


def test_of_an_event_without_end_the_first_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "_MOST_OF_A_NAME", 3)
    storm = "alx 0000:07:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"
    lines = "\n".join(f"[{at:5d}.000000] {one}" for at, one in enumerate((*(storm,) * 9, XID_63, "usb 1-1: hello")))
    evidence = kernel_log.read(file_of(tmp_path, "dmesg", lines))
    assert evidence.table["name"].to_pylist() == ["pcie_error"] * 3 + ["xid"]
    assert any("6 more events" in note for note in evidence.sources[0].notes)
    assert evidence.sources[0].observes == OBSERVED


def test_the_table_of_xids_keeps_programs_and_devices_apart() -> None:
    assert {xids.of_code(code).sign_of for code in (48, 63, 64, 92, 94, 95, 140)} == {"memory"}
    assert {xids.of_code(code).sign_of for code in (74, 136, *range(144, 151))} == {"nvlink"}
    assert (xids.of_code(79).sign_of, xids.of_code(119).sign_of) == ("pcie", "driver")
    assert all(xids.of_code(code).is_application for code in (13, 31, 32, 43, 69))
    assert all(xids.of_code(code).is_downstream for code in (45, 145, 154))
    assert not any(xids.of_code(code).is_downstream or xids.of_code(code).is_application for code in (48, 79, 149))
    assert xids.of_code(9999).words
    assert xids.stated_cause("pid=1, name=python3, Ch 00000001 caused by previous Xid 145") == 145


def test_of_very_many_collectives_the_same_numbers_are_kept_on_every_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl_inspector, "_MOST_OPERATIONS", 10)
    case = "nccl_inspector/collectives_of_the_inspector_are_of_the_rank_of_the_largest_communicator"
    one = json.loads(input_of(CASES / "evidence" / case).read_text().splitlines()[0])
    lines = [json.dumps({**one, "coll_perf": {**one["coll_perf"], "coll_sn": number}}) for number in range(35)]
    evidence = nccl_inspector.read(file_of(tmp_path, "a.log", "\n".join(lines)))
    numbers = {int(one["text"].rpartition(" ")[2]) for one in evidence.table.to_pylist()}
    assert numbers == {0, 4, 8, 12, 16, 20, 24, 28, 32}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node[01-03,07]", ["node01", "node02", "node03", "node07"]),
        ("a,b[1-2],c", ["a", "b1", "b2", "c"]),
        ("r[1-2]n[08-10]", ["r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10"]),
        ("node[3-1]", []),
        ("node[", ["node["]),
        ("", []),
    ],
)
def test_lists_of_nodes_are_expanded(text: str, expected: list[str]) -> None:
    assert slurm.nodes(text) == expected


@given(st.text(alphabet="n[]-,0129", max_size=40))
@example("n[0-999999999][0-999999999][0-999999999]")
def test_no_list_of_nodes_is_too_long(text: str) -> None:
    assert len(slurm.nodes(text)) <= 20_000


def snapshot(*entries: tuple[str, int, int], reserved: int, allocated: int) -> bytes:
    trace = [
        {"action": action, "size": size, "time_us": 1_795_788_171_000_000 + at, "frames": []}
        for action, size, at in entries
    ]
    segment = {"device": 0, "total_size": reserved, "allocated_size": allocated, "segment_type": "large", "blocks": []}
    return pickle.dumps({"segments": [segment], "device_traces": [trace], "allocator_settings": {"PYTORCH": ""}})


def test_a_long_snapshot_is_thinned_and_keeps_its_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_memory, "_MOST_POINTS", 8)
    steps = [(("alloc", "free_requested")[at % 2], 7 if at // 2 != 21 else 90, at) for at in range(100)]
    evidence = torch_memory.read(file_of(tmp_path, "rank0.pickle", snapshot(*steps, reserved=9, allocated=1000)))
    values = [one["value"] for one in evidence.table.to_pylist() if one["name"] == "torch_allocated"]
    assert (len(values), max(values)) == (9, 1090)


def test_a_pickle_that_would_run_something_is_refused(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
            return os.system, (f"touch {tmp_path / 'ran'}",)

    content = pickle.dumps({"device_traces": [[Harm()]]})
    with pytest.raises(InputError, match="plain values"):
        torch_memory.read(file_of(tmp_path, "rank0.pickle", content))
    assert not (tmp_path / "ran").exists()
