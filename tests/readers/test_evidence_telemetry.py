"""Telemetry beside traces: what exporters, a Prometheus server and nvidia-smi say, as the field has it."""

import gzip
import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kair_engine.errors import InputError
from kair_engine.readers.evidence import nvidia_smi, opening, prometheus_api, prometheus_names, prometheus_text
from kair_engine.trace.evidence_table import SCHEMA, EvidenceFile, read_evidence, write_evidence
from kair_engine.trace.measures import MEASURES

UUID = "GPU-5f3e0000-0000-4000-8000-00000000000a"
GPU = f"gpu:{UUID}"
DCGM = f'gpu="3",UUID="{UUID}",pci_bus_id="00000000:1B:00.0",device="nvidia3",modelName="NVIDIA H100",Hostname="node-7"'
AT = 1_732_700_000
"""Seconds."""

Row = tuple[float, str | None, str, str, float | str | None]


def rows(file: EvidenceFile, name: str | None = None) -> list[Row]:
    """(seconds, host, entity, name, value or text) in order of time."""
    assert file.table.schema == SCHEMA
    return [
        (round(row["time_ns"] / 1e9, 3), row["host"], row["entity"], row["name"], row["text"] or row["value"])
        for row in file.table.to_pylist()
        if name in (None, row["name"])
    ]


def values(file: EvidenceFile, name: str) -> list[float | str | None]:
    return [row[-1] for row in rows(file, name)]


@pytest.fixture
def text(tmp_path: Path) -> Callable[[str], EvidenceFile]:
    def read(content: str) -> EvidenceFile:
        path = tmp_path / "metrics.prom"
        path.write_text(content)
        assert prometheus_text.fits(path.name, content.encode()[: 64 << 10])
        return prometheus_text.read(path)

    return read


def scrapes(*of_time: str) -> str:
    """Scrapes that are ten seconds apart, each behind its time."""
    return "".join(f"# time {AT + 10 * at}\n{scrape}\n" for at, scrape in enumerate(of_time))


# Exporters' text.


def test_a_device_is_told_by_its_uuid_and_the_exporters_host(text: Callable[[str], EvidenceFile]) -> None:
    file = text(
        "# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).\n# TYPE DCGM_FI_DEV_SM_CLOCK gauge\n"
        f'DCGM_FI_DEV_SM_CLOCK{{{DCGM},instance="10.0.0.7:9400"}} 1395 {AT}000\n'
        f"DCGM_FI_DEV_GPU_UTIL{{{DCGM}}} 98 {AT}000\n"
        f"DCGM_FI_DEV_FB_USED{{{DCGM}}} 2 {AT}000\n"
        f"DCGM_FI_DEV_POWER_USAGE{{{DCGM}}} 412.5 {AT}000\n"
    )
    assert rows(file) == [
        (AT, "node-7", GPU, "gpu_sm_clock", 1395.0),
        (AT, "node-7", GPU, "gpu_utilization", 0.98),
        (AT, "node-7", GPU, "gpu_memory_used", float(2 << 20)),
        (AT, "node-7", GPU, "gpu_power", 412.5),
    ]
    (source,) = file.sources
    assert (source.kind, source.clock, source.hosts, source.notes) == ("prometheus", "unix", ("node-7",), ())
    assert file.table["raw"][0].as_py() == "metrics.prom:3"


def test_what_is_read_survives_being_written(text: Callable[[str], EvidenceFile], tmp_path: Path) -> None:
    file = text(scrapes(f'DCGM_FI_DEV_SM_CLOCK{{{DCGM}}} 1395\nnode_network_up{{device="eth0"}} 1'))
    write_evidence(tmp_path / "telemetry.parquet", file)
    again = read_evidence(tmp_path / "telemetry.parquet")
    assert (rows(again), again.sources) == (rows(file), file.sources)


@pytest.mark.parametrize(
    ("labels", "entity"),
    [
        (f'gpu="3",UUID="{UUID.upper().replace("GPU", "GPU")}",pci_bus_id="00000000:1B:00.0"', GPU),
        ('gpu="3",pci_bus_id="00000000:1B:00.0"', "pci:0000:1b:00.0"),
        # Trap 11: the driver's number is another one than CUDA's, and says so.
        ('gpu="3"', "gpu index:3"),
    ],
)
def test_a_device_without_uuid_is_told_by_what_it_has(
    text: Callable[[str], EvidenceFile], labels: str, entity: str
) -> None:
    assert [row[2] for row in rows(text(f"DCGM_FI_DEV_GPU_TEMP{{{labels}}} 61 {AT}000"))] == [entity]


def test_blanks_are_no_readings(text: Callable[[str], EvidenceFile]) -> None:
    # Trap 6, and trap 10: what was asked together and cannot be is blank, or not there.
    blanks = (9223372036854775794, 18446744073709551615, 2147483632, 140737488355328, 4294967295, "NaN", "+Inf")
    lines = [f"DCGM_FI_DEV_MEMORY_TEMP{{{DCGM}}} {blank} {AT + at}000" for at, blank in enumerate(blanks)]
    file = text("\n".join([*lines, f"DCGM_FI_DEV_MEMORY_TEMP{{{DCGM}}} 55 {AT + 60}000"]))
    assert values(file, "gpu_memory_temperature") == [55.0]
    assert file.sources[0].passed_over == len(blanks)


