"""Sends orders to a job under `kair mitigate`: sizes, restarts, and decisions on proposals."""

import getpass
from typing import TYPE_CHECKING, Any, Literal

from kair_engine.errors import InputError, UsageError

if TYPE_CHECKING:
    from kair_mitigate.job_state import JobState
    from kair_mitigate.plans import Rule
    from kair_mitigate.records import Records


def order_plan(records: "Records", **shares: Any) -> None:  # noqa: ANN401
    """Order sizes. Raises UsageError if the job cannot take them, InputError if it has not reported its ranks yet."""
    _order(records, "sizes", **shares)


def order_leave(records: "Records", *, leave_out: str | None, **shares: Any) -> None:  # noqa: ANN401
    """Order a restart without the host `leave_out`. Raises UsageError, InputError, as `order_plan` does."""
    from kair_mitigate import running

    if leave_out:
        running.leave_out(records.folder, leave_out)
    _order(records, "leave", **shares)


def _order(
    records: "Records",
    kind: Any,  # noqa: ANN401
    *,
    sizes: str | None,
    from_step: int,
    learning_rate: "Rule | None",
    batches: str | None = None,
    deadline: float | None = None,
    claims: bool | None = None,
) -> None:
    from kair_mitigate.job_state import read_state

    known = read_state(records.folder)
    if known is None:
        raise InputError("the job has not said yet how many ranks it has", "kair mitigate status JOB shows when it has")
    now = known.state.plan.sizes
    is_of_sizes = sizes is not None or (batches is None and deadline is None and claims is None and kind != "leave")
    wanted = sizes_in(sizes) if is_of_sizes else now
    if len(wanted) != len(now) or (sum(wanted) != sum(now) and learning_rate is None):
        raise UsageError(
            f"{len(wanted)} sizes of {sum(wanted)} samples: the job has {len(now)} ranks and {sum(now)} a step",
            "sizes add up to the same, so that the job trains the same; with --learning-rate linear they need not",
        )
    if learning_rate is not None and not known.has_rate:
        raise InputError("the job's learning rate cannot be changed", "kair_mitigate.loader(…, optimizer=optimizer)")
    parts = None if batches is None else sizes_in(batches, "--batches takes those of each rank in a step")
    if (parts or deadline) and not known.is_uneven:
        raise InputError(
            "all ranks of this job take a step in as many batches", "kair_mitigate.loader(…, uneven_accumulation=True)"
        )
    if claims and (why := _why_no_claims(records, known)) is not None:
        raise InputError(why)
    deadline_us = None if deadline is None else round(1000 * deadline)
    by = getpass.getuser()
    shares = {"batches": parts, "deadline_us": deadline_us, "learning_rate": learning_rate, "claims": claims}
    records.order(wanted, by, kind=kind, from_step=from_step, **shares)  # type: ignore[arg-type]


def _why_no_claims(records: "Records", known: "JobState") -> str | None:
    from kair_mitigate.controller import why_no_claims
    from kair_mitigate.known_units import units_of

    return why_no_claims(known, units_of(records.folder, len(known.state.plan.sizes)))


def sizes_in(text: str | None, what: str = "--sizes takes the samples of each rank in a step") -> tuple[int, ...]:
    """Return the numbers of a text such as 21,6,21. Raises UsageError for anything else."""
    try:
        sizes = tuple(int(part) for part in (text or "").split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 0:
        raise UsageError(what, f"{what.split(maxsplit=1)[0]} 21,6,21")
    return sizes


def decide(records: "Records", *, number: int, action: Literal["approve", "deny"]) -> None:
    """Approve a proposal, which carries it out, or deny it. Raises InputError if it is not open."""
    decision: Literal["approved", "denied"] = "approved" if action == "approve" else "denied"
    decided = records.decide(number, decision, getpass.getuser())
    if decided is None:
        raise InputError(f"there is no open proposal {number}", "kair mitigate status JOB lists them")
    if decision == "approved":
        records.carry_out(decided, getpass.getuser())


def order_undo(records: "Records") -> None:
    """Order the previous sizes again. Raises InputError if there are none."""
    from kair_mitigate.job_state import read_state

    known = read_state(records.folder)
    plans, now = ((), None) if known is None else (known.in_force, known.state.plan)
    before = [plan for plan in plans if now and (plan.sizes, plan.claims) != (now.sizes, now.claims)]
    if not before:
        raise InputError("no other sizes were in force before")
    shares = {"learning_rate": before[-1].learning_rate, "claims": before[-1].claims}
    records.order(before[-1].sizes, getpass.getuser(), **shares)  # type: ignore[arg-type]
