"""What a rank leaves when it is asked where it stands, and when it ends.

Stacks are written by a signal's handler in C, so also while Python waits in a collective for ever. The Flight Recorder
is written by a thread that sleeps in a read until then, and needs the interpreter: where that is held, stacks alone
are there.
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
"""The files of a process, by the ends of their names: `rank-<rank>-<pid>.<end>`."""
_MOST_CALLS: Final = 128
"""Of the last ones: a rank that stands still has called them, and made no other since."""
_MOST_TEXT: Final = 200
_MOST_GROUPS: Final = 1000


def file_of(run_dir: Path, rank: int, pid: int, end: str) -> Path:
    """One of the files of a process."""
    return run_dir / f"rank-{rank}-{pid}.{end}"


class Dumps:
    """Of one process, from its first step on."""

    def __init__(self, run_dir: Path, rank: int) -> None:
        """Raise OSError where the files cannot be made."""
        self._files = {end: file_of(run_dir, rank, os.getpid(), end) for end in (ASK, STACKS, CALLS, FAULT, END)}
        self._pid = os.getpid()
        self._held: list[int] = []
        self._files[END].unlink(missing_ok=True)  # a process can be captured twice
        self.signal: Final = self._register_stacks()
        """Its number; 0 where none is free, and stacks cannot be asked for."""
        self._watch_faults()
        self._asked = -1
        if _counts_calls():
            os.mkfifo(self._files[ASK], 0o600)
            # For both ends: so a read waits, whether or not somebody has it open to write.
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
        """Have a signal that nobody uses write all threads' stacks."""
        free = (number for number in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1) if _is_free(number))
        number = next(free, 0)
        if number:
            # What the system was doing for the process goes on where it can: nothing is interrupted for it.
            faulthandler.register(number, self._opened(STACKS), all_threads=True, chain=False)
        return number

    def _watch_faults(self) -> None:
        """SIGSEGV, SIGBUS, SIGFPE, SIGABRT and SIGILL leave stacks, unless the job has them written elsewhere."""
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
    """PyTorch's record of collectives, NCCL's where that has any: its last entries; None where there is none."""
    if sys.modules.get("torch.distributed") is None:
        return None
    with suppress(Exception):  # another release's; nobody may hear of it in a job that ends
        from torch._C import _distributed_c10d

        found: dict[str, Any] | None = None
        for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
            if (dump := getattr(_distributed_c10d, name, None)) is None:
                continue
            found = json.loads(dump(includeCollectives=True, onlyActive=False))
            if entries := found.get("entries"):
                # Of gloo's groups the dump does not list the members.
                of = {name: {"name": name, "desc": "", "ranks": str(ranks)} for name, ranks in process_groups().items()}
                config = of | {key: one for key, one in found.get("pg_config", {}).items() if key}
                return {**found, "entries": entries[-_MOST_CALLS:], "pg_config": config or found.get("pg_config")}
        return found
    return None


def process_groups() -> dict[str, list[int]]:
    """Name → ranks of PyTorch's process groups; none of a release that keeps them elsewhere."""
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
    with suppress(Exception):  # what an error says of itself can fail, too
        text = " ".join(str(error).split())
    return {
        "how": "exception",
        "at_ns": time.time_ns(),
        "error": f"{type(error).__name__}: {text}"[:_MOST_TEXT],
        "frames": frames[::-1][:32],
    }
