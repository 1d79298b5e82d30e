"""Trace files parsed into the cache: few or small ones in this process, the rest on all cores."""

import os
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Final, Protocol

from kair_engine.errors import InputError
from kair_engine.frozen import dataclass
from kair_engine.readers.blocks import text_size
from kair_engine.recording.cache import complete
from kair_engine.recording.in_use import hold
from kair_engine.trace.model import FragmentInfo

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from kair_engine.readers.formats import Reader

# Below this much text, starting worker processes (0.3 s each) costs more than it saves.
_PARALLEL_FROM: Final = 128 << 20
_SCAN_OF_A_PROCESS: Final = 512 << 20
"""What one process reads where events are scanned by machine code: each has to load it, and is twice as fast then."""


@dataclass(frozen=True)
class ImportTask:
    """One file to parse, and where its fragment goes."""

    source: Path
    out: Path
    rank_hint: int | None = None
    work: Path | None = None
    """Where it is written until it is whole; beside `out` where that is None."""


@dataclass(frozen=True)
class ImportOutcome:
    """What became of a task: its info, or why there is none."""

    info: FragmentInfo | None
    error: str | None = None
    hint: str | None = None
    is_trace: bool = True
    """False for a file that was readable and turned out to be something else."""
    is_supported: bool = True
    """False for a recording of a format that is known and not read; `hint` says how to convert it."""
    write_error: OSError | None = None
    """Why the fragment could not be written; the next one could not be either."""


class UnwrittenError(Exception):
    """A fragment cannot be written."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Progress(Protocol):
    """Whom parsing reports to. What it raises ends the parsing; files that were parsed by then stay in the cache."""

    def __call__(self, done: int, total: int, what: str, outcome: ImportOutcome) -> None:
        """`done` of `total` files are finished, the last of them `what`, with this outcome."""


def import_files(
    tasks: Sequence[ImportTask], *, progress: Progress | None = None, workers: int | None = None
) -> Iterator[ImportOutcome]:
    """The outcome of every task, in order, each as soon as it is there. Raises UnwrittenError when the disk is full.

    Progress is told of a file after its outcome was taken, so that what it raises costs no file that was parsed.
    """
    processes = _processes(tasks, workers)
    outcomes = _in_processes(tasks, processes) if processes else map(import_file, tasks)
    for done, (task, outcome) in enumerate(zip(tasks, outcomes, strict=True), 1):
        if outcome.write_error is not None:
            raise UnwrittenError(outcome.write_error)
        yield outcome
        if progress is not None:
            progress(done, len(tasks), task.source.name, outcome)


def _processes(tasks: Sequence[ImportTask], workers: int | None) -> int:
    """How many processes read the files; 0 where this one does."""
    from kair_engine.readers.kineto.compiled.choice import pays

    text, most = _text_of(tasks), min(len(tasks), workers or len(os.sched_getaffinity(0)))
    if workers is None and pays(text):
        # Not this process even where one is enough: machine code keeps 120 MB, which it needs for what comes then.
        return min(most, 1 + text // _SCAN_OF_A_PROCESS)
    return most if most > 1 and (workers is not None or text >= _PARALLEL_FROM) else 0


def _text_of(tasks: Sequence[ImportTask]) -> int:
    return sum(text_size(task.source) for task in tasks)


def import_file(task: ImportTask) -> ImportOutcome:
    """Parses one file; what is wrong with the input comes back as a value, so that it can cross processes."""
    # Only where something is to be parsed.
    from kair_engine.readers.detect import NotATraceError, UnsupportedFormatError

    unfinished = (task.work or task.out.parent) / task.out.name
    try:
        # While this process works there, nobody takes the folder for a leftover.
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
        # Readers turn their own failures into InputErrors: what is left is the fragment's.
        return ImportOutcome(None, write_error=_in_plain_words(error))


def _in_plain_words(error: OSError) -> OSError:
    """The system's own error, which Arrow tells in a sentence of its own."""
    number = re.search(r"\[errno (\d+)\]", str(error), re.IGNORECASE)
    return OSError(int(number[1]), os.strerror(int(number[1]))) if number else error


def _read(task: ImportTask, out: Path) -> FragmentInfo:
    from kair_engine.readers.archive_names import is_member
    from kair_engine.readers.detect import NotATraceError, UnsupportedFormatError, detect_format
    from kair_engine.readers.formats import FORMATS

    try:
        form = detect_format(task.source)
    except OSError as error:
        raise InputError(f"cannot read {task.source}: {error.strerror or error}") from error
    if form is None:
        raise NotATraceError(f"its content is none of {', '.join(one.words for one in FORMATS)}")
    if form.needs_file and is_member(task.source):
        text = f"{task.source.name} lies in an archive, where {form.words} cannot be read"
        raise UnsupportedFormatError(text, "unpack it")
    module, function = form.reader.split(":")
    reader: Reader = getattr(import_module(module), function)
    return reader(task.source, out, rank_hint=task.rank_hint)


def _in_processes(tasks: Sequence[ImportTask], processes: int) -> Iterator[ImportOutcome]:
    """Each worker opens its own files; only what a fragment holds comes back. Large files go first."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    context = multiprocessing.get_context("spawn")
    # Workers end when the other end is closed: by this process, or by its death.
    told, until_closed = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(
        processes, mp_context=context, initializer=_begin_worker, initargs=(told, _text_of(tasks) // processes)
    )
    try:
        order = sorted(range(len(tasks)), key=lambda at: -text_size(tasks[at].source))
        with _without_interrupts():
            futures = {at: pool.submit(import_file, tasks[at]) for at in order}
        for at in range(len(tasks)):
            try:
                outcome = futures[at].result()
            except BrokenProcessPool:
                # A worker was killed, or workers cannot start here (a script without a __main__ guard).
                outcome = import_file(tasks[at])
            yield outcome
    finally:
        until_closed.close()
        pool.shutdown(cancel_futures=True)
        told.close()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes that are started here never hear of Ctrl-C: the one who started them ends them without a word."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _begin_worker(told: "Connection", text: int) -> None:
    from kair_engine.readers.kineto.compiled.choice import load, pays

    _end_with_parent(told)
    if pays(text):
        load()


def _end_with_parent(told: "Connection") -> None:
    """Lets this worker end as soon as nobody waits for it any more, in the middle of a file too."""

    def wait() -> None:
        with suppress(EOFError, OSError):
            told.recv_bytes()
        os._exit(1)

    Thread(target=wait, daemon=True).start()
