"""NCCL's Inspector's recording of a job: one row per operation and place in a communicator, without operators.

Members' rows belong to one collective if communicator, name and number agree: NCCL numbers each kind of collectives of
a communicator separately (`comm->seqNumber[func]`).
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
    """Number of hosts in the communicator; 0 if unknown."""
    host: str
    pid: int


class CallKind(NamedTuple):
    """A kind of call: equal ones take equally long on healthy links."""

    name: str
    """One of MEETING, or RECV."""
    size: int
    """Bytes."""
    peer: int
    """The sender's place in the communicator; -1 for collectives."""


@dataclass(frozen=True)
class InspectorCalls:
    """Columns of equal length, in the order of each file."""

    members: tuple[Member, ...]
    kinds: tuple[CallKind, ...]
    member: Codes
    """Index into `members`."""
    kind: Codes
    """Index into `kinds`."""
    number: Ints
    us: npt.NDArray[np.float32]
    """From the kernel's begin to its end."""
    began_us: Ints
    """By the host's clock, Unix µs; 0 if unknown."""
    written_us: Ints
    """When the line was written."""
    warnings: tuple[KairWarning, ...]

    @property
    def is_traced(self) -> bool:
        """Return whether all rows have the begin of their kernels."""
        return bool(len(self.began_us)) and bool(self.began_us.min() > 0)
