"""Reads PyTorch profiler (Kineto) traces: one JSON file to one fragment of the operations table.

Two passes keep memory independent of the file's size. The first decodes the text into records, finds the step windows
and spills the rest; the second assigns every record to its step and writes the steps one by one.

Also splits files that hold several ranks' recordings, by the rank of each thread and stream.
"""

import gc
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from kair_engine.arrays import Bools, Floats, is_one_of
from kair_engine.errors import InputError
from kair_engine.frozen import dataclass
from kair_engine.readers.blocks import BLOCK_SIZE, BlockReader
from kair_engine.readers.json_values import listing, mapping
from kair_engine.readers.kineto.captured import NO_TIMES, StepProcessor, limits_of, processor_of, sent_of
from kair_engine.readers.kineto.classify import DEVICE_CATEGORIES, Category
from kair_engine.readers.kineto.collectives import (
    group_names,
    layout_of,
    number_collectives,
    only_group,
    process_groups,
    same_batches,
)
from kair_engine.readers.kineto.compiled.scanner import scan_of
from kair_engine.readers.kineto.event_stream import SCANNED_CHUNK_SIZE, EventStream
from kair_engine.readers.kineto.events import RECORD, Records, RowSpill, chosen, joined
from kair_engine.readers.kineto.identity import busiest_device, host_process, identity_of
from kair_engine.readers.kineto.step_table import LaunchTables, StepAssembler, find_launches
from kair_engine.readers.kineto.steps import OUTSIDE, Int64s, StepFinder, StepWindows
from kair_engine.readers.kineto.tables import EventTables
from kair_engine.readers.launch_queue import launched_before
from kair_engine.readers.paths import MAX_RANKS, host_of, rank_from_name
from kair_engine.readers.rank_identity import by_rank, one_line
from kair_engine.trace.format import QUEUE_FULL, FragmentWriter
from kair_engine.trace.model import NOT_RECORDED, FragmentInfo, KairWarning, StepTimes, listed, short_warning

Process = int | str
_TOLERANCE: Final = 0.02
"""Tolerated deficit in the share of kernels that launches explain, if processes and devices are paired in order."""
_MOST_TRIED: Final = 7
"""Devices for which every order is tried; with more only each device's own best process."""


@dataclass(frozen=True)
class Member:
    """One rank's part of a file: its steps, and its tracks (None: all)."""

    windows: StepWindows
    tracks: Bools | None = None

    def own(self, batches: Iterable[Records]) -> Iterable[Records]:
        """Yield this rank's part of each batch."""
        if self.tracks is None:
            return batches
        return (batch[self.tracks[batch["track"]]] for batch in batches)


def members(steps: StepFinder, tables: EventTables, batches: Iterable[Records], source: str) -> tuple[Member, ...]:
    """Return the ranks in a file in which several processes mark the same steps, in the order of process numbers.

    Raises InputError if it is unclear which process a device belongs to.
    """
    processes = sorted(steps.processes, key=lambda one: (isinstance(one, str), one))
    tracks = tables.tracks.items_
    on_device = np.array([track.category in DEVICE_CATEGORIES for track in tracks], dtype=bool)
    devices = sorted({track.device for track in tracks if track.category in DEVICE_CATEGORIES}, key=str)
    owner = _owners(processes, devices, tables, batches)
    if owner is None:
        text = f"{source} holds the recordings of {len(processes)} processes merged into one"
        way_out = "give the files of the single ranks, in one folder"
        raise InputError(f"{text}, and does not say whose each kernel is", way_out)
    found = []
    for process in processes:
        own = [
            owner.get(track.device) == process if device else track.device == process
            for track, device in zip(tracks, on_device.tolist(), strict=True)
        ]
        found.append(Member(steps.windows_of(process), np.array(own, dtype=bool)))
    return tuple(found)


