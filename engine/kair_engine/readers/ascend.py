"""Reads Ascend's traces (`trace_view.json` of torch_npu, `msprof_*.json` of msprof): one rank's host and device.

A file of msprof may hold one iteration; the fragments of a job join them.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec

from kair_engine.errors import InputError
from kair_engine.readers.ascend_pieces import Device, Piece, device_of, piece_of, slices_of
from kair_engine.readers.chrome_events import ChromeEvent, ChromeTrace, load
from kair_engine.readers.formats import NotATraceError
from kair_engine.readers.fragment_writer import RankRecording, Rows, steps_from, write_recording
from kair_engine.readers.kineto.classify import NameClass, name_class_of
from kair_engine.readers.paths import rank_from_name
from kair_engine.readers.rank_identity import one_line, process_id, variables_that_matter, without_unknown
from kair_engine.readers.step_marks import Mark
from kair_engine.trace.files import read_kept
from kair_engine.trace.identity import RankIdentity
from kair_engine.trace.model import FragmentInfo

_HARDWARE: Final = "Ascend Hardware"
_COMMUNICATION: Final = ("Communication", "HCCL")
_HOST: Final = ("Python", "MindSpore", "CANN")
# `hcom_allReduce__721_1_1`: the operation, a number derived from the group's name, and the number of the call. In a
# graph, `Default/AllReduce-op534_0`: the operator and the number of the call.
_COLLECTIVE: Final = re.compile(
    r"^(hcom_[A-Za-z]+|Hccl[A-Za-z]+|(?:.*/)?(?:All|Reduce|Broadcast|Send|Receive|NeighborExchange)[A-Za-z]*-op\d+)"
)
# Tasks by which streams wait for one another or for other devices; they are no work of the stream.
_WAITS: Final = frozenset({"EVENT_WAIT", "EVENT_RECORD", "EVENT_RESET", "NOTIFY_WAIT", "NOTIFY_RECORD"})
_STEP_TRACE: Final = "Step Trace"
_TRANSFER: Final = re.compile(r"(send|recv|receive)", re.IGNORECASE)
_STEP: Final = re.compile(r"ProfilerStep#\d+$")
_ITERATION: Final = re.compile(r"Iteration (\d{1,9})$")
_RANK_FILE: Final = re.compile(r"^profiler_info_(\d{1,7})\.json$")
# `node7_4711_20260314093042123_ascend_pt`: host, process and time of the recording.
_FOLDER: Final = re.compile(r"^(?!rank_)(?P<host>.+)_(?P<pid>\d{1,7})_\d{14,20}_ascend_pt$", re.IGNORECASE)
_LARGEST_BESIDE: Final = 4 << 20


def read_ascend(source: Path, out: Path, *, rank_hint: int | None = None) -> FragmentInfo:
    """Write `source` as the fragment `out`, and return its description.

    The rank comes from the name of `profiler_info_N.json` next to its folder, else from the device whose folder the
    file is in, else from `rank_hint`, else from the file's name. Raises NotATraceError, also for a piece that is read
    together with another file, InputError if it has no operation of a device, OSError if the disk is full.
    """
    piece, slices, device = piece_of(source), slices_of(source), device_of(source)
    read_with = slices[0] if piece is None else piece.read_with
    if read_with is not None and read_with != source:
        raise NotATraceError(f"its content is read with {read_with.name}")
    traces = [*map(load, slices), *_communication_beside(piece)]
    found = _Found()
    parts = {part for trace in traces for part in _parts_of_collectives(trace)}
    has_communication = any(_names_communication(trace) for trace in traces)
    for trace in traces:
        found.take(trace, parts, has_communication=has_communication)
    rows, marks = found.rows, found.marks if piece is None else _iterations(piece, found.marks)
    if piece is not None and not marks and len(rows):
        marks = [Mark(f"Iteration {piece.iteration}", *rows.extent())]
    if not any(text.startswith("stream") for text in rows.lanes.texts):
        hint = "record with activities CPU and NPU, and analyse it (torch_npu.profiler.profiler.analyse)"
        raise InputError(f"{source.name} holds no operations of a device", hint)
    of_device = None if device is None else device.rank
    told_ranks = (_rank_beside(source), of_device, rank_hint, rank_from_name(source))
    stated = next((rank for rank in told_ranks if rank is not None), None)
    lane = max(found.main, key=lambda one: found.main[one], default="thread host")
    host, pid = _worker(source) if device is None else _of_info(device)
    identity = RankIdentity(stated or 0, pid=pid, versions=_versions(source), environment=_environment(source))
    ranks = [RankRecording(stated or 0, rows, steps_from(marks, rows), lane, host, identity)]
    return write_recording(
        source,
        out,
        ranks,
        form="ascend",
        rank_known=stated is not None,
        has_device=True,
        device="Ascend NPU",
        mark="prof.step()",
        warnings=tuple(warning for trace in traces for warning in trace.warnings(source)),
    )


class _Found:
    """Rows, marks of steps, and the load of each host thread, from the files of one recording."""

    def __init__(self) -> None:
        self.rows = Rows()
        self.marks = list[Mark]()
        self.main: dict[str, int] = {}

    def take(self, trace: ChromeTrace, parts: set[tuple[str, str]], *, has_communication: bool) -> None:
        """Add a file. `parts` are the tasks (stream, number) of collectives that another record already covers."""
        processes, moments = trace.process_names(), _launches(trace)
        of_steps = _step_threads(trace)
        for event, start, duration in trace.complete():
            process = processes.get(str(event.pid), "")
            moment = moments.get((str(event.pid), str(event.tid), start))
            if process == _STEP_TRACE or (str(event.pid), str(event.tid)) in of_steps:
                if _ITERATION.match(event.text):
                    self.marks.append(Mark(event.text, start, start + duration))
            elif process == _HARDWARE:
                is_covered = has_communication and (bool(_COLLECTIVE.match(event.text)) or _task(event) in parts)
                if not is_covered and event.text.upper() not in _WAITS:
                    lane = f"stream {event.tid}"
                    self.rows.add(lane, event.text, _device_kind(event.text), start, duration, moment=moment)
            elif process.startswith(_COMMUNICATION) and (match := _COLLECTIVE.match(event.text)):
                kind = "send" if _TRANSFER.search(match[1]) else "collective"
                self.rows.add(f"stream communication {event.tid}", match[1], kind, start, duration, moment=moment)
            elif process in _HOST:
                self._take_of_host(event, start, duration)

    def _take_of_host(self, event: ChromeEvent, start: int, duration: int) -> None:
        lane = f"thread {event.tid}"
        self.main[lane] = self.main.get(lane, 0) + (1_000_000 if _STEP.match(event.text) else 1)
        if _STEP.match(event.text):
            self.marks.append(Mark(event.text, start, start + duration))
        else:
            self.rows.add(lane, event.text, _host_kind(event.text), start, duration)


def _names_communication(trace: ChromeTrace) -> bool:
    names = trace.process_names()
    return any(names.get(str(event.pid), "").startswith(_COMMUNICATION) for event in trace.events)


def _communication_beside(piece: Piece | None) -> Sequence[ChromeTrace]:
    """Return the file of communication, if the one that is read has none."""
    if piece is None or piece.kind == "hccl" or (path := piece.beside("hccl")) is None:
        return ()
    return () if _names_communication(load(piece.path)) else (load(path),)


def _iterations(piece: Piece, own: Sequence[Mark]) -> list[Mark]:
    """Return the iterations of a piece, each until the next one begins; `own` are those it records itself.

    The file of iterations has all of the device's; without it each iteration ends with its last operation.
    """
    path = piece.beside("step_trace")
    if path is None:
        return [*own]
    found = _Found()
    found.take(load(path), set(), has_communication=False)
    every = sorted({mark.begin: mark for mark in (*found.marks, *own)}.values(), key=lambda mark: mark.begin)
    lasting = [replace(mark, end=max(mark.end, later.begin)) for mark, later in pairwise(every)] + every[-1:]
    names = {mark.name for mark in own} or {f"Iteration {piece.iteration}"}
    return [mark for mark in lasting if mark.name in names]


def _step_threads(trace: ChromeTrace) -> set[tuple[str, str]]:
    """Return (process, thread) of the threads that mark iterations: `Step Trace(Model ID:2)`."""
    return {
        (str(event.pid), str(event.tid))
        for event in trace.events
        if event.ph == "M" and event.name == "thread_name" and str(event.of_args("name")).startswith(_STEP_TRACE)
    }


def _parts_of_collectives(trace: ChromeTrace) -> Iterator[tuple[str, str]]:
    """Yield the tasks that collectives are made of, which run on streams of the device."""
    names = trace.process_names()
    for event in trace.events:
        is_part = event.ph == "X" and names.get(str(event.pid), "").startswith(_COMMUNICATION)
        if is_part and (task := _task(event)) is not None:
            yield task


def _task(event: ChromeEvent) -> tuple[str, str] | None:
    stream, task = (event.of_args(f"{name} Id", f"{name.lower()} id") for name in ("Stream", "Task"))
    return None if stream is None or task is None else (str(stream), str(task))


def _of_info(device: Device) -> tuple[str | None, int | None]:
    """Return host and process as the device's folder states them."""
    info = device.info
    pid = str(info.get("pid"))
    return one_line(info.get("hostname")), process_id(int(pid)) if pid.isdecimal() and len(pid) < 10 else None