def test_saturated_counters_of_ports_are_no_blanks(text: Callable[[str], EvidenceFile]) -> None:
    file = text(f'node_infiniband_port_transmit_wait_total{{device="mlx5_3",port="1"}} 4.294967295e+09 {AT}000')
    assert rows(file) == [(AT, None, "nic:mlx5_3/1", "ib_transmit_wait", 4294967295.0)]


def test_an_xid_is_an_event_when_its_gauge_changes(text: Callable[[str], EvidenceFile]) -> None:
    # Trap 7: the gauge has the last XID for ever.
    xids = [31, 31, 79, 79, 0, 79]
    file = text(scrapes(*(f"DCGM_FI_DEV_XID_ERRORS{{{DCGM}}} {xid}" for xid in xids)))
    assert rows(file) == [(AT + 20, "node-7", GPU, "xid", 79.0), (AT + 50, "node-7", GPU, "xid", 79.0)]
    assert file.sources[0].observes == ("xid",)


def test_an_xid_whose_labels_change_is_still_of_the_same_device(text: Callable[[str], EvidenceFile]) -> None:
    first, second = f'{DCGM},pod="a"', f'{DCGM},pod="b",err_code="79"'
    file = text(scrapes(f"DCGM_FI_DEV_XID_ERRORS{{{first}}} 79", f"DCGM_FI_DEV_XID_ERRORS{{{second}}} 79"))
    assert "xid" in file.sources[0].observes
    assert rows(file) == []


def test_silence_of_one_scrape_excludes_no_event(text: Callable[[str], EvidenceFile]) -> None:
    # Trap 5: one look, or one in thirty seconds, is said as what it is.
    once = text(scrapes(f"DCGM_FI_DEV_XID_ERRORS{{{DCGM}}} 0\nDCGM_FI_DEV_GPU_TEMP{{{DCGM}}} 50"))
    assert once.sources[0].observes == ()
    assert once.sources[0].interval_s is None
    half_minutes = (f"DCGM_FI_DEV_GPU_TEMP{{{DCGM}}} 50 {AT + 30 * at}000" for at in (0, 1, 2, 12, 13))
    (source,) = text("\n".join(half_minutes)).sources
    assert (source.interval_s, source.gaps, source.longest_gap_s) == (30.0, 1, 300.0)


def test_counted_xids_are_events_when_their_count_rises(text: Callable[[str], EvidenceFile]) -> None:
    count = f'DCGM_EXP_XID_ERRORS_COUNT{{{DCGM},window_size_in_ms="300000",xid='
    other = f"DCGM_FI_DEV_GPU_TEMP{{{DCGM}}} 50\n"
    file = text(
        scrapes(
            f'{other}{count}"31"}} 2',
            f'{other}{count}"31"}} 2\n{count}"79"}} 1',  # appears on the way
            f'{other}{count}"31"}} 3\n{count}"79"}} 1',
        )
    )
    assert [(at, code) for at, *_, code in rows(file, "xid")] == [(AT + 10, 79.0), (AT + 20, 31.0)]


def test_a_counter_that_began_anew_is_handed_on_as_it_is(text: Callable[[str], EvidenceFile]) -> None:
    # Trap 8.
    file = text(scrapes(*(f"DCGM_FI_DEV_PCIE_REPLAY_COUNTER{{{DCGM}}} {count}" for count in (100, 130, 2, 5))))
    assert values(file, "gpu_pcie_replays") == [100.0, 130.0, 2.0, 5.0]


def test_parts_that_are_added_up_grow_by_what_each_grew(text: Callable[[str], EvidenceFile]) -> None:
    def scrape(*of_cores: int) -> str:
        return "\n".join(
            f'node_cpu_seconds_total{{cpu="{cpu}",mode="{mode}"}} {seconds}'
            for cpu, seconds in enumerate(of_cores)
            for mode in ("steal", "user", "system", "idle", "iowait", "guest")
        )

    # The second core begins anew on the way; a third one appears with what it had before.
    file = text(scrapes(scrape(10, 20), scrape(13, 26), scrape(13, 4), scrape(14, 4, 500), scrape(14, 4, 501)))
    assert values(file, "cpu_steal_time") == [30.0, 39.0, 43.0, 44.0, 45.0]
    assert values(file, "cpu_busy_time") == [60.0, 78.0, 86.0, 88.0, 90.0]


@pytest.mark.parametrize(
    ("growth", "told", "note"),
    [
        # Trap 9, in 10 s: 9e9 can be no microseconds; 4e6 could be, and would be a thousandfold; 4e10 is no time.
        (9e9, [0.0, 9.0, 18.0], None),
        (4e6, [0.0, 0.004, 0.008], "could be microseconds"),
        (4e10, [], "grow faster than time"),
    ],
)
def test_violations_are_nanoseconds_where_that_can_be(
    text: Callable[[str], EvidenceFile], growth: float, told: list[float], note: str | None
) -> None:
    other = f"DCGM_FI_DEV_GPU_TEMP{{{DCGM}}} 50\n"
    file = text(
        "# HELP DCGM_FI_DEV_THERMAL_VIOLATION Throttling duration due to thermal constraints (in us).\n"
        + scrapes(*(f"{other}DCGM_FI_DEV_THERMAL_VIOLATION{{{DCGM}}} {growth * at}" for at in range(3)))
    )
    assert values(file, "gpu_throttle_thermal_time") == pytest.approx(told)
    assert [one for one in file.sources[0].notes if note is None or note not in one] == []
    assert bool(file.sources[0].notes) == (note is not None)


