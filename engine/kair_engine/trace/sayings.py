"""Texts about ranks in a job's log: awaited ranks, ends of processes, the last error of each.

`readers/log_sayings.py` finds these texts, and `triage/hangs/sayings.py` judges them.
"""

from typing import Final, Literal

from kair_engine.frozen import dataclass

SayingKind = Literal["missing", "ended", "error", "stuck", "link", "folded", "process", "unclear", "cancelled"]
"""`missing`: others report that they wait for these ranks. `ended`: how a rank's process ended. `error`: an error that
a rank printed. `stuck`: a rank's own watchdog makes no progress. `link`: a network port of a host failed. `folded`:
lines of time-outs that stand for several ranks. `process`: which process a rank is. `unclear`: a text about an
unidentified rank. `cancelled`: the job was ended from outside."""
LONGEST_TEXT: Final = 240


@dataclass(frozen=True)
class Saying:
    """One of the texts."""

    kind: SayingKind
    text: str = ""
    """Quoted, on one line."""
    ranks: tuple[int, ...] = ()
    """The ranks it is about."""
    by: tuple[int, ...] = ()
    """The ranks that report it, while they wait themselves."""
    call: str = ""
    """The call that these wait in."""
    host: str = ""
    signal: int = 0
    """The signal that ended the process; 0 for none."""
    exit_status: int | None = None
    at_ns: int = 0
    """Orders ends: a time, or in a log without times a position."""
    count: int = 1
    """The number of ranks that a line stands for."""
    is_late: bool = False
    """Whether it came after others had timed out: then it is a consequence of that, and not its cause."""


def quoted(text: str) -> str:
    """Return a text on one line of bounded length."""
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    return line if len(line) <= LONGEST_TEXT else f"{line[: LONGEST_TEXT - 1]}…"
