"""A program in a pseudo-terminal: the keys it is sent, the bytes it writes, and its CPU time from /proc.

For the benchmarks and for the tests (tests/support/terminals.py).
"""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

PATIENCE_S = 240.0
_SHOWN = 3000
"""Of what was written, the bytes that an error ends with."""


class Terminal:
    """A pseudo-terminal with a program in it, and what that has written so far, byte by byte."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], size: tuple[int, int] = (160, 50)
    ) -> None:
        self.written = b""
        self._master, slave = pty.openpty()
        _set_size(slave, size)
        with _hearing_hang_ups():
            self._child = subprocess.Popen(
                command, stdin=slave, stdout=slave, stderr=slave, env=dict(environment), start_new_session=True
            )
        os.close(slave)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.kill()
        self._child.wait()
        if self._master >= 0:
            os.close(self._master)

    def read(self, within_s: float) -> bytes:
        """What comes within that time, at once when something does; nothing once the program has ended."""
        if not select.select([self._master], [], [], within_s)[0]:
            return b""
        try:
            got = os.read(self._master, 1 << 20)
        except OSError:  # nobody is left at the other end
            return b""
        self.written += got
        return got

    def wait_for(self, text: str) -> None:
        """Reads until `text` was written. Raises TimeoutError where the program ends before, or it never comes."""
        until = time.monotonic() + PATIENCE_S
        while text.encode() not in self.written:
            ended = self._child.poll() is not None
            if not self.read(0.2) and (ended or time.monotonic() > until):
                shown = self.written[-_SHOWN:].decode(errors="replace")
                raise TimeoutError(f"{text!r} never came; the program {'ended' if ended else 'runs'}:\n{shown}")

    def settle(self, quiet_s: float) -> bytes:
        """Everything until nothing came for that long."""
        got = b""
        while more := self.read(quiet_s):
            got += more
        return got

    def rest(self, quiet_s: float) -> bytes:
        """Everything until nothing came, and the program had nothing to do, for that long.

        However few cores the machine has to spare: what waits for one is not at rest.
        """
        got, since = b"", time.monotonic()
        while time.monotonic() - since < quiet_s:
            more = self.read(0.02)
            if more or not self._sleeps():
                got, since = got + more, time.monotonic()
        return got

    def _sleeps(self) -> bool:
        """Whether all its threads wait for something; also where it has ended."""
        for stat in Path(f"/proc/{self._child.pid}/task").glob("*/stat"):
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                if stat.read_text().rpartition(")")[2].split()[0] in {"R", "D"}:
                    return False
        return True

    def press(self, keys: str) -> None:
        """Types."""
        os.write(self._master, keys.encode())

    def resize(self, size: tuple[int, int]) -> None:
        """Gives the terminal another size, and the program the signal that tells of it."""
        _set_size(self._master, size)
        self._child.send_signal(signal.SIGWINCH)

    def send(self, number: int) -> None:
        """Sends the program a signal."""
        self._child.send_signal(number)

    def hang_up(self) -> int:
        """The terminal goes away, without a signal since it is no more than input and output. Returns the status."""
        os.close(self._master)
        self._master = -1
        return self._child.wait(timeout=PATIENCE_S)

    def status(self) -> int:
        """Waits for the program's end."""
        until = time.monotonic() + PATIENCE_S
        while self._child.poll() is None and time.monotonic() < until:
            self.read(0.1)
        return self._child.wait(timeout=1)

    def modes(self) -> list[object]:
        """How the terminal treats input and output (termios), whatever end one asks."""
        return termios.tcgetattr(self._master)

    @property
    def is_running(self) -> bool:
        """Whether the program has not ended; a stopped one has not."""
        return self._child.poll() is None

    @property
    def is_stopped(self) -> bool:
        """Whether a signal holds it."""
        return Path(f"/proc/{self._child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def wait_until_stopped(self) -> None:
        """Reads until a signal holds the program. Raises TimeoutError where none ever does, or it has ended."""
        until = time.monotonic() + PATIENCE_S
        while not self.is_stopped:
            self.read(0.05)
            if time.monotonic() > until or not self.is_running:
                raise TimeoutError("the program was not stopped")

    def cpu_s(self) -> float:
        """User and system time so far, of all its threads."""
        fields = Path(f"/proc/{self._child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _hearing_hang_ups() -> Iterator[None]:
    """What is started here hears SIGHUP as from a shell, also where who runs this ignores it (`nohup`)."""
    before = signal.getsignal(signal.SIGHUP)
    if before is not signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def _set_size(terminal: int, size: tuple[int, int]) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
