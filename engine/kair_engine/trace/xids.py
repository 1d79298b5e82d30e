"""What the XIDs of NVIDIA's driver stand for: of what they are a sign, whose doing that is, and what to do.

Codes and names are those of NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors); the words are Kair's.
"""

import re
from collections.abc import Mapping
from typing import Final, Literal

from kair_engine.frozen import dataclass

SignOf = Literal["memory", "nvlink", "pcie", "application", "power", "driver"]
"""What is at fault where nothing else explains it; `driver` is the driver, its firmware, or what they run on."""


@dataclass(frozen=True)
class Xid:
    """One code."""

    code: int
    mnemonic: str
    """As the catalogue has it, but for `ROBUST_CHANNEL_`; '' of codes that are not known here."""
    words: str
    sign_of: SignOf
    action: str
    """What to do, as a command to a person."""
    is_downstream: bool = False
    """It usually follows from another XID, on this device or another: the other one is the cause to look for."""
    is_application: bool = False
    """It usually comes from the program: a device that has it alone is not thereby a bad one."""


_RESTART: Final = "look for the fault in the program; if others of the device's jobs fail alike, reset the device"
_RESET: Final = "drain the node and reset the device; if it comes again, have it replaced"
_LINK: Final = "drain the node, reset its devices, and check the link and its peer; if it comes again, have it replaced"
_OTHER: Final = "look for the XID that it follows from"


def _of(code: int, mnemonic: str, words: str, sign_of: SignOf, action: str) -> Xid:
    return Xid(code, mnemonic, words, sign_of, action)


def _program(code: int, mnemonic: str, words: str) -> Xid:
    return Xid(code, mnemonic, words, "application", _RESTART, is_application=True)


def _follows(code: int, mnemonic: str, words: str, sign_of: SignOf) -> Xid:
    return Xid(code, mnemonic, words, sign_of, _OTHER, is_downstream=True)


