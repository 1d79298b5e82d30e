"""Opens a path: a folder of traces, one trace file, or a job folder of the store.

Finds the files that may be traces under a path; links to folders are followed, each real folder once. Also notices that
the files of a job have changed since they were read.
"""

import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

from kair_engine.errors import InputError, UnwritableError
from kair_engine.frozen import dataclass
from kair_engine.readers.formats import UnsupportedFormatError, read_head
from kair_engine.readers.paths import SUFFIXES, is_archive_name, ranks_from_siblings
from kair_engine.recording.cache import CHOOSE, LIMIT, FragmentCache, content_key
from kair_engine.recording.fragments import Fragment, damaged_dumps, require_one_run
from kair_engine.recording.importing import ImportTask, Progress, UnwrittenError, import_files
from kair_engine.recording.job_assembly import AssembledJob, assemble
from kair_engine.recording.job_file import EVIDENCE, JOB_FILE, holds_job
from kair_engine.trace.model import KairWarning, Trace, listed, short_warning

_MAX_FILE_WARNINGS: Final = 20
_NAMED: Final = 2
"""Files whose assigned rank a warning states."""


@dataclass
class _File:
    """One file on its way to a fragment."""

    source: Path
    key: str
    fragment: Fragment | None = None
    refusal: str | None = None
    """Why it is no trace, if it is something else."""
    hint: str | None = None
    """What to do about that, if anything can be done."""
    problem: InputError | None = None
    """Why it cannot be read, though it is a trace."""
    is_done: bool = False
    """Whether it was just parsed or refused."""

    @property
    def is_lost(self) -> bool:
        """Whether nothing of it is read: it is damaged, or too short to be recognised."""
        return self.fragment is None and not isinstance(self.problem, UnsupportedFormatError)


def open_trace(
    source: Path,
    *,
    cache: Path,
    cache_limit: int = LIMIT,
    progress: Progress | None = None,
    workers: int | None = None,
) -> Trace:
    """Return the trace at `source`; raw files are parsed once into fragments below `cache`, and found there later.

    Raises InputError if `source` is missing, unreadable or no trace, KairError if the disk is full.
    """
    from kair_engine.recording.job_file import is_job_folder, open_job_folder  # used by few opens

    if is_job_folder(source):
        return open_job_folder(source)
    name = job_name(source)
    return open_sources(
        [source], name=name, cache=cache, cache_limit=cache_limit, progress=progress, workers=workers
    ).trace


def open_sources(
    sources: Sequence[Path],
    *,
    name: str,
    cache: Path,
    cache_limit: int = LIMIT,
    progress: Progress | None = None,
    workers: int | None = None,
) -> AssembledJob:
    """Return one job of all the files below `sources`. Raises InputError if they are of several runs."""
    found = [find_files(source) for source in {os.path.realpath(source): source for source in sources}.values()]
    warnings = [warning for part in found for warning in part.warnings]
    paths, of_archives = _within_archives(dict.fromkeys(path for part in found for path in part.files))
    text = ", ".join(map(str, sources))
    hints = ranks_from_siblings(paths)
    with closing(FragmentCache(cache, cache_limit)) as store:
        files, unreadable = _look_up(paths, store, hints)
        problems = of_archives + unreadable + _parse(files, store, progress, workers, hints)
        if not any(file.fragment for file in files):
            raise _no_trace(text, files, problems)
        parsed = [file.fragment for file in files if file.fragment is not None]
        require_one_run(sources, parsed)
        damaged = damaged_dumps(parsed, {file.source: hints.get(file.source) for file in files if file.is_lost})
        problems = [one for one in problems if not any(one is file.problem for file in files if file.source in damaged)]
        problems += _without_content([file for file in files if file.source not in damaged])
        fragments, numbered = _number_ranks(files, store, progress, workers)
    warnings += [*store.warnings, *damaged.values(), *_file_warnings(problems), *numbered]
    return assemble(name, text, fragments, warnings)


