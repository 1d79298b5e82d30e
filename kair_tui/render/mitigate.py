"""Mitigation of a job's stragglers, for people."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from kair_engine.results.mitigate import (
    AuditedRange,
    MitigateResult,
    MitigationAudit,
    MitigationPlan,
    MitigationProposal,
    MitigationShards,
    RankRate,
    RecordedReplay,
    SimulatedPolicy,
    WorkerSamples,
)
from kair_tui.render.answer import DIM, Column, Styled
from kair_tui.render.drawing import level
from kair_tui.render.store import minute
from kair_tui.render.units import count, duration, percent, plural, without_unit
from kair_tui.render.view import View

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kair_tui.render.page import Page

_MOST_SIZES: Final = 12
_ACTIONS: Final = {
    "adjust_bs": "resize",
    "kill_restart": "restart",
    "backup_workers": "deadline",
    "adjust_lr": "batch",
    "claim": "claims",
}


def _headline(result: MitigateResult) -> str:
    if result.replay is not None:
        return savings_in_words(result.simulated, result.replay)
    if result.action == "simulate":
        return "speed-up over sizes that are never changed, in simulated jobs, drawn by seed"
    if result.action == "drain":
        return "drained" if result.drained else "run this, or the same with --yes:"
    if result.audited is not None:
        return _audit_text(result.audited, result.shards, is_end=result.action == "shards")
    if result.plan is None or result.samples is None or result.done is None:
        said = " has not reported yet" if result.shards is None else f": {_shards_text(result.shards)}"
        return f"job {result.job}{said}"
    share = result.done / max(result.samples, 1)
    return (
        f"job {result.job}: step {count(result.step or 0)}, epoch {result.epoch}, {share:.0%} of"
        f" {count(result.samples)} samples done; {shares_text(result.plan)}"
    )


def _audit_text(audited: MitigationAudit, shards: MitigationShards | None, *, is_end: bool) -> str:
    """Return an audit in words; `is_end`: of the service that assigned the shards."""
    epochs = plural(audited.epochs, "whole epoch")
    if is_end and shards is not None and audited.epochs < shards.epochs:
        return f"stopped: {_shards_text(shards)}; the same command goes on"
    if not audited.missing and not audited.twice:
        return f"every sample once: {count(audited.counted)} in {epochs}"
    missing, twice = (sum(one.end - one.begin for one in some) for some in (audited.missing, audited.twice))
    left_out = f"; {_shards_text(shards)}" if shards is not None and shards.quarantined else ""
    return f"{plural(missing, 'sample')} missing, {count(twice)} twice, in {epochs}{left_out}"


def shares_text(plan: MitigationPlan) -> str:
    """Return the ranks' samples, the number of batches if these differ, and the last step."""
    rate = f", learning rate × {plan.learning_rate:.3g}" if plan.learning_rate != 1 else ""
    if plan.claims:
        samples = plural(sum(plan.sizes), "sample")
        return f"{samples} a step, claimed by {plural(len(plan.sizes), 'rank')} while it runs{rate}"
    parts = f" in {','.join(map(str, plan.batches[:_MOST_SIZES]))} batches" if plan.batches else ""
    until = f", {duration(plan.deadline_us)} at most" if plan.deadline_us else ""
    return f"{sizes_text(plan.sizes)}{parts}{until}{rate}"


def sizes_text(sizes: tuple[int, ...]) -> str:
    """Return the ranks' samples: even, one by one, or their range."""
    if len(set(sizes)) == 1:
        return f"{count(sizes[0])} samples a step on each of {plural(len(sizes), 'rank')}"
    if len(sizes) <= _MOST_SIZES:
        return f"{','.join(map(str, sizes))} samples a step"
    return f"{min(sizes)} to {max(sizes)} samples a step on {plural(len(sizes), 'rank')}"


