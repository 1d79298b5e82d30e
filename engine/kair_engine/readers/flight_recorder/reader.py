"""Flight Recorder dumps (JSON, or pickles of plain values): how far one rank came in each process group."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from kair_engine.errors import InputError
from kair_engine.readers.blocks import BlockReader
from kair_engine.readers.detect import NotATraceError
from kair_engine.readers.flight_recorder.plain_pickle import NotPlainError, load_plain
from kair_engine.readers.identity import MAX_RANKS, host_from_name, rank_from_name
from kair_engine.trace.format import write_fragment
from kair_engine.trace.model import CollectiveCall, FragmentInfo, GroupProgress, KairWarning, StepTimes
from kair_engine.trace.warning_texts import short_warning

_LARGEST: Final = 1 << 30
_KEPT_CALLS: Final = 64
_LONGEST: Final = 200
_NUMBER: Final = re.compile(r"\d{1,9}")


def read_flight_recorder(source: Path, out: Path, *, rank_hint: int | None = None) -> FragmentInfo:
    """Writes an empty fragment `out`, and says how far the rank came: a dump has calls, and no steps.

    The rank is `rank_hint`, else the one the file's name states. Raises NotATraceError where the file is something
    else, InputError where it is damaged or a pickle of more than plain values, OSError when the disk is full.
    """
    dump, warnings = _loaded(source)
    if not isinstance(dump.get("entries"), list) and not isinstance(dump.get("pg_status"), Mapping):
        raise NotATraceError("it has neither entries nor pg_status")
    found = rank_hint if rank_hint is not None else rank_from_name(source)
    rank = found if found is not None and found < MAX_RANKS else 0
    progress = _progress(dump)
    host = host_from_name(source)
    info = FragmentInfo(
        source=str(source),
        format="flight_recorder",
        ranks=(rank,),
        rank_known=found is not None,
        world_size=max((len(group.ranks) for group in progress), default=0) or None,
        hosts={rank: host} if host else {},
        device=None,
        has_device=False,
        absolute_time=True,
        operations=0,
        layout=None,
        step_times=StepTimes((), (), (), (), ()),
        warnings=warnings,
        progress=progress,
    )
    write_fragment(out, (), msgspec.to_builtins(info, str_keys=True))
    return info


def _loaded(source: Path) -> tuple[dict[str, Any], tuple[KairWarning, ...]]:
    held, size = [], 0
    for block in BlockReader(source):
        held.append(block)
        size += len(block)
        if size > _LARGEST:
            raise InputError(f"{source.name} holds more than 1 GiB: no Flight Recorder dump is as large")
    content = b"".join(held)
    try:
        value = load_plain(content) if content.startswith(b"\x80") else json.loads(content)
    except NotPlainError as error:
        hint = "dump it as JSON (torch._C._distributed_c10d._dump_nccl_trace_json or _dump_fr_trace_json)"
        raise InputError(f"{source.name} is a pickle that is not read: {error}", hint) from error
    except (ValueError, RecursionError) as error:
        text = f"{source.name} is cut off or damaged: it cannot be told how far its rank came"
        raise InputError(text, "dump it again; the last collective that was called stands at its end") from error
    if not isinstance(value, dict):
        raise NotATraceError("it is no dump")
    calls = value.get("entries")
    if isinstance(calls, list) and not calls:
        text = f"{source.name} holds no calls (TORCH_FR_BUFFER_SIZE was 0): what its rank called is not known"
        return value, (short_warning("no_calls", text),)
    return value, ()


def _progress(dump: Mapping[str, Any]) -> tuple[GroupProgress, ...]:
    """How far the rank came in each of its process groups, in the order of their names."""
    raw = dump.get("entries")
    entries = [entry for entry in raw if isinstance(entry, Mapping)] if isinstance(raw, list) else []
    of_group: dict[str, list[Mapping[str, Any]]] = {}
    descriptions: dict[str, str] = {}
    for entry in entries:
        name, description = _group_of(entry)
        of_group.setdefault(name, []).append(entry)
        descriptions.setdefault(name, description)
    status = dump.get("pg_status")
    status = status if isinstance(status, Mapping) else {}
    configured = _configured(dump.get("pg_config"))
    # Groups that have called nothing yet are in the configuration alone.
    names = {*of_group, *(name for name in configured if name)} or {*map(_text, status)}
    return tuple(
        _group(
            name,
            of_group.get(name, []),
            description=descriptions.get(name, "") or configured.get(name, ("", ()))[0],
            ranks=_members(name, configured, names),
            status=status,
        )
        for name in sorted(names)
    )


def _group_of(entry: Mapping[str, Any]) -> tuple[str, str]:
    """(name, description) of an entry's process group; older dumps have its number alone."""
    pair = entry.get("process_group")
    if isinstance(pair, Sequence) and not isinstance(pair, str) and pair:
        description = _text(pair[1]) if len(pair) > 1 else ""
        return _text(pair[0]), "" if description == "undefined" else description
    return _text(entry.get("pg_id", 0)), ""