def test_what_stands_in_gives_way_to_the_newer_counters(text: Callable[[str], EvidenceFile]) -> None:
    file = text(
        scrapes(
            f"DCGM_FI_DEV_THERMAL_VIOLATION{{{DCGM}}} 7e9\n"
            f"DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS{{{DCGM}}} 2e9\n"
            f"DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS{{{DCGM}}} 3e9\n"
            f"DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS{{{DCGM}}} 4e9"
        )
    )
    assert (values(file, "gpu_throttle_thermal_time"), values(file, "gpu_throttle_power_time")) == ([5.0], [4.0])


def test_a_slice_of_a_device_is_not_the_device(text: Callable[[str], EvidenceFile]) -> None:
    file = text(
        f'DCGM_FI_PROF_SM_ACTIVE{{{DCGM},GPU_I_ID="2"}} 0.9 {AT}000\n'
        f'DCGM_FI_DEV_GPU_TEMP{{{DCGM},GPU_I_ID="2"}} 60 {AT}000'
    )
    assert [row[3] for row in rows(file)] == ["gpu_temperature"]


def test_a_node_tells_ports_disks_mounts_and_pressure(text: Callable[[str], EvidenceFile]) -> None:
    file = text(
        scrapes(
            'node_uname_info{machine="x86_64",nodename="node-7",release="6.8"} 1\n'
            'node_infiniband_rate_bytes_per_second{device="mlx5_3",port="1"} 5e+10\n'
            'node_infiniband_state_id{device="mlx5_3",port="1"} 1\n'
            'node_network_speed_bytes{device="eth0"} -125000\n'  # of a link that is down
            'node_network_up{device="eth0"} 0\n'
            'node_network_receive_drop_total{device="eth0"} 3\nnode_network_transmit_drop_total{device="eth0"} 4\n'
            'node_network_receive_drop_total{device="veth12ab"} 9\n'
            'node_disk_io_time_seconds_total{device="nvme0n1"} 12.5\n'
            'node_mountstats_nfs_operations_requests_total{export="nas:/data",operation="READ",protocol="tcp"} 7\n'
            'node_mountstats_nfs_operations_requests_total{export="nas:/data",operation="OPEN",protocol="tcp"} 2\n'
            "node_pressure_memory_stalled_seconds_total 1.5\nnode_vmstat_pswpin 2\n"
            'node_cpu_scaling_governor{cpu="0",governor="performance"} 1\n'
            'node_cpu_scaling_governor{cpu="0",governor="powersave"} 0\n'
            'node_cpu_scaling_governor{cpu="1",governor="powersave"} 1\n'
            'node_cpu_scaling_frequency_hertz{cpu="0"} 3e9\nnode_cpu_scaling_frequency_hertz{cpu="1"} 1e9'
        )
    )
    assert {row[1] for row in rows(file)} == {"node-7"}
    assert {(row[2], row[3], row[4]) for row in rows(file)} == {
        ("nic:mlx5_3/1", "nic_speed", 400.0),
        ("nic:mlx5_3/1", "nic_state", "down"),
        ("nic:eth0", "nic_state", "down"),
        ("nic:eth0", "nic_drops", 7.0),
        ("disk:nvme0n1", "disk_busy_time", 12.5),
        ("disk:nas:/data", "nfs_requests", 9.0),
        ("host", "psi_memory_full_time", 1.5),
        ("host", "swap_in", 8192.0),
        ("host", "cpu_governor", "performance, powersave"),
        ("host", "cpu_frequency", 2000.0),
    }


def test_counters_of_events_are_events_when_they_grow(text: Callable[[str], EvidenceFile]) -> None:
    carrier = 'node_network_carrier_down_changes_total{device="eth0"}'
    file = text(
        scrapes(
            f"node_vmstat_oom_kill 3\n{carrier} 1",
            f"node_vmstat_oom_kill 3\n{carrier} 2",
            f"node_vmstat_oom_kill 1\n{carrier} 2",  # after a reboot
        )
    )
    assert [(at, entity, name, value) for at, _, entity, name, value in rows(file)] == [
        (AT + 10, "nic:eth0", "link_down", 1.0),
        (AT + 20, "host", "oom_kill", 1.0),
    ]


def test_devices_of_amd_are_told_by_the_clock_that_counts(text: Callable[[str], EvidenceFile]) -> None:
    labels = 'card_model="MI300X",gpu_id="0",gpu_uuid="72ff740f-0000-1000-804c-3b58bf67050e",hostname="node-9"'
    file = text(
        scrapes(
            f'gpu_clock{{{labels},clock_index="0",clock_type="GPU_CLOCK_TYPE_SYSTEM"}} 2100\n'
            f'gpu_clock{{{labels},clock_index="8",clock_type="GPU_CLOCK_TYPE_MEMORY"}} 1300\n'
            f"amd_gpu_gfx_activity{{{labels}}} 50\ngpu_package_power{{{labels}}} 65535\n"
            'gpu_power_usage{id="0"} 99000'  # of another exporter, in another unit
        )
    )
    assert {(row[1], row[2]) for row in rows(file)} == {("node-9", "gpu:GPU-72ff740f-0000-1000-804c-3b58bf67050e")}
    assert {(row[3], row[4]) for row in rows(file)} == {
        ("gpu_sm_clock", 2100.0),
        ("gpu_memory_clock", 1300.0),
        ("gpu_utilization", 0.5),
    }


