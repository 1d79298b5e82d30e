"""Writes a job as a gift: its fragments under pseudonyms in an archive, which Kair opens as it opens traces.

Times, kinds, phases, steps and ranks stay. Names, hosts, files and process groups are replaced; the earliest step
begins on the same day in every gift. Sizes and dimensions become 1 where all ranks give the same in all steps; others
are divided by their greatest common divisor. What else is known of hosts, devices and programs is left out, as are
logs, notes and evidence.
"""

import io
import tarfile
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from math import gcd
from pathlib import Path
from typing import IO, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kair_engine.errors import UsageError
from kair_engine.export.donation_names import Pseudonyms
from kair_engine.frozen import dataclass
from kair_engine.trace.format import FragmentWriter, read_metadata
from kair_engine.trace.identity import DeviceIdentity, RankIdentity
from kair_engine.trace.model import GIFT, NOT_RECORDED, FragmentInfo, KairWarning, ProcessGroup, Trace

SUFFIX: Final = ".tar.zst"
_FIRST_NS: Final = 10**18
"""When the earliest step of a gift begins, if its clocks have the time: in September 2001."""
_COMMUNICATION: Final = frozenset(("collective", "send", "recv"))
_Sort = tuple[str | None, tuple[int, ...] | None]
"""The name of calls, with how many dimensions each tensor has, None for bytes. All communication is one, without a
name: what one end sends the other receives, whatever either calls it."""
_NOT_SAID: Final = "said when it was recorded"
Codes = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Donated:
    """What a gift holds."""

    kept: tuple[str, ...]
    """The names of operations that stay."""
    replaced: dict[str, int]
    """Sort of names → how many different ones were replaced."""
    operators: dict[str, str]
    """What operations are called in it."""


class _Survey:
    """What all fragments of a job have in common, which no single one shows."""

    def __init__(self, trace: Trace) -> None:
        self.kinds: dict[str, set[str]] = defaultdict(set)
        self.lanes: set[str] = set()
        self._job = trace.job
        self._divisors: dict[_Sort, list[int]] = {}
        self._given: dict[_Sort, Counter[tuple[int, int]]] = defaultdict(Counter)
        """Sort → (rank, step) → the sum of a number for each text of its calls: it is the same for equal ones."""
        self._cells: set[tuple[int, int]] = set()
        for path in trace.fragments:
            self._see(path)

    def divisors(self, sort: _Sort, sizes: Sequence[int]) -> Sequence[int]:
        """By what sizes are divided: by themselves, where all ranks give the same in all steps, so that 1 is left."""
        of_cells = self._given.get(sort)
        if of_cells is not None and of_cells.keys() == self._cells and len({*of_cells.values()}) == 1:
            return sizes
        return self._divisors.get(sort, sizes)

    def _see(self, path: Path) -> None:
        file, shift, steps = pq.ParquetFile(path), self._job.step_shift, {*self._job.steps}
        columns = ["rank", "step", "name", "kind", "lane", "bytes", "inputs"]
        for number in range(file.num_row_groups):
            rows = pl.DataFrame(file.read_row_group(number, columns=columns)).with_columns(
                pl.col("name", "kind", "lane", "inputs").cast(pl.String)
            )
            self.lanes |= {*rows["lane"].unique()}
            for rank, step, name, kind, size, inputs, count in (
                rows.group_by("rank", "step", "name", "kind", "bytes", "inputs").len().iter_rows()
            ):
                cell = rank, step - shift.get(rank, 0)
                counted = cell if cell[1] in steps else None
                if counted:
                    self._cells.add(cell)
                self.kinds[name].add(kind)
                if size is not None:
                    of_name = None if kind in _COMMUNICATION else name
                    self._add((of_name, None), [size], None if of_name is None else counted, count)
                if inputs is not None:
                    layout, sizes = _parsed(inputs)
                    self._add((name, layout), sizes, counted, count)

    def _add(self, sort: _Sort, sizes: Sequence[int], cell: tuple[int, int] | None, count: int) -> None:
        known = self._divisors.setdefault(sort, [0] * len(sizes))
        known[:] = map(gcd, known, sizes)
        if cell is not None:
            self._given[sort][cell] += count * hash(tuple(sizes))


