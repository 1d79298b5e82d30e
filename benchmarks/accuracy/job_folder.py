"""Writes a recording as a job folder, which `kair` opens as it opens one of its store."""

from pathlib import Path

from recording import Recording
from table import write_table

from kair_engine.recording.job_file import JobFile, KeptFragment, write_job_file
from kair_engine.recording.seals import seal_of
from kair_engine.trace.model import FragmentInfo

FRAGMENTS = "fragments"


def write_job_folder(recording: Recording, folder: Path) -> Path:
    """Writes the operations table and `job.json` into `folder` and returns it. Raises OSError when the disk is full."""
    job = write_table(recording, folder / FRAGMENTS).job
    info = FragmentInfo(
        source="simulated",
        format=job.format,
        ranks=job.ranks,
        rank_known=True,
        world_size=job.world_size,
        hosts=job.hosts,
        device=job.device,
        has_device=job.has_device,
        absolute_time=job.absolute_time,
        operations=job.operations,
        layout=job.layout,
        step_times=job.step_times,
        warnings=job.warnings,
    )
    path = f"{FRAGMENTS}/all-ranks.parquet"
    fragments = (KeptFragment(path, seal_of(folder / path), info),)
    write_job_file(folder, JobFile(folder.name, "2026-01-01T00:00:00+00:00", "simulated", FRAGMENTS, fragments, ()))
    return folder
