"""Completion in the shell: its scripts, and the jobs offered for a half-typed JOB."""

import errno
import os
from pathlib import Path
from typing import Literal

import click
from click.shell_completion import get_completion_class, shell_complete

from kair.app.places import data_root, store_root
from kair.app.stores import OpenStore
from kair_engine.errors import KairError

Shell = Literal["bash", "zsh", "fish", "powershell", "pwsh"]
VARIABLE = "_KAIR_COMPLETE"
"""The variable in which the script requests completions."""


def complete(program: click.Command) -> int:
    """Answer the shell's request for completions in the environment; return the exit status."""
    return shell_complete(program, {}, "kair", VARIABLE, os.environ[VARIABLE])


def script(program: click.Command, shell: str) -> str:
    """Return the script that makes a shell request completions from `kair`."""
    known = get_completion_class("powershell" if shell == "pwsh" else shell)
    if known is None:
        raise ValueError(shell)
    return known(program, {}, "kair", VARIABLE).source()


def install(program: click.Command, shell: str) -> Path:
    """Write the script where the shell finds it, and return its path; a line may be added to the shell's startup file.

    Raises OSError if that fails.
    """
    from kair_engine.trace.files import atomic_write

    home = Path.home()
    if shell == "bash":
        file = home / ".bash_completions/kair.sh"
        _add_line(home / ".bashrc", f"source '{file}'")
    elif shell == "zsh":
        file = home / ".zfunc/_kair"
        _add_line(home / ".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit")
    elif shell == "fish":
        file = home / ".config/fish/completions/kair.fish"
    else:
        file = data_root() / "completion.ps1"
        _add_line(_profile(shell), f". '{file}'")
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as new:
        new.write(script(program, shell).encode())
    return file


def job_names(incomplete: str) -> list[str]:
    """Return the store's jobs that begin with `incomplete`; empty without a store."""
    try:
        names = [job.name for job in OpenStore(store_root(None)).store.jobs()]
    except (OSError, KairError):
        return []
    return [name for name in names if name.startswith(incomplete)]


def _profile(powershell: str) -> Path:
    """Return the file that PowerShell runs when it starts."""
    from subprocess import check_output

    return Path(check_output([powershell, "-NoProfile", "-Command", "$PROFILE"], text=True).strip())


def _add_line(file: Path, line: str) -> None:
    """Add a line to the end of a file, once, and leave the rest of it untouched."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+b", buffering=0) as startup:
        startup.seek(0)
        before, new = startup.read(), f"\n{line}\n".encode()
        if line.encode() in before.splitlines():
            return
        # A partial line in a startup file would be executed by every shell.
        if startup.write(new) != len(new):
            startup.truncate(len(before))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
