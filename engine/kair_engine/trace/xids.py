"""What the XIDs of NVIDIA's driver stand for: of what they are a sign, whose doing that is, and what to do.

Codes and names are those of NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors); the words are Kair's.
"""

import re
from collections.abc import Mapping
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from kair_engine.data_tables import data_table

SignOf = Literal["memory", "nvlink", "pcie", "application", "power", "driver"]
"""What is at fault where nothing else explains it; `driver` is the driver, its firmware, or what they run on."""


class Xid(msgspec.Struct, frozen=True, array_like=True):
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


class _Table(msgspec.Struct):
    actions: dict[str, str]
    """Of several codes, by their names."""
    codes: list[Xid]
    """Each with an action, or the name of one."""


_TABLE: Final = data_table(__file__, _Table)
XIDS: Final[Mapping[int, Xid]] = {
    one.code: replace(one, action=_TABLE.actions.get(one.action, one.action)) for one in _TABLE.codes
}
"""code → what it stands for, of those that say something of a training job (xids.json)."""


def of_code(code: int) -> Xid:
    """Return what a code stands for; of others than those of XIDS that it is one of the driver."""
    known = XIDS.get(code)
    return known or Xid(
        code, "", "an error that the driver reports", "driver", "look it up in NVIDIA's catalogue of XIDs"
    )


_CAUSED: Final = re.compile(r"caused by previous Xid (\d{1,4})\b")


def told_cause(text: str) -> int | None:
    """Return the code that the driver names as the cause of another: `Ch 00000001 caused by previous Xid 149`."""
    match = _CAUSED.search(text)
    return int(match[1]) if match else None
