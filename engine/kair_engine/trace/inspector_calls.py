"""What NCCL's Inspector recorded of a job: one row per operation and place in a communicator, without operators.

A collective is the same on all its members where communicator, name and number are: NCCL counts each kind of
collectives of a communicator by itself (`comm->seqNumber[func]`).
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kair_engine.arrays import Codes, Ints
from kair_engine.frozen import dataclass
from kair_engine.trace.model import KairWarning

RECV: Final = "Recv"
MEETING: Final = frozenset({"AllReduce", "AllGather", "ReduceScatter", "AlltoAll"})
"""Collectives that no member leaves before all have entered."""


class Member(NamedTuple):
    """A place in a communicator."""

    communicator: str
    rank: int
    size: int
    nodes: int
    """Hosts of the communicator; 0 where that is not known."""
    host: str
    pid: int


class CallKind(NamedTuple):
    """What was called: equal ones take as long on healthy links."""

    name: str
    """One of MEETING, or RECV."""
    size: int
    """Bytes."""
    peer: int
    """The sender's place in the communicator; -1 of collectives."""


@dataclass(frozen=True)
class InspectorCalls:
    """Columns of equal length, in the order of each file."""

    members: tuple[Member, ...]
    kinds: tuple[CallKind, ...]
    member: Codes
    """A place in `members`."""
    kind: Codes
    """A place in `kinds`."""
    number: Ints
    us: npt.NDArray[np.float32]
    """From the kernel's begin to its end."""
    began_us: Ints
    """By the host's clock, Unix µs; 0 where that is not known."""
    written_us: Ints
    """When the line was."""
    warnings: tuple[KairWarning, ...]

    @property
    def is_traced(self) -> bool:
        """Return whether all rows say when their kernels began."""
        return bool(len(self.began_us)) and bool(self.began_us.min() > 0)
