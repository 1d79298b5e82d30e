"""Writes a rank's state when it is asked where it stands, and when it ends.

A signal handler in C writes stacks, so it works even while Python waits forever in a collective. The Flight Recorder is
written by a thread that sleeps in a read until then and needs the interpreter: if that is blocked, there are only
stacks.
"""

import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from kair_capture.files import write_atomically

ASK, STACKS, CALLS, FAULT, END = "ask", "stacks", "calls", "fault", "end"
"""A process's files, by the ends of their names: `rank-<rank>-<pid>.<end>`."""
_MOST_CALLS: Final = 128
"""Last calls that are written: a hanging rank has made no later ones."""
_MOST_TEXT: Final = 200
_MOST_GROUPS: Final = 1000


def file_of(run_dir: Path, rank: int, pid: int, end: str) -> Path:
    """Return one of the files of a process."""
    return run_dir / f"rank-{rank}-{pid}.{end}"


class Dumps:
    """Dumps of one process, from its first step on."""

    def __init__(self, run_dir: Path, rank: int) -> None:
        """Raise OSError if the files cannot be created."""
        self._files = {end: file_of(run_dir, rank, os.getpid(), end) for end in (ASK, STACKS, CALLS, FAULT, END)}
        self._pid = os.getpid()
        self._held: list[int] = []
        self._files[END].unlink(missing_ok=True)  # a process can be captured twice
        self.signal: Final = self._register_stacks()
        """The signal's number; 0 if none is free, so that stacks cannot be requested."""
        self._watch_faults()
        self._asked = -1
        if _counts_calls():
            os.mkfifo(self._files[ASK], 0o600)
            # Open for both directions, so that a read waits whether or not a writer exists.
            self._asked = os.open(self._files[ASK], os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            threading.Thread(target=self._answer, name="kair-dumps", daemon=True).start()

    def close(self) -> None:
        """Report how the process, or capture in it, ends, as far as Python knows."""
        if os.getpid() != self._pid:
            return
        error = getattr(sys, "last_value", None)
        with suppress(OSError):
            write_atomically(self._files[END], json.dumps(_ended_by(error)).encode())
        if error is not None:
            self._write_calls()
        if self.signal:
            faulthandler.unregister(self.signal)
        for end in (ASK, STACKS):
            self._files[end].unlink(missing_ok=True)

    def _register_stacks(self) -> int:
        """Register an unused signal that writes all threads' stacks; return its number."""
        free = (number for number in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1) if _is_free(number))
        number = next(free, 0)
        if number:
            # System calls restart where possible.
            faulthandler.register(number, self._opened(STACKS), all_threads=True, chain=False)
        return number

    def _watch_faults(self) -> None:
        """Have SIGSEGV, SIGBUS, SIGFPE, SIGABRT and SIGILL leave stacks, unless the job writes them elsewhere."""
        if not faulthandler.is_enabled():
            faulthandler.enable(self._opened(FAULT), all_threads=True)

    def _opened(self, end: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._held.append(os.open(self._files[end], flags, 0o600))
        return self._held[-1]

    def _answer(self) -> None:
        with suppress(OSError):
            while os.read(self._asked, 1):
                self._write_calls()

    def _write_calls(self) -> None:
        dump = flight_recorder()
        if dump is not None:
            with suppress(OSError):
                write_atomically(self._files[CALLS], json.dumps(dump).encode())


def _is_free(number: int) -> bool:
    try:
        return signal.getsignal(number) == signal.SIG_DFL
    except ValueError:
        return False


def _counts_calls() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def flight_recorder() -> dict[str, Any] | None:
    """Return the last entries of PyTorch's record of collectives, preferably NCCL's; None without one."""
    if sys.modules.get("torch.distributed") is None:
        return None
    with suppress(Exception):  # another release's format must not disturb an ending job
        from torch._C import _distributed_c10d

        found: dict[str, Any] | None = None
        for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
            if (dump := getattr(_distributed_c10d, name, None)) is None:
                continue
            found = json.loads(dump(includeCollectives=True, onlyActive=False))
            if entries := found.get("entries"):
                # The dump does not list the members of gloo's groups.
                of = {name: {"name": name, "desc": "", "ranks": str(ranks)} for name, ranks in process_groups().items()}
                config = of | {key: one for key, one in found.get("pg_config", {}).items() if key}
                return {**found, "entries": entries[-_MOST_CALLS:], "pg_config": config or found.get("pg_config")}
        return found
    return None


def process_groups() -> dict[str, list[int]]:
    """Return name → ranks of PyTorch's process groups; empty if a release stores them elsewhere."""
    with suppress(AttributeError, KeyError, TypeError):
        world = sys.modules["torch.distributed"].distributed_c10d._world
        of = {str(world.pg_names[group]): sorted(ranks) for group, ranks in world.pg_group_ranks.items()}
        return dict(list(of.items())[:_MOST_GROUPS])
    return {}


def _ended_by(error: BaseException | None) -> dict[str, Any]:
    if error is None:
        return {"how": "end", "at_ns": time.time_ns()}
    frames = [(one.filename, one.lineno or 0, one.name) for one in traceback.extract_tb(error.__traceback__)]
    text = ""
    with suppress(Exception):  # an error's text can fail too
        text = " ".join(str(error).split())
    return {
        "how": "exception",
        "at_ns": time.time_ns(),
        "error": f"{type(error).__name__}: {text}"[:_MOST_TEXT],
        "frames": frames[::-1][:32],
    }