def _owners(
    processes: Sequence[Process], devices: Sequence[Process], tables: EventTables, batches: Iterable[Records]
) -> dict[Process, Process] | None:
    """Return device → the process that launches its operations; None if that is unclear."""
    if not devices:
        return {}
    if len(devices) < len(processes):
        return None
    explained = _explained(processes, devices, tables, batches)
    in_order = sorted(range(len(devices)), key=lambda at: (isinstance(devices[at], str), devices[at]))
    if len(devices) == len(processes):
        # Ranks of one program number their launches alike: then any pairing, such as in order, is as good.
        place = np.empty(len(devices), dtype=np.int64)
        place[in_order] = np.arange(len(devices))
        if len(devices) <= _MOST_TRIED:
            best = max(permutations(range(len(processes))), key=lambda of: _sum(explained, of))
        else:
            best = tuple(explained.argmax(axis=1).tolist())
        if _sum(explained, place.tolist()) < _sum(explained, best) - _TOLERANCE * len(devices):
            place = np.array(best)
        if len(set(place.tolist())) < len(place):
            return None
        return {device: processes[at] for device, at in zip(devices, place.tolist(), strict=True)}
    return {device: processes[int(row.argmax())] for device, row in zip(devices, explained, strict=True)}


def _sum(explained: Floats, of: Collection[int]) -> float:
    return float(explained[np.arange(len(explained)), list(of)].sum())


def _explained(
    processes: Sequence[Process], devices: Sequence[Process], tables: EventTables, batches: Iterable[Records]
) -> Floats:
    """Return (devices × processes): the share of a device's kernels for which the process has an earlier launch."""
    tracks = tables.tracks.items_
    category, device = tables.categories(), [track.device for track in tracks]
    rows = np.concatenate([batch[batch["correlation"] >= 0] for batch in batches])
    kinds = category[rows["track"]]
    calls, kernels = rows[kinds == Category.RUNTIME], rows[is_one_of(kinds, DEVICE_CATEGORIES)]
    result = np.zeros((len(devices), len(processes)))
    for column, process in enumerate(processes):
        own = calls[_of(calls, device, process)]
        own = own[np.argsort(own["correlation"], kind="stable")]
        for row, one in enumerate(devices):
            result[row, column] = _share_launched(own, kernels[_of(kernels, device, one)])
    return result


def _of(rows: Records, device: Sequence[Process], wanted: Process) -> Bools:
    return np.asarray(np.array([one == wanted for one in device], dtype=bool)[rows["track"]])


def _share_launched(calls: Records, kernels: Records) -> float:
    if not len(calls) or not len(kernels):
        return 0.0
    ids: Int64s = calls["correlation"]
    at = np.minimum(np.searchsorted(ids, kernels["correlation"]), len(calls) - 1)
    known = (ids[at] == kernels["correlation"]) & (calls["start"][at] <= kernels["start"])
    return float(known.mean())


# Microseconds since 1970 passed this in 1973; clocks that start at boot do not reach it.
_EPOCH_NS: Final = 10**17
_BATCH: Final = 1 << 17
"""Records: NumPy requests huge pages for arrays of 4 MB, which are cleared in a fraction of the time."""
_MAX_BASE_NS: Final = 2 * 10**18
_Value = TypeVar("_Value")
_LARGEST_STEP: Final = 2_000_000
"""Operations of a step on one rank. Analyses hold a whole step: 700 bytes for each of its operations."""


@dataclass(frozen=True)
class _Recording:
    """The results of the first pass."""

    header: dict[str, Any]
    tables: EventTables
    members: tuple[Member, ...]
    """One for each rank: several if a file holds them merged."""
    device_rows: Mapping[int, int]
    """Track → its number of records, for devices' tracks."""
    warnings: tuple[KairWarning, ...]


