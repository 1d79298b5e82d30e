"""Parses trace files into the cache: few or small ones in this process, others on all cores."""

import os
import pickle
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from kair_engine.errors import InputError
from kair_engine.frozen import dataclass
from kair_engine.readers.blocks import text_size
from kair_engine.recording.cache import complete
from kair_engine.recording.kept_files import hold
from kair_engine.trace.json_text import encode_json
from kair_engine.trace.model import FragmentInfo, ImportOutcome

if TYPE_CHECKING:
    from kair_engine.readers.formats import Reader

# Below this much text, starting worker processes (0.3 s each) costs more than it saves.
_PARALLEL_FROM: Final = 128 << 20


@dataclass(frozen=True)
class ImportTask:
    """One file to parse, and the path of its fragment."""

    source: Path
    out: Path
    rank_hint: int | None = None
    work: Path | None = None
    """The folder where it is written until complete; None: next to `out`."""


class UnwrittenError(Exception):
    """A fragment cannot be written."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Progress(Protocol):
    """Receives progress reports. An exception that it raises ends the parsing; parsed files stay in the cache."""

    def __call__(self, done: int, total: int, what: str, outcome: ImportOutcome) -> None:
        """Report that `done` of `total` files are finished, the last of them `what`, with this outcome."""


def import_files(
    tasks: Sequence[ImportTask], *, progress: Progress | None = None, workers: int | None = None
) -> Iterator[ImportOutcome]:
    """Yield the outcome of every task, in order, as soon as it is known. Raises UnwrittenError if the disk is full.

    Progress is reported after an outcome was taken, so that an exception from it loses no parsed file.
    """
    processes = _processes(tasks, workers)
    outcomes = _in_processes(tasks, processes) if processes else map(import_file, tasks)
    for done, (task, outcome) in enumerate(zip(tasks, outcomes, strict=True), 1):
        if outcome.write_error is not None:
            raise UnwrittenError(OSError(*outcome.write_error))
        yield outcome
        if progress is not None:
            progress(done, len(tasks), task.source.name, outcome)


def _processes(tasks: Sequence[ImportTask], workers: int | None) -> int:
    """Return the number of processes that read the files; 0: this one reads them."""
    most = min(len(tasks), workers or len(os.sched_getaffinity(0)))
    return most if most > 1 and (workers is not None or _text_of(tasks) >= _PARALLEL_FROM) else 0


def _text_of(tasks: Sequence[ImportTask]) -> int:
    return sum(text_size(task.source) for task in tasks)


def import_file(task: ImportTask) -> ImportOutcome:
    """Parse one file; errors in the input are returned as values, so that they can cross processes."""
    # Imported only if something is to be parsed.
    from kair_engine.readers.formats import NotATraceError, UnsupportedFormatError

    unfinished = (task.work or task.out.parent) / task.out.name
    try:
        # Held, so that no other process takes the folder for a leftover.
        with hold(unfinished.parent):
            info = _read(task, unfinished)
            complete(unfinished, task.out, info)
        return ImportOutcome(info)
    except NotATraceError as error:
        return ImportOutcome(None, str(error), error.hint, is_trace=False)
    except UnsupportedFormatError as error:
        return ImportOutcome(None, str(error), error.hint, is_supported=False)
    except InputError as error:
        return ImportOutcome(None, str(error), error.hint)
    except OSError as error:
        # Readers turn their own failures into InputErrors: the remaining ones are the fragment's.
        return ImportOutcome(None, write_error=_in_plain_words(error))


def _in_plain_words(error: OSError) -> tuple[int, str]:
    """Return the system's own error, which Arrow wraps in a sentence."""
    wrapped = re.search(r"\[errno (\d+)\]", str(error), re.IGNORECASE)
    if wrapped is None:
        return error.errno or 0, error.strerror or str(error)
    return int(wrapped[1]), os.strerror(int(wrapped[1]))


def _read(task: ImportTask, out: Path) -> FragmentInfo:
    from kair_engine.readers.formats import NotATraceError, UnsupportedFormatError, detect_format
    from kair_engine.readers.paths import is_member

    try:
        form = detect_format(task.source)
    except OSError as error:
        raise InputError(f"cannot read {task.source}: {error.strerror or error}") from error
    if form is None:
        raise NotATraceError("it is in no format that is read")
    if form.needs_file and is_member(task.source):
        text = f"{task.source.name} lies in an archive, where {form.words} cannot be read"
        raise UnsupportedFormatError(text, "unpack it")
    module, function = form.reader.split(":")
    reader: Reader = getattr(import_module(module), function)
    return reader(task.source, out, rank_hint=task.rank_hint)


def _in_processes(tasks: Sequence[ImportTask], processes: int) -> Iterator[ImportOutcome]:
    """Yield the outcomes of processes, which open files themselves and return descriptions. Large files go first."""
    from kair_engine.recording.processes import answers

    messages = [pickle.dumps(task) for task in tasks]
    order = sorted(range(len(tasks)), key=lambda at: -text_size(tasks[at].source))
    answered = answers(messages, processes, f"{__name__}:{answer.__name__}", order=order)
    for task, said in zip(tasks, answered, strict=True):
        # A process was killed, or none can be started: an error in the file shows in this process.
        yield import_file(task) if said is None else _outcome(said, task)


def _outcome(said: bytes, task: ImportTask) -> ImportOutcome:
    outcome = msgspec.json.decode(said, type=ImportOutcome)
    return outcome if outcome.info is None else replace(outcome, info=replace(outcome.info, source=str(task.source)))


def answer(message: bytes) -> bytes:
    """Parse the file of a pickled task, in a process for that; return the outcome as JSON.

    Tasks come from this program; an outcome comes from a process that read untrusted files.
    """
    return encode_json(import_file(pickle.loads(message)))
