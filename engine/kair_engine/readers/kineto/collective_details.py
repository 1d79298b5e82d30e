"""Reads details of a collective from its recorded arguments: group, sequence number, bytes and peer.

Bytes of tensors come from their shapes and types, as the profiler writes them.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from operator import attrgetter
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from kair_engine.readers.kineto.events import EventArgs
from kair_engine.trace.format import KINDS
from kair_engine.trace.group_names import listed_ranks
from kair_engine.trace.model import PeersCounted

_ELEMENT_BYTES: Final = {
    **dict.fromkeys(("double", "long", "long int", "int64", "float64", "complexfloat"), 8),
    **dict.fromkeys(("float", "int", "float32", "int32"), 4),
    **dict.fromkeys(("half", "bfloat16", "short", "short int", "float16", "int16"), 2),
    **dict.fromkeys(("byte", "char", "bool", "unsigned char", "signed char", "uint8", "int8"), 1),
    "complexdouble": 16,
}
_NATURAL_INT64: Final = range(1 << 63)
_dimensions, _types = attrgetter("dimensions"), attrgetter("types")
_ROOM_FOR_SHAPES: Final = 32 << 20
_ENTRY: Final = 200
"""Overhead of an entry, in characters of the room for all shapes."""
_LONGEST: Final = 1 << 14
"""Characters of the shapes of one call: longer ones are no operator's."""


@lru_cache(maxsize=1024)
def element_bytes(element: str) -> int | None:
    """Return the bytes of an element of a type; None if it is unknown."""
    name = element.lower()
    return _ELEMENT_BYTES.get(name.removeprefix("c10::"), 1 if name.startswith("float8") else None)


class Inputs(dict[tuple[bytes, bytes], int]):
    """Operators' inputs: (shapes, types) → a number, -1 if neither dimensions nor a size follow from them.

    A recording has few of them unless batches are ragged: beyond a limit no more texts are kept, and new inputs have no
    shapes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes_: list[int] = []
        """By number; -1 if the types do not determine it."""
        self.shapes: list[str] = []
        """By number, the dimensions of plain tensors: `2048,1408;8`; empty beyond the limit."""
        self._room = _ROOM_FOR_SHAPES

    def __missing__(self, key: tuple[bytes, bytes]) -> int:
        size = size_of_tensors(*key)
        shapes = shapes_text(key[0]) if self._room > 0 else ""
        if size is None and not shapes:
            return -1
        self._room -= len(shapes) + sum(map(len, key)) + _ENTRY
        self.bytes_.append(-1 if size is None else size)
        self.shapes.append(shapes)
        number = len(self.bytes_) - 1
        if self._room > 0:
            self[key] = number
        return number

    def of(self, args: EventArgs) -> int:
        """Return the number of an operator's inputs, -1 if the recording lacks their shapes."""
        return self[bytes(args.dimensions), bytes(args.types)]

    def of_all(self, args: Sequence[EventArgs]) -> list[int]:
        """Return the numbers for many operators, by functions that run outside Python's interpreter loop."""
        dimensions, types = map(bytes, map(_dimensions, args)), map(bytes, map(_types, args))
        return list(map(self.__getitem__, zip(dimensions, types, strict=True)))


def shapes_text(dimensions: bytes) -> str:
    """Return the dimensions of plain tensors in order: `2048,1408;8` for `[[2048, 1408], [], [8]]`."""
    if len(dimensions) > _LONGEST:
        return ""
    tensors = (shape for shape in json_list(dimensions) if isinstance(shape, list) and shape)
    return ";".join(",".join(map(str, of)) for of in tensors if all(isinstance(n, int) and n >= 0 for n in of))


