"""Writes a job to a file that other programs open, in the format that the file's name asks for."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal

from kair_engine.blame.analysis import blame
from kair_engine.errors import UsageError
from kair_engine.export.harmless import harmless
from kair_engine.export.timeline import Item, Mark, Slice, replayed_timelines, timeline
from kair_engine.export.trace_events import compressing, write_events
from kair_engine.trace.files import named_file
from kair_engine.trace.model import Trace, require_steps
from kair_engine.triage.analysis import triage
from kair_engine.whatif.model import Model

Format = Literal["timeline", "table"]
SUFFIXES: Final[dict[str, Format]] = {
    ".json": "timeline",
    ".json.gz": "timeline",
    ".pftrace": "timeline",
    ".pftrace.gz": "timeline",
    ".parquet": "table",
    ".csv": "table",
    ".arrow": "table",
}


@dataclass
class Exported:
    """What was written."""

    rows: int = 0
    """Operations: slices of a timeline; of a table also the steps' own rows."""
    findings: int = 0
    """Marks of findings, one for each step and rank that has it."""
    arrows: int = 0


def export(trace: Trace, path: Path, *, plain: bool = False) -> Exported:
    """Write the chosen steps to `path`, whole or not at all; an existing file is replaced.

    A timeline for Perfetto (`.json`, `.json.gz`, `.pftrace`) has findings as marks and arrows along the longest blame
    paths, unless `plain`. A table (`.parquet`, `.csv`, `.arrow`) has the operations as recorded. Raises UsageError for
    another name, where no step is chosen, or where the file cannot be written; UnwritableError where there is no room.
    """
    kind = _kind(path)
    require_steps(trace)
    done = Exported()
    with named_file(path) as file:
        if kind == "table":
            done.rows = _write_table(trace, file, path.suffix)
        else:
            found = () if plain else triage(trace).findings
            paths = () if plain else blame(trace).paths
            _write_timeline(_counted(timeline(trace, found, paths), done), file, path.name.lower())
    return done


def write_timelines(model: Model, path: Path) -> None:
    """Write the timelines of what-if, as recorded and ideal, whole or not at all; trace events but for `.pftrace`.

    Raises UsageError where the file cannot be written, UnwritableError where there is no room for it.
    """
    with named_file(path) as file:
        _write_timeline(replayed_timelines(model.job, model.timelines()), file, path.name.lower())


def _kind(path: Path) -> Format:
    name = path.name.lower()
    kind = next((kind for suffix, kind in SUFFIXES.items() if name.endswith(suffix)), None)
    if kind is None:
        raise UsageError(f"{path.name}: the name has no known ending", f"end it with {', '.join(SUFFIXES)}")
    return kind


def _counted(items: Iterable[Item], done: Exported) -> Iterator[Item]:
    for item in items:
        if isinstance(item, Slice):
            done.rows += 1
            done.arrows += len(item.leaves)
        done.findings += isinstance(item, Mark) and item.kind == "finding"
        yield item


def _write_timeline(items: Iterable[Item], file: IO[bytes], name: str) -> None:
    packed = name.endswith(".gz")
    if ".pftrace" in name:
        from kair_engine.export.timeline import perfetto_packets

        with compressing(file, packed=packed) as out:
            out.writelines(perfetto_packets(items))
    else:
        from kair_engine.export.timeline import chrome_events

        write_events(file, chrome_events(items), packed=packed)


def _write_table(trace: Trace, file: IO[bytes], suffix: str) -> int:
    """Return the operations table of the chosen steps, a batch in memory at a time."""
    import polars as pl

    texts = ("lane", "name", "kind", "phase", "group")
    rows = trace.scan().with_columns(pl.col(name).cast(pl.String) for name in texts)
    if suffix.lower() == ".csv":
        rows = rows.with_columns(map(harmless, texts))
    write: dict[str, Callable[[IO[bytes]], Any]] = {
        ".parquet": rows.sink_parquet,
        ".csv": rows.sink_csv,
        ".arrow": rows.sink_ipc,
    }
    try:
        # Not by its name, which polars cannot take where it is not UTF-8.
        write[suffix.lower()](file)
    except pl.exceptions.ComputeError as error:
        if "IO error" in str(error):  # polars' word for a full disk, as opposed to its own errors
            raise OSError(str(error)) from error
        raise
    return int(trace.scan().select(pl.len()).collect().item())