def job_name(source: Path) -> str:
    """Return the name a path gives to its job: the folder's, or the file's without its endings."""
    name = source.name or source.resolve().name or "trace"
    if source.is_dir():
        return name
    stem = name.split(".", 1)[0] if name.lower().endswith((".json", ".gz", ".zst", ".parquet", *SUFFIXES)) else name
    return stem or name


def _within_archives(paths: Iterable[Path]) -> tuple[list[Path], list[InputError]]:
    """Return the files, with archives replaced by their files; and the archives' errors."""
    files: list[Path] = []
    problems: list[InputError] = []
    for path in paths:
        if not is_archive_name(path):
            files.append(path)
            continue
        from kair_engine.readers.archives import members_of  # few recordings are in one

        try:
            members = members_of(path)
        except InputError as error:
            problems.append(error)
            continue
        except OSError as error:
            problems.append(InputError(f"cannot read {path}: {error.strerror or error}"))
            continue
        files += [path] if members is None else [one for one in members.paths if not _is_evidence(one, path)]
        if members is not None and members.skipped:
            text = f"{members.skipped} entries of {path.name} are links, devices, or lead out of it"
            problems.append(InputError(text, "unpack it where they lead nowhere"))
    return files, problems


def _is_evidence(member: Path, archive: Path) -> bool:
    return EVIDENCE in member.relative_to(archive).parts[:-1]


def _look_up(
    paths: Iterable[Path], store: FragmentCache, hints: Mapping[Path, int]
) -> tuple[list[_File], list[InputError]]:
    """Return every readable file with its cache entry, if any."""
    files, problems = [], []
    for path in paths:
        try:
            file = _File(path, content_key(path, hints.get(path)))
        except OSError as error:
            problems.append(InputError(f"cannot read {path}: {error.strerror or error}"))
            continue
        info = store.find(file.key, path)
        if info is not None:
            file.fragment = Fragment(store.fragment(file.key), info)
        files.append(file)
    return files, problems


def _parse(
    files: Sequence[_File],
    store: FragmentCache,
    progress: Progress | None,
    workers: int | None,
    hints: Mapping[Path, int],
) -> list[InputError]:
    """Parse the files that the cache lacks. Files that are no trace stay without a fragment, and are no error."""
    missing = [file for file in files if file.fragment is None]
    if not missing:
        return []
    store.make_writable()
    problems = []
    tasks = [ImportTask(file.source, store.fragment(file.key), hints.get(file.source), store.work) for file in missing]
    try:
        for file, outcome in zip(missing, import_files(tasks, progress=progress, workers=workers), strict=True):
            file.is_done = True
            if outcome.info is not None:
                file.fragment = Fragment(store.fragment(file.key), outcome.info)
            elif not outcome.is_trace:
                file.refusal, file.hint = outcome.error, outcome.hint
            else:
                problem = InputError if outcome.is_supported else UnsupportedFormatError
                file.problem = problem(outcome.error or "", outcome.hint)
                problems.append(file.problem)
    except UnwrittenError as error:
        if store.is_temporary:
            raise UnwritableError(store.place, error.reason, CHOOSE) from error
        # The disk is full: the rest is parsed where there may be room.
        store.go_without(error.reason)
        left = [file for file in missing if not file.is_done]
        return [*problems, *_parse(left, store, progress, workers, hints)]
    return problems


def _without_content(files: Sequence[_File]) -> list[InputError]:
    """Return errors for empty files with a trace's ending: recordings that were lost, for example on a full disk."""
    endings = {file.source.suffix for file in files if file.fragment is not None}
    refused = [file.source for file in files if file.refusal is not None and file.source.suffix in endings]
    return [InputError(f"{path.name} is empty") for path in refused if not read_head(path).content]


