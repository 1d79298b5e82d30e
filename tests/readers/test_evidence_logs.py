"""Logs and schedulers as evidence: texts as the field writes them, and what of them counts."""

import json
import os
import pickle
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.hang_texts import HEAD, NONE, OF_ALL, mismatch, process

from kair_engine.errors import InputError
from kair_engine.readers.evidence import (
    kernel_log,
    kubernetes,
    nccl_inspector,
    nccl_ras,
    slurm,
    torch_memory,
)
from kair_engine.readers.evidence.kernel_events import OBSERVED
from kair_engine.trace import xids
from kair_engine.trace.evidence_table import EvidenceFile, read_evidence, write_evidence
from kair_engine.trace.measures import MEASURES

READERS = (kernel_log, kubernetes, nccl_inspector, nccl_ras, slurm, torch_memory)


def unix(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 10**9


def file_of(folder: Path, name: str, text: str | bytes, *, written: str | None = None) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    if written is not None:
        os.utime(path, ns=(unix(written), unix(written)))
    return path


def events(evidence: EvidenceFile) -> list[tuple[str, str]]:
    """(Name, entity) of all rows, in order of time."""
    return [(one["name"], one["entity"]) for one in evidence.table.to_pylist()]


def kernel(folder: Path, *messages: str) -> list[tuple[str, str]]:
    """The events of a log of these messages, a second apart, and of a usual one."""
    lines = [f"[{100 + at:5d}.123456] {one}" for at, one in enumerate((*messages, "random: crng init done"))]
    return events(kernel_log.read(file_of(folder, "dmesg.txt", "\n".join(lines))))


XID_63 = "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate."


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (XID_63, ("xid", "pci:0000:10:1c.0")),
        ("NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics SM", ("xid", "pci:0000:cb:00.0")),
        ("NVRM: Xid (0000:01:00): 31, Ch 0000000b, engmask 00000120, intr 10000000", ("xid", "pci:0000:01:00.0")),
        ("NVRM: Xid (PCI:0000:07:00 GPU-I:05): 94, pid=1, Contained: SM (0x1)", ("xid", "pci:0000:07:00.0")),
        ("NVRM: Xid (PCI:0008:01:00): 149, NETIR_LINK_DOWN Fatal XC0 i0 Link 14 (0x0)", ("xid", "pci:0008:01:00.0")),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, Link 28 LTSSM Fault Up",
            ("sxid", "pci:0000:c2:00.0"),
        ),
        (
            "alx 0000:07:00.0: AER: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Receiver ID)",
            ("pcie_error", "pci:0000:07:00.0"),
        ),
        ("pcieport 0000:5d:02.0: pciehp: Slot(4): Link Down", ("pcie_error", "pci:0000:5d:02.0")),
        ("mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: 8c00004000010091", ("machine_check", "host")),
        ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1)", ("machine_check", "host")),
        ("Out of memory: Killed process 4711 (python) total-vm:12kB, anon-rss:4kB, UID:0", ("oom_kill", "pid:4711")),
        ("mlx5_core 0000:3b:00.0 eth0: Link down", ("link_down", "nic:eth0")),
        ("ixgbe 0000:06:00.1: eth2: NIC Link is Up 10 Gbps, Flow Control: RX", ("link_up", "nic:eth2")),
        ("igb 0000:01:00.0 eth1: igb: eth1 NIC Link is Down", ("link_down", "nic:eth1")),
        ("bond0: (slave ens3f0np0): link status definitely down, disabling slave", ("link_down", "nic:ens3f0np0")),
        ("mlx5_core 0000:3b:00.0 mlx5_0: Port: 1 Link DOWN", ("link_down", "nic:mlx5_0/1")),
        ("infiniband mlx5_3: Port: 1 Link ACTIVE", ("link_up", "nic:mlx5_3/1")),
        (
            "mlx5_core 0000:3b:00.0: Port module event[error]: module 0, Cable error, High Temperature",
            ("nic_hot", "pci:0000:3b:00.0"),
        ),
        (
            "mlx5_core 0000:3b:00.0: mlx5_pcie_event:301: Detected insufficient power on the PCIe slot (27W).",
            ("nic_power", "pci:0000:3b:00.0"),
        ),
        ("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:4711]", ("soft_lockup", "host")),
        ("INFO: task python3:4711 blocked for more than 122 seconds.", ("soft_lockup", "pid:4711")),
        ("mce: CPU3: Core temperature above threshold, cpu clock throttled (total events = 9)", ("cpu_hot", "host")),
        ("nfs: server 10.0.0.5 not responding, still trying", ("storage_stall", "disk:10.0.0.5")),
        ("blk_update_request: I/O error, dev sda, sector 1234 op 0x0:(READ) flags 0x0", ("disk_error", "disk:sda")),
        ("I/O error, dev nvme0n1, sector 1234 op 0x0:(READ) flags 0x80700", ("disk_error", "disk:nvme0n1")),
    ],
)
def test_what_a_message_tells_and_of_whom(message: str, expected: tuple[str, str], tmp_path: Path) -> None:
    assert kernel(tmp_path, message) == [expected]
    assert expected[0] in OBSERVED


@pytest.mark.parametrize(
    "message",
    [
        "ata1: SATA link down (SStatus 0 SControl 300)",
        "mce: CPU0: Thermal monitoring enabled (TM1)",
        "mce: CPU3: Core temperature/speed normal",
        "EDAC MC: Ver: 3.0.0",
        "mlx5_core 0000:3b:00.0: PCIe slot advertised sufficient power (27W).",
        "mlx5_core 0000:3b:00.0: Port module event: module 0, Cable plugged",
        "mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link INIT",
        "nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Severity 1 Engine instance 28 Sub-engine instance 00",
        "usb 1-1: new high-speed USB device number 3 using xhci_hcd",
    ],
)
def test_what_is_no_event(message: str, tmp_path: Path) -> None:
    assert kernel(tmp_path, message) == []


