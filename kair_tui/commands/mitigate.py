"""`kair mitigate`: acts on stragglers by resizing batches and by orderly restarts, and counts every sample once."""

import os
import shlex
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from kair.app.jobs import locate
from kair.app.question import Question
from kair.app.stores import OpenStore
from kair_engine.errors import InputError, UsageError
from kair_engine.results.mitigate import MitigateAction, MitigateResult
from kair_tui.cli.completion import job_names
from kair_tui.cli.options import Argument, Option
from kair_tui.cli.output import say
from kair_tui.commands.mitigate_audit import audited, audited_shards
from kair_tui.commands.mitigate_orders import decide, order_leave, order_plan, order_undo, sizes_in
from kair_tui.commands.mitigate_shards import lines_of, make_shards, serve_shards, shards_of
from kair_tui.commands.mitigate_status import rates_of_steps, records_of, status_of

if TYPE_CHECKING:
    from kair_mitigate.records import Records

RENDERER = "kair_tui.render.mitigate"

_Named = Annotated[str | None, Argument("The job. Default: --job, else $KAIR_JOB.", offers=job_names, metavar="JOB")]
_Job = Annotated[str | None, Option("--job", "The job, if it is not the first word.", metavar="NAME")]
_Number = Annotated[str | None, Argument("The proposal's number, as kair mitigate status lists it.")]
_Sizes = Annotated[str | None, Option("--sizes", "The samples of each rank in a step.", metavar="21,6,21")]
_LearningRate = Annotated[
    Literal["linear", "sqrt", "keep"] | None,
    Option(
        "--learning-rate",
        "Let sizes change the global batch, and say how the learning rate follows it.",
    ),
]
_FromStep = Annotated[int, Option("--from-step", "The first step at which it may take effect.", metavar="N", minimum=0)]
_Most = Annotated[int | None, Option("--most", "The most samples that a rank has memory for.", metavar="N", minimum=1)]
_POLICIES: Final = (
    "continuous (the default), continuous-deadline, claims, deterministic, each-step, static, or your own"
)


def run_status(session: OpenStore, *, named: _Named = None, job: _Job = None) -> MitigateResult:
    """Return the job's state. Raises UsageError if no job is named, InputError if it is not mitigated."""
    return _standing(session, "status", _job(named, job, "status"))


def run_history(session: OpenStore, *, named: _Named = None, job: _Job = None) -> MitigateResult:
    """Return every plan that was ordered. Raises UsageError if no job is named, InputError if it is not mitigated."""
    return _standing(session, "history", _job(named, job, "history"))


def run_control(
    session: OpenStore,
    *,
    named: _Named = None,
    job: _Job = None,
    policy: Annotated[
        Sequence[str],
        Option("--policy", f"{_POLICIES} as module:class.", metavar="POLICY"),
    ] = (),
    auto: Annotated[bool, Option("--auto", "Carry out proposals without asking. Default: a person approves.")] = False,
    once: Annotated[bool, Option("--once", "Look at the job once, and end.")] = False,
    per_hour: Annotated[
        int, Option("--per-hour", "With --auto: the most plans per hour.", metavar="N", minimum=1)
    ] = 20,
    most: _Most = None,
    units: Annotated[
        str | None,
        Option("--units", "The ranks that are resized together. Default: as recorded.", metavar="0-3,4-7"),
    ] = None,
    unit_size: Annotated[
        int | None, Option("--unit-size", "The number of consecutive ranks that form a unit.", metavar="N", minimum=1)
    ] = None,
    micro_batch: Annotated[
        int | None,
        Option("--micro-batch", "The number of a rank's samples that move together.", metavar="N", minimum=1),
    ] = None,
    restart_time: Annotated[
        float | None,
        Option("--restart-time", "The seconds that a restart takes. Default: restarts are not proposed.", metavar="S"),
    ] = None,
) -> MitigateResult:
    """Watch the job and propose plans until it ends, then return its state. Raises UsageError, InputError."""

    def control(records: "Records") -> None:
        from kair_capture.places import JobPlaces
        from kair_mitigate.controller import Controller
        from kair_mitigate.policy.table import policy_of
        from kair_tui.render.mitigate import proposal_line

        controller = Controller(
            JobPlaces(session.root, name),
            records,
            partial(policy_of, policy[-1] if policy else "continuous", _say),
            auto=auto,
            per_hour=per_hour,
            most=most,
            say=_say,
            in_words=proposal_line,
            units=units,
            unit_size=unit_size,
            micro_batch=micro_batch,
            restart_s=restart_time,
        )
        controller.run(once=once)

    name = _job(named, job, "control")
    return _standing(session, "control", name, control)


