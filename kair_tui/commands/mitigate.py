"""`kair mitigate`: acts on stragglers: resizes batches, restarts in order, with every sample counted once."""

import getpass
import os
import shlex
import signal
import socket
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from math import isfinite
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from kair_engine.errors import InputError, UsageError
from kair_engine.results.mitigate import (
    AuditedRange,
    MitigateAction,
    MitigateResult,
    MitigationAudit,
    MitigationPlan,
    MitigationProposal,
    MitigationShards,
    RankRate,
    SimulatedPolicy,
    WorkerSamples,
)
from kair_engine.trace.model import short_warning
from kair_tui.cli.job import StoreSession
from kair_tui.cli.options import Argument, Option
from kair_tui.cli.output import say

if TYPE_CHECKING:
    from kair_mitigate.audit import Audit
    from kair_mitigate.plans import Plan
    from kair_mitigate.records import Records
    from kair_mitigate.shards.shard import CommitPoint
    from kair_mitigate.shards.store import ShardStore

RENDERER = "kair_tui.render.mitigate"
_ACTIONS: Final = (
    "run -- COMMAND…: run the job, restarted as ordered. status, history: look. control: watch it and propose. plan,"
    " leave: order sizes, or a restart. approve, deny: a proposal. undo: the sizes before. audit: every sample once?"
    " simulate: what policies gain. drain HOST: how its scheduler takes it out. shards: give data out by the shard to"
    " workers that do not step together."
)


