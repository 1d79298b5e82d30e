"""Reads Flight Recorder dumps (JSON, or pickles of plain values): the progress of one rank in each process group.

Progress comes from the dump's entries, its `pg_config` and its `pg_status`.

Versions 2.0 to 2.10. Fields of later versions are used if present: data types since 2.1, `is_p2p` since 2.2,
`pg_status` since 2.3, one entry per operation of a coalesced collective since 2.7.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kair_engine.errors import InputError
from kair_engine.readers.blocks import read_whole
from kair_engine.readers.formats import NotATraceError
from kair_engine.readers.json_values import listing, mapping, mappings
from kair_engine.readers.paths import MAX_RANKS, host_of, rank_from_name
from kair_engine.readers.plain_pickle import CutError, NotPlainError, load_plain
from kair_engine.trace.calls import NOT_NUMBERED, UNKNOWN, CallState, CollectiveCall, GroupProgress, location_in
from kair_engine.trace.format import write_fragment
from kair_engine.trace.model import FragmentInfo, KairWarning, short_warning

_LARGEST: Final = 1 << 30


def read_flight_recorder(source: Path, out: Path, *, rank_hint: int | None = None) -> FragmentInfo:
    """Write an empty fragment `out`, and return the rank's progress: a dump has calls, and no steps.

    The rank is `rank_hint`, else the one in the file's name. Raises NotATraceError if the file is something else,
    InputError if it is damaged or a pickle of more than plain values, OSError if the disk is full.
    """
    dump, warnings, is_cut = _loaded(source)
    if not isinstance(dump.get("entries"), list) and not isinstance(dump.get("pg_status"), Mapping):
        raise NotATraceError("it has neither entries nor pg_status")
    found = rank_hint if rank_hint is not None else rank_from_name(source)
    rank = found if found is not None and found < MAX_RANKS else 0
    progress = progress_of(dump, is_cut=is_cut)
    if is_cut and not progress:
        raise _cut_off(source)
    host = host_of(source)
    info = FragmentInfo(
        source=str(source),
        format="flight_recorder",
        ranks=(rank,),
        rank_known=found is not None,
        world_size=_world_size(progress),
        hosts={rank: host} if host else {},
        warnings=warnings,
        calls={rank: progress},
    )
    write_fragment(out, (), info)
    return info


def _world_size(progress: tuple[GroupProgress, ...]) -> int | None:
    """Return the size of the group of all ranks; other groups have some of them."""
    of_all = [group for group in progress if group.ranks and group.is_of_all]
    return max((len(group.ranks) for group in of_all), default=0) or None


def _loaded(source: Path) -> tuple[dict[str, Any], tuple[KairWarning, ...], bool]:
    """Return the dump, its warnings, and whether its end is missing."""
    content, _ = read_whole(source, _LARGEST)
    try:
        value = load_plain(content) if content.startswith(b"\x80") else json.loads(content)
    except CutError as error:
        text = f"{source.name} is cut off: its last calls are missing, but its pg_status shows how far its rank came"
        return error.held, (short_warning("truncated_file", text),), True
    except NotPlainError as error:
        hint = "dump it as JSON (torch._C._distributed_c10d._dump_nccl_trace_json or _dump_fr_trace_json)"
        raise InputError(f"{source.name} is a pickle that is not read: {error}", hint) from error
    except (ValueError, RecursionError) as error:
        raise _cut_off(source) from error
    if not isinstance(value, dict):
        raise NotATraceError("it is no dump")
    calls = value.get("entries")
    if isinstance(calls, list) and not calls:
        text = f"{source.name} holds no calls (TORCH_FR_BUFFER_SIZE was 0): its rank's calls are unknown"
        return value, (short_warning("no_calls", text),), False
    return value, (), False


def _cut_off(source: Path) -> InputError:
    text = f"{source.name} is cut off or damaged: it is unknown how far its rank came"
    return InputError(text, "dump it again; the last collective that was called stands at its end")


_KEPT_CALLS: Final = 64
_LONGEST: Final = 200
_NUMBER: Final = re.compile(r"\d{1,9}")
_TRANSFER: Final = re.compile(r"(send|recv)\b\S*(?:\s+(\d{1,7})\s*(?:->|<-)\s*(\d{1,7}))?", re.IGNORECASE)
_COALESCED: Final = "coalesced"

Entry = Mapping[str, Any]


def progress_of(dump: Mapping[str, Any], *, is_cut: bool = False) -> tuple[GroupProgress, ...]:
    """Return the rank's progress in each of its process groups, in the order of their names.

    If the dump `is_cut`, its last entries are missing and only `pg_status` counts: groups without one are left out.
    """
    entries = mappings(dump.get("entries"))
    entries = entries[:-1] if is_cut else entries
    of_group: dict[str, list[Entry]] = {}
    descriptions: dict[str, str] = {}
    for entry in entries:
        name, description = _group_of(entry)
        of_group.setdefault(name, []).append(entry)
        descriptions.setdefault(name, description)
    status = mapping(dump.get("pg_status"))
    configured = _configured(dump.get("pg_config"))
    # Groups without a call appear only in the configuration.
    names = {*of_group, *(name for name in configured if name)} or {*map(_text, status)}
    found = (
        _Group(
            name,
            of_group.get(name, []),
            description=descriptions.get(name, "") or configured.get(name, ("", ()))[0],
            ranks=_members(name, configured, names),
            status=status,
            is_cut=is_cut,
        )
        for name in sorted(names)
    )
    return tuple(group.progress() for group in found if not is_cut or group.has_status)


def _group_of(entry: Entry) -> tuple[str, str]:
    """Return (name, description) of an entry's process group; older dumps only have its number."""
    pair = entry.get("process_group")
    if isinstance(pair, Sequence) and not isinstance(pair, str) and pair:
        description = _text(pair[1]) if len(pair) > 1 else ""
        return _text(pair[0]), "" if description == "undefined" else description
    return _text(entry.get("pg_id", 0)), ""