def run_plan(
    session: OpenStore,
    *,
    named: _Named = None,
    job: _Job = None,
    sizes: _Sizes = None,
    batches: Annotated[
        str | None,
        Option(
            "--batches", "The number of batches into which each rank's samples of a step are divided.", metavar="2,1,2"
        ),
    ] = None,
    deadline: Annotated[
        float | None,
        Option(
            "--deadline",
            "The milliseconds after which a rank skips the rest of its batches in a step; 0 for no deadline.",
            metavar="MS",
            minimum=0,
        ),
    ] = None,
    learning_rate: _LearningRate = None,
    claims: Annotated[
        Literal["on", "off"] | None,
        Option("--claims", "Whether ranks claim their samples in parts while a step runs."),
    ] = None,
    from_step: _FromStep = 0,
) -> MitigateResult:
    """Order sizes, and return the job's state. Raises UsageError, InputError."""
    order = partial(
        order_plan,
        sizes=sizes,
        batches=batches,
        deadline=deadline,
        learning_rate=learning_rate,
        claims=None if claims is None else claims == "on",
        from_step=from_step,
    )
    return _standing(session, "plan", _job(named, job, "plan"), order)


def run_leave(
    session: OpenStore,
    *,
    named: _Named = None,
    job: _Job = None,
    leave_out: Annotated[
        str | None, Option("--leave-out", "A host that later attempts leave out.", metavar="HOST")
    ] = None,
    sizes: _Sizes = None,
    learning_rate: _LearningRate = None,
    from_step: _FromStep = 0,
) -> MitigateResult:
    """Order a restart, and return the job's state. Raises UsageError, InputError."""
    order = partial(order_leave, leave_out=leave_out, sizes=sizes, learning_rate=learning_rate, from_step=from_step)
    return _standing(session, "leave", _job(named, job, "leave"), order)


def run_approve(
    session: OpenStore, *, named: _Named = None, number: _Number = None, job: _Job = None
) -> MitigateResult:
    """Carry a proposal out, and return the job's state. Raises UsageError, InputError."""
    return _decided(session, "approve", named, number, job)


def run_deny(session: OpenStore, *, named: _Named = None, number: _Number = None, job: _Job = None) -> MitigateResult:
    """Turn a proposal down, and return the job's state. Raises UsageError, InputError."""
    return _decided(session, "deny", named, number, job)


def run_undo(session: OpenStore, *, named: _Named = None, job: _Job = None) -> MitigateResult:
    """Order the previous sizes, and return the job's state. Raises InputError if there are none."""
    return _standing(session, "undo", _job(named, job, "undo"), order_undo)


def run_audit(
    session: OpenStore,
    *,
    named: _Named = None,
    job: _Job = None,
    epochs: Annotated[
        int | None, Option("--epochs", "How many epochs. Default: all finished ones.", metavar="N", minimum=1)
    ] = None,
) -> MitigateResult:
    """Return which samples were trained twice or never. Raises InputError if the job has not said how many it has."""
    name = _job(named, job, "audit")
    result = _standing(session, "audit", name)
    return replace(result, audited=audited(_folder(session.root, name), result, epochs))


