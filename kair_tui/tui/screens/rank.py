"""The screen of a rank: its step time, its completion curve, and outlying operations."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message

from kair.app.question import Question
from kair_engine.results.pinpoint import Outlier, PinpointResult
from kair_engine.results.rank import RankProfileResult
from kair_engine.results.triage import RankedRank, TriageResult
from kair_tui.render.delays import lead_in_words
from kair_tui.render.drawing import mark_sign, signs
from kair_tui.render.hangs import sentences_about
from kair_tui.render.pinpoint import ALIKE_COLUMNS, AlikeOutliers, alike, each
from kair_tui.render.rank import distance_text, outstanding, rank_headline
from kair_tui.render.triage import has_scores
from kair_tui.render.units import count, duration, percent, plural, score
from kair_tui.tui.asked_ahead import rank_questions
from kair_tui.tui.filtering import Filter
from kair_tui.tui.frame.view import ViewScreen
from kair_tui.tui.session import Place
from kair_tui.tui.widgets.bars import CompletionCurve, StepParts
from kair_tui.tui.widgets.lines import Heading, Paragraph, Paragraphs
from kair_tui.tui.widgets.step_bar import StepBarLine
from kair_tui.tui.widgets.styles import styles_of
from kair_tui.tui.widgets.table import Table

if TYPE_CHECKING:
    from kair_tui.tui.figure_words import Figures

LONGER = 1.01
"""Ratio to the usual time among peers: smaller ones are shown as 1.00 ×."""


class Outliers(Table[AlikeOutliers]):
    """Operators, or single operations, each leading to its cause."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "choose", "why late")]

    class NoneChosen(Message):
        """There is no outlier to ask about."""

    def action_choose(self) -> None:
        """Show why the outlier was late; without one, why the rank was."""
        super().action_choose()
        if self._filled and not self.total:
            self.post_message(self.NoneChosen())


