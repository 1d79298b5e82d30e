"""Folders of store, data and cache on this machine. None of them need exist."""

import os
import re
from collections.abc import Hashable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from kair_engine.errors import UsageError

if TYPE_CHECKING:
    from kair_capture.places import JobPlaces

OfTraces = Literal["notes", "bookmarks"]
OF_TRACES: Final[tuple[OfTraces, ...]] = ("notes", "bookmarks")
"""What users make of traces that are in no store."""
_FACTORS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def store_root(chosen: Path | None) -> Path:
    """Return the job store: `--store`, else $KAIR_STORE, else the user's data folder.

    For a URL the folder that mirrors it.
    """
    if chosen is None and (named := os.environ.get("KAIR_STORE")):
        chosen = Path(named)
    if chosen is None:
        return data_root() / "store"
    return _mirror(chosen) if ":" in str(chosen) else chosen


def capture_places(stored_in: str) -> "JobPlaces":
    """Return where capture keeps its records of the job whose recording is stored there."""
    from kair_capture.places import JobPlaces

    folder = Path(stored_in).parent
    return JobPlaces(folder.parent, folder.name)


def state_of_files(place: Path) -> Hashable:
    """Return a value that changes whenever the file, or any file below the folder, does."""
    files = sorted(place.rglob("*")) if place.is_dir() else [place]
    found = []
    for file in files:
        with suppress(OSError):
            state = file.stat()
            found.append((str(file), state.st_size, state.st_mtime_ns))
    return tuple(found)


def is_mirror(store: Path) -> bool:
    """Return whether a store's folder mirrors one behind a URL, which is refreshed before it is read."""
    return (store / ".remote").exists()


def _mirror(chosen: Path) -> Path:
    from kair_engine.store.remote import mirror_of, url_in

    url = url_in(chosen)
    return chosen if url is None else mirror_of(url, cache_root())


def data_root() -> Path:
    """Return the user's data folder, which holds what the user made and would miss."""
    from platformdirs import user_data_path

    return user_data_path("kair", appauthor=False)


def kept_with(source: Path, kind: OfTraces) -> Path:
    """Return the file for notes on traces outside a store; nothing is written next to traces."""
    from hashlib import blake2b

    key = blake2b(str(source.resolve()).encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()
    return data_root() / kind / f"{key}.json"


def cache_root() -> Path:
    """Return the folder of parsed traces: $KAIR_CACHE, else the user's cache folder.

    If it is not writable, the engine works without it.
    """
    if named := os.environ.get("KAIR_CACHE"):
        return Path(named)
    from platformdirs import user_cache_path

    return user_cache_path("kair", appauthor=False)


def cache_limit() -> int:
    """Return the cache's limit in bytes: $KAIR_CACHE_LIMIT (20G, 500M), else the engine's. Raises UsageError."""
    from kair_engine.recording.cache import LIMIT

    named = os.environ.get("KAIR_CACHE_LIMIT")
    if not named:
        return LIMIT
    return _size("KAIR_CACHE_LIMIT", named)


def memory_limit() -> int | None:
    """Return the bytes that a step may take in memory: $KAIR_MAX_MEMORY; None for all there is. Raises UsageError."""
    named = os.environ.get("KAIR_MAX_MEMORY")
    return _size("KAIR_MAX_MEMORY", named) if named else None


def _size(variable: str, named: str) -> int:
    match = re.fullmatch(r"([0-9]{1,12})([KMGT]?)B?", named.strip().upper())
    if match is None:
        raise UsageError(f"${variable} is no size: {named!r}", "write it as 20G or 500M")
    return int(match[1]) * _FACTORS[match[2]]