def run_simulate(
    session: OpenStore,
    *,
    recorded: Annotated[
        Sequence[str],
        Argument("A job of the store, or its traces. Default: simulated jobs.", metavar="JOB|TRACES..."),
    ] = (),
    job: _Job = None,
    policy: Annotated[
        Sequence[str],
        Option("--policy", f"{_POLICIES}; also backup-workers. Repeatable. Default: all.", metavar="POLICY"),
    ] = (),
    ranks: Annotated[int, Option("--ranks", "Without JOB: how many ranks.", metavar="N", minimum=1)] = 16,
    draws: Annotated[int, Option("--draws", "Without JOB: jobs of each kind.", metavar="N", minimum=1)] = 3,
    sizes: Annotated[
        str | None, Option("--sizes", "With JOB: each rank's samples in the recording.", metavar="21,6,21")
    ] = None,
    most: _Most = None,
    fixed_share: Annotated[
        float | None,
        Option(
            "--fixed-share",
            "With JOB: the share of a rank's own time that does not depend on its batch. Default: 0 to 0.4.",
            metavar="SHARE",
            minimum=0,
        ),
    ] = None,
) -> MitigateResult:
    """Return the saving of each policy. Raises UsageError for an unknown policy, InputError for an unknown job."""
    words = recorded if job is None else (job, *recorded)
    if not words:
        return _simulated(session, ranks, draws, policy)
    given = None if sizes is None else sizes_in(sizes)
    question = Question.of("mitigate", policy=policy, sizes=given, most=most, fixed_share=fixed_share)
    return _replayed(session, words, question)


def run_drain(
    session: OpenStore,
    *,
    host: Annotated[str, Argument("The host to take out.")],
    job: Annotated[str | None, Option("--job", "The job to name in the reason.", metavar="NAME")] = None,
    yes: Annotated[bool, Option("--yes", "Run the commands. Default: they are printed.")] = False,
) -> MitigateResult:
    """Return the commands that drain the host, run only with `yes`. Raises UsageError, InputError."""
    from kair_mitigate.draining import drain, drain_commands, schedulers_here
    from kair_tui.commands.configuration import drain_words

    try:
        reason = f"kair: slow{f' in job {job}' if job else ''}"
        commands = drain_commands(host, reason, schedulers_here(), job=job or "", template=drain_words())
        if yes:
            drain(commands)
    except ValueError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise InputError(f"cannot drain {host}: {error}") from error
    lines = tuple(map(shlex.join, commands))
    return MitigateResult(session.address, "drain", job or "", commands=lines, drained=yes)


def run_shards(
    session: OpenStore,
    *,
    named: _Named = None,
    job: _Job = None,
    samples: Annotated[
        int | None, Option("--samples", "How many samples the dataset has.", metavar="N", minimum=1)
    ] = None,
    shard_samples: Annotated[
        int | None, Option("--shard-samples", "How many samples a worker takes at a time.", metavar="M", minimum=1)
    ] = None,
    files: Annotated[
        Path | None,
        Option("--files", "Hand out the files in this list, one per line, instead of samples.", metavar="LIST"),
    ] = None,
    grows: Annotated[
        bool, Option("--grows", "With --files: client.add() adds files until client.end_stream().")
    ] = False,
    epochs: Annotated[
        int | None, Option("--epochs", "The number of epochs. Default: 1.", metavar="N", minimum=1)
    ] = None,
    seed: Annotated[int, Option("--seed", "The seed of the order.", metavar="N", minimum=0)] = 0,
    commit: Annotated[
        Literal["push", "checkpoint"],
        Option("--commit", "When a sample counts: once a worker pushed it, or once a checkpoint holds it."),
    ] = "push",
    listen: Annotated[
        str,
        Option("--listen", "The address to listen at. Workers on other hosts need 0.0.0.0:PORT.", metavar="HOST:PORT"),
    ] = "127.0.0.1:0",
) -> MitigateResult:
    """Serve shards until all epochs are over, then return which samples were trained. Raises UsageError, InputError."""
    name = _job(named, job, "shards")
    folder = _folder(session.root, name)
    make = partial(
        make_shards,
        samples=samples,
        shard_samples=shard_samples,
        files=None if files is None else lines_of(files),
        grows=grows,
        seed=seed,
        epochs=epochs,
        commit=commit,
    )
    serve_shards(name, folder, listen, make)
    result = MitigateResult(session.address, "shards", name, shards=shards_of(folder))
    return replace(result, audited=audited_shards(folder, None))