def test_an_event_of_several_lines_counts_once(tmp_path: Path) -> None:
    told = kernel(
        tmp_path,
        "pcieport 0000:00:1c.1: AER: Multiple Corrected error received: 0000:00:1c.1",
        "pcieport 0000:00:1c.1: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)",
        "pcieport 0000:00:1c.1:   device [8086:8c12] error status/mask=00001000/00002000",
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=a,task_memcg=/b,task=python,pid=4711,uid=0",
        "Memory cgroup out of memory: Killed process 4711 (python) total-vm:1kB, anon-rss:2kB",
        "pcieport 0000:00:1c.1: AER: Uncorrected (Fatal) error received: 0000:00:1c.1",
    )
    assert told == [("pcie_error", "pci:0000:00:1c.1"), ("oom_kill", "pid:4711"), ("pcie_error", "pci:0000:00:1c.1")]


def test_announcements_that_nothing_follows_count_each(tmp_path: Path) -> None:
    """Kernels without a device of that number announce errors, and say no more."""
    announced = "pcieport 0000:00:1c.5: AER: Corrected error received: id=00e5"
    odd = "pcieport 0000:00:1c.5: can't find device of ID00e5"
    assert kernel(tmp_path, *(announced, odd, odd) * 3) == [("pcie_error", "pci:0000:00:1c.5")] * 3


NIGHT = "2026-11-27T14:02:51"


@pytest.mark.parametrize(
    ("line", "host"),
    [
        (f"Nov 27 14:02:51 node-7 kernel: [12345.678901] {XID_63}", "node-7"),
        (f"Nov 27 14:02:51 node-7 kernel: {XID_63}", "node-7"),
        (f"Nov 27 14:02:51.123456 node-7 kernel: {XID_63}", "node-7"),
        (f"2026-11-27T15:02:51.000000+01:00 node-7 kernel: [12345.678901] {XID_63}", "node-7"),
        (f"2026-11-27T15:02:51+0100 node-7 kernel: {XID_63}", "node-7"),
        (f"<4>1 2026-11-27T14:02:51Z node-7 kernel - - - [12345.678901] {XID_63}", "node-7"),
        (f"1795788171.000000 node-7 kernel: {XID_63}", "node-7"),
        (f"2026-11-27T15:02:51,000000+01:00 {XID_63}", None),
        (f"kern  :err   : 2026-11-27T14:02:51,000000+00:00 {XID_63}", None),
        (f"[Fri Nov 27 14:02:51 2026] {XID_63}", None),
        (f"kern  :err   : [Fri Nov 27 14:02:51 2026] {XID_63}", None),
    ],
)
def test_a_line_in_each_spelling_has_its_time_and_host(line: str, host: str | None, tmp_path: Path) -> None:
    path = file_of(tmp_path, "log", f"{line}\n", written="2026-12-01T09:41:13")
    assert kernel_log.fits("log", f"{line}\n".encode())
    (row,) = kernel_log.read(path).table.to_pylist()
    assert (row["time_ns"], row["host"], row["entity"], row["value"]) == (unix(NIGHT), host, "pci:0000:10:1c.0", 63.0)
    assert row["text"].startswith("a row of device memory is remapped")
    assert (row["rank"], row["raw"]) == (None, "log:1")


def test_a_message_goes_on_in_indented_lines(tmp_path: Path) -> None:
    text = (
        "[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0\n"
        "               NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        "               NVRM: fallen off the bus and is not responding to commands.\n"
        "[ 1843.439662] NVRM: The NVIDIA probe routine failed for 1 device(s).\n"
        "[ 1844.000000] NVRM: The NVIDIA GPU 0000:b4:00.0\n"
        "another program\n"
        "               its GPU has fallen off the bus\n"
    )
    evidence = kernel_log.read(file_of(tmp_path, "dmesg", text))
    (row,) = evidence.table.to_pylist()
    assert (row["name"], row["entity"], row["value"], row["raw"]) == ("xid", "pci:0000:b3:00.0", 79.0, "dmesg:1")
    assert evidence.sources[0].passed_over == 2


def test_of_an_event_without_end_the_first_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "_MOST_OF_A_NAME", 3)
    storm = "alx 0000:07:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"
    lines = "\n".join(f"[{at:5d}.000000] {one}" for at, one in enumerate((*(storm,) * 9, XID_63, "usb 1-1: hello")))
    evidence = kernel_log.read(file_of(tmp_path, "dmesg", lines))
    assert [name for name, _ in events(evidence)] == ["pcie_error"] * 3 + ["xid"]
    assert any("6 more events" in note for note in evidence.sources[0].notes)
    assert evidence.sources[0].observes == OBSERVED


def test_the_journal_as_json_is_the_kernel_s_alone(tmp_path: Path) -> None:
    usual = {
        "__REALTIME_TIMESTAMP": "1795788171000000",
        "_HOSTNAME": "node-7",
        "_TRANSPORT": "kernel",
        "MESSAGE": "hello",
    }
    lines: list[dict[str, Any]] = [
        usual,
        {**usual, "MESSAGE": XID_63, "SYSLOG_FACILITY": "0"},
        {**usual, "MESSAGE": list(b"mlx5_core 0000:3b:00.0 eth0: Link down\x1b[2J")},
        # Others call themselves what they like; the journal knows better.
        {**usual, "MESSAGE": XID_63, "_TRANSPORT": "syslog", "SYSLOG_IDENTIFIER": "kernel"},
        {**usual, "MESSAGE": XID_63, "SYSLOG_FACILITY": "1"},
        {**usual, "MESSAGE": None},
        {**usual, "MESSAGE": XID_63, "__REALTIME_TIMESTAMP": "9" * 40},
    ]
    text = "\n".join(json.dumps(one) for one in lines) + '\n{"MESSAGE": "cut'
    path = file_of(tmp_path, "journal.json", text)
    assert kernel_log.fits("journal.json", text.encode())
    evidence = kernel_log.read(path)
    assert events(evidence) == [("xid", "pci:0000:10:1c.0"), ("link_down", "nic:eth0")]
    (source,) = evidence.sources
    assert (source.clock, source.bound_s, source.passed_over, source.hosts) == ("host", 1e-3, 5, ("node-7",))
    assert evidence.table["time_ns"].to_pylist() == [unix(NIGHT)] * 2