def _shards_text(shards: MitigationShards) -> str:
    of = shards.todo + shards.doing + shards.done + shards.quarantined
    left_out = f", {count(shards.quarantined)} quarantined" if shards.quarantined else ""
    done = f"{count(shards.done)} of {plural(of, 'shard')} of epoch {shards.epoch} done"
    return f"{done}, {count(shards.doing)} in hand{left_out}"


def _figures(proposal: MitigationProposal) -> str:
    of = proposal.figures
    if "now_s" in of and "after_s" in of:
        worst = of.get("worst_after_s", of["after_s"])
        after = f"{1e3 * of['after_s']:.3g}" + (f" to {1e3 * worst:.3g}" if worst > of["after_s"] * 1.005 else "")
        return f"{1e3 * of['now_s']:.3g} ms a step to {after}"
    return ", ".join(f"{name} {value:.3g}" for name, value in of.items())


def what(proposal: MitigationProposal) -> str:
    """Return `resize to 21,6,21 samples a step`."""
    doing = _ACTIONS.get(proposal.action, proposal.action)
    if proposal.action == "claim":
        return "ranks claim their samples while a step runs"
    if proposal.deadline_us is not None:
        return f"{doing} of {duration(proposal.deadline_us)} a step"
    parts = f" in {','.join(map(str, proposal.batches))} batches" if proposal.batches else ""
    return f"{doing} to {sizes_text(proposal.sizes)}{parts}" if proposal.sizes else doing


def break_even(proposal: MitigationProposal) -> str:
    """Return when it has saved more than it costs."""
    of = proposal.figures
    if "now_s" not in of or "after_s" not in of:
        return "–"
    saved = of["now_s"] - of["after_s"]
    if saved <= 0:
        return "never"
    return f"after {plural(-int(-of['cost_s'] // saved), 'step')}" if of.get("cost_s") else "at once"


def evidence(proposal: MitigationProposal) -> str:
    """Return the evidence of a proposal in words; unknown figures by their names."""
    of = dict(proposal.figures)
    texts = []
    now, after = of.pop("now_s", 0.0), of.pop("after_s", None)
    worst = of.pop("worst_after_s", after)
    of.pop("saving", None)
    if now > 0 and after is not None and worst is not None:
        best, least = 1 - after / now, 1 - worst / now
        span = percent(best) if best - least < 0.001 else f"{percent(min(best, least))} to {percent(best)}"
        texts.append(f"saves {span} of a step")
        texts.append(f"pays {break_even(proposal)}")
    texts += [f"{words} {duration(1e6 * of.pop(name))}" for name, words in _SECONDS.items() if name in of]
    texts += [f"{plural(int(of.pop(name)), noun)} {does}" for name, noun, does in _COUNTS if name in of]
    return ", ".join([*texts, *(f"{name} {value:.3g}" for name, value in of.items())])


def decided(proposal: MitigationProposal) -> str:
    """Return `approved`, `replaced: proposal 3 is newer`."""
    return f"{proposal.decision}: {proposal.why}" if proposal.why else proposal.decision


def proposal_line(proposal: MitigationProposal) -> str:
    """Return `resize to 18,13,17 samples a step: 73.6 ms a step to 61 to 66.1, saves 10 % to 17 % of a step, …`."""
    is_priced = "now_s" in proposal.figures
    figures = [_figures(proposal)] if is_priced else []
    return ": ".join(filter(None, [what(proposal), ", ".join([*figures, evidence(proposal)])]))


_SECONDS: Final = {
    "gain_s": "in the steps left it saves",
    "cost_s": "and costs",
    "restart_s": "a restart takes",
    "already_lost_s": "what is slow has cost",
}
_COUNTS: Final = (("units", "rank", "concerned"), ("moved", "sample", "moved"))

