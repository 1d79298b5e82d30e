"""What compiled HLO modules say of their instructions: operation names, collectives' groups and sizes.

Field numbers are those of xla/service/hlo.proto and xla/xla_data.proto.

One operation on a device, as a profile of XLA tells it.

Kinds and phases of XLA's operations, by opcode and by where they come from.
"""

import re
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from typing import Final

import msgspec
import numpy as np

from kair_engine.readers.kineto.classify import NameClass, name_class_of
from kair_engine.readers.xplane.space import BYTES, Span, WireError, fields, packed, text

_ELEMENT_BYTES: Final = {
    **dict.fromkeys((1, 2, 6, 19, 20, 23, 24, 25, 28, 29), 1),  # PRED, S8, U8, F8…
    **dict.fromkeys((3, 7, 10, 16), 2),  # S16, U16, F16, BF16
    **dict.fromkeys((4, 8, 11), 4),  # S32, U32, F32
    **dict.fromkeys((5, 9, 12, 15), 8),  # S64, U64, F64, C64
    18: 16,  # C128
}
_MOST_DEVICES: Final = 1 << 20
Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Instruction:
    """One instruction of a compiled module."""

    opcode: str
    op_name: str = ""
    """Where it comes from: `jit(train_step)/transpose(jvp(model))/dot_general`."""
    groups: Groups = ()
    """Of a collective, the logical devices of each group; empty where that is not recorded, or all are one."""
    size: int | None = None
    """Bytes of what it gives."""


@dataclass
class Module:
    """A compiled module."""

    name: str = ""
    program_id: int | None = None
    devices: int | None = None
    """How many devices it was compiled for, where that is recorded."""
    instructions: dict[str, Instruction] = field(default_factory=dict)

    @cached_property
    def trains(self) -> bool:
        """Whether any of its instructions is of a backward pass."""
        return any("transpose(" in one.op_name for one in self.instructions.values())


def read_module(data: bytes, span: Span) -> Module:
    """The module of an HloProto. What is damaged in it is left out."""
    module = Module()
    try:
        for number, wire, a, b in fields(data, *span):
            if number == 1 and wire == BYTES:
                _read_module(data, (a, b), module)
    except WireError:
        pass
    return module


def _read_module(data: bytes, span: Span, module: Module) -> None:
    for number, wire, a, b in fields(data, *span):
        if number == 1 and wire == BYTES:
            module.name = text(data, a, b)
        elif number == 3 and wire == BYTES:
            for of, kind, begin, end in fields(data, a, b):
                if of == 2 and kind == BYTES:
                    name, instruction = _instruction(data, (begin, end))
                    module.instructions[name] = instruction
        elif number == 5 and wire == 0:
            module.program_id = a
        elif number == 15 and wire == BYTES:
            module.devices = _device_count(data, (a, b))


def _device_count(data: bytes, span: Span) -> int | None:
    of = {number: a for number, wire, a, _ in fields(data, *span) if wire == 0}
    count = of.get(1, 0) * of.get(2, 0)
    return count if 0 < count <= _MOST_DEVICES else None


def _instruction(data: bytes, span: Span) -> tuple[str, Instruction]:
    name = opcode = op_name = ""
    size: int | None = None
    listed: list[tuple[int, ...]] = []
    groups: Groups = ()
    for number, wire, a, b in fields(data, *span):
        if wire != BYTES:
            continue
        if number == 1:
            name = text(data, a, b)
        elif number == 2:
            opcode = text(data, a, b)
        elif number == 3:
            size = _shape_bytes(data, (a, b))
        elif number == 7:
            op_name = next((text(data, *s) for f, w, *s in fields(data, a, b) if f == 2 and w == BYTES), "")
        elif number == 49:
            listed.append(_group(data, (a, b)))
        elif number == 87:
            groups = _device_list(data, (a, b)) or groups
        elif number == 93:
            groups = _mesh_axes(data, (a, b)) or groups
    found = tuple(one for one in listed if one) or groups
    return name, Instruction(opcode, op_name, found, size)


def _shape_bytes(data: bytes, span: Span, depth: int = 0) -> int | None:
    """The bytes of an array, or of all arrays of a tuple; None where the type is none of the known."""
    kind, dimensions, total, is_tuple = 0, [], 0, False
    for number, wire, a, b in fields(data, *span):
        if number == 2 and wire == 0:
            kind = a
        elif number == 3:
            dimensions += packed(data, wire, a, b)
        elif number == 4 and wire == BYTES and depth < 4:
            is_tuple = True
            total += _shape_bytes(data, (a, b), depth + 1) or 0
    if is_tuple:
        return total
    size = _ELEMENT_BYTES.get(kind)
    return None if size is None else min(size * prod(dimensions), (1 << 62))


def _group(data: bytes, span: Span) -> tuple[int, ...]:
    """A ReplicaGroup."""
    return tuple(
        value for number, wire, a, b in fields(data, *span) if number == 1 for value in packed(data, wire, a, b)
    )


def _device_list(data: bytes, span: Span) -> Groups:
    """A CollectiveDeviceListProto: groups in full, or an iota that is reshaped and transposed."""
    listed: list[tuple[int, ...]] = []
    for number, wire, a, b in fields(data, *span):
        if number == 1 and wire == BYTES:
            listed.append(_group(data, (a, b)))
        elif number == 2 and wire == BYTES:
            of: dict[int, list[int]] = {}
            for inner, kind, begin, end in fields(data, a, b):
                of.setdefault(inner, []).extend(packed(data, kind, begin, end))
            return _iota(of.get(1, [0])[0], of.get(2, [0])[0], of.get(3, []), of.get(4, []))
    return tuple(listed)


def _iota(count: int, size: int, shape: list[int], order: list[int]) -> Groups:
    if not 0 < count * size <= _MOST_DEVICES or prod(shape) != count * size or sorted(order) != list(range(len(shape))):
        return ()
    devices = np.arange(count * size).reshape(shape).transpose(order).reshape(count, size)
    return tuple(tuple(row) for row in devices.tolist())


def _mesh_axes(data: bytes, span: Span) -> Groups:
    """A mesh with named axes, and the axes along which a group's members differ.

    Only whole axes of a mesh in its plain order: what else can be said of one is not known to mean.
    """
    sizes: list[int] = []
    axes: list[int] = []
    for number, wire, a, b in fields(data, *span):
        if number == 1 and wire == BYTES:
            for inner, kind, begin, end in fields(data, a, b):
                if inner != 1 or kind != BYTES:
                    return ()
                sizes.append(next((value for of, w, value, _ in fields(data, begin, end) if of == 2 and w == 0), 1))
        elif number == 2 and wire == BYTES:
            of = {inner: value for inner, _, value, _ in fields(data, a, b)}
            if set(of) - {1}:
                return ()
            axes.append(of.get(1, 0))
    if not 0 < prod(sizes) <= _MOST_DEVICES or any(axis >= len(sizes) for axis in axes) or not axes:
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
    """Which execution of a module it is part of."""
    correlation: int | None = None
    """The call that launched it, where calls are recorded."""

    @property
    def end(self) -> int:
        """When it was over, in ns."""
        return self.start + self.duration


def leaves(rows: list[Operation]) -> list[Operation]:
    """The operations without those that hold others of their lane: loops and calls, whose time is their parts'."""
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
