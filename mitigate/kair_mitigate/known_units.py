"""Finds a job's units: from a user, from a window that capture sampled, or from its agents' first report.

The result is kept in the job's folder for later readers.
"""

from pathlib import Path

import msgspec

from kair_capture.places import JobPlaces
from kair_mitigate.policy.units import LOOKED_AT, Units, from_text, joined, of_size, tied_in_all
from kair_mitigate.restarts import write_whole

FILE = "units.json"
MEMORY = "memory.json"
"""The coordinator's file of agents' reports, in its folder."""
_MOST_BYTES = 1 << 24


def given_units(ranks: int, units: str | None, size: int | None, micro_batch: int | None) -> Units | None:
    """Return the units that a user gave; None without any.

    Raises ValueError if they do not fit the number of ranks.
    """
    if units is not None and size is not None:
        raise ValueError("either --units or --unit-size, not both")
    if units is not None:
        return Units(from_text(units, ranks), "told", micro_batch)
    return None if size is None else Units(of_size(ranks, size), "told", micro_batch)


def found_units(places: JobPlaces, ranks: int, micro_batch: int | None) -> Units:
    """Return the units by steps that capture sampled on all ranks, else by agents' reports, else one per rank."""
    tied = _recorded(places.folder, ranks)
    if tied is not None:
        return Units(joined(ranks, tied), "recorded", micro_batch)
    from kair_capture.coordinator.status import remembered

    known = [one for one in remembered(places.capture / MEMORY).communication if one.world_size == ranks]
    sends = [(one.rank, other) for one in known for other in (*one.sends, *one.receives)]
    in_part = bool(sends) or any(size < ranks for one in known for size, _ in one.groups)
    return Units(joined(ranks, sends), "in part" if in_part else "assumed", micro_batch)


def _recorded(folder: Path, ranks: int) -> list[tuple[int, ...]] | None:
    """Return the ties between ranks in the newest steps that all of them recorded; None if those do not show them."""
    from kair_engine.errors import KairError
    from kair_engine.recording.job_file import holds_job, open_job_folder
    from kair_engine.trace.loading import load_step

    if not holds_job(folder):
        return None
    try:
        trace = open_job_folder(folder)
        of = trace.job.step_times
        recorded = set(zip(of.step, of.rank, strict=True))
        whole = [step for step in trace.steps if all((step, rank) in recorded for rank in range(ranks))]
        newest = whole[-LOOKED_AT:] if trace.job.world_size == ranks else []
        return tied_in_all(load_step(trace, step) for step in newest)
    except (KairError, OSError):
        return None  # being written, or damaged: a later one will do


def units_of(folder: Path, ranks: int) -> Units:
    """Return a job's units from its folder, else as they can be found."""
    places = JobPlaces(folder.parent.parent, folder.parent.name)
    return kept_units(folder, ranks) or found_units(places, ranks, None)


def keep_units(folder: Path, units: Units) -> None:
    """Write the units into the job's folder atomically. Raises OSError."""
    write_whole(folder / FILE, msgspec.json.encode(units))


def kept_units(folder: Path, ranks: int) -> Units | None:
    """Return the stored units of a job with this many ranks; None if there are none or they are damaged."""
    try:
        with (folder / FILE).open("rb") as file:
            units = msgspec.json.decode(file.read(_MOST_BYTES), type=Units)
    except (OSError, ValueError, RecursionError):
        return None
    is_whole = sorted(rank for unit in units.members for rank in unit) == list(range(ranks)) and all(units.members)
    return units if is_whole and (units.micro_batch is None or units.micro_batch > 0) else None