@lru_cache(maxsize=4096)
def size_of_tensors(dimensions: bytes, types: bytes) -> int | None:
    """Return the bytes of plain tensors from their shapes; tensor lists do not state their elements."""
    if len(dimensions) > _LONGEST:
        return None
    total = 0
    for shape, element in zip(json_list(dimensions), json_list(types), strict=False):
        width = _ELEMENT_BYTES.get(str(element).lower().removeprefix("c10::"))
        if width and isinstance(shape, list) and shape and all(isinstance(n, int) and n >= 0 for n in shape):
            total += width * prod(shape)
    return total if 0 < total in _NATURAL_INT64 else None


def json_list(text: bytes) -> list[Any]:
    """Return a JSON text's list; an empty one for any other text."""
    if not text:
        return []
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    return value if isinstance(value, list) else []


_MAX_GROUP_LENGTH: Final = 200
# A process group's name as newer PyTorch writes it in the inputs: `('0', 'default_pg')`.
_GROUP_PAIR: Final = re.compile(r"^[(\[]\s*['\"]([^'\"]*)['\"]")
_SEQUENCE: Final = re.compile(r"\d{1,18}")
_PEER: Final = re.compile(r"\d{1,9}")
_INT64: Final = range(-(1 << 63), 1 << 63)


class CollectiveDetails(msgspec.Struct, frozen=True, gc=False):
    """The known details of one collective or point-to-point call; None where the trace lacks one."""

    kind: str
    group: str | None = None
    sequence: int | None = None
    size: int | None = None
    peer: int | None = None
    """The other end of a send or receive, as a place in the group."""

    @property
    def known(self) -> bool:
        """Whether the arguments distinguish this collective from others."""
        return self.group is not None or self.sequence is not None or self.kind != "collective"


_UNKNOWN: Final = CollectiveDetails("collective")


