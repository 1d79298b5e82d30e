"""Finds files of evidence in folders, reads them, assigns hosts, and keeps them in a job's folder as tables."""

import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kair_engine.errors import InputError, UnwritableError
from kair_engine.frozen import dataclass
from kair_engine.readers.blocks import open_file
from kair_engine.readers.evidence import nccl_inspector
from kair_engine.readers.evidence.formats import WHAT_IS_READ, NotEvidenceError, require_evidence
from kair_engine.readers.formats import UnsupportedFormatError, detect_format
from kair_engine.readers.paths import host_of_folder
from kair_engine.recording.job_file import EVIDENCE
from kair_engine.recording.opening import find_files
from kair_engine.results.evidence import AddedEvidence
from kair_engine.trace.evidence_table import SCHEMA, EvidenceFile, read_evidence, together, within, write_evidence
from kair_engine.trace.evidence_time import FARTHEST_NS, JobTime
from kair_engine.trace.files import make_folder, modes_below, remove_unwritten
from kair_engine.trace.measures import shown
from kair_engine.trace.model import KairWarning, short_warning

MOST_FILES: Final = 10_000
"""Files that are examined in a folder."""
MOST_BYTES: Final = 8 << 30
"""Bytes on disk of evidence that is read at once."""
MOST_ROWS: Final = 30_000_000
"""Rows of a stored job's time beyond which older samples are left out: reading this many takes 4 GB of memory.

64 hosts without devices produce this many in four hours, 1,000 in a quarter of an hour. Of a job's steps, counted per
rank, the last 4 million are used, which reach as far back if a step takes 2 s."""
IDENTITY: Final = re.compile(r"identity.*\.json")
"""Names of files next to evidence that hold ranks' identities."""
_ADDED: Final = "added"
"""The folder for evidence that a person added, within a job's folder of evidence."""
_AT_ONCE: Final = 1 << 20
_DIGEST: Final = 12
"""Bytes."""
_LONGEST_NAME: Final = 80
_NAMED: Final = 3
"""Files that a warning names."""
_MOST_WARNINGS: Final = 20
_SAMPLED: Final = re.compile(r"(?:samples|joined)-(\d{1,18})\.parquet")
"""Names of a sampler's files; one that joins others has the number of the latest."""


@dataclass(frozen=True)
class _Read:
    """One file of evidence."""

    path: Path
    content: EvidenceFile


@dataclass(frozen=True)
class _Wanted:
    """Limits of reading evidence."""

    limit: int = MOST_BYTES
    """Bytes on disk."""
    hosts: Collection[str] = ()
    """Those of the job."""
    when: JobTime | None = None
    """The job's time; None: rows of any time are read."""


def read_evidence_of(
    places: Sequence[Path],
    limit: int = MOST_BYTES,
    *,
    hosts: Collection[str] = (),
    beside: Path | None = None,
    when: JobTime | None = None,
) -> tuple[EvidenceFile, list[KairWarning]]:
    """Return all evidence in these files and folders, in order of time, and a warning for each damaged file.

    Other files in a folder are skipped, traces silently; a file that is named twice is read once. `limit` is in bytes
    on disk. `hosts` are the job's: if one is part of a file's name, the file is that host's unless its content or its
    folders (`host=NAME/`) state another. `beside` is a folder that may be missing. If the job's time `when` is given,
    only its telemetry is read; sources describe the whole files. Raises InputError if a place is missing, a file is no
    evidence, or `places` have none at all.
    """
    wanted = _Wanted(limit, hosts, when)
    warnings: list[KairWarning] = []
    seen: set[tuple[int, int]] = set()
    found = [one.content for one in _read_all(places, wanted, warnings, seen)]
    _require_some(found, places, warnings)
    if beside is not None and beside.is_dir():
        try:
            found += [one.content for one in _read_all([beside], wanted, warnings, seen)]
        except InputError as error:
            warnings.append(_left_out(error))
    return together(found), _few(warnings)