def _configured(value: object) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return name → (description, ranks) of process groups."""
    found = {}
    for key, one in mapping(value).items():
        if isinstance(one, Mapping):
            ranks = tuple(int(number) for number in _NUMBER.findall(str(one.get("ranks", ""))[: 10 * MAX_RANKS]))
            description = _text(one.get("desc", ""))
            found[_text(key)] = ("" if description == "undefined" else description, ranks)
    return found


def _members(name: str, configured: Mapping[str, tuple[str, tuple[int, ...]]], names: set[str]) -> tuple[int, ...]:
    """Return the ranks of a group. Gloo's default group is configured under an empty name."""
    if name in configured:
        return configured[name][1]
    unnamed = configured.get("", ("", ()))[1]
    return unnamed if name == "0" or len(names) == 1 else ()


class _Group:
    """The entries of one process group in the order of their calls; collectives apart from batches of transfers."""

    def __init__(
        self,
        name: str,
        entries: Sequence[Entry],
        *,
        description: str,
        ranks: tuple[int, ...],
        status: Mapping[Any, Any],
        is_cut: bool,
    ) -> None:
        self._name, self._description, self._ranks, self._is_cut = name, description, ranks, is_cut
        self._collectives, self._transfers = _sorted_out(entries)
        info = next((one for key, one in status.items() if _is_of(key, name, entries) and isinstance(one, Mapping)), {})
        # A status counts sends and receives, too: with these it holds no number of a collective.
        self._status = {} if self._transfers else info
        self._completed = _count(self._status.get("last_completed_collective"))
        states = {_text(entry.get("state")) for entry in entries}
        # NCCL retires calls that timed out, too. Gloo retires finished calls and reports none as `completed`; backends
        # without a completion hook retire calls that returned, and report none either.
        self._tells_completion = "completed" in states or self._completed >= 0
        self._retired: CallState = "open" if "completed" in states else "done" if self._tells_completion else "returned"
        self._last = entries[-1] if entries else None
        self._has_status = bool(status) or self._last is not None

    @property
    def has_status(self) -> bool:
        return _count(self._status.get("last_enqueued_collective")) >= 0 and bool(self._collectives)

    def progress(self) -> GroupProgress:
        calls = [self._collective(parts, is_first=at == 0) for at, parts in enumerate(self._collectives)]
        transfers = [self._transfer(entry, end) for entry, end in self._transfers]
        is_open = [call for call in calls if call.state == "open"]
        enqueued = max((call.sequence for call in calls), default=NOT_NUMBERED)
        completed = max((call.sequence for call in calls if call.state == "done"), default=NOT_NUMBERED)
        completed = max(completed, self._completed)
        if is_open:
            completed = min(completed, is_open[0].sequence - 1)
        enqueued = max(enqueued, completed, _count(self._status.get("last_enqueued_collective")))
        kept = {call.sequence: call for call in (*is_open[:_KEPT_CALLS], *calls[-_KEPT_CALLS:])}
        return GroupProgress(
            name=self._name,
            description=self._description,
            ranks=self._ranks,
            enqueued=enqueued,
            completed=completed,
            tells_completion=self._tells_completion or not calls,
            calls=tuple(kept[number] for number in sorted(kept)),
            transfers=tuple(call for call in transfers if call.state == "open")[:_KEPT_CALLS],
            has_transfers=bool(self._transfers),
            counts_transfers=self._is_cut or self._last is None,
            is_counted_alone=self._last is None and (enqueued != NOT_NUMBERED or not self._has_status),
            latest=self._latest(),
        )

    def _latest(self) -> CollectiveCall | None:
        if self._last is None:
            return None
        if any(entry is self._last for entry, _ in self._transfers[-1:]) or _is_transfer(self._last):
            return self._transfer(self._last, self._last)
        return self._collective([self._last], is_first=True)

    def _state(self, entry: Entry) -> CallState:
        if _text(entry.get("state")) == "completed":
            return "done"
        return self._retired if entry.get("retired") is True else "open"

    def _collective(self, parts: Sequence[Entry], *, is_first: bool) -> CollectiveCall:
        """Return a collective. A coalesced one has the sums of its parts, unless it `is_first`: earlier parts may be
        dropped.
        """
        last = parts[-1]
        of_sizes = parts[:-1] if len(parts) > 1 else parts
        unsure = (is_first and len(parts) > 1) or len({_operation(part) for part in of_sizes}) > 1
        elements = (UNKNOWN, UNKNOWN) if unsure else (_elements(of_sizes, "input"), _elements(of_sizes, "output"))
        return CollectiveCall(
            sequence=_sequence(last, is_transfer=False),
            operation=_operation(last),
            state=self._state(last),
            sizes=_sizes(of_sizes[0]) if len(of_sizes) == 1 else "",
            created_ns=max(_count(last.get("time_created_ns")), 0),
            input_elements=elements[0],
            output_elements=elements[1],
            input_dtypes=_dtypes(of_sizes, "input"),
            output_dtypes=_dtypes(of_sizes, "output"),
            location=_location(last),
        )

    def _transfer(self, entry: Entry, end: Entry) -> CollectiveCall:
        """Return a send or receive; `end` is the entry with the state of its whole batch."""
        match = _TRANSFER.match(_name(entry))
        return CollectiveCall(
            sequence=_sequence(entry, is_transfer=True),
            operation=match[1].lower() if match else _operation(entry),
            state=self._state(end),
            sizes=_sizes(entry),
            created_ns=max(_count(entry.get("time_created_ns")), 0),
            input_elements=_elements([entry], "input"),
            output_elements=_elements([entry], "output"),
            location=_location(entry),
            # `send 1->2` and `recv 1<-2`: positions in the group, the rank's own first.
            peer=UNKNOWN if match is None or match[3] is None else self._rank_at(int(match[3])),
        )

    def _rank_at(self, place: int) -> int:
        if not self._ranks:
            return place if self._name == "0" else UNKNOWN
        return self._ranks[place] if place < len(self._ranks) else UNKNOWN


