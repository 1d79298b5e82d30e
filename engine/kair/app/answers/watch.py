"""The answer of `watch`: how a running job is doing, as its coordinator wrote it into the store."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from kair.app.places import is_mirror
from kair_capture.places import JobPlaces
from kair_capture.settings import safe_name
from kair_capture.unheard import why_unheard
from kair_engine.errors import InputError
from kair_engine.results.watch import FRESH_S, WatchResult
from kair_engine.trace.files import read_kept

_UNATTENDED_S: Final = 30.0
_APPEARS_S: Final = 5.0
_LOOK_S: Final = 0.2


def watch(store: Path, job: str | None, say: Callable[[str], None]) -> WatchResult:
    """Return the present status of a job; without a name, of $KAIR_JOB, else of the job watched last.

    Raises InputError if it has no coordinator. `say` is called with a sentence while one is waited for.
    """
    places = _found(store, job or os.environ.get("KAIR_JOB"), say)
    try:
        result = msgspec.json.decode(read_kept(places.status), type=WatchResult)
        age = datetime.now(UTC) - datetime.fromisoformat(result.updated_at)
    except FileNotFoundError as error:
        from kair_engine.store.remote import place_of

        way_out = f"kair coordinator --job {places.job}"
        none = f"job {places.job} has no coordinator in the store {place_of(store)}"
        is_away = not store.is_dir()
        away = f"the store {place_of(store)} is not there"
        raise InputError(away if is_away else why_unheard(places) or none, None if is_away else way_out) from error
    except OSError as error:
        raise InputError(f"cannot read {places.status}: {error.strerror or error}") from error
    except (msgspec.MsgspecError, RecursionError, ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{places.status} is damaged: {error}") from error
    age_s = max(age.total_seconds(), 0.0)
    if result.state in ("over", "failed"):
        return result
    why = _not_written(places) if age_s > FRESH_S else None
    result = replace(result, age_s=age_s, unwritten_because=why)
    return result if age_s < _UNATTENDED_S else replace(result, state="unattended")


def _found(store: Path, job: str | None, say: Callable[[str], None]) -> JobPlaces:
    """Return the job's places.

    Who asks right after a coordinator was started waits until that has written something.
    """
    until, has_said = time.monotonic() + _APPEARS_S, False
    while True:
        places = None if job is None and not _watched(store) else _places(store, job)
        if places is not None and is_mirror(store):
            from kair_engine.store.remote import fetch_status

            fetch_status(store, places.job)
        if (places is not None and os.path.lexists(places.status)) or time.monotonic() > until:
            return places or _places(store, job)
        if not has_said:
            has_said = True
            say(f"waiting up to {_APPEARS_S:.0f} s for a coordinator{f' of job {job}' if job else ''} to begin")
        time.sleep(_LOOK_S)


def _not_written(places: JobPlaces) -> str | None:
    """Why the coordinator may be unable to write, as far as that can be seen from here."""
    try:
        room, needed = os.statvfs(places.capture), places.status.stat().st_size
        if room.f_bavail * room.f_frsize < needed or (room.f_files and not room.f_favail):
            return "the store is full"
        return None if os.access(places.capture, os.W_OK) else "the store cannot be written"
    except OSError:
        return "the store is away"


def _watched(store: Path) -> list[Path]:
    return sorted(store.glob("*/capture/status.json"), key=lambda path: path.stat().st_mtime_ns)


def _places(store: Path, job: str | None) -> JobPlaces:
    if job is not None:
        return JobPlaces(store, safe_name(job))
    if not (watched := _watched(store)):
        raise InputError(f"no job of the store {store} is watched", "kair coordinator --job NAME")
    return JobPlaces(store, watched[-1].parents[1].name)
