"""`kair capture`: runs a training job under watch, samples steps now, changes settings, or attaches to a process."""

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

from kair_engine.errors import InputError, UsageError
from kair_tui.cli.options import Argument, Option
from kair_tui.cli.output import say

_CANNOT_RUN: Final = 126
_NOT_FOUND: Final = 127

_JOB: Final = Option("--job", "The job's name. Default: $KAIR_JOB.")
_NO_AGENT: Final = Option("--no-agent", "Start no agent on this host; what ranks record then stays unread.")


def run_run(
    store: Path,
    *,
    command: Annotated[
        Sequence[str], Argument("After --: the command that trains, and its arguments.", verbatim=True)
    ] = (),
    job: Annotated[
        str | None,
        Option("--job", "The job's name. Default: $KAIR_JOB, else the scheduler's job number, else the time."),
    ] = None,
    no_agent: Annotated[bool, _NO_AGENT] = False,
    watch: Annotated[
        bool, Option("--watch", "Start a coordinator on this host if the job has none; it ends with the job.")
    ] = False,
) -> int:
    """Replace this process by the training command, under watch. Raises UsageError without a command.

    If the command cannot be run, print one line and return the status that a shell would: 127 or 126.
    """
    if not command or not command[0]:
        raise UsageError("kair capture run needs a command", "kair capture run -- torchrun train.py")
    return _become(command, store, job, with_agent=not no_agent, watch=watch)


def run_now(
    store: Path,
    *,
    job: Annotated[str | None, _JOB] = None,
    ranks: Annotated[
        str | None, Option("--ranks", "The ranks to sample, 3,7 or 0-7. Default: all.", metavar="RANKS")
    ] = None,
    steps: Annotated[int, Option("--steps", "How many steps to sample, 50 at most.", metavar="N", minimum=1)] = 4,
    stacks: Annotated[
        bool, Option("--stacks", "Record Python's calls too. This costs most: each call becomes an event.")
    ] = False,
    memory: Annotated[
        bool, Option("--memory", "Record allocations too. This costs one event for each of them.")
    ] = False,
    shapes: Annotated[
        bool, Option("--shapes", "Record the shapes of operators' tensors too. This costs a little per operator.")
    ] = False,
) -> int:
    """Sample some steps now. Raises UsageError if no job is named, InputError if the coordinator refuses."""
    from kair_capture.control import options_of
    from kair_tui.commands.capture_control import ask_now

    besides = {"stacks": stacks, "memory": memory, "shapes": shapes}
    return ask_now(store, job, ranks, steps, options_of(tuple(name for name, wanted in besides.items() if wanted)))


def run_set(
    store: Path,
    *,
    words: Annotated[
        Sequence[str],
        Argument(
            "The job, then settings as key=value. Without settings, show the present ones.", metavar="JOB|KEY=VALUE..."
        ),
    ] = (),
    job: Annotated[str | None, _JOB] = None,
) -> int:
    """Change settings; print those in force. Raises UsageError if one is invalid, InputError without coordinator."""
    from kair_tui.commands.capture_control import set_values

    return set_values(store, job, words)


def run_attach(
    store: Path,
    *,
    process: Annotated[str, Argument("The number of the process.", metavar="PID")],
    job: Annotated[str | None, Option("--job", "The job's name. Default: the process's own, else pid-PID.")] = None,
    no_agent: Annotated[bool, _NO_AGENT] = False,
) -> int:
    """Record a running process. Raises UsageError if PID is not a number, InputError if it cannot be recorded."""
    return _attach(process, store, job, with_agent=not no_agent)


