"""The tables of the mitigation screen: proposals, what each rank takes over the steps, plans; and their cursors."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Final, TypeVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from kair_engine.results.mitigate import MitigateResult, MitigationPlan, MitigationProposal
from kair_tui.render.answer import Column
from kair_tui.render.mitigate import RankSizes, shares_text, sizes_over_steps, taken_in_words, what
from kair_tui.render.units import count, duration
from kair_tui.tui.widgets.table import Table

_NARROWEST: Final = 8
_BESIDE_STRIP: Final = 46
"""Columns of the table that the strip of sizes leaves to the rest of a rank's line."""
_WIDEST: Final = 64
Row = TypeVar("Row")


class Proposals(Table[MitigationProposal]):
    """The newest first. They are decided here alone, where the cursor is seen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "screen.decide('approve')", "approve"),
        Binding("d", "screen.decide('deny')", "deny"),
        Binding("enter", "choose", "approve", show=False),
    ]


class Ranks(Table[RankSizes]):
    """Those first that differ."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "choose", "open rank")]


class Plans(Table[MitigationPlan]):
    """Plans that were ordered, the newest first."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "choose", "its sizes", show=False)]


def rank_columns(strip: Callable[[RankSizes], str]) -> tuple[Column[RankSizes], ...]:
    """Return those of Ranks."""

    def us(value: float | None) -> str:
        return "–" if value is None else duration(value)

    return (
        Column("rank", "rank", lambda row: str(row.rank), weight=9),
        Column("samples", "takes", lambda row: count(row.samples), weight=9),
        Column("us_per_sample", "a sample", lambda row: us(row.us_per_sample), weight=9),
        Column("fixed_us", "a step besides", lambda row: us(row.fixed_us), weight=6),
        Column("differs", "differs", lambda row: count(row.differs), weight=5),
        Column("", "sizes over steps", strip, align="left", weight=8),
    )


def strip(row: RankSizes, result: MitigateResult | None, most: int, width: int, bars: str) -> str:
    """Return a rank's sizes over the steps, on a screen so wide; the highest of `bars` is `most` samples."""
    room = max(min(width - _BESIDE_STRIP, _WIDEST), _NARROWEST)
    return sizes_over_steps(row.taken, begins_of(result), end_of(result), most, width=room, bars=bars)


def begins_of(result: MitigateResult | None) -> tuple[int, ...]:
    """Return the steps from which on plans were in force."""
    if result is None or result.plan is None:
        return ()
    return tuple(plan.from_step for plan in result.in_force or (result.plan,))


def end_of(result: MitigateResult | None) -> int:
    """Return the step that the job is at."""
    return (result.step if result is not None else None) or 0


def replace_rows(table: Table[Row], rows: Sequence[Row], name: Callable[[Row], int], empty: str) -> None:
    """Other rows; the cursor stays on its row, or with the newest, and in view what was."""
    chosen, top = table.chosen, table.scroll_offset.y
    is_newest = not isinstance(table, Ranks) and table.at == 0
    table.show(rows, empty=empty)
    if chosen is not None and not is_newest:
        found = (at for at in range(table.count) if name(table.row(at)) == name(chosen))
        table.move_to(next(found, 0))
        table.scroll_to(y=top, animate=False)


def row_under_cursor(focused: Widget | None) -> tuple[str | None, int | None]:
    """Return which table has the keyboard, and the number of its row."""
    match focused:
        case Proposals(chosen=MitigationProposal(number=number)):
            return focused.id, number
        case Ranks(chosen=RankSizes(rank=number)):
            return focused.id, number
        case Plans(chosen=MitigationPlan(version=number)):
            return focused.id, number
    return None, None


def about_cursor(focused: Widget | None, result: MitigateResult | None) -> list[str]:
    """Return what there is to say of the row under the cursor of the table that has the keyboard."""
    if isinstance(focused, Proposals) and (proposal := focused.chosen) is not None:
        by = f" by {proposal.decided_by}" if proposal.decided_by else ""
        return [f"proposal {proposal.number}", f"{proposal.decision}{by}", what(proposal)]
    if isinstance(focused, Ranks) and (row := focused.chosen) is not None:
        cost = [] if row.us_per_sample is None else [f"{duration(row.us_per_sample)} a sample"]
        return [f"rank {row.rank}", taken_in_words(row, begins_of(result)), *cost]
    if isinstance(focused, Plans) and (plan := focused.chosen) is not None:
        return [f"plan {plan.version}", shares_text(plan)]
    return []