def read_kineto(source: Path, out: Path, *, rank_hint: int | None = None) -> FragmentInfo:
    """Write `source` as the fragment `out`, and return its description.

    The rank is the one in the trace, else `rank_hint`, else the one in its name, else 0 with `rank_known` false. Raises
    NotATraceError if the file is something else, InputError if it cannot be read or holds no operations, OSError if the
    disk is full.
    """
    with _collector_paused(), closing(RowSpill(out.parent)) as spill:
        recording = _first_pass(source, spill)
        return _second_pass(source, out, spill, recording, rank_hint)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the cyclic collector: decoding makes millions of objects and no cycles, and it would triple the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _first_pass(source: Path, spill: RowSpill) -> _Recording:
    tables, steps = EventTables(), StepFinder()
    scan = scan_of(tables)
    # A block of a chunk's size is not copied.
    blocks = BlockReader(source, block_size=SCANNED_CHUNK_SIZE if scan else BLOCK_SIZE)
    stream = EventStream(iter(blocks), scan=scan)
    taken = (tables.records(events) if isinstance(events, list) else events for events in stream)
    for batch in _merged(taken):
        steps.add(batch, tables)
        spill.append(batch)
    windows = steps.windows(spill, tables)
    if windows is None and tables.without_category:
        text = f"{source.name}: no event has a category (cat), so that kernels and operators look alike"
        raise InputError(text, "record with torch.profiler; exports of other profilers are not read")
    if windows is None:
        raise InputError(f"{source.name} holds no operations", "record with torch.profiler, activities CPU and CUDA")
    several = len(steps.processes) > 1
    found = members(steps, tables, spill, source.name) if several else (Member(windows),)
    warnings = _warnings(source, blocks, stream, tables, windows)
    return _Recording(stream.header, tables, found, steps.device_rows, warnings)


def _merged(batches: Iterable[Records]) -> Iterator[Records]:
    """Yield the same records in fewer, larger batches."""
    held: list[Records] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += len(batch)
        if size >= _BATCH:
            yield joined(held)
            held, size = [], 0
    if held:
        yield joined(held)


def _warnings(
    source: Path, blocks: BlockReader, stream: EventStream, tables: EventTables, windows: StepWindows
) -> tuple[KairWarning, ...]:
    found = []
    if blocks.damaged or not stream.complete:
        text = f"{source.name} is cut off at byte {blocks.bytes_read} of its text; the events before it are used"
        found.append(short_warning("truncated_file", text))
    bad = stream.bad_events + tables.bad_events + tables.unpaired
    if bad:
        text = f"{bad} events of {source.name} have no valid time or duration and are left out"
        found.append(short_warning("bad_events", text))
    if tables.without_category:
        text = f"{tables.without_category} events of {source.name} have no category (cat) and are left out"
        found.append(short_warning("no_category", text))
    if tables.names.is_full:
        text = f"{source.name} has more names of operations than can be kept; beyond {len(tables.names):,} they are one"
        found.append(short_warning("many_names", text))
    if windows.inferred_from is not None:
        sign = f"its {len(windows.number)} steps are found by {windows.inferred_from}"
        text = f"{source.name} marks no steps (ProfilerStep#N); {sign}"
        found.append(short_warning("steps_inferred", text))
    if not windows.marked:
        text = f"{source.name} marks no steps (ProfilerStep#N); the whole recording counts as one step"
        found.append(short_warning("no_step_marks", text))
    return tuple(found)