def stored_evidence(
    folder: Path, most: int | None = None, *, when: JobTime | None = None
) -> tuple[EvidenceFile, list[KairWarning]]:
    """Return the tables in the folder of a stored job: those of capture, and those that were added.

    Empty if there are none. If the job's time `when` is given, only its telemetry is read. Damaged tables are left out
    with a warning, as are the oldest samples beyond `most` rows (MOST_ROWS) of that time.
    """
    most = MOST_ROWS if most is None else most
    read: dict[Path, EvidenceFile] = {}
    warnings: list[KairWarning] = []
    for _ in range(_LISTED):
        try:
            found = find_files(folder / EVIDENCE, leave_out=None)
        except InputError as error:
            return together(()), [_left_out(error)] if (folder / EVIDENCE).exists() else []
        warnings = [*found.warnings]
        tables = _of_time([path for path in found.files if path.suffix == ".parquet"], when)
        if _read_new(sorted(tables, key=_latest_first), read, most, warnings, when):
            break
    inside = _parts_of(read)
    return together(read[path] for path in sorted(read) if path not in inside), _few(warnings)


_LISTED: Final = 3
"""How often a folder is listed if files disappear while they are read: their agent has joined them."""


def _read_new(
    paths: Sequence[Path],
    read: dict[Path, EvidenceFile],
    most: int,
    warnings: list[KairWarning],
    when: JobTime | None,
) -> bool:
    """Read files that are not part of `read` into it; return whether all still existed."""
    inside, rows, are_there = _parts_of(read), sum(len(one.table) for one in read.values()), True
    for number, path in enumerate(paths):
        if path in read or path in inside:
            continue
        if rows >= most and _sampled_ms(path) is not None:
            text = f"there are more than {most:,} rows: of {len(paths):,} files the {len(paths) - number:,} with the"
            warnings.append(short_warning("evidence_left_out", f"{text} oldest samples are left out"))
            break
        try:
            read[path] = one = read_evidence(path, when)
        except InputError as error:
            are_there &= not isinstance(error.__cause__, FileNotFoundError)
            warnings.append(_left_out(error))
            continue
        inside |= _parts_of({path: one})
        rows += len(one.table)
    return are_there


def _parts_of(read: Mapping[Path, EvidenceFile]) -> set[Path]:
    """Return the files that others were made of: a sampler's, up to the one that gives the joined file its number."""
    found = set[Path]()
    for path, one in read.items():
        last = _sampled_ms(path) if path.name.startswith("joined") else None
        for name in one.parts if last is not None else ():
            ms = _sampled_ms(Path(name)) if name.startswith("samples") else None
            if ms is not None and last is not None and ms <= last:
                found.add(path.parent / name)
    return found


def _of_time(paths: Sequence[Path], when: JobTime | None) -> list[Path]:
    """Return the files without those of samplers that cannot hold a row of that time.

    A sampler's file is named after the time of its first row, one that joins others after the latest of them: its rows
    lie between the names of the previous file of its kind and of the next one. Files at the ends of a folder stay:
    they show its extent.
    """
    if when is None:
        return list(paths)
    wide, left_out = when.widened(FARTHEST_NS), set[Path]()
    of_folder: dict[Path, list[tuple[int, Path]]] = {}
    for path in paths:
        if (ms := _sampled_ms(path)) is not None:
            of_folder.setdefault(path.parent, []).append((ms, path))
    for files in of_folder.values():
        times = [ms * 10**6 for ms, _ in sorted(files)]
        joined = [ms * 10**6 for ms, path in sorted(files) if path.name.startswith("joined")]
        for ms, path in files:
            before = joined if path.name.startswith("joined") else times
            at, behind = bisect_left(before, ms * 10**6), bisect_right(times, ms * 10**6)
            if at > 0 and behind < len(times) and not wide.meets(before[at - 1], times[behind]):
                left_out.add(path)
    return [path for path in paths if path not in left_out]


def _latest_first(path: Path) -> tuple[bool, int, str]:
    """Return a sort key: other files before samples; a joined file before its parts, whose latest number it has."""
    ms = _sampled_ms(path)
    return ms is not None, -(ms or 0), path.name


def _sampled_ms(path: Path) -> int | None:
    match = _SAMPLED.fullmatch(path.name)
    return None if match is None else int(match[1])