@pytest.mark.parametrize(
    "mark", ["# 2024-11-27T09:33:20Z", "2024-11-27 09:33:20+00:00", "1732700000", "# time: 1732700000.0"]
)
def test_a_line_before_a_scrape_tells_its_time(text: Callable[[str], EvidenceFile], mark: str) -> None:
    file = text(f"{mark}\nnode_memory_MemTotal_bytes 8\n")
    assert [row[0] for row in rows(file)] == [AT]
    assert file.sources[0].clock == "host"
    assert file.sources[0].passed_over == 0


def test_samples_without_times_are_of_when_the_file_was_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.prom"
    path.write_text("node_memory_MemTotal_bytes 8\n")
    os.utime(path, (AT, AT))
    file = prometheus_text.read(path)
    assert [row[0] for row in rows(file)] == [AT]
    assert file.sources[0].clock == "unknown"
    (note,) = file.sources[0].notes[:1]
    assert "when the file was written" in note
    path.write_text("node_memory_MemTotal_bytes 8\nnode_memory_MemTotal_bytes 9\n")
    os.utime(path, (AT, AT))
    again = prometheus_text.read(path)
    assert values(again, "memory_total") == [9.0]
    assert any("only the last counts" in note for note in again.sources[0].notes)


def test_openmetrics_has_seconds_and_exemplars(text: Callable[[str], EvidenceFile]) -> None:
    file = text(
        "# TYPE node_disk_io_time_seconds counter\n"
        f'node_disk_io_time_seconds_total{{device="sd a # {{b}} \\"c\\""}} 1.5 {AT}.5 # {{trace_id="ab"}} 0.6 {AT}.1\n'
        "# EOF\n"
    )
    assert rows(file) == [(AT + 0.5, None, 'disk:sd a # {b} "c"', "disk_busy_time", 1.5)]


def test_addresses_are_told_as_such(text: Callable[[str], EvidenceFile]) -> None:
    bare = text(f'node_memory_MemTotal_bytes{{instance="10.0.0.7:9100"}} 8 {AT}000')
    assert [row[1] for row in rows(bare)] == ["10.0.0.7"]
    assert any("by address alone" in note for note in bare.sources[0].notes)
    named = text(
        f'node_memory_MemTotal_bytes{{instance="10.0.0.7:9100"}} 8 {AT}000\n'
        f'node_uname_info{{instance="10.0.0.7:9100",nodename="node-7"}} 1 {AT}000'
    )
    assert [row[1] for row in rows(named)] == ["node-7"]
    assert named.sources[0].notes == ()


def test_damaged_lines_are_counted_and_passed_over(text: Callable[[str], EvidenceFile]) -> None:
    file = text(
        f"DCGM_FI_DEV_GPU_TEMP{{{DCGM}}} 61 {AT}000\n"
        'DCGM_FI_DEV_GPU_TEMP{gpu="3 61\nDCGM_FI_DEV_GPU_TEMP\nDCGM_FI_DEV_GPU_TEMP{} hot\nsomething_else 3\n\x1b[31m\n'
        f"DCGM_FI_DEV_GPU_TEMP{{{DCGM}}} 62 99999999999999999999\n"
    )
    assert values(file, "gpu_temperature") == [61.0]
    assert file.sources[0].passed_over == 6


def test_a_cut_compressed_file_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    whole = gzip.compress(
        "".join(f"DCGM_FI_DEV_GPU_TEMP{{{DCGM}}} {at % 7} {AT + at}000\n" for at in range(5000)).encode()
    )
    path = tmp_path / "metrics.prom.gz"
    path.write_bytes(whole[: len(whole) // 2])
    file = prometheus_text.read(path)
    assert 100 < len(file.table) < 5000
    assert any("not read to its end" in note for note in file.sources[0].notes)


def test_files_of_nothing_known_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "metrics.prom"
    path.write_text("# TYPE go_gc gauge\ngo_gc 1\n")
    with pytest.raises(InputError, match="no metric in it"):
        prometheus_text.read(path)


def test_all_names_stand_for_measures_that_there_are() -> None:
    for meanings in prometheus_names.NAMES.values():
        for one in meanings:
            kind = MEASURES[one.measure].kind
            assert (kind == "event") == (one.form in ("last code", "codes", "growth"))
            assert (kind == "state") == (one.form == "state")


# Long lines and large files.


def test_long_lines_are_cut_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"first\r\n" + b"x" * 900_000 + b"\nlast")
    lines = opening.Lines(path)
    assert [(number, len(line)) for number, line in lines] == [(1, 5), (2, opening.LONGEST_LINE), (3, 4)]
    assert lines.cut_lines == 1
    assert list(opening.numbered_lines(path))[2] == (3, "last")


def test_no_more_is_read_than_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"one\ntwo\nthree\n")
    lines = opening.Lines(path, 9)
    assert [line for _, line in lines] == ["one", "two", "t"]
    assert lines.is_cut
    bomb = tmp_path / "bomb.gz"
    bomb.write_bytes(gzip.compress(b"0" * (8 << 20)))
    with pytest.raises(InputError, match="holds more than"):
        opening.read_bounded(bomb, 1 << 20)
    assert len(opening.read_bounded(bomb, 8 << 20)) == 8 << 20


