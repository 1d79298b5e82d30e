"""Calls the system's shell: `!command`, and the program after a `|`. Nothing from a trace is put into its line."""

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kair_tui.shell.session import ShellState


def call_system(command: str, state: "ShellState") -> int:
    """Run a line as typed, and return its exit status."""
    sys.stdout.flush()
    return subprocess.run(command, shell=True, check=False, env=_environment(state)).returncode


def pipe_to(command: str, text: str, state: "ShellState") -> int:
    """Let a program read `text`, or a part of it. Return its exit status."""
    sys.stdout.flush()
    data = text.encode(errors="backslashreplace")
    return subprocess.run(command, shell=True, check=False, input=data, env=_environment(state)).returncode


def _environment(state: "ShellState") -> dict[str, str]:
    """Return the variables by which `kair` after `!` uses the current job."""
    job = {} if state.source is None else {"KAIR_JOB": state.source.name}
    store = {} if state.store is None else {"KAIR_STORE": str(state.store)}
    return {**os.environ, **job, **store}
