"""The real program in a terminal of its own: a bare one, where every byte counts, or tmux, which has the screen."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from pseudo_terminal import Terminal
from support.answers import shared_cache
from support.patience import wait_until
from support.program import KAIR

PROGRAM = (*KAIR, "tui")


def terminal_environment(folder: Path, **changes: str) -> dict[str, str]:
    """A terminal of 256 colours that speaks UTF-8; what is kept is below `folder`, but for the tests' parsed traces."""
    # With COLUMNS, which the workers of xdist have, a program would believe that and never hear of another size.
    left_out = ("KAIR_", "TEXTUAL", "LC_", "XDG_", "NO_COLOR", "COLOR", "TMUX", "COLUMNS", "LINES")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    own = {"TERM": "xterm-256color", "LANG": "C.UTF-8", "XDG_DATA_HOME": str(folder)}
    places = {"KAIR_CACHE": str(shared_cache()), "KAIR_STORE": str(folder / "store")}
    return {**kept, **own, **places, **changes}


def full_screen(
    *arguments: str, environment: Mapping[str, str], program: Sequence[str] = PROGRAM, size: tuple[int, int] = (80, 24)
) -> Terminal:
    """The full screen in a bare terminal, where every byte counts."""
    return Terminal([*program, *arguments], environment, size)


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

    def wait_for(self, *texts: str) -> str:
        """The screen once all `texts` are on it: what is drawn of one screen may come in parts."""
        shown = ""

        def is_there() -> bool:
            nonlocal shown
            shown = self.screen()
            return all(text in shown for text in texts)

        wait_until(is_there, told=lambda: f"{' and '.join(texts)} never came:\n{shown}", every_s=0.05)
        return shown
