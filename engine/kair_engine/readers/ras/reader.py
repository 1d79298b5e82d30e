"""What NCCL's RAS prints of a job (`ncclras -v`, or as JSON): how far each rank of it came in each communicator."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from kair_engine.errors import InputError
from kair_engine.readers.blocks import BlockReader
from kair_engine.readers.detect import NotATraceError
from kair_engine.readers.identity import MAX_RANKS
from kair_engine.readers.ras.communicators import Communicator, of_json, of_text
from kair_engine.trace.calls import NOT_NUMBERED, CollectiveCall, GroupProgress
from kair_engine.trace.format import write_fragment
from kair_engine.trace.model import FragmentInfo, KairWarning, StepTimes
from kair_engine.trace.warning_texts import listed, short_warning

_LARGEST: Final = 256 << 20
_KEPT_CALLS: Final = 64
_ONE_QUERY: Final = (
    "one answer of RAS does not tell a hang from a job that runs: ask again, and see whether the counts stand still"
)


def read_ras(source: Path, out: Path, *, rank_hint: int | None = None) -> FragmentInfo:  # noqa: ARG001
    """Writes an empty fragment `out`, and says how far the ranks came of which RAS tells that they differ.

    Ranks are the job's where a communicator has all its GPUs, and are translated to these where RAS lists all; of
    others a warning tells. Raises InputError where JSON is damaged, NotATraceError where no communicator is told.
    """
    content = _content(source)
    try:
        is_json = content.lstrip()[:1] == b"{"
        communicators, gpus = of_json(json.loads(content)) if is_json else of_text(content.decode("utf-8", "replace"))
    except (ValueError, AttributeError, RecursionError) as error:
        raise InputError(f"{source.name} is cut off or damaged", "ask RAS again: ncclras -v -f json") from error
    if not gpus or gpus > MAX_RANKS:
        raise NotATraceError("it is no answer of RAS: it does not say how many GPUs the job has")
    progress: dict[int, list[GroupProgress]] = {rank: [] for rank in range(gpus)}
    warnings = (
        [short_warning("one_query", _ONE_QUERY)] if any(one.counts or one.missing for one in communicators) else []
    )
    names = _job_ranks(communicators, gpus)
    for one in communicators:
        if all(rank in names.get(one.name, {}) for rank in range(one.size)):
            for rank, groups in _progress(one, names[one.name]).items():
                progress[rank] += groups
            warnings += [_unclear(one, kind) for kind in sorted(one.unclear)]
        else:
            warnings += list(_untranslated(one))
    info = FragmentInfo(
        source=str(source),
        format="ras",
        ranks=tuple(progress),
        rank_known=True,
        world_size=gpus,
        hosts={},
        device=None,
        has_device=False,
        absolute_time=True,
        operations=0,
        layout=None,
        step_times=StepTimes((), (), (), (), ()),
        warnings=tuple(warnings),
        calls={rank: tuple(groups) for rank, groups in progress.items()},
    )
    write_fragment(out, (), msgspec.to_builtins(info, str_keys=True))
    return info


def _content(source: Path) -> bytes:
    held, size = [], 0
    for block in BlockReader(source):
        held.append(block)
        size += len(block)
        if size > _LARGEST:
            raise InputError(f"{source.name} is too large for an answer of RAS")
    return b"".join(held)


def _job_ranks(communicators: Sequence[Communicator], gpus: int) -> dict[str, dict[int, int]]:
    """Communicator → its ranks → the job's."""
    of_all = next((one for one in communicators if one.size == gpus), None)
    if of_all is None:
        return {}
    job_rank = {device: rank for rank, device in of_all.devices.items()}
    found = {one.name: {rank: rank for rank in range(gpus)} for one in communicators if one.size == gpus}
    for one in communicators:
        if one.name not in found:
            found[one.name] = {rank: job_rank[of] for rank, of in one.devices.items() if of in job_rank}
    return found


def _progress(one: Communicator, job_rank: dict[int, int]) -> dict[int, list[GroupProgress]]:
    found: dict[int, list[GroupProgress]] = {rank: [] for rank in job_rank.values()}
    members = tuple(job_rank[rank] for rank in range(one.size))
    for kind, counts in one.counts.items():
        known = {rank: count for rank, count in counts.items() if count >= 0 and rank < one.size}
        least = min(known.values(), default=0)
        if len(set(known.values())) < 2:
            continue
        operation = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).lower() if kind != "collective" else ""
        for rank, count in known.items():
            numbers = range(max(least, count - _KEPT_CALLS), count + 1)
            calls = tuple(CollectiveCall(number, operation, "returned") for number in numbers if number > 0)
            found[job_rank[rank]].append(
                GroupProgress(
                    f"{one.name} {kind}", "", members, count, NOT_NUMBERED, tells_completion=False, calls=calls
                )
            )
    if len(one.missing) <= one.size // 2:
        for rank, words in one.missing.items():
            if rank < one.size:
                lost = GroupProgress(
                    f"{one.name} processes", words, members, NOT_NUMBERED, NOT_NUMBERED, unreachable=True
                )
                found[job_rank[rank]].append(lost)
    return found


def _unclear(one: Communicator, kind: str) -> KairWarning:
    text = f"the ranks of communicator {one.name} have launched different numbers of {kind}, and it is not told which"
    return short_warning("ranks_untold", f"{text}: ask with ncclras -v")


def _untranslated(one: Communicator) -> Iterator[KairWarning]:
    """Who is behind in a communicator whose ranks are not known as the job's."""
    for kind, counts in one.counts.items():
        known = {rank: count for rank, count in counts.items() if count >= 0}
        behind = [rank for rank, count in known.items() if count < max(known.values())]
        if behind:
            text = (
                f"of communicator {one.name} rank {listed(behind)} has launched fewer {kind} than the others; "
                "which rank of the job that is is not told (ncclras -v -f json tells)"
            )
            yield short_warning("ranks_untold", text)
    if one.missing:
        what = ", ".join(filter(None, one.missing.values()))[:100]
        text = f"of communicator {one.name} rank {listed(list(one.missing))} does not answer ({what})"
        yield short_warning("ranks_untold", f"{text}; which rank of the job that is is not told")