def _launches(trace: ChromeTrace) -> dict[tuple[str, str, int], int]:
    """Return (process, thread, begin) of a device's operation → when the host launched it, from the flow arrows."""
    begun: dict[object, int] = {}
    found: dict[tuple[str, str, int], int] = {}
    for event in trace.events:
        if event.ph == "s" and (at := event.begin) is not None:
            begun[_identity(event)] = at
    for event in trace.events:
        if event.ph != "f" or (at := event.begin) is None:
            continue
        if (start := begun.get(_identity(event))) is not None:
            found[str(event.pid), str(event.tid), at] = start
    return found


def _identity(event: ChromeEvent) -> tuple[str, str]:
    return (event.text, str(event.id))


def _device_kind(name: str) -> str:
    if _COLLECTIVE.match(name):
        return "collective"
    return "memory" if name.upper().startswith(("MEMCPY", "MEMSET", "SDMA")) else "compute"


def _host_kind(name: str) -> str:
    kinds = {
        NameClass.DATA_LOADER: "input",
        NameClass.GARBAGE_COLLECTION: "gc",
        NameClass.SYNCHRONIZE: "sync",
    }
    return kinds.get(name_class_of(name), "host")


def _rank_beside(source: Path) -> int | None:
    """Return the rank in the name of `profiler_info_N.json`, which lies in the folder above the output's."""
    ranks = {int(match[1]) for path in _beside(source) if (match := _RANK_FILE.match(path.name))}
    return ranks.pop() if len(ranks) == 1 else None


