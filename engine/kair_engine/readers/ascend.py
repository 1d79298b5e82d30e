"""Ascend's traces (`trace_view.json` of torch_npu, `msprof_*.json` of msprof): one rank's host and device."""

import re
from pathlib import Path
from typing import Any, Final

import msgspec

from kair_engine.errors import InputError
from kair_engine.readers.chrome_events import ChromeEvent, ChromeTrace, load, recording, written
from kair_engine.readers.fragment_writer import Rows, steps_from
from kair_engine.readers.identity import rank_from_name
from kair_engine.readers.kineto.classify import NameClass, name_class_of
from kair_engine.readers.rank_identity import process_id, telling, told, variables_that_matter
from kair_engine.readers.step_marks import Mark
from kair_engine.trace.files import read_kept
from kair_engine.trace.identity import RankIdentity
from kair_engine.trace.model import FragmentInfo

_HARDWARE: Final = "Ascend Hardware"
_COMMUNICATION: Final = ("Communication", "HCCL")
_HOST: Final = ("Python", "MindSpore", "CANN")
# `hcom_allReduce__721_1_1`: the operation; a number made of the group's name, and the call's own.
_COLLECTIVE: Final = re.compile(r"^(hcom_[A-Za-z]+|Hccl[A-Za-z]+)")
_TRANSFER: Final = re.compile(r"(send|recv|receive)", re.IGNORECASE)
_STEP: Final = re.compile(r"ProfilerStep#\d+$")
_RANK_FILE: Final = re.compile(r"^profiler_info_(\d{1,7})\.json$")
# `node7_4711_20260314093042123_ascend_pt`: the host, the process, when it was recorded.
_FOLDER: Final = re.compile(r"^(?!rank_)(?P<host>.+)_(?P<pid>\d{1,7})_\d{14,20}_ascend_pt$", re.IGNORECASE)
_LARGEST_BESIDE: Final = 4 << 20


def read_ascend(source: Path, out: Path, *, rank_hint: int | None = None) -> FragmentInfo:
    """Writes `source` as the fragment `out`, and says what it holds.

    The rank is the one that `profiler_info_N.json` beside its folder has in its name, else `rank_hint`, else the one
    its name states. Raises NotATraceError, InputError where no operation of a device is in it, OSError when the disk is
    full.
    """
    trace = load(source)
    processes = trace.process_names()
    rows, marks = Rows(), []
    moments = _launches(trace)
    has_communication = any(processes.get(str(event.pid), "").startswith(_COMMUNICATION) for event in trace.events)
    main: dict[str, int] = {}
    for event, start, duration in trace.complete():
        process = processes.get(str(event.pid), "")
        moment = moments.get((str(event.pid), str(event.tid), start))
        if process == _HARDWARE:
            if not (has_communication and _COLLECTIVE.match(event.text)):
                lane = f"stream {event.tid}"
                rows.add(lane, event.text, _device_kind(event.text), start, duration, moment=moment)
        elif process.startswith(_COMMUNICATION) and (match := _COLLECTIVE.match(event.text)):
            kind = "send" if _TRANSFER.search(match[1]) else "collective"
            rows.add(f"stream communication {event.tid}", match[1], kind, start, duration, moment=moment)
        elif process in _HOST:
            lane = f"thread {event.tid}"
            main[lane] = main.get(lane, 0) + (1_000_000 if _STEP.match(event.text) else 1)
            if _STEP.match(event.text):
                marks.append(Mark(event.text, start, start + duration))
            else:
                rows.add(lane, event.text, _host_kind(event.text), start, duration)
    if not any(text.startswith("stream") for text in rows.lanes.texts):
        hint = "record with activities CPU and NPU, and analyse it (torch_npu.profiler.profiler.analyse)"
        raise InputError(f"{source.name} holds no operations of a device", hint)
    stated = next(
        (rank for rank in (_rank_beside(source), rank_hint, rank_from_name(source)) if rank is not None), None
    )
    lane = max(main, key=lambda one: main[one], default="thread host")
    host, pid = _worker(source)
    identity = RankIdentity(stated or 0, pid=pid, versions=_versions(source), environment=_environment(source))
    ranks = [recording(stated or 0, rows, steps_from(marks, rows), lane, source, host=host, identity=identity)]
    return written(
        source,
        out,
        ranks,
        form="ascend",
        rank_known=stated is not None,
        has_device=True,
        device="Ascend NPU",
        mark="prof.step()",
        warnings=trace.warnings(source),
    )


def _launches(trace: ChromeTrace) -> dict[tuple[str, str, int], int]:
    """(process, thread, begin) of a device's operation → when the host launched it, by the arrows between them."""
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
    """The rank in the name of `profiler_info_N.json`, which lies in the folder above the output's."""
    ranks = {int(match[1]) for path in _beside(source) if (match := _RANK_FILE.match(path.name))}
    return ranks.pop() if len(ranks) == 1 else None


def _beside(source: Path) -> list[Path]:
    """What lies in the output's folder and in the one above it."""
    try:
        return [path for folder in source.absolute().parents[:2] for path in folder.iterdir()]
    except OSError:
        return []


def _worker(source: Path) -> tuple[str | None, int | None]:
    """Host and process in the name of the folder, where torch_npu named it; a worker's own name tells neither."""
    match = next((found for folder in source.absolute().parents[:2] if (found := _FOLDER.match(folder.name))), None)
    return (None, None) if match is None else (told(match["host"]), process_id(int(match["pid"])))


def _versions(source: Path) -> dict[str, str]:
    """What `profiler_info_N.json` says of software."""
    of = next((_document(path) for path in _beside(source) if _RANK_FILE.match(path.name)), {})
    npu = told(of.get("torch_npu_version"))
    return telling(framework=None if npu is None else f"torch_npu {npu}", cann=told(of.get("cann_version")))


def _environment(source: Path) -> dict[str, str]:
    """What `profiler_metadata.json` says of the rank's environment."""
    of = next((_document(path) for path in _beside(source) if path.name == "profiler_metadata.json"), {})
    variables = of.get("ENV_VARIABLES")
    return variables_that_matter(variables) if isinstance(variables, dict) else {}


def _document(path: Path) -> dict[str, Any]:
    """A small JSON object; empty where it is none, or cannot be read."""
    try:
        document = msgspec.json.decode(read_kept(path, _LARGEST_BESIDE))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
