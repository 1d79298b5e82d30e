"""Probes: what is measured, what is read back, and what a comparison concludes."""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.probes import around, document, machine, recording, written

from kair_engine.errors import InputError, KairError, UsageError
from kair_engine.probe import quantities as gpu_module
from kair_engine.probe.comparison import DRAWS, MAX_BYTES, compared, pattern, read_probe
from kair_engine.probe.measuring import launch_of, link_series
from kair_engine.probe.quantities import chosen_gpu, counted, gpu_name, gpu_quantities, processor_name, snapshot
from kair_engine.probe.recording import TURNS, Quantity, Recording, repeated
from kair_engine.results.probe import HostCounters, Measurement
from kair_engine.results.warning_kinds import BusyMachine

HEALTHY = recording(machine("node1"), gpu_matrix_product=around(600_000.0), wake_up=around(60.0))


def rows(suspect: Recording, *peers: Recording) -> dict[str, Measurement]:
    return {row.name: row for row in compared(suspect, peers).measurements}


def test_a_rate_that_is_lower_is_a_time_that_is_longer() -> None:
    slow = recording(gpu_matrix_product=around(500_000.0), wake_up=around(60.0))
    result = compared(slow, [HEALTHY])
    row = result.measurements[0]
    assert row.slowdown == pytest.approx(1.2, rel=0.01)
    assert row.slowdown_low is not None and row.slowdown_high is not None
    assert 1.15 < row.slowdown_low <= 1.2 <= row.slowdown_high < 1.25
    assert (row.verdict, result.verdict) == ("slower", "confirmed")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rates", "wake_up_us", "verdict"),
    [
        (around(600_000.0), 240.0, "confirmed"),
        (around(600_000.0 / 1.05), 60.0, "not_confirmed"),
        (around(550_000.0, 0.5), 60.0, "cannot_tell"),
        ((300_000.0,) * 7, 60.0, "cannot_tell"),
    ],
    ids=["a time that is longer", "as devices of one type differ", "a wide interval", "fewer than eight values"],
)
def test_what_an_interval_says(rates: tuple[float, ...], wake_up_us: float, verdict: str) -> None:
    suspect = recording(gpu_matrix_product=rates, wake_up=around(wake_up_us))
    assert compared(suspect, [HEALTHY]).verdict == verdict
    assert rows(suspect, HEALTHY)["wake_up"].slowdown == pytest.approx(wake_up_us / 60, rel=0.01)


def test_a_busy_peer_tells_nothing_of_the_processor_but_a_busy_suspect_is_slow() -> None:
    busy = HostCounters(0.5, 100.0, None, 0)
    slow, fast = recording(python_loop=around(2e7)), recording(machine("node1"), python_loop=around(4e7))
    both = [replace(one, machine=replace(one.machine, counters=busy)) for one in (slow, fast)]
    assert compared(slow, [both[1]]).verdict == "cannot_tell"
    result = compared(both[0], [fast])
    assert result.verdict == "confirmed"
    (warning,) = result.warnings
    assert isinstance(warning, BusyMachine)
    assert warning.waited_share == 0.5


def test_the_peers_median_forgives_one_odd_peer() -> None:
    odd = recording(machine("node2"), gpu_matrix_product=around(300_000.0), wake_up=around(60.0))
    row = rows(recording(gpu_matrix_product=around(600_000.0)), HEALTHY, odd, HEALTHY)["gpu_matrix_product"]
    assert row.peer_median == pytest.approx(600_000, rel=0.01)


def test_a_slow_spell_widens_the_interval_as_scattered_values_do_not() -> None:
    fast, slow = around(600_000.0, count=22), around(400_000.0, count=18)
    spells = recording(gpu_matrix_product=(*fast, *slow))
    mixed = tuple(value for pair in zip(fast, (*slow, *slow), strict=False) for value in pair)[:40]
    widths = []
    for values in (spells.series[0].values, mixed):
        row = rows(recording(gpu_matrix_product=values), HEALTHY)["gpu_matrix_product"]
        assert row.slowdown_low is not None and row.slowdown_high is not None
        widths.append(row.slowdown_high - row.slowdown_low)
    assert widths[0] >= widths[1]


