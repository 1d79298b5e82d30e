"""Reads instructions of compiled HLO modules, and derives the kinds and phases of a profile's operations."""

import re
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from typing import Any, Final

import msgspec
import numpy as np

from kair_engine.readers.kineto.classify import NameClass, name_class_of
from kair_engine.readers.xplane.messages import MESSAGES, DecodeError, UnknownFieldSet
from kair_engine.readers.xplane.space import text

_ELEMENT_BYTES: Final = {
    **dict.fromkeys((1, 2, 6, 19, 20, 23, 24, 25, 28, 29), 1),  # PRED, S8, U8, F8…
    **dict.fromkeys((3, 7, 10, 16), 2),  # S16, U16, F16, BF16
    **dict.fromkeys((4, 8, 11), 4),  # S32, U32, F32
    **dict.fromkeys((5, 9, 12, 15), 8),  # S64, U64, F64, C64
    18: 16,  # C128
}
_MOST_DEVICES: Final = 1 << 20
_MOST_AXES: Final = 16
"""NumPy reshapes to 32 at least; arrays of XLA have fewer."""
_MOST_SIZE: Final = 1 << 62
Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Instruction:
    """One instruction of a compiled module."""

    opcode: str
    op_name: str = ""
    """Its origin: `jit(train_step)/transpose(jvp(model))/dot_general`."""
    groups: Groups = ()
    """The logical devices of each group of a collective; empty if that is not recorded, or all are one group."""
    size: int | None = None
    """Bytes of its result."""


@dataclass
class Module:
    """A compiled module."""

    name: str = ""
    program_id: int | None = None
    devices: int | None = None
    """The number of devices it was compiled for, if recorded."""
    instructions: dict[str, Instruction] = field(default_factory=dict)

    @cached_property
    def trains(self) -> bool:
        """Whether any of its instructions belongs to a backward pass."""
        return any("transpose(" in one.op_name for one in self.instructions.values())


def read_module(content: bytes) -> Module:
    """Return the module of an HloProto; an empty one if it is damaged."""
    try:
        message = MESSAGES["Hlo"].FromString(content).module
    except DecodeError:
        return Module()
    devices = message.assignment.replicas * message.assignment.computations
    return Module(
        text(message.name),
        message.id if message.HasField("id") else None,
        devices if 0 < devices <= _MOST_DEVICES else None,
        {
            text(each.name): _instruction(each)
            for computation in message.computations
            for each in computation.instructions
        },
    )


def _instruction(message: Any) -> Instruction:  # noqa: ANN401  (a message's class is made by the protobuf package)
    groups = _listed(message.groups) or mesh_groups(message.mesh_axes) or device_groups(message.device_list)
    size = _shape_bytes(message.shape) if message.HasField("shape") else None
    return Instruction(text(message.opcode), text(message.metadata.op_name), groups, size)


def _shape_bytes(shape: Any) -> int | None:  # noqa: ANN401
    """Return the bytes of an array, or of all arrays of a tuple; None for an unknown type."""
    if shape.parts:
        return min(sum(_shape_bytes(part) or 0 for part in shape.parts), _MOST_SIZE)
    size = _ELEMENT_BYTES.get(shape.element_type)
    return (
        None if size is None or len(shape.dimensions) > _MOST_AXES else min(size * prod(shape.dimensions), _MOST_SIZE)
    )


def _listed(groups: Any) -> Groups:  # noqa: ANN401
    return tuple(tuple(group.ids) for group in groups if group.ids)


def device_groups(message: Any) -> Groups:  # noqa: ANN401
    """Return the groups of a CollectiveDeviceListProto: listed in full, or an iota that is reshaped and transposed."""
    if not message.HasField("iota"):
        return _listed(message.groups)
    count, size, shape, order = message.iota.count, message.iota.size, message.iota.shape, message.iota.order
    if not 0 < count * size <= _MOST_DEVICES or len(shape) > _MOST_AXES or prod(shape) != count * size:
        return ()
    if sorted(order) != list(range(len(shape))):
        return ()
    devices = np.arange(count * size).reshape(shape).transpose(order).reshape(count, size)
    return tuple(tuple(row) for row in devices.tolist())


def mesh_groups(message: Any) -> Groups:  # noqa: ANN401
    """Return the groups along axes of a mesh with named axes.

    Only whole axes of a mesh in its plain order are supported; the meaning of other forms is unknown.
    """
    if any(map(len, map(UnknownFieldSet, (message.mesh, *message.axes)))):
        return ()
    sizes = [axis.size if axis.HasField("size") else 1 for axis in message.mesh.axes]
    axes = [axis.axis for axis in message.axes]
    if not axes or len(sizes) > _MOST_AXES or not 0 < prod(sizes) <= _MOST_DEVICES:
        return ()
    if max(axes) >= len(sizes) or len(set(axes)) < len(axes):
        return ()
    rest = [axis for axis in range(len(sizes)) if axis not in axes]
    devices = np.arange(prod(sizes)).reshape(sizes).transpose([*rest, *axes])
    return tuple(tuple(row) for row in devices.reshape(-1, prod(sizes[axis] for axis in axes)).tolist())


class Operation(msgspec.Struct, frozen=True, gc=False):
    """One operation on a device; times in ns."""

    lane: str
    name: str
    start: int
    duration: int
    instruction: Instruction
    op_name: str
    module: str
    run: int | None = None
    """The execution of a module that it is part of."""
    correlation: int | None = None
    """The call that launched it, if calls are recorded."""

    @property
    def end(self) -> int:
        """Its end in ns."""
        return self.start + self.duration


def leaves(rows: list[Operation]) -> list[Operation]:
    """Return the operations without loops and calls, which contain other operations of their lane."""
    rows.sort(key=lambda one: (one.lane, one.start, -one.duration))
    return [
        one
        for at, one in enumerate(rows)
        if at + 1 == len(rows)
        or rows[at + 1].lane != one.lane
        or rows[at + 1].end > one.end
        or rows[at + 1].start >= one.end
    ]


_NAMES: Final = 1 << 14
"""Cached names: a profile has few, each many times."""
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
    """Return (operation, `-start`, `-done` or '') of a collective, by its opcode, else by its name; None for others."""
    match = _COLLECTIVE.match(opcode) or _COLLECTIVE.match(name.lstrip("%"))
    return (match["op"], match["part"] or "") if match else None


@lru_cache(_NAMES)
def device_kind(opcode: str, name: str) -> str:
    """Return the kind of an operation on a device."""
    if collective_part(opcode, name) or name_class_of(name) is NameClass.DEVICE_COLLECTIVE:
        return "collective"
    if opcode == "infeed" or name.startswith("infeed"):
        return "input"
    return "memory" if _MEMORY.search(opcode or name) or _MEMORY.search(name) else "compute"


@lru_cache(_NAMES)
def host_kind(name: str) -> str:
    """Return the kind of an operation on a host's thread."""
    if _INPUT.search(name):
        return "input"
    if _SYNC.search(name):
        return "sync"
    return "gc" if _GARBAGE.search(name) else "host"


@lru_cache(_NAMES)
def phase_of(op_name: str, *, trains: bool) -> str | None:
    """Return the phase by an operation's origin; None if a training step's own update cannot be distinguished."""
    if "transpose(" in op_name or "gradient_tape" in op_name:
        return "backward"
    if _OPTIMIZER.search(op_name):
        return "optimizer"
    if "jvp(" in op_name or not trains:
        return "forward"
    return None
