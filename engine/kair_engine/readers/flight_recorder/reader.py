"""Flight Recorder dumps (JSON, or pickles of plain values): how far one rank came in each process group."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from kair_engine.errors import InputError
from kair_engine.readers.blocks import BlockReader
from kair_engine.readers.detect import NotATraceError
from kair_engine.readers.flight_recorder.entries import progress_of
from kair_engine.readers.flight_recorder.plain_pickle import CutError, NotPlainError, load_plain
from kair_engine.readers.identity import MAX_RANKS, host_of, rank_from_name
from kair_engine.trace.calls import GroupProgress
from kair_engine.trace.format import write_fragment
from kair_engine.trace.model import FragmentInfo, KairWarning, StepTimes
from kair_engine.trace.warning_texts import short_warning

_LARGEST: Final = 1 << 30


def read_flight_recorder(source: Path, out: Path, *, rank_hint: int | None = None) -> FragmentInfo:
    """Writes an empty fragment `out`, and says how far the rank came: a dump has calls, and no steps.

    The rank is `rank_hint`, else the one the file's name states. Raises NotATraceError where the file is something
    else, InputError where it is damaged or a pickle of more than plain values, OSError when the disk is full.
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
        device=None,
        has_device=False,
        absolute_time=True,
        operations=0,
        layout=None,
        step_times=StepTimes((), (), (), (), ()),
        warnings=warnings,
        calls={rank: progress},
    )
    write_fragment(out, (), msgspec.to_builtins(info, str_keys=True))
    return info


def _world_size(progress: tuple[GroupProgress, ...]) -> int | None:
    """That of the group of all ranks; other groups are of some of them."""
    of_all = [group for group in progress if group.ranks and group.is_of_all]
    return max((len(group.ranks) for group in of_all), default=0) or None


def _loaded(source: Path) -> tuple[dict[str, Any], tuple[KairWarning, ...], bool]:
    """The dump, what is to be said of it, and whether its end is missing."""
    held, size = [], 0
    for block in BlockReader(source):
        held.append(block)
        size += len(block)
        if size > _LARGEST:
            raise InputError(f"{source.name} holds more than 1 GiB: no Flight Recorder dump is as large")
    content = b"".join(held)
    try:
        value = load_plain(content) if content.startswith(b"\x80") else json.loads(content)
    except CutError as error:
        text = f"{source.name} is cut off: its last calls are missing, and its pg_status tells how far its rank came"
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
        text = f"{source.name} holds no calls (TORCH_FR_BUFFER_SIZE was 0): what its rank called is not known"
        return value, (short_warning("no_calls", text),), False
    return value, (), False


def _cut_off(source: Path) -> InputError:
    text = f"{source.name} is cut off or damaged: it cannot be told how far its rank came"
    return InputError(text, "dump it again; the last collective that was called stands at its end")
