"""The folder of a recording as tools open it, made from the fetched files, the project's own or a simulation."""

from __future__ import annotations

import gzip
import io
import os
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from .catalogue import Entry, Truth

PROJECT: Final = Path(__file__).resolve().parents[2]
_RANK = re.compile(rb'"rank"\s*:\s*(\d+)')
_NUMBER = re.compile(r"(\d+)")


@dataclass(frozen=True)
class Prepared:
    """What tools are given."""

    recording: Path
    traces: tuple[Path, ...]
    """Kineto traces in the ranks' order, called as every tool finds them; empty where it is another format."""
    truth: Truth


def prepare(entry: Entry, files: Mapping[str, bytes], folder: Path) -> Prepared:
    """Return an entry's recording, written below `folder` unless the project has it. Raises OSError."""
    truth = entry.truth
    recording = folder / "input"
    recording.mkdir()
    if entry.format == "pipemorph":
        recording = _pipemorph(files, recording)
    elif entry.format == "simulated":
        truth = _simulated(entry, folder)
    elif "folder" in entry.made:
        recording = PROJECT / str(entry.made["folder"])
    elif entry.format.endswith("tar"):
        for data in files.values():
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                archive.extractall(recording, filter="data")
    else:
        _write(files, recording)
        recording = recording / entry.opened if entry.opened else recording
    assert truth is not None
    is_kineto = entry.format in ("kineto", "kineto tar", "simulated")
    traces = _by_rank(recording, folder / "by_rank") if is_kineto else ()
    return Prepared(recording, traces, truth)


def _write(files: Mapping[str, bytes], folder: Path) -> None:
    """Below their common folder they stand as in the repository."""
    shared = os.path.commonpath([PurePosixPath(path).parent for path in files])
    for path, data in files.items():
        file = folder / PurePosixPath(path).relative_to(shared)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def _pipemorph(files: Mapping[str, bytes], folder: Path) -> Path:
    """All iterations after the first two, which warm up."""
    from pipemorph import write_recording

    out = folder / "trace-PM.parquet"
    texts = [data.decode() for path, data in files.items() if path.endswith("_1F1B.log")]
    write_recording(texts, out, range(3, 16))
    return out


def _simulated(entry: Entry, folder: Path) -> Truth:
    """Simulates a job, which writes its traces to `folder`/input, and returns what is wrong with it."""
    from dataclasses import replace

    from job_folder import write_ahead_folder
    from scenarios import scenarios

    chosen = [one for one in scenarios() if (one.layout, one.name) == (entry.made["layout"], entry.made["scenario"])]
    (folder / "input").rmdir()
    told = write_ahead_folder(replace(chosen[0].spec(entry.made["seed"]), steps=10), folder)
    by = "the simulator"
    if told["verdict"] == "no_straggler":
        return Truth("healthy", by)
    faults = list(told["faults"])  # type: ignore[attr-defined]
    ranks = sorted({rank for fault in faults for rank in fault["ranks"]})
    causes = tuple(sorted({fault["cause"] for fault in faults}))
    return Truth("ranks", by, tuple(ranks), causes, lost_us=float(told["loss_us"]))  # type: ignore[arg-type]


def _by_rank(folder: Path, links: Path) -> tuple[Path, ...]:
    """Links called rank0_trace.json and so on: by the rank that a trace states, otherwise in the names' order."""
    traces = sorted(folder.rglob("*.json*"), key=lambda path: [int(n) for n in _NUMBER.findall(path.name)])
    traces = [path for path in traces if path.name != "truth.json"]
    stated = [_stated_rank(path) for path in traces]
    order = range(len(traces)) if None in stated or len(set(stated)) < len(stated) else stated
    links.mkdir()
    made = []
    for path, rank in sorted(zip(traces, order, strict=True), key=lambda pair: int(pair[1] or 0)):
        link = links / f"rank{rank}_trace.json{'.gz' if path.suffix == '.gz' else ''}"
        link.symlink_to(path.resolve())
        made.append(link)
    return tuple(made)


def _stated_rank(path: Path) -> int | None:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        data = file.read()
    place = data.find(b'"distributedInfo"')
    found = _RANK.search(data, place, place + 4000) if place >= 0 else None
    return int(found[1]) if found else None
