"""Derives from the path of a trace its rank, its host, its archive, and the metadata next to it.

Cheap, because it runs for every file that is opened. Metadata are flat lines `key: value` next to a what-if trace:
`meta-X.yaml` for `trace-X.parquet`.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from kair_engine.trace.files import read_kept

# More than any job has: a larger rank or world is damage, and lists of missing ranks must stay short.
MAX_RANKS: Final = 1 << 20

_SUFFIXES: Final = re.compile(r"(\.pt)?(\.trace)?(\.json)?(\.gz|\.zst|\.zstd)?$", re.IGNORECASE)
# Named by the handler itself, or `rank_3` by the user: hosts are not called rank.
_HANDLER_NAME: Final = re.compile(
    r"^(?P<host>.+)(?<!^rank)(?<![^a-z]rank)_(?P<pid>\d+)\.(?:(?P<time>\d+)\.)?pt\.trace\.json", re.IGNORECASE
)
_RANK_WORD: Final = re.compile(
    r"(?:^|[^a-z])(?:global[-_]?)?(?:rank|worker|trainer|gpu)[-_ =.]?(\d{1,7})(?!\d)", re.IGNORECASE
)
# Named by libkineto or a daemon that requests a recording: the number is a process.
_PROCESS_NAME: Final = re.compile(r"^libkineto_", re.IGNORECASE)
_NUMBERS: Final = re.compile(r"(\d+)")
# Longer numbers are dates, times and process ids.
_MOST_DIGITS: Final = 4
# Share of the implied ranks that must be present unless 0 is among them: otherwise the numbers are process ids.
_FEWEST_RECORDED: Final = 1 / 16
# XLA's profiles are named after hosts, which may have several ranks each.
_HOST_FILE: Final = re.compile(r"\.xplane\.pb(\.gz)?$")
_HOST_FOLDER: Final = re.compile(r"^host=(.+)$")


def rank_from_name(path: Path) -> int | None:
    """Return the rank in the name of the file or its folder, or None."""
    path = path.absolute()
    stem = _SUFFIXES.sub("", path.name)
    handler = _HANDLER_NAME.match(path.name)
    if handler:
        # `host_pid.time`: the numbers are a process and a time; only a worker name that says `rank` has one.
        match = re.search(r"(?:^|[^a-z])rank[-_ =.]?(\d{1,7})(?!\d)", handler["host"], re.IGNORECASE)
        return int(match.group(1)) if match else _rank_word(path.parent.name)
    in_name = _rank_word(stem)
    return _rank_word(path.parent.name) if in_name is None else in_name


def ranks_from_siblings(paths: Sequence[Path]) -> dict[Path, int]:
    """Return for files whose names state no rank the number that differs between the names in their folder.

    So `train_resnet18_0` and `train_resnet18_1` are ranks 0 and 1, and a `train_resnet18` alone has none.
    """
    of_folder: dict[Path, list[Path]] = {}
    for path in paths:
        other = _HANDLER_NAME.match(path.name) or _HOST_FILE.search(path.name) or _PROCESS_NAME.match(path.name)
        if rank_from_name(path) is None and not other:
            of_folder.setdefault(path.absolute().parent, []).append(path)
    found: dict[Path, int] = {}
    for folder, files in of_folder.items():
        alike: dict[tuple[str, ...], dict[str, list[str]]] = {}
        for name in {*(path.name for path in files), *_siblings(folder, files)}:
            parts = _NUMBERS.split(_SUFFIXES.sub("", name))
            alike.setdefault(tuple(parts[::2]), {})[name] = parts[1::2]
        ranks = {name: rank for names in alike.values() for name, rank in _varying(names).items()}
        found |= {path: ranks[path.name] for path in files if path.name in ranks}
    return found


def _siblings(folder: Path, files: Sequence[Path]) -> list[str]:
    """Return the names next to a single file; several given files are compared with one another only."""
    try:
        return [path.name for path in folder.iterdir()] if len(files) == 1 else []
    except OSError:
        return []


def _varying(numbers: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return by name the number that distinguishes the names; of several candidates the one with the lowest numbers."""
    columns = [[int(text) for text in column] for column in zip(*numbers.values(), strict=True)]
    candidates = [column for column in columns if len(set(column)) == len(column) > 1 and _are_ranks(column)]
    return dict(zip(numbers, min(candidates, key=max), strict=True)) if candidates else {}


def _are_ranks(numbers: Sequence[int]) -> bool:
    highest = max(numbers)
    return highest < 10**_MOST_DIGITS and (min(numbers) == 0 or len(numbers) >= _FEWEST_RECORDED * (highest + 1))


def host_of(path: Path, stated: str | None = None) -> str | None:
    """Return the host of a file: from a folder `host=…`, else as the file states, else from a profiler handler's file
    name, or None.
    """
    handler = _HANDLER_NAME.match(path.name)
    return host_of_folder(path) or stated or (handler["host"] if handler else None)


def host_of_folder(path: Path) -> str | None:
    """Return the host in the innermost folder `host=NAME` of a file."""
    return next((match[1] for one in path.absolute().parts[-2::-1] if (match := _HOST_FOLDER.match(one))), None)


def _rank_word(text: str) -> int | None:
    match = _RANK_WORD.search(text)
    return int(match.group(1)) if match else None


SUFFIXES: Final = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.zst", ".tar.zstd")


def is_archive_name(path: Path) -> bool:
    """Return whether the name is an archive's; only such files are opened as one."""
    return path.name.lower().endswith(SUFFIXES)


def archive_of(path: Path) -> Path | None:
    """Return the archive that a path leads into; None for a plain file."""
    return next((parent for parent in path.parents if is_archive_name(parent) and parent.is_file()), None)


def is_member(path: Path) -> bool:
    """Return whether the path leads into an archive."""
    return archive_of(path) is not None


SIZE_KEYS: Final = ("dp_size", "pp_size", "tp_size", "dsp_size", "world_size")
_MAX_LENGTH: Final = 64 << 10
_DIGITS: Final = 10


def metadata_files(source: Path) -> tuple[Path, ...]:
    """Return the file named after the trace, else every YAML file next to it, in order."""
    named = source.with_name(f"meta-{source.stem.removeprefix('trace-')}.yaml")
    candidates = [named] if named.is_file() else sorted([*source.parent.glob("*.yaml"), *source.parent.glob("*.yml")])
    return tuple(path for path in candidates if path.is_file() and path.stat().st_size <= _MAX_LENGTH)


def read_sizes(source: Path) -> dict[str, int]:
    """Return the sizes in the metadata of `source`; empty if there are none, or several files have some."""
    found = [sizes for path in metadata_files(source) if (sizes := parse_sizes(path))]
    return found[0] if len(found) == 1 else {}


def parse_sizes(path: Path) -> dict[str, int]:
    """Return the known `key: integer` lines of a flat YAML file; others are skipped."""
    try:
        text = read_kept(path, _MAX_LENGTH).decode("utf-8", "replace")
    except OSError:
        return {}
    sizes = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        value = value.partition("#")[0].strip()
        if (
            key.strip() in SIZE_KEYS
            and value.isdecimal()
            and 0 < int(value[-_DIGITS:]) <= MAX_RANKS
            and len(value) <= _DIGITS
        ):
            sizes[key.strip()] = int(value)
    return sizes
