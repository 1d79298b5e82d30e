"""Calls the system's shell: `!command`, and the program behind a `|`. Nothing from a trace is put into its line."""

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kair_tui.shell.session import ShellState


def call_system(command: str, state: "ShellState") -> int:
    """Runs a line as typed, and returns its exit status."""
    sys.stdout.flush()
    return subprocess.run(command, shell=True, check=False, env=_environment(state)).returncode


def pipe_to(command: str, text: str, state: "ShellState") -> int:
    """Lets a program read `text`; it need not read all of it. Returns its exit status."""
    sys.stdout.flush()
    data = text.encode(errors="backslashreplace")
    return subprocess.run(command, shell=True, check=False, input=data, env=_environment(state)).returncode


def _environment(state: "ShellState") -> dict[str, str]:
    """The job in hand is that of every `kair` behind the `!`."""
    job = {} if state.source is None else {"KAIR_JOB": state.source.name}
    store = {} if state.store is None else {"KAIR_STORE": str(state.store)}
    return {**os.environ, **job, **store}
