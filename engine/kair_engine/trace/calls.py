"""Recordings of calls, without times: the collectives, sends and receives of each rank, and its progress.

Flight Recorder dumps have them completely; time-out lines of a job's log and NCCL's RAS have parts of them.

The location of a call is the innermost frame of its stack outside libraries.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Final, Literal

from kair_engine.frozen import dataclass

NOT_NUMBERED = -1
UNKNOWN = -1
UNNAMED_GROUP = ""
"""The name of an unidentified process group."""
ONE_QUERY: Final = "one_query"
"""Code of the warning that a single answer of NCCL's RAS cannot distinguish a hang from a running job."""
DEFAULT_GROUP = "default_pg"
"""PyTorch's description of the process group of all ranks."""

CallState = Literal["open", "returned", "done"]
"""`open`: called and not finished. `returned`: the call returned; whether it finished is unknown. `done`: finished."""


@dataclass(frozen=True)
class CollectiveCall:
    """One call of a collective, send or receive, as recorded by the calling rank."""

    sequence: int
    """Its number in its process group, the same on all members; NOT_NUMBERED if not recorded."""
    operation: str
    state: CallState
    sizes: str = ""
    """For people: the shapes of its inputs and, if different, of its outputs."""
    created_ns: int = 0
    """Time since the epoch, by its host's clock; 0 if not recorded."""
    input_elements: int = UNKNOWN
    """Elements of all its inputs together."""
    output_elements: int = UNKNOWN
    input_dtypes: str = ""
    output_dtypes: str = ""
    location: str = ""
    """`train.py:120 step`: the innermost frame of the calling program outside libraries."""
    peer: int = UNKNOWN
    """The rank of the job at the other end of a send or receive."""


@dataclass(frozen=True)
class GroupProgress:
    """The progress of one rank in one of its process groups."""

    name: str
    description: str
    ranks: tuple[int, ...]
    """Its members, as ranks of the job; empty if not recorded."""
    enqueued: int
    """The number of the last collective that was called, NOT_NUMBERED for none."""
    completed: int
    """The number of the last one that finished; NOT_NUMBERED without one, or if unknown."""
    tells_completion: bool = True
    """Whether the end of calls is recorded: some backends only record that they returned."""
    calls: tuple[CollectiveCall, ...] = ()
    """Collectives by number, without those that finished long ago."""
    transfers: tuple[CollectiveCall, ...] = ()
    """Open sends and receives in the order of their calls; those of one batch share a number."""
    has_transfers: bool = False
    """Whether any sends and receives are recorded, finished or not."""
    counts_transfers: bool = False
    """Whether its numbers count sends and receives, too, if the group has any."""
    is_counted_alone: bool = False
    """Whether there are numbers but no calls: it is unknown where its rank is blocked."""
    latest: CollectiveCall | None = None
    """The last call of any kind."""
    unreachable: bool = False
    """Whether the rank's process did not answer a query."""

    @property
    def is_of_all(self) -> bool:
        """Whether it is the process group of all ranks."""
        return is_of_all(self.name, self.description)

    @cached_property
    def open_calls(self) -> tuple[CollectiveCall, ...]:
        """Collectives that were called and have not finished."""
        return tuple(call for call in self.calls if call.state == "open")

    def call(self, sequence: int) -> CollectiveCall | None:
        """Return the collective of that number; None if it is not recorded."""
        return self._by_number.get(sequence)

    @cached_property
    def _by_number(self) -> dict[int, CollectiveCall]:
        return {call.sequence: call for call in self.calls}


def is_of_all(name: str, description: str) -> bool:
    """Return whether a process group is that of all ranks: the first that a job makes."""
    return description == DEFAULT_GROUP or (name == "0" and not description)


_LONGEST: Final = 200
_TORCH: Final = re.compile(r"(^|/)torch/(distributed|nn|autograd|optim|utils|cuda|fx|_\w+)/|^<|\.(cpp|cc|cu|h|so)$")
_LIBRARIES: Final = re.compile(r"(^|/)(site-packages|dist-packages|lib/python[\d.]+)/")

Frame = tuple[str, int, str]
"""File, line, function."""


def location_in(frames: Sequence[Frame]) -> str:
    """Return `train.py:120 step` for frames from the innermost out: the first outside libraries, else outside PyTorch.

    A path is cut to its last two parts, which distinguish files of equal name; '' if all frames are PyTorch's.
    """
    outside_torch = [frame for frame in frames if frame[0] and not _TORCH.search(frame[0])]
    own = [frame for frame in outside_torch if not _LIBRARIES.search(frame[0])]
    if not outside_torch:
        return ""
    file, line, function = (own or outside_torch)[0]
    where = "/".join(file.split("/")[-2:])
    return f"{where}{f':{line}' if line >= 0 else ''} {function}".strip()[:_LONGEST]