def _number_ranks(
    files: Sequence[_File], store: FragmentCache, progress: Progress | None, workers: int | None
) -> tuple[list[Fragment], list[KairWarning]]:
    """Give free ranks to the files that state none, in the order of their names."""
    fragments = [file.fragment for file in files if file.fragment is not None]
    unknown = [file for file in files if file.fragment is not None and not file.fragment.info.rank_known]
    if not unknown:
        return fragments, []
    taken = {rank for one in fragments if one.info.rank_known for rank in one.info.ranks}
    hints = _free_numbers(unknown, taken)
    # A report of several processes was read with the number in its name, which is no rank.
    of_unknown = [rank for one in fragments if not one.info.rank_known for rank in one.info.ranks]
    if hints == {file.source: 0 for file in unknown} and min(of_unknown, default=0) == 0:
        ranks = listed(of_unknown)
        text = f"{unknown[0].source.name} does not say its rank; it counts as rank {ranks}"
        return fragments, [short_warning("rank_from_order", text)]
    again, _ = _look_up(hints, store, hints)
    _parse(again, store, progress, workers, hints)
    fragments = [one for one in fragments if one.info.rank_known]
    # Since they were given ranks, they pass for known ones.
    of_order = [file.fragment for file in again if file.fragment is not None]
    of_order = [replace(one, info=replace(one.info, rank_known=False)) for one in of_order]
    ranks = listed([rank for one in of_order for rank in one.info.ranks])
    first = ", ".join(f"{Path(one.info.source).name} is rank {listed(one.info.ranks)}" for one in of_order[:_NAMED])
    more = ", …" if len(of_order) > _NAMED else ""
    text = f"{len(unknown)} files do not say their rank; by the order of their names they count as rank {ranks}"
    return [*fragments, *of_order], [short_warning("rank_from_order", f"{text}: {first}{more}")]


def _free_numbers(unknown: Sequence[_File], taken: AbstractSet[int]) -> dict[Path, int]:
    """Return the first rank of each file, in the order of their names.

    Each gets as many successive free ranks as it has.
    """
    hints: dict[Path, int] = {}
    first = 0
    for file in sorted(unknown, key=lambda file: _by_numbers(file.source)):
        count = len(file.fragment.info.ranks) if file.fragment is not None else 1
        while any(rank in taken for rank in range(first, first + count)):
            first += 1
        hints[file.source] = first
        first += count
    return hints