@given(content=st.binary(max_size=300), size=st.integers(1, 40))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
def test_lines_are_those_of_the_file(tmp_path: Path, content: bytes, size: int) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(content)
    if content[:2] == b"\x1f\x8b" or content[:4] == b"\x28\xb5\x2f\xfd":
        return
    told = [line for _, line in opening.Lines(path, size)]
    expected = content[:size].split(b"\n")
    assert told == [
        line.removesuffix(b"\r").decode("utf-8", "replace") for line in (expected if expected[-1] else expected[:-1])
    ]


# A server's answers.


def answer(*series: tuple[dict[str, str], list[Any]]) -> dict[str, Any]:
    result = [{"metric": metric, "values": points} for metric, points in series]
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}


DCGM_LABELS = {"gpu": "3", "UUID": UUID, "Hostname": "node-7", "instance": "10.0.0.7:9400"}


def test_answers_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "power.json"
    metric = {"__name__": "DCGM_FI_DEV_POWER_USAGE", **DCGM_LABELS}
    points = [[AT, "400"], [AT + 15.781, "410.5"], [AT + 30, "NaN"], "damaged", [AT]]
    path.write_text(json.dumps(answer((metric, points), ({"__name__": "up"}, [[AT, "1"]]))))
    assert prometheus_api.fits(path.name, path.read_bytes())
    file = prometheus_api.read(path)
    assert rows(file) == [
        (AT, "node-7", GPU, "gpu_power", 400.0),
        (AT + 15.781, "node-7", GPU, "gpu_power", 410.5),
    ]
    assert file.sources[0].passed_over == 4
    assert file.sources[0].clock == "unix"


def test_a_vector_and_several_answers(tmp_path: Path) -> None:
    path = tmp_path / "now.json"
    metric = {"__name__": "DCGM_FI_DEV_POWER_USAGE", **DCGM_LABELS}
    one = [
        {"status": "success", "data": {"resultType": "vector", "result": [{"metric": metric, "value": [at, "400"]}]}}
        for at in (AT, AT + 1)
    ]
    path.write_text("\n".join(json.dumps(part) for part in one) + '\n{"cut":')
    file = prometheus_api.read(path)
    assert [row[0] for row in rows(file)] == [AT, AT + 1]
    assert file.sources[0].passed_over == 1


def test_a_cut_answer_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text(json.dumps(answer(({"__name__": "DCGM_FI_DEV_POWER_USAGE", **DCGM_LABELS}, [[AT, "1"]])))[:-9])
    with pytest.raises(InputError) as failure:
        prometheus_api.read(path)
    assert "\n" not in str(failure.value)


class Server(BaseHTTPRequestHandler):
    """Answers with the series of `series` that the query's first selector names."""

    series: ClassVar[list[dict[str, str]]] = []
    asked: ClassVar[list[dict[str, str]]] = []
    headers_seen: ClassVar[list[Any]] = []
    most_steps: ClassVar[int] = 11_000
    fixed: ClassVar[tuple[int, bytes] | None] = None

    def do_GET(self) -> None:
        query = {name: value[0] for name, value in parse_qs(urlsplit(self.path).query).items()}
        self.asked.append(query | {"path": urlsplit(self.path).path})
        self.headers_seen.append(dict(self.headers))
        if self.fixed is not None:
            self._say(*self.fixed)
            return
        begin, end, step = (float(query[name]) for name in ("start", "end", "step"))
        count = int((end - begin) / step + 1e-9) + 1
        if count > self.most_steps:
            self._say(422, b'{"status":"error","error":"query processing would load too many samples"}')
            return
        found = [
            (metric, [[begin + step * at, str(begin + step * at - AT)] for at in range(count)])
            for metric in self.series
            if self._is_asked(query["query"], metric)
        ]
        told = [
            ({k: v for k, v in m.items() if k != "__name__"} if " without " in query["query"] else m, p)
            for m, p in found
        ]
        self._say(200, json.dumps(answer(*told)).encode())

    @staticmethod
    def _is_asked(query: str, metric: dict[str, str]) -> bool:
        for name, matchers in re.findall(r"(\w*)\{([^}]*)\}", query):
            wanted = [("__name__", name)] if name else []
            wanted += re.findall(r'(\w+)=~"([^"]*)"', matchers)
            if all(re.fullmatch(pattern, metric.get(label, "")) for label, pattern in wanted):
                return True
        return False

    def _say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        if status in (301, 302):
            self.send_header("Location", "http://192.0.2.1/")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def serving(**attributes: Any) -> Iterator[tuple[str, type[Server]]]:  # noqa: ANN401
    handler = type("Handler", (Server,), {"asked": [], "headers_seen": [], **attributes})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", handler
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