def _become(command: Sequence[str], store: Path, job: str | None, *, with_agent: bool, watch: bool) -> int:
    """Replace this process, so that signals and the exit status are the command's own; return only if that fails."""
    from kair_capture.settings import safe_name
    from kair_capture.unheard import run_dir_of

    if shutil.which(command[0]) is None:
        return _not_run(command[0])
    name = safe_name(job or os.environ.get("KAIR_JOB") or _name_of(command, os.environ))
    folder = os.environ.get("KAIR_RUN_DIR")
    run_dir = Path(folder).absolute() if folder else run_dir_of(name, store)
    shared = {**os.environ, "KAIR_JOB": name, "KAIR_RUN_DIR": str(run_dir), "KAIR_STORE": str(store)}
    environment = _prepared(shared, name, run_dir, with_agent=with_agent)
    if watch and "KAIR_DISABLE" not in environment:
        from kair_tui.commands.capture_watch import start_coordinator

        start_coordinator(store, name)
    sys.stdout.flush()
    try:
        os.execvpe(command[0], list(command), environment)
    except OSError as error:
        return _not_run(command[0], error)


def _not_run(command: str, error: OSError | None = None) -> int:
    """Print the reason, and return the status that shells have for it: 127 if the command is missing, else 126."""
    is_there = error is not None or ("/" in command and os.path.lexists(command))
    why = "Permission denied" if is_there else "no such command"
    say(f"kair: error: cannot run {command}: {why if error is None else error.strerror or error}")
    return _CANNOT_RUN if is_there else _NOT_FOUND


def _prepared(shared: dict[str, str], job: str, run_dir: Path, *, with_agent: bool) -> Mapping[str, str]:
    """Return the command's environment. If capture is impossible, return this process's and print one warning."""
    from kair_capture.files import make_secure_dir
    from kair_capture.job.launch import environment_of
    from kair_capture.settings import SettingsError, settings_of

    try:
        if settings_of(shared).disabled:
            return os.environ
        make_secure_dir(run_dir)
    except (SettingsError, OSError) as error:
        of_file = isinstance(error, OSError) and error.filename and f"{error.filename}: {error.strerror}"
        why = of_file or str(error)
        say(f"kair: warning: capture is off, the command runs without: {why}")
        return {**os.environ, "KAIR_DISABLE": "1"}
    if not os.environ.get("KAIR_RUN_DIR") and run_dir.parent.name != f"kair-{os.getuid()}":
        say(f"kair: warning: {run_dir.parent.parent}/kair-{os.getuid()} is another user's: it is not used")
    say(f"kair: capturing job {job} in {run_dir}")
    if with_agent:
        _start_agent(shared)
    return environment_of(shared, job=job, run_dir=run_dir)


def _attach(process: str, store: Path, job: str | None, *, with_agent: bool) -> int:
    from kair_capture.attaching import AttachError, attach

    if not process.isdecimal():
        raise UsageError("kair capture attach needs the number of a process", "kair capture attach 4242")
    try:
        found = attach(int(process), job, store)
    except AttachError as error:
        raise InputError(str(error), error.hint) from error
    if found.was_recording:
        say(f"kair: process {process} is recorded already, as job {found.job}; kair watch {found.job}")
        return 0
    say(f"kair: job {found.job} is recorded from now on ({found.ranks} on this host) in {found.run_dir}")
    if with_agent:
        shared = {"KAIR_JOB": found.job, "KAIR_RUN_DIR": str(found.run_dir), "KAIR_STORE": str(store)}
        _start_agent({**os.environ, **shared}, int(process))
    say(f"kair: kair coordinator --job {found.job} hears it; kair capture set {found.job} capture=off ends it")
    return 0


def _start_agent(environment: Mapping[str, str], process: int | None = None) -> None:
    """Start the agent of this host, which ends with `process` (default: this one). If that fails, training goes on."""
    import subprocess

    from kair_capture.ring import start_ticks

    # This process becomes the command, which keeps its number.
    number = process or os.getpid()
    environment = {**environment, "KAIR_AGENT_COMMAND": f"{number}:{start_ticks(number)}"}
    command = [sys.executable, "-P", "-m", "kair_capture.agent", "--detach"]
    try:
        subprocess.run(command, env=environment, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        say(f"kair: no agent on this host: {error}")


def _name_of(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the scheduler's job number, which all hosts know; without a scheduler the script's name and the time."""
    if number := environment.get("SLURM_JOB_ID"):
        return f"slurm-{number}"
    script = next((word for word in command if word.endswith(".py")), command[0])
    return f"{Path(script).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