class Details:
    """The details of a recording's collectives, by number.

    Many differ only in their sequence number: for them only that number and a reference to the first are kept.
    """

    def __init__(self) -> None:
        self.different: list[CollectiveDetails] = []
        self.like: list[int] = []
        """By number, an index into `different`."""
        self.sequence: list[int] = []
        """By number, the sequence number; -1 if it equals that of the entry in `different`."""

    def add(self, one: CollectiveDetails) -> int:
        """Add details and return their number."""
        self.like.append(len(self.different))
        self.sequence.append(-1)
        self.different.append(one)
        return len(self.like) - 1

    def add_like(self, numbers: Sequence[int], sequence: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the numbers of new entries, each a copy of an existing one with its sequence number replaced unless
        that is -1.
        """
        before = len(self.like)
        self.like += [self.like[number] for number in numbers]
        self.sequence += sequence
        return np.arange(before, len(self.like))

    def __getitem__(self, number: int) -> CollectiveDetails:
        one, sequence = self.different[self.like[number]], self.sequence[number]
        return one if sequence < 0 else msgspec.structs.replace(one, sequence=sequence)

    def __setitem__(self, number: int, one: CollectiveDetails) -> None:
        self.like[number], self.sequence[number] = len(self.different), -1
        self.different.append(one)


class DetailColumns:
    """Details as arrays by number, with an extra last entry, found by -1, for no details. -1 is for None."""

    def __init__(self, details: Details) -> None:
        self.groups = list(dict.fromkeys(one.group for one in details.different if one.group))
        number = {group: at for at, group in enumerate(self.groups)}
        columns = [
            (
                KINDS.index(one.kind),
                number[one.group] if one.group else -1,
                -1 if one.sequence is None else one.sequence,
                -1 if one.size is None else one.size,
                -1 if one.peer is None else one.peer,
                one.known,
            )
            for one in (*details.different, _UNKNOWN)
        ]
        like, sequence = np.array([*details.like, -1]), np.array([*details.sequence, -1])
        self.kind, self.group, of_like, self.size, self.peer, known = np.array(columns, np.int64)[like].T.copy()
        self.sequence, self.known = np.where(sequence < 0, of_like, sequence), known.astype(np.bool_)


def collective_details(args: EventArgs) -> CollectiveDetails:
    """Return the details in an event's arguments, by name, else from its concrete inputs."""
    named = args.collective or args.group or args.sequence is not None or args.dtype
    if not named and not bytes(args.inputs) and not bytes(args.types):
        return _UNKNOWN
    kind = _kind(args.collective or "")
    peer = {"send": args.destination_rank, "recv": args.source_rank}.get(kind)
    group, sequence = args.group, args.sequence
    if group is None and sequence is None:
        inputs = json_list(bytes(args.inputs))
        group, sequence = _from_inputs(inputs)
        peer = _peer_of_call(inputs) if peer is None else peer
    return CollectiveDetails(
        kind,
        group_text(group, args.group_ranks),
        _int64(sequence),
        _size(args),
        peer if peer is not None and 0 <= peer < 1 << 31 else None,
    )


@lru_cache(maxsize=1024)
def group_text(name: str | None, ranks: str | None) -> str | None:
    """Return a process group's name in the table: its own, with its ranks if they are stated."""
    if not name:
        return None
    text = f"{name} {ranks}" if ranks else name
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= _MAX_GROUP_LENGTH else f"{text[: _MAX_GROUP_LENGTH - 1]}…"


def peers_counted(details: Details, rank: int) -> PeersCounted | None:
    """Return how a rank's recording numbers the other ends of sends and receives; None if no listed group has any.

    A number that is no place in the group, or is the rank's own, shows that they are ranks of the job; one that is no
    rank of the group shows that they are places.
    """
    found: set[PeersCounted] = set()
    for one in details.different:
        ranks = listed_ranks(one.group)
        if one.peer is None or not ranks:
            continue
        if one.peer >= len(ranks) or ranks[one.peer] == rank:
            found.add("ranks")
        else:
            found.add("either" if one.peer in ranks else "places")
    clear = found - {"either"}
    return clear.pop() if len(clear) == 1 else "either" if found else None


def global_peers(peers: Sequence[int], group: str | None, rank: int, counted: PeersCounted | None) -> list[int]:
    """Return the other ends of one group's sends and receives on a rank, as ranks of the job.

    Most recordings number them within the process group, whose ranks the group's text lists; others state ranks of the
    job. `counted` is the convention of the whole recording; without one, these peers may still show it.
    """
    ranks = listed_ranks(group)
    of_job = any(peer >= len(ranks) or ranks[peer] == rank for peer in peers)
    if counted == "ranks" or of_job:
        return list(peers)
    return [ranks[peer] for peer in peers]


def _int64(value: int | None) -> int | None:
    return value if value is not None and value in _INT64 else None


@lru_cache(maxsize=1024)
def _kind(name: str) -> str:
    name = name.lower().lstrip("_")
    if name.removeprefix("i") == "send":
        return "send"
    if name.removeprefix("i") in ("recv", "receive"):
        return "recv"
    return "collective"


def _from_inputs(inputs: list[Any]) -> tuple[str | None, int | None]:
    """Return (group, sequence) of a `record_param_comms`: ["", sequence, group, rank, …].

    Its twin at the call's end lists the sequence number first, and is skipped. In older releases the group is a
    pointer, different on every rank and so no name.
    """
    if len(inputs) < 3 or inputs[0] != "" or not _SEQUENCE.fullmatch(str(inputs[1])):
        return None, None
    pair = _GROUP_PAIR.match(str(inputs[2]))
    return (pair.group(1) if pair else None), int(inputs[1])


def _peer_of_call(inputs: list[Any]) -> int | None:
    """Return the other end in the inputs of a `c10d::send` or `c10d::recv_`: ["", "", peer, tag]."""
    shaped = inputs[:2] == ["", ""] and len(inputs) == 4
    return int(inputs[2]) if shaped and _PEER.fullmatch(str(inputs[2])) else None


def _size(args: EventArgs) -> int | None:
    elements = max(args.elements_in or 0, args.elements_out or 0)
    width = element_bytes(args.dtype) if args.dtype else None
    if elements > 0 and width:
        return elements * width if elements * width in _INT64 else None
    return size_of_tensors(bytes(args.dimensions), bytes(args.types))
