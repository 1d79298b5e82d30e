"""What evidence beside traces is about: measures, entities, and the sources that tell them."""

from collections.abc import Mapping
from dataclasses import field
from typing import Final, Literal

import msgspec

from kair_engine.data_tables import data_table
from kair_engine.frozen import dataclass
from kair_engine.trace.identity import pci_address, uuid_of

MeasureKind = Literal["gauge", "counter", "state", "event"]
"""A value that holds until the next; one that only grows, but for resets; a text that holds; something that happened
once."""


class Measure(msgspec.Struct, frozen=True, array_like=True):
    """What a row's `name` stands for."""

    kind: MeasureKind
    unit: str
    """`MHz`, `W`, `°C`, `s`, `B`, `B/s`, `Gb/s`, `GB/s`, `1` (a share, a number of things), '' of texts."""
    words: str
    """For people: `SM clock`."""


MEASURES: Final[Mapping[str, Measure]] = data_table(__file__, dict[str, Measure])
"""name → what it is (measures.json); a row of another name is refused."""

Clock = Literal["unix", "host", "boot", "unknown"]
"""What the times of a source are: kept by a time server; a host's own clock; since a host's start, made Unix by an
assumption; unknown."""


@dataclass(frozen=True)
class EvidenceSource:
    """One file, endpoint or sampler that rows are from."""

    name: str
    """The file's name, the address asked, `capture`."""
    kind: str
    """`prometheus`, `dcgm`, `kernel log`, `slurm`, `kubernetes`, `nccl inspector`, `ncclras`, `nvidia-smi`, `torch
    memory`, `capture`."""
    clock: Clock = "unknown"
    """What its times are: kept by a time server (unix), by a host's own clock (host), since a host's start and made
    Unix by an assumption (boot), or unknown.
    """
    bound_s: float | None = None
    """By how much its times may be off; None where that is not known."""
    interval_s: float | None = None
    """Between readings of one thing, the median; None of events."""
    first_ns: int | None = None
    """Of its rows, the first, Unix; null where it has none."""
    last_ns: int | None = None
    """The last of them."""
    gaps: int = 0
    """Times that nothing came for more than three intervals."""
    longest_gap_s: float = 0.0
    """The longest time that nothing came."""
    rows: int = 0
    """Readings and events that it has."""
    passed_over: int = 0
    """Lines or values that say nothing known, or are damaged."""
    holds_s: float | None = None
    """So long a value holds that is not told again, of sources that tell changes alone; None: three intervals."""
    hosts: tuple[str, ...] = field(default_factory=tuple)
    """That it is about, where it is about a host whether it has rows of it or not."""
    notes: tuple[str, ...] = field(default_factory=tuple)
    """What a reader of the answer should know, in words: `events of the kernel are of its clock since boot`."""
    doubts: tuple[str, ...] = field(default_factory=tuple)
    """Of its notes, what a verdict that reads it has to say as well: a time zone that is assumed, a host name of which
    it knows two machines."""
    observes: tuple[str, ...] = field(default_factory=tuple)
    """Names of events that it would have told, had they happened: without them silence says nothing."""


SAMPLED: Final = "capture"
"""The kind of sources that capture samples beside a job, in many files one after another."""
MOST_TEXT: Final = 400
"""Characters of a text that are kept."""


def gpu(uuid: str) -> str:
    """Return the entity of a device by its UUID. Raises ValueError."""
    known = uuid_of(uuid)
    if known is None:
        raise ValueError(f"no UUID of a device: {uuid[:60]!r}")
    return f"gpu:{known}"


def pci(address: str) -> str:
    """Return the entity of whatever is at a PCI address. Raises ValueError."""
    known = pci_address(address)
    if known is None:
        raise ValueError(f"no PCI address: {address[:60]!r}")
    return f"pci:{known}"


def gpu_index(index: int) -> str:
    """Return a device of its host by the driver's number alone: which rank's that is can only be assumed."""
    return f"gpu index:{index}"


def nic(device: str, port: str | int | None = None) -> str:
    """Return a NIC's port, `mlx5_3/1`, or an interface, `eth0`."""
    return f"nic:{device}" if port is None else f"nic:{device}/{port}"


def process(pid: int) -> str:
    """Return a process of its host."""
    return f"pid:{pid}"


def disk(name: str) -> str:
    """Return a disk, or a mount by its path."""
    return f"disk:{name}"


def of_rank(rank: int) -> str:
    """Return a rank, where the source says it itself."""
    return f"rank:{rank}"


HOST: Final = "host"
"""The entity of the host as a whole."""


def shown(text: str) -> str:
    """Return a text of a log on one line, without what a terminal would obey, and of bounded length."""
    plain = "".join(one if one.isprintable() else " " for one in text[: 4 * MOST_TEXT])
    return " ".join(plain.split())[:MOST_TEXT]
