"""What NVIDIA's library tells pynvml, by one that stands in for it: in Python, and in C with nvml.h's layouts."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
from support.nvml_library import (
    BRAKE,
    HW_THERMAL,
    LONG_BLANK,
    LOST,
    NO_PERMISSION,
    SW_THERMAL,
    UINT_BLANK,
    NvmlLibrary,
    pynvml_of,
)

from kair_capture.nvml import DEAR, Nvml, opened
from kair_engine.trace.measures import MEASURES


def test_readings_have_the_units_of_measures_and_leave_out_what_is_not_known() -> None:
    (device,) = Nvml(NvmlLibrary().api).devices()
    found = device.readings(0.0)
    assert set(found) <= set(MEASURES)
    assert found["gpu_sm_clock"] == 1395 and "gpu_memory_clock" not in found  # 2³² − 1
    assert found["gpu_power"] == 412.5 and found["gpu_power_limit"] == 700
    assert found["gpu_utilization"] == 0.97 and found["gpu_throttle_reasons"] == 0x24
    assert (found["gpu_pcie_generation"], found["gpu_pcie_generation_max"]) == (3, 5)
    assert found["gpu_throttle_power_time"] == 5 and found["gpu_throttle_thermal_time"] == 2.5
    assert found["gpu_throttle_brake_time"] == 0 and "gpu_throttle_sync_boost_time" not in found
    assert found["gpu_ecc_corrected"] == 7 and "gpu_remapped_rows_correctable" not in found
    assert found["gpu_nvlink_active_links"] == 1 and found["gpu_nvlink_replays"] == 7
    assert found["gpu_nvlink_recoveries"] == 1 and found["gpu_nvlink_errors"] == 30


def test_what_is_dear_is_asked_for_every_ten_seconds() -> None:
    fake = NvmlLibrary()
    (device,) = Nvml(fake.api).devices()
    at_first = set(device.readings(0.0))
    assert at_first & DEAR
    assert not set(device.readings(1.0)) & DEAR and not set(device.readings(9.9)) & DEAR
    assert set(device.readings(10.0)) & DEAR == (at_first & DEAR) | {"gpu_nvlink_bytes"}


def test_bytes_become_rates_and_a_counter_that_begins_anew_tells_none() -> None:
    fake = NvmlLibrary()
    (device,) = Nvml(fake.api).devices()
    assert "gpu_pcie_sent" not in device.readings(0.0)
    fake.fields[197, 0] += 3000
    assert device.readings(2.0)["gpu_pcie_sent"] == 1500
    fake.fields[197, 0] = 10
    assert "gpu_pcie_sent" not in device.readings(3.0)
    fake.fields[138, UINT_BLANK] += 20
    assert device.readings(10.0)["gpu_nvlink_bytes"] == 20 * 1024 / 10


def test_blank_values_of_the_driver_are_left_out() -> None:
    fake = NvmlLibrary()
    fake.fields[74, 0] = LONG_BLANK
    fake.ecc = [LONG_BLANK, 2**64 - 1]
    (device,) = Nvml(fake.api).devices()
    found = device.readings(0.0)
    assert not {"gpu_throttle_power_time", "gpu_ecc_corrected", "gpu_ecc_uncorrected"} & set(found)


def test_what_is_not_supported_is_asked_for_once_and_what_failed_again() -> None:
    fake = NvmlLibrary()
    fake.status = {"nvmlDeviceGetPowerUsage": NO_PERMISSION, "nvmlDeviceGetTemperature": LOST}
    (device,) = Nvml(fake.api).devices()
    for second in range(3):
        assert not {"gpu_power", "gpu_temperature"} & set(device.readings(float(second)))
    assert fake.calls.count("nvmlDeviceGetPowerUsage") == 1 and fake.calls.count("nvmlDeviceGetTemperature") == 3
    assert device.was_refused
    fake.status = {}
    assert device.readings(4.0)["gpu_temperature"] == 71


@pytest.mark.parametrize(
    ("driver", "numbers", "thermal"),
    [
        ("570.10", (251, 252), None),
        ("580.65", (251, 252), 3.0),
        ("590.1", (269, 270), 3.0),
        ("590.1", (251, 252), None),
    ],
)
def test_times_of_slowing_down_have_other_numbers_in_other_drivers(
    driver: str, numbers: tuple[int, int], thermal: float | None
) -> None:
    fake = NvmlLibrary(driver)
    for old in (SW_THERMAL, HW_THERMAL, BRAKE):
        del fake.fields[old, 0]
    fake.fields |= {(numbers[0], 0): 1_000_000_000, (numbers[1], 0): 2_000_000_000}
    (device,) = Nvml(fake.api).devices()
    assert device.readings(0.0).get("gpu_throttle_thermal_time") == thermal


def test_ecc_and_nvlink_are_never_asked_for_together() -> None:
    fake = NvmlLibrary()
    (device,) = Nvml(fake.api).devices()
    device.readings(0.0)
    links = {138, 139, 161, 162, 163, 208, 215}
    of_links = [asked for asked in fake.asked_together if asked & links]
    assert of_links and all(asked <= links | {38, 45, 52, 59} for asked in of_links)


def test_processes_have_memory_where_it_is_told() -> None:
    fake = NvmlLibrary()
    (device,) = Nvml(fake.api).devices()
    assert device.memory_of_processes() == {100: float(1 << 30), 200: None}
    fake.processes = [(pid, 1) for pid in range(1, 100)]
    assert device.processes() == tuple(range(1, 100))
    fake.status["nvmlDeviceGetComputeRunningProcesses_v2"] = NO_PERMISSION
    assert device.processes() == ()


def test_settings_are_told_in_words() -> None:
    (device,) = Nvml(NvmlLibrary().api).devices()
    told = {"pcie_generation": "5", "pcie_width": "16", "power_limit_w": "700", "persistence": "on"}
    assert device.settings() == told


def test_processes_that_are_meant_have_a_share_of_the_device() -> None:
    fake = NvmlLibrary()
    (device,) = Nvml(fake.api).devices()
    # Of each process the mean of its samples; of more than 100 % nothing is said.
    assert device.utilization_of({100, 200}.__contains__) == (0.5 + 0.3)
    assert device.utilization_of({100}.__contains__) is None, "nothing was added since"
    fake.utilization.append((200, 9_000, 20))
    assert device.utilization_of({100}.__contains__) == 0


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (12, "libnvidia-ml.so.1 is not there"),
        (9, "NVIDIA's driver is not loaded"),
        (NO_PERMISSION, "no permission"),
        (999, "Unknown Error"),
    ],
)
def test_a_library_that_cannot_begin_is_none_with_a_reason(status: int, why: str) -> None:
    fake = NvmlLibrary()
    fake.status["nvmlInitWithFlags"] = status
    assert opened(fake.api) == (None, f"no NVML: {why}")


SOURCE = """
#include <string.h>
typedef struct { unsigned int fieldId, scopeId; long long timestamp, latencyUsec; unsigned int valueType, nvmlReturn;
  union { double d; unsigned int ui; unsigned long ul; unsigned long long ull; long long sll; } value; } Field;
