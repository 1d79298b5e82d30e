"""What happens when capture fails: one warning, and it is off. Training never hears of it otherwise."""

import errno
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from kair_capture.job.rank_lock import RankLock, TakenError

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_TOLD: Final[list[RankLock]] = []
"""What this process has told for all of its host: the others see it for as long as it lives."""


def warn(text: str) -> None:
    """Writes one line to stderr. `warnings` could be turned into errors by a filter, and logging is the job's."""
    # A closed or full stderr is the job's business.
    with suppress(Exception):
        sys.stderr.write(f"kair: warning: {text}\n")


def warn_of(error: BaseException, what: str, run_dir: Path | None) -> None:
    """Warns that `what` is so because of an error. What all ranks of a host meet, the first of them tells.

    `run_dir`: the folder that they share.
    """
    if isinstance(error, TakenError):
        of_all = (f"{error}, in {run_dir}: two jobs need two names (--job)", "rank-taken")
    elif isinstance(error, OSError) and error.errno in _NO_ROOM:
        of_all = (f"{described(error)}: {run_dir} is full", "no-room")
    else:
        warn(f"{what}: {described(error)}")
        return
    if _is_first(run_dir, of_all[1]):
        warn(f"{what}: {of_all[0]}; no other rank of this host says so")


def _is_first(run_dir: Path | None, kind: str) -> bool:
    """Whether no process of this host that lives has told it. Where nothing can be written, each tells."""
    if run_dir is None:
        return True
    try:
        _TOLD.append(RankLock(run_dir / f"{kind}.told", kind))
    except TakenError:
        return False
    except OSError:
        return True
    return True


def described(error: BaseException) -> str:
    """The error on one line, with the place in capture where it came up."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        place = f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})"  # noqa: PTH119  # no Path objects on this way
        trace = trace.tb_next
    # What an error says of itself can fail, too.
    try:
        text = " ".join(str(error).split())[:200]
    except Exception:
        text = "?"
    return f"{type(error).__name__}: {text}{place}"
