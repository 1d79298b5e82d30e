"""Recordings of calls of several kinds beside each other: each rank is told by the best one, and by no two."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from kair_engine.ranks import Rank
from kair_engine.readers.identity import MAX_RANKS, rank_from_name
from kair_engine.recording.fragment import Fragment
from kair_engine.trace.model import KairWarning
from kair_engine.trace.warning_texts import listed, short_warning

_DUMPS: Final = "flight_recorder"
_LOG: Final = "job_log"
BESIDE: Final = (_LOG, "ras")
"""Formats that are read for want of a recording: beside a job's traces or dumps they are no other job."""


def damaged_dumps(fragments: Sequence[Fragment], lost: Mapping[Path, int | None]) -> dict[Path, KairWarning]:
    """Of files that are `lost`, which are dumps, and of which rank: nothing is told of it.

    Whoever left a damaged dump is not one who left none: its warning has the rank. Files are taken for dumps whose name
    is that of a dump beside them but for its numbers.
    """
    dumps = {_without_numbers(Path(one.info.source)) for one in fragments if one.info.format == _DUMPS}
    found = {}
    for path, hint in lost.items():
        rank = rank_from_name(path) if hint is None else hint
        if rank is not None and rank < MAX_RANKS and _without_numbers(path) in dumps:
            text = f"{path.name} is cut off or damaged: it cannot be told how far rank {rank} came"
            found[path] = replace(short_warning("unreadable_file", text), ranks=(Rank(rank),))
    return found


def _without_numbers(path: Path) -> str:
    return str(path.parent / re.sub(r"\d+", "#", path.name))


def with_calls_once(fragments: Sequence[Fragment]) -> tuple[list[Fragment], list[KairWarning]]:
    """The fragments without logs and answers of RAS where there is something better.

    Beside dumps a log tells the ranks that left none; answers of RAS are left out beside logs, as are both beside
    traces. A rank of several logs is told by the one that tells most of its groups.
    """
    best = [one for one in fragments if one.info.format not in BESIDE]
    logs = [one for one in fragments if one.info.format == _LOG]
    if best and any(one.info.format != _DUMPS for one in best):
        return best, []
    kept = [*best] if best or logs else [*fragments]
    told = {rank for one in kept for rank in one.info.ranks}
    lacking: set[int] = set()
    for log in sorted(logs, key=lambda one: (-sum(map(len, one.info.calls.values())), one.info.source)):
        ranks = [rank for rank in log.info.ranks if rank not in told]
        if ranks:
            calls = {rank: log.info.calls[rank] for rank in ranks if rank in log.info.calls}
            info = replace(log.info, ranks=tuple(ranks), calls=calls)
            # Beside dumps it is one of them: what its job's size and format are is theirs to say.
            kept.append(Fragment(log.path, replace(info, format=_DUMPS, world_size=None) if best else info))
            told |= {*ranks}
            lacking |= {*ranks}
    warnings = []
    if best and lacking:
        of_log = f"those of rank {listed(sorted(lacking))} by the log"
        text = f"the calls are told by {len(best)} Flight Recorder dumps, {of_log}"
        warnings.append(short_warning("calls_from_log", text))
    if len(fragments) > len(best) + len(logs) and (best or logs):
        text = f"the calls are told by {'dumps' if best else 'the log'}; what NCCL's RAS told of them is left out"
        warnings.append(short_warning("calls_from_log", text))
    return kept, warnings