def _sorted_out(entries: Sequence[Entry]) -> tuple[list[list[Entry]], list[tuple[Entry, Entry]]]:
    """Return collectives by number, each with its parts and the entry that ends it; transfers with the end of their
    batch.

    The entries of a batch have no states; they take that of the `coalesced` entry after them.
    """
    collectives: dict[int, list[Entry]] = {}
    transfers: list[tuple[Entry, Entry]] = []
    batch: list[Entry] = []
    has_transfers = any(map(_is_transfer, entries))
    for at, entry in enumerate(entries):
        if _operation(entry) == _COALESCED:
            number = _count(entry.get("p2p_seq_id"))
            parts = [one for one in batch if _count(one.get("p2p_seq_id")) == number]
            if parts or entry.get("is_p2p") is True or (has_transfers and at == 0):
                transfers += [(one, one) for one in batch if not any(one is part for part in parts)]
                transfers += [(part, entry) for part in parts] or [(entry, entry)]
                batch = []
                continue
        if _is_transfer(entry):
            batch.append(entry)
            continue
        transfers += [(one, one) for one in batch]
        batch = []
        collectives.setdefault(_sequence(entry, is_transfer=False), []).append(entry)
    transfers += [(one, one) for one in batch]
    return [collectives[number] for number in sorted(collectives)], transfers


