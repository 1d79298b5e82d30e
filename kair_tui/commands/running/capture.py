"""`kair capture`: a training job run under watch, and windows of it asked for by hand."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, NoReturn

from kair_engine.errors import InputError, UsageError
from kair_tui.cli.output.streams import say
from kair_tui.cli.parameters import Argument, Option

CaptureAction = Literal["run", "now"]


def run(
    store: Path,
    *,
    action: Annotated[
        CaptureAction,
        Argument("run -- COMMAND…: run the command, and what it starts, under watch. now: have some steps sampled."),
    ],
    command: Annotated[Sequence[str], Argument("With run: the command that trains.", verbatim=True)] = (),
    job: Annotated[
        str | None,
        Option("--job", "The job's name. Default: $KAIR_JOB, else one of the scheduler's number or of the time."),
    ] = None,
    no_agent: Annotated[
        bool, Option("--no-agent", "With run: start no agent on this host; nobody drains the rings then.")
    ] = False,
    ranks: Annotated[
        str | None, Option("--ranks", "With now: the ranks to sample, 3,7 or 0-7. Default: all.", metavar="RANKS")
    ] = None,
    steps: Annotated[int, Option("--steps", "With now: how many steps, 50 at most.", metavar="N", minimum=1)] = 4,
) -> int:
    """Becomes the command, or asks. Raises UsageError where there is none, InputError where it cannot be run."""
    if action == "now":
        from kair_tui.commands.running.capture_now import ask_now

        if command:
            raise UsageError("kair capture now takes no command", "kair capture now --job job123 --ranks 3,7")
        return ask_now(store, job, ranks, steps)
    if not command or not command[0]:
        raise UsageError("kair capture run needs a command", "kair capture run -- torchrun train.py")
    return _become(command, store, job, with_agent=not no_agent)


def _become(command: Sequence[str], store: Path, job: str | None, *, with_agent: bool) -> NoReturn:
    """In this very process, so that signals and the exit status are the command's own."""
    from kair_capture.job.launch import environment_of
    from kair_capture.settings import default_run_dir, safe_name

    name = safe_name(job or os.environ.get("KAIR_JOB") or _name_of(command, os.environ))
    folder = os.environ.get("KAIR_RUN_DIR")
    run_dir = Path(folder) if folder else default_run_dir(name)
    environment = {**environment_of(os.environ, job=name, run_dir=run_dir), "KAIR_STORE": str(store)}
    say(f"kair: capturing job {name} in {run_dir}")
    if with_agent:
        _start_agent({**os.environ, "KAIR_JOB": name, "KAIR_RUN_DIR": str(run_dir), "KAIR_STORE": str(store)})
    sys.stdout.flush()
    try:
        os.execvpe(command[0], list(command), environment)
    except OSError as error:
        raise InputError(f"cannot run {command[0]}: {error.strerror or error}") from error


def _start_agent(environment: Mapping[str, str]) -> None:
    """One for this host; without one training goes on."""
    import subprocess

    from kair_capture.ring.process_identity import start_ticks

    # It becomes the command, and keeps its number.
    environment = {**environment, "KAIR_AGENT_COMMAND": f"{os.getpid()}:{start_ticks(os.getpid())}"}
    command = [sys.executable, "-P", "-m", "kair_capture.agent", "--detach"]
    try:
        subprocess.run(command, env=environment, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        say(f"kair: no agent on this host: {error}")


def _name_of(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Of a scheduler's job its number, which all its hosts see; else the script and the time."""
    if number := environment.get("SLURM_JOB_ID"):
        return f"slurm-{number}"
    script = next((word for word in command if word.endswith(".py")), command[0])
    return f"{Path(script).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
