"""A program in a pseudo-terminal: the bytes that it sends, and its CPU time from /proc."""

import os
import select
import subprocess
from pathlib import Path
from types import TracebackType

SIZE = (160, 50)
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Terminal:
    """A pseudo-terminal with a program in it."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        import fcntl
        import pty
        import struct
        import termios

        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", SIZE[1], SIZE[0], 0, 0))
        self._child = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env={**os.environ, **environment}, start_new_session=True
        )
        os.close(slave)
        self.written = b""

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.kill()
        self._child.wait()
        os.close(self._master)

    def read(self, within_s: float) -> bytes:
        """What comes within that time."""
        if not select.select([self._master], [], [], within_s)[0]:
            return b""
        try:
            got = os.read(self._master, 1 << 20)
        except OSError as error:
            raise SystemExit(f"the program ended:\n{self.written[-3000:].decode(errors='replace')}") from error
        self.written += got
        return got

    def wait_for(self, text: str) -> None:
        """Until `text` was written."""
        while text.encode() not in self.written:
            if not self.read(60.0):
                raise SystemExit(f"{text!r} never came:\n{self.written[-3000:].decode(errors='replace')}")

    def settle(self, quiet_s: float) -> bytes:
        """Everything until nothing came for that long."""
        got = b""
        while more := self.read(quiet_s):
            got += more
        return got

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def cpu_s(self) -> float:
        """User and system time so far, of all its threads."""
        fields = Path(f"/proc/{self._child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * _TICK_S