def run_run(
    store: Path,
    *,
    command: Annotated[
        Sequence[str], Argument("After --: the command that trains, and its arguments.", verbatim=True)
    ] = (),
    job: Annotated[
        str | None, Option("--job", "The job's name. Default: $KAIR_JOB, else the script's.", metavar="NAME")
    ] = None,
    no_capture: Annotated[bool, Option("--no-capture", "Run the command without kair capture around it.")] = False,
) -> int:
    """Run the job, restarted as ordered, and return its exit status. Raises UsageError if there is no command."""
    from kair_capture.settings import safe_name

    if not command:
        raise UsageError("kair mitigate run needs a command", "kair mitigate run -- torchrun train.py")
    script = next((word for word in command if word.endswith(".py")), command[0])
    name = safe_name(job or os.environ.get("KAIR_JOB") or Path(script).stem)
    return _run(name, _folder(store, name), store, command, with_capture=not no_capture)


def _say(text: str) -> None:
    say(f"kair: {text}")


def _folder(store: Path, job: str) -> Path:
    return store / job / "mitigate"


def _job(named: str | None, option: str | None, action: MitigateAction) -> str:
    """Return the job's name: the argument, `--job` or $KAIR_JOB. Raises UsageError if no job is named, or two are."""
    from kair_capture.settings import safe_name

    if named and option and named != option:
        raise UsageError(f"unexpected {named!r}")
    wanted = option or named or os.environ.get("KAIR_JOB")
    if not wanted:
        raise UsageError("which job?", f"kair mitigate {action} JOB")
    return safe_name(wanted)


def _decided(
    session: OpenStore, action: Literal["approve", "deny"], named: str | None, number: str | None, job: str | None
) -> MitigateResult:
    """Decide on a proposal. A single word is its number; the job then comes from `--job` or $KAIR_JOB."""
    if number is None:
        named, number = None, named
    if number is None or not number.isdecimal():
        raise UsageError("which proposal?", f"kair mitigate {action} JOB 3")
    return _standing(session, action, _job(named, job, action), partial(decide, number=int(number), action=action))


def _standing(
    session: OpenStore, action: MitigateAction, name: str, act: "Callable[[Records], None] | None" = None
) -> MitigateResult:
    """Return a job's state after `act`. Raises UsageError, InputError."""
    with records_of(session, name) as records:
        if act is not None:
            act(records)
        return replace(status_of(session, action, name, records), rates=rates_of_steps(session, name, records))


def _run(name: str, folder: Path, store: Path, command: Sequence[str], *, with_capture: bool) -> int:
    """Run the command and return its exit status; each restart is announced."""
    from kair_mitigate import running
    from kair_mitigate.records import make_run_folder

    make_run_folder(folder)
    if with_capture:
        command = [sys.executable, "-m", "kair_tui", "capture", "run", "--job", name, "--", *command]
    environment = {**os.environ, "KAIR_STORE": str(store)}
    host = os.environ.get("KAIR_HOST") or socket.gethostname()
    try:
        return running.run(command, folder, environment, host=host, say=_say)
    except OSError as error:
        say(f"kair: error: cannot run {command[0]}: {error.strerror or error}")
        return 127


def _simulated(session: OpenStore, ranks: int, draws: int, policy: Sequence[str]) -> MitigateResult:
    """Compare policies on simulated jobs, drawn at random."""
    from kair_mitigate.policy.table import SIMULATED, simulated_rows

    chosen = policy or [name for name in SIMULATED if name != "static"]
    return MitigateResult(session.address, "simulate", "", simulated=tuple(simulated_rows(ranks, draws, chosen)))


def _replayed(session: OpenStore, words: Sequence[str], question: Question) -> MitigateResult:
    """Compare policies on a job that was recorded or watched: a name in the store, or its traces."""
    job, *files = words
    source = locate(job, session.root, [*map(Path, files)])
    answer = session.open(source).ask(question)
    result: MitigateResult = answer.result
    return replace(result, store=session.address, warnings=tuple(answer.warnings))