def test_the_same_files_give_the_same_answer() -> None:
    noisy = recording(gpu_matrix_product=around(550_000.0, 0.5))
    assert compared(noisy, [HEALTHY]) == compared(noisy, [HEALTHY])
    assert DRAWS >= 1000 / 0.01 / 10


@pytest.mark.parametrize("kind", ["device", "processor"])
def test_different_machines_are_not_compared(kind: str) -> None:
    other = replace(HEALTHY, machine=machine("node1", **{kind: "another"}))
    with pytest.raises(InputError, match=f"different {kind}s: .* on node0, 'another' on node1"):
        compared(recording(gpu_matrix_product=around(1.0)), [other])


@pytest.mark.parametrize(("field", "value"), [("unit", "us"), ("work", "less of it")])
def test_different_units_and_work_are_not_compared(field: str, value: str) -> None:
    changed = replace(HEALTHY, series=(replace(HEALTHY.series[0], **{field: value}),))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=f"{value}"):
        compared(HEALTHY, [changed])


def test_probes_with_nothing_in_common_are_not_compared() -> None:
    with pytest.raises(InputError, match="no measurement in common"):
        compared(recording(python_loop=around(1.0)), [HEALTHY])


def test_what_only_some_have_is_left_out_with_a_warning() -> None:
    result = compared(HEALTHY, [recording(gpu_matrix_product=around(600_000.0))])
    assert [row.name for row in result.measurements] == ["gpu_matrix_product"]
    assert [(one.code, "wake_up" in one.message) for one in result.warnings] == [("not_in_all_probes", True)]


def test_members_of_one_all_reduce_say_nothing_of_the_link() -> None:
    slow, fast = around(900.0), around(300.0)
    suspect = recording(machine(launch="a"), python_loop=around(9.0), all_reduce_1_mib=slow)
    together = recording(machine("node1", launch="a"), python_loop=around(9.0), all_reduce_1_mib=fast)
    apart = replace(together, machine=machine("node1", launch="b"))
    assert compared(suspect, [together]).verdict == "not_confirmed"
    assert [one.code for one in compared(suspect, [together]).warnings] == ["link_measured_together"]
    assert compared(suspect, [apart]).verdict == "confirmed"


def test_another_number_of_cores_is_said() -> None:
    other = replace(HEALTHY, machine=machine("node1", cpus=8, versions={"numpy": "1.26"}))
    assert [one.message for one in compared(HEALTHY, [other]).warnings] == [
        "the probes differ in the number of cores, the version of numpy"
    ]


def test_steady_scattered_and_spells() -> None:
    assert pattern(np.asarray(around(1.0))) == "steady"
    assert pattern(np.asarray(around(1.0, 0.5))) == "scattered"
    assert pattern(np.asarray((*around(1.0, count=20), *around(2.0, count=20)))) == "spells"
    assert pattern(np.asarray([3.0])) == "steady"


# Files


def test_a_file_gives_back_what_was_recorded(tmp_path: Path) -> None:
    assert read_probe(written(tmp_path / "probe.json", HEALTHY)) == HEALTHY


def spoilt(change: str) -> bytes:
    made = document(HEALTHY)
    data = made["data"]
    first = data["measurements"][0]
    if change == "no data":
        made["data"] = []
    elif change == "version":
        data["schema_version"] = 99
    elif change == "twice":
        data["measurements"].append(first)
    elif change == "comparison":
        data["verdict"] = "confirmed"
    elif change == "schema":
        made["schema"] = "kair.triage"
    elif change == "long name":
        data["machine"]["host"] = "x" * 5000
    else:
        first["values"] = {"zero": [0.0], "none": [], "text": ["1"], "many": [1.0] * 10_001}[change]
    return json.dumps(made).encode()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("no data", "has no data"),
        ("version", "schema_version 99"),
        ("twice", "twice"),
        ("comparison", "is a comparison"),
        ("schema", "is not a probe"),
        ("long name", "too long"),
        ("zero", "not above zero"),
        ("none", "has 0 values"),
        ("text", "damaged: Expected `float`"),
        ("many", "has 10001 values"),
    ],
)
def test_a_file_that_is_no_sound_probe_is_turned_down(tmp_path: Path, change: str, said: str) -> None:
    path = tmp_path / "probe.json"
    path.write_bytes(spoilt(change))
    with pytest.raises(InputError, match=said):
        read_probe(path)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"[" * 100_000, b"\xff", b"\x80\x04cos\nsystem\n.", b"null"])