def with_ranks_of_job(evidence: EvidenceFile, world_size: int) -> EvidenceFile:
    """Return the evidence without rows whose ranks are a communicator's, unless that has as many ranks as the job."""
    foreign = [
        at
        for at, one in enumerate(evidence.sources)
        if one.kind == nccl_inspector.KIND and nccl_inspector.ranks_of(world_size) not in one.notes
    ]
    if not foreign:
        return evidence
    is_foreign = pc.is_in(evidence.table["source"], value_set=pa.array(foreign, pa.int32()))
    of_rank = pc.starts_with(evidence.table["entity"].cast(pa.string()), "rank:")
    return replace(evidence, table=evidence.table.filter(pc.invert(pc.and_(is_foreign, of_rank))))


def add_to_job(
    folder: Path, places: Sequence[Path], *, hosts: Collection[str] = ()
) -> tuple[tuple[AddedEvidence, ...], list[KairWarning]]:
    """Keep the evidence of files and folders in a job's folder, as `evidence/added/DIGEST-NAME.parquet`.

    A file with known content and host changes nothing. Raises as `read_evidence_of` does, and UnwritableError.
    """
    warnings: list[KairWarning] = []
    read = list(_read_all(places, _Wanted(hosts=hosts), warnings, set()))
    added = tuple(_kept(folder, _digest_of_file(one), str(one.path), one.content) for one in read)
    _require_some(added, places, warnings)
    return added, _few(warnings)


def keep_in_job(folder: Path, name: str, content: EvidenceFile) -> AddedEvidence:
    """Keep a server's answer, called `name`, in the same way. Raises UnwritableError."""
    import pyarrow.ipc

    sink = pa.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, content.table.schema) as stream:
        stream.write_table(content.table)
    return _kept(folder, blake2b(sink.getvalue(), digest_size=_DIGEST).hexdigest(), name, content)


def _read_all(
    places: Sequence[Path], wanted: _Wanted, warnings: list[KairWarning], seen: set[tuple[int, int]]
) -> Iterator[_Read]:
    """Yield each new file of evidence; reports about the others go to `warnings`."""
    size, inside = 0, set[Path]()
    for place in places:
        files, others = _files_of(place, wanted.when, warnings), list[Path]()
        is_folder = files != (place,)
        for path in files:
            if path in inside:
                continue
            try:
                status = _status(path)
                if (status.st_dev, status.st_ino) in seen:
                    continue
                seen.add((status.st_dev, status.st_ino))
                read = require_evidence(path, wanted.when)
                size += status.st_size
                if size > wanted.limit:
                    text = (
                        f"more than {wanted.limit / 1e9:.3g} GB of evidence: {path} and what comes after it is left out"
                    )
                    warnings.append(short_warning("evidence_left_out", text))
                    return
                content = within(read(), wanted.when)
                inside |= _parts_of({path: content})  # in order of names a joined file comes before its parts
                yield _with_host(_Read(path, content), place if is_folder else place.parent, wanted.hosts)
            except NotEvidenceError:
                if not is_folder:
                    raise
                others.append(path)
            except InputError as error:
                warnings.append(_left_out(error))
        warnings += _unknown(place, others)


def _files_of(place: Path, when: JobTime | None, warnings: list[KairWarning]) -> tuple[Path, ...]:
    """Return the file, or the folder's files. Raises InputError if nothing has that name."""
    try:
        found = find_files(place, leave_out=None)
    except InputError as error:
        raise InputError(str(error), "give a file of evidence, a folder of them, or the URL of Prometheus") from error
    warnings += found.warnings
    files = _of_time(found.files, when)
    if len(files) > MOST_FILES:
        text = f"{place} holds {len(files):,} files, of which the first {MOST_FILES:,} are looked at"
        warnings.append(short_warning("evidence_left_out", text))
    return tuple(path for path in files[:MOST_FILES] if path == place or not IDENTITY.fullmatch(path.name))