def test_seconds_since_the_start_become_real_ones_by_lines_that_state_both(tmp_path: Path) -> None:
    text = (
        "[    1.000000] rtc_cmos 00:02: setting system clock to 2026-11-27T13:00:01 UTC (1795784401)\n"
        f"[ 3771.000000] {XID_63}\n"
        '[ 3781.000000] audit: type=1400 audit(1795788181.000:5): apparmor="STATUS"\n'
    )
    evidence = kernel_log.read(file_of(tmp_path, "dmesg", text, written="2027-01-01T00:00:00"))
    (source,) = evidence.sources
    assert evidence.table["time_ns"].to_pylist() == [unix(NIGHT)]
    assert source.clock == "host"
    # The nearest line of audit is 10 s away, and the clock was not set anew between it and the first line.
    assert source.bound_s == pytest.approx(0.01 + 10e-4, abs=1e-9)
    later = kernel_log.read(file_of(tmp_path, "dmesg", f"{text}[ 3791.000000] {XID_63}\n"))
    assert (later.table["time_ns"].to_pylist()[-1], later.sources[0].bound_s) == (unix("2026-11-27T14:03:11"), None)
    stepped = kernel_log.read(file_of(tmp_path, "dmesg", text.replace("(1795784401)", "(1795784341)")))
    assert stepped.sources[0].bound_s == pytest.approx(60.011, abs=1e-9)
    without = kernel_log.read(file_of(tmp_path, "dmesg", text.replace("audit: ", "odd: ")))
    assert without.table["time_ns"].to_pylist() == [unix(NIGHT)]
    assert (without.sources[0].clock, without.sources[0].bound_s) == ("boot", None)


def test_without_such_lines_the_file_is_assumed_to_be_as_old_as_its_last_line(tmp_path: Path) -> None:
    text = f"[ 3771.000000] {XID_63}\n[ 3781.000000] usb 1-1: USB disconnect\n"
    evidence = kernel_log.read(file_of(tmp_path, "dmesg", text, written="2026-11-27T14:03:01"))
    (source,) = evidence.sources
    assert evidence.table["time_ns"].to_pylist() == [unix(NIGHT)]
    assert (source.clock, source.bound_s) == ("boot", None)
    assert any("assumed" in note for note in source.notes)
    assert (source.first_ns, source.last_ns) == (unix(NIGHT), unix("2026-11-27T14:03:01"))


def test_a_live_log_s_zone_is_that_in_which_its_last_line_is_new(tmp_path: Path) -> None:
    text = f"Nov 27 14:02:51 node-7 kernel: {XID_63}\nNov 27 23:59:58 node-7 kernel: hello\n"
    live = kernel_log.read(file_of(tmp_path, "kern.log", text, written="2026-11-27T18:29:59"))
    assert live.table["time_ns"].to_pylist() == [unix("2026-11-27T08:32:51")]
    assert any("UTC+05:30" in note for note in live.sources[0].notes)
    copied = kernel_log.read(file_of(tmp_path, "kern.log", text, written="2026-12-04T18:33:12"))
    assert copied.table["time_ns"].to_pylist() == [unix(NIGHT)]
    assert (copied.sources[0].bound_s, any("no zone" in note for note in copied.sources[0].notes)) == (None, True)


def test_lines_of_the_old_year_are_not_of_the_new_one(tmp_path: Path) -> None:
    text = f"Dec 31 23:59:59 node-7 kernel: {XID_63}\nJan  1 00:00:01 node-7 kernel: {XID_63}\n"
    evidence = kernel_log.read(file_of(tmp_path, "kern.log", text, written="2027-01-05T10:03:07"))
    assert evidence.table["time_ns"].to_pylist() == [unix("2026-12-31T23:59:59"), unix("2027-01-01T00:00:01")]


def test_without_a_host_a_device_is_named_by_its_uuid(tmp_path: Path) -> None:
    uuid = "GPU-bc0fa0b9-cac2-f507-b715-9bebdb69c71e"
    told = kernel(tmp_path, f"NVRM: GPU at PCI:0000:10:1c: {uuid}", XID_63)
    assert told == [("xid", f"gpu:{uuid}")]
    told = kernel(tmp_path, "systemd[1]: Hostname set to <node-7>.", f"NVRM: GPU at PCI:0000:10:1c: {uuid}", XID_63)
    assert told == [("xid", "pci:0000:10:1c.0")]


def test_a_host_s_folder_names_it(tmp_path: Path) -> None:
    (tmp_path / "host=node-9").mkdir()
    evidence = kernel_log.read(
        file_of(tmp_path / "host=node-9", "dmesg", f"[    1.000000] hello\n[    2.000000] {XID_63}\n")
    )
    assert (evidence.table["host"].to_pylist(), evidence.sources[0].hosts) == (["node-9"], ("node-9",))


def test_an_xid_is_an_event_at_its_time_and_lasts_no_longer(tmp_path: Path) -> None:
    """Trap 7: an exporter's gauge shows the last XID for ever."""
    text = f"[  100.000000] {XID_63}\n[  200.000000] {XID_63}\n[90000.000000] usb 1-1: USB disconnect\n"
    evidence = kernel_log.read(file_of(tmp_path, "dmesg", text))
    (source,) = evidence.sources
    first, second = evidence.table["time_ns"].to_pylist()
    assert (second - first, MEASURES["xid"].kind) == (100 * 10**9, "event")
    assert source.last_ns is not None
    assert source.last_ns - second == 89_800 * 10**9
    assert (source.interval_s, source.gaps) == (None, 0)


