"""A Kineto job's device telemetry: what is tied by the device's number, what is not, and what is said of it."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from kair_engine.evidence.joining import Joins
from kair_engine.evidence.untied import doubts_of, measures_untied, untied, warnings_of
from kair_engine.readers.evidence import nvidia_smi, prometheus_text
from kair_engine.trace.evidence_table import EvidenceFile, read_evidence, together, write_evidence
from kair_engine.trace.identity import DeviceIdentity, RankIdentity
from kair_engine.trace.measures import EvidenceSource, gpu, gpu_index, pci

HOSTS = dict.fromkeys(range(4), "node-0")


def uuid(index: int) -> str:
    return f"GPU-{index:08x}-1111-2222-3333-444444444444"


def address(index: int) -> str:
    return f"0000:{0x19 + index:02x}:00.0"


def kineto(ordinals: dict[int, int], visible: int | None = 4) -> dict[int, RankIdentity]:
    """Ranks as Kineto tells them: which of the devices that their process saw their kernels ran on."""
    return {
        rank: RankIdentity(rank, device=DeviceIdentity(ordinal=number, visible=visible))
        for rank, number in ordinals.items()
    }


def smi(
    tmp_path: Path, columns: str = "index, uuid, pci.bus_id", host: str = "node-0", devices: int = 4
) -> EvidenceFile:
    """Two readings of each device of a host, as `nvidia-smi --query-gpu=… --format=csv` prints them."""
    names = [name.strip() for name in columns.split(",") if name.strip()]
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(["timestamp", *names, "clocks.current.sm [MHz]", "pcie.link.width.current"])
    for second in (0, 1):
        for index in range(devices):
            known = {"index": str(index), "uuid": uuid(index), "pci.bus_id": address(index)}
            width = "4" if index == 3 else "16"
            rows.writerow([f"2025/11/17 09:00:0{second}.000", *(known[name] for name in names), "1980 MHz", width])
    path = tmp_path / f"host={host}" / "clock.csv"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text.getvalue())
    return nvidia_smi.read(path)


@pytest.mark.parametrize(
    ("columns", "entity"),
    [
        ("index, uuid, pci.bus_id", gpu(uuid(3))),
        ("index, pci.bus_id", pci(address(3))),
        ("index", gpu_index(3)),
        ("index, uuid", gpu(uuid(3))),
    ],
    ids=["all names", "no uuid", "the number alone", "no address"],
)
def test_a_kineto_ranks_device_is_the_one_of_its_number(tmp_path: Path, columns: str, entity: str) -> None:
    file = smi(tmp_path, columns)
    joins = Joins(kineto({rank: rank for rank in range(4)}), HOSTS, file.devices)
    assert joins.ranks_of("node-0", entity) == ((3,), "ordinal")
    assert untied(file, joins) == ()


def test_ranks_need_not_use_the_devices_in_their_order(tmp_path: Path) -> None:
    file = smi(tmp_path)
    joins = Joins(kineto({0: 2, 1: 0, 2: 3, 3: 1}), HOSTS, file.devices)
    assert [joins.ranks_of("node-0", gpu(uuid(index)))[0] for index in range(4)] == [(1,), (3,), (0,), (2,)]


def test_names_survive_being_kept_and_joined(tmp_path: Path) -> None:
    write_evidence(tmp_path / "kept.parquet", smi(tmp_path))
    file = together([read_evidence(tmp_path / "kept.parquet"), smi(tmp_path, host="node-1")])
    hosts = {rank: f"node-{rank // 4}" for rank in range(8)}
    joins = Joins(kineto({rank: rank % 4 for rank in range(8)}), hosts, file.devices)
    assert joins.ranks_of("node-0", gpu(uuid(1))) == ((1,), "ordinal")
    assert joins.ranks_of("node-1", gpu(uuid(1))) == ((5,), "ordinal")


def test_a_uuid_that_a_rank_is_known_by_goes_before_its_number(tmp_path: Path) -> None:
    file = smi(tmp_path)
    known = {
        rank: RankIdentity(rank, device=DeviceIdentity(uuid(3 - rank), ordinal=rank, visible=4)) for rank in range(4)
    }
    joins = Joins(known, HOSTS, file.devices)
    assert joins.ranks_of("node-0", gpu(uuid(3))) == ((0,), "uuid")
    other = Joins(
        known | {0: RankIdentity(0, device=DeviceIdentity(uuid(9), ordinal=3, visible=4))}, HOSTS, file.devices
    )
    assert other.ranks_of("node-0", gpu(uuid(3))) == ((), None), "its device is another one, whatever its number"
    assert untied(file, other) == (), "nothing that was read is of its device"


def test_an_address_ties_behind_a_uuid_that_nobody_knows(tmp_path: Path) -> None:
    file = smi(tmp_path)
    known = {0: RankIdentity(0, device=DeviceIdentity(pci=address(2)))}
    assert Joins(known, {0: "node-0"}, file.devices).ranks_of("node-0", gpu(uuid(2))) == ((0,), "pci")


@pytest.mark.parametrize(
    ("identities", "hosts", "columns", "said"),
    [
        (kineto(dict.fromkeys(range(4), 0), visible=1), HOSTS, "index, uuid", "CUDA_VISIBLE_DEVICES"),
        (kineto({0: 0, 1: 1, 2: 0, 3: 1}), HOSTS, "index, uuid", "the same number"),
        (kineto({rank: rank for rank in range(4)}, None), HOSTS, "index, uuid", "does not list the devices"),
        ({}, HOSTS, "index, uuid", "which device they ran on"),
        (kineto({rank: rank for rank in range(4)}), HOSTS, "uuid", "query index"),
        (
            kineto({rank: rank for rank in range(4)}),
            dict.fromkeys(range(4), "n1"),
            "index",
            "put the source into a folder",
        ),
    ],
    ids=["hidden devices", "one number twice", "no list", "no device", "no number", "another host"],
)
def test_what_is_not_tied_is_said_with_its_reason_and_a_way_out(
    tmp_path: Path, identities: dict[int, RankIdentity], hosts: dict[int, str], columns: str, said: str
) -> None:
    file = smi(tmp_path, columns)
    joins = Joins(identities, hosts, file.devices)
    found = untied(file, joins)
    assert [(one.rows, one.devices, one.ranks) for one in found] == [(16, 4, (0, 1, 2, 3))]
    (warning,) = warnings_of(found, joins)
    assert warning.code == "evidence_not_tied"
    assert warning.message.startswith("clock.csv: 16 readings of 4 devices of node-0 are not tied to ranks 0-3: ")
    assert said in warning.message
    assert "; " in warning.message, "and what to do"
    assert measures_untied(found)[3] == {"gpu_sm_clock", "gpu_pcie_width"}


def test_of_two_hosts_one_is_sampled_and_nothing_is_said_of_the_other(tmp_path: Path) -> None:
    file = smi(tmp_path)
    hosts = {rank: f"node-{rank // 4}" for rank in range(8)}
    assert untied(file, Joins(kineto({rank: rank % 4 for rank in range(8)}), hosts, file.devices)) == ()


def test_a_source_without_a_host_is_nobodys_where_the_job_has_two(tmp_path: Path) -> None:
    path = tmp_path / "clock.csv"
    path.write_text("index, clocks.current.sm [MHz]\n0, 1980 MHz\n1, 1395 MHz\n")
    file = nvidia_smi.read(path)
    hosts = {0: "a", 1: "a", 2: "b", 3: "b"}
    joins = Joins(kineto({0: 0, 1: 1, 2: 0, 3: 1}, 2), hosts, file.devices)
    assert joins.ranks_of(None, gpu_index(1)) == ((), None)
    (warning,) = warnings_of(untied(file, joins), joins)
    assert "does not name its host, and the job has 2 (a, b)" in warning.message
    # Where no host is named at all, and no number comes twice, there is one.
    assert Joins(kineto({0: 0, 1: 1}, 2), {}, file.devices).ranks_of(None, gpu_index(1)) == ((1,), "ordinal")
    assert Joins(kineto({0: 0, 1: 1, 2: 0, 3: 1}, 2), {}, file.devices).ranks_of(None, gpu_index(1)) == ((), None)


def test_a_log_that_knows_an_address_is_tied_by_the_number_that_another_source_tells(tmp_path: Path) -> None:
    file = smi(tmp_path)
    joins = Joins(kineto({rank: rank for rank in range(4)}), HOSTS, file.devices)
    assert joins.ranks_of("node-0", pci(address(2))) == ((2,), "ordinal")


def test_an_exporter_s_number_of_a_device_is_the_driver_s(tmp_path: Path) -> None:
    """dcgm-exporter tells UUID and number; its UUID does not hide the number."""
    path = tmp_path / "node-0.prom"
    samples = [
        f'DCGM_FI_DEV_SM_CLOCK{{gpu="{index}",UUID="{uuid(index)}",Hostname="node-0"}} 1980 17000000{second}0000'
        for second in (0, 1)
        for index in range(4)
    ]
    path.write_text("# TYPE DCGM_FI_DEV_SM_CLOCK gauge\n" + "\n".join(samples) + "\n")
    file = prometheus_text.read(path)
    joins = Joins(kineto({0: 3, 1: 2, 2: 1, 3: 0}), HOSTS, file.devices)
    assert joins.ranks_of("node-0", gpu(uuid(3))) == ((0,), "ordinal")
    assert untied(file, joins) == ()


def test_what_is_in_doubt_of_sources_is_said_once_with_their_names() -> None:
    no_zone = EvidenceSource("a.log", "kernel log", doubts=("its times state no zone",))
    sources = [no_zone, replace(no_zone, name="b.log"), EvidenceSource("c.log", "kernel log")]
    assert [(one.code, one.message) for one in doubts_of(sources)] == [
        ("evidence_in_doubt", "a.log, b.log: its times state no zone")
    ]
