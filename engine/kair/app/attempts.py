"""The starts of a captured job's processes, and the steps of each, as its coordinator keeps them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kair.app.places import capture_places
from kair_engine.errors import InputError
from kair_engine.results.views import Attempt
from kair_engine.trace.model import Job

if TYPE_CHECKING:
    from kair_capture.agent.step_rows import Rows
    from kair_capture.places import JobPlaces


def places_of(job: Job) -> "JobPlaces | None":
    """Where the steps of a captured job are; None of any other."""
    places = None if job.stored_in is None else capture_places(job.stored_in)
    return places if places is not None and places.steps.is_dir() else None


_OF_ATTEMPTS = ("rank", "step", "begin_us", "step_us", "process_s", "attempt")


def rows_of(places: "JobPlaces", columns: Sequence[str] | None = None) -> "Rows":
    """Every rank's last steps, of all attempts, or of them these columns. Raises InputError where they cannot be read.

    Columns are with rank, step and begin_us.
    """
    import pyarrow as pa

    from kair_capture.agent.step_rows import COLUMNS
    from kair_capture.coordinator.step_log import MOST_ROWS, read_all

    try:
        return read_all(places.steps, MOST_ROWS, columns or COLUMNS)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"cannot read the steps of job {places.job}: {error}") from error


def rows_of_attempts(places: "JobPlaces") -> "Rows":
    """Return what of the rows tells attempts apart. Raises InputError where they cannot be read."""
    return rows_of(places, _OF_ATTEMPTS)


def attempts_of(job: Job) -> tuple[Attempt, ...]:
    """Of a job that was not captured, none. Raises InputError where its steps cannot be read."""
    places = places_of(job)
    if places is None:
        return ()
    from kair_capture.coordinator.step_log import attempts_in

    return attempts_in(rows_of_attempts(places))
