"""Members of a process group that called something else than the others under one number."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Final

from kair_engine.frozen import dataclass
from kair_engine.trace.calls import UNTOLD, CollectiveCall
from kair_engine.triage.hangs.groups import Group

_BOTH: Final = ("input", "output")
_MUST_AGREE: Final[Mapping[str, tuple[str, ...]]] = {
    "all_reduce": _BOTH,
    "allreduce_coalesced": _BOTH,
    "broadcast": _BOTH,
    "_broadcast_oop": _BOTH,
    "reduce": ("input",),
    "_reduce_oop": ("input",),
    "all_gather": _BOTH,
    "all_gather_single": _BOTH,
    "_all_gather_base": _BOTH,
    "all_gather_into_tensor_coalesced": _BOTH,
    "reduce_scatter": _BOTH,
    "reduce_scatter_single": _BOTH,
    "_reduce_scatter_base": _BOTH,
    "reduce_scatter_tensor_coalesced": _BOTH,
    "gather": ("input",),
    "scatter": ("output",),
}
"""operation → the sides whose elements have to be as many, and of one type, on all members. Of others, as all-to-all
and what has `_v` in its name, every member may have its own. Shapes are not compared: NCCL counts elements."""

_UNTOLD: Final = (UNTOLD, "")
Said = Callable[[CollectiveCall], str]


@dataclass(frozen=True)
class Mismatch:
    """What differs under one number of a process group."""

    group: Group
    sequence: int
    said: Mapping[int, str]
    """rank → what it called, so far as it differs: `all_reduce`, `all_reduce of [[1025]]`, `all_reduce of Half`."""
    odd: tuple[int, ...]
    """Who differs from what more than half of all members called; empty where nobody knows which is right."""

    @property
    def usual(self) -> str:
        """What most of the others called."""
        counts = Counter(said for rank, said in self.said.items() if rank not in self.odd)
        return max(counts, key=lambda said: counts[said])


def mismatch_in(group: Group) -> Mismatch | None:
    """The first number that is not over on all members, or is the last one, and is not the same on them; else None."""
    first = min((_begin(group, rank) for rank in group.of_rank), default=0)
    numbers = {call.sequence for one in group.of_rank.values() for call in one.calls if call.sequence >= first}
    return next((found for number in sorted(numbers) if (found := _at(group, number)) is not None), None)


def _begin(group: Group, rank: int) -> int:
    one = group.of_rank[rank]
    return min(one.completed + 1 if one.tells_completion else one.enqueued, one.enqueued)


def _at(group: Group, sequence: int) -> Mismatch | None:
    calls = group.calls(sequence)
    voters = len(group.members or group.of_rank) - len(group.missing(sequence))
    for key, words in _comparisons(next(iter(calls.values()), None)):
        told = {rank: key(call) for rank, call in calls.items() if key(call) not in _UNTOLD}
        if len(set(told.values())) < 2:
            continue
        (usual, count), *_ = Counter(told.values()).most_common(1)
        odd = tuple(rank for rank in told if told[rank] != usual) if 2 * count > voters else ()
        return Mismatch(group, sequence, {rank: words(calls[rank]) for rank in told}, odd)
    return None


def _comparisons(call: CollectiveCall | None) -> Iterator[tuple[Callable[[CollectiveCall], str | int], Said]]:
    """What has to be the same, and how it is told: the operation, then of one operation the elements and their type."""
    if call is None:
        return
    yield lambda one: one.operation, lambda one: one.operation
    sides = _MUST_AGREE.get(call.operation, ())
    for side in sides:
        yield attrgetter(f"{side}_elements"), lambda one: f"{one.operation} of {one.sizes or one.input_elements}"
    for side in sides:
        yield attrgetter(f"{side}_dtypes"), lambda one: f"{one.operation} of {_dtypes(one)}"


def _dtypes(call: CollectiveCall) -> str:
    same = call.output_dtypes in ("", call.input_dtypes)
    return call.input_dtypes if same else f"{call.input_dtypes} → {call.output_dtypes}"
