"""The subjects of evidence: measures, entities, and sources."""

from collections.abc import Mapping
from dataclasses import field
from typing import Final, Literal

import msgspec

from kair_engine.data_tables import data_table
from kair_engine.frozen import dataclass
from kair_engine.trace.identity import pci_address, uuid_of

MeasureKind = Literal["gauge", "counter", "state", "event"]
"""A value that holds until the next; one that only grows, except for resets; a text that holds; something that happened
once."""


class Measure(msgspec.Struct, frozen=True, array_like=True):
    """The meaning of a row's `name`."""

    kind: MeasureKind
    unit: str
    """`MHz`, `W`, `°C`, `s`, `B`, `B/s`, `Gb/s`, `GB/s`, `1` (a share, a count), '' for texts."""
    words: str
    """For people: `SM clock`."""


MEASURES: Final[Mapping[str, Measure]] = data_table(__file__, dict[str, Measure])
"""name → its meaning (measures.json); rows with another name are refused."""

Clock = Literal["unix", "host", "boot", "unknown"]
"""The clock of a source's times: kept by a time server; a host's own; since a host's start, converted to Unix by an
assumption; unknown."""


@dataclass(frozen=True)
class EvidenceSource:
    """One file, endpoint or sampler that rows come from."""

    name: str
    """The file's name, the queried address, `capture`."""
    kind: str
    """`prometheus`, `dcgm`, `kernel log`, `slurm`, `kubernetes`, `nccl inspector`, `ncclras`, `nvidia-smi`, `torch
    memory`, `capture`."""
    clock: Clock = "unknown"
    """The clock of its times: kept by a time server (unix), a host's own clock (host), since a host's start and
    converted to Unix by an assumption (boot), or unknown."""
    bound_s: float | None = None
    """By how much its times may be off; None if unknown."""
    interval_s: float | None = None
    """Median interval between readings of one thing; None for events."""
    first_ns: int | None = None
    """Time of its first row, Unix; null if it has none."""
    last_ns: int | None = None
    """Time of its last row."""
    gaps: int = 0
    """How often there was no data for more than three intervals."""
    longest_gap_s: float = 0.0
    """The longest time without data."""
    rows: int = 0
    """Number of readings and events."""
    passed_over: int = 0
    """Lines or values that are unknown or damaged."""
    holds_s: float | None = None
    """How long a value holds without a new one, for sources that only report changes; None: three intervals."""
    hosts: tuple[str, ...] = field(default_factory=tuple)
    """Hosts that it is about, even if it has no rows of one."""
    notes: tuple[str, ...] = field(default_factory=tuple)
    """Caveats for a reader of the answer: `events of the kernel are of its clock since boot`."""
    doubts: tuple[str, ...] = field(default_factory=tuple)
    """Those of its notes that a verdict based on it must include: an assumed time zone, a host name that two machines
    share."""
    observes: tuple[str, ...] = field(default_factory=tuple)
    """Names of events that it would have shown: only for these does silence count."""


SAMPLED: Final = "capture"
"""The kind of sources that capture samples during a job, in many successive files."""
MOST_TEXT: Final = 400
"""Characters of a text that are kept."""


def gpu(uuid: str) -> str:
    """Return the entity of a device by its UUID. Raises ValueError."""
    known = uuid_of(uuid)
    if known is None:
        raise ValueError(f"no UUID of a device: {uuid[:60]!r}")
    return f"gpu:{known}"


def pci(address: str) -> str:
    """Return the entity at a PCI address. Raises ValueError."""
    known = pci_address(address)
    if known is None:
        raise ValueError(f"no PCI address: {address[:60]!r}")
    return f"pci:{known}"


def gpu_index(index: int) -> str:
    """Return the entity of a device known only by the driver's number: its rank can only be assumed."""
    return f"gpu index:{index}"


def nic(device: str, port: str | int | None = None) -> str:
    """Return the entity of a NIC's port, `mlx5_3/1`, or of an interface, `eth0`."""
    return f"nic:{device}" if port is None else f"nic:{device}/{port}"


def process(pid: int) -> str:
    """Return the entity of a process of its host."""
    return f"pid:{pid}"


def disk(name: str) -> str:
    """Return the entity of a disk, or of a mount by its path."""
    return f"disk:{name}"


def of_rank(rank: int) -> str:
    """Return the entity of a rank that the source itself states."""
    return f"rank:{rank}"


HOST: Final = "host"
"""The entity of the host as a whole."""


def shown(text: str) -> str:
    """Return a log's text on one line of bounded length, without control characters."""
    plain = "".join(one if one.isprintable() else " " for one in text[: 4 * MOST_TEXT])
    return " ".join(plain.split())[:MOST_TEXT]