def test_of_many_devices_one_has_the_cause(tmp_path: Path) -> None:
    """Trap 13: 63 devices told of lost requests, one of the link that went down."""
    link = "NVRM: Xid (PCI:0008:0e:00): 149, NETIR_LINK_DOWN Fatal XC0 i0 Link 14 (0x0 0x0)"
    lost = [f"NVRM: Xid (PCI:0008:{at:02x}:00): 145, RLW_SRC_TRACK Fatal XC0 i0 Link 02 (0x7)" for at in range(16, 79)]
    killed = "NVRM: Xid (PCI:0008:10:00): 45, pid=1, name=python3, Ch 00000001 caused by previous Xid 145"
    lines = "\n".join(f"[  100.{at:06d}] {one}" for at, one in enumerate((*lost, link, killed, "hello")))
    told = kernel_log.read(file_of(tmp_path, "dmesg", lines)).table.to_pylist()
    causes = [one["entity"] for one in told if not xids.of_code(int(one["value"])).is_downstream]
    assert (len(told), causes) == (65, ["pci:0008:0e:00.0"])
    assert [xids.told_cause(one["text"]) for one in told if one["value"] == 45] == [145]


def test_the_table_of_xids_keeps_programs_and_devices_apart() -> None:
    assert {xids.of_code(code).sign_of for code in (48, 63, 64, 92, 94, 95, 140)} == {"memory"}
    assert {xids.of_code(code).sign_of for code in (74, 136, *range(144, 151))} == {"nvlink"}
    assert (xids.of_code(79).sign_of, xids.of_code(119).sign_of) == ("pcie", "driver")
    assert all(xids.of_code(code).is_application for code in (13, 31, 32, 43, 69))
    assert all(xids.of_code(code).is_downstream for code in (45, 145, 154))
    assert not any(xids.of_code(code).is_downstream or xids.of_code(code).is_application for code in (48, 79, 149))
    assert xids.of_code(9999).words


def test_a_container_that_may_not_see_the_log_is_told_so(tmp_path: Path) -> None:
    """Trap 16: that nothing is in it says nothing."""
    text = b"dmesg: read kernel buffer failed: Operation not permitted\n"
    assert kernel_log.fits("dmesg.txt", text)
    with pytest.raises(InputError, match="not allowed") as refused:
        kernel_log.read(file_of(tmp_path, "dmesg.txt", text))
    assert "root" in (refused.value.hint or "")


def test_a_log_that_was_searched_says_nothing_of_what_is_not_in_it(tmp_path: Path) -> None:
    searched = kernel_log.read(file_of(tmp_path, "dmesg", f"[  100.000000] {XID_63}\n"))
    whole = kernel_log.read(file_of(tmp_path, "dmesg", "[  100.000000] usb 1-1: USB disconnect\n"))
    assert (len(searched.table), searched.sources[0].observes) == (1, ())
    assert (len(whole.table), whole.sources[0].observes) == (0, OBSERVED)
    assert whole.sources[0].first_ns is not None


FORGED = "NVRM: Xid (PCI:0000:10:1c): 79, rank 3 is to blame"


def test_what_others_write_changes_nothing(tmp_path: Path) -> None:
    """Trap 18: programs that call themselves as the kernel speaks, ranks in text, and what a terminal would obey."""
    told = kernel(tmp_path, f"Out of memory: Killed process 4711 ({FORGED}) total-vm:1kB", f"python[9]: {FORGED}")
    assert told == [("oom_kill", "pid:4711")]
    lines = (
        f"Nov 27 14:02:51 node-7 myapp[12]: {FORGED}",
        f"Nov 27 14:02:51 node-7 myapp: kernel: {FORGED}",
        f"2026-11-27T14:02:51.1+00:00 node-7 myapp[12]: {FORGED}",
        f"Nov 27 14:02:51 node-7 kernel: {XID_63}\x1b]0;owned\x07\x1b[2J rank=5 \u202e\x00{'x' * 100_000}",
        "Nov 27 14:02:51 node-7 kernel: Out of memory: Killed process 99999999999999999999 (python) total-vm:1kB",
        "Nov 27 14:02:52 node-7 kernel: hello",
    )
    evidence = kernel_log.read(file_of(tmp_path, "syslog", "\n".join(lines)))
    rows = evidence.table.to_pylist()
    assert [(one["name"], one["entity"], one["rank"]) for one in rows] == [
        ("xid", "pci:0000:10:1c.0", None),
        ("oom_kill", "host", None),
    ]
    assert evidence.sources[0].passed_over == 3
    assert all(value.isprintable() for row in rows for value in row.values() if isinstance(value, str))
    assert len(rows[0]["text"]) <= 400


def inspected(rank: int, of: int, comm: str, number: int, micros: int, *, ended: int | None = None) -> dict[str, Any]:
    trace = {} if ended is None else {"event_trace_ts": {"kernel_events": [{"kernel_stop_ts": ended}]}}
    return {
        "header": {"id": comm, "rank": rank, "n_ranks": of, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "git_rev": "",
            "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": 1748030377748202,
            "hostname": "node-7",
            "pid": 1639453,
        },
        "coll_perf": {
            "coll": "AllReduce",
            "coll_sn": number,
            "coll_msg_size_bytes": 17179869184,
            "coll_exec_time_us": micros,
            "coll_algobw_gbs": 277.210914,
            "coll_busbw_gbs": 485.119099,
            **trace,
        },
    }


