"""The timeline screen: every rank over time around a delay, and the operation under the cursor."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from kair.app.question import Question
from kair_engine.errors import KairError
from kair_engine.results.timeline import FixedTimeline, TimelineOperation, TimelineResult
from kair_tui.render.text import short_name
from kair_tui.render.timeline_drawing import (
    NAME,
    WORDS,
    clock_in_words,
    fixed_in_words,
    legend,
    marks_in_words,
    moment,
    part_in_view,
    recorded_in_words,
    rows_in_words,
    takes,
    timeline_headline,
    who,
    with_fixes,
)
from kair_tui.render.units import duration, plural
from kair_tui.render.warnings import warnings_in_words
from kair_tui.tui.frame.view import ViewScreen
from kair_tui.tui.session import Place, Session
from kair_tui.tui.widgets.fix_list import as_arguments
from kair_tui.tui.widgets.lines import Heading, Legend, Paragraph, Paragraphs
from kair_tui.tui.widgets.styles import styles_of
from kair_tui.tui.widgets.timeline_rows import TimelineRows

_SHORTEST_US: Final = 0.1
"""Shortest view."""
_ROOM_FOR_LANES: Final = 2
"""Lines per rank from which threads and streams of the delayed one are shown at once."""


class TimelineScreen(ViewScreen):
    """The picture of `kair timeline`, moved and magnified."""

    DEFAULT_CSS = """
    TimelineScreen #about { margin-bottom: 1; min-height: 2; }
    """
    FIRST = "#rows"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open"),
        Binding("plus,equals_sign", "zoom(0.5)", "zoom", key_display="+ -"),
        Binding("minus", "zoom(2)", "less of it", show=False),
        Binding("comma,less_than_sign", "pan(-0.5)", "earlier", key_display="<", show=False),
        Binding("full_stop,greater_than_sign", "pan(0.5)", "earlier, later", key_display="< >"),
        Binding("x", "unfold", "threads one by one"),
        Binding("W", "whole", "whole step"),
        Binding("v", "fixed", "with fixes", show=False),
        Binding("backspace", "center", "around the delay again", show=False),
        Binding("a", "all_ranks", "all ranks again", show=False),
        Binding("n", "next_arrival(1)", "next late arrival", show=False),
        Binding("p", "next_arrival(-1)", "late arrival before", show=False),
        Binding("left_square_bracket", "step(-1)", "step before", key_display="[", show=False),
        Binding("right_square_bracket", "step(1)", "step", key_display="[ ]", show=False),
    ]

    def __init__(self, session: Session, place: Place) -> None:
        super().__init__(session, place)
        self._result: TimelineResult | None = None
        self._range: tuple[float, float] | None = None
        """The range in view, in µs; None for that around the delay."""
        self._ranks: tuple[int, int] | None = None
        self._unfold: tuple[int, ...] | None = None
        """None until the available room is known."""
        self._cursor: tuple[int, str | None, float] | None = None
        """Rank, thread or stream, and time; None for the delay."""
        self._with_fixes = False
        """Whether the step is drawn with the chosen fixes."""
        self._drawn_with: dict[str, Any] = {}
        """The fixes of the picture on the screen."""
        self._fixed_line = ""
        """The step time with them, next to the recorded one."""

    @property
    def crumb(self) -> str:
        """`timeline rank 2 step 7`."""
        step = self.place.step if self._result is None else self._result.step
        rank = self.place.rank
        parts = ["timeline", *([] if rank is None else [f"rank {rank}"]), *([] if step is None else [f"step {step}"])]
        return " ".join(parts)

    def questions(self) -> Mapping[str, Question]:
        """Return one step, in as many windows and rows as fit."""
        place, rows = self.place, self._rows
        low, high = self._ranks or (None, None)
        begin, end = self._range or (None, None)
        ranks = [rank for rank in self.session.trace.job.ranks if low is None or low <= rank <= (high or 0)]
        rows.expect(ranks)
        two = rows.two_a_line(len(ranks))
        question = Question.of(
            "timeline",
            self.session.steps if place.step is None else (place.step,),
            around=place.rank,
            operator=place.operator,
            at=place.at_us,
            begin=begin,
            end=end,
            ranks=None if low is None else f"{low}-{high}",
            rows=rows.height * (2 if two else 1),
            windows=rows.cells * (1 if two else 2),
            unfold=self._unfold or None,
            cursor=None if self._cursor is None else f"{self._cursor[0]}@{self._cursor[2]:.3f}",
            **self._fixes,
        )
        return {"timeline": question}

    @property
    def _fixes(self) -> dict[str, Any]:
        """Return the options for the drawn fixes; empty if the step is drawn as recorded."""
        if not self._with_fixes:
            return {}
        options = as_arguments(fix for fixes in self.session.fixes.chosen for fix in fixes)
        return {name: tuple(options[name]) for name in ("fix", "scale") if options[name]}

    def about_waiting(self) -> str:
        """Return that the first view of a large step takes seconds: it is read and matched whole, for later views."""
        job = self.session.trace.job
        if self._result is not None or not job.steps:
            return ""
        return f": reading {plural(job.operations // len(job.steps), 'operation')} of {plural(len(job.ranks), 'rank')}"

    def body(self) -> ComposeResult:
        """Yield the delay in a sentence, the rows, and the meaning of characters and marks."""
        yield Paragraphs(self.look, id="about")
        yield Heading(self.look, "ranks", of="rows")
        self._rows = TimelineRows(self.look, id="rows")
        yield self._rows
        yield Legend(self.look, id="signs")
        yield Legend(self.look, id="marks")

    # Questions: once the step is loaded a key is answered at once, without a thread.

    def reask(self) -> None:
        """Ask for the current view."""
        for question in self.questions().values():
            known = self._result is not None and self.session.has_ready(question.command, self._result.step)
            # A replay with other fixes takes seconds.
            if known and self._fixes in ({}, self._drawn_with):
                try:
                    self.session.ask(question)
                except KairError:
                    break  # reported like any other
        super().reask()

    def record(self, command: str) -> None:
        """Record only the first view: a runbook must not hold every cursor move."""
        if not self.shown:
            super().record(command)

    def on_timeline_rows_resized(self) -> None:
        """Ask again, because there are as many windows as cells."""
        if self._result is not None:
            self.reask()

    def show(self, name: str, result: Any) -> None:  # noqa: ANN401, ARG002
        """Put the rows on the screen."""
        fixed, self._drawn_with = result.fixed, self._fixes
        result = with_fixes(result) or result
        same = self._result is not None and self._result.rows is result.rows
        self._result = result
        delay = result.around.operation
        rank, lane, time = self._cursor or (delay.rank, None, delay.begin_us)
        self._rows.show(result, rank, lane, time)
        if not same:
            self._say(result, fixed)
            self._explain(result)
        self.describe_cursor()
        if self._unfold is None:
            of_ranks = sum(row.lane is None for row in result.rows)
            self._unfold = (delay.rank,) if of_ranks * _ROOM_FOR_LANES <= self._rows.height else ()
            if self._unfold:
                self.call_after_refresh(self.reask)

    def _say(self, result: TimelineResult, fixed: FixedTimeline | None) -> None:
        said = [Paragraph(timeline_headline(result), "strong")]
        self._fixed_line = "" if fixed is None else f"{fixed_in_words(fixed)}; {recorded_in_words(fixed)}"
        if self._fixed_line:
            said.insert(0, Paragraph(f"{self._fixed_line} (v)", "strong"))
        said += [Paragraph(clock, "dim")] if (clock := clock_in_words(result)) is not None else []
        said += [Paragraph(f"warning: {one.message}", "dim") for one in warnings_in_words(result.warnings)]
        self.query_one("#about", Paragraphs).show(*said)
        of_view = f"{rows_in_words(result)} {self.look.glyphs.dot} {part_in_view(result)}"
        # Next to it if there is room, because it matters least.
        collectives = f"{plural(result.collectives_in_view, 'collective')} "
        self.heading("rows").say([(of_view, None)], [(collectives, None)])

    def _explain(self, result: TimelineResult) -> None:
        if self.look.plain:
            return  # there are no characters
        drawn_with = self._rows.signs
        kinds = [
            (f"{drawn_with.kinds[kind]} {WORDS[kind]}", self._rows.style_of(kind, "nothing")) for kind in legend(result)
        ]
        dim = styles_of(self.look).dim
        self.query_one("#signs", Legend).show(kinds)
        self.query_one("#marks", Legend).show([(text, dim) for text in marks_in_words(result, drawn_with)])

    # The cell under the cursor.

    @property
    def rank(self) -> int | None:
        """Return the rank that is drawn under the cursor."""
        row = self._rows.timeline_row
        return self.place.rank if row is None else row.rank

    @property
    def moment(self) -> Place:
        """Return the operation under the cursor."""
        one = self._under
        if one is None or self._result is None:
            return replace(self.place, screen="timeline")
        return Place("timeline", one.rank, one.operator, self._result.step, one.start_us)

    def on_timeline_rows_moved(self) -> None:
        """Read the operation there."""
        row = self._rows.timeline_row
        if row is not None:
            self._cursor = row.rank, row.lane, self._rows.time_us
            self.reask()

    def on_timeline_rows_beyond(self, message: TimelineRows.Beyond) -> None:
        """Move the view along with the cursor."""
        self.action_pan(message.by * 0.5)

    def on_timeline_rows_opened(self) -> None:
        """Do the same as enter."""
        self.action_open()

    @property
    def _under(self) -> TimelineOperation | None:
        """Return the operation of the thread or stream under the cursor, else the one its rank is drawn with."""
        found = () if self._result is None else self._result.under
        row = self._rows.timeline_row
        if row is not None and row.lane is not None:
            return next((one for one in found if one.lane == row.lane), None)
        return next(iter(found), None)

    def about_cursor(self) -> str:
        """Describe the cell under the cursor."""
        row, one = self._rows.timeline_row, self._under
        if row is None:
            return ""
        time = one.begin_us if self._cursor is None and one is not None else self._rows.time_us
        parts = [f"{who(row)} {moment(time)}", *self._late_here(row.rank, time)]
        parts += ["nothing runs"] if one is None else [takes(one), short_name(one.operator), one.lane]
        return self.dotted(*parts)

    def _late_here(self, rank: int, time_us: float) -> Iterator[str]:
        """Yield the collectives that waited for the rank at that time."""
        result = self._result
        assert result is not None
        cell = (result.end_us - result.begin_us) / self._rows.cells
        for one in result.collectives:
            if one.last_rank == rank and abs(one.last_arrival_us - time_us) <= cell:
                yield f"last in {short_name(one.operator, NAME)}, all waited {duration(one.waited_us)}"

    def copied(self) -> str:
        """Return the delay, what is under the cursor, and the command."""
        said = [] if self._result is None else [timeline_headline(self._result)]
        return "\n".join([*filter(None, [self._fixed_line]), *said, self.about_cursor(), *self.commands()])

    # The view.

    def action_zoom(self, factor: float) -> None:
        """Zoom around the cursor, which stays at its time."""
        if self._result is None:
            return
        begin, end, at = self._result.begin_us, self._result.end_us, self._rows.time_us
        length = max((end - begin) * factor, _SHORTEST_US)
        share = (at - begin) / max(end - begin, 1e-9)
        self._look_at(at - share * length, length)

    def action_pan(self, by: float) -> None:
        """Move by a part of the view; the cursor keeps its time, or goes to the edge."""
        if self._result is None:
            return
        begin, length = self._result.begin_us, self._result.end_us - self._result.begin_us
        self._look_at(begin + by * length, length)

    def _look_at(self, begin: float, length: float) -> None:
        assert self._result is not None
        first, end = self._result.earliest_us, self._result.step_us
        length = min(length, end - first)
        begin = min(max(begin, first), end - length)
        self._range = round(begin, 3), round(begin + length, 3)
        row, time = self._rows.timeline_row, self._rows.time_us
        if row is not None:
            self._cursor = row.rank, row.lane, min(max(time, begin), begin + length)
        self.reask()

    def action_whole(self) -> None:
        """Show the whole step, or the surroundings of the delay again."""
        if self._result is None:
            return
        if self._range == (0.0, round(self._result.step_us, 3)):
            self.action_center()
        else:
            self._look_at(0.0, self._result.step_us)

    def action_fixed(self) -> None:
        """Show the same part of the step with the chosen fixes, or as recorded again."""
        if self._result is None:
            return
        if not self._with_fixes and not self.session.fixes.chosen:
            self.say("no fix is chosen: 5 lists them, space chooses one")
            return
        self._with_fixes = not self._with_fixes
        # Both show the same time, so that they can be compared.
        self._range = self._range or (0.0, round(self._result.step_us, 3))
        self.reask()

    def action_center(self) -> None:
        """Centre the delay, with the cursor on it."""
        self._range = self._cursor = None
        self.reask()

    def action_next_arrival(self, by: int) -> None:
        """Go to the next waiting collective in view, at the rank that arrived last."""
        result = self._result
        if result is None:
            return
        half = (result.end_us - result.begin_us) / self._rows.cells
        at = self._rows.time_us
        waited = sorted(result.collectives, key=lambda one: one.last_arrival_us, reverse=by < 0)
        beyond = (one for one in waited if (one.last_arrival_us - at) * by > half)
        found = next(beyond, None)
        if found is None:
            self.say(f"no {'later' if by > 0 else 'earlier'} collective is marked in view")
            return
        self._cursor = found.last_rank, None, found.last_arrival_us
        self.reask()

    # The rows.

    def follow(self, rank: int) -> None:
        """Move the cursor with the user."""
        if self._result is not None and self.rank != rank:
            self._cursor = rank, None, self._rows.time_us
            self.reask()

    def action_open(self) -> None:
        """Show the ranks of a joint row, else the rank's screen."""
        row = self._rows.timeline_row
        if row is None:
            return
        if row.ranks == 1:
            self.kair.go_to_rank(row.rank)
            return
        self._ranks = row.first_rank, row.last_rank
        self.reask()

    def action_all_ranks(self) -> None:
        """Show every rank again."""
        self._ranks = None
        self.reask()

    def action_unfold(self) -> None:
        """Show threads and streams of the rank under the cursor, or none."""
        row = self._rows.timeline_row
        if row is None:
            return
        known = self._unfold or ()
        self._unfold = tuple(one for one in known if one != row.rank) if row.rank in known else (*known, row.rank)
        self._cursor = row.rank, None, self._rows.time_us
        self.reask()

    # The step.

    def action_step(self, by: int) -> None:
        """Show the step before or after, around its own delay."""
        steps = list(self.session.chosen_steps)
        now = self.place.step if self._result is None else self._result.step
        at = steps.index(now) + by if now in steps else 0
        if not 0 <= at < len(steps):
            self.say(f"that is the {'last' if by > 0 else 'first'} of {plural(len(steps), 'step')}")
            return
        self.place = replace(self.place, step=steps[at], at_us=None)
        self._range = self._cursor = None
        self.reask()
