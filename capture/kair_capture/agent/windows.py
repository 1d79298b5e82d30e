"""Converts sampled windows: the files that ranks leave become one fragment of the operations table.

A separate thread does it, because reading a trace takes seconds and draining must not wait.
"""

import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kair_capture.agent.spool import Spool
from kair_capture.agent.step_rows import ScopeSums
from kair_capture.clocks import ClockFit
from kair_capture.files import remove_beyond
from kair_engine.errors import InputError
from kair_engine.readers.kineto.reader import read_kineto
from kair_engine.trace.format import FragmentWriter
from kair_engine.trace.model import FragmentInfo, KairWarning, StepTimes, sent_of_all

_NAME: Final = re.compile(r"rank-(\d{1,7})-(\d{1,10})-(\d{1,10})(\.json|\.xplane\.pb)")


@dataclass(frozen=True)
class WindowFile:
    """A rank's file of a window."""

    path: Path
    rank: int
    first: int
    last: int


@dataclass(frozen=True)
class Converted:
    """A fragment that was written."""

    path: Path
    ranks: tuple[int, ...]
    first: int
    last: int


def window_files(folder: Path) -> list[WindowFile]:
    """Return the complete files; they are renamed when finished."""
    try:
        matches = [(path, _NAME.fullmatch(path.name)) for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    found = [WindowFile(path, *map(int, match.groups()[:3])) for path, match in matches if match]
    return sorted(found, key=lambda one: (one.first, one.last, one.rank))


@dataclass(frozen=True)
class HostOfWindow:
    """What the files themselves do not contain."""

    host: str
    world_size: int | None
    fit: ClockFit | None
    """This host's clock minus the coordinator's."""
    drops: int
    missing: frozenset[int] = frozenset()
    """Ranks that were asked for the window and left nothing readable."""
    ahead_ns: int = 0
    """Correction of a host clock that was set back, included in `fit`."""


def convert(
    files: Sequence[WindowFile], work: Path, about: HostOfWindow
) -> tuple[list[Converted], list[tuple[WindowFile, str]]]:
    """Return fragments in the folder `work`, and the files that are not traces, with the reason.

    There are several fragments if ranks state different process groups. Raises OSError if the disk is full.
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
    groups: dict[str, list[tuple[WindowFile, Path, FragmentInfo]]] = {}
    for one in parsed:
        groups.setdefault(alike(one[2]), []).append(one)
    found = [
        _joined(group, work / f"window-{files[0].first}-{files[0].last}-{number}.parquet", about)
        for number, group in enumerate(groups.values())
    ]
    for _, out, _ in parsed:
        out.unlink()
    return found, refused


def _read(file: WindowFile, out: Path, about: HostOfWindow) -> FragmentInfo:
    """Read one file. Raises InputError if it is not a trace, or states another rank than its name."""
    if file.path.suffix == ".pb":
        from kair_engine.readers.xplane.reader import read_xplane  # with protobuf, which few jobs need

        info = read_xplane(file.path, out, rank_hint=file.rank)
        # Each device is a rank: with several per process, numbers continue from process to process.
        if len(info.ranks) > 1:
            info = read_xplane(file.path, out, rank_hint=file.rank * len(info.ranks))
    else:
        info = read_kineto(file.path, out, rank_hint=file.rank)
        if info.ranks != (file.rank,):
            raise InputError(f"the window of rank {file.rank} states to be of rank {info.ranks[0]}")
    hosts = dict.fromkeys(info.ranks, about.host)
    return replace(info, rank_known=True, world_size=info.world_size or about.world_size, hosts=hosts)


def _joined(group: Sequence[tuple[WindowFile, Path, FragmentInfo]], out: Path, about: HostOfWindow) -> Converted:
    """Join files to one fragment, its times shifted to the coordinator's clock."""
    first, last = group[0][0].first, group[0][0].last
    shift = _shift([info for *_, info in group], about)
    more = {"capture": _metadata(about, shift, first, last)}
    source = f"host={about.host}/steps-{first}-{last}"
    joined = join_fragments([(path, info) for _, path, info in group], out, source, shift=shift, more=more)
    return Converted(out, joined.ranks, first, last)


def join_fragments(
    group: Sequence[tuple[Path, FragmentInfo]],
    out: Path,
    source: str,
    *,
    shift: int = 0,
    more: Mapping[str, object] = MappingProxyType({}),
) -> FragmentInfo:
    """Write all row groups, by first step and rank, into the file `out`. Raises OSError.

    `shift` (ns) is subtracted from all times; `more` is added to the file's metadata.
    """
    readers = [pq.ParquetFile(path) for path, _ in group]
    order = sorted(
        (*(int(groups.column(column).statistics.min) for column in (0, 1)), place, at)
        for place, reader in enumerate(readers)
        for at in range(reader.metadata.num_row_groups)
        for groups in [reader.metadata.row_group(at)]
    )
    info = joined_info([one for _, one in group], source, shift)
    with FragmentWriter(out) as writer:
        for *_, place, at in order:
            writer.write(_shifted(readers[place].read_row_group(at), shift))
        writer.commit({**msgspec.to_builtins(info, str_keys=True), **more})
    return info


def alike(info: FragmentInfo) -> str:
    """Return a key that is equal for fragments that can be joined."""
    return repr((info.world_size, info.device, info.only_group, info.process_groups))


def _shift(infos: Sequence[FragmentInfo], about: HostOfWindow) -> int:
    """Return the ns to subtract; a clock within its bound of the coordinator's is left alone."""
    fit, ahead = about.fit, about.ahead_ns
    if not all(info.absolute_time for info in infos):
        return 0
    at = min(begin for info in infos for begin in info.step_times.begin_ns) + ahead
    if fit is None or abs(offset := fit.offset_at(at)) <= fit.bound_at(at):
        return -ahead
    return round(offset) - ahead


def _shifted(table: pa.Table, shift: int) -> pa.Table:
    if not shift:
        return table
    at = table.schema.get_field_index("start_ns")
    return table.set_column(at, table.schema.field(at), pc.subtract(table["start_ns"], pa.scalar(shift, pa.int64())))


def joined_info(infos: Sequence[FragmentInfo], source: str, shift: int) -> FragmentInfo:
    """Return the info of a joined fragment; what ranks must agree on is taken from the first."""
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
    """Return a fragment's metadata about its capture."""
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


_PATIENCE_S: Final = 5.0
"""A rank later than this is delivered in a separate part of the window."""
_LOOK_S: Final = 0.2
_MOST_BYTES: Final = 256 << 20
"""Most bytes of windows that wait while the disk is full."""
_UNFINISHED: Final = re.compile(r"\.?((rank|window)-\d+-\d+-.+|scopes)\.parquet(\..+)?")


class HostState(Protocol):
    """What a conversion asks of the agent."""

    def about(self, first: int) -> HostOfWindow:
        """Return what files of the window from step `first` on do not contain; `missing` has all ranks asked."""

    def expected(self, first: int) -> frozenset[int]:
        """Return the living ranks that were asked for the window from step `first` on."""

    def keep(self, file: Path, first: int) -> None:
        """Keep the profiler's own file if stacks, memory or shapes were requested. Raises OSError."""


class Conversion:
    """Converts files from the folder of windows into the spool."""

    def __init__(  # noqa: PLR0917  (each of another type)
        self, folder: Path, work: Path, spool: Spool, key: "KeyBox", host: HostState, scopes: ScopeSums
    ) -> None:
        self._folder, self._work, self._spool, self._key, self._host = folder, work, spool, key, host
        self._scopes = scopes
        self._hurries = False
        self.discarded = 0
        self.last_error = ""
        self._first_seen: dict[tuple[int, int], float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="conversion", daemon=True)

    def start(self) -> None:
        """Start, including windows that an earlier agent left."""
        self._work.mkdir(mode=0o700, exist_ok=True)
        # A custom run folder may already have a folder of this name with other content.
        for path in self._work.iterdir():
            if _UNFINISHED.fullmatch(path.name):
                path.unlink(missing_ok=True)
        self._thread.start()

    def stop(self, wait_s: float) -> None:
        """End after the current window."""
        self._ended.set()
        self._thread.join(wait_s)

    def hurry(self) -> None:
        """Deliver everything at once because the job is over, also what is normally delivered now and then."""
        self._hurries = True

    @property
    def waiting(self) -> int:
        """Return how many windows are not fragments yet."""
        return len({(file.first, file.last) for file in window_files(self._folder)})

    @property
    def is_idle(self) -> bool:
        """Return whether nothing deliverable waits."""
        return not self.waiting and not (self._key.key is not None and self._scopes.waiting)

    def _run(self) -> None:
        # Lowest priority for this thread: a trace takes seconds of CPU, and it is not urgent.
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        while not self._ended.wait(_LOOK_S):
            for files in self._ready(time.monotonic()):
                self._convert(files)
            self._deliver_scopes()

    def _deliver_scopes(self) -> None:
        if self._key.key is not None:
            try:
                self._scopes.deliver(self._spool, self._work, self._key.key, at_once=self._hurries)
            except OSError as error:
                self.last_error = str(error)  # disk full: the sums wait

    def _ready(self, now: float) -> list[list[WindowFile]]:
        """Return the windows that all ranks left, or have had time to."""
        windows: dict[tuple[int, int], list[WindowFile]] = {}
        for file in window_files(self._folder):
            windows.setdefault((file.first, file.last), []).append(file)
        self._first_seen = {key: self._first_seen.get(key, now) for key in windows}
        return [
            files
            for key, files in windows.items()
            if now - self._first_seen[key] > _PATIENCE_S or self._host.expected(key[0]) <= {file.rank for file in files}
        ]

    def _convert(self, files: list[WindowFile]) -> None:
        key = self._key.key
        if key is None:
            return  # the coordinator has not made it yet
        try:
            for file in files:
                self._host.keep(file.path, file.first)
            fragments, refused = convert(files, self._work, self._host.about(files[0].first))
            for fragment in fragments:
                self._spool.put(fragment.path, fragment.first, fragment.last, key)
        except OSError as error:
            # Disk full: windows wait here in memory, up to a limit.
            self.last_error = str(error)
            self.discarded += len(remove_beyond((file.path for file in window_files(self._folder)), _MOST_BYTES))
            return
        except Exception as error:  # a defect of a reader must not end the agent
            self.last_error = f"{type(error).__name__}: {error}"
            refused = [(file, self.last_error) for file in files]
        for _, why in refused:
            self.last_error = why
        self.discarded += len(refused)
        for file in files:
            file.path.unlink(missing_ok=True)


class KeyBox:
    """The job's key, once it exists."""

    key: bytes | None = None
