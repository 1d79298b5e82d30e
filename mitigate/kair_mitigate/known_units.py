"""What is known of a job's units, and of whom: a person, a window that capture sampled, or its agents' first words.

What was found is kept in the job's folder, for whoever looks later.
"""

from pathlib import Path

import msgspec

from kair_capture.places import JobPlaces
from kair_mitigate.policy.units import Units, from_text, joined, of_size, tied_in
from kair_mitigate.restarts import write_whole

FILE = "units.json"
MEMORY = "memory.json"
"""Where the coordinator keeps what agents told, in its folder."""
_MOST_BYTES = 1 << 24


def told_units(ranks: int, units: str | None, size: int | None, micro_batch: int | None) -> Units | None:
    """Return what a person said; None where that is nothing.

    Raises ValueError where that is no units of so many ranks.
    """
    if units is not None and size is not None:
        raise ValueError("either --units or --unit-size, not both")
    if units is not None:
        return Units(from_text(units, ranks), "told", micro_batch)
    return None if size is None else Units(of_size(ranks, size), "told", micro_batch)


def found_units(places: JobPlaces, ranks: int, micro_batch: int | None) -> Units:
    """By a step that capture sampled on all ranks, else by what the agents told, else every rank alone."""
    tied = _recorded(places.folder, ranks)
    if tied is not None:
        return Units(joined(ranks, tied), "recorded", micro_batch)
    from kair_capture.coordinator.status import remembered

    told = [one for one in remembered(places.capture / MEMORY).communication if one.world_size == ranks]
    sends = [(one.rank, other) for one in told for other in (*one.sends, *one.receives)]
    in_part = bool(sends) or any(size < ranks for one in told for size, _ in one.groups)
    return Units(joined(ranks, sends), "in part" if in_part else "assumed", micro_batch)


def _recorded(folder: Path, ranks: int) -> list[tuple[int, ...]] | None:
    """Return what ties ranks in the newest step that all of them recorded; None without one that tells."""
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
        return tied_in(load_step(trace, whole[-1])) if whole and trace.job.world_size == ranks else None
    except (KairError, OSError):
        return None  # it is written, or damaged: there will be another


def units_of(folder: Path, ranks: int) -> Units:
    """Return a job's units as they were written down in its folder, else as they can be found."""
    places = JobPlaces(folder.parent.parent, folder.parent.name)
    return kept_units(folder, ranks) or found_units(places, ranks, None)


def keep_units(folder: Path, units: Units) -> None:
    """Write them down in the job's folder, whole. Raises OSError."""
    write_whole(folder / FILE, msgspec.json.encode(units))


def kept_units(folder: Path, ranks: int) -> Units | None:
    """Return what was written down of a job of so many ranks; None where that is nothing, or damaged."""
    try:
        with (folder / FILE).open("rb") as file:
            units = msgspec.json.decode(file.read(_MOST_BYTES), type=Units)
    except (OSError, ValueError, RecursionError):
        return None
    is_whole = sorted(rank for unit in units.members for rank in unit) == list(range(ranks)) and all(units.members)
    return units if is_whole and (units.micro_batch is None or units.micro_batch > 0) else None
