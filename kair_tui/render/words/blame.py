"""Blame in words: its headline and sums, and the names of root causes."""

from kair_engine.results.blame import STEP_BEGIN, BlameResult, RootCause
from kair_tui.render.text import short_name
from kair_tui.render.units import duration, percent, plural, spans

WORTH_NAMING = 0.1
"""Of all waiting: ranks below that are not in the headline."""


def blame_headline(result: BlameResult) -> str:
    """The ranks that answer for most of the waiting."""
    where = f"step {result.step}" if result.step is not None else f"steps {spans(result.steps)}"
    if result.method == "paper":
        return _deviations(result, where)
    waited = f"the {duration(result.waiting_us)} that ranks together waited in {where}"
    if not result.by_rank:
        return f"no rank is to blame for {waited} ({plural(result.collectives, 'collective')})"
    named = [row for row in result.by_rank if row.share >= WORTH_NAMING] or [result.by_rank[0]]
    shares = " and ".join(f"rank {row.rank} for {percent(row.share)}" for row in named[:3])
    return f"to blame: {shares} of {waited}"


def _deviations(result: BlameResult, where: str) -> str:
    if not result.by_rank:
        return f"no outlier to walk back from in {where} (the paper's method)"
    first = result.by_rank[0]
    causes = plural(len(result.root_causes), "root cause")
    return f"rank {first.rank}: {causes}, {duration(first.blamed_us)} from the mean over the ranks in {where}"


def blame_totals(result: BlameResult) -> str:
    """All waiting, and how much of it has a cause; the paper's method looks at none."""
    if result.method == "paper":
        return "the paper's method ranks root causes by how far they deviate from the mean over the ranks: no waiting"
    return (
        f"waiting {duration(result.waiting_us)} in {plural(result.collectives, 'collective')}: "
        f"{duration(result.attributed_us)} attributed, {duration(result.unattributed_us)} not"
    )


def cause_operator(row: RootCause) -> str:
    """The operator of a root cause as people read it, or what stands for one."""
    return operator_name(row.operator, is_edge=row.is_edge)


def operator_name(operator: str | None, *, is_edge: bool) -> str:
    """The same of an operator by its name; None for many that are too small to be named."""
    if operator is None:
        return "smaller idle times" if is_edge else "smaller delays"
    if operator == STEP_BEGIN:
        return "late already when the step began"
    return f"idle before {short_name(operator)}" if is_edge else short_name(operator)
