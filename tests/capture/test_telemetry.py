"""What the agent reads of its host: of folders that stand in for /proc and /sys, and of this machine's own."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.captured import OneRank, agent_of
from support.nvml_library import NvmlLibrary
from support.patience import PATIENCE_S

from kair_capture.agent.agent import agent_settings
from kair_capture.agent.host_facts import cpus_in
from kair_capture.agent.telemetry.control_groups import ControlGroups
from kair_capture.agent.telemetry.host import nfs_requests
from kair_capture.agent.telemetry.joining import in_order
from kair_capture.agent.telemetry.pacing import EACH, OFTEN, PACES, SELDOM, Pacer, Task
from kair_capture.agent.telemetry.process_table import ProcessTable, stat_in
from kair_capture.agent.telemetry.processes import cores_in
from kair_capture.agent.telemetry.rows import HEARTBEAT_S, Rows, Series
from kair_capture.agent.telemetry.sampler import Telemetry
from kair_capture.agent.telemetry.waiting import Waiting, calls_of, mounts_in
from kair_capture.files import remove_beyond
from kair_capture.nvml import Nvml
from kair_capture.settings import SettingsError
from kair_engine.trace.evidence_table import read_evidence
from kair_engine.trace.measures import HOST, MEASURES

TICKS = os.sysconf("SC_CLK_TCK")
NS = 10**9
BEGIN_NS = 1_790_000_000 * NS
NO_NVML = "no NVML: libnvidia-ml.so.1 is not there"


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def stat_line(pid: int, parent: int = 1, *, name: str = "python", state: str = "S", **of: int) -> str:
    """As /proc/PID/stat has it; times in ticks."""
    fields = [0] * 49
    fields[0] = parent
    places = {"minor": 6, "major": 8, "user": 10, "system": 11, "nice": 15, "threads": 16, "began": 18, "pages": 20}
    places |= {"core": 35, "disk": 38}
    for key, value in of.items():
        fields[places[key]] = value
    return f"{pid} ({name}) {state} " + " ".join(map(str, fields)) + "\n"


def process(pid: int, parent: int = 1, *, cores: str = "f", read: int = 0, **of: int | str) -> dict[str, str]:
    name, state = str(of.pop("name", "python")), str(of.pop("state", "S"))
    line = stat_line(pid, parent, name=name, state=state, **{key: int(value) for key, value in of.items()})
    return {
        f"proc/{pid}/stat": line,
        f"proc/{pid}/status": f"Name:\tx\nVmRSS:\t  1000 kB\nVmSwap:\t  8 kB\nCpus_allowed:\t{cores}\n",
        f"proc/{pid}/io": f"rchar: {read}\nwchar: 0\nsyscr: 5\nsyscw: 0\nread_bytes: 4096\n",
        f"proc/{pid}/task/{pid}/schedstat": "5000000000 250000000 77\n",
        f"proc/{pid}/cgroup": "0::/job\n",
    }


class Host:
    """A host of folders, and what is sampled of it."""

    def __init__(self, root: Path, nvml: NvmlLibrary | None = None) -> None:
        self.root = root
        self.put: list[str] = []
        self.files: list[Path] = []
        opened = (None, NO_NVML) if nvml is None else (Nvml(nvml.api), "")
        self.now_s = 0.0
        self.telemetry = Telemetry(
            root / "spool", "node-7", self.keep, self.remove, lambda: opened,
            proc=root / "proc", sys=root / "sys", groups=root / "cgroup",
        )  # fmt: skip

    def keep(self, file: Path, name: str) -> None:
        target = self.root / "store" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
        self.files.append(target)

    def remove(self, name: str) -> None:
        (self.root / "store" / name).unlink(missing_ok=True)

    def sample(self, ranks: Mapping[int, int], seconds: float = 1.0) -> None:
        self.telemetry._wanted = dict(ranks)
        self.telemetry.sample_host(self.now_s, BEGIN_NS + int(self.now_s * NS))
        self.telemetry.sample_devices(self.now_s, BEGIN_NS + int(self.now_s * NS))
        self.now_s += seconds

    def rows(self) -> list[dict[str, object]]:
        """Of all files so far, in order of time."""
        self.telemetry.flush()
        self.telemetry.deliver()
        return [row for file in self.files for row in read_evidence(file).table.to_pylist()]

    def values(self, name: str, entity: str | None = None) -> list[object]:
        rows = [row for row in self.rows() if row["name"] == name and entity in (None, row["entity"])]
        return [row["text"] if row["value"] is None else row["value"] for row in rows]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_rank_is_read_with_its_data_workers(host: Host) -> None:
    rank = process(100, user=300, system=100, pages=250, minor=9, major=2, nice=5, threads=40, read=1000)
    worker = process(101, 100, pages=10, major=3, read=500, state="D")
    write(host.root, {**rank, **worker, **process(102, 101, pages=1, read=7), **process(900)})
    host.sample({4: 100})
    write(host.root, {**process(101, 100, pages=10, major=4, read=600), **process(102, 101, pages=1, read=3)})
    host.sample({4: 100}, 10.0)
    host.sample({4: 100})
    rows = host.rows()
    assert {row["rank"] for row in rows if row["entity"] == "pid:100"} == {4} and {row["host"] for row in rows} == {
        "node-7"
    }
    page = os.sysconf("SC_PAGE_SIZE")
    assert host.values("process_cpu_time")[0] == 400 / TICKS
    assert host.values("process_run_delay")[0] == 0.25
    assert host.values("process_memory")[0] == (250 + 11) * page
    assert host.values("process_swapped")[0] == 8 * 1024
    assert host.values("loader_workers")[0] == 2 and host.values("threads")[0] == 40
    assert host.values("process_cores")[0] == 4 and host.values("process_nice")[0] == 5
    # The second worker's number is another process's now, which has read 3 bytes.
    assert host.values("process_read") == [1507, 1610]
    assert host.values("process_major_faults") == [5, 6]
    assert "process_disk_time" not in {row["name"] for row in rows}  # nothing says that the kernel counts it


def test_times_of_waiting_for_disks_are_told_where_the_kernel_counts_them(tmp_path: Path) -> None:
    write(tmp_path, {"proc/sys/kernel/task_delayacct": "1\n", **process(100, disk=0)})
    host = Host(tmp_path)
    host.sample({0: 100})
    write(host.root, process(100, disk=250))
    host.sample({0: 100})
    assert host.values("process_disk_time") == [0, 250 / TICKS]


def test_delay_accounting_that_is_off_is_not_taken_for_no_waiting(tmp_path: Path) -> None:
    write(tmp_path, {"proc/sys/kernel/task_delayacct": "0\n", **process(100, disk=9)})
    host = Host(tmp_path)
    write(host.root, {"proc/100/task/100/schedstat": "0 0 0\n"})
    host.sample({0: 100})
    assert not {"process_disk_time", "process_run_delay"} & {row["name"] for row in host.rows()}


def test_what_a_training_thread_waits_in_is_counted_by_file_and_mount(host: Host) -> None:
    write(
        host.root,
        {
            **process(100),
            "proc/100/syscall": "0 0x5 0x7f 0x1000 0x0 0x0 0x0 0x7ffd 0x7f00\n",
            "proc/100/fdinfo/5": "pos:\t0\nflags:\t0100000\nmnt_id:\t77\n",
            "proc/100/mountinfo": r"77 1 0:50 / /mnt/my\040data rw - fuse.slowfs slow rw" + "\n",
        },
    )
    (host.root / "proc/100/fd").mkdir()
    (host.root / "proc/100/fd/5").symlink_to("/mnt/my data/shard-3")
    for _ in range(3):
        host.sample({0: 100})
    write(host.root, {"proc/100/syscall": "-1 0x7ffd 0x7f00\n", **process(100, state="D")})
    host.sample({0: 100})
    write(host.root, process(100, state="R"))
    host.sample({0: 100})
    of = [(row["text"], row["value"]) for row in host.rows() if row["name"] == "process_wait_time"]
    machine_knows = os.uname().machine == "x86_64"
    if machine_knows:
        assert [value for text, value in of if text == "read /mnt/my data/shard-3 (fuse.slowfs)"] == [0, 1, 2]
    assert [value for text, value in of if text == "page fault"] == [0, 1]
    assert [value for text, value in of if text == "running"] == [0, 1]


@pytest.mark.parametrize(
    ("syscall", "link", "told"),
    [
        ("0 0x3 0x0 0x0 0x0 0x0 0x0 0x0 0x0", "socket:[123]", "read socket"),
        ("0 0x3 0x0 0x0 0x0 0x0 0x0 0x0 0x0", "pipe:[123]", "read pipe"),
        ("202 0x3 0x0 0x0 0x0 0x0 0x0 0x0 0x0", "socket:[123]", "futex"),
        ("45 0x3 0x0 0x0 0x0 0x0 0x0 0x0 0x0", "socket:[1]", "recv socket"),
        ("230 0x0 0x0 0x0 0x0 0x0 0x0 0x0 0x0", None, "nanosleep"),
        ("0 0x9 0x0 0x0 0x0 0x0 0x0 0x0 0x0", None, "read"),
        ("running", None, "running"),
        ("9999 0x0 0x0 0x0 0x0 0x0 0x0 0x0 0x0", None, "system call 9999"),
        ("", None, "kernel: folio_wait_bit"),
        ("nonsense 0xzz", None, "kernel: folio_wait_bit"),
    ],
)
def test_calls_are_told_by_name(tmp_path: Path, syscall: str, link: str | None, told: str) -> None:
    write(tmp_path, {"1/syscall": syscall, "1/wchan": "folio_wait_bit", "1/fd/0": ""})
    if link is not None:
        (tmp_path / "1/fd/3").symlink_to(link)
    assert Waiting(tmp_path / "1", "x86_64").text("S", 0) == told


def test_a_path_that_is_opened_is_read_from_the_process_and_other_calls_of_an_unknown_machine_are_numbers(
    tmp_path: Path,
) -> None:
    files = {"1/syscall": "257 0xffffff9c 0x4 0x0 0x0 0x0 0x0 0x0 0x0", "1/mem": "abc /mnt/a/b\0rest"}
    write(tmp_path, {**files, "1/mountinfo": "5 1 0:1 / / rw - ext4 a rw\n6 1 0:2 / /mnt/a rw - nfs4 b rw\n"})
    assert Waiting(tmp_path / "1", "x86_64").text("S", 0) == "open /mnt/a/b (nfs4)"
    assert Waiting(tmp_path / "1", "riscv64").text("S", 0) == "system call 257"


@pytest.mark.skipif(not calls_of(os.uname().machine), reason="calls of this processor have no names")
def test_a_process_that_waits_for_a_file_to_be_opened_is_seen_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "data")
    child = subprocess.Popen([sys.executable, "-c", "import sys; open(sys.argv[1])", str(tmp_path / "data")])
    waiting, told, until = Waiting(Path(f"/proc/{child.pid}")), None, time.monotonic() + PATIENCE_S
    table = ProcessTable()
    try:
        while not (told or "").startswith("open ") and time.monotonic() < until:
            stat = table.stat(child.pid)
            told = None if stat is None else waiting.text(stat.state, 0)
            if (told or "").startswith("kernel: "):
                pytest.skip("what a process calls may not be read here")
    finally:
        child.kill()
        child.wait()
        waiting.close()
    assert told is not None and told.startswith(f"open {tmp_path / 'data'} (")


def test_of_many_files_the_later_ones_are_told_by_their_mount(tmp_path: Path) -> None:
    call = "0 0x3 0x0 0x0 0x0 0x0 0x0 0x0 0x0"
    mounts = "6 1 0:2 / /mnt/a rw - nfs4 b rw\n"
    write(tmp_path, {"1/syscall": call, "1/mountinfo": mounts, "1/fdinfo/3": "mnt_id:\t6\n", "1/fd/0": ""})
    waiting, told = Waiting(tmp_path / "1", "x86_64"), []
    for number in range(20):
        (tmp_path / "1/fd/3").unlink(missing_ok=True)
        (tmp_path / "1/fd/3").symlink_to(f"/mnt/a/{number}")
        told.append(waiting.text("S", 0))
    assert told[0] == "read /mnt/a/0 (nfs4)" and told[19] == "read /mnt/a (nfs4)" and len(set(told)) < 10


@pytest.mark.parametrize("version", [1, 2])
def test_quotas_and_limits_of_both_versions_of_control_groups(tmp_path: Path, version: int) -> None:
    if version == 1:
        text = "4:memory:/pod/c\n3:cpu,cpuacct:/pod/c\n"
        files = {
            "cpu,cpuacct/pod/c/cpu.cfs_quota_us": "-1\n", "cpu,cpuacct/pod/c/cpu.cfs_period_us": "100000\n",
            "cpu,cpuacct/pod/cpu.cfs_quota_us": "150000\n", "cpu,cpuacct/pod/cpu.cfs_period_us": "100000\n",
            "cpu,cpuacct/pod/cpu.stat": "nr_periods 9\nnr_throttled 4\nthrottled_time 2500000000\n",
            "memory/pod/c/memory.limit_in_bytes": "9223372036854771712\n",
            "memory/pod/memory.limit_in_bytes": "1048576\n",
        }  # fmt: skip
    else:
        text = "0::/pod/c\n"
        files = {
            "cgroup.controllers": "cpu memory\n", "pod/c/cpu.max": "max 100000\n", "pod/cpu.max": "150000 100000\n",
            "pod/cpu.stat": "usage_usec 1\nnr_throttled 4\nthrottled_usec 2500000\n",
            "pod/c/memory.max": "max\n", "pod/memory.max": "1048576\n",
            "pod/c/memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=70000\nfull avg10=0.00 total=1\n",
        }  # fmt: skip
    write(tmp_path, files)
    groups = ControlGroups(text, tmp_path)
    groups.look()
    throttling = groups.throttling(1)
    assert groups.quota == 1.5 and groups.memory_limit == 1048576
    assert throttling is not None and throttling == (2.5, 4)
    assert groups.memory_stalls_s(1) == (None if version == 1 else 0.07)


def test_a_process_without_groups_has_no_quota_and_no_limit(tmp_path: Path) -> None:
    groups = ControlGroups("0::/../../etc\nnonsense\n", tmp_path)
    groups.look()
    assert (groups.quota, groups.memory_limit, groups.throttling(1), groups.memory_stalls_s(1)) == (None,) * 4


def test_a_process_without_a_quota_was_stopped_by_none(tmp_path: Path) -> None:
    write(tmp_path, {"cgroup.controllers": "cpu\n", "pod/cpu.max": "max 100000\n", "pod/cpu.stat": "nr_throttled 4\n"})
    groups = ControlGroups("0::/pod\n", tmp_path)
    groups.look()
    assert groups.quota is None and groups.throttling(1) == (0, 0)


def test_a_look_that_is_a_bit_early_is_on_time() -> None:
    """Who reads is up to 0.3 of an interval early or late, so as not to keep step with the job."""
    looked: list[int] = []
    pacer = Pacer(Rows("a", PACES), [Task("each", EACH, looked.append)], budget=1.0)
    for now in (0.0, 0.7, 2.3, 2.5, 2.9, 3.8, 5.0):
        pacer.run(now, int(now * 10))
    assert looked == [0, 7, 23, 29, 38, 50]


def test_other_processes_on_the_cores_of_a_rank_are_counted_and_the_greatest_named(host: Host) -> None:
    others = {**process(500, name="tar (x) y", cores="1", user=10), **process(501, cores="f0", user=10)}
    own = {**process(100, cores="3"), **process(101, 100, user=10), **process(os.getpid(), user=10)}
    write(host.root, {**own, **others, **process(502, name="small", user=10)})
    host.sample({0: 100}, 31)
    host.sample({0: 100}, 1)
    for pid, more in ((500, 300), (501, 900), (502, 20), (101, 50), (os.getpid(), 4000)):
        cores = {500: "1", 501: "f0"}.get(pid, "f")
        name = {500: "tar (x) y", 502: "small"}.get(pid, "python")
        write(host.root, process(pid, 100 if pid == 101 else 1, name=name, cores=cores, user=10 + more))
    # A rank that lacked a core has all processes looked at at once.
    write(host.root, {**process(503, user=30), "proc/100/task/100/schedstat": "5000000000 750000000 99\n"})
    host.sample({0: 100}, 5)
    host.sample({0: 100}, 5)
    assert host.values("neighbour_time", "pid:100")[-1] == pytest.approx((300 + 20 + 30 + 50) / TICKS)
    assert host.values("neighbour", "pid:100")[-1] == "tar (x) y (pid 500)"
    # What the rank began itself takes its core as well, and is said to be its own.
    write(host.root, {**process(101, 100, user=900), "proc/100/task/100/schedstat": "5000000000 950000000 99\n"})
    host.sample({0: 100}, 5)
    assert host.values("neighbour", "pid:100")[-1] == "python (pid 101), which the rank began"


def test_a_rank_that_ends_and_one_that_begins_anew(host: Host) -> None:
    write(host.root, {**process(100, user=100), **process(200, user=100)})
    host.sample({0: 100, 1: 200})
    for name in ("stat", "status", "io", "cgroup", "task/200/schedstat"):
        (host.root / "proc/200" / name).unlink()
    write(host.root, {**process(100, user=200), **process(300, user=5)})
    host.telemetry._ranks.of[1].close()  # as the kernel does with the files of a process that has ended
    host.sample({0: 100, 1: 200}, 10)
    host.sample({0: 100, 1: 300})
    assert host.values("process_cpu_time", "pid:100") == [100 / TICKS, 200 / TICKS]
    assert host.values("process_cpu_time", "pid:200") == [100 / TICKS]
    assert host.values("process_cpu_time", "pid:300") == [5 / TICKS]
    assert {row["rank"] for row in host.rows() if row["entity"] == "pid:300"} == {1}


def test_what_is_not_there_or_damaged_is_left_out(host: Host) -> None:
    write(
        host.root,
        {
            "proc/100/stat": "100 (python",
            "proc/meminfo": "MemTotal: lots kB\n",
            "proc/vmstat": "pswpin\npgmajfault -\n",
            "proc/pressure/cpu": "some\n",
            "proc/diskstats": "8 0 sda 1\n",
            "sys/block/sda/size": "1",
            "proc/net/dev": "eth0: 1 2\n",
            "sys/class/net/eth0/operstate": "up\n",
            "sys/class/net/eth0/speed": "-1\n",
            "proc/net/snmp": "Tcp: A RetransSegs\nTcp: 1\n",
            "proc/stat": "cpu 1 2\n",
            "sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error": "N/A\n",
            "sys/devices/system/edac/mc/mc0/ce_count": "x\n",
            "proc/self/mountstats": "device a:/b mounted on /c with fstype nfs\n\tper-op statistics\n\tREAD: x\n",
        },
    )
    for _ in range(3):
        host.sample({0: 100}, 40)
    told = {row["name"] for row in host.rows()}
    assert told == {"nic_state", "nfs_requests", "nfs_retransmits", "nfs_request_time"}
    assert host.telemetry.notes() == (NO_NVML,)


def test_the_host_is_told_in_the_units_of_measures(host: Host) -> None:
    write(
        host.root,
        {
            **process(100, core=1),
            "proc/stat": "cpu  100 20 30 900 50 5 5 40 0 0\ncpu0 1 1\n",
            "sys/devices/system/cpu/online": "0-2,8\n",
            "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "1200000\n",
            "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "powersave\n",
            "proc/pressure/memory": "some avg10=0.00 total=2000000\nfull avg10=0.00 total=1000000\n",
            "proc/meminfo": "MemTotal:       2048 kB\nMemFree: 1 kB\nMemAvailable:    1024 kB\n",
            "proc/vmstat": "nr_free 1\npswpin 3\npswpout 4\npgmajfault 5\n",
            "sys/block/sda/size": "1",
            "sys/block/loop0/size": "1",
            "proc/diskstats": "".join(
                f"8 {n} {name} 5 0 16 1 2 0 0 1 0 2500 9 0 0\n" for n, name in enumerate(("sda", "sda1", "loop0"))
            ),
            "sys/class/net/eth0/device/vendor": "1", "sys/class/net/eth0/speed": "25000\n",
            "sys/class/net/eth0/operstate": "up\n", "sys/class/net/veth1/operstate": "up\n",
            "proc/net/dev": "x\neth0: 10 1 2 3 0 0 0 0 20 1 4 5 0 0 0 0\nveth1: 1 1 1 1 0 0 0 0 1 1 1 1 0 0 0 0\n",
            "proc/net/snmp": "Tcp: A RetransSegs\nTcp: 1 17\n",
            "sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data": "25\n",
            "sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error": "6\n",
            "sys/class/infiniband/mlx5_0/ports/1/hw_counters/rp_cnp_handled": "2\n",
            "sys/class/infiniband/mlx5_0/ports/1/hw_counters/np_ecn_marked_roce_packets": "3\n",
            "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
            "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
            "sys/devices/system/edac/mc/mc0/ce_count": "1\n", "sys/devices/system/edac/mc/mc1/ce_count": "2\n",
        },
    )  # fmt: skip
    again = Host(host.root)  # what there is on a host is looked up when it begins
    again.sample({3: 100})
    page = os.sysconf("SC_PAGE_SIZE")
    rows = {(row["entity"], row["name"]): row["value"] or row["text"] for row in again.rows()}
    expected = {
        (HOST, "cpu_busy_time"): 160 / TICKS, (HOST, "cpu_steal_time"): 40 / TICKS, (HOST, "cpu_count"): 4,
        (HOST, "psi_memory_time"): 2, (HOST, "psi_memory_full_time"): 1, (HOST, "memory_available"): 1 << 20,
        (HOST, "memory_total"): 2 << 20, (HOST, "swap_in"): 3 * page, (HOST, "swap_out"): 4 * page,
        (HOST, "major_faults"): 5, ("disk:sda", "disk_busy_time"): 2.5, ("disk:sda", "disk_read"): 16 * 512,
        ("nic:eth0", "nic_received"): 10, ("nic:eth0", "nic_sent"): 20, ("nic:eth0", "nic_errors"): 6,
        ("nic:eth0", "nic_drops"): 8, ("nic:eth0", "nic_speed"): 25, ("nic:eth0", "nic_state"): "up",
        (HOST, "tcp_retransmits"): 17, ("nic:mlx5_0/1", "nic_received"): 100,
        ("nic:mlx5_0/1", "ib_symbol_errors"): 6, ("nic:mlx5_0/1", "congestion_marks"): 5,
        ("nic:mlx5_0/1", "nic_speed"): 400, ("nic:mlx5_0/1", "nic_state"): "active", (HOST, "edac_corrected"): 3,
        ("pid:100", "cpu_frequency"): 1200, ("pid:100", "cpu_governor"): "powersave",
        (HOST, "cpu_frequency"): 1200, (HOST, "cpu_governor"): "powersave",
    }  # fmt: skip
    assert {key: rows.get(key) for key in expected} == expected
    assert not any(str(entity).startswith(("disk:loop", "disk:sda1", "nic:veth")) for entity, _ in rows)


def test_nfs_requests_of_a_mount_are_summed_over_operations() -> None:
    text = (
        "device rootfs mounted on / with fstype rootfs\n"
        "device srv:/data mounted on /mnt/a\\040b with fstype nfs4 statvers=1.1\n"
        "\tage:\t12\n\tper-op statistics\n\t        NULL: 1 1 0 44 24 0 0 1\n\t        READ: 100 103 0 1 1 10 20 900\n"
        "device proc mounted on /proc with fstype proc\n"
    )
    assert list(nfs_requests(text)) == [("/mnt/a b", 101, 3, pytest.approx(0.901))]


def test_devices_are_read_with_the_processes_of_others(tmp_path: Path) -> None:
    fake = NvmlLibrary()
    fake.processes = [(100, 10), (101, 20), (900, 1 << 30)]
    host = Host(tmp_path, fake)
    write(host.root, {**process(100), **process(101, 100), **process(900)})
    host.sample({0: 100})
    host.sample({0: 100}, 10)
    host.sample({0: 100})
    entity = "gpu:GPU-5f3e0000-0000-0000-0000-000000000000"
    assert host.values("gpu_sm_clock", entity) == [1395]
    assert host.values("gpu_other_processes", entity)[-1] == 1
    assert host.values("gpu_other_memory", entity)[-1] == 1 << 30
    sources = {source.name: source for file in host.files for source in read_evidence(file).sources}
    assert {source.kind for source in sources.values()} == {"capture"}
    assert sources["capture, every 1 s"].interval_s == 1 and sources["capture, every 1 s"].hosts == ("node-7",)


def test_devices_of_which_no_process_is_the_jobs_say_nothing_of_others(tmp_path: Path) -> None:
    """In a container the driver numbers processes otherwise: the job's own would be taken for others."""
    fake = NvmlLibrary()
    fake.processes = [(4711, 10)]
    host = Host(tmp_path, fake)
    write(host.root, process(100))
    for _ in range(3):
        host.sample({0: 100}, 10)
    assert not host.values("gpu_other_processes")