def donate(trace: Trace, file: IO[bytes]) -> Donated:
    """Write the job into `file`. Raises UsageError for a job of which no operations are recorded, or for some steps."""
    if not trace.fragments or not trace.job.operations or trace.job.progress:
        raise UsageError("only recordings of operations can be donated", "kair help formats says how to record them")
    if trace.steps != trace.job.steps:
        raise UsageError("a gift holds all steps", "leave out --step")
    survey, names = _Survey(trace), Pseudonyms()
    lanes = names.lanes(survey.lanes)
    infos = [_info_of(path, trace) for path in trace.fragments]
    begins = [begin for info in infos for begin in info.step_times.begin_ns]
    shift = _FIRST_NS - min(begins) if begins and all(info.absolute_time for info in infos) else 0
    width = len(str(len(infos)))
    with (
        pa.CompressedOutputStream(pa.PythonFile(file, "w"), "zstd") as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.USTAR_FORMAT) as archive,
        tempfile.TemporaryDirectory() as folder,
    ):
        for number, (path, info) in enumerate(zip(trace.fragments, infos, strict=True)):
            out = Path(folder) / f"part_{number:0{width}d}"
            unnamed = _info(info, names, shift, out.name)
            with FragmentWriter(out, compressed=False) as writer:
                fragment = pq.ParquetFile(path)
                for group in range(fragment.num_row_groups):
                    writer.write(_table(fragment.read_row_group(group), survey, names, lanes, shift))
                writer.commit(unnamed)
            _add(archive, f"gift/{names.other('folder', str(Path(info.source).parent))}/{out.name}", out)
            out.unlink()
    return Donated(tuple(sorted(names.kept)), dict(names.replaced), names.operations)


def _info_of(path: Path, trace: Trace) -> FragmentInfo:
    """Return what a fragment says of itself; ranks that are numbered by the order of the files' names stay so."""
    info = msgspec.convert(read_metadata(path), FragmentInfo, str_keys=True)
    return replace(info, rank_known=info.rank_known and not {*info.ranks} & trace.job.by_order.keys())


def _info(info: FragmentInfo, names: Pseudonyms, shift: int, name: str) -> FragmentInfo:
    """Return the same of a fragment of a gift. What is not named here is numbers, or left out."""
    times = info.step_times
    return FragmentInfo(
        source=name,
        format=info.format,
        ranks=info.ranks,
        rank_known=info.rank_known,
        world_size=info.world_size,
        hosts={rank: names.other("host", host) for rank, host in info.hosts.items()},
        has_device=info.has_device,
        absolute_time=info.absolute_time,
        operations=info.operations,
        layout=info.layout,
        step_times=replace(
            times,
            begin_ns=_later(times.begin_ns, shift),
            device_begin_ns=_later(times.device_begin_ns, shift),
            device_end_ns=_later(times.device_end_ns, shift),
            given_bytes=_divided(times.given_bytes),
            samples=_divided(times.samples),
        ),
        warnings=tuple(KairWarning(one.code, _NOT_SAID, one.ranks) for one in info.warnings),
        only_group=None if info.only_group is None else names.group(info.only_group),
        group_names={names.group(text): names.other("dimension", of) for text, of in info.group_names.items()},
        process_groups=tuple(
            ProcessGroup(names.group(one.name), names.other("dimension", one.description), one.ranks)
            for one in info.process_groups
        ),
        limits=info.limits,
        sent={
            rank: tuple(
                replace(one, own=names.other("address", one.own), peer=names.other("address", one.peer)) for one in sent
            )
            for rank, sent in info.sent.items()
        },
        launch_queue=info.launch_queue,
        identity={rank: _identity(one, names) for rank, one in info.identity.items()},
        peers=info.peers,
        first_send={rank: replace(one, group=names.group(one.group)) for rank, one in info.first_send.items()},
        same_batches=info.same_batches,
    )


def _identity(one: RankIdentity, names: Pseudonyms) -> RankIdentity:
    """Where a rank runs, and which ranks have devices of one model."""
    model = one.device.model
    device = DeviceIdentity(
        index=one.device.index,
        ordinal=one.device.ordinal,
        model=None if model is None else names.other("device_model", model),
        visible=one.device.visible,
    )
    host = None if one.host is None else names.other("host", one.host)
    return RankIdentity(one.rank, host=host, local_rank=one.local_rank, device=device, numa_node=one.numa_node)


def _later(times: tuple[int, ...], shift: int) -> tuple[int, ...]:
    return tuple(one if one == NOT_RECORDED else one + shift for one in times)