def _status(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def _unknown(folder: Path, others: Sequence[Path]) -> list[KairWarning]:
    """Return a warning that names unread files; none if traces are among them, which come with all sorts of files."""
    if not others or any(map(_is_trace, others)):
        return []
    named = ", ".join(path.name for path in others[:_NAMED]) + (", …" if len(others) > _NAMED else "")
    many = "1 file" if len(others) == 1 else f"{len(others)} files"
    text = f"{many} in {folder} {'is' if len(others) == 1 else 'are'} not evidence that Kair reads: {named}"
    return [short_warning("unknown_evidence", text)]


def _is_trace(path: Path) -> bool:
    """Return whether its first bytes are a trace's; text does not count, because any text could be a job's log."""
    try:
        form = detect_format(path)
    except UnsupportedFormatError:
        return True
    except (InputError, OSError):
        return False
    return form is not None and form.name != "job_log"


def _with_host(one: _Read, place: Path, hosts: Collection[str]) -> _Read:
    """Return the file with the host in its path, if its content has none; and with distinguishable sources.

    Sources named after their file get the folders below `place` in their names.
    """
    table, sources, devices = one.content.table, one.content.sources, one.content.devices
    is_known = table["host"].null_count < len(table) or any(of.hosts for of in sources)
    host = None if is_known else host_in_path(one.path, hosts)
    if host is not None:
        of_all = pa.DictionaryArray.from_arrays(np.zeros(len(table), np.int32), pa.array([shown(host)]))
        table = table.set_column(SCHEMA.get_field_index("host"), SCHEMA.field("host"), of_all)
        devices = tuple(replace(of, host=shown(host)) for of in devices)
        sources = tuple(
            replace(of, hosts=(shown(host),), notes=(*of.notes, f"its name says that it is of {shown(host)}"))
            for of in sources
        )
    below = shown(str(one.path.relative_to(place)))
    named = tuple(replace(of, name=below) if of.name == one.path.name else of for of in sources)
    return _Read(one.path, EvidenceFile(table, named, devices=devices))


def host_in_path(path: Path, hosts: Collection[str]) -> str | None:
    """Return the host in a folder `host=NAME`, else the one of `hosts` that is a word of the file's name.

    `dmesg-node-7.txt` and `node-7.dmesg` belong to node-7, and not to node-70. None if the name has two of them.
    """
    if stated := host_of_folder(path):
        return stated
    named = {host for host in hosts if host and _word(host).search(path.name)}
    # `node-7` is a word of `node-7.rack2` too.
    longest = [one for one in named if not any(one != other and _word(one).search(other) for other in named)]
    return longest[0] if len(longest) == 1 else None


def _word(host: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z0-9]){re.escape(host)}(?![A-Za-z0-9])", re.IGNORECASE)


def _require_some(found: Sequence[object], places: Sequence[Path], warnings: Sequence[KairWarning]) -> None:
    if places and not found:
        text = warnings[0].message if warnings else f"no evidence in {', '.join(map(str, places))}"
        raise InputError(text, WHAT_IS_READ)


def _kept(folder: Path, digest: str, source: str, content: EvidenceFile) -> AddedEvidence:
    """Keep content under its digest. Raises UnwritableError."""
    target = folder / EVIDENCE / _ADDED
    known = next(target.glob(f"{digest}-*.parquet"), None)
    path = known or target / f"{digest}-{_clean(source)}.parquet"
    if known is None:
        try:
            make_folder(target, modes_below(folder))
            remove_unwritten(target)
            write_evidence(path, content)
        except OSError as error:
            raise UnwritableError(target, error) from error
    kinds = tuple(dict.fromkeys(one.kind for one in content.sources))
    return AddedEvidence(shown(source), path.name, kinds, len(content.table), known is not None)


def _digest_of_file(one: _Read) -> str:
    """Return the digest of its bytes, and of the hosts that they are taken for: two hosts may have equal logs."""
    digest = blake2b(repr([of.hosts for of in one.content.sources]).encode(), digest_size=_DIGEST)
    try:
        with open_file(one.path) as file:
            while block := file.read(_AT_ONCE):
                digest.update(block)
    except OSError as error:
        raise InputError(f"cannot read {one.path}: {error.strerror or error}") from error
    return digest.hexdigest()


def _clean(source: str) -> str:
    """Return the end of a path or URL as a name that is valid in every file system: `dmesg-node-7.txt`."""
    name = source.rstrip("/").rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9._=-]+", "_", name).strip("._")[:_LONGEST_NAME] or "evidence"


def _left_out(error: InputError) -> KairWarning:
    return short_warning("unreadable_evidence", f"{error}; it is left out")


def _few(warnings: Sequence[KairWarning]) -> list[KairWarning]:
    more = len(warnings) - _MOST_WARNINGS
    rest = [short_warning("unreadable_evidence", f"{more} more files are left out")] if more > 0 else []
    return [*warnings[:_MOST_WARNINGS], *rest]
