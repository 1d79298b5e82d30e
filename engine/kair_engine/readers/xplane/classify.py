"""Kinds and phases of XLA's operations, by opcode and by where they come from."""

import re
from functools import lru_cache
from typing import Final

from kair_engine.readers.kineto.classify import NameClass, name_class_of

_NAMES: Final = 1 << 14
"""Names that are looked at once: a profile has few, and each of them many times."""
_COLLECTIVE: Final = re.compile(
    r"(?P<op>all-reduce|all-gather|reduce-scatter|all-to-all|ragged-all-to-all|collective-permute|collective-broadcast)"
    r"(?P<part>-start|-done)?(?![a-z-])"
)
_MEMORY: Final = re.compile(r"memcpy|memset|^(copy|copy-start|copy-done|host-transfer)(\.|$)", re.IGNORECASE)
_INPUT: Final = re.compile(
    r"^(input|infeed|data_?load\w*|load_?batch|next_?batch|get_?batch|(.*::)?iterator\w*:*get_?next\w*)([^a-z ]|$)",
    re.IGNORECASE,
)
_SYNC: Final = re.compile(r"block_?until_?ready|BlockHostUntil|::Await|Synchronize|StreamSynch|TransferFromDevice")
_OPTIMIZER: Final = re.compile(
    r"(^|[/(])(optimi[sz]er\w*|opt_update|apply_updates|update_step|adam\w*|sgd|momentum|lamb|lion|adafactor|rmsprop)"
    r"([/)]|$)",
    re.IGNORECASE,
)
_GARBAGE: Final = re.compile(r"(^|[^a-z])(python )?gc($|[:. _\[(])|garbage[ _]collect", re.IGNORECASE)


@lru_cache(_NAMES)
def collective_part(opcode: str, name: str) -> tuple[str, str] | None:
    """(operation, `-start`, `-done` or '') of a collective, by its opcode, else by its name; None for others."""
    match = _COLLECTIVE.match(opcode) or _COLLECTIVE.match(name.lstrip("%"))
    return (match["op"], match["part"] or "") if match else None


@lru_cache(_NAMES)
def device_kind(opcode: str, name: str) -> str:
    """The kind of an operation on a device."""
    if collective_part(opcode, name) or name_class_of(name) is NameClass.DEVICE_COLLECTIVE:
        return "collective"
    if opcode == "infeed" or name.startswith("infeed"):
        return "input"
    return "memory" if _MEMORY.search(opcode or name) or _MEMORY.search(name) else "compute"


@lru_cache(_NAMES)
def host_kind(name: str) -> str:
    """The kind of an operation on a host's thread."""
    if _INPUT.search(name):
        return "input"
    if _SYNC.search(name):
        return "sync"
    return "gc" if _GARBAGE.search(name) else "host"


@lru_cache(_NAMES)
def phase_of(op_name: str, *, trains: bool) -> str | None:
    """The phase an operation's origin tells; None where a training step's own update cannot be told from the rest."""
    if "transpose(" in op_name or "gradient_tape" in op_name:
        return "backward"
    if _OPTIMIZER.search(op_name):
        return "optimizer"
    if "jvp(" in op_name or not trains:
        return "forward"
    return None
