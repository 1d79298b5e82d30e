"""`kair capture`: a training job run under watch, and windows of it asked for by hand."""

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from kair_engine.errors import InputError, UsageError
from kair_tui.cli.options import Argument, Option
from kair_tui.cli.output import say

_CANNOT_RUN: Final = 126
_NOT_FOUND: Final = 127
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
    """Becomes the command, or asks. Raises UsageError where there is none.

    Where the command cannot be run it is told in one line, and the status is that of a shell: 127, or 126.
    """
    if action == "now":
        if command:
            raise UsageError("kair capture now takes no command", "kair capture now --job job123 --ranks 3,7")
        return ask_now(store, job, ranks, steps)
    if not command or not command[0]:
        raise UsageError("kair capture run needs a command", "kair capture run -- torchrun train.py")
    return _become(command, store, job, with_agent=not no_agent)


def _become(command: Sequence[str], store: Path, job: str | None, *, with_agent: bool) -> int:
    """In this very process, so that signals and the exit status are the command's own; returns where it cannot."""
    from kair_capture.settings import default_run_dir, safe_name

    if shutil.which(command[0]) is None:
        return _not_run(command[0])
    name = safe_name(job or os.environ.get("KAIR_JOB") or _name_of(command, os.environ))
    folder = os.environ.get("KAIR_RUN_DIR")
    run_dir = Path(folder).absolute() if folder else default_run_dir(name)
    shared = {**os.environ, "KAIR_JOB": name, "KAIR_RUN_DIR": str(run_dir), "KAIR_STORE": str(store)}
    environment = _prepared(shared, name, run_dir, with_agent=with_agent)
    sys.stdout.flush()
    try:
        os.execvpe(command[0], list(command), environment)
    except OSError as error:
        return _not_run(command[0], error)


def _not_run(command: str, error: OSError | None = None) -> int:
    """Says why, and the status that shells have for it: 127 where there is no such command, else 126."""
    is_there = error is not None or ("/" in command and os.path.lexists(command))
    why = "Permission denied" if is_there else "no such command"
    say(f"kair: error: cannot run {command}: {why if error is None else error.strerror or error}")
    return _CANNOT_RUN if is_there else _NOT_FOUND


def _prepared(shared: dict[str, str], job: str, run_dir: Path, *, with_agent: bool) -> Mapping[str, str]:
    """The command's environment; its own, without capture, where that cannot be: told here once, not by each rank."""
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
    say(f"kair: capturing job {job} in {run_dir}")
    if with_agent:
        _start_agent(shared)
    return environment_of(shared, job=job, run_dir=run_dir)


def _start_agent(environment: Mapping[str, str]) -> None:
    """One for this host; without one training goes on."""
    import subprocess

    from kair_capture.ring import start_ticks

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


def ask_now(store: Path, job: str | None, ranks: str | None, steps: int) -> int:
    """Asks the job's coordinator, and says what it answers. Raises UsageError, InputError where it refuses."""
    from kair_capture.coordinator.endpoint import NoAnswerError, address_in, ask
    from kair_capture.places import JobPlaces, address_of
    from kair_capture.settings import safe_name
    from kair_capture.wire import MOST_RANKS, Capture, KeyFileError, read_key

    name = job or os.environ.get("KAIR_JOB")
    if not name:
        raise UsageError("which job? --job NAME, or $KAIR_JOB", "kair capture now --job job123 --ranks 3,7")
    places = JobPlaces(store, safe_name(name))
    wanted = _ranks_in(ranks)
    if len(wanted) > MOST_RANKS:
        raise UsageError(f"at most {MOST_RANKS} ranks can be asked for by name", "leave --ranks out for all")
    try:
        named = os.environ.get("KAIR_COORDINATOR", "").strip()
        address = address_of(named) if named else address_in(places.address)
    except ValueError as error:
        raise UsageError(f"KAIR_COORDINATOR: {error}") from error
    if address is None:
        from kair_engine.store.remote import place_of

        raise InputError(
            f"job {places.job} has no coordinator in the store {place_of(store)}", f"kair coordinator --job {name}"
        )
    try:
        key = read_key(Path(os.environ.get("KAIR_KEY_FILE") or places.key), places.job)
        reply = ask(address, key, Capture(steps, wanted))
    except (KeyFileError, NoAnswerError) as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise InputError(f"cannot reach {address[0]}:{address[1]}: {error.strerror or error}") from error
    if reply.why_not:
        raise InputError(f"nothing is sampled: {reply.why_not}")
    last = reply.first_step + reply.steps - 1
    say(f"kair: steps {reply.first_step} to {last} are sampled; kair watch {name} tells when")
    return 0


def _ranks_in(text: str | None) -> tuple[int, ...]:
    """`3,7,10-12`. Raises UsageError."""
    found: set[int] = set()
    for part in filter(None, (text or "").split(",")):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or int(last or first) - int(first) > 1 << 16:
            raise UsageError(f"--ranks must be numbers such as 3,7 or 0-7, got {text!r}")
        found.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(found))
