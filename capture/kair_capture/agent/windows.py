"""Sampled windows: the files that ranks leave become one fragment of the operations table."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kair_capture.clocks.fit import ClockFit
from kair_engine.errors import InputError
from kair_engine.readers.kineto.reader import read_kineto
from kair_engine.readers.xplane.reader import read_xplane
from kair_engine.trace.format import FragmentWriter
from kair_engine.trace.model import FragmentInfo, KairWarning, StepTimes, sent_of_all

_NAME: Final = re.compile(r"rank-(\d{1,7})-(\d{1,10})-(\d{1,10})(\.json|\.xplane\.pb)")


@dataclass(frozen=True)
class WindowFile:
    """What a rank left of a window."""

    path: Path
    rank: int
    first: int
    last: int


@dataclass(frozen=True)
class Converted:
    """A fragment that is written, and the windows that could not be read."""

    path: Path
    ranks: tuple[int, ...]
    first: int
    last: int


def window_files(folder: Path) -> list[WindowFile]:
    """Those that are whole; they are renamed into their place."""
    try:
        matches = [(path, _NAME.fullmatch(path.name)) for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    found = [WindowFile(path, *map(int, match.groups()[:3])) for path, match in matches if match]
    return sorted(found, key=lambda one: (one.first, one.last, one.rank))


@dataclass(frozen=True)
class HostOfWindow:
    """What the files themselves do not say."""

    host: str
    world_size: int | None
    fit: ClockFit | None
    """This host's clock minus the coordinator's."""
    drops: int
    missing: frozenset[int] = frozenset()
    """Its ranks that were asked for the window, and left nothing that can be read."""


def convert(
    files: Sequence[WindowFile], work: Path, about: HostOfWindow
) -> tuple[list[Converted], list[tuple[WindowFile, str]]]:
    """One fragment in the folder `work`, and the files that are no traces, with the reason.

    There are several fragments where ranks state different process groups. Raises OSError when the disk is full.
    """
    parsed: list[tuple[WindowFile, Path, FragmentInfo]] = []
    refused = []
    for file in files:
        out = work / f"{file.path.stem}.parquet"
        try:
            parsed.append((file, out, _read(file, out, about)))
        except InputError as error:
            refused.append((file, str(error)))
    about = replace(about, missing=about.missing - {file.rank for file, _, _ in parsed})
    alike: dict[str, list[tuple[WindowFile, Path, FragmentInfo]]] = {}
    for one in parsed:
        info = one[2]
        alike.setdefault(repr((info.world_size, info.device, info.only_group, info.process_groups)), []).append(one)
    found = [
        _joined(group, work / f"window-{files[0].first}-{files[0].last}-{number}.parquet", about)
        for number, group in enumerate(alike.values())
    ]
    for _, out, _ in parsed:
        out.unlink()
    return found, refused


def _read(file: WindowFile, out: Path, about: HostOfWindow) -> FragmentInfo:
    """Raises InputError where the file is no trace, or states to be of another rank than its name."""
    if file.path.suffix == ".pb":
        info = read_xplane(file.path, out, rank_hint=file.rank)
        # A device is a rank: those of processes with several each count on from the ones before.
        if len(info.ranks) > 1:
            info = read_xplane(file.path, out, rank_hint=file.rank * len(info.ranks))
    else:
        info = read_kineto(file.path, out, rank_hint=file.rank)
        if info.ranks != (file.rank,):
            raise InputError(f"the window of rank {file.rank} states to be of rank {info.ranks[0]}")
    hosts = dict.fromkeys(info.ranks, about.host)
    return replace(info, rank_known=True, world_size=info.world_size or about.world_size, hosts=hosts)


def _joined(group: Sequence[tuple[WindowFile, Path, FragmentInfo]], out: Path, about: HostOfWindow) -> Converted:
    """All ranks' row groups, by their first step and rank, their times shifted to the coordinator's clock."""
    first, last = group[0][0].first, group[0][0].last
    infos = [info for _, _, info in group]
    shift = _shift(infos, about.fit)
    readers = [pq.ParquetFile(path) for _, path, _ in group]
    order = sorted(
        (int(reader.metadata.row_group(at).column(0).statistics.min), info.ranks[0], place, at)
        for place, (reader, info) in enumerate(zip(readers, infos, strict=True))
        for at in range(reader.metadata.num_row_groups)
    )
    with FragmentWriter(out) as writer:
        for _, _, place, at in order:
            writer.write(_shifted(readers[place].read_row_group(at), shift))
        joined = joined_info(infos, f"host={about.host}/steps-{first}-{last}", shift)
        writer.commit({**msgspec.to_builtins(joined, str_keys=True), "capture": _metadata(about, shift, first, last)})
    return Converted(out, joined.ranks, first, last)


def _shift(infos: Sequence[FragmentInfo], fit: ClockFit | None) -> int:
    """ns to subtract. A clock that is within its bound of the coordinator's stays as it is."""
    if fit is None or not all(info.absolute_time for info in infos):
        return 0
    at = min(begin for info in infos for begin in info.step_times.begin_ns)
    offset = fit.offset_at(at)
    return round(offset) if abs(offset) > fit.bound_at(at) else 0


def _shifted(table: pa.Table, shift: int) -> pa.Table:
    if not shift:
        return table
    at = table.schema.get_field_index("start_ns")
    return table.set_column(at, table.schema.field(at), pc.subtract(table["start_ns"], pa.scalar(shift, pa.int64())))


def joined_info(infos: Sequence[FragmentInfo], source: str, shift: int) -> FragmentInfo:
    """One fragment's info; what ranks must state alike is the first one's."""
    times = StepTimes.of_rows(row for info in infos for row in info.step_times.rows())
    warnings: dict[str, KairWarning] = {}
    for info in infos:
        for warning in info.warnings:
            warnings.setdefault(warning.code, warning)
    return replace(
        infos[0],
        source=source,
        ranks=tuple(sorted(rank for info in infos for rank in info.ranks)),
        hosts={rank: host for info in infos for rank, host in info.hosts.items()},
        has_device=any(info.has_device for info in infos),
        absolute_time=all(info.absolute_time for info in infos),
        operations=sum(info.operations for info in infos),
        layout=next((info.layout for info in infos if info.layout is not None), None),
        step_times=replace(times, begin_ns=tuple(begin - shift for begin in times.begin_ns)),
        warnings=tuple(warnings.values()),
        limits={rank: of_rank for info in infos for rank, of_rank in info.limits.items()},
        sent=sent_of_all(infos),
    )


def _metadata(about: HostOfWindow, shift: int, first: int, last: int) -> dict[str, Any]:
    """What a fragment says of its capture, beside what it holds."""
    fit = about.fit
    clock = None if fit is None else {
        "at_ns": fit.at_ns, "offset_ns": fit.offset_ns, "drift": fit.drift, "bound_ns": fit.bound_ns,
    }  # fmt: skip
    return {
        "first": first,
        "last": last,
        "clock": clock,
        "shifted_ns": shift,
        "drops": about.drops,
        "missing": sorted(about.missing),
    }
