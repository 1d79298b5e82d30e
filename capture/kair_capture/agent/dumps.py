"""Asks the ranks of this host where they are when the job hangs, and reports how ranks ended.

Their answers (stacks, PyTorch's Flight Recorder) go into the store, and in short to the coordinator.
"""

import os
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kair_capture.agent.endings import Ending, ending, frames_in, kills_file, memory_kills, text_of
from kair_capture.agent.ring_reader import Trainer
from kair_capture.files import object_in
from kair_capture.job.dumping import ASK, CALLS, END, FAULT, STACKS, file_of
from kair_capture.ring import is_running, is_stopped, start_ticks
from kair_capture.wire import Standing
from kair_engine.trace.calls import Frame, location_in

_ANSWER_S: Final = 3.0
_LOOK_S: Final = 0.05
_PY_SPY_S: Final = 10.0
_PHASES: Final = (
    ("torch/distributed/", "", "collective"),
    ("torch/autograd/", "", "backward"),
    ("torch/optim/", "", "optimizer"),
    ("torch/utils/data/", "", "input"),
    ("torch/nn/modules/module.py", "", "forward"),
    ("kair_capture/job/torch_scopes.py", "__call__", "forward"),
)
"""Part of a frame's file, its function if that matters, and the phase it indicates."""

Deliver = Callable[[Path, str], None]
"""Copies a file into the store, below the job's folder. Raises OSError."""


@dataclass
class _Watched:
    """A process that was seen alive."""

    began: int
    handle: int | None
    """A pidfd, which keeps meaning this process even if its number is reused."""
    kills_file: Path | None
    kills: int | None
    """Out-of-memory kills in its group when it was first seen."""
    is_reported: bool = False
    """Whether its end was reported before it was gone."""


@dataclass(frozen=True)
class Asked:
    """A rank to ask, and what its rings show already."""

    trainer: Trainer
    step: int
    after: str