class RankScreen(ViewScreen):
    """The results of `kair rank` and `kair pinpoint` for a rank."""

    DEFAULT_CSS = """
    RankScreen #bar { margin-bottom: 1; }
    RankScreen #top { height: 36%; min-height: 8; max-height: 16; margin-bottom: 1; }
    RankScreen #left { width: 11fr; }
    RankScreen #right { width: 9fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "neighbour(-1)", "more suspicious rank", show=False),
        Binding("right,l", "neighbour(1)", "other ranks", key_display="left/right"),
        Binding("x", "each", "one by one"),
        Binding("v", "subgraphs", "by parts of the step, or by phases and scopes", show=False),
    ]
    FIELDS = tuple(column.key for column in ALIKE_COLUMNS if column.key)
    SORTS = ("score", "count", "excess_us", "duration_us", "expected_duration_us", "start_us", "step", "operator")
    LARGEST_FIRST = frozenset({"score", "count", "excess_us", "duration_us", "expected_duration_us"})
    FIRST, ROWS = "#outliers", "outlier"

    _profile: RankProfileResult | None = None
    _pinpoint: PinpointResult | None = None
    _triage: TriageResult | None = None
    _one_by_one = _filtered = _by_subgraph = False

    def questions(self) -> Mapping[str, Question]:
        """Return the rank's questions: the ranking has its score, and the next rank."""
        return rank_questions(self.session, self.place.rank)

    def body(self) -> ComposeResult:
        """Yield widgets from the whole rank to its single operations."""
        look = self.look
        yield Paragraphs(look, id="about")
        yield StepBarLine(look, id="bar")
        with Horizontal(id="top"):
            with Vertical(id="left"):
                yield Heading(look, "step time", of="parts")
                yield StepParts(look, id="parts")
            with Vertical(id="right"):
                yield Heading(look, "completed", of="curve")
                yield CompletionCurve(look, id="curve")
        yield Heading(look, "outliers", of="outliers")
        self._table = Outliers(look, ALIKE_COLUMNS, id="outliers")
        yield self._table

    def show(self, name: str, result: Any) -> None:  # noqa: ANN401
        """Hand a result to its widgets."""
        if name == "rank":
            self._show_profile(result)
        elif name == "pinpoint":
            self._pinpoint = result
            self._list_outliers()
        else:
            self._triage = result
        self._say_who()

    @property
    def _ranking(self) -> tuple[RankedRank, ...]:
        """Return the ranks as triage has them, the most suspicious first; none until it has answered."""
        return () if self._triage is None else self._triage.ranking

    def _show_profile(self, result: RankProfileResult | None) -> None:
        self._profile = result
        self.query_one(StepBarLine).show(None if result is None else result.bar)
        self.query_one(StepParts).show(result, subgraphs=self._by_subgraph)
        self.query_one(CompletionCurve).show(result)
        ascii_only = self.look.draws_ascii
        step, curve = self.heading("parts"), self.heading("curve")
        step.say([])
        curve.say([])
        if result is not None:
            step.say([(duration(result.step_time_us), None)])
        if result is not None and result.typical_step_time_us is not None:
            whole = f"{duration(result.step_time_us)}, role {duration(result.typical_step_time_us)}"
            whole = f"phases and scopes, {whole}" if self._by_subgraph else whole
            step.say([(whole, None)], [(f"{mark_sign(ascii_only=ascii_only)} role ", None)])
        if result is not None and result.farthest is not None:
            drawn_with, farthest = signs(ascii_only=ascii_only), result.farthest
            distance = f"{drawn_with.distance} {percent(farthest.distance)} from rank {farthest.peer}"
            legend = f"{drawn_with.median} peers' median  {drawn_with.band} 10-90 % of them "
            curve.say([(distance, styles_of(self.look).levels[3])], [(legend, None)])

    def _say_who(self) -> None:
        row = next((row for row in self._ranking if row.rank == self.place.rank), None)
        who = [f"rank {self.place.rank}"]
        if self._profile is not None:
            peers = plural(self._profile.peers, "peer")
            who += [self._profile.host or "", f"role {self._profile.role} ({peers})"]
        if row is not None:
            who += self._how_slow(row)
        style = "alarm" if row is not None and row.flagged else "strong"
        said = [] if self._profile is None else [Paragraph(outstanding(self._profile))]
        if self._profile is not None and (ahead := lead_in_words(self._profile)) is not None:
            said.append(Paragraph(ahead, "dim"))
        # Of a job that hangs this is known without any sampled step.
        if self._triage is not None and self.place.rank is not None:
            said += map(Paragraph, sentences_about(self._triage, self.place.rank))
        self.query_one("#about", Paragraphs).show(Paragraph(self.dotted(*who), style), *said)

    def _how_slow(self, row: RankedRank) -> list[str]:
        """Return its score and place among all, as far as they are known."""
        assert self._triage is not None  # it has the row
        alarm = self.look.glyphs.alarm
        if not has_scores(self._triage):
            return [f"{alarm} accused"] if row.flagged else []
        flag = f" {alarm} slow" if row.flagged else ""
        place = self._ranking.index(row) + 1
        return [f"score {score(row.score)}{flag} ({place} of {count(len(self._ranking))})"]

    # Which rank.

    def follow(self, rank: int) -> None:
        """Show another rank instead of this one."""
        if rank == self.place.rank:
            return
        self.place = replace(self.place, rank=rank)
        self._show_profile(None)
        self._table.show(())
        self._say_who()
        self.reask()

    def action_neighbour(self, by: int) -> None:
        """Show the rank before or after it in the ranking; by number until that is known."""
        ranks: list[int] = [row.rank for row in self._ranking] or list(self.session.trace.job.ranks)
        at = ranks.index(self.place.rank) + by if self.place.rank in ranks else 0
        if 0 <= at < len(ranks):
            self.kair.go_to_rank(ranks[at])

    def action_subgraphs(self) -> None:
        """Show the step by activity, or by the program's own phases and scopes."""
        self._by_subgraph = not self._by_subgraph
        self._show_profile(self._profile)

    # Outliers.

    def _list_outliers(self) -> None:
        if self._pinpoint is None:
            return
        rows = (each if self._single else alike)(self._longer)
        began_late = len(self._pinpoint.outliers) - len(self._longer)
        none = f"no operation is longer than its peers'; {plural(began_late, 'operation')} only began late"
        self._table.show(rows, empty=none if began_late else "no operation differs from its peers' beyond chance")

    @property
    def _longer(self) -> Sequence[Outlier]:
        """Return the outliers that take longer than among peers: those that only began late were delayed by others."""
        found = () if self._pinpoint is None else self._pinpoint.outliers
        return [row for row in found if row.duration_us >= LONGER * row.expected_duration_us]

    @property
    def _single(self) -> bool:
        """Return whether a filter is about single operations."""
        return self._one_by_one or self._filtered

    def action_each(self) -> None:
        """Show every outlier by itself, or those of an operator as one row again."""
        self._one_by_one = not self._one_by_one
        self._list_outliers()

    def about_cursor(self) -> str:
        """Describe the outlier under the cursor."""
        return "" if (row := self._table.chosen) is None else self._about(row)

    def on_table_chosen(self) -> None:
        """Show why it was late."""
        row = self._table.chosen
        if row is not None:
            self.kair.go(Place("blame", rank=self.place.rank, operator=row.operator, step=row.step))

    @property
    def moment(self) -> Place:
        """Return the outlier under the cursor."""
        row = self._table.chosen
        if row is None:
            return super().moment
        return Place("timeline", self.place.rank, row.operator, row.step, row.start_us)

    def on_outliers_none_chosen(self) -> None:
        """Show how others waited for it."""
        self.kair.go(Place("blame", rank=self.place.rank))

    def on_table_ordered(self) -> None:
        """Show their number."""
        if self._pinpoint is None:
            return
        table = self._table
        shown = table.counted()
        outliers = len(self._longer)
        if not self._single and outliers:
            shown = f"{count(outliers)} in {plural(table.total, 'operator')}"
        began_late = len(self._pinpoint.outliers) - outliers
        late = f"; {count(began_late)} only began late" if began_late else ""
        compared = plural(self._pinpoint.tested, "operation")
        self.heading("outliers").say([(f"{shown}{late}; {compared} compared", None)])

    def _about(self, row: AlikeOutliers) -> str:
        idle = (row.start_z or 0.0) > (row.duration_z or 0.0)
        longer = f"{duration(row.duration_us)} instead of {duration(row.expected_duration_us)}"
        return self.dotted(
            f"step {row.step}",
            row.phase or "",
            "idle before it" if idle else longer,
            f"{percent(row.score)} of the step",
            row.operator,
        )

    def figures_under_cursor(self) -> "Figures":
        """Return the rank's figures compared with its peers', and the parts of its step."""
        from kair_tui.tui.figure_words import compared_with_peers, parts_in_sum

        row = next((row for row in self._ranking if row.rank == self.place.rank), None)
        ranked = () if row is None or self._triage is None else compared_with_peers(row, self._triage)
        return [*ranked, *(() if self._profile is None else parts_in_sum(self._profile))]

    def copied(self) -> str:
        """Return the rank's summary, the operation under the cursor, and the commands."""
        profile, row = self._profile, self._table.chosen
        said = [rank_headline(profile)] if profile is not None else []
        if profile is not None and profile.farthest is not None:
            said.append(distance_text(profile.farthest))
        return "\n".join([*said, *([self._about(row)] if row is not None else []), *self.commands()])

    def filter_by(self, wanted: Filter) -> str:
        """Leave out rows that do not match; return their number."""
        self._filtered = bool(wanted.terms)
        self._list_outliers()
        return super().filter_by(wanted)