def _by_numbers(path: Path) -> list[tuple[int, str]]:
    """Return a key that sorts names with numbers as people count: host2 before host10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,18})", str(path))]


def _file_warnings(problems: Sequence[InputError]) -> list[KairWarning]:
    shown = [_left_out(problem) for problem in problems[:_MAX_FILE_WARNINGS]]
    if len(problems) > len(shown):
        shown.append(short_warning("unreadable_file", f"{len(problems) - len(shown)} more files are left out"))
    return shown


def _left_out(problem: InputError) -> KairWarning:
    if isinstance(problem, UnsupportedFormatError):
        return short_warning("unsupported_format", f"{problem}; it is left out ({problem.hint})")
    return short_warning("unreadable_file", f"{problem}; it is left out")


def _no_trace(source: str, files: Sequence[_File], problems: Sequence[InputError]) -> InputError:
    hint = "kair help record shows how to record a job, kair help formats all formats that are read"
    if problems:
        more = f" (and {len(problems) - 1} more files)" if len(problems) > 1 else ""
        return InputError(f"{problems[0]}{more}", problems[0].hint)
    if not files:
        if (Path(source) / EVIDENCE).is_dir():
            return InputError(f"no trace in {source}: a folder {EVIDENCE} is not looked into for traces", hint)
        return InputError(f"{source} is empty: no trace in it", hint)
    known = next((file for file in files if file.hint is not None), files[0])
    if len(files) == 1 or known.hint is not None:
        return InputError(f"{known.source} is not a trace: {known.refusal}", known.hint or hint)
    return InputError(f"no trace in {source} ({len(files)} files looked at)", hint)


_PROFILE: Final = ".xplane.pb"
_COPY: Final = ".trace.json.gz"


@dataclass(frozen=True)
class FoundFiles:
    """Regular files in a stable order, and warnings about those that could not be examined."""

    files: tuple[Path, ...]
    warnings: tuple[KairWarning, ...]


def find_files(source: Path, *, leave_out: str | None = EVIDENCE) -> FoundFiles:
    """Return the file `source`, or every file below the folder `source` except hidden ones.

    Folders called `leave_out` are skipped, too. Raises InputError if `source` is missing, is neither, or cannot be
    read.
    """
    try:
        mode = source.stat().st_mode
    except OSError as error:
        raise unreachable(source, error) from error
    if stat.S_ISREG(mode):
        return FoundFiles((source,), ())
    if not stat.S_ISDIR(mode):
        raise InputError(f"{source} is neither a file nor a folder")
    try:
        os.scandir(source).close()
    except OSError as error:
        raise unreachable(source, error) from error
    return _walk(source, leave_out)


def unreachable(source: Path, error: OSError) -> InputError:
    """Return the error for a path that cannot be opened; for an address (s3://…) it names only the scheme."""
    if isinstance(error, FileNotFoundError):
        address = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/", str(source))  # Path leaves one of the slashes
        if address:
            text = f"recordings are read from files, not from {address[1]}:// addresses"
            return InputError(text, "copy the recording to a folder, or mount it")
        return InputError(f"{source}: no such file or folder")
    return InputError(f"cannot read {source}: {error.strerror or error}")


def _walk(top: Path, leave_out: str | None) -> FoundFiles:
    """Return every regular file below `top`. A folder reached twice (a link, a loop of links) is entered once."""
    files: list[Path] = []
    warnings: list[KairWarning] = []
    seen: set[tuple[int, int]] = set()
    folders = [top]
    while folders:
        folder = folders.pop()
        try:
            status = folder.stat()
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            text = f"cannot look into the folder {folder}: {error.strerror or error}"
            warnings.append(short_warning("unreadable_file", text))
            continue
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        subfolders = []
        for entry in entries:
            if entry.name.startswith("."):
                continue
            kind = _kind(entry)
            if kind == "folder" and entry.name != leave_out:
                subfolders.append(folder / entry.name)
            elif kind == "file":
                files.append(folder / entry.name)
        folders += reversed(subfolders)
    return FoundFiles(tuple(_without_copies(_without_doubles(files))), tuple(warnings))


def _kind(entry: os.DirEntry[str]) -> str | None:
    """Return `file` or `folder`; None for devices, pipes, and links that lead nowhere."""
    try:
        if entry.is_dir():
            return "folder"
        return "file" if entry.is_file() else None
    except OSError:
        return None


def _without_doubles(files: list[Path]) -> list[Path]:
    """Return `files` without links to files that are listed themselves."""
    links = {file for file in files if file.is_symlink()}
    if not links:
        return files
    real = {file.resolve() for file in files if file not in links}
    return [file for file in files if file not in links or file.resolve() not in real]


def _without_copies(files: list[Path]) -> list[Path]:
    """Return `files` without JAX's `NAME.trace.json.gz` next to `NAME.xplane.pb`: it has a part of the same content."""
    profiles = {str(file).removesuffix(_PROFILE) for file in files if file.name.endswith(_PROFILE)}
    return [file for file in files if not (file.name.endswith(_COPY) and str(file).removesuffix(_COPY) in profiles)]


@dataclass(frozen=True)
class SourceState:
    """Every file of a job, with attributes that change when it is rewritten; equal while nothing changed."""

    files: tuple[tuple[str, int, int, int], ...]
    """Path, inode, size and time of the last change (ns)."""


def state_of(source: Path) -> SourceState | None:
    """Return the state of a folder of traces, a trace file or a job folder of the store; None if it is gone.

    A stored job is identified by its `job.json`, which every import writes last and whole.
    """
    try:
        files = (source / JOB_FILE,) if holds_job(source) else find_files(source).files
        states = [(str(path), path.stat()) for path in files]
    except (InputError, OSError):
        return None
    return SourceState(tuple((path, of.st_ino, of.st_size, of.st_mtime_ns) for path, of in states)) if states else None