def _configured(value: object) -> dict[str, tuple[str, tuple[int, ...]]]:
    """By name, the description and the ranks of process groups."""
    found = {}
    for key, one in value.items() if isinstance(value, Mapping) else ():
        if isinstance(one, Mapping):
            ranks = tuple(int(number) for number in _NUMBER.findall(str(one.get("ranks", ""))[: 10 * MAX_RANKS]))
            found[_text(key)] = (_text(one.get("desc", "")), ranks)
    return found


def _members(name: str, configured: Mapping[str, tuple[str, tuple[int, ...]]], names: set[str]) -> tuple[int, ...]:
    """The ranks of a group. Gloo's default group has none of its name: it is the one without any."""
    if name in configured:
        return configured[name][1]
    unnamed = configured.get("", ("", ()))[1]
    return unnamed if name == "0" or len(names) == 1 else ()


def _group(
    name: str,
    entries: Sequence[Mapping[str, Any]],
    *,
    description: str,
    ranks: tuple[int, ...],
    status: Mapping[Any, Any],
) -> GroupProgress:
    calls = [_call(entry) for entry in entries if not entry.get("is_p2p")]
    transfers = [_call(entry) for entry in entries if entry.get("is_p2p") is True]
    told = next((one for key, one in status.items() if _is_of(key, name, entries) and isinstance(one, Mapping)), {})
    enqueued = max((call.sequence for call in calls), default=-1)
    completed = max((call.sequence for call in calls if call.is_done), default=-1)
    completed = max(completed, _count(told.get("last_completed_collective")))
    enqueued = max(enqueued, completed, _count(told.get("last_enqueued_collective")))
    open_calls = [call for call in calls if not call.is_done and call.sequence > completed]
    last = next((call for call in reversed(calls) if call.sequence == completed), None)
    return GroupProgress(
        name=name,
        description=description,
        ranks=ranks,
        enqueued=enqueued,
        completed=completed,
        pending=tuple(open_calls[:_KEPT_CALLS]),
        last=last,
        transfers=tuple(call for call in transfers if not call.is_done)[:_KEPT_CALLS],
    )


def _is_of(key: object, name: str, entries: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a status is a group's: its key is the number of the group's communicator."""
    if entries:
        return _text(key) == _text(entries[-1].get("pg_id", name))
    return _text(key) == name


def _call(entry: Mapping[str, Any]) -> CollectiveCall:
    name = _text(entry.get("profiling_name", "")).rpartition(":")[2] or "collective"
    state = _text(entry.get("state", ""))
    sizes = "/".join(_text(entry.get(key, "")) for key in ("input_sizes", "output_sizes"))
    is_p2p = entry.get("is_p2p") is True
    return CollectiveCall(
        sequence=_count(entry.get("p2p_seq_id" if is_p2p else "collective_seq_id", entry.get("seq_id"))),
        operation=name,
        sizes=sizes[:_LONGEST],
        created_ns=max(_count(entry.get("time_created_ns")), 0),
        is_done=state == "completed" or entry.get("retired") is True,
        is_started=state == "started",
    )


def _count(value: object) -> int:
    """A sequence number or a time; −1 where there is none. Gloo's status has them as text."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and -1 <= value < 1 << 62 else -1


def _text(value: object) -> str:
    text = value if isinstance(value, str) else str(value) if isinstance(value, int | list | tuple) else ""
    return text[:_LONGEST].encode("utf-8", "replace").decode()