def _second_pass(
    source: Path, out: Path, spill: RowSpill, recording: _Recording, rank_hint: int | None
) -> FragmentInfo:
    header, members = recording.header, recording.members
    distributed = mapping(header.get("distributedInfo"))
    ranks, is_known = _ranks(source, distributed, rank_hint, len(members))
    base_ns = _base_ns(header)
    # The device's operations come last in a file: one that was cut off may have lost them all.
    lost_device = _device(header) is not None and any(w.code == "truncated_file" for w in recording.warnings)
    # A merged file's groups and places belong to one of its ranks only.
    alone = len(members) == 1
    if alone:
        number_collectives(header, ranks[0], recording.tables, spill, base_ns)
    groups, group = process_groups(distributed, ranks[0]) if alone else (), only_group(distributed)
    _ = recording.tables.names[QUEUE_FULL]  # names of new tables need their numbers beforehand
    assemblers = [
        StepAssembler(
            recording.tables,
            member.windows,
            rank=rank,
            base_ns=base_ns,
            default_group=group,
            groups_listed=bool(groups),
            lost_device=lost_device,
            own=member.tracks,
        )
        for rank, member in zip(ranks, members, strict=True)
    ]
    operations = [np.zeros(len(member.windows.number), np.int64) for member in members]
    with closing(RowSpill(out.parent)) as by_step, FragmentWriter(out) as writer:
        partitions = [_partition(spill, by_step, recording.tables, member) for member in members]
        parts = [of_member for of_member, _, _ in partitions]
        for assembler, (_, launches, _) in zip(assemblers, partitions, strict=True):
            assembler.take_for_waits(launches.blocking)
        for member, of_member in zip(members, parts, strict=True):
            _require_moderate(source, by_step, of_member, member.windows)
        for _, at, step in sorted(_cells(members)):
            records = joined(by_step.read(part) for part in parts[at][step])
            table = assemblers[at].table(records, step)
            operations[at][step] = len(table) - 1
            writer.write(table)
        host = host_of(source, one_line(header.get("host_name")))
        windows = [member.windows for member in members]
        limits = limits_of(header) if alone else None
        sent = sent_of(header) if alone else ()
        before = sum(of_steps_before for _, _, of_steps_before in partitions)
        of_launches = (launched_before(source.name, before),) if before else ()
        info = FragmentInfo(
            source=str(source),
            format="kineto",
            ranks=tuple(ranks),
            rank_known=is_known,
            world_size=_count(distributed.get("world_size")),
            hosts=dict.fromkeys(ranks, host) if host else {},
            device=_device(header),
            has_device=any(assembler.has_device for assembler in assemblers),
            absolute_time=min(int(one.begin.min()) for one in windows) + base_ns > _EPOCH_NS,
            operations=int(sum(of_rank.sum() for of_rank in operations)),
            layout=layout_of(distributed, ranks[0]) if alone else None,
            step_times=_step_times(windows, assemblers, operations, ranks, processor_of(header) if alone else {}),
            warnings=(*recording.warnings, *_merged_warning(source, ranks), *of_launches),
            only_group=group,
            group_names=group_names(distributed, ranks[0]) if alone else {},
            process_groups=groups if any(assembler.groups_missing for assembler in assemblers) else (),
            limits={ranks[0]: limits} if limits is not None else {},
            sent={ranks[0]: sent} if sent else {},
            peers=_known(ranks, [assembler.peers for assembler in assemblers]),
            first_send=_known(ranks, [assembler.first_send for assembler in assemblers]),
            same_batches={ranks[0]: same_batches(distributed, ranks[0])} if alone else {},
            launch_queue=_known(ranks, [launches.queue for _, launches, _ in partitions]),
            identity=by_rank(
                identity_of(
                    header,
                    rank,
                    host_process(recording.tables, member.windows.track),
                    busiest_device(recording.tables, recording.device_rows, member.tracks),
                )
                for rank, member in zip(ranks, members, strict=True)
            ),
        )
        writer.commit(info)
    return info


def _known(ranks: Sequence[int], values: Sequence[_Value | None]) -> dict[int, _Value]:
    return {rank: value for rank, value in zip(ranks, values, strict=True) if value is not None}


def _cells(members: Sequence[Member]) -> Iterator[tuple[int, int, int]]:
    """Yield (step number, index of a rank, index of the step on it)."""
    for place, member in enumerate(members):
        for index, number in enumerate(member.windows.number.tolist()):
            yield number, place, index


def _ranks(source: Path, distributed: Mapping[str, Any], rank_hint: int | None, members: int) -> tuple[list[int], bool]:
    """Return the ranks in the file, and whether they are known: as stated, else as hinted, else by file name.

    A merged file has consecutive ranks of its host; they begin at the stated rank if that is a multiple of their
    number.
    """
    stated, world_size = _count(distributed.get("rank")), _count(distributed.get("world_size"))
    if members > 1:
        first = stated if stated is not None and stated % members == 0 else 0
        return list(range(first, first + members)), True
    known = (rank for rank in (rank_hint, rank_from_name(source)) if rank is not None)
    named = next((rank for rank in known if rank < (world_size or MAX_RANKS)), None)
    found = named if stated is None else stated
    return [found or 0], found is not None