def test_a_value_that_stays_is_written_again_after_the_heartbeat_and_a_counter_may_begin_anew() -> None:
    rows, series = Rows("a", PACES), Series(HOST, "swap_in", EACH)
    seen = [5.0] * 70 + [3.0, 3.0]
    for second, value in enumerate(seen):
        rows.looked(EACH, second * NS)
        rows.add(series, second * NS, value)
    rows.add(series, 80 * NS, None)
    taken = rows.take(("a note",))
    assert taken is not None
    of = [(row["time_ns"] // NS, row["value"]) for row in taken.table.to_pylist()]
    assert of == [(0, 5), (HEARTBEAT_S, 5), (2 * HEARTBEAT_S, 5), (70, 3)]
    (source,) = taken.sources
    assert (source.interval_s, source.bound_s, source.rows, source.gaps, source.notes) == (1, 1, 4, 0, ("a note",))
    assert source.holds_s is not None and source.holds_s > HEARTBEAT_S
    assert rows.take(()) is None


def test_gaps_are_told_where_nothing_was_read() -> None:
    rows, series = Rows("a", PACES), Series(HOST, "swap_in", OFTEN)
    for second in (0, 5, 10, 60, 65):
        rows.looked(OFTEN, second * NS)
        rows.add(series, second * NS, float(second))
    taken = rows.take(())
    assert taken is not None and (taken.sources[0].gaps, taken.sources[0].longest_gap_s) == (1, 50)


def test_measures_that_nobody_knows_are_refused() -> None:
    with pytest.raises(KeyError):
        Series(HOST, "no_such_measure", EACH)


def test_tasks_run_at_their_paces_and_the_dear_ones_less_often() -> None:
    ran: dict[str, list[float]] = {"each": [], "often": [], "dear": []}
    now = 0.0
    tasks = [Task(name, pace, lambda _, name=name: ran[name].append(now)) for name, pace in
             (("each", EACH), ("often", OFTEN), ("dear", SELDOM))]  # fmt: skip
    pacer = Pacer(Rows("a", PACES), tasks, budget=1.0)
    for second in range(61):
        tasks[2].cost_s = 0.003  # of a core's 0.01 % that is thirty seconds
        now = float(second)
        pacer.run(now, second * NS)
    assert len(ran["each"]) == 61 and ran["often"] == [5.0 * one for one in range(13)]
    assert len(ran["dear"]) == 3 and pacer.notes() == ("dear: read every 30 s, as more would cost too much",)
    pacer.run(60.25, 0, is_burst=True)
    assert len(ran["each"]) == 62 and len(ran["often"]) == 13


def test_all_tasks_wait_longer_where_they_cost_more_than_the_budget() -> None:
    pacer = Pacer(Rows("a", PACES), [], budget=0.001)
    for now_s, spent_s in ((0.0, 0.0), (30.0, 5.0), (60.0, 5.12)):
        pacer._settle(now_s, spent_s)
    assert pacer.stretched == pytest.approx(4)  # 0.12 s in 30 s; the first readings, which open files, are not counted
    pacer._settle(90.0, 5.15)  # 0.001 of a core with four times as long intervals: as before
    assert pacer.stretched == pytest.approx(4)
    pacer._settle(120.0, 5.151)
    assert pacer.stretched == 1


def test_a_store_that_is_away_gets_everything_later_and_the_oldest_goes_without_room(host: Host) -> None:
    write(host.root, process(100, user=1))
    telemetry, is_away = host.telemetry, True

    def put(file: Path, name: str) -> None:
        if is_away:
            raise OSError("away")
        host.keep(file, name)

    telemetry._put = put
    host.sample({0: 100})
    telemetry.flush()
    with pytest.raises(OSError, match="away"):
        telemetry.deliver()
    write(host.root, process(100, user=2))
    host.sample({0: 100})
    telemetry.flush()
    oldest, newest = in_order(telemetry._folder)
    assert remove_beyond([oldest, newest], newest.stat().st_size) == [oldest]
    assert in_order(telemetry._folder) == [newest]
    is_away = False
    telemetry.deliver()
    assert not in_order(telemetry._folder)
    assert [(file.parent.name, file.name) for file in host.files] == [("host=node-7", newest.name)]
    assert oldest.name != newest.name


def test_a_clock_that_is_set_back_gives_no_file_the_name_of_one_before(host: Host) -> None:
    write(host.root, process(100, user=1))
    host.sample({0: 100})
    host.rows()
    host.telemetry.deliver(is_last=True)
    write(host.root, process(100, user=2))
    host.telemetry.sample_host(60.0, BEGIN_NS)
    host.rows()
    assert len({file.name for file in host.files}) == 2


def test_this_machine_is_sampled_by_threads_and_delivered_at_the_end(tmp_path: Path) -> None:
    put: dict[str, Path] = {}
    has_row = threading.Event()

    def keep(file: Path, name: str) -> None:
        put[name] = tmp_path / Path(name).name
        put[name].write_bytes(file.read_bytes())

    code = "import os, sys; sys.stdout.write('x'); sys.stdout.flush(); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.read(1) == b"x"
    telemetry = Telemetry(tmp_path / "spool", "here", keep, lambda _: None, lambda: (None, NO_NVML))
    sample = telemetry.sample_host

    def noting(*arguments: object, **more: object) -> None:
        sample(*arguments, **more)  # type: ignore[arg-type]
        has_row.set()

    telemetry.sample_host = noting  # type: ignore[method-assign]
    try:
        telemetry.look({2: child.pid})
        telemetry.start()
        assert has_row.wait(PATIENCE_S)
        child.send_signal(signal.SIGKILL)  # a rank that ends between two samples
        child.wait()
    finally:
        telemetry.close()
        child.kill()
        child.communicate()
    (name,) = put
    assert name.startswith("evidence/host=here/samples-") and not list((tmp_path / "spool").iterdir())
    evidence = read_evidence(put[name])
    names = set(evidence.table["name"].to_pylist())
    assert (
        {"process_cpu_time", "process_memory", "memory_total", "cpu_busy_time", "process_cores"}
        <= names
        <= set(MEASURES)
    )
    assert evidence.sources[0].notes == (NO_NVML,) and evidence.sources[0].clock == "host"
    assert pq.read_metadata(put[name]).num_rows == len(evidence.table)


def test_a_reading_that_fails_is_noted_and_the_agent_goes_on(tmp_path: Path) -> None:
    failed = threading.Event()
    telemetry = Telemetry(tmp_path / "spool", "here", lambda *_: None, lambda _: None, lambda: (None, NO_NVML))

    def fail(*_: object, **__: object) -> None:
        failed.set()
        raise RuntimeError("never thought of")

    telemetry.sample_host = fail  # type: ignore[method-assign]
    telemetry.look({0: os.getpid()})
    telemetry.start()
    assert failed.wait(PATIENCE_S)
    telemetry.close()
    assert "a reading failed: RuntimeError: never thought of" in telemetry.notes()


def test_this_process_is_in_the_table_of_processes() -> None:
    table = ProcessTable()
    table.refresh()
    assert table.parent(os.getpid()) == os.getppid() and os.getpid() in table.descendants([os.getppid()])
    stat = table.stat(os.getpid())
    assert stat is not None and stat.resident_pages > 0 and stat.threads >= 1
    assert table.stat(2**30) is None
    status = table.text(os.getpid(), "status")
    assert {core for core in range(4096) if cores_in(status) >> core & 1} == os.sched_getaffinity(0)


@given(st.binary(max_size=400))
def test_damaged_text_of_the_system_is_no_error(text: bytes) -> None:
    stat_in(text)
    stat_in(b"1 (" + text + b") S 1")
    cores_in(text)
    decoded = text.decode(errors="replace")
    mounts_in(decoded)
    cpus_in(decoded[:8])
    list(nfs_requests("device a mounted on /b with fstype nfs\nper-op statistics\n" + decoded))


@pytest.mark.parametrize("is_on", [True, False])
def test_an_agent_delivers_what_it_read_of_its_ranks(tmp_path: Path, is_on: bool) -> None:
    with agent_of(tmp_path, KAIR_TELEMETRY=str(int(is_on))) as agent:
        rank = OneRank(tmp_path / "run", 3)
        rank.step(1, 100)
        agent._look()
        assert (agent.telemetry is not None) is is_on
        if agent.telemetry is not None:
            agent.telemetry.sample_host(0.0, BEGIN_NS)
            agent.telemetry.flush()
            agent.telemetry.deliver()
            agent.telemetry.sample_host(60.0, BEGIN_NS + 60 * NS)
            agent.telemetry.flush()
            agent.telemetry.deliver(is_last=True)
        agent.identities.stop(60)
    files = list((tmp_path / "store/job/evidence").rglob("*.parquet"))
    assert [file.parent.name for file in files] == ["host=node-1"] * is_on
    assert not is_on or 3 in read_evidence(files[0]).table["rank"].to_pylist()


@pytest.mark.parametrize(("text", "is_on"), [("", True), ("off", False), ("on", True), ("0", False)])
def test_telemetry_is_on_unless_a_variable_says_off(tmp_path: Path, text: str, is_on: bool) -> None:
    environment = {"KAIR_RUN_DIR": str(tmp_path), "KAIR_STORE": str(tmp_path), "KAIR_TELEMETRY": text}
    assert agent_settings(environment).telemetry is is_on
    with pytest.raises(SettingsError, match="KAIR_TELEMETRY"):
        agent_settings({**environment, "KAIR_TELEMETRY": "maybe"})
