"""What is done about a job's stragglers, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kair_engine.results.mitigate import (
    AuditedRange,
    MitigateResult,
    MitigationPlan,
    MitigationProposal,
    RankRate,
    SimulatedPolicy,
)
from kair_tui.render.answer import Column
from kair_tui.render.units import count, duration, plural
from kair_tui.render.view import View

if TYPE_CHECKING:
    from kair_tui.render.page import Page

_MOST_SIZES: Final = 12
_ACTIONS: Final = {"adjust_bs": "resize", "kill_restart": "restart", "backup_workers": "deadline"}


def _headline(result: MitigateResult) -> str:
    if result.action == "simulate":
        what = f"played against the steps of job {result.job}" if result.job else "in simulated jobs, drawn by seed"
        return f"speed-up over sizes that are never changed, {what}"
    if result.action == "drain":
        return "drained" if result.drained else "run this, or the same with --yes:"
    if result.audited is not None:
        audited = result.audited
        if not audited.missing and not audited.twice:
            return f"every sample once: {count(audited.counted)} in {plural(audited.epochs, 'whole epoch')}"
        missing, twice = (sum(one.end - one.begin for one in some) for some in (audited.missing, audited.twice))
        return f"{plural(missing, 'sample')} missing, {count(twice)} twice, in {plural(audited.epochs, 'whole epoch')}"
    if result.plan is None or result.samples is None or result.done is None:
        return f"job {result.job} has not said anything yet"
    share = result.done / max(result.samples, 1)
    return (
        f"job {result.job}: step {count(result.step or 0)}, epoch {result.epoch}, {share:.0%} of"
        f" {count(result.samples)} samples done; {sizes_text(result.plan.sizes)}"
    )


def sizes_text(sizes: tuple[int, ...]) -> str:
    """What the ranks take: even, one by one, or how far apart."""
    if len(set(sizes)) == 1:
        return f"{count(sizes[0])} samples a step on each of {plural(len(sizes), 'rank')}"
    if len(sizes) <= _MOST_SIZES:
        return f"{','.join(map(str, sizes))} samples a step"
    return f"{min(sizes)} to {max(sizes)} samples a step on {plural(len(sizes), 'rank')}"


def _figures(proposal: MitigationProposal) -> str:
    of = proposal.figures
    if "now_s" in of and "after_s" in of:
        worst = of.get("worst_after_s", of["after_s"])
        after = f"{1e3 * of['after_s']:.3g}" + (f" to {1e3 * worst:.3g}" if worst > of["after_s"] * 1.005 else "")
        return f"{1e3 * of['now_s']:.3g} ms a step to {after}"
    return ", ".join(f"{name} {value:.3g}" for name, value in of.items())


PROPOSALS = (
    Column[MitigationProposal]("number", "no.", lambda row: str(row.number), weight=9),
    Column[MitigationProposal](
        "action", "what", lambda row: _ACTIONS.get(row.action, row.action), align="left", weight=9
    ),
    Column[MitigationProposal](
        "sizes", "sizes", lambda row: sizes_text(row.sizes) if row.sizes else "–", align="left", weight=8
    ),
    Column[MitigationProposal]("figures", "a step", _figures, align="left", weight=8),
    Column[MitigationProposal]("decision", "", lambda row: row.decision, align="left", weight=7),
    Column[MitigationProposal]("decided_by", "by", lambda row: row.decided_by or "–", align="left", weight=5),
    Column[MitigationProposal]("proposed_at", "at (UTC)", lambda row: _minute(row.proposed_at), align="left", weight=5),
)

PLANS = (
    Column[MitigationPlan]("version", "version", lambda row: str(row.version), weight=9),
    Column[MitigationPlan]("from_step", "from step", lambda row: count(row.from_step), weight=8),
    Column[MitigationPlan](
        "kind", "what", lambda row: "restart" if row.kind == "leave" else "sizes", align="left", weight=8
    ),
    Column[MitigationPlan]("sizes", "sizes", lambda row: sizes_text(row.sizes), align="left", weight=8),
    Column[MitigationPlan]("ordered_by", "by", lambda row: row.ordered_by or "–", align="left", weight=6),
    Column[MitigationPlan]("proposal", "proposal", lambda row: str(row.proposal or "–"), weight=5),
    Column[MitigationPlan](
        "ordered_at", "at (UTC)", lambda row: _minute(row.ordered_at or "–"), align="left", weight=5
    ),
)

RATES = (
    Column[RankRate]("rank", "rank", lambda row: str(row.rank), weight=9),
    Column[RankRate]("samples", "samples a step", lambda row: count(row.samples), weight=9),
    Column[RankRate]("us_per_sample", "a sample takes", lambda row: duration(row.us_per_sample), weight=9),
    Column[RankRate]("fixed_us", "and a step besides", lambda row: duration(row.fixed_us), weight=7),
)

SIMULATED = (
    Column[SimulatedPolicy]("policy", "policy", lambda row: row.policy, align="left", weight=9),
    Column[SimulatedPolicy]("pattern", "job", lambda row: row.pattern, align="left", weight=9),
    Column[SimulatedPolicy]("speed_up", "speed-up", lambda row: f"{row.speed_up:.2f}×", weight=9),
    Column[SimulatedPolicy]("resizes", "resizes in 1,000 steps", lambda row: f"{row.resizes:.0f}", weight=7),
    Column[SimulatedPolicy]("restarts", "restarts", lambda row: f"{row.restarts:.1f}", weight=7),
    Column[SimulatedPolicy]("redone_share", "samples again", lambda row: f"{row.redone_share:.1%}", weight=6),
)

_RANGES = (
    Column[AuditedRange]("epoch", "epoch", lambda row: str(row.epoch)),
    Column[AuditedRange]("begin", "from place", lambda row: count(row.begin)),
    Column[AuditedRange]("end", "to before", lambda row: count(row.end)),
)


def _minute(moment: str) -> str:
    return moment[:16].replace("T", " ")


def _body(result: MitigateResult, page: Page) -> None:
    page.lines_of(result.commands)
    if result.simulated:
        page.table(SIMULATED, result.simulated)
        return
    if result.audited is not None:
        for title, some in (("missing", result.audited.missing), ("twice", result.audited.twice)):
            if some:
                page.line(title)
                page.table(_RANGES, some, limit=20)
        return
    for plan in result.coming:
        what = "restart after" if plan.kind == "leave" else "from"
        page.bullet(f"{what} step {count(plan.from_step)}: {sizes_text(plan.sizes)}")
    if result.action == "history":
        page.table(PLANS, result.history)
        return
    if result.rates:
        page.table(RATES, sorted(result.rates, key=lambda row: -row.us_per_sample), limit=16)
        page.line()
    if result.proposals:
        page.table(PROPOSALS, result.proposals, limit=10)


VIEW: View[MitigateResult, Any] = View(
    main="proposals",
    columns=PROPOSALS,
    headline=_headline,
    body=_body,
    records=(("proposals", "proposal"), ("history", "plan"), ("rates", "rank"), ("simulated", "policy")),
)
