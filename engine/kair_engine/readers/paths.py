"""What the path of a trace says: its rank, its host, its archive, and the metadata next to it.

Light, as it is asked of every file that is opened. Metadata are flat lines `key: value` next to a what-if trace:
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
# Named by the handler itself, or `rank_3` by whoever recorded: hosts are not called rank.
_HANDLER_NAME: Final = re.compile(
    r"^(?P<host>.+)(?<!^rank)(?<![^a-z]rank)_(?P<pid>\d+)\.(?:(?P<time>\d+)\.)?pt\.trace\.json", re.IGNORECASE
)
_RANK_WORD: Final = re.compile(
    r"(?:^|[^a-z])(?:global[-_]?)?(?:rank|worker|trainer|gpu)[-_ =.]?(\d{1,7})(?!\d)", re.IGNORECASE
)
# Named by libkineto or a daemon that asks it for a recording: the number is a process.
_PROCESS_NAME: Final = re.compile(r"^libkineto_", re.IGNORECASE)
_NUMBERS: Final = re.compile(r"(\d+)")
# Longer numbers are dates, times and process ids.
_MOST_DIGITS: Final = 4
# Of the ranks that numbers would stand for, unless 0 is one of them: with fewer recorded they are process ids.
_FEWEST_RECORDED: Final = 1 / 16
# XLA's profiles are named for hosts, which may have several ranks each.
_HOST_FILE: Final = re.compile(r"\.xplane\.pb(\.gz)?$")
_HOST_FOLDER: Final = re.compile(r"^host=(.+)$")


def rank_from_name(path: Path) -> int | None:
    """Return the rank that the file's name or its folder's states, or None."""
    path = path.absolute()
    stem = _SUFFIXES.sub("", path.name)
    handler = _HANDLER_NAME.match(path.name)
    if handler:
        # `host_pid.time`: the numbers are a process and a time; only a worker name that says `rank` is one.
        match = re.search(r"(?:^|[^a-z])rank[-_ =.]?(\d{1,7})(?!\d)", handler["host"], re.IGNORECASE)
        return int(match.group(1)) if match else _rank_word(path.parent.name)
    in_name = _rank_word(stem)
    return _rank_word(path.parent.name) if in_name is None else in_name


def ranks_from_siblings(paths: Sequence[Path]) -> dict[Path, int]:
    """For files whose names say no rank, the number that is another in each of their folder's names.

    So `train_resnet18_0` and `train_resnet18_1` are ranks 0 and 1, and a `train_resnet18` alone is none.
    """
    of_folder: dict[Path, list[Path]] = {}
    for path in paths:
        other = _HANDLER_NAME.match(path.name) or _HOST_FILE.search(path.name) or _PROCESS_NAME.match(path.name)
        if rank_from_name(path) is None and not other:
            of_folder.setdefault(path.absolute().parent, []).append(path)
    found: dict[Path, int] = {}
    for folder, files in of_folder.items():
        alike: dict[tuple[str, ...], dict[str, list[str]]] = {}
        for name in {*(path.name for path in files), *_beside(folder, files)}:
            parts = _NUMBERS.split(_SUFFIXES.sub("", name))
            alike.setdefault(tuple(parts[::2]), {})[name] = parts[1::2]
        ranks = {name: rank for names in alike.values() for name, rank in _varying(names).items()}
        found |= {path: ranks[path.name] for path in files if path.name in ranks}
    return found


def _beside(folder: Path, files: Sequence[Path]) -> list[str]:
    """Return the names beside a single file; of several, those that were asked for tell."""
    try:
        return [path.name for path in folder.iterdir()] if len(files) == 1 else []
    except OSError:
        return []


def _varying(numbers: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """By name, the number that tells the names apart: of several that do, the one of the lowest numbers."""
    columns = [[int(text) for text in column] for column in zip(*numbers.values(), strict=True)]
    telling = [column for column in columns if len(set(column)) == len(column) > 1 and _are_ranks(column)]
    return dict(zip(numbers, min(telling, key=max), strict=True)) if telling else {}


def _are_ranks(numbers: Sequence[int]) -> bool:
    highest = max(numbers)
    return highest < 10**_MOST_DIGITS and (min(numbers) == 0 or len(numbers) >= _FEWEST_RECORDED * (highest + 1))


def host_of(path: Path, stated: str | None = None) -> str | None:
    """Return the host of a file: that of a folder `host=…`, else the one that it states itself, else the one that
    profiler handlers put into its name, or None.
    """
    handler = _HANDLER_NAME.match(path.name)
    return host_of_folder(path) or stated or (handler["host"] if handler else None)


def host_of_folder(path: Path) -> str | None:
    """Return the host that a folder `host=NAME` of a file states, the innermost one."""
    return next((match[1] for one in path.absolute().parts[-2::-1] if (match := _HOST_FOLDER.match(one))), None)


def _rank_word(text: str) -> int | None:
    match = _RANK_WORD.search(text)
    return int(match.group(1)) if match else None


SUFFIXES: Final = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.zst", ".tar.zstd")


def is_archive_name(path: Path) -> bool:
    """Whether the name is an archive's; only such files are opened as one."""
    return path.name.lower().endswith(SUFFIXES)


def archive_of(path: Path) -> Path | None:
    """Return the archive that a path leads into, None for one that is a file's own."""
    return next((parent for parent in path.parents if is_archive_name(parent) and parent.is_file()), None)


def is_member(path: Path) -> bool:
    """Whether the path leads into an archive."""
    return archive_of(path) is not None


SIZE_KEYS: Final = ("dp_size", "pp_size", "tp_size", "dsp_size", "world_size")
_MAX_LENGTH: Final = 64 << 10
_DIGITS: Final = 10


def metadata_files(source: Path) -> tuple[Path, ...]:
    """Return the file named after the trace, else every YAML file beside it, in order."""
    named = source.with_name(f"meta-{source.stem.removeprefix('trace-')}.yaml")
    candidates = [named] if named.is_file() else sorted([*source.parent.glob("*.yaml"), *source.parent.glob("*.yml")])
    return tuple(path for path in candidates if path.is_file() and path.stat().st_size <= _MAX_LENGTH)


def read_sizes(source: Path) -> dict[str, int]:
    """Return the sizes that the metadata of `source` states; empty where there is none, or it is unclear which."""
    found = [sizes for path in metadata_files(source) if (sizes := parse_sizes(path))]
    return found[0] if len(found) == 1 else {}


def parse_sizes(path: Path) -> dict[str, int]:
    """Return the known `key: integer` lines of a flat YAML file; others are passed over."""
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