PROPOSALS = (
    Column[MitigationProposal]("number", "no.", lambda row: str(row.number), weight=9),
    Column[MitigationProposal](
        "action", "what", lambda row: _ACTIONS.get(row.action, row.action), align="left", weight=9
    ),
    Column[MitigationProposal](
        "sizes", "sizes", lambda row: sizes_text(row.sizes) if row.sizes else "–", align="left", weight=7
    ),
    Column[MitigationProposal]("figures", "a step", _figures, align="left", weight=8),
    Column[MitigationProposal]("", "pays", break_even, align="left", weight=6),
    Column[MitigationProposal](
        "decision",
        "state",
        lambda row: row.decision if row.decision == "open" else Styled(decided(row), DIM),
        align="left",
        weight=9,
    ),
    Column[MitigationProposal]("decided_by", "by", lambda row: row.decided_by or "–", align="left", weight=5),
    Column[MitigationProposal]("proposed_at", "at (UTC)", lambda row: minute(row.proposed_at), align="left", weight=5),
)


def _kind(plan: MitigationPlan) -> str:
    return "restart" if plan.kind == "leave" else "claims" if plan.claims else "sizes"


PLANS = (
    Column[MitigationPlan]("version", "version", lambda row: str(row.version), weight=9),
    Column[MitigationPlan]("began", "from step", lambda row: "–" if row.began is None else count(row.began), weight=8),
    Column[MitigationPlan]("from_step", "not before", lambda row: count(row.from_step), weight=4, detail=True),
    Column[MitigationPlan]("kind", "what", _kind, align="left", weight=8),
    Column[MitigationPlan]("sizes", "sizes", shares_text, align="left", weight=8),
    Column[MitigationPlan]("ordered_by", "by", lambda row: row.ordered_by or "–", align="left", weight=6),
    Column[MitigationPlan]("proposal", "proposal", lambda row: str(row.proposal or "–"), weight=5),
    Column[MitigationPlan]("ordered_at", "at (UTC)", lambda row: minute(row.ordered_at or "–"), align="left", weight=5),
)

RATES = (
    Column[RankRate]("rank", "rank", lambda row: str(row.rank), weight=9),
    Column[RankRate]("samples", "samples a step", lambda row: count(row.samples), weight=9),
    Column[RankRate]("us_per_sample", "a sample takes", lambda row: duration(row.us_per_sample), weight=9),
    Column[RankRate]("fixed_us", "fixed per step", lambda row: duration(row.fixed_us), weight=7),
)


@dataclass(frozen=True)
class RankSizes:
    """A rank's samples per step, its earlier ones, and its cost per sample."""

    rank: int
    samples: int
    differs: int
    """Difference from the median of all ranks."""
    us_per_sample: float | None
    fixed_us: float | None
    """Both are None for a job that is not captured."""
    taken: tuple[int, ...]
    """By plan, the oldest first; 0 before the job had this rank."""


def ranks_of(result: MitigateResult) -> list[RankSizes]:
    """Return all ranks: by the samples' difference from the median, then by the range of earlier ones.

    Equal ones are ordered by the time per sample, the longest first.
    """
    if result.plan is None:
        return []
    sizes, rates = result.plan.sizes, {rate.rank: rate for rate in result.rates}
    usual = int(median(sizes))
    plans = [plan.sizes for plan in result.in_force] or [sizes]
    rows = []
    for rank, samples in enumerate(sizes):
        rate = rates.get(rank)
        slope, fixed = (None, None) if rate is None else (rate.us_per_sample, rate.fixed_us)
        taken = tuple(plan[rank] if rank < len(plan) else 0 for plan in plans)
        rows.append(RankSizes(rank, samples, abs(samples - usual), slope, fixed, taken))
    # Two figures, so that similar ranks do not change places at every look.
    slow = [float(f"{row.us_per_sample or 0.0:.1e}") for row in rows]
    return sorted(rows, key=lambda row: (-row.differs, min(row.taken) - max(row.taken), -slow[row.rank]))