def test_collectives_of_the_inspector_are_of_the_rank_of_the_largest_communicator(tmp_path: Path) -> None:
    lines = [inspected(2, 8, "0x7f8c", 1407, 61974, ended=1748030377000000), inspected(0, 2, "0xaa", 3, 500)]
    text = "\n".join(json.dumps(one) for one in lines)
    assert nccl_inspector.fits("node-7-pid1639453.log", text.encode())
    evidence = nccl_inspector.read(file_of(tmp_path, "node-7-pid1639453.log", text))
    times = [one for one in evidence.table.to_pylist() if one["name"] == "nccl_time"]
    assert [(one["entity"], one["host"], one["value"], one["time_ns"]) for one in times] == [
        ("rank:2", "node-7", pytest.approx(0.061974), 1748030377000000000),
        ("rank:2", "node-7", pytest.approx(0.0005), 1748030377748202000),
    ]
    assert times[0]["text"] == "AllReduce of 17179869184 B by 2 of 8 in 0x7f8c, no. 1407"
    assert {one["name"] for one in evidence.table.to_pylist()} == {
        "nccl_time",
        "nccl_bus_bandwidth",
        "nccl_algorithm_bandwidth",
    }
    assert nccl_inspector.ranks_of(8) in evidence.sources[0].notes
    assert nccl_inspector.ranks_of(16) not in evidence.sources[0].notes


def test_lines_of_new_inspectors_belong_to_the_line_that_says_whose_they_are(tmp_path: Path) -> None:
    whole = inspected(5, 8, "0x7f8c", 1, 100)
    marker = {key: whole[key] for key in ("header", "metadata")} | {
        "dump_stats": {"coll_records": 1, "coll_dropped_total": 512}
    }
    body = {"coll_perf": whole["coll_perf"]}
    lines = [body, marker, body, {"header": {"rank": -4}, "metadata": {}, "dump_stats": {}}, body]
    evidence = nccl_inspector.read(file_of(tmp_path, "a.log", "\n".join(json.dumps(one) for one in lines)))
    assert {one["entity"] for one in evidence.table.to_pylist()} == {"rank:5"}
    assert (len(evidence.table), evidence.sources[0].passed_over) == (3, 3)
    assert any("512 operations were overwritten" in note for note in evidence.sources[0].notes)


def test_of_very_many_collectives_the_same_numbers_are_kept_on_every_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl_inspector, "_MOST_OPERATIONS", 10)
    text = "\n".join(json.dumps(inspected(1, 8, "0x7f8c", number, 100)) for number in range(35))
    evidence = nccl_inspector.read(file_of(tmp_path, "a.log", text))
    numbers = {int(one["text"].rpartition(" ")[2]) for one in evidence.table.to_pylist()}
    assert numbers == {0, 4, 8, 12, 16, 20, 24, 28, 32}


def test_the_inspector_s_samples_are_of_the_device_that_the_file_is_named_for(tmp_path: Path) -> None:
    labels = (
        'version="v5.1",slurm_job_id="unknown",node="node-7",gpu="GPU0",comm_name="DP Group 0",n_nodes="1",nranks="4"'
    )
    more = 'collective="AllReduce",message_size="4-5GB",algo_proto="Ring_ll"'
    text = (
        f"nccl_bus_bandwidth_gbs{{{labels},{more}}} 678.263\n"
        f"nccl_collective_exec_time_microseconds{{{labels},{more}}} 9498.47\nnonsense\n"
    )
    name = "nccl_inspector_metrics_bc0fa0b9-cac2-f507-b715-9bebdb69c71e.prom"
    assert nccl_inspector.fits(name, text.encode())
    evidence = nccl_inspector.read(file_of(tmp_path, name, text, written=NIGHT))
    told = [(one["name"], one["entity"], one["host"], one["value"]) for one in evidence.table.to_pylist()]
    device = "gpu:GPU-bc0fa0b9-cac2-f507-b715-9bebdb69c71e"
    assert told == [
        ("nccl_bus_bandwidth", device, "node-7", 678.263),
        ("nccl_time", device, "node-7", pytest.approx(0.00949847)),
    ]
    assert evidence.sources[0].passed_over == 1


def test_ras_tells_who_is_behind_and_who_does_not_answer(tmp_path: Path) -> None:
    counts = (
        "31 ranks have launched up to operation 12",
        f"Rank 7 has launched up to operation 11 -- {process(7)[9:]}",
    )
    text = HEAD + OF_ALL + NONE + mismatch(*counts, kind="AllReduce")
    assert nccl_ras.fits("ras.txt", text.encode())
    evidence = nccl_ras.read(file_of(tmp_path, "ras.txt", text, written=NIGHT))
    (row,) = evidence.table.to_pylist()
    assert (row["name"], row["entity"], row["rank"], row["time_ns"]) == ("nccl_report", "rank:7", 7, unix(NIGHT))
    assert "has launched 11 AllReduce, others 12" in row["text"]


def test_ras_as_json_names_hosts_and_translates_ranks(tmp_path: Path) -> None:
    def rank_of(number: int, device: int, reduced: int) -> dict[str, Any]:
        counts = {"AllReduce": reduced}
        return {
            "rank": number,
            "host": "10.0.0.1",
            "pid": 100 + device,
            "nvml_dev": device,
            "collective_counts": counts,
        }

    of_all = [rank_of(rank, rank, 5) for rank in range(4)]
    odd = [rank_of(0, 1, 9), rank_of(1, 3, 8)]
    told = [
        {"hash": "0xae", "size": 4, "ranks": of_all, "missing_ranks": []},
        {"hash": "0xb7", "size": 2, "ranks": odd, "missing_ranks": []},
    ]
    text = json.dumps({"nccl_version": "2.29.1", "communicators_count": 2, "communicators": told})
    assert nccl_ras.fits("ras.json", text.encode())
    evidence = nccl_ras.read(file_of(tmp_path, "ras.json", text))
    (row,) = evidence.table.to_pylist()
    assert (row["entity"], row["rank"], row["host"]) == ("rank:3", 3, "10.0.0.1")
    assert "rank 1 of 2" in row["text"]