def test_a_file_of_something_else_is_turned_down(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "probe.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match="is not a probe"):
        read_probe(path)


def test_a_file_without_end_is_read_to_the_limit_only() -> None:
    with pytest.raises(InputError, match=f"larger than {MAX_BYTES >> 20} MiB"):
        read_probe(Path("/dev/zero"))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*: No such file"):
        read_probe(tmp_path / "none.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
PLACES = ["data", "machine", "measurements", "link", "schema_version", "host", "rank", "counters", "versions", "values"]


@given(place=st.sampled_from(PLACES), value=JSON)
@example("values", [float("inf")])
@example("rank", -1)
def test_whatever_stands_in_a_file_it_is_read_or_turned_down(
    tmp_path_factory: pytest.TempPathFactory, place: str, value: object
) -> None:
    made = document(HEALTHY)
    data = made["data"]
    holder = next(
        (one for one in (made, data, data["machine"], data["measurements"][0]) if place in one), data["machine"]
    )
    holder[place] = value
    path = tmp_path_factory.getbasetemp() / "drawn.json"
    path.write_text(json.dumps(made))
    try:
        compared(read_probe(path), [HEALTHY])
    except KairError as error:
        assert "\n" not in str(error)


# Measuring


def test_the_launcher_says_which_rank_this_is() -> None:
    torchrun = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
    launch = launch_of(torchrun | {"SLURM_PROCID": "0"})
    assert (launch.rank, launch.world_size, launch.local_rank, launch.address) == (5, 8, 1, ("a", 29500))
    slurm = launch_of({"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "2", "SLURM_JOB_ID": "77"})
    assert (slurm.rank, slurm.world_size, slurm.local_rank, slurm.address) == (3, 4, 2, None)
    assert slurm.name is not None and "77" in slurm.name
    alone = launch_of({})
    assert (alone.rank, alone.world_size, alone.name) == (None, 1, None)


def test_a_batch_script_of_one_task_waits_for_nobody() -> None:
    assert launch_of({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1"}).world_size == 1


@pytest.mark.parametrize("wrong", [{"RANK": "x", "WORLD_SIZE": "2"}, {"RANK": "2", "WORLD_SIZE": "2"}])
def test_a_launcher_that_says_nonsense_is_told(wrong: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"\$RANK is"):
        launch_of(wrong)


def test_quantities_take_turns() -> None:
    order: list[str] = []

    def once(name: str) -> float:
        order.append(name)
        return 1.0

    both = [Quantity("python_loop", "", "us", lambda: once("a")), Quantity("wake_up", "", "us", lambda: once("b"))]
    told: list[int] = []
    series = repeated(both, 0.0, lambda done, _total, _what: told.append(done))
    assert "".join(order) == "aabb" * TURNS
    assert [len(one.values) for one in series] == [TURNS, TURNS]
    assert told[-1] == TURNS - 1


def system(folder: Path, waited: int, throttled: int, quota: str) -> tuple[Path, Path]:
    proc, group = folder / "proc", folder / "cgroup" / "job"
    for made in (proc / "self", group):
        made.mkdir(parents=True, exist_ok=True)
    (proc / "self" / "schedstat").write_text(f"5000 {waited} 7\n")
    (proc / "self" / "cgroup").write_text("0::/job\n")
    (proc / "cpuinfo").write_text("processor : 0\nmodel name\t: Some CPU\n")
    (group / "cpu.max").write_text(quota)
    (group / "cpu.stat").write_text(f"usage_usec 1\nnr_throttled {throttled}\n")
    return proc, folder / "cgroup"


def test_what_the_system_counted_is_told(tmp_path: Path) -> None:
    places = system(tmp_path, 1_000_000_000, 3, "200000 100000\n")
    before = snapshot(*places)
    system(tmp_path, 1_500_000_000, 7, "200000 100000\n")
    after = replace(snapshot(*places), at_s=before.at_s + 2)
    counters = counted(before, after, *places)
    assert counters.run_queue_share == pytest.approx(0.25)
    assert (counters.cpu_quota, counters.throttled_periods) == (2.0, 4)
    assert processor_name(places[0]) == "Some CPU"


def test_the_first_control_groups_tell_a_limit_too(tmp_path: Path) -> None:
    proc, cgroups = system(tmp_path, 1, 0, "")
    (proc / "self" / "cgroup").write_text("4:cpu,cpuacct:/job\n")
    group = cgroups / "cpu" / "job"
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text("150000\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    before = snapshot(proc, cgroups)
    assert counted(before, before, proc, cgroups).cpu_quota == 1.5
    (group / "cpu.cfs_quota_us").write_text("-1\n")
    assert counted(before, before, proc, cgroups).cpu_quota is None


def test_a_system_that_counts_nothing_is_null(tmp_path: Path) -> None:
    before = snapshot(tmp_path, tmp_path)
    counters = counted(before, before, tmp_path, tmp_path)
    assert (counters.run_queue_share, counters.cpu_quota, counters.throttled_periods) == (None, None, None)


class FakeTensor:
    def __init__(self, *shape: int, device: str, dtype: str) -> None:
        self.shape, self.device, self.dtype = shape, device, dtype

    def copy_(self, other: "FakeTensor") -> None:
        assert self.shape == other.shape


def fake_torch(gpus: int = 2) -> Any:  # noqa: ANN401
    """As much of torch as a GPU is measured with."""
    waits: list[int] = []
    cuda = SimpleNamespace(
        is_available=lambda: gpus > 0,
        device_count=lambda: gpus,
        get_device_name=lambda gpu: f"GPU {gpu}",
        is_bf16_supported=lambda: True,
        synchronize=lambda gpu: (waits.append(gpu), time.sleep(1e-4)),
    )
    return SimpleNamespace(
        cuda=cuda,
        waits=waits,
        bfloat16="bfloat16",
        uint8="uint8",
        randn=FakeTensor,
        empty=FakeTensor,
        ones=FakeTensor,
        matmul=lambda left, right, out: (left, right, out),
    )


def test_a_gpu_is_measured_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = fake_torch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert chosen_gpu("auto", local_rank=3) == 1
    assert chosen_gpu("cuda:0", local_rank=1) == 0
    product, copy = gpu_quantities(1, 0.001)
    assert (product.name, product.work, gpu_name(1)) == ("gpu_matrix_product", "4096×4096 bfloat16", "GPU 1")
    assert copy.name == "gpu_memory_copy"
    assert product.once() > 0 and copy.once() > 0
    assert set(torch.waits) == {1}


@pytest.mark.parametrize(
    ("device", "gpus", "said"),
    [
        ("cuda:2", 2, "torch finds 2"),
        ("cuda", 0, "finds no GPU"),
        ("cuda:x", 2, "is no device"),
        ("tpu", 2, "is no device"),
    ],
)
def test_a_gpu_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch, device: str, gpus: int, said: str) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch(gpus))
    with pytest.raises(UsageError, match=said):
        chosen_gpu(device, 0)


def test_without_torch_the_processor_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert chosen_gpu("auto", 0) is None
    with pytest.raises(UsageError, match="torch is not installed"):
        chosen_gpu("cuda:0", 0)
    assert gpu_module.torch_if_there() is None


def test_the_link_is_left_out_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert link_series(launch_of({}), None, 1.0)[1:] == ("one_rank", ())
    ranks = {"RANK": "0", "WORLD_SIZE": "2"}
    assert link_series(launch_of(ranks), None, 1.0)[1] == "no_address"
    _, state, (warning,) = link_series(launch_of(ranks | {"MASTER_ADDR": "a", "MASTER_PORT": "1"}), None, 1.0)
    assert (state, warning.code) == ("no_torch", "no_link")
