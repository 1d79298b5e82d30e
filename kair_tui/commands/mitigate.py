"""`kair mitigate`: acts on stragglers: resizes batches, restarts in order, with every sample counted once."""

import os
import shlex
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal

from kair.app.jobs import locate
from kair.app.question import Question
from kair.app.stores import OpenStore
from kair_engine.errors import InputError, UsageError
from kair_engine.results.mitigate import MitigateAction, MitigateResult
from kair_tui.cli.options import Argument, Option
from kair_tui.cli.output import say
from kair_tui.commands.mitigate_audit import audited, audited_shards
from kair_tui.commands.mitigate_orders import ORDERS, nothing_more, sizes_in
from kair_tui.commands.mitigate_shards import lines_of, make_shards, serve_shards, shards_of
from kair_tui.commands.mitigate_status import rates_of_steps, records_of, status_of

RENDERER = "kair_tui.render.mitigate"
_ACTIONS: Final = (
    "run -- COMMAND…: run the job, restarted as ordered. status, history: look. control: watch it and propose. plan,"
    " leave: order sizes, or a restart. approve, deny: a proposal. undo: the sizes before. audit: every sample once?"
    " simulate: what policies gain in drawn jobs; simulate JOB or TRACES: what they would save a recorded one. drain"
    " HOST: how its scheduler takes it out. shards: give data out by the shard to workers that do not step together."
)