class Dumper:
    """Watches all ranks of a host. Reports collect in `reports`; no method waits for the store or a rank."""

    def __init__(self, run_dir: Path, deliver: Deliver, ahead_ns: Callable[[], int] = lambda: 0) -> None:
        """`ahead_ns` is the correction for a host clock that was set back."""
        self._run_dir, self._deliver, self._ahead_ns = run_dir, deliver, ahead_ns
        self._watched: dict[Trainer, _Watched] = {}
        self.reports: Final[deque[Standing]] = deque()

    def watch(self, trainer: Trainer) -> None:
        """Watch a process, to learn how it ends. One that is already gone belonged to another attempt."""
        began = start_ticks(trainer.pid)
        if trainer in self._watched or not is_running(trainer.pid, began):
            return
        handle = None
        with suppress(OSError):
            handle = os.pidfd_open(trainer.pid)
        file = kills_file(trainer.pid)
        self._watched[trainer] = _Watched(began, handle, file, memory_kills(file))

    def is_ending(self, trainer: Trainer) -> bool:
        """Return whether an exception is ending a living process, whose cleanup can take seconds."""
        seen, mark = self._watched.get(trainer), self._file(trainer, END)
        return seen is not None and not seen.is_reported and mark.exists() and bool(self._how(trainer, seen).error)

    def ends(self, trainer: Trainer, step: int, after: str) -> None:
        """Report the exception that is ending a process."""
        seen = self._watched[trainer]
        seen.is_reported = True
        self._tell(trainer, seen, step, after)

    def ended(self, trainer: Trainer, step: int, after: str) -> None:
        """Report how a process ended, and remove its files."""
        seen = self._watched.pop(trainer, None)
        if seen is not None:
            self._tell(trainer, seen, step, after)
            if seen.handle is not None:
                os.close(seen.handle)
        for end in (ASK, STACKS, CALLS, FAULT, END):
            self._file(trainer, end).unlink(missing_ok=True)

    def _how(self, trainer: Trainer, seen: _Watched) -> Ending:
        kills = (seen.kills, memory_kills(seen.kills_file))
        files = (self._file(trainer, FAULT), self._file(trainer, END))
        return ending(seen.handle, trainer.pid, seen.began, *files, kills=kills)

    def _tell(self, trainer: Trainer, seen: _Watched, step: int, after: str) -> None:
        how = self._how(trainer, seen)
        self.reports.append(
            Standing(
                trainer.rank,
                0,
                (how.at_ns or time.time_ns()) + self._ahead_ns(),
                step,
                lives=False,
                signal=how.signal,
                exit_status=how.exit_status,
                known_by=how.known_by,
                phase=phase_of(how.frames),
                where=where_of(how.frames),
                after=after,
                error=how.error,
            )
        )

    def ask(self, hang: int, ranks: Sequence[Asked]) -> None:
        """Ask all ranks at once; answers within a few seconds are reported and stored."""
        handles = {one.trainer: self._own_handle(one.trainer) for one in ranks}
        # One thread per hang: a hanging store must not block the report of the next one.
        work = threading.Thread(target=self._ask, args=(hang, ranks, handles), name="dumps", daemon=True)
        work.start()

    def _own_handle(self, trainer: Trainer) -> int | None:
        seen = self._watched.get(trainer)
        return None if seen is None or seen.handle is None else os.dup(seen.handle)

    def _ask(self, hang: int, ranks: Sequence[Asked], handles: dict[Trainer, int | None]) -> None:
        began = time.time_ns()
        for one in ranks:
            self._signal(one.trainer, handles[one.trainer])
            self._wake(one.trainer)
        self._wait([one.trainer for one in ranks], began)
        for one in ranks:
            self.reports.append(self._standing(hang, one, began))
        for handle in filter(None, handles.values()):
            os.close(handle)
        with suppress(OSError):
            for one in ranks:
                self._native(hang, one.trainer)

    def _standing(self, hang: int, one: Asked, began: int) -> Standing:
        """Return where a rank stands, after waiting briefly for its files to reach the store."""
        stacks, calls = self._file(one.trainer, STACKS), self._file(one.trainer, CALLS)
        frames = frames_in(text_of(stacks))
        kept = threading.Thread(target=self._keep, args=(hang, one.trainer, stacks, calls, began), daemon=True)
        kept.start()
        kept.join(_ANSWER_S)
        known = (one.trainer.rank, hang, time.time_ns(), one.step)
        stopped = signal.SIGSTOP if is_stopped(one.trainer.pid) else 0
        return Standing(*known, signal=stopped, phase=phase_of(frames), where=where_of(frames), after=one.after)

    def _keep(self, hang: int, trainer: Trainer, stacks: Path, calls: Path, began: int) -> None:
        with suppress(OSError):
            if text_of(stacks):
                self._deliver(stacks, f"hangs/{hang}/rank-{trainer.rank}.stacks")
            if _changed(calls) >= began:
                self._deliver(calls, f"hangs/{hang}/rank-{trainer.rank}.json")

    def _signal(self, trainer: Trainer, handle: int | None) -> None:
        """Send the dump signal only to a process known to catch it, because it would kill any other."""
        number = dump_signal(self._run_dir / f"rank-{trainer.rank}.json", trainer.pid)
        if number and handle is not None and _catches(trainer.pid, number):
            with suppress(OSError):
                os.truncate(self._file(trainer, STACKS), 0)
                signal.pidfd_send_signal(handle, number)

    def _wake(self, trainer: Trainer) -> None:
        with suppress(OSError):
            handle = os.open(self._file(trainer, ASK), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.write(handle, b"?")
            finally:
                os.close(handle)

    def _wait(self, trainers: Iterable[Trainer], began: int) -> None:
        until, before = time.monotonic() + _ANSWER_S, None
        asked = [one for one in trainers if self._file(one, ASK).exists()]
        while time.monotonic() < until:
            time.sleep(_LOOK_S)
            sizes = [_size(self._file(one, STACKS)) for one in trainers]
            if all(sizes) and sizes == before and all(_changed(self._file(one, CALLS)) >= began for one in asked):
                return
            before = sizes

    def _native(self, hang: int, trainer: Trainer) -> None:
        """Store native frames too, if py-spy is installed and permitted."""
        if (py_spy := shutil.which("py-spy")) is None:
            return
        file = self._run_dir / f".rank-{trainer.rank}-{trainer.pid}.native"
        command = [py_spy, "dump", "--nonblocking", "--native", "--pid", str(trainer.pid)]
        with suppress(OSError, subprocess.SubprocessError):
            found = subprocess.run(command, capture_output=True, check=True, timeout=_PY_SPY_S).stdout
            file.write_bytes(found[: 1 << 20])
            self._deliver(file, f"hangs/{hang}/rank-{trainer.rank}.native")
        file.unlink(missing_ok=True)

    def _file(self, trainer: Trainer, end: str) -> Path:
        return file_of(self._run_dir, trainer.rank, trainer.pid, end)


def dump_signal(identity: Path, pid: int) -> int:
    """Return the signal by which this process writes its stacks; 0 if it names no valid one."""
    stated = object_in(text_of(identity))
    number = stated.get("dump_signal") if stated.get("pid") == pid else 0
    return number if isinstance(number, int) and signal.SIGRTMIN < number < signal.SIGRTMAX else 0


def phase_of(frames: Sequence[Frame]) -> str:
    """Return a thread's phase from its frames, innermost first; "" if none is known."""
    for file, _, function in frames:
        for part, wanted, phase in _PHASES:
            if part in file and wanted in ("", function):
                return phase
    return ""


def where_of(frames: Sequence[Frame]) -> str:
    """Return `train.py:33 loss_of`."""
    return location_in([frame for frame in frames if "/kair_capture/" not in frame[0]])


def _catches(pid: int, number: int) -> bool:
    for line in text_of(Path(f"/proc/{pid}/status")).splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


def _changed(path: Path) -> int:
    """Return when a file changed (Unix ns); 0 if it is missing."""
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return 0
