"""Nsight Systems reports, exported to SQLite: one file to one fragment, a rank for each process with a GPU."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kair_engine.errors import InputError
from kair_engine.readers.fragment_writer import EPOCH_NS, About, RankRecording, write_recording
from kair_engine.readers.identity import host_of, rank_from_name
from kair_engine.readers.nsys.database import Report, opened
from kair_engine.readers.nsys.processes import Process, processes_of
from kair_engine.readers.nsys.ranks import environment, host_name, said_rank
from kair_engine.readers.nsys.rows import main_thread, marks_of, rows_of
from kair_engine.readers.step_search import steps_from
from kair_engine.trace.format import INSIDE_UNKNOWN
from kair_engine.trace.model import FragmentInfo, KairWarning
from kair_engine.trace.warning_texts import short_warning


def read_nsys(source: Path, out: Path, *, rank_hint: int | None = None) -> FragmentInfo:
    """Writes `source` as the fragment `out`, and says what it holds.

    The rank of a process is what its marks state, of a single process also what its environment or the file's name
    does; otherwise processes count on from `rank_hint`, or from 0 with `rank_known` false. Raises NotATraceError where
    it is another database, InputError where it is damaged or no GPU did anything in it, OSError when the disk is full.
    """
    with opened(source) as report:
        processes = processes_of(report)
        if not processes:
            hint = "record with nsys profile --trace=cuda,nvtx, and export that"
            raise InputError(f"{source.name} holds no operations of a GPU", hint)
        known = environment(report)
        ranks, are_known = _ranks(processes, known.rank, source, rank_hint)
        base, device = _epoch(report), _device(report)
        host = host_of(source, host_name(report))
    recordings = [_recording(process, rank, base, host) for process, rank in zip(processes, ranks, strict=True)]
    warnings = (*recordings[0].steps.warnings(source, "an NVTX range for each, `step N`"), *_graphs(processes, source))
    about = About(
        format="nsys",
        rank_known=are_known,
        has_device=True,
        absolute_time=base > EPOCH_NS,
        world_size=known.world_size if known.rank is not None else None,
        device=device,
        warnings=warnings,
    )
    return write_recording(source, out, recordings, about)


def _ranks(
    processes: list[Process], of_environment: int | None, source: Path, rank_hint: int | None
) -> tuple[list[int], bool]:
    """The processes' ranks, and whether they are known."""
    said = [said_rank(process.said) for process in processes]
    stated = [rank for rank in said if rank is not None]
    if len(stated) == len(processes) == len(set(stated)):
        return stated, True
    single = of_environment if len(processes) == 1 else None
    named = next((rank for rank in (single, rank_hint, rank_from_name(source)) if rank is not None), None)
    first = named or 0
    return list(range(first, first + len(processes))), named is not None


def _epoch(report: Report) -> int:
    """What the report's times count from, in ns since 1970; 0 where it does not say."""
    (began,) = next(report.rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",)), (0,))
    return began if isinstance(began, int) and EPOCH_NS < began < 1 << 62 else 0


def _device(report: Report) -> str | None:
    names = (name for (name,) in report.rows("TARGET_INFO_GPU", ("name",)))
    return next((name for name in names if isinstance(name, str) and name), None)


def _graphs(processes: list[Process], source: Path) -> Iterator[KairWarning]:
    launches = sum(
        int(np.count_nonzero(np.isin(process.device.name, _named(process, INSIDE_UNKNOWN)))) for process in processes
    )
    if launches:
        text = f"{source.name} has {launches} launches of CUDA graphs without what is in them"
        yield short_warning("graphs_as_a_whole", f"{text}: record with nsys profile --cuda-graph-trace=node")


def _named(process: Process, ending: str) -> list[int]:
    return [number for number, name in enumerate(process.names) if name.endswith(ending)]


def _recording(process: Process, rank: int, base: int, host: str | None) -> RankRecording:
    thread = main_thread(process)
    rows = rows_of(process, base, thread)
    steps = steps_from(marks_of(process, base, thread), rows)
    return RankRecording(rank, rows, steps, f"thread {thread & 0xFFFFFF}", host)