def _divided(values: tuple[int, ...]) -> tuple[int, ...]:
    """Return the numbers divided by their greatest common divisor."""
    divisor = gcd(*(one for one in values if one > 0)) or 1
    return tuple(one if one == NOT_RECORDED else one // divisor for one in values)


def _table(table: pa.Table, survey: _Survey, names: Pseudonyms, lanes: dict[str, str], shift: int) -> pa.Table:
    """Return a row group under pseudonyms."""
    name, kind = (_encoded(table[of]) for of in ("name", "kind"))
    called, kinds = name.dictionary.to_pylist(), kind.dictionary.to_pylist()
    code = name.indices.to_numpy()
    communicates = np.array([of in _COMMUNICATION for of in kinds])[kind.indices.to_numpy()]
    columns = {
        "name": _renamed(name, [names.operation(of, survey.kinds[of]) for of in called]),
        "lane": _renamed(lane := _encoded(table["lane"]), [lanes[of] for of in lane.dictionary.to_pylist()]),
        "group": _renamed(group := _encoded(table["group"]), [names.group(of) for of in group.dictionary.to_pylist()]),
        "start_ns": pc.add(table["start_ns"], pa.scalar(shift, pa.int64())),
        "bytes": _without_bytes(table["bytes"], np.where(communicates, -1, code), called, survey),
        "inputs": _without_sizes(table["inputs"], called, code, survey),
    }
    for of, column in columns.items():
        table = table.set_column(table.schema.get_field_index(of), of, column)
    return table


def _without_sizes(column: pa.ChunkedArray, called: Sequence[str], code: Codes, survey: _Survey) -> pa.Array:
    """Dimensions, each divided by what all calls of its operator have in common at its place."""
    inputs = _encoded(column)
    texts, absent = inputs.dictionary.to_pylist(), pc.is_null(inputs).to_numpy(zero_copy_only=False)
    if not texts:
        return inputs
    pairs = code.astype(np.int64) * len(texts) + inputs.indices.fill_null(0).to_numpy()
    found, place = np.unique(pairs, return_inverse=True)
    told = [(called[pair // len(texts)], texts[pair % len(texts)]) for pair in found.tolist()]
    reduced = pa.array([_reduced_inputs(of, text, survey) for of, text in told])
    return reduced.take(pa.array(place, mask=absent)).dictionary_encode()


def _without_bytes(column: pa.ChunkedArray, code: Codes, called: Sequence[str], survey: _Survey) -> pa.Array:
    """Bytes by the number of their operation, -1 for communication, divided by what those of all its calls share."""
    absent = pc.is_null(column).to_numpy(zero_copy_only=False)
    size = column.fill_null(0).to_numpy().astype(np.int64)
    (numbers, sizes), place = np.unique(np.stack((code, size)), axis=1, return_inverse=True)
    told = zip(numbers.tolist(), sizes.tolist(), strict=True)
    reduced = [_reduced((None if of < 0 else called[of], None), [size], survey)[0] for of, size in told]
    return pa.array(np.array(reduced, np.int64)[place.reshape(-1)], mask=absent)


def _reduced(sort: _Sort, sizes: Sequence[int], survey: _Survey) -> list[int]:
    return [size // (by or 1) for size, by in zip(sizes, survey.divisors(sort, sizes), strict=True)]


def _reduced_inputs(name: str, inputs: str, survey: _Survey) -> str:
    layout, sizes = _parsed(inputs)
    left = iter(_reduced((name, layout), sizes, survey))
    return ";".join(",".join(str(next(left)) for _ in range(count)) for count in layout)


def _parsed(inputs: str) -> tuple[tuple[int, ...], list[int]]:
    """How many dimensions each tensor has, and all of them."""
    tensors = [[int(one) for one in of.split(",") if one] for of in inputs.split(";")]
    return tuple(map(len, tensors)), [one for of in tensors for one in of]


def _encoded(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """Return a column of texts with those alone that it has."""
    return column.cast(pa.string()).combine_chunks().dictionary_encode()


def _renamed(column: pa.DictionaryArray, texts: Sequence[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(column.indices, pa.array(texts, pa.string()))


def _add(archive: tarfile.TarFile, name: str, path: Path) -> None:
    """Add a file of a gift, without anything of who wrote it."""
    entry = tarfile.TarInfo(name)
    entry.size = len(GIFT) + path.stat().st_size
    with path.open("rb") as content:
        archive.addfile(entry, _After(GIFT, content))


class _After(io.RawIOBase):
    """A file with some bytes in front of it."""

    def __init__(self, first: bytes, rest: IO[bytes]) -> None:
        super().__init__()
        self._first, self._rest = first, rest

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        first, self._first = self._first[:size], self._first[size:]
        return first + self._rest.read(size - len(first))
