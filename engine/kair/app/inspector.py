"""Opens the logs of NCCL's Inspector where nothing else was recorded of a job."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kair_engine.errors import InputError
from kair_engine.readers.formats import read_head
from kair_engine.recording.opening import find_files, job_name
from kair_engine.trace.model import INSPECTOR, Job, StepTimes, Trace

if TYPE_CHECKING:
    from kair.app.question import Watcher
    from kair_engine.triage.history.rows import StepHistory

_OF_PLUGIN: Final = re.compile(r"_\d{1,20}_\d{1,7}\.json(\.gz|\.zst)?$")
"""`…_HASH_RANK.json`, of the communicator and the rank in it."""


def inspector_logs(paths: Sequence[Path]) -> list[Path]:
    """Return the named files if NCCL Inspector or its example profiler plug-in wrote all of them."""
    files = [file for path in paths for file in (find_files(path).files if path.is_dir() else (path,))]
    if not files or not all(map(_may_be, files)):
        return []
    from kair_engine.readers.inspector_calls import is_inspector_log  # few recordings are any

    return files if all(map(is_inspector_log, files)) else []


def _may_be(file: Path) -> bool:
    """By its name and first letter: JSON lines in a log, or a list named for a communicator and a rank in it."""
    begin = b"{" if ".log" in file.name else b"["
    if begin == b"[" and _OF_PLUGIN.search(file.name) is None:
        return False
    try:
        return read_head(file).text.startswith(begin)
    except (OSError, InputError):
        return False


def job_of_inspector(files: Sequence[Path], name: str, paths: Sequence[Path], progress: "Watcher") -> Trace:
    """Return a job of which only collectives were recorded: their cycles are its steps, without operators.

    Raises InputError if no two ranks met in any of them.
    """
    from kair_engine.readers.inspector_calls import read_calls
    from kair_engine.triage.inspector.rows import log_of

    calls = read_calls(files, progress)
    log = log_of(calls)
    if len(log.who.ranks) < 2:
        text = f"{paths[0]} holds the collectives of one rank, which shows neither who waited nor for whom"
        raise InputError(text, "give the logs of all ranks, the whole NCCL_INSPECTOR_DUMP_DIR")
    if not len(log.history.steps):
        text = f"{paths[0]} holds no cycle of collectives that recurs on all ranks"
        raise InputError(text, "record more steps, on all ranks: NCCL_INSPECTOR_DUMP_COLL_RING_SIZE keeps more of them")
    steps = tuple(range(log.windows))
    job = Job(
        name=job_name(paths[0]) if name == str(paths[0]) else name,
        source=name if len(paths) == 1 else ", ".join(map(str, paths)),
        format=INSPECTOR,
        world_size=log.who.world_size,
        ranks=log.who.ranks,
        hosts=log.who.hosts,
        layout=None,
        device=None,
        has_device=True,
        absolute_time=False,
        steps=steps,
        step_times=StepTimes(),
        operations=0,
        warnings=(*calls.warnings, *log.warnings),
    )
    return Trace(job, (), steps, lines=log)


def history_of_collectives(trace: Trace) -> "StepHistory | None":
    """Return the waiting in the chosen steps' collectives; None for a job without Inspector logs."""
    from kair_engine.triage.inspector.rows import InspectorLog

    if not isinstance(trace.lines, InspectorLog):
        return None
    history = trace.lines.history
    return history if trace.steps == trace.job.steps else history.of_steps(trace.steps)