typedef struct { unsigned int pid; unsigned long long used; unsigned int gi, ci; } Process;
typedef struct { char legacy[16]; unsigned int domain, bus, device, id, subsystem; char busId[32]; } Pci;
static int device;
int nvmlInitWithFlags(unsigned int flags) { return flags; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *to, unsigned int most) { strncpy(to, "580.1", most); return 0; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle) { *handle = &device; return index ? 2 : 0; }
int nvmlDeviceGetName(void *handle, char *to, unsigned int most) { strncpy(to, "H100", most); return 0 * !handle; }
int nvmlDeviceGetPciInfo_v3(void *handle, Pci *to) { strcpy(to->busId, "00000000:1B:00.0"); return handle != &device; }
int nvmlDeviceGetPowerUsage(void *handle, unsigned int *mw) { *mw = 250000; return handle != &device; }
int nvmlDeviceGetFieldValues(void *handle, int count, Field *values) {
  for (int i = 0; i < count; i++) {
    values[i].nvmlReturn = values[i].fieldId == 74 || values[i].fieldId == 82 ? 0 : 3;
    if (values[i].fieldId == 74) { values[i].valueType = 3; values[i].value.ull = 12000000000ULL; }
    if (values[i].fieldId == 82) { values[i].valueType = 1; values[i].value.ui = 90; }
  }
  return handle != &device;
}
int nvmlDeviceGetComputeRunningProcesses_v2(void *handle, unsigned int *count, Process *to) {
  if (*count < 2) { *count = 2; return 7; }
  to[0].pid = 11; to[0].used = 1ULL << 40; to[1].pid = 12; to[1].used = 5; *count = 2; return handle != &device;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_structures_have_the_layout_that_a_compiler_gives_them(tmp_path: Path) -> None:
    (tmp_path / "nvml.c").write_text(SOURCE)
    library = tmp_path / "libnvidia-ml.so.1"
    command = ["cc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "nvml.c")]
    subprocess.run(command, check=True, capture_output=True)
    nvml, why = opened(pynvml_of(ctypes.CDLL(str(library))))
    assert nvml is not None and not why and nvml.driver_version() == "580.1"
    (device,) = nvml.devices()
    assert (device.model, device.pci, device.uuid) == ("H100", "00000000:1B:00.0", None)
    assert device.readings(0.0) == {"gpu_power": 250, "gpu_throttle_power_time": 12, "gpu_memory_temperature": 90}
    assert device.memory_of_processes() == {11: float(1 << 40), 12: 5.0}
    nvml.close()
    assert nvml.devices() == ()
