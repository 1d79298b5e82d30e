"""Reads NCCL's RAS output for a job (`ncclras -v`, or its JSON) as a recording of a hang; next to one it is evidence.

It lists for each communicator how many operations of each kind its ranks have launched, and which do not answer. Its
text lists only ranks that differ from most: all others are in the single unlisted class. Its JSON lists all. Ranks are
those in the communicator; they are the job's if the communicator has as many as the job has GPUs.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kair_engine.errors import InputError
from kair_engine.readers.blocks import read_whole
from kair_engine.readers.formats import NotATraceError
from kair_engine.readers.json_values import mapping, mappings, text, whole
from kair_engine.readers.paths import MAX_RANKS
from kair_engine.readers.prefixes import peel, plain
from kair_engine.trace.calls import NOT_NUMBERED, ONE_QUERY, CollectiveCall, GroupProgress
from kair_engine.trace.format import write_fragment
from kair_engine.trace.model import FragmentInfo, KairWarning, listed, short_warning

_LARGEST: Final = 256 << 20
_ROW: Final = re.compile(r"^ *(\d+) +(\d+) +\d+ +\d+(?:-\d+)? +(\d+) +\d+ +[A-Z]+ +[A-Z,]+ *$")
_TOTALS: Final = re.compile(r"^ *\d+(?: +\d+){1,4} *$")
_BLOCK: Final = re.compile(r"^#(\d+)-(\d+) \(([0-9a-f]+)\) ([A-Z]+)")
_COUNTS: Final = re.compile(r"Communicator ranks have different (\w+) operation counts")
_CLASS: Final = re.compile(r"^ +(\d+) ranks have (?:launched up to operation (\d+)|not launched any)")
_ALONE: Final = re.compile(r"^ +Rank (\d+) has (?:launched up to operation (\d+)|not launched any)")
_LISTED: Final = re.compile(r"^ +Rank (\d+) -- (.*)$")
_MISSING: Final = re.compile(r"^ +The missing ranks?: ([\d, ]+)$")


@dataclass
class Communicator:
    """The state of one communicator."""

    name: str
    size: int
    counts: dict[str, dict[int, int]] = field(default_factory=dict)
    """Kind of operation → rank → operations launched; from text only kinds in which ranks differ."""
    unclear: set[str] = field(default_factory=set)
    """Kinds in which unidentified ranks differ."""
    missing: dict[int, str] = field(default_factory=dict)
    """Ranks whose process did not answer → its description."""
    devices: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    """Rank → its host, process and device, if all are listed."""

    def behind(self) -> Iterator[tuple[str, dict[int, int], int]]:
        """Yield kinds of operations with the ranks that have launched fewer, their counts, and the others' count."""
        for kind, counts in self.counts.items():
            most = max(counts.values(), default=0)
            if fewer := {rank: count for rank, count in counts.items() if 0 <= count < most}:
                yield kind, fewer, most


def answer_of(source: Path) -> tuple[list[Communicator], int, str]:
    """Return the communicators in a file, the job's number of GPUs (0 if unknown), and the time.

    Raises InputError if the file is too large or damaged.
    """
    content, is_cut = read_whole(source, _LARGEST)
    damaged = InputError(f"{source.name} is cut off or damaged", "ask RAS again: ncclras -v -f json")
    if is_cut:
        raise damaged
    try:
        if content.lstrip()[:1] == b"{":
            value = _loaded(content)
            return *of_json(value), re.sub(r"\D", "", text(value.get("timestamp")))[:20]
        return *of_text(_without_prefixes(content.decode("utf-8", "replace"))), ""
    except (ValueError, AttributeError, TypeError, IndexError, OverflowError, RecursionError) as error:
        raise damaged from error


_MISSING_COMMA: Final = re.compile(rb'([\d"el])(\s*\n\s*"[^"\n]*"\s*:)')
"""NCCL 2.28.9 omits one in its list of missing ranks."""


def _loaded(content: bytes) -> Mapping[str, Any]:
    try:
        return mapping(json.loads(content))
    except ValueError:
        return mapping(json.loads(_MISSING_COMMA.sub(rb"\1,\2", content)))


def _without_prefixes(report: str) -> str:
    """Return the newest report in a text, without Ray's prefixes of lines from a worker or driver."""
    lines = plain(report.encode("utf-8", "replace")).decode("utf-8", "replace").splitlines()
    if not any(line.startswith("Communicators...") for line in lines):
        lines = [peel(line).text for line in lines]
    newest = max((at for at, line in enumerate(lines) if line.startswith("Job summary")), default=0)
    return "\n".join(lines[newest:])


def of_text(report: str) -> tuple[list[Communicator], int]:
    """Return the communicators in a report, and the job's number of GPUs (0 if unknown)."""
    sizes: dict[int, int] = {}
    found: dict[str, Communicator] = {}
    classes: dict[tuple[str, str], list[tuple[int, int, list[int]]]] = {}
    gpus, in_summary = 0, False
    one, kind, block = None, "", ""
    for line in report.splitlines():
        if line.startswith("Job summary"):
            in_summary = True
        elif line.startswith("Communicators"):
            in_summary = False
        if in_summary and _TOTALS.match(line):
            gpus = int(line.split()[-1])
        if row := _ROW.match(line):
            sizes[int(row[1])] = int(row[3])
        elif head := _BLOCK.match(line):
            name, kind, block = f"#{head[1]}-{head[2]} {head[3]}", "", head[4]
            size = min(sizes.get(int(head[1]), 0), MAX_RANKS)
            one = found.setdefault(name, Communicator(name, size)) if size else None
        elif one is None or not line.startswith(" "):
            one = one if line.startswith(" ") or block == "MISMATCH" else None
        elif block == "INCOMPLETE":
            _take_missing(one, line)
        elif counts := _COUNTS.search(line):
            kind = counts[1]
        elif kind:
            _take_class(classes.setdefault((one.name, kind), []), line)
    for (name, kind), of_kind in classes.items():
        _assign(found[name], kind, of_kind)
    return list(found.values()), gpus