SACCT = """State|JobID|JobName|ExitCode|End|Start|NodeList
OUT_OF_MEMORY|4711|train|0:125|2026-11-27T14:02:51|2026-11-27T10:00:00|node-7
COMPLETED|4711.extern|extern|0:0|2026-11-27T14:02:51|2026-11-27T10:00:00|node-7
NODE_FAIL|4712|other|1:0|2026-11-27T15:00:00|2026-11-27T10:00:00|node[01-03,07]
CANCELLED by 1000|4713|x|0:15|Unknown|Unknown|None assigned
RUNNING|4714|y|0:0|Unknown|2026-11-27T10:00:00|node-8
rank 3|is the culprit
"""


def test_jobs_that_did_not_end_well_are_told_by_number(tmp_path: Path) -> None:
    assert slurm.fits("sacct.txt", SACCT.encode())
    evidence = slurm.read(file_of(tmp_path, "sacct.txt", SACCT))
    told = [(one["entity"], one["host"], one["text"], one["rank"]) for one in evidence.table.to_pylist()]
    assert told == [
        ("job:4711", "node-7", "4711 (train): OUT_OF_MEMORY, exit 0:125 on node-7", None),
        # On which of the four it happened, nobody says.
        ("job:4712", None, "4712 (other): NODE_FAIL, exit 1:0 on node[01-03,07]", None),
    ]
    (source,) = evidence.sources
    assert (source.bound_s, source.passed_over, any("no zone" in note for note in source.notes)) == (None, 1, True)


def test_an_account_without_times_says_what_to_ask(tmp_path: Path) -> None:
    text = "JobID|JobName|State|ExitCode|NodeList\n4711|train|OUT_OF_MEMORY|0:125|node-7\n"
    evidence = slurm.read(file_of(tmp_path, "sacct.txt", text))
    assert (len(evidence.table), any("-o JobID" in note for note in evidence.sources[0].notes)) == (0, True)


def test_jobs_as_json(tmp_path: Path) -> None:
    step = {
        "step": {"id": "4711.0", "name": "python"},
        "state": ["OUT_OF_MEMORY"],
        "time": {"end": {"set": True, "infinite": False, "number": 1795788171}},
        "nodes": {"count": 1, "list": ["node-7"]},
        "exit_code": {
            "status": ["SIGNALED"],
            "return_code": {"set": True, "number": 0},
            "signal": {"id": {"number": 9}},
        },
    }
    job = {
        "job_id": 4711,
        "name": "train",
        "nodes": "node-[7-8]",
        "state": {"current": ["COMPLETED"], "reason": "None"},
        "time": {"start": 1795780000, "end": 1795788171},
        "exit_code": {"status": ["SUCCESS"], "return_code": {"set": True, "number": 0}},
        "steps": [step],
    }
    text = json.dumps({"jobs": [job], "meta": {"slurm": {}}})
    assert slurm.fits("jobs.json", text.encode())
    evidence = slurm.read(file_of(tmp_path, "jobs.json", text))
    (row,) = evidence.table.to_pylist()
    assert (row["entity"], row["host"], row["time_ns"]) == ("job:4711", "node-7", unix(NIGHT))
    assert row["text"] == "4711.0 (python): OUT_OF_MEMORY, exit 0:9 on node-7"
    assert evidence.sources[0].bound_s == 1.0


SCONTROL = """NodeName=node-7 Arch=x86_64 CoresPerSocket=56
   CPUAlloc=0 CPUEfctv=224 CPUTot=224 CPULoad=0.12
   State=IDLE+DRAIN ThreadsPerCore=2 TmpDisk=0 Weight=1
   BootTime=2026-11-20T10:00:00 SlurmdStartTime=2026-11-20T10:02:00
   Reason=xid 79 State=IDLE [root@2026-11-27T14:02:51]

NodeName=node-8 Arch=x86_64 CoresPerSocket=56
   State=MIXED+CLOUD ThreadsPerCore=2 TmpDisk=0 Weight=1
   BootTime=2026-11-21T10:00:00 SlurmdStartTime=2026-11-21T10:02:00

NodeName=node-9 State=DOWN* BootTime=None
   Reason=Not responding [slurm@06/02-14:01:24]
"""


def test_nodes_out_of_service_are_told_with_their_reason(tmp_path: Path) -> None:
    assert slurm.fits("nodes.txt", SCONTROL.encode())
    evidence = slurm.read(file_of(tmp_path, "nodes.txt", SCONTROL, written="2026-11-28T00:00:00"))
    told = [(one["host"], one["text"], one["time_ns"]) for one in evidence.table.to_pylist()]
    assert told == [
        ("node-7", "the node started", unix("2026-11-20T10:00:00")),
        ("node-8", "the node started", unix("2026-11-21T10:00:00")),
        ("node-7", "IDLE+DRAIN: xid 79 State=IDLE (set by root)", unix(NIGHT)),
        ("node-9", "DOWN*: Not responding (set by slurm)", unix("2026-11-28T00:00:00")),
    ]


def test_reasons_of_sinfo_are_of_every_node_of_the_list(tmp_path: Path) -> None:
    text = (
        "REASON               USER      TIMESTAMP           NODELIST\n"
        "Not responding       slurm     2026-11-27T14:02:51 node[01-02],gpu-[9-10]-a\n"
        "Kill task failed     root      Unknown             node-7\n"
    )
    assert slurm.fits("sinfo.txt", text.encode())
    evidence = slurm.read(file_of(tmp_path, "sinfo.txt", text, written="2026-11-28T00:00:00"))
    told = [(one["host"], one["text"]) for one in evidence.table.to_pylist()]
    words = "out of service: Not responding (set by slurm)"
    assert told[:4] == [(host, words) for host in ("node01", "node02", "gpu-9-a", "gpu-10-a")]
    assert told[4:] == [("node-7", "out of service: Kill task failed (set by root)")]


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