def _is_transfer(entry: Entry) -> bool:
    if _operation(entry) == _COALESCED:
        return entry.get("is_p2p") is True
    return entry.get("is_p2p") is True or _TRANSFER.match(_name(entry)) is not None


def _is_of(key: object, name: str, entries: Sequence[Entry]) -> bool:
    """Return whether a status belongs to a group: its key is the number of the group's communicator."""
    if entries:
        return _text(key) == _text(entries[-1].get("pg_id", name))
    return _text(key) == name


def _name(entry: Entry) -> str:
    return _text(entry.get("profiling_name", "")).rpartition(":")[2]


def _operation(entry: Entry) -> str:
    return _name(entry).partition(" ")[0] or "collective"


def _sequence(entry: Entry, *, is_transfer: bool) -> int:
    return _count(entry.get("p2p_seq_id" if is_transfer else "collective_seq_id", entry.get("seq_id")))


def _sizes(entry: Entry) -> str:
    """Return `[[1024]]`, or `[[1024]] → [[256]]`."""
    inputs, outputs = (_text(entry.get(f"{side}_sizes", "")) for side in ("input", "output"))
    return inputs if outputs in ("", inputs) else f"{inputs} → {outputs}"


def _elements(entries: Sequence[Entry], side: str) -> int:
    """Return the number of elements in all tensors of one side; UNKNOWN if a size is missing."""
    total = 0
    for entry in entries:
        shapes = entry.get(f"{side}_sizes")
        if not isinstance(shapes, list) or not shapes:
            return UNKNOWN
        for shape in shapes:
            if not isinstance(shape, list) or not all(isinstance(size, int) and 0 <= size < 1 << 48 for size in shape):
                return UNKNOWN
            total += math.prod(shape[:16])
    return min(total, (1 << 62) - 1)


def _dtypes(entries: Sequence[Entry], side: str) -> str:
    of_entries = (listing(entry.get(f"{side}_dtypes"))[:16] for entry in entries)
    return ", ".join(dict.fromkeys(", ".join(dict.fromkeys(map(_text, of))) for of in of_entries))[:_LONGEST]


def _location(entry: Entry) -> str:
    """Return the innermost frame of the program; frames come from the inside out."""
    frames = mappings(listing(entry.get("frames"))[:_LONGEST])
    return location_in(
        [(_text(one.get("filename")), _count(one.get("line")), _text(one.get("name"))) for one in frames]
    )


def _count(value: object) -> int:
    """Return a sequence number or a time; −1 without one. Gloo's status has them as text."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and -1 <= value < 1 << 62 else -1


def _text(value: object) -> str:
    text = value if isinstance(value, str) else str(value) if isinstance(value, int | list | tuple) else ""
    return text[:_LONGEST].encode("utf-8", "replace").decode()