def _merged_warning(source: Path, ranks: Sequence[int]) -> Iterator[KairWarning]:
    if len(ranks) > 1:
        text = f"{source.name} holds {len(ranks)} processes; in the order of their numbers they count as rank "
        yield short_warning("merged_file", text + listed(list(ranks)))


def _partition(
    spill: RowSpill, by_step: RowSpill, tables: EventTables, member: Member
) -> tuple[list[list[int]], LaunchTables, int]:
    """Move every record of a rank to its step; return the batches of `by_step` that make up each.

    Also returns the launches by which steps were assigned, and how many records belong to steps before the recording.
    """
    windows = member.windows
    launches = find_launches(member.own(spill), tables, windows)
    empty, launched_before = by_step.append(np.empty(0, RECORD)), 0
    parts: list[list[int]] = [[empty] for _ in windows.number]
    # A single rank's records are read for the last time.
    for records in spill.drained() if member.tracks is None else member.own(spill):
        steps, before = launches.step_indices(records, tables)
        launched_before += before
        batch, steps = launches.with_waits(records, steps, tables)
        if np.any(steps[1:] < steps[:-1]):
            order = np.argsort(steps, kind="stable")
            batch, steps = chosen(batch, order), steps[order]
        bounds = np.flatnonzero(np.diff(steps, prepend=OUTSIDE - 1, append=OUTSIDE - 1))
        for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            if steps[begin] != OUTSIDE:
                parts[int(steps[begin])].append(by_step.append(batch[begin:end]))
    return parts, launches, launched_before


def _require_moderate(source: Path, by_step: RowSpill, parts: list[list[int]], windows: StepWindows) -> None:
    """Raise InputError if a step is too large for memory."""
    sizes = [sum(map(by_step.size, numbers)) for numbers in parts]
    largest = max(sizes, default=0)
    if largest <= _LARGEST_STEP:
        return
    which = f"step {windows.number[sizes.index(largest)]}" if windows.marked else "without marks of steps"
    text = f"{source.name}: {which} has {largest:,} operations, more than {_LARGEST_STEP:,} cannot be analysed"
    raise InputError(text, "call profiler.step() in every step" if not windows.marked else "record fewer threads")


def _step_times(
    windows: Sequence[StepWindows],
    assemblers: Sequence[StepAssembler],
    operations: Sequence[npt.NDArray[np.int64]],
    ranks: Sequence[int],
    processor: Mapping[int, StepProcessor],
) -> StepTimes:
    """Return the step times by rank, then by step."""
    rows: list[tuple[int, ...]] = []
    for rank, of_rank, assembler, counts in zip(ranks, windows, assemblers, operations, strict=True):
        order = np.argsort(of_rank.number, kind="stable")
        numbers, begins = of_rank.number[order].tolist(), (of_rank.begin[order] + assembler.base_ns).tolist()
        lasted, counted = (of_rank.end - of_rank.begin)[order].tolist(), counts[order].tolist()
        times = zip([rank] * len(order), numbers, begins, lasted, counted, strict=True)
        on_device = [assembler.on_device.get(int(at), (NOT_RECORDED, NOT_RECORDED)) for at in order]
        rows += (
            (*one, *processor.get(one[1], NO_TIMES), *device) for one, device in zip(times, on_device, strict=True)
        )
    return StepTimes.of_rows(rows)


def _base_ns(header: dict[str, Any]) -> int:
    """Return `baseTimeNanoseconds`, which newer Kineto subtracts from every time."""
    value = header.get("baseTimeNanoseconds")
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        value = int(value)
    return value if isinstance(value, int) and 0 <= value < _MAX_BASE_NS else 0


def _device(header: dict[str, Any]) -> str | None:
    first = listing(header.get("deviceProperties"))[:1]
    return one_line(mapping(first[0]).get("name")) if first else None


def _count(value: object) -> int | None:
    """Return a rank or a world size, if `value` can be one."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_RANKS else None