def sizes_over_steps(
    taken: tuple[int, ...], begins: tuple[int, ...], end: int, most: int, *, width: int, bars: str
) -> str:
    """Return a rank's samples from the first of `begins` to the step `end`: one of `bars` per stretch, blank for none.

    The highest bar is `most`.
    """
    first, span, signs = begins[0], max(end - begins[0], 1), f" {bars}"
    steps = (first + at * span // width for at in range(width))
    sizes = (taken[max(bisect_right(begins, step) - 1, 0)] for step in steps)
    return "".join(signs[level(size, most, len(signs))] for size in sizes)


def taken_in_words(row: RankSizes, begins: tuple[int, ...]) -> str:
    """Return `8 samples from step 0, 4 from step 48`: the last few changes of a rank."""
    changes = [at for at in range(len(begins)) if at == 0 or row.taken[at] != row.taken[at - 1]]
    texts = [f"{count(row.taken[at])} from step {count(begins[at])}" for at in changes[-_MOST_CHANGES:]]
    return ("… " if len(changes) > _MOST_CHANGES else "") + ", ".join(texts)


_MOST_CHANGES: Final = 4

SIMULATED = (
    Column[SimulatedPolicy]("policy", "policy", lambda row: row.policy, align="left", weight=9),
    Column[SimulatedPolicy]("pattern", "job", lambda row: row.pattern, align="left", weight=9),
    Column[SimulatedPolicy]("speed_up", "speed-up", lambda row: f"{row.speed_up:.2f}×", weight=9),
    Column[SimulatedPolicy]("resizes", "resizes in 1,000 steps", lambda row: f"{row.resizes:.0f}", weight=7),
    Column[SimulatedPolicy]("restarts", "restarts", lambda row: f"{row.restarts:.1f}", weight=7),
    Column[SimulatedPolicy]("redone_share", "samples again", lambda row: f"{row.redone_share:.1%}", weight=6),
)


def savings_in_words(rows: Sequence[SimulatedPolicy], replay: RecordedReplay) -> str:
    """Return what the best policy would save the recorded job, or that there is nothing to save."""
    row = next((row for row in rows if row.policy == replay.saves), None)
    if row is not None and row.saved_us is not None and row.step_us is not None:
        steps = f"{duration(replay.step_us)} to {duration(row.step_us)}"
        return f"{row.policy} would save {_saved(row)} a step ({percent(row.saved_us / replay.step_us)}): {steps}"
    if len(replay.units) == 1 < len(replay.sizes):
        return f"nothing to save by resizing: all {count(len(replay.sizes))} ranks meet in every micro-batch"
    if all(row.first_after is None for row in rows if row.policy.startswith("continuous")):
        return f"nothing to save: steps of {duration(replay.step_us)} are as short as resizing makes them"
    return f"nothing to save: no policy reliably makes steps of {duration(replay.step_us)} 5 % shorter"


def _saved(row: SimulatedPolicy) -> str:
    """Return `about 12.2 ms (11.6 to 12.9)`."""
    if not row.saved_us or row.least_saved_us is None or row.most_saved_us is None:
        return "nothing"
    saved = duration(row.saved_us)
    span = f"{duration(row.least_saved_us)} to {duration(row.most_saved_us)}"
    return f"about {saved} ({without_unit(span, of=saved)})"


def orders_in_words(row: SimulatedPolicy, replay: RecordedReplay) -> str:
    """Return a policy's orders: the last sizes, a deadline, or nothing."""
    spread = ",".join(map(str, row.sizes)) if len(row.sizes) <= _MOST_SIZES else f"{min(row.sizes)} to {max(row.sizes)}"
    least = min(range(len(row.sizes)), key=row.sizes.__getitem__, default=0)
    of = "% of the usual batch" if replay.is_in_per_cent else "samples"
    said = [
        f"{spread} {of}{f', least on rank {least}' if len(row.sizes) > _MOST_SIZES else ''}" if row.sizes else "",
        f"a deadline of {row.deadline:g} × the median" if row.deadline is not None else "",
        f"no wait for {plural(row.spare, 'unit')}" if row.spare else "",
    ]
    return "; ".join(filter(None, said)) or "nothing"


def replayed_columns(replay: RecordedReplay) -> tuple[Column[SimulatedPolicy], ...]:
    """Return the columns of policies that were replayed on this job."""
    return (
        Column[SimulatedPolicy]("policy", "policy", lambda row: row.policy, align="left", weight=9),
        Column[SimulatedPolicy]("step_us", "a step", lambda row: duration(row.step_us or 0.0), weight=9),
        Column[SimulatedPolicy]("saved_us", "saves", _saved, align="left", weight=9),
        Column[SimulatedPolicy](
            "share", "of a step", lambda row: percent((row.saved_us or 0.0) / replay.step_us), weight=8
        ),
        Column[SimulatedPolicy]("sizes", "orders", lambda row: orders_in_words(row, replay), align="left", weight=7),
        Column[SimulatedPolicy]("resizes", "resizes in 1,000 steps", lambda row: f"{row.resizes:.0f}", weight=6),
    )


def assumed_in_words(replay: RecordedReplay) -> list[str]:
    """Return the assumptions behind the savings."""
    least, most = min(replay.fixed_shares), max(replay.fixed_shares)
    shares = percent(most, 0) if least == most else f"{100 * least:.0f} to {percent(most, 0)}"
    steps = plural(replay.steps, "recorded step")
    in_order = replay.played == replay.steps
    played = f"{steps}, in order" if in_order else f"{count(replay.played)} steps drawn from {steps}"
    tied = [unit for unit in replay.units if len(unit) > 1]
    named = ", ".join("+".join(map(str, unit[:_MOST_SIZES])) for unit in tied[:_MOST_UNITS])
    more = f" and {count(len(tied) - _MOST_UNITS)} more" if len(tied) > _MOST_UNITS else ""
    return [
        f"replayed: {played}",
        "each-step, claims and backup-workers are shown for comparison; a deadline needs accumulated batches",
        f"assumed: {shares} of a rank's own time does not depend on its batch, and resizing costs nothing",
        *(
            ["assumed: ranks are independent, as the recording does not show who meets in every micro-batch"]
            * replay.is_assumed
        ),
        *([f"resized together: ranks {named}{more}"] if tied else []),
        "restarts: none, because a recording does not show what one would fix",
    ]


_MOST_UNITS: Final = 4

_RANGES = (
    Column[AuditedRange]("epoch", "epoch", lambda row: str(row.epoch)),
    Column[AuditedRange]("begin", "from place", lambda row: count(row.begin)),
    Column[AuditedRange]("end", "to before", lambda row: count(row.end)),
)

_FILE_RANGES = (Column[AuditedRange]("file", "file", lambda row: row.file or "–", align="left"), *_RANGES)

_WORKERS = (
    Column[WorkerSamples]("worker", "worker", lambda row: row.worker, align="left"),
    Column[WorkerSamples]("samples", "samples", lambda row: count(row.samples)),
)


def _body(result: MitigateResult, page: Page) -> None:
    page.lines_of(result.commands)
    if result.replay is not None:
        page.table(replayed_columns(result.replay), result.simulated)
        page.line()
        for text in assumed_in_words(result.replay):
            page.bullet(text)
        return
    if result.simulated:
        page.table(SIMULATED, result.simulated)
        return
    if result.audited is not None:
        for title, some in (("missing", result.audited.missing), ("twice", result.audited.twice)):
            if some:
                page.line(title)
                page.table(_FILE_RANGES if some[0].file is not None else _RANGES, some, limit=20)
        if result.audited.workers:
            page.table(_WORKERS, result.audited.workers, limit=20)
        return
    for plan in result.coming:
        what = "restart after" if plan.kind == "leave" else "from"
        page.bullet(f"{what} step {count(plan.from_step)}: {shares_text(plan)}")
    if result.action == "history":
        page.table(PLANS, result.history)
        return
    if result.shards is not None and result.plan is not None:
        page.line(_shards_text(result.shards))
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