NODES = [
    {"__name__": "DCGM_FI_DEV_SM_CLOCK", "UUID": UUID, "Hostname": host, "instance": f"10.0.0.{at}:9400"}
    for at, host in enumerate(("node-7", "node-8", "node-77"))
]
UNAME = [
    {"__name__": "node_uname_info", "nodename": host, "instance": f"10.0.0.{at}:9100"}
    for at, host in enumerate(("node-7.cluster", "node-8.cluster"))
]
CORES = [{"__name__": "node_cpu_seconds_total", "mode": "steal", "instance": f"10.0.0.{at}:9100"} for at in (0, 1)]


def test_a_server_is_asked_for_the_jobs_hosts_alone() -> None:
    with serving(series=[*NODES, *UNAME, *CORES]) as (url, server):
        file = prometheus_api.fetch(f"{url}/prom/", AT * 10**9, (AT + 60) * 10**9, 15, ["node-7"])
    assert {(row[1], row[2], row[3]) for row in rows(file)} == {
        ("node-7", GPU, "gpu_sm_clock"),
        # By the address that node_exporter has on that host.
        ("node-7.cluster", "host", "cpu_steal_time"),
    }
    assert values(file, "gpu_sm_clock") == [0.0, 15.0, 30.0, 45.0, 60.0]
    (source,) = file.sources
    assert (source.clock, source.interval_s, source.name) == ("unix", 15.0, url.removeprefix("http://"))
    assert {one["path"] for one in server.asked} == {"/prom/api/v1/query_range"}
    assert all(set(one) == {"query", "start", "end", "step", "path"} for one in server.asked)


def test_where_no_series_names_the_hosts_all_are_asked_for() -> None:
    with serving(series=NODES) as (url, _):
        file = prometheus_api.fetch(url, AT * 10**9, (AT + 15) * 10**9, 15, ["gpu-box"])
    assert {row[1] for row in rows(file)} == {"node-7", "node-8", "node-77"}
    assert any("all that it knows" in note for note in file.sources[0].notes)


def test_a_long_time_is_asked_for_in_parts_without_gaps_or_repeats() -> None:
    with serving(series=NODES[:1], most_steps=700) as (url, server):
        file = prometheus_api.fetch(url, AT * 10**9, (AT + 23_000) * 10**9, 1)
    assert values(file, "gpu_sm_clock") == [float(at) for at in range(23_001)]
    assert all(float(one["end"]) - float(one["start"]) <= 11_000 for one in server.asked)


def test_a_user_in_the_address_is_sent_and_not_shown() -> None:
    with serving(series=NODES[:1]) as (url, server):
        file = prometheus_api.fetch(url.replace("//", "//me:s%40crit@"), AT * 10**9, AT * 10**9, 1)
    assert server.headers_seen[0]["Authorization"] == "Basic bWU6c0Bjcml0"
    assert "crit" not in file.sources[0].name


@pytest.mark.parametrize(
    ("fixed", "said"),
    [
        (
            (400, b'{"status":"error","error":"parse error: \\u001b[31munexpected"}'),
            r"refuses the query \(400\): parse",
        ),
        ((401, b""), "wants to know who asks"),
        ((302, b""), "sends to another address"),
        ((200, b"<html>log in"), "none of Prometheus: <html>"),
        ((422, b'{"error":"too many samples"}'), "refuses the query: too many samples"),
        ((200, json.dumps(answer()).encode()), "none of the metrics"),
    ],
)
def test_errors_of_a_server_are_one_line_with_a_way_out(fixed: tuple[int, bytes], said: str) -> None:
    with serving(fixed=fixed) as (url, _), pytest.raises(InputError, match=said) as failure:
        prometheus_api.fetch(url.replace("//", "//me:secret@"), AT * 10**9, (AT + 60) * 10**9, 15, ["node-7"])
    told = f"{failure.value} {failure.value.hint}"
    assert told.isprintable()
    assert "secret" not in told
    assert failure.value.hint


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://host/", "host:9090", "http://", "http://[::1", "http://h:x/"]
)
def test_only_servers_of_http_are_asked(url: str) -> None:
    with pytest.raises(InputError, match="no address of a server"):
        prometheus_api.fetch(url, 0, 1, 1)


def test_a_server_that_is_not_there(unused_port: int) -> None:
    with pytest.raises(InputError, match="does not answer"):
        prometheus_api.fetch(f"http://127.0.0.1:{unused_port}", AT * 10**9, AT * 10**9, 1)


@pytest.fixture
def unused_port() -> int:
    with serving() as (url, _):
        return urlsplit(url).port or 0


# nvidia-smi.

