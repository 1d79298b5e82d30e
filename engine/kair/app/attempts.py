"""The starts of a captured job's processes, and the steps of each, as its coordinator keeps them."""

from typing import TYPE_CHECKING

from kair.app.places import capture_places
from kair_engine.errors import InputError
from kair_engine.results.views import Attempt
from kair_engine.trace.model import Job

if TYPE_CHECKING:
    from kair_capture.agent.step_rows import Rows
    from kair_capture.coordinator.step_columns import StepColumns
    from kair_capture.places import JobPlaces


def places_of(job: Job) -> "JobPlaces | None":
    """Return where the steps of a captured job are; None for any other job."""
    places = None if job.stored_in is None else capture_places(job.stored_in)
    return places if places is not None and places.steps.is_dir() else None


_OF_ATTEMPTS = ("rank", "step", "begin_us", "step_us", "process_s", "attempt")


def rows_of(places: "JobPlaces") -> "Rows":
    """Return every rank's last steps, of all attempts. Raises InputError if they cannot be read."""
    import pyarrow as pa

    from kair_capture.coordinator.step_log import MOST_ROWS, read_all

    try:
        return read_all(places.steps, MOST_ROWS)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(places, error) from error


def rows_of_attempts(places: "JobPlaces") -> "StepColumns":
    """Return the columns that separate attempts. Raises InputError if they cannot be read."""
    import pyarrow as pa

    from kair_capture.coordinator.step_log import MOST_ROWS, read_columns

    try:
        return read_columns(places.steps, MOST_ROWS, _OF_ATTEMPTS)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(places, error) from error


def _unreadable(places: "JobPlaces", error: Exception) -> InputError:
    return InputError(f"cannot read the steps of job {places.job}: {error}")


def attempts_of(job: Job) -> tuple[Attempt, ...]:
    """Return a captured job's attempts, none for another job. Raises InputError if its steps cannot be read."""
    places = places_of(job)
    if places is None:
        return ()
    from kair_capture.coordinator.step_log import attempts_in

    return attempts_in(rows_of_attempts(places))