def kubernetes_list(*items: dict[str, Any]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)}, indent=4)


def test_events_of_kubernetes_are_of_pods_and_nodes(tmp_path: Path) -> None:
    pod = {"kind": "Pod", "namespace": "ml", "name": "train-3"}
    killed = {
        "apiVersion": "v1",
        "kind": "Event",
        "type": "Warning",
        "reason": "BackOff",
        "message": "Back-off restarting failed container, rank 5\x1b[2J",
        "involvedObject": pod,
        "source": {"component": "kubelet", "host": "node-7"},
        "firstTimestamp": "2026-11-27T14:00:00Z",
        "lastTimestamp": "2026-11-27T14:02:51Z",
        "count": 12,
    }
    lost = {
        "kind": "Event",
        "type": "Normal",
        "reason": "NodeNotReady",
        "message": "Node node-9 status is now: NodeNotReady",
        "involvedObject": {"kind": "Node", "name": "node-9"},
        "eventTime": "2026-11-27T14:05:00.123456Z",
        "lastTimestamp": None,
    }
    usual = {**killed, "type": "Normal", "reason": "Pulled"}
    text = kubernetes_list(killed, lost, usual, {"kind": "Secret"})
    assert kubernetes.fits("events.json", text.encode())
    evidence = kubernetes.read(file_of(tmp_path, "events.json", text))
    rows = evidence.table.to_pylist()
    assert [(one["name"], one["entity"], one["host"], one["rank"]) for one in rows] == [
        ("pod_event", "pod:ml/train-3", "node-7", None),
        ("pod_event", "pod:ml/train-3", "node-7", None),
        ("node_state", "host", "node-9", None),
    ]
    assert (rows[1]["time_ns"], rows[1]["text"].isprintable()) == (unix(NIGHT), True)
    assert rows[1]["text"].endswith("(12 times)")
    assert evidence.sources[0].passed_over == 1


def test_pods_and_nodes_of_kubernetes(tmp_path: Path) -> None:
    ended = {"reason": "OOMKilled", "exitCode": 137, "finishedAt": "2026-11-27T14:02:51Z"}
    pod = {
        "kind": "Pod",
        "metadata": {"namespace": "ml", "name": "train-3"},
        "spec": {"nodeName": "node-7"},
        "status": {
            "containerStatuses": [
                {"name": "torch", "restartCount": 2, "lastState": {"terminated": ended}, "state": {"running": {}}}
            ]
        },
    }
    conditions = [
        {"type": "MemoryPressure", "status": "False", "lastTransitionTime": "2026-11-01T00:00:00Z"},
        {
            "type": "Ready",
            "status": "Unknown",
            "reason": "NodeStatusUnknown",
            "message": "Kubelet stopped posting node status.",
            "lastTransitionTime": "2026-11-27T14:05:00Z",
        },
    ]
    taint = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": "2026-11-27T14:05:05Z"}
    node = {
        "kind": "Node",
        "metadata": {"name": "node-9"},
        "spec": {"taints": [taint]},
        "status": {"conditions": conditions},
    }
    evidence = kubernetes.read(file_of(tmp_path, "all.json", kubernetes_list(pod, node)))
    told = [(one["host"], one["text"]) for one in evidence.table.to_pylist()]
    assert told == [
        ("node-7", "torch: OOMKilled, exit 137, 2 restarts"),
        ("node-9", "not ready, NodeStatusUnknown: Kubelet stopped posting node status."),
        ("node-9", "taint node.kubernetes.io/unreachable=:NoExecute"),
    ]
    assert evidence.sources[0].hosts == ("node-7", "node-9")


def snapshot(*entries: tuple[str, int, int], reserved: int, allocated: int) -> bytes:
    trace = [
        {"action": action, "size": size, "time_us": 1_795_788_171_000_000 + at, "frames": []}
        for action, size, at in entries
    ]
    segment = {"device": 0, "total_size": reserved, "allocated_size": allocated, "segment_type": "large", "blocks": []}
    return pickle.dumps({"segments": [segment], "device_traces": [trace], "allocator_settings": {"PYTORCH": ""}})