SMI = f"""<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
\t<timestamp>Wed Nov 27 09:33:20 2024</timestamp>
\t<gpu id="00000000:1B:00.0">
\t\t<uuid>{UUID}</uuid>
\t\t<pci><pci_bus_id>00000000:1B:00.0</pci_bus_id>
\t\t\t<pci_gpu_link_info><pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>3</current_link_gen></pcie_gen>
\t\t\t<link_widths><max_link_width>16x</max_link_width><current_link_width>8x</current_link_width></link_widths>
\t\t\t</pci_gpu_link_info><replay_counter>4</replay_counter><tx_util>6850 KB/s</tx_util></pci>
\t\t<clocks_event_reasons>
\t\t\t<clocks_event_reason_gpu_idle>Not Active</clocks_event_reason_gpu_idle>
\t\t\t<clocks_event_reason_sw_power_cap>Active</clocks_event_reason_sw_power_cap>
\t\t\t<clocks_event_reason_sw_thermal_slowdown>Active</clocks_event_reason_sw_thermal_slowdown>
\t\t</clocks_event_reasons>
\t\t<clocks_event_reasons_counters>
\t\t\t<clocks_event_reasons_counters_sw_therm_slowdown>2000000 us</clocks_event_reasons_counters_sw_therm_slowdown>
\t\t\t<clocks_event_reasons_counters_hw_therm_slowdown>500000 us</clocks_event_reasons_counters_hw_therm_slowdown>
\t\t</clocks_event_reasons_counters>
\t\t<fb_memory_usage><used>2 MiB</used></fb_memory_usage>
\t\t<utilization><gpu_util>30 %</gpu_util></utilization>
\t\t<ecc_errors><volatile><sram_correctable>1</sram_correctable><dram_correctable>2</dram_correctable>
\t\t\t<dram_uncorrectable>N/A</dram_uncorrectable></volatile></ecc_errors>
\t\t<remapped_rows><remapped_row_corr>0</remapped_row_corr><remapped_row_unc>1</remapped_row_unc>
\t\t\t<remapped_row_pending>Yes</remapped_row_pending><remapped_row_failure>No</remapped_row_failure></remapped_rows>
\t\t<temperature><gpu_temp>41 C</gpu_temp><gpu_temp_tlimit>N/A</gpu_temp_tlimit>
\t\t\t<memory_temp>N/A</memory_temp></temperature>
\t\t<gpu_power_readings><instant_power_draw>11.26 W</instant_power_draw>
\t\t\t<average_power_draw>11.15 W</average_power_draw><current_power_limit>95.00 W</current_power_limit>
\t\t\t</gpu_power_readings>
\t\t<clocks><sm_clock>675 MHz</sm_clock><mem_clock>810 MHz</mem_clock></clocks>
\t</gpu>
</nvidia_smi_log>
"""


@pytest.fixture
def smi(tmp_path: Path) -> Callable[[str], EvidenceFile]:
    def read(content: str) -> EvidenceFile:
        path = tmp_path / "smi.txt"
        path.write_text(content)
        assert nvidia_smi.fits(path.name, content.encode()[: 64 << 10])
        return nvidia_smi.read(path)

    return read


def test_all_that_nvidia_smi_knows_of_a_device(smi: Callable[[str], EvidenceFile]) -> None:
    file = smi(SMI)
    assert {(row[0], row[2]) for row in rows(file)} == {(AT, GPU)}
    assert {row[3]: row[4] for row in rows(file)} == {
        "gpu_sm_clock": 675.0,
        "gpu_memory_clock": 810.0,
        "gpu_power": 11.15,
        "gpu_power_limit": 95.0,
        "gpu_temperature": 41.0,
        "gpu_utilization": 0.3,
        "gpu_memory_used": float(2 << 20),
        "gpu_pcie_generation": 3.0,
        "gpu_pcie_generation_max": 5.0,
        "gpu_pcie_width": 8.0,
        "gpu_pcie_width_max": 16.0,
        "gpu_pcie_replays": 4.0,
        "gpu_pcie_sent": 6_850_000.0,
        "gpu_remapped_rows_correctable": 0.0,
        "gpu_remapped_rows_uncorrectable": 1.0,
        "gpu_row_remap_pending": 1.0,
        "gpu_row_remap_failure": 0.0,
        "gpu_ecc_corrected": 3.0,
        "gpu_throttle_thermal_time": 2.5,
        "gpu_throttle_reasons": float(0x4 | 0x20),
    }
    assert any("no time zone" in note for note in file.sources[0].notes)


def test_documents_one_after_the_other_of_which_one_is_damaged(smi: Callable[[str], EvidenceFile]) -> None:
    later = SMI.replace("09:33:20", "09:33:25")
    file = smi(SMI + SMI[:900] + later)
    assert [row[0] for row in rows(file, "gpu_sm_clock")] == [AT, AT + 5]
    assert file.sources[0].passed_over == 1


@pytest.mark.parametrize(
    "doctype",
    [
        '<!DOCTYPE nvidia_smi_log [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]>',
        '<!DOCTYPE nvidia_smi_log [<!ENTITY a SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE other SYSTEM "x.dtd">',
    ],
)
def test_xml_that_defines_entities_is_refused(tmp_path: Path, doctype: str) -> None:
    path = tmp_path / "smi.xml"
    path.write_text(SMI.replace('<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">', doctype))
    with pytest.raises(InputError, match="defines entities"):
        nvidia_smi.read(path)


def test_deep_xml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "smi.xml"
    path.write_text("<?xml version='1.0'?><nvidia_smi_log>" + "<a>" * 100_000)
    with pytest.raises(InputError):
        nvidia_smi.read(path)