def _beside(source: Path) -> list[Path]:
    """Return the paths in the output's folder and in the one above it."""
    try:
        return [path for folder in source.absolute().parents[:2] for path in folder.iterdir()]
    except OSError:
        return []


def _worker(source: Path) -> tuple[str | None, int | None]:
    """Return host and process from the folder's name if torch_npu chose it; a custom worker name has neither."""
    match = next((found for folder in source.absolute().parents[:2] if (found := _FOLDER.match(folder.name))), None)
    return (None, None) if match is None else (one_line(match["host"]), process_id(int(match["pid"])))


def _versions(source: Path) -> dict[str, str]:
    """Return the software versions that `profiler_info_N.json` states."""
    of = next((_document(path) for path in _beside(source) if _RANK_FILE.match(path.name)), {})
    npu = one_line(of.get("torch_npu_version"))
    return without_unknown(framework=None if npu is None else f"torch_npu {npu}", cann=one_line(of.get("cann_version")))


def _environment(source: Path) -> dict[str, str]:
    """Return the rank's environment variables from `profiler_metadata.json`."""
    of = next((_document(path) for path in _beside(source) if path.name == "profiler_metadata.json"), {})
    variables = of.get("ENV_VARIABLES")
    return variables_that_matter(variables) if isinstance(variables, dict) else {}


def _document(path: Path) -> dict[str, Any]:
    """Return a small JSON object; empty if the file holds none or cannot be read."""
    try:
        document = msgspec.json.decode(read_kept(path, _LARGEST_BESIDE))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