def run(
    session: StoreSession,
    *,
    action: Annotated[MitigateAction, Argument(_ACTIONS)] = "status",
    words: Annotated[
        Sequence[str],
        Argument("The job; with approve and deny a proposal's number after it; with run -- the command."),
    ] = (),
    job: Annotated[
        str | None, Option("--job", "The job. Default: the first word, else $KAIR_JOB.", metavar="NAME")
    ] = None,
    sizes: Annotated[
        str | None, Option("--sizes", "With plan and leave: samples of each rank in a step.", metavar="21,6,21")
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
    from_step: Annotated[int, Option("--from-step", "With plan and leave: not before.", metavar="N", minimum=0)] = 0,
    leave_out: Annotated[
        str | None, Option("--leave-out", "With leave: a host that is to start no further attempt.", metavar="HOST")
    ] = None,
    policy: Annotated[
        str | None,
        Option(
            "--policy", "With control: continuous (the default), deterministic, each-step, static. With simulate: all."
        ),
    ] = None,
    auto: Annotated[bool, Option("--auto", "With control: carry proposals out. Default: a person approves.")] = False,
    once: Annotated[bool, Option("--once", "With control: look once at what there is, and end.")] = False,
    per_hour: Annotated[
        int, Option("--per-hour", "With --auto: the most plans in an hour.", metavar="N", minimum=1)
    ] = 20,
    most: Annotated[
        int | None,
        Option("--most", "With control: the most samples that a rank has memory for.", metavar="N", minimum=1),
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
    name, rest = _named(action, words, job)
    folder = session.store.root / name / "mitigate"
    if action == "run":
        raise SystemExit(_run(name, folder, session.store.root, rest, with_capture=not no_capture))
    if action == "simulate":
        return _simulated(session, name, policy, ranks, draws)
    if action == "shards":
        _nothing_more(rest)
        make = partial(
            _make_shards,
            samples=samples,
            shard_samples=shard_samples,
            files=None if files is None else _lines_of(files),
            grows=grows,
            seed=seed,
            epochs=epochs,
            commit=commit,
        )
        _serve_shards(name, folder, listen, make)
        result = MitigateResult(session.store.told, "shards", name, shards=_shards(folder))
        return replace(result, audited=_audited_shards(folder, None))
    with _records_of(session, name) as records:
        if action == "control":
            from kair_mitigate.controller import control

            control(
                session.store.root,
                name,
                records,
                policy=policy or "continuous",
                auto=auto,
                once=once,
                per_hour=per_hour,
                most=most,
                say=say,
                units=units,
                unit_size=unit_size,
                micro_batch=micro_batch,
                restart_s=restart_time,
            )
        elif action in _DO:
            shares = {"sizes": sizes, "batches": batches, "deadline": deadline}
            _DO[action](records, rest, from_step=from_step, leave_out=leave_out, **shares)
        result = replace(_status(session, action, name, records), rates=_rates(session, name, records))
        return replace(result, audited=_audited(folder, result, epochs)) if action == "audit" else result


class NotMitigatedError(InputError):
    """The job has no folder of kair mitigate's in the store."""

    def __init__(self, job: str) -> None:
        hint = f"kair mitigate run --job {job} -- torchrun … train.py"
        super().__init__(f"job {job} is not run under kair mitigate in this store", hint)


def look(session: StoreSession, job: str) -> MitigateResult:
    """Where a job stands, at once: without `rates`. Raises NotMitigatedError, InputError."""
    with _records_of(session, job) as records:
        return _status(session, "status", job, records)


def rates(session: StoreSession, job: str) -> tuple[RankRate, ...]:
    """What a sample takes on each rank, from all steps: 0.4 ms for each. Raises NotMitigatedError, InputError."""
    with _records_of(session, job) as records:
        return _rates(session, job, records)


def mitigated_jobs(store: Path) -> tuple[str, ...]:
    """The jobs of a store that are run under kair mitigate, those first that said something last."""
    folders = [folder for folder in store.glob("*/mitigate") if folder.is_dir()]
    folders.sort(key=lambda folder: folder.stat().st_mtime, reverse=True)
    return tuple(folder.parent.name for folder in folders)


@contextmanager
def _records_of(session: StoreSession, name: str) -> Iterator["Records"]:
    """Those of a job; what goes wrong with them is told as a user's error."""
    from kair_mitigate.orders import RunKeyError
    from kair_mitigate.records import Records

    folder = session.store.root / name / "mitigate"
    if not folder.is_dir():
        raise NotMitigatedError(name)
    try:
        yield Records(folder)
    except (ValueError, OverflowError) as error:
        raise UsageError(str(error)) from error
    except (OSError, RunKeyError) as error:
        raise InputError(f"cannot work on job {name}: {error}") from error


def _drained(session: StoreSession, words: Sequence[str], job: str | None, *, yes: bool) -> MitigateResult:
    from kair_mitigate.draining import drain, drain_commands
    from kair_tui.cli.configuration import drain_words

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
    return MitigateResult(session.store.told, "drain", job or "", commands=told, drained=yes)


def _named(action: MitigateAction, words: Sequence[str], job: str | None) -> tuple[str, Sequence[str]]:
    """(the job, what else was said)."""
    from kair_capture.settings import safe_name

    if action == "simulate":
        wanted = job or (words[0] if words else None)
        return safe_name(wanted) if wanted else "", words[1:]
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
    from kair_mitigate import orders, running

    folder.mkdir(parents=True, exist_ok=True)
    orders.make_key(folder)
    if with_capture:
        command = [sys.executable, "-m", "kair_tui", "capture", "run", "--job", name, "--", *command]
    environment = {**os.environ, "KAIR_STORE": str(store)}
    host = os.environ.get("KAIR_HOST") or socket.gethostname()
    try:
        return running.run(command, folder, environment, host=host, say=lambda text: say(f"kair: {text}"))
    except OSError as error:
        say(f"kair: error: cannot run {command[0]}: {error.strerror or error}")
        return 127


def _plan(records: "Records", rest: Sequence[str], **options: Any) -> None:  # noqa: ANN401
    _order(records, rest, "sizes", **options)


def _leave(records: "Records", rest: Sequence[str], **options: Any) -> None:  # noqa: ANN401
    from kair_mitigate import running

    if host := options["leave_out"]:
        running.leave_out(records.folder, host)
    _order(records, rest, "leave", **options)


def _order(
    records: "Records",
    rest: Sequence[str],
    kind: Any,  # noqa: ANN401
    *,
    sizes: str | None,
    batches: str | None,
    deadline: float | None,
    from_step: int,
    **_: Any,  # noqa: ANN401
) -> None:
    from kair_mitigate.job_state import read_state

    _nothing_more(rest)
    known = read_state(records.folder)
    if known is None:
        raise InputError("the job has not said yet how many ranks it has", "kair mitigate status JOB tells when it has")
    now = known.state.plan.sizes
    is_of_sizes = sizes is not None or (batches is None and deadline is None and kind != "leave")
    wanted = _sizes_in(sizes) if is_of_sizes else now
    if len(wanted) != len(now) or sum(wanted) != sum(now):
        raise UsageError(
            f"{len(wanted)} sizes of {sum(wanted)} samples: the job has {len(now)} ranks and {sum(now)} a step",
            "sizes add up to the same, so that the job trains the same",
        )
    parts = None if batches is None else _sizes_in(batches, "--batches takes those of each rank in a step")
    if (parts or deadline) and not known.is_uneven:
        raise InputError(
            "all ranks of this job take a step in as many batches", "kair_mitigate.loader(…, uneven_accumulation=True)"
        )
    deadline_us = None if deadline is None else round(1000 * deadline)
    by = getpass.getuser()
    records.order(wanted, by, kind=kind, from_step=from_step, batches=parts, deadline_us=deadline_us)


def _sizes_in(text: str | None, what: str = "--sizes takes the samples of each rank in a step") -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in (text or "").split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 0:
        raise UsageError(what, f"{what.split(maxsplit=1)[0]} 21,6,21")
    return sizes


def _decide(records: "Records", rest: Sequence[str], decision: Any) -> MitigationProposal | None:  # noqa: ANN401
    if len(rest) != 1 or not rest[0].isdigit():
        raise UsageError("which proposal?", "kair mitigate approve JOB 3")
    decided = records.decide(int(rest[0]), decision, getpass.getuser())
    if decided is None:
        raise InputError(f"there is no open proposal {rest[0]}", "kair mitigate status JOB lists them")
    if decision == "approved":
        records.carry_out(decided, getpass.getuser())
    return None


def _undo(records: "Records", rest: Sequence[str], **_: Any) -> None:  # noqa: ANN401
    from kair_mitigate.job_state import read_state

    _nothing_more(rest)
    known = read_state(records.folder)
    before = [] if known is None else [plan.sizes for plan in known.in_force if plan.sizes != known.state.plan.sizes]
    if not before:
        raise InputError("no other sizes were in force before")
    records.order(before[-1], getpass.getuser())


def _nothing_more(rest: Sequence[str]) -> None:
    if rest:
        raise UsageError(f"unexpected {rest[0]!r}")


_DO: Final[dict[str, Callable[..., Any]]] = {
    "plan": _plan,
    "leave": _leave,
    "approve": lambda records, rest, **_: _decide(records, rest, "approved"),
    "deny": lambda records, rest, **_: _decide(records, rest, "denied"),
    "undo": _undo,
}


def _status(session: StoreSession, action: MitigateAction, name: str, records: "Records") -> MitigateResult:
    from kair_mitigate.job_state import read_state
    from kair_mitigate.known_units import kept_units

    known = read_state(records.folder)
    ordered = {one.plan.version: one for one in records.history()}
    began = {} if known is None else {plan.version: plan.from_step for plan in (*known.in_force, known.state.plan)}

    def told(plan: "Plan") -> MitigationPlan:
        one = ordered.get(plan.version)
        at = None if one is None else _moment(one.at)
        by, proposal = (None, None) if one is None else (one.by, one.proposal)
        begun = began.get(plan.version)
        shares = plan.batches, plan.deadline_us or None
        return MitigationPlan(plan.version, plan.from_step, plan.sizes, plan.kind, at, by, proposal, begun, *shares)

    result = MitigateResult(
        session.store.told,
        action,
        name,
        proposals=tuple(
            MitigationProposal(
                one.id,
                _moment(one.at),
                one.action,
                one.sizes,
                _finite(one.reason),
                one.decision,
                one.decided_by,
                one.batches or (),
                one.deadline_us,
            )
            for one in records.proposals()
        ),
        history=tuple(told(one.plan) for one in ordered.values()),
        shards=_shards(records.folder),
    )
    if known is None:
        return result
    units = kept_units(records.folder, len(known.state.plan.sizes))
    said = None if units is None or action == "control" else units.sentence(known.state.plan.sizes)
    state = known.state
    doing = min(known.fetched * sum(state.plan.sizes), known.samples - state.offset)
    return replace(
        result,
        step=state.step,
        epoch=state.epoch,
        samples=known.samples,
        done=state.offset,
        doing=doing,
        attempt=known.attempt,
        plan=told(state.plan),
        coming=tuple(map(told, state.coming)),
        in_force=tuple(map(told, known.in_force)),
        said_at=_moment(known.said_at),
        warnings=() if said is None else (short_warning("units", said),),
    )


def _rates(session: StoreSession, name: str, records: "Records") -> tuple[RankRate, ...]:
    """What capture's steps tell of each rank; nothing of a job that is not captured."""
    from kair_mitigate.job_state import read_state

    known, steps = read_state(records.folder), session.store.root / name / "steps"
    if known is None or not steps.is_dir():
        return ()
    from kair_mitigate.controller import rates_of

    if (fitted := rates_of(steps, known)) is None:
        return ()
    sizes = known.state.plan.sizes
    return tuple(
        RankRate(rank, 1e6 * slope, 1e6 * fixed, sizes[rank])
        for rank, (slope, fixed) in enumerate(zip(*fitted, strict=True))
    )


def _shards(folder: Path) -> MitigationShards | None:
    """Counted without a lock that the service would wait for. Raises OSError where the file is no such database."""
    from kair_mitigate.shards.epochs import newest_epoch
    from kair_mitigate.shards.looking import SHARDS, dataset_of, looked_at

    if not (folder / SHARDS).exists():
        return None
    with looked_at(folder / SHARDS) as database:
        epoch, epochs = newest_epoch(database), dataset_of(database).epochs
        states = "SELECT state, COUNT(*) FROM shard WHERE epoch = ? GROUP BY state"
        of = dict(database.execute(states, (epoch,)).fetchall())
    todo, doing, done, quarantined = (of.get(state, 0) for state in ("TODO", "DOING", "DONE", "QUARANTINED"))
    return MitigationShards(epoch, todo, doing, done, quarantined, epochs)


def _serve_shards(name: str, folder: Path, listen: str, make: "Callable[[ShardStore], None]") -> None:
    """Until all epochs are over, SIGTERM, or Ctrl-C. Raises UsageError, InputError."""
    from kair_capture.files import BusyError
    from kair_capture.places import address_of
    from kair_mitigate.orders import RunKeyError
    from kair_mitigate.shard_serving import serve
    from kair_mitigate.shards.looking import SHARDS
    from kair_mitigate.shards.shard import ShardError

    ended = Event()
    try:
        address = address_of(listen)
    except ValueError as error:
        raise UsageError(f"--listen: {error}") from error
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    try:
        serve(folder, address, make, ended, began=lambda at: say(f"kair: shards of job {name} at {at[0]}:{at[1]}"))
    except BusyError as error:
        raise InputError(f"job {name} has a shard service already ({error} is locked)") from error
    except sqlite3.Error as error:
        raise InputError(f"cannot use {folder / SHARDS}: {error}") from error
    except (OSError, RunKeyError) as error:
        raise InputError(f"cannot serve the shards of job {name}: {error}") from error
    except (ShardError, OverflowError) as error:
        raise UsageError(f"job {name}: {error}") from error


def _make_shards(
    store: "ShardStore",
    *,
    samples: int | None,
    shard_samples: int | None,
    files: Sequence[str] | None,
    grows: bool,
    seed: int,
    epochs: int | None,
    commit: "CommitPoint",
) -> None:
    """The same as before where the job goes on, which need not be said again. Raises UsageError, ShardError."""
    how: dict[str, Any] = {"seed": seed, "epochs": epochs or 1, "commit": commit}
    if files is not None and samples is None:
        store.make_files(files, growing=grows, **how)
    elif samples is not None and shard_samples is not None and files is None:
        store.make(samples, shard_samples, **how)
    elif samples is not None or shard_samples is not None or files is not None or not store.is_made:
        raise UsageError(
            "the dataset is --samples and --shard-samples, or --files",
            "kair mitigate shards JOB --samples 60000 --shard-samples 64 --epochs 2",
        )


def _lines_of(file: Path) -> list[str]:
    try:
        return [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {file}: {error}") from error


def _finite(figures: Mapping[str, Any]) -> dict[str, float]:
    """Those of what the database holds that are numbers."""
    return {name: value for name, value in figures.items() if isinstance(value, int | float) and isfinite(value)}


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _audited(folder: Path, result: MitigateResult, epochs: int | None) -> MitigationAudit:
    from kair_mitigate.audit import audit

    if result.shards is not None:
        return _audited_shards(folder, epochs)
    if result.samples is None or result.epoch is None:
        raise InputError("the job has not said yet how many samples it has")
    whole = epochs if epochs is not None else result.epoch
    found = audit(sorted((folder / "trained").glob("*.jsonl")), result.samples, whole)
    return _told_audit(result.samples, whole, {None: found})


def _audited_shards(folder: Path, epochs: int | None) -> MitigationAudit:
    from kair_mitigate.shards.looking import audit_of_run

    try:
        found = audit_of_run(folder, epochs)
    except OSError as error:
        raise InputError(str(error)) from error
    samples = found.dataset.samples
    told = _told_audit(sum(found.dataset.records.values()) if samples is None else samples, found.epochs, found.of)
    return replace(told, workers=tuple(WorkerSamples(*one) for one in found.workers.items()))


def _told_audit(samples: int, epochs: int, of: "Mapping[str | None, Audit]") -> MitigationAudit:
    def ranges(what: Literal["missing", "twice"]) -> tuple[AuditedRange, ...]:
        return tuple(
            AuditedRange(epoch, begin, end, file)
            for file, found in of.items()
            for epoch, some in sorted(getattr(found, what).items())
            for begin, end in some
        )

    counted = sum(found.counted for found in of.values())
    return MitigationAudit(samples, epochs, counted, ranges("missing"), ranges("twice"))


def _simulated(session: StoreSession, name: str, policy: str | None, ranks: int, draws: int) -> MitigateResult:
    """Against a job that was watched, or against simulated ones where none is named."""
    from kair_mitigate.policy.table import SIMULATED, recorded_rows, simulated_rows

    chosen = [name for name in SIMULATED if name != "static"] if policy is None else [policy]
    try:
        if not name:
            rows = list(simulated_rows(ranks, draws, chosen))
        else:
            from kair_mitigate.controller import recorded
            from kair_mitigate.job_state import read_state

            known = read_state(session.store.root / name / "mitigate")
            if known is None:
                raise InputError(f"job {name} is not run under kair mitigate in this store")
            sizes = known.in_force[0].sizes
            rows = list(recorded_rows(*recorded(session.store.root / name / "steps", len(sizes)), sizes, chosen))
    except ValueError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise InputError(f"cannot read the steps of job {name}: {error}") from error
    return MitigateResult(session.store.told, "simulate", name, simulated=tuple(SimulatedPolicy(*row) for row in rows))