def test_a_snapshot_of_torch_is_counted_back_from_its_end(tmp_path: Path) -> None:
    content = snapshot(
        ("alloc", 10, 0),
        ("segment_alloc", 100, 1),
        ("alloc", 60, 2),
        ("free_requested", 10, 3),
        ("free_completed", 10, 3),
        ("oom", 500, 4),
        ("snapshot", 0, 5),
        reserved=300,
        allocated=160,
    )
    assert torch_memory.fits("rank3_memory_snapshot.pickle", content)
    evidence = torch_memory.read(file_of(tmp_path, "rank3_memory_snapshot.pickle", content))
    series: dict[str, list[tuple[int, float]]] = {}
    for one in evidence.table.to_pylist():
        assert (one["entity"], one["rank"]) == ("rank:3", 3)
        series.setdefault(one["name"], []).append((one["time_ns"] // 1000 - 1_795_788_171_000_000, one["value"]))
    assert series["torch_allocated"] == [(0, 110), (2, 170), (3, 160), (5, 160)]
    assert series["torch_reserved"] == [(1, 300), (5, 300)]
    assert series["torch_segment_allocations"] == [(0, 0), (1, 1), (5, 1)]
    assert series["torch_out_of_memory"] == [(0, 0), (4, 1), (5, 1)]
    assert any("memory_stats" in note for note in evidence.sources[0].notes)


def test_a_long_snapshot_is_thinned_and_keeps_its_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_memory, "_MOST_POINTS", 8)
    steps = [(("alloc", "free_requested")[at % 2], 7 if at // 2 != 21 else 90, at) for at in range(100)]
    evidence = torch_memory.read(file_of(tmp_path, "rank0.pickle", snapshot(*steps, reserved=9, allocated=1000)))
    values = [one["value"] for one in evidence.table.to_pylist() if one["name"] == "torch_allocated"]
    assert (len(values), max(values)) == (9, 1090)


def test_statistics_of_torch_tell_retries(tmp_path: Path) -> None:
    text = json.dumps({"num_alloc_retries": 4, "num_ooms": 0, "reserved_bytes.all.current": 1 << 30, "other": "x"})
    assert torch_memory.fits("rank1_stats.json", text.encode())
    evidence = torch_memory.read(file_of(tmp_path, "rank1_stats.json", text))
    told = {one["name"]: (one["entity"], one["value"]) for one in evidence.table.to_pylist()}
    assert told == {
        "torch_allocator_retries": ("rank:1", 4.0),
        "torch_out_of_memory": ("rank:1", 0.0),
        "torch_reserved": ("rank:1", float(1 << 30)),
    }


def test_a_pickle_that_would_run_something_is_refused(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
            return os.system, (f"touch {tmp_path / 'ran'}",)

    content = pickle.dumps({"device_traces": [[Harm()]]})
    with pytest.raises(InputError, match="plain values"):
        torch_memory.read(file_of(tmp_path, "rank0.pickle", content))
    assert not (tmp_path / "ran").exists()


GOLDEN: dict[Any, tuple[bytes, ...]] = {
    kernel_log: (
        f"[  100.000000] hello\n[  200.000000] {XID_63}\n".encode(),
        f"Nov 27 14:02:51 node-7 kernel: {XID_63}\n2026-11-27T14:02:51,000000+00:00 {XID_63}\n".encode(),
        json.dumps({"__REALTIME_TIMESTAMP": "1795788171000000", "MESSAGE": XID_63}).encode(),
    ),
    kubernetes: (kubernetes_list({"kind": "Event", "type": "Warning", "eventTime": "2026-11-27T14:05:00Z"}).encode(),),
    nccl_inspector: (json.dumps(inspected(2, 8, "0x7f8c", 1407, 61974, ended=1)).encode(),),
    nccl_ras: ((HEAD + OF_ALL + NONE + mismatch("Rank 7 has launched up to operation 11")).encode(),),
    slurm: (
        SACCT.encode(),
        SCONTROL.encode(),
        b"REASON  USER  TIMESTAMP  NODELIST\nx  y  2026-11-27T14:02:51 n[1-2]\n",
    ),
    torch_memory: (snapshot(("alloc", 10, 0), reserved=1, allocated=1), b'{"num_alloc_retries": 1}'),
}


def damaged(draw: st.DrawFn) -> tuple[Any, bytes]:
    """A file of a reader, of which a part is replaced; or anything."""
    reader = draw(st.sampled_from(READERS))
    if draw(st.integers(0, 3)) == 0:
        return reader, draw(st.binary(max_size=300))
    content = draw(st.sampled_from(GOLDEN[reader]))
    start = draw(st.integers(0, len(content)))
    end = draw(st.integers(start, min(start + 12, len(content))))
    put = draw(
        st.one_of(st.binary(max_size=12), st.sampled_from((b"9" * 25, b"-1", b"null", b"[]", b"{}", b'"', b"1e999")))
    )
    return reader, content[:start] + put + content[end:]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("evidence")


@given(st.composite(damaged)())
@example((torch_memory, pickle.dumps({"segments": 3, "device_traces": [None, [{"action": "oom", "time_us": 1}]]})))
@example((kernel_log, b"[Fri Feb 31 99:99:99 0000] hello\n"))
@example((kernel_log, b"1 9999-12-31T23:59:59Z node-7 kernel - - - hello"))
@example((nccl_ras, b'{"communicators": [{"size": 1e400, "ranks": [{"rank": 3}]}]}'))
@example((slurm, b'{"jobs": [{"state": null, "time": {"end": [1]}, "steps": [{"step": 4}]}]}'))
@example((kubernetes, b'{"items": [{"kind": ["Pod"]}, {"kind": "Pod", "status": {"containerStatuses": [3]}}]}'))
def test_whatever_is_in_a_file_it_is_read_or_refused_in_words(place: Path, told: tuple[Any, bytes]) -> None:
    reader, content = told
    path = file_of(place, "rank1_file", content)
    assert reader.fits("rank1_file", content[: 64 << 10]) in (True, False)
    try:
        evidence = reader.read(path)
    except InputError as error:
        assert str(error).isprintable()
        return
    write_evidence(place / "out.parquet", evidence)
    assert read_evidence(place / "out.parquet").table.num_rows == evidence.table.num_rows


@pytest.mark.parametrize("reader", READERS)
def test_a_file_that_is_not_there_is_one_line(reader: Any, tmp_path: Path) -> None:  # noqa: ANN401  (a module)
    with pytest.raises(InputError, match="cannot read"):
        reader.read(tmp_path / "none")


@pytest.mark.parametrize("reader", READERS)
def test_no_two_readers_take_the_same_file(reader: Any) -> None:  # noqa: ANN401  (a module)
    for content in GOLDEN[reader]:
        takers = [one for one in READERS if one.fits("file", content)]
        assert takers == [reader]
    apache = b"[Wed Oct 11 14:32:52 2000] [error] [client 127.0.0.1] client denied\n"
    xorg = b"[    12.528] (EE) NVIDIA(0): Error recovery was successful.\n"
    others = (
        apache,
        xorg,
        b'{"traceEvents": []}',
        b"[2026-11-27 14:02:51,123] [INFO] step 3 loss 2.1\n",
        b"\x80\x04}q\x00.",
        b"",
    )
    assert not any(reader.fits("file", content) for content in others)