def _take_missing(one: Communicator, line: str) -> None:
    if listed := _LISTED.match(line):
        one.missing[int(listed[1])] = listed[2]
    elif numbers := _MISSING.match(line):
        one.missing |= {int(number): "" for number in numbers[1].split(",") if number.strip()}


def _take_class(classes: list[tuple[int, int, list[int]]], line: str) -> None:
    """Add a class: (number of ranks, number of operations, listed ranks)."""
    if of_class := _CLASS.match(line):
        classes.append((int(of_class[1]), int(of_class[2] or 0), []))
    elif alone := _ALONE.match(line):
        classes.append((1, int(alone[2] or 0), [int(alone[1])]))
    elif (listed := _LISTED.match(line)) and classes:
        classes[-1][2].append(int(listed[1]))


def _assign(one: Communicator, kind: str, classes: Sequence[tuple[int, int, list[int]]]) -> None:
    listed = {rank: value for _, value, ranks in classes for rank in ranks}
    unlisted = [value for count, value, ranks in classes if len(ranks) < count]
    if len(unlisted) > 1:
        one.unclear.add(kind)
        return
    others = (rank for rank in range(one.size) if rank not in listed and rank not in one.missing)
    one.counts[kind] = dict(sorted({**listed, **dict.fromkeys(others, unlisted[0] if unlisted else -1)}.items()))


def of_json(value: Mapping[str, Any]) -> tuple[list[Communicator], int]:
    """Return the same from RAS's JSON, which has every rank with all its counts."""
    found = []
    for at, record in enumerate(mappings(value.get("communicators"))):
        one = Communicator(f"#{at} {str(record.get('hash', ''))[:40]}", whole(record.get("size")))
        for rank in mappings(record.get("ranks")):
            number = whole(rank.get("rank"))
            one.devices[number] = _device(rank)
            for kind, count in mapping(rank.get("collective_counts")).items():
                one.counts.setdefault(str(kind)[:40], {})[number] = whole(count)
        for rank in mappings(record.get("missing_ranks")):
            number = whole(rank.get("rank"))
            one.devices[number] = _device(rank)
            if any(value is True for value in mapping(rank.get("status")).values()):
                one.missing[number] = "process {1} on {0}, GPU {2}".format(*_device(rank))
        found.append(one)
    return found, len({device for one in found for device in one.devices.values()})


def _device(rank: Mapping[str, Any]) -> tuple[Any, ...]:
    device = rank.get("nvml_dev", rank.get("cuda_dev"))
    return str(rank.get("host", ""))[:80], whole(rank.get("pid")), whole(device)


_KEPT_CALLS: Final = 64
_ONE_QUERY: Final = (
    "one answer of RAS cannot separate a hang from a job that runs: ask again, and see whether the counts stop growing"
)


def read_ras(source: Path, out: Path, *, rank_hint: int | None = None) -> FragmentInfo:  # noqa: ARG001
    """Write an empty fragment `out`, and return the progress of ranks that differ according to RAS.

    Ranks are the job's if a communicator has all its GPUs, and are translated to these if RAS lists all; others are
    reported in a warning. Raises InputError if JSON is damaged, NotATraceError if no communicator is listed.
    """
    communicators, gpus, asked_at = answer_of(source)
    if not gpus or gpus > MAX_RANKS:
        raise NotATraceError("it is no answer of RAS: it does not say how many GPUs the job has")
    progress: dict[int, list[GroupProgress]] = {rank: [] for rank in range(gpus)}
    warnings = [short_warning(ONE_QUERY, _ONE_QUERY)] if any(one.counts or one.missing for one in communicators) else []
    names = job_ranks(communicators, gpus)
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
        warnings=tuple(warnings),
        calls={rank: tuple(groups) for rank, groups in progress.items()},
        asked_at=asked_at,
    )
    write_fragment(out, (), info)
    return info


def job_ranks(communicators: Sequence[Communicator], gpus: int) -> dict[str, dict[int, int]]:
    """Return communicator → its ranks → the job's, which are those of a communicator of all GPUs."""
    of_all = next((one for one in communicators if one.size == gpus), None)
    if of_all is None:
        return {}
    job_rank = {device: rank for rank, device in of_all.devices.items() if any(device)}
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
    text = f"the ranks of communicator {one.name} have launched different numbers of {kind}, and it is unknown which"
    return short_warning("ranks_untold", f"{text}: ask with ncclras -v")


def _untranslated(one: Communicator) -> Iterator[KairWarning]:
    """Yield a warning about ranks that are behind in a communicator whose ranks in the job are unknown."""
    for kind, fewer, _ in one.behind():
        text = (
            f"of communicator {one.name} rank {listed(list(fewer))} has launched fewer {kind} than the others; "
            "it is unknown which rank of the job that is (ncclras -v -f json says)"
        )
        yield short_warning("ranks_untold", text)
    if one.missing:
        what = ", ".join(filter(None, one.missing.values()))[:100]
        text = f"of communicator {one.name} rank {listed(list(one.missing))} does not answer ({what})"
        yield short_warning("ranks_untold", f"{text}; it is unknown which rank of the job that is")
