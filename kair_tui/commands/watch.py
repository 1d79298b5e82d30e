"""`kair watch`: how a running job is doing, as its coordinator wrote it into the store."""

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from kair_engine.errors import InputError
from kair_engine.results.watch import WatchResult
from kair_tui.cli.completion import job_names
from kair_tui.cli.options import Argument
from kair_tui.cli.places import is_mirror

if TYPE_CHECKING:
    from kair_capture.places import JobPlaces

RENDERER = "kair_tui.render.watch"

_UNATTENDED_S: Final = 30.0
_TEXT = "A job that is watched. Default: $KAIR_JOB, else the one that was watched last."


def run(store: Path, *, job: Annotated[str | None, Argument(_TEXT, offers=job_names)] = None) -> WatchResult:
    """The status as it is now. Raises InputError where the job has no coordinator."""
    import msgspec

    from kair_engine.trace.files import read_kept

    places = _places(store, job or os.environ.get("KAIR_JOB"))
    if is_mirror(store):
        from kair_engine.store.remote import fetch_status

        fetch_status(store, places.job)
    try:
        result = msgspec.json.decode(read_kept(places.status), type=WatchResult)
        age = datetime.now(UTC) - datetime.fromisoformat(result.updated_at)
    except FileNotFoundError as error:
        from kair_engine.store.remote import place_of

        way_out = f"kair coordinator --job {places.job}"
        raise InputError(f"job {places.job} has no coordinator in the store {place_of(store)}", way_out) from error
    except OSError as error:
        raise InputError(f"cannot read {places.status}: {error.strerror or error}") from error
    except (msgspec.MsgspecError, RecursionError, ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{places.status} is damaged: {error}") from error
    attended = result.state == "over" or age.total_seconds() < _UNATTENDED_S
    return result if attended else replace(result, state="unattended")


def _places(store: Path, job: str | None) -> "JobPlaces":
    from kair_capture.places import JobPlaces
    from kair_capture.settings import safe_name

    if job is not None:
        return JobPlaces(store, safe_name(job))
    watched = sorted(store.glob("*/capture/status.json"), key=lambda path: path.stat().st_mtime_ns)
    if not watched:
        raise InputError(f"no job of the store {store} is watched", "kair coordinator --job NAME")
    return JobPlaces(store, watched[-1].parents[1].name)
