"""The rank and the host of a trace file, from its name and its folders'."""

import re
from pathlib import Path
from typing import Final

# More than any job has: a larger rank or world is damage, and lists of missing ranks must stay short.
MAX_RANKS: Final = 1 << 20

_SUFFIXES: Final = re.compile(r"(\.pt)?(\.trace)?(\.json)?(\.gz|\.zst|\.zstd)?$", re.IGNORECASE)
_HANDLER_NAME: Final = re.compile(r"^(?P<host>.+)_(?P<pid>\d+)\.(?:(?P<time>\d+)\.)?pt\.trace\.json", re.IGNORECASE)
_RANK_WORD: Final = re.compile(
    r"(?:^|[^a-z])(?:global[-_]?)?(?:rank|worker|trainer|gpu)[-_ =.]?(\d{1,7})(?!\d)", re.IGNORECASE
)
# Longer trailing numbers are dates, times and process ids.
_LAST_NUMBER: Final = re.compile(r"(?:^|\D)(\d{1,4})\D*$")
_HOST_FOLDER: Final = re.compile(r"^host=(.+)$")


def rank_from_name(path: Path) -> int | None:
    """The rank that the file's name or its folder's states, or None."""
    path = path.absolute()
    stem = _SUFFIXES.sub("", path.name)
    handler = _HANDLER_NAME.match(path.name)
    if handler:
        # `host_pid.time`: the numbers are a process and a time; only a worker name that says `rank` is one.
        match = re.search(r"(?:^|[^a-z])rank[-_ =.]?(\d{1,7})(?!\d)", handler["host"], re.IGNORECASE)
        return int(match.group(1)) if match else _rank_word(path.parent.name)
    in_name = _rank_word(stem)
    if in_name is not None:
        return in_name
    in_folder = _rank_word(path.parent.name)
    if in_folder is not None:
        return in_folder
    match = _LAST_NUMBER.search(stem)
    return int(match.group(1)) if match else None


def host_from_name(path: Path) -> str | None:
    """The host that profiler handlers put into the name, else that of a folder `host=…`, or None."""
    path = path.absolute()
    for folder in path.parts[-2::-1]:
        if match := _HOST_FOLDER.match(folder):
            return match.group(1)
    handler = _HANDLER_NAME.match(path.name)
    return handler["host"] if handler else None


def _rank_word(text: str) -> int | None:
    match = _RANK_WORD.search(text)
    return int(match.group(1)) if match else None
