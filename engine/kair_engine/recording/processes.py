"""Starts processes that answer messages: they start quickly, write to no terminal, and end with their starter.

Messages and answers are bytes, prefixed by their length. A process's task is named as text, so that it watches for its
end before it loads anything: `module:function`, which answers a message. Unlike `multiprocessing`'s, they run nothing
from the current folder and need no `__main__` to import.
"""

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from queue import SimpleQueue

Answering = Callable[[bytes], bytes]

_PROGRAM: Final = f"import sys; sys.path[:] = sys.argv[3:]; from {__name__} import work; work(*sys.argv[1:3])"
_PR_SET_PDEATHSIG: Final = 1
_LENGTH: Final = 8
"""Bytes of the length prefix."""


def answers(
    messages: Sequence[bytes], processes: int, function: str, *, order: Sequence[int] | None = None
) -> Iterator[bytes | None]:
    """Yield each message's answer, in order; None if its process ended, or none could be started.

    Messages are assigned in `order`, as processes become free. All processes end with the iterator.
    """
    with ExitStack() as running:
        left = deque(range(len(messages)) if order is None else order)
        free = list(_started(min(processes, len(messages)), function, running))
        yield from _in_order(len(messages), _as_they_come(free, left, messages))


def _in_order(count: int, answered: Iterator[tuple[int, bytes | None]]) -> Iterator[bytes | None]:
    found: dict[int, bytes | None] = {}
    for at in range(count):
        while at not in found:
            of, answer = next(answered, (at, None))
            found[of] = answer
        yield found.pop(at)


def _as_they_come(
    free: Sequence["_Process"], left: deque[int], messages: Sequence[bytes]
) -> Iterator[tuple[int, bytes | None]]:
    import selectors

    with selectors.DefaultSelector() as waiting:
        for process in free:
            if left and process.ask(left[0], messages):
                waiting.register(process.out, selectors.EVENT_READ, process)
                left.popleft()
        while waiting.get_map():
            for key, _ in waiting.select():
                process = key.data
                at, answer = process.at, process.answer()
                if answer is None or not left or not process.ask(left[0], messages):
                    waiting.unregister(process.out)
                else:
                    left.popleft()
                yield at, answer


def _started(count: int, function: str, running: ExitStack) -> Iterator["_Process"]:
    # A file in a folder of recordings may have any module's name: only this process' search path counts.
    flag = "-I" if sys.flags.isolated else "-P"
    path = [place for place in sys.path if isinstance(place, str)]
    command = [sys.executable or "", flag, "-c", _PROGRAM, str(os.getpid()), function, *path]
    for _ in range(count):
        try:
            with _without_interrupts():
                process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
                )
        except (OSError, ValueError):
            return
        running.callback(_end, process)
        yield _Process(process)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Keep Ctrl-C from processes started here: their starter ends them silently."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


class _Process:
    """A worker process, seen by its starter."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._to, self.out = process.stdin, process.stdout
        self.at = -1
        """The message it is working on."""

    def ask(self, at: int, messages: Sequence[bytes]) -> bool:
        """Send it a message; return False if it has ended."""
        self.at = at
        try:
            _write(self._to, messages[at])
        except OSError:
            return False
        return True

    def answer(self) -> bytes | None:
        """Return its answer, None if it ended without one."""
        return _read(self.out)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):  # it no longer reads its input
            assert pipe is not None
            pipe.close()
    process.wait()


def work(starter: str, function: str) -> None:
    """Work as such a process until the starter closes the pipe, or dies."""
    _end_with(int(starter))
    from queue import SimpleQueue
    from threading import Thread

    messages: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=_listen, args=(messages,), daemon=True).start()
    # Output of libraries is no answer.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    module, name = function.split(":")
    answer: Answering = getattr(import_module(module), name)
    while True:
        _write(out, answer(messages.get()))


def _end_with(starter: int) -> None:
    """Let the system end this process with its starter, if it can: no thread could while a library loads slowly."""
    if sys.platform == "linux":
        with suppress(ImportError, OSError, AttributeError):
            from ctypes import CDLL

            CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != starter:
        os._exit(1)  # the starter died before


def _listen(messages: "SimpleQueue[bytes]") -> None:
    while (message := _read(sys.stdin.buffer)) is not None:
        messages.put(message)
    # Even in the middle of a file.
    os._exit(1)


def _write(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(len(message).to_bytes(_LENGTH, "big") + message)
    pipe.flush()


def _read(pipe: IO[bytes]) -> bytes | None:
    """Return a message, None if there is no complete one any more."""
    head = pipe.read(_LENGTH)
    length = int.from_bytes(head, "big")
    message = pipe.read(length) if len(head) == _LENGTH else b""
    return message if len(head) == _LENGTH and len(message) == length else None
