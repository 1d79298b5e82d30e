"""XLA profiles for tests, written byte by byte: a TPU's planes as its profiler lays them out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

US = 1_000_000
"""Picoseconds."""


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def number(field_number: int, value: int) -> bytes:
    return varint(field_number << 3) + varint(value)


def message(field_number: int, *parts: bytes | str) -> bytes:
    content = b"".join(part.encode() if isinstance(part, str) else part for part in parts)
    return varint(field_number << 3 | 2) + varint(len(content)) + content


@dataclass
class PlaneBuilder:
    """One plane; names and properties are numbered as they come."""

    name: str
    kinds: dict[str, int] = field(default_factory=dict)
    stat_names: dict[str, int] = field(default_factory=dict)
    kind_stats: dict[str, bytes] = field(default_factory=dict)
    lines: list[bytes] = field(default_factory=list)
    stats: bytes = b""

    def stat(self, name: str, value: int | str | bytes) -> bytes:
        known = number(1, self.stat_names.setdefault(name, len(self.stat_names) + 1))
        if isinstance(value, int):
            return known + number(4, value)
        return known + message(5 if isinstance(value, str) else 6, value)

    def event(self, name: str, start_us: float, length_us: float, /, **stats: int | str) -> bytes:
        kind = self.kinds.setdefault(name, len(self.kinds) + 1)
        parts = [number(1, kind), number(2, round(start_us * US)), number(3, round(length_us * US))]
        return message(4, *parts, *(message(4, self.stat(key, value)) for key, value in stats.items()))

    def line(self, name: str, events: Sequence[bytes], *, begin_ns: int) -> None:
        self.lines.append(message(3, number(1, len(self.lines)), message(2, name), number(3, begin_ns), *events))

    def of_kind(self, name: str, **stats: int | str | bytes) -> None:
        """Properties of all events of that name."""
        self.kinds.setdefault(name, len(self.kinds) + 1)
        self.kind_stats[name] = b"".join(message(5, self.stat(key, value)) for key, value in stats.items())

    def plane(self) -> bytes:
        kinds = [
            message(4, number(1, at), message(2, number(1, at), message(2, name), self.kind_stats.get(name, b"")))
            for name, at in self.kinds.items()
        ]
        names = [
            message(5, number(1, at), message(2, number(1, at), message(2, name)))
            for name, at in self.stat_names.items()
        ]
        return message(1, number(1, 1), message(2, self.name), *self.lines, *kinds, *names, self.stats)


def instruction(name: str, opcode: str, op_name: str, groups: Sequence[Sequence[int]] = ()) -> bytes:
    """An HLO instruction that gives 1,000 float32."""
    shape = message(3, number(2, 11), message(3, varint(1000)))
    listed = [message(49, message(1, b"".join(map(varint, group)))) for group in groups]
    return message(2, message(1, name), message(2, opcode), shape, message(7, message(2, op_name)), *listed)


def module(name: str, program: int, devices: int, instructions: Sequence[bytes]) -> bytes:
    """An HloProto."""
    assignment = message(15, number(1, devices), number(2, 1))
    return message(1, message(1, name), message(3, *instructions), number(5, program), assignment)


BEGIN_NS = 1_700_000_000_000_000_000
GROUPS = ((0, 1), (2, 3))


def tpu_host(
    ranks: Sequence[int],
    *,
    steps: int = 3,
    slow: int | None = None,
    slow_us: float = 100,
    begin_ns: int = BEGIN_NS,
) -> bytes:
    """One host's profile: a TPU for each rank, whose gradients are summed within GROUPS while it computes on.

    A step takes 1 ms: forward 0–300 µs (200 µs longer on `slow`), backward to 600, the optimizer from 800; the
    all-reduce ends at 780 µs on all of them.
    """
    metadata = PlaneBuilder("/host:metadata")
    instructions = [
        instruction("fusion.1", "fusion", "jit(train_step)/jvp(model)/dot_general"),
        instruction("fusion.2", "fusion", "jit(train_step)/transpose(jvp(model))/dot_general"),
        instruction("all-reduce-start.3", "all-reduce-start", "jit(train_step)/transpose(jvp(model))/dot", GROUPS),
        instruction("all-reduce-done.3", "all-reduce-done", "jit(train_step)/transpose(jvp(model))/dot"),
        instruction("fusion.4", "fusion", "jit(train_step)/optimizer/sub"),
        instruction("while.5", "while", "jit(train_step)/jvp(model)/while"),
    ]
    metadata.of_kind("jit_train_step(7)", **{"Hlo Proto": module("jit_train_step", 7, 4, instructions)})
    planes = [metadata.plane()]
    for ordinal, rank in enumerate(ranks):
        plane = PlaneBuilder(f"/device:TPU:{ordinal}")
        plane.stats = message(6, plane.stat("device_type_string", "TPU v4"))
        operations: list[bytes] = []
        marks: list[bytes] = []
        modules: list[bytes] = []
        for step in range(steps):
            at, late = step * 1000.0, slow_us if rank == slow else 0.0
            marks.append(plane.event(str(5 + step), at, 1000))
            modules.append(plane.event("jit_train_step(7)", at, 990, run_id=step))
            operations += [
                plane.event("while.5", at, 301 + late, program_id=7),
                plane.event("fusion.1", at + 1, 300 + late, program_id=7),
                plane.event("fusion.2", at + 310 + late, 290, program_id=7),
                plane.event("all-reduce-start.3", at + 605 + late, 5, program_id=7),
                plane.event("all-reduce-done.3", at + 615 + late, 165 - late, program_id=7),
                plane.event("fusion.4", at + 800, 150, program_id=7),
            ]
        plane.line("Steps", marks, begin_ns=begin_ns)
        plane.line("XLA Modules", modules, begin_ns=begin_ns)
        plane.line("XLA Ops", operations, begin_ns=begin_ns)
        planes.append(plane.plane())
    return b"".join(planes) + message(4, f"tpu-host-{ranks[0] // len(ranks)}")


def write_pod(folder: Path, *, slow: int | None = None, steps: int = 3) -> Path:
    """Two hosts of two TPUs each."""
    folder.mkdir(parents=True, exist_ok=True)
    for host, ranks in enumerate(((0, 1), (2, 3))):
        content = tpu_host(ranks, slow=slow, steps=steps)
        (folder / f"t1v-n-w-{host}.xplane.pb").write_bytes(content)
    return folder
