"""Starts capture in a running process if that is safe; otherwise it explains what is needed.

A rank that began with KAIR_CAPTURE_ATTACHABLE=1 counts its steps and records nothing until it is ordered to, so all
ranks number their steps alike. Python 3.14 and later can run a script in another process, which is used for processes
that train alone: ranks attached one after another would number steps differently and could not be compared.
"""

import os
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kair_capture.control import RankControl
from kair_capture.files import object_in, own_folder_in
from kair_capture.job.windows import ControlWords
from kair_capture.ring import is_running, start_ticks
from kair_capture.settings import default_run_dir, safe_name

_ANSWERS_S: Final = 10.0
_LOOK_S: Final = 0.05
_REMOTE_FROM: Final = (3, 14)


class AttachError(Exception):
    """Raised if the process cannot be recorded; the text says why, and `hint` what is needed."""

    def __init__(self, text: str, hint: str | None = None) -> None:
        super().__init__(text)
        self.hint = hint


@dataclass(frozen=True)
class Attached:
    """A job whose ranks on this host record."""

    job: str
    run_dir: Path
    ranks: str
    """`rank 3`, or `4 ranks`."""
    was_recording: bool


def attach(pid: int, job: str | None, store: Path) -> Attached:
    """Start recording in the process, and in waiting ranks of its job on this host. Raises AttachError."""
    try:
        owner = Path(f"/proc/{pid}").stat().st_uid
    except OSError as error:
        raise AttachError(f"there is no process {pid} on this host") from error
    if owner != os.geteuid():
        raise AttachError(f"process {pid} is another user's", "attach as the user that runs it")
    environment = _environment_of(pid)
    known = _rank_of(pid, environment)
    if known is None:
        return _let_in(pid, environment, job, store)
    run_dir, name = known
    if job is not None and safe_name(job) != name:
        raise AttachError(f"process {pid} belongs to job {name}, not {job[:40]}", f"kair capture attach {pid}")
    if next(run_dir.glob(f"rank-*-{pid}-*.ring"), None) is not None:
        return Attached(name, run_dir, "", was_recording=True)
    ranks = [int(one["rank"]) for one in _identities(run_dir) if is_running(one["pid"], one["start_ticks"])]
    for rank in ranks:
        with closing(ControlWords(run_dir / f"rank-{rank}.control")) as words:
            words.tell_control(RankControl(is_on=True).packed())
    return Attached(name, run_dir, f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks", False)


def _rank_of(pid: int, environment: Mapping[str, str]) -> tuple[Path, str] | None:
    """Return the run folder and the job of a process with capture; None without it."""
    named, began = environment.get("KAIR_RUN_DIR"), start_ticks(pid)
    folders = [Path(named)] if named else sorted(own_folder_in(Path("/dev/shm")).glob("*"))
    for folder in folders:
        for one in _identities(folder):
            if (one["pid"], one["start_ticks"]) == (pid, began):
                return folder, safe_name(str(one.get("job", folder.name)))
    return None


def _identities(run_dir: Path) -> list[dict[str, int]]:
    """Return the statements of a folder's ranks; incomplete files are left out."""
    found = []
    for path in run_dir.glob("rank-*.json"):
        with suppress(OSError):
            one = object_in(path.read_bytes())
            if all(type(one.get(key)) is int for key in ("rank", "pid", "start_ticks")):
                found.append(one)
    return found


def _let_in(pid: int, environment: Mapping[str, str], job: str | None, store: Path) -> Attached:
    """Attach through Python itself."""
    if environment.get("KAIR_CAPTURE_ATTACHABLE", "0").strip() not in ("", "0"):
        raise AttachError(f"process {pid} has not begun to train, or does not `import kair_capture`", "ask again then")
    version = _python_of(pid)
    ours = sys.version_info[:2]
    if version is None:
        raise AttachError(f"process {pid} is no Python process, or which one cannot be seen")
    start = f"process {pid} (Python {version[0]}.{version[1]}) did not begin with capture"
    if environment.get("WORLD_SIZE", "1").strip() not in ("", "1"):
        why = "ranks that are let in one by one number their steps differently"
        raise AttachError(f"{start}, and is a rank of several: {why}", _needed(pid))
    if min(version, ours) < _REMOTE_FROM:
        who = "it" if version < _REMOTE_FROM else f"this Python {ours[0]}.{ours[1]}"
        raise AttachError(f"{start}, and {who} is older than 3.14, from which on Python lets a script in", _needed(pid))
    if version != ours:
        raise AttachError(f"{start}, and this is Python {ours[0]}.{ours[1]}: both must be the same", _needed(pid))
    return _by_script(pid, safe_name(job or f"pid-{pid}"), store)


def _by_script(pid: int, job: str, store: Path) -> Attached:
    run_dir = default_run_dir(job)
    shared = {"KAIR_JOB": job, "KAIR_RUN_DIR": str(run_dir), "KAIR_STORE": str(store)}
    # Last on the path, so that the job's own packages take precedence.
    packages = [path for path in sys.path if path]
    script = (
        f"import os, sys\nos.environ.update({shared!r})\n"
        f"sys.path += [one for one in {packages!r} if one not in sys.path]\n"
        f"from kair_capture.job.api import start_amid\nstart_amid({job!r})\n"
    )
    with tempfile.TemporaryDirectory(prefix="kair-attach-") as folder:
        path = Path(folder) / "attach.py"
        path.write_text(script)
        try:
            remote_exec(pid, str(path))
        except (OSError, RuntimeError, ValueError) as error:
            raise AttachError(f"the system does not let process {pid} be entered: {error}", _needed(pid)) from error
        until = time.monotonic() + _ANSWERS_S
        while time.monotonic() < until:
            if _rank_of(pid, shared) is not None:
                return Attached(job, run_dir, "its only rank", was_recording=False)
            time.sleep(_LOOK_S)
    waits = "it has not run a line of Python since, or warned on its stderr why capture is off"
    raise AttachError(f"process {pid} does not record after {_ANSWERS_S:.0f} s: {waits}", _needed(pid))


def remote_exec(pid: int, script: str) -> None:
    """Call Python's own function, from 3.14 on. Raises OSError, RuntimeError if it is not permitted."""
    sys.remote_exec(pid, script)  # type: ignore[attr-defined, unused-ignore]  # of Python 3.14


def _needed(pid: int) -> str:
    """Return how to record this kind of process next time, and how to inspect it now."""
    stacks = f"for its stacks now: py-spy dump --pid {pid}"
    with suppress(OSError, ValueError):
        scope = int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
        stacks += f", as root, since kernel.yama.ptrace_scope is {scope}" if scope else ""
    return (
        "start it with kair capture run -- COMMAND, or with KAIR_CAPTURE_ATTACHABLE=1 and `import kair_capture` after "
        f"its framework's import, and attach at any time; {stacks}"
    )


def _python_of(pid: int) -> tuple[int, int] | None:
    """Return major and minor version, by the names of its program and mapped libraries."""
    import re

    with suppress(OSError):
        names = [str(Path(f"/proc/{pid}/exe").readlink().name)]
        with suppress(OSError):
            names += {line.rpartition("/")[2] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()}
        for name in names:
            if match := re.match(r"(?:lib)?python(\d)\.(\d+)", name):
                return int(match[1]), int(match[2])
    return None


def _environment_of(pid: int) -> dict[str, str]:
    """Return the environment that the process began with; empty if it is not readable."""
    with suppress(OSError):
        pairs = (one.partition(b"=") for one in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
        return {key.decode(errors="replace"): value.decode(errors="replace") for key, _, value in pairs}
    return {}
