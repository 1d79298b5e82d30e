"""Tables of the mitigation screen: proposals, each rank's sizes over the steps, plans; and their cursors."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Final, TypeVar

from textual.binding import Binding, BindingType

from kair_engine.results.mitigate import MitigateResult, MitigationPlan, MitigationProposal
from kair_tui.render.answer import Column
from kair_tui.render.mitigate import RankSizes, decided, shares_text, sizes_over_steps, taken_in_words, what
from kair_tui.render.units import count, duration
from kair_tui.tui.widgets.table import Table

_NARROWEST: Final = 8
_BESIDE_STRIP: Final = 46
"""Columns that the strip of sizes leaves for the rest of a rank's line."""
_WIDEST: Final = 64
Row = TypeVar("Row")


class JobTable(Table[Row]):
    """A table whose rows have numbers, by which the cursor stays on its row when rows change."""

    KEEPS_TOP: ClassVar[bool] = True
    """Whether the cursor on the first row stays with the newest row."""

    def number(self, row: Row) -> int:
        """Return the number of a row."""
        raise NotImplementedError

    def about(self, row: Row, result: MitigateResult | None) -> tuple[str, ...]:
        """Return the description of a row."""
        raise NotImplementedError

    def replace(self, rows: Sequence[Row], empty: str) -> None:
        """Replace the rows; the cursor stays on its row, or with the newest, and the view stays."""
        chosen, top = self.chosen, self.scroll_offset.y
        stays = chosen is not None and not (self.KEEPS_TOP and self.at == 0)
        self.show(rows, empty=empty)
        if chosen is not None and stays:
            found = (at for at in range(self.count) if self.number(self.row(at)) == self.number(chosen))
            self.move_to(next(found, 0))
            self.scroll_to(y=top, animate=False)


class Proposals(JobTable[MitigationProposal]):
    """The newest first. Only here can they be decided, where the cursor is visible."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "screen.decide('approve')", "approve"),
        Binding("d", "screen.decide('deny')", "deny"),
        Binding("enter", "choose", "approve", show=False),
    ]

    def number(self, row: MitigationProposal) -> int:
        """Return the proposal's number."""
        return row.number

    def about(self, row: MitigationProposal, result: MitigateResult | None) -> tuple[str, ...]:  # noqa: ARG002
        """Return its decision and its author."""
        by = f" by {row.decided_by}" if row.decided_by else ""
        return f"proposal {row.number}", f"{decided(row)}{by}", what(row)


class Ranks(JobTable[RankSizes]):
    """Differing ranks first."""

    KEEPS_TOP = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "choose", "open rank")]

    def number(self, row: RankSizes) -> int:
        """Return the rank."""
        return row.rank

    def about(self, row: RankSizes, result: MitigateResult | None) -> tuple[str, ...]:
        """Return its samples and their cost."""
        cost = () if row.us_per_sample is None else (f"{duration(row.us_per_sample)} a sample",)
        return f"rank {row.rank}", taken_in_words(row, begins_of(result)), *cost


class Plans(JobTable[MitigationPlan]):
    """Plans that were ordered, the newest first."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "choose", "its sizes", show=False)]

    def number(self, row: MitigationPlan) -> int:
        """Return the plan's version."""
        return row.version

    def about(self, row: MitigationPlan, result: MitigateResult | None) -> tuple[str, ...]:  # noqa: ARG002
        """Return its sizes."""
        return f"plan {row.version}", shares_text(row)


def rank_columns(strip: Callable[[RankSizes], str]) -> tuple[Column[RankSizes], ...]:
    """Return the columns of Ranks."""

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
    """Return a rank's sizes over the steps, for a screen of `width`; the highest of `bars` is `most` samples."""
    room = max(min(width - _BESIDE_STRIP, _WIDEST), _NARROWEST)
    return sizes_over_steps(row.taken, begins_of(result), end_of(result), most, width=room, bars=bars)


def begins_of(result: MitigateResult | None) -> tuple[int, ...]:
    """Return the first steps of the plans in force."""
    if result is None or result.plan is None:
        return ()
    return tuple(plan.from_step for plan in result.in_force or (result.plan,))


def end_of(result: MitigateResult | None) -> int:
    """Return the job's current step."""
    return (result.step if result is not None else None) or 0
