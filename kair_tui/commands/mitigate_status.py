"""Reads the state of a job under `kair mitigate`: its plans, proposals, shards, and cost per sample."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kair.app.stores import OpenStore
from kair_engine.errors import InputError, UsageError
from kair_engine.results.mitigate import MitigateAction, MitigateResult, MitigationPlan, RankRate
from kair_engine.trace.model import short_warning
from kair_tui.commands.mitigate_shards import shards_of

if TYPE_CHECKING:
    from kair_mitigate.plans import Plan
    from kair_mitigate.records import Records


class NotMitigatedError(InputError):
    """Says that the store has no folder of kair mitigate for the job."""

    def __init__(self, job: str) -> None:
        hint = f"kair mitigate run --job {job} -- torchrun … train.py"
        super().__init__(f"job {job} is not run under kair mitigate in this store", hint)


def look(session: OpenStore, job: str) -> MitigateResult:
    """Return the job's state without `rates`, which takes no time. Raises NotMitigatedError, InputError."""
    with records_of(session, job) as records:
        return status_of(session, "status", job, records)


def rates(session: OpenStore, job: str) -> tuple[RankRate, ...]:
    """Return the cost per sample of each rank, from all steps. Takes 0.4 ms per step.

    Raises NotMitigatedError, InputError.
    """
    with records_of(session, job) as records:
        return rates_of_steps(session, job, records)


def mitigated_jobs(store: Path) -> tuple[str, ...]:
    """Return the jobs of a store that run under kair mitigate, the most recently active first."""
    folders = [folder for folder in store.glob("*/mitigate") if folder.is_dir()]
    folders.sort(key=lambda folder: folder.stat().st_mtime, reverse=True)
    return tuple(folder.parent.name for folder in folders)


@contextmanager
def records_of(session: OpenStore, name: str) -> Iterator["Records"]:
    """Open a job's records, and turn their errors into errors for the user."""
    from kair_mitigate.orders import RunKeyError
    from kair_mitigate.records import Records

    folder = session.root / name / "mitigate"
    if not folder.is_dir():
        raise NotMitigatedError(name)
    try:
        yield Records(folder)
    except (ValueError, OverflowError) as error:
        raise UsageError(str(error)) from error
    except (OSError, RunKeyError) as error:
        raise InputError(f"cannot work on job {name}: {error}") from error


def status_of(session: OpenStore, action: MitigateAction, name: str, records: "Records") -> MitigateResult:
    """Return the state without `rates`, as the answer to an action."""
    from kair_mitigate.job_state import read_state
    from kair_mitigate.known_units import kept_units
    from kair_mitigate.records import moment
    from kair_mitigate.running import NO_LOADER, has_loader

    known = read_state(records.folder)
    ordered = {one.plan.version: one for one in records.history()}
    began = {} if known is None else {plan.version: plan.from_step for plan in (*known.in_force, known.state.plan)}

    def row_of(plan: "Plan") -> MitigationPlan:
        one = ordered.get(plan.version)
        at = None if one is None else moment(one.at)
        by, proposal = (None, None) if one is None else (one.by, one.proposal)
        begun = began.get(plan.version)
        factor = 1.0 if known is None else known.state.rate_factor(plan)
        shares = plan.batches, plan.deadline_us or None, factor, plan.claims
        return MitigationPlan(plan.version, plan.from_step, plan.sizes, plan.kind, at, by, proposal, begun, *shares)

    result = MitigateResult(
        session.address,
        action,
        name,
        proposals=tuple(records.proposals()),
        history=tuple(row_of(one.plan) for one in ordered.values()),
        shards=shards_of(records.folder),
    )
    if known is None:
        why = () if has_loader(records.folder) else (short_warning("loader", f"{NO_LOADER} yet"),)
        return replace(result, warnings=why)
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
        plan=row_of(state.plan),
        coming=tuple(map(row_of, state.coming)),
        in_force=tuple(map(row_of, known.in_force)),
        said_at=moment(known.said_at),
        warnings=() if said is None else (short_warning("units", said),),
    )


def rates_of_steps(session: OpenStore, name: str, records: "Records") -> tuple[RankRate, ...]:
    """Return the cost per sample of each rank, from the steps that capture keeps; empty if the job is not captured."""
    from kair_mitigate.job_state import read_state

    known, steps = read_state(records.folder), session.root / name / "steps"
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
