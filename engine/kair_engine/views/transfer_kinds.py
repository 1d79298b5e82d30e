"""What a collective's name says: its kind, what its bytes count, and the factor of its bus bandwidth."""

import re
from collections.abc import Callable
from typing import Final, get_args

from kair_engine.results.collectives import CollectiveKind

KINDS: Final[tuple[CollectiveKind, ...]] = get_args(CollectiveKind)

_PARTS_OF_NAMES: Final[tuple[tuple[str, CollectiveKind], ...]] = (
    ("reducescatter", "reduce_scatter"),
    ("allreduce", "all_reduce"),
    ("crossdevicereduce", "all_reduce"),
    ("quickreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("collectivepermute", "grouped_send_recv"),
    ("sendrecv", "grouped_send_recv"),
    ("broadcast", "broadcast"),
    ("bcast", "broadcast"),
    ("barrier", "barrier"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("reduce", "reduce"),
)
"""The first that a name has, letters and digits alone: `ncclDevKernel_ReduceScatter_Sum_f32_RING_LL` is the first."""
_NO_LETTER: Final = re.compile(r"[^a-z0-9]+")
_ARGUMENTS: Final = re.compile(r"[<(].*")

_ROOTED: Final[frozenset[CollectiveKind]] = frozenset(("broadcast", "reduce", "gather", "scatter"))
_PARTS: Final[frozenset[CollectiveKind]] = frozenset(("all_gather", "gather", "scatter"))
_OF_ONE_MEMBER: Final = "gloo:"
"""PyTorch records what a gloo collective is given, so of a gather one member's part; of NCCL's the larger of what it is
given and what it gives, which is the whole."""


def kind_of(name: str) -> CollectiveKind:
    """Return the kind that the name of a kernel or an operator shows; `other` if it shows no kind."""
    plain = _NO_LETTER.sub("", _ARGUMENTS.sub("", name).lower())
    return next((kind for part, kind in _PARTS_OF_NAMES if part in plain), "other")


def is_rooted(kind: CollectiveKind) -> bool:
    """Whether one member gives or gets all: then the others, or it, may leave before the transfer is over."""
    return kind in _ROOTED


def byte_factor(name: str, kind: CollectiveKind, members: int) -> int:
    """Return the factor from the recorded bytes of a call to the bytes of all its members."""
    return members if kind in _PARTS and name.lower().startswith(_OF_ONE_MEMBER) else 1


def bus_factor(kind: CollectiveKind, members: int) -> float | None:
    """Bus bandwidth over algorithm bandwidth; None where no formula is known.

    As nccl-tests has it (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md; gather, scatter and all-to-all as its
    programs compute them): so many times the message passes each rank's slowest connection.
    """
    formula = _FACTORS.get(kind)
    return formula(members) if formula is not None and members > 1 else None


def _once(_: int) -> float:
    return 1.0


def _but_own(members: int) -> float:
    return (members - 1) / members


_FACTORS: Final[dict[CollectiveKind, Callable[[int], float]]] = {
    "all_reduce": lambda members: 2 * _but_own(members),
    "all_gather": _but_own,
    "reduce_scatter": _but_own,
    "all_to_all": _but_own,
    "gather": _but_own,
    "scatter": _but_own,
    "broadcast": _once,
    "reduce": _once,
    "send_recv": _once,
}
