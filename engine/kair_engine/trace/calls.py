"""Recordings of calls, without times: which collectives, sends and receives each rank called, and how far they came.

Flight Recorder dumps hold them whole; time-out lines of a job's log and what NCCL's RAS prints hold parts of them.

Where in a program a call was made: of its stack the innermost frame that is of no library.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Final, Literal

from kair_engine.frozen import dataclass

NOT_NUMBERED = -1
UNTOLD = -1
UNTOLD_GROUP = ""
"""The name of a process group of which it is not told which one it is."""
ONE_QUERY: Final = "one_query"
"""The code of the warning that a single answer of NCCL's RAS does not tell a hang from a job that runs."""
DEFAULT_GROUP = "default_pg"
"""How PyTorch describes the process group of all ranks."""

CallState = Literal["open", "returned", "done"]
"""`open`: called and not over. `returned`: the call came back, and whether it is over is not told. `done`: over."""


@dataclass(frozen=True)
class CollectiveCall:
    """One call of a collective, or of a send or receive, as the rank that made it tells it."""

    sequence: int
    """Its number in its process group, the same on all members; NOT_NUMBERED where that is not recorded."""
    operation: str
    state: CallState
    sizes: str = ""
    """For people: the shapes of its inputs and, where they differ from these, of its outputs."""
    created_ns: int = 0
    """Since the epoch, by its host's clock; 0 where that is not recorded."""
    input_elements: int = UNTOLD
    """Of all its inputs together."""
    output_elements: int = UNTOLD
    input_dtypes: str = ""
    output_dtypes: str = ""
    location: str = ""
    """`train.py:120 step`: the innermost frame of the program that made it, without the frames of its libraries."""
    peer: int = UNTOLD
    """Of a send or receive: the rank of the job at its other end."""


@dataclass(frozen=True)
class GroupProgress:
    """How far one rank came in one of its process groups."""

    name: str
    description: str
    ranks: tuple[int, ...]
    """Its members, as ranks of the job; empty where that is not recorded."""
    enqueued: int
    """The number of the last collective that was called, NOT_NUMBERED for none."""
    completed: int
    """The number of the last that was over, NOT_NUMBERED where there is none or that is not told."""
    tells_completion: bool = True
    """Whether it is recorded when a call is over: some backends only say that it returned."""
    calls: tuple[CollectiveCall, ...] = ()
    """Collectives by number, of which those are left out that are long over."""
    transfers: tuple[CollectiveCall, ...] = ()
    """Sends and receives that are open, in the order of their calls; those of one batch have one number."""
    has_transfers: bool = False
    """Whether any sends and receives are recorded, over or not."""
    counts_transfers: bool = False
    """Whether its numbers count sends and receives along, where the group has any."""
    is_counted_alone: bool = False
    """Whether there are numbers, and none of the calls: what its rank is held in is not told."""
    latest: CollectiveCall | None = None
    """The last call of any kind."""
    unreachable: bool = False
    """Whether something that asked the rank's process got no answer."""

    @property
    def is_of_all(self) -> bool:
        """Whether it is the process group of all ranks."""
        return is_of_all(self.name, self.description)

    @cached_property
    def open_calls(self) -> tuple[CollectiveCall, ...]:
        """Collectives that were called and are not over."""
        return tuple(call for call in self.calls if call.state == "open")

    def call(self, sequence: int) -> CollectiveCall | None:
        """Return the collective of that number, None where it is not held."""
        return self._by_number.get(sequence)

    @cached_property
    def _by_number(self) -> dict[int, CollectiveCall]:
        return {call.sequence: call for call in self.calls}


def is_of_all(name: str, description: str) -> bool:
    """Whether a process group is that of all ranks: the first that a job makes."""
    return description == DEFAULT_GROUP or (name == "0" and not description)


_LONGEST: Final = 200
_TORCH: Final = re.compile(r"(^|/)torch/(distributed|nn|autograd|optim|utils|cuda|fx|_\w+)/|^<|\.(cpp|cc|cu|h|so)$")
_LIBRARIES: Final = re.compile(r"(^|/)(site-packages|dist-packages|lib/python[\d.]+)/")

Frame = tuple[str, int, str]
"""File, line, function."""


def location_in(frames: Sequence[Frame]) -> str:
    """`train.py:120 step` of frames from the inside out: the first of no library, else beside PyTorch.

    Of a path the last two parts are told, which tell files of one name apart; nothing where all frames are PyTorch's.
    """
    beside_torch = [frame for frame in frames if frame[0] and not _TORCH.search(frame[0])]
    own = [frame for frame in beside_torch if not _LIBRARIES.search(frame[0])]
    if not beside_torch:
        return ""
    file, line, function = (own or beside_torch)[0]
    where = "/".join(file.split("/")[-2:])
    return f"{where}{f':{line}' if line >= 0 else ''} {function}".strip()[:_LONGEST]