def run(
    session: OpenStore,
    *,
    action: Annotated[MitigateAction, Argument(_ACTIONS)] = "status",
    words: Annotated[
        Sequence[str],
        Argument(
            "The job; with approve and deny a proposal's number after it; with simulate traces, too; with run -- the"
            " command."
        ),
    ] = (),
    job: Annotated[
        str | None, Option("--job", "The job. Default: the first word, else $KAIR_JOB.", metavar="NAME")
    ] = None,
    sizes: Annotated[
        str | None,
        Option(
            "--sizes",
            "With plan and leave: samples of each rank in a step. With simulate JOB: those recorded.",
            metavar="21,6,21",
        ),
    ] = None,
    batches: Annotated[
        str | None,
        Option("--batches", "With plan: in how many batches each rank takes its samples of a step.", metavar="2,1,2"),
    ] = None,
    deadline: Annotated[
        float | None,
        Option(
            "--deadline",
            "With plan: ms after which a rank leaves its other batches of a step undone; 0: none.",
            metavar="MS",
            minimum=0,
        ),
    ] = None,
    learning_rate: Annotated[
        Literal["linear", "sqrt", "keep"] | None,
        Option(
            "--learning-rate",
            "With plan and leave: sizes may add up to another batch, which the learning rate follows so.",
        ),
    ] = None,
    claims: Annotated[
        Literal["on", "off"] | None,
        Option("--claims", "With plan: whether ranks claim their samples while a step runs, a part at a time."),
    ] = None,
    from_step: Annotated[int, Option("--from-step", "With plan and leave: not before.", metavar="N", minimum=0)] = 0,
    leave_out: Annotated[
        str | None, Option("--leave-out", "With leave: a host that is to start no further attempt.", metavar="HOST")
    ] = None,
    policy: Annotated[
        Sequence[str],
        Option(
            "--policy",
            "With control: continuous (the default), continuous-deadline, claims, deterministic, each-step, static, or"
            " your own as module:class. With simulate: backup-workers, too; can be repeated. Default: all.",
            metavar="POLICY",
        ),
    ] = (),
    auto: Annotated[bool, Option("--auto", "With control: carry proposals out. Default: a person approves.")] = False,
    once: Annotated[bool, Option("--once", "With control: look once at what there is, and end.")] = False,
    per_hour: Annotated[
        int, Option("--per-hour", "With --auto: the most plans in an hour.", metavar="N", minimum=1)
    ] = 20,
    most: Annotated[
        int | None,
        Option(
            "--most",
            "With control and simulate JOB: the most samples that a rank has memory for.",
            metavar="N",
            minimum=1,
        ),
    ] = None,
    units: Annotated[
        str | None,
        Option("--units", "With control: ranks that are resized together. Default: as recorded.", metavar="0-3,4-7"),
    ] = None,
    unit_size: Annotated[
        int | None, Option("--unit-size", "With control: so many ranks in a row are one unit.", metavar="N", minimum=1)
    ] = None,
    micro_batch: Annotated[
        int | None,
        Option("--micro-batch", "With control: samples of a rank that move together.", metavar="N", minimum=1),
    ] = None,
    restart_time: Annotated[
        float | None,
        Option("--restart-time", "With control: seconds of a restart. Default: none is proposed.", metavar="S"),
    ] = None,
    ranks: Annotated[int, Option("--ranks", "With simulate: how many.", metavar="N", minimum=1)] = 16,
    draws: Annotated[int, Option("--draws", "With simulate: jobs of each kind.", metavar="N", minimum=1)] = 3,
    fixed_share: Annotated[
        float | None,
        Option(
            "--fixed-share",
            "With simulate JOB: the share of a rank's own time that does not depend on its batch. Default: the range of"
            " 0 to 0.4.",
            metavar="SHARE",
            minimum=0,
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        Option(
            "--epochs",
            "With audit: how many. Default: those that are over. With shards: how many in all. Default: 1.",
            metavar="N",
            minimum=1,
        ),
    ] = None,
    samples: Annotated[
        int | None, Option("--samples", "With shards: how many the dataset has.", metavar="N", minimum=1)
    ] = None,
    shard_samples: Annotated[
        int | None, Option("--shard-samples", "With shards: how many a worker takes at a time.", metavar="M", minimum=1)
    ] = None,
    files: Annotated[
        Path | None,
        Option(
            "--files", "With shards: give out files, of unknown length, by this list of one a line.", metavar="LIST"
        ),
    ] = None,
    grows: Annotated[
        bool, Option("--grows", "With --files: more come by client.add(), until client.end_stream().")
    ] = False,
    seed: Annotated[int, Option("--seed", "With shards: of the order.", metavar="N", minimum=0)] = 0,
    commit: Annotated[
        Literal["push", "checkpoint"],
        Option("--commit", "With shards: what makes a sample count, what a worker pushed or a checkpoint took."),
    ] = "push",
    listen: Annotated[
        str,
        Option("--listen", "With shards: where. Workers on other hosts need 0.0.0.0:PORT.", metavar="HOST:PORT"),
    ] = "127.0.0.1:0",
    yes: Annotated[bool, Option("--yes", "With drain: run the commands. Default: they are printed.")] = False,
    no_capture: Annotated[bool, Option("--no-capture", "With run: without kair capture around the command.")] = False,
) -> MitigateResult:
    """Does it, and says where the job stands. Raises UsageError, InputError; SystemExit with the job's status."""
    if action == "drain":
        return _drained(session, words, job, yes=yes)
    if action == "simulate":
        recorded = words if job is None else (job, *words)
        if not recorded:
            return _simulated(session, ranks, draws, policy)
        given = None if sizes is None else sizes_in(sizes)
        question = Question.of("mitigate", policy=policy, sizes=given, most=most, fixed_share=fixed_share)
        return _replayed(session, recorded, question)
    name, rest = _named(action, words, job)
    folder = session.root / name / "mitigate"
    if action == "run":
        raise SystemExit(_run(name, folder, session.root, rest, with_capture=not no_capture))
    if action == "shards":
        nothing_more(rest)
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
        result = MitigateResult(session.told, "shards", name, shards=shards_of(folder))
        return replace(result, audited=audited_shards(folder, None))
    with records_of(session, name) as records:
        if action == "control":
            from kair_capture.places import JobPlaces
            from kair_mitigate.controller import Controller
            from kair_mitigate.policy.table import policy_of
            from kair_tui.render.mitigate import proposal_line

            def report(text: str) -> None:
                say(f"kair: {text}")

            controller = Controller(
                JobPlaces(session.root, name),
                records,
                partial(policy_of, policy[-1] if policy else "continuous", report),
                auto=auto,
                per_hour=per_hour,
                most=most,
                say=report,
                in_words=proposal_line,
                units=units,
                unit_size=unit_size,
                micro_batch=micro_batch,
                restart_s=restart_time,
            )
            controller.run(once=once)
        elif action in ORDERS:
            shares = {"sizes": sizes, "batches": batches, "deadline": deadline, "learning_rate": learning_rate}
            shares["claims"] = None if claims is None else claims == "on"
            ORDERS[action](records, rest, from_step=from_step, leave_out=leave_out, **shares)
        result = replace(status_of(session, action, name, records), rates=rates_of_steps(session, name, records))
        return replace(result, audited=audited(folder, result, epochs)) if action == "audit" else result


def _named(action: MitigateAction, words: Sequence[str], job: str | None) -> tuple[str, Sequence[str]]:
    """(the job, what else was said)."""
    from kair_capture.settings import safe_name

    if action == "run":
        if not words:
            raise UsageError("kair mitigate run needs a command", "kair mitigate run -- torchrun train.py")
        script = next((word for word in words if word.endswith(".py")), words[0])
        return safe_name(job or os.environ.get("KAIR_JOB") or Path(script).stem), words
    wanted = job or (words[0] if words else None) or os.environ.get("KAIR_JOB")
    if not wanted:
        raise UsageError("which job?", f"kair mitigate {action} JOB")
    return safe_name(wanted), words if job or not words else words[1:]


def _run(name: str, folder: Path, store: Path, command: Sequence[str], *, with_capture: bool) -> int:
    """The job's exit status; restarts are told."""
    from kair_mitigate import running
    from kair_mitigate.records import make_run_folder

    make_run_folder(folder)
    if with_capture:
        command = [sys.executable, "-m", "kair_tui", "capture", "run", "--job", name, "--", *command]
    environment = {**os.environ, "KAIR_STORE": str(store)}
    host = os.environ.get("KAIR_HOST") or socket.gethostname()
    try:
        return running.run(command, folder, environment, host=host, say=lambda text: say(f"kair: {text}"))
    except OSError as error:
        say(f"kair: error: cannot run {command[0]}: {error.strerror or error}")
        return 127


def _drained(session: OpenStore, words: Sequence[str], job: str | None, *, yes: bool) -> MitigateResult:
    from kair_mitigate.draining import drain, drain_commands
    from kair_tui.commands.configuration import drain_words

    if len(words) != 1:
        raise UsageError("which host?", "kair mitigate drain node7")
    try:
        reason = f"kair: slow{f' in job {job}' if job else ''}"
        commands = drain_commands(words[0], reason, job=job or "", template=drain_words())
        if yes:
            drain(commands)
    except ValueError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise InputError(f"cannot drain {words[0]}: {error}") from error
    told = tuple(map(shlex.join, commands))
    return MitigateResult(session.told, "drain", job or "", commands=told, drained=yes)


def _simulated(session: OpenStore, ranks: int, draws: int, policy: Sequence[str]) -> MitigateResult:
    """Against jobs that are drawn."""
    from kair_mitigate.policy.table import SIMULATED, simulated_rows

    chosen = policy or [name for name in SIMULATED if name != "static"]
    return MitigateResult(session.told, "simulate", "", simulated=tuple(simulated_rows(ranks, draws, chosen)))


def _replayed(session: OpenStore, words: Sequence[str], question: Question) -> MitigateResult:
    """Against a job that was recorded or watched: a name in the store, or its traces."""
    job, *files = words
    source = locate(job, session.root, [*map(Path, files)])
    answer = session.open(source).ask(question)
    result: MitigateResult = answer.result
    return replace(result, store=session.told, warnings=tuple(answer.warnings))