_TABLE: Final = (
    _program(8, "FIFO_ERROR_IDLE_TIMEOUT", "the device stopped processing"),
    _program(11, "GR_ERROR_MISSING_HW", "an invalid command was given to the device"),
    _program(13, "GR_EXCEPTION", "a kernel raised an exception (an illegal address or instruction)"),
    _program(25, "GR_ILLEGAL_NOTIFY", "an invalid command was given to the device"),
    _program(31, "MMU_ERR_FLT", "a kernel accessed memory that is not its own"),
    _program(32, "PBDMA_ERROR", "a damaged command reached the device (over PCIe)"),
    _of(38, "FECS_ERR_WATCHDOG_TIMEOUT", "the driver's firmware did not answer", "driver", _RESET),
    _program(39, "CE0_ERROR", "a copy engine raised an exception"),
    _program(40, "CE1_ERROR", "a copy engine raised an exception"),
    _program(41, "CE2_ERROR", "a copy engine raised an exception"),
    _program(43, "RESETCHANNEL_VERIF_ERROR", "the program's work on the device was stopped after its own fault"),
    _follows(45, "PREEMPTIVE_REMOVAL", "the program's work was removed because of an earlier error", "application"),
    _of(46, "GPU_TIMEOUT_ERROR", "the device stopped processing", "driver", _RESET),
    _of(48, "GPU_ECC_DBE", "an uncorrectable error of device memory", "memory", _RESET),
    _of(
        54,
        "PWR_REDUCED_CLOCKING",
        "the device's auxiliary power is not connected",
        "power",
        "drain the node and check the device's power cables",
    ),
    _of(61, "PMU_BREAKPOINT", "a microcontroller of the device stopped", "driver", _RESET),
    _of(62, "PMU_HALT_ERROR", "a microcontroller of the device halted", "driver", _RESET),
    _of(
        63,
        "DRAM_RETIREMENT_EVENT",
        "a row of device memory is remapped, or a page retired",
        "memory",
        "reset the device when its job has ended, so that the row is remapped; watch whether more follow",
    ),
    _of(64, "DRAM_RETIREMENT_FAILURE", "a row of device memory could not be remapped", "memory", _RESET),
    _program(68, "NVDEC0_ERROR", "the video decoder raised an exception"),
    _program(69, "GR_CLASS_ERROR", "a command was none that the device knows"),
    _of(74, "NVLINK_ERROR", "an error of an NVLink", "nvlink", _LINK),
    _of(
        79,
        "GPU_HAS_FALLEN_OFF_THE_BUS",
        "the device no longer answers over PCIe",
        "pcie",
        "drain and restart the node; if it comes again, reseat the device, and check its power and temperature",
    ),
    _program(80, "PBDMA_PUSHBUFFER_CRC_MISMATCH", "damaged data were sent to the device"),
    _of(
        92,
        "EXCESSIVE_SBE_INTERRUPTS",
        "many corrected errors of device memory",
        "memory",
        "watch the device's error counters; if they go on growing, have it replaced",
    ),
    _of(
        94,
        "CONTAINED_ERROR",
        "an uncorrectable memory error hit one program alone",
        "memory",
        "restart the job; reset the device when that is possible",
    ),
    _of(95, "UNCONTAINED_ERROR", "an uncorrectable memory error may have hit every program", "memory", _RESET),
    _of(109, "CTXSW_TIMEOUT_ERROR", "the device did not change from one program to another in time", "driver", _RESET),
    _of(110, "SEC_FAULT_ERROR", "a security fault of the device", "driver", _RESET),
    _of(119, "GSP_RPC_TIMEOUT", "the device's system processor (GSP) did not answer", "driver", _RESET),
    _of(120, "GSP_ERROR", "the device's system processor (GSP) failed", "driver", _RESET),
    _of(121, "C2C_ERROR", "a corrected error of the link between CPU and device", "nvlink", _RESET),
    _of(136, "ALI_TRAINING_FAIL", "an NVLink could not be trained", "nvlink", _LINK),
    Xid(
        137,
        "NVLINK_PRIV_ERR",
        "an access over NVLink was refused by the other device",
        "nvlink",
        "look for an XID of the other device, else for the fault in the program",
        is_downstream=True,
        is_application=True,
    ),
    _of(140, "UNRECOVERABLE_ECC_ERROR_ESCAPE", "an uncorrectable memory error", "memory", _RESET),
    _program(141, "FAST_PATH_ERROR", "an error of CUDA's fast path"),
    _of(143, "GPU_INIT_ERROR", "the device could not be initialised", "driver", _RESET),
    _of(144, "NVLINK_SAW_ERROR", "an error of NVLink's access to the device", "nvlink", _LINK),
    _follows(145, "NVLINK_RLW_ERROR", "a request over NVLink was lost or not answered", "nvlink"),
    _of(146, "NVLINK_TLW_ERROR", "an error of NVLink's transport layer", "nvlink", _LINK),
    _of(147, "NVLINK_TREX_ERROR", "an error of NVLink's self-test", "nvlink", _LINK),
    _of(148, "NVLINK_NVLPW_CTRL_ERROR", "an error of NVLink's control", "nvlink", _LINK),
    _of(149, "NVLINK_NETIR_ERROR", "an NVLink went down, or has many bit errors", "nvlink", _LINK),
    _of(150, "NVLINK_MSE_ERROR", "NVLink's management processor failed", "nvlink", _LINK),
    _of(151, "KEY_ROTATION_ERROR", "keys of confidential computing could not be changed", "driver", "restart the VM"),
    _follows(154, "GPU_RECOVERY_ACTION_CHANGED", "the driver says what the device needs to recover", "driver"),
    _of(155, "NVLINK_SW_DEFINED_ERROR", "an NVLink was taken down by software", "nvlink", _LINK),
    _of(156, "RESOURCE_RETIREMENT_EVENT", "a part of the device is taken out of use", "memory", _RESET),
    _of(157, "RESOURCE_RETIREMENT_FAILURE", "a part of the device could not be taken out of use", "memory", _RESET),
    _of(158, "GPU_FATAL_TIMEOUT", "the device did not answer in time", "driver", _RESET),
    _of(163, "PSHC_DISENGAGED", "power smoothing is switched off", "power", "ask the vendor"),
    _of(165, "PSHC_ZERO_LIFETIME", "power smoothing is worn out", "power", "ask the vendor"),
    _of(
        167,
        "PCIE_FATAL_TIMEOUT",
        "the device did not answer over PCIe in time",
        "pcie",
        "drain and restart the node; if it comes again, reseat the device",
    ),
    _follows(171, "UNCORRECTABLE_DRAM_ERROR", "an uncorrectable error of device memory, told besides 48", "memory"),
    _follows(
        172, "UNCORRECTABLE_SRAM_ERROR", "an uncorrectable error of the device's caches, told besides 48", "memory"
    ),
)

XIDS: Final[Mapping[int, Xid]] = {one.code: one for one in _TABLE}
"""code → what it stands for, of those that say something of a training job."""


def of_code(code: int) -> Xid:
    """What a code stands for; of others than those of XIDS that it is one of the driver."""
    known = XIDS.get(code)
    return known or Xid(
        code, "", "an error that the driver tells", "driver", "look it up in NVIDIA's catalogue of XIDs"
    )


_CAUSED: Final = re.compile(r"caused by previous Xid (\d{1,4})\b")


def told_cause(text: str) -> int | None:
    """The code that the driver itself names as the cause of another: `Ch 00000001 caused by previous Xid 149`."""
    match = _CAUSED.search(text)
    return int(match[1]) if match else None
