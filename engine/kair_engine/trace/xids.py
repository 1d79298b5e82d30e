"""XIDs of NVIDIA's driver: what each is a sign of, its usual origin, and what to do.

Codes and names are those of NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors); the descriptions are Kair's.
"""

import re
from collections.abc import Mapping
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from kair_engine.data_tables import data_table

SignOf = Literal["memory", "nvlink", "pcie", "application", "power", "driver"]
"""What is at fault without another explanation; `driver` is the driver, its firmware, or its platform."""


class Xid(msgspec.Struct, frozen=True, array_like=True):
    """One code."""

    code: int
    mnemonic: str
    """The catalogue's name, without `ROBUST_CHANNEL_`; '' for unknown codes."""
    words: str
    sign_of: SignOf
    action: str
    """What to do, in the imperative."""
    is_downstream: bool = False
    """Whether it usually follows from another XID, on this device or another, which is the cause to look for."""
    is_application: bool = False
    """Whether it usually comes from the program: a device with it alone is not thereby a bad one."""


class _Table(msgspec.Struct):
    actions: dict[str, str]
    """Actions shared by several codes, by name."""
    codes: list[Xid]
    """Each with an action, or the name of one."""


_TABLE: Final = data_table(__file__, _Table)
XIDS: Final[Mapping[int, Xid]] = {
    one.code: replace(one, action=_TABLE.actions.get(one.action, one.action)) for one in _TABLE.codes
}
"""code → its meaning, for codes that matter to a training job (xids.json)."""


def of_code(code: int) -> Xid:
    """Return the meaning of a code; for unknown ones, that it is an error of the driver."""
    known = XIDS.get(code)
    return known or Xid(
        code, "", "an error that the driver reports", "driver", "look it up in NVIDIA's catalogue of XIDs"
    )


_CAUSED: Final = re.compile(r"caused by previous Xid (\d{1,4})\b")


def stated_cause(text: str) -> int | None:
    """Return the code that the driver names as the cause of another: `Ch 00000001 caused by previous Xid 149`."""
    match = _CAUSED.search(text)
    return int(match[1]) if match else None
