"""The real program in a terminal of its own: a bare one, where every byte counts, or tmux, which has the screen."""

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

PROGRAM = (sys.executable, "-m", "kair_tui", "tui")
_PATIENCE_S = 60.0


def terminal_environment(folder: Path, **changes: str) -> dict[str, str]:
    """A terminal of 256 colours that speaks UTF-8, with caches below `folder`."""
    left_out = ("KAIR_", "TEXTUAL", "LC_", "XDG_", "NO_COLOR", "COLOR", "TMUX")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    own = {"TERM": "xterm-256color", "LANG": "C.UTF-8", "XDG_DATA_HOME": str(folder)}
    places = {"KAIR_CACHE": str(folder / "cache"), "KAIR_STORE": str(folder / "store")}
    return {**kept, **own, **places, **changes}


class BareTerminal:
    """What the program writes to its terminal, byte by byte."""

    def __init__(
        self,
        *arguments: str,
        environment: Mapping[str, str],
        program: Sequence[str] = PROGRAM,
        size: tuple[int, int] = (80, 24),
    ) -> None:
        import fcntl
        import pty
        import struct
        import termios

        self.written = b""
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self._child = subprocess.Popen(
            [*program, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=dict(environment),
            start_new_session=True,
        )
        os.close(slave)
        self._master = master

    def __enter__(self) -> "BareTerminal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGKILL)
        self._child.wait()
        if self._master >= 0:
            os.close(self._master)

    def wait_for(self, text: str, since: int = 0) -> None:
        """Reads until `text` was written after the first `since` bytes."""
        until = time.monotonic() + _PATIENCE_S
        while text.encode() not in self.written[since:]:
            assert time.monotonic() < until, f"{text!r} never came:\n{self.written[-2000:]!r}"
            self.read(0.2)

    def read(self, within_s: float) -> bytes:
        """What comes within that time, at once when something does."""
        if not select.select([self._master], [], [], within_s)[0]:
            return b""
        try:
            got = os.read(self._master, 1 << 16)
        except OSError:
            return b""
        self.written += got
        return got

    def settle(self, quiet_s: float) -> bytes:
        """Everything until nothing came for that long."""
        got = b""
        while more := self.read(quiet_s):
            got += more
        return got

    def press(self, keys: str) -> None:
        """Types."""
        os.write(self._master, keys.encode())

    def hang_up(self) -> int:
        """The terminal goes away, without a signal since it is no more than input and output. Returns the status."""
        os.close(self._master)
        self._master = -1
        return self._child.wait(timeout=_PATIENCE_S)

    def status(self) -> int:
        """Waits for the program's end."""
        until = time.monotonic() + _PATIENCE_S
        while self._child.poll() is None and time.monotonic() < until:
            self.read(0.1)
        return self._child.wait(timeout=1)


class Tmux:
    """A tmux server of the test's own, with one window in which the program runs."""

    def __init__(self, folder: Path, command: str, environment: Mapping[str, str]) -> None:
        self._tmux = [shutil.which("tmux") or "tmux", "-S", str(folder / "tmux"), "-f", os.devnull]
        width, height = "80", "24"
        wrapped = f"{command}; echo ended with $?; exec cat"
        subprocess.run(
            [*self._tmux, "new-session", "-d", "-x", width, "-y", height, "sh", "-c", wrapped],
            check=True,
            env={**environment, "TERM": "xterm-256color"},
        )

    def __enter__(self) -> "Tmux":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        subprocess.run([*self._tmux, "kill-server"], check=False, capture_output=True)

    def press(self, *keys: str) -> None:
        """Types; names of keys as tmux has them."""
        subprocess.run([*self._tmux, "send-keys", *keys], check=True)

    def resize(self, width: int, height: int) -> None:
        """Makes the window another size."""
        subprocess.run([*self._tmux, "resize-window", "-x", str(width), "-y", str(height)], check=True)

    def screen(self, *, styled: bool = False) -> str:
        """The screen's text, with the codes of its styles where they are asked for."""
        codes = ["-e"] if styled else []
        taken = subprocess.run([*self._tmux, "capture-pane", "-p", *codes], check=True, capture_output=True, text=True)
        return taken.stdout

    def wait_for(self, text: str) -> str:
        """The screen once `text` is on it."""
        until = time.monotonic() + _PATIENCE_S
        while text not in (shown := self.screen()):
            assert time.monotonic() < until, f"{text!r} never came:\n{shown}"
            select.select([], [], [], 0.05)
        return shown