def test_csv_with_units(smi: Callable[[str], EvidenceFile]) -> None:
    file = smi(
        "timestamp, index, uuid, clocks.current.sm [MHz], power.draw [W], enforced.power.limit [W], power.limit [W], "
        "utilization.gpu [%], memory.used [MiB], temperature.memory, clocks_event_reasons.active, "
        "clocks_event_reasons_counters.sw_thermal_slowdown [us]\n"
        f"2024/11/27 09:33:20.250, 3, {UUID}, 1395 MHz, 149.70 W, 500.00 W, 700.00 W, 40 %, 2 MiB, N/A, "
        "0x0000000000000024, 1500000 us\n"
        f"2024/11/27 09:33:21.250, 3, {UUID}, [Not Supported], [N/A]\n"
        f"2024/11/27 09:33:22.250, 3, {UUID}, [Unknown Error], [N/A], 500.00 W, 700.00 W, 40 %, 2 MiB, N/A, 0x0, 0 us\n"
    )
    assert {row[3]: row[4] for row in rows(file) if row[0] == AT + 0.25} == {
        "gpu_sm_clock": 1395.0,
        "gpu_power": 149.7,
        "gpu_power_limit": 500.0,
        "gpu_utilization": 0.4,
        "gpu_memory_used": float(2 << 20),
        "gpu_throttle_reasons": float(0x24),
        "gpu_throttle_thermal_time": 1.5,
    }
    assert values(file, "gpu_sm_clock") == [1395.0]
    assert file.sources[0].passed_over == 1
    assert file.sources[0].clock == "host"


def test_csv_without_units_and_without_times(smi: Callable[[str], EvidenceFile]) -> None:
    file = smi("index, utilization.gpu [%], clocks.current.sm [MHz]\n0, 40, 1395\n1, 50, 1400\n0, 25, 1398\n")
    assert {(row[2], row[3], row[4]) for row in rows(file)} == {
        ("gpu index:0", "gpu_utilization", 0.25),
        ("gpu index:0", "gpu_sm_clock", 1398.0),
        ("gpu index:1", "gpu_utilization", 0.5),
        ("gpu index:1", "gpu_sm_clock", 1400.0),
    }
    assert file.sources[0].clock == "unknown"
    assert file.sources[0].passed_over == 2


def test_csv_without_its_header_says_the_way_out(smi: Callable[[str], EvidenceFile]) -> None:
    with pytest.raises(InputError, match="no header") as failure:
        smi("2024/11/27 09:33:20.250, 3, 1395 MHz\n")
    assert failure.value.hint is not None
    assert "noheader" in failure.value.hint


def test_errors_of_nvlinks_are_added_up(smi: Callable[[str], EvidenceFile]) -> None:
    file = smi(
        f"$ nvidia-smi nvlink -e\nGPU 0: NVIDIA H100 80GB HBM3 (UUID: {UUID})\n"
        "\t Link 0: Replay Errors: 1\n\t Link 0: Recovery Errors: 0\n\t Link 0: CRC Errors: 0\n\n"
        "\t Link 1: Replay Errors: 2\n\t Link 1: Recovery Errors: 505\n\t Link 1: CRC Errors: 0\n"
        "GPU 1: NVIDIA GB300\n\t Link 0: Replay Errors: 7\n"
    )
    assert {(row[2], row[3], row[4]) for row in rows(file)} == {
        (GPU, "gpu_nvlink_replays", 3.0),
        (GPU, "gpu_nvlink_recoveries", 505.0),
        (GPU, "gpu_nvlink_errors", 0.0),
        ("gpu index:1", "gpu_nvlink_replays", 7.0),
    }


# Whatever a file holds.

PLAIN = {
    prometheus_text: scrapes(
        f"DCGM_FI_DEV_GPU_TEMP{{{DCGM}}} 61\nDCGM_FI_DEV_XID_ERRORS{{{DCGM}}} 79", "node_vmstat_oom_kill 1"
    ),
    prometheus_api: json.dumps(
        answer(({"__name__": "DCGM_FI_DEV_POWER_USAGE", **DCGM_LABELS}, [[AT, "1"], [AT + 1, "2"]]))
    ),
    nvidia_smi: SMI,
}
DAMAGED = st.tuples(
    st.sampled_from(list(PLAIN)),
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 30), st.binary(max_size=8)), max_size=4),
)


@given(of=st.sampled_from(list(PLAIN)), content=st.binary(max_size=400))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
def test_random_bytes_are_refused_in_one_way(tmp_path: Path, of: Any, content: bytes) -> None:  # noqa: ANN401
    path = tmp_path / "evidence"
    path.write_bytes(content)
    of.fits(path.name, content)
    with suppress(InputError):
        of.read(path)


@given(damaged=DAMAGED)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200, deadline=None)
def test_damaged_files_are_read_or_refused(tmp_path: Path, damaged: tuple[Any, list[tuple[int, int, bytes]]]) -> None:
    of, changes = damaged
    content = PLAIN[of].encode()
    for place, length, new in changes:
        at = place % (len(content) + 1)
        content = content[:at] + new + content[at + length :]
    path = tmp_path / "evidence"
    path.write_bytes(content)
    of.fits(path.name, content)
    with suppress(InputError):
        file = of.read(path)
        assert file.table.schema == SCHEMA
        assert file.sources[0].rows == len(file.table)
        assert isinstance(file.table, pa.Table)
