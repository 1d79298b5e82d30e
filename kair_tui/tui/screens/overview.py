"""The overview screen: the verdict, every rank, every step, and what was found."""

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import sleep
from typing import TYPE_CHECKING, Any, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.geometry import Size
from textual.widget import Widget
from textual.worker import Worker, get_current_worker

from kair.app.question import Question
from kair_engine.cancelling import Cancelled
from kair_engine.causes import CAUSES
from kair_engine.results.lateness import Lateness
from kair_engine.results.triage import Finding, RankedRank, TriageResult
from kair_engine.results.views import StepsResult
from kair_engine.trace.model import Trace
from kair_tui.render.delays import ON_DEVICES
from kair_tui.render.hangs import stands_where
from kair_tui.render.open_items import open_lines
from kair_tui.render.steplog import log_lines
from kair_tui.render.triage import absorbed_lines, gain_in_words, has_scores, triage_totals
from kair_tui.render.units import count, duration, plural, score, signed_duration, spans, thinned
from kair_tui.render.warnings import warnings_in_words
from kair_tui.tui.asked_ahead import asked_ahead, worst_rank
from kair_tui.tui.filtering import Filter
from kair_tui.tui.frame.view import ViewScreen
from kair_tui.tui.session import Place
from kair_tui.tui.widgets.grid import LIMITS, RankGrid
from kair_tui.tui.widgets.grid_layout import Group, by_host, by_position, place_in_words, position_words
from kair_tui.tui.widgets.header_and_footer import StatusLine
from kair_tui.tui.widgets.lateness_map import LatenessMap
from kair_tui.tui.widgets.lines import Heading, Paragraph, Paragraphs, Remark, level_legend
from kair_tui.tui.widgets.lists import Findings
from kair_tui.tui.widgets.own_times import OwnTimes
from kair_tui.tui.widgets.step_bar import StepBarLine
from kair_tui.tui.widgets.step_strip import StepStrip
from kair_tui.tui.widgets.styles import styles_of, verdict_style

if TYPE_CHECKING:
    from kair_tui.tui.figure_words import Figures

_LOW = 30
"""Lines below which a screen is low: the findings need the lines more than their basis."""
_ABREAST: Final = 160
"""Columns from which the findings stand next to the ranks."""
_ROOM_FOR_BOTH: Final = 45
"""Lines from which both the ranks and the lateness map are shown."""

_AHEAD_AFTER_S: Final = 0.5
"""Delay after the verdict: the user's own questions come first."""
_GIVES_WAY_S: Final = 0.05


class OverviewScreen(ViewScreen):
    """Where the investigation begins."""

    DEFAULT_CSS = """
    OverviewScreen #verdict { margin: 1 0; }
    OverviewScreen #panes { height: 1fr; layout: vertical; }
    OverviewScreen #measured { height: auto; }
    OverviewScreen #found { height: 1fr; }
    OverviewScreen.-abreast #panes { layout: horizontal; }
    OverviewScreen.-abreast #measured { width: 1fr; height: 100%; margin-right: 2; }
    OverviewScreen.-abreast #found { width: 1fr; max-width: 102; height: 100%; }
    OverviewScreen #bar { margin-bottom: 1; }
    OverviewScreen #grid { margin-bottom: 1; }
    OverviewScreen #own { margin-bottom: 1; }
    OverviewScreen #steps { margin-bottom: 1; }
    OverviewScreen #late { margin-bottom: 1; }
    OverviewScreen.-short #late { margin: 0; }
    OverviewScreen.-short #own { margin: 0; max-height: 4; }
    OverviewScreen.-short #verdict { margin: 0; }
    OverviewScreen.-short #bar { margin: 0; }
    OverviewScreen.-short #grid { margin: 0; }
    OverviewScreen.-short #steps { margin: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "app.focus_next", "next part"),
        Binding("H", "lateness", "late when"),
        Binding("v", "regroup", "by host or place"),
    ]
    FIELDS = ("rank", "host", "role", "score", "flagged", "own_us", "imposed_us")
    SORTS = ("rank", "score")
    FIRST = "#grid"

    _triage: TriageResult | None = None
    _by_position = False
    _worst_first = False
    _kept: frozenset[int] | None = None
    _groups: Sequence[Group] = ()
    _map_wanted: bool | None = None
    """Whether to show the lateness map; None: if there is room next to the ranks."""
    _asked_ahead_of: Trace | None = None
    _map_asked: tuple[Trace, tuple[int, ...] | None] | None = None
    """The job and the steps of the last map."""

    def questions(self) -> Mapping[str, Question]:
        """Return the times of all steps, and the whole investigation of the chosen ones."""
        return {"steps": Question.of("steps"), "triage": self.session.question("triage")}

    def body(self) -> ComposeResult:
        """Yield widgets from the answer to its basis."""
        look = self.look
        yield Paragraphs(look, id="verdict")
        yield StepBarLine(look, id="bar")
        with Container(id="panes"):
            with Vertical(id="measured"):
                yield Heading(look, "ranks", of="grid")
                self._grid = RankGrid(look)
                yield self._grid
                yield Heading(look, "own time", of="own")
                self._own = OwnTimes(look, id="own")
                yield self._own
                yield Heading(look, "later", of="late")
                self._map = LatenessMap(look)
                yield self._map
                yield Heading(look, "steps", of="steps")
                self._strip = StepStrip(look, id="steps")
                yield self._strip
            with Vertical(id="found"):
                yield Heading(look, "findings", of="findings")
                self._findings = Findings(look, id="findings")
                yield self._findings

    def on_mount(self) -> None:
        """Begin with the parts that fit."""
        self._show_parts()

    def make_room(self) -> None:
        """Wrap the verdict again."""
        self._say_verdict()
        self._show_parts()

    def room(self, size: Size) -> dict[str, bool]:
        """Return style classes of a size: without empty lines if low, findings next to their basis if wide."""
        return {**super().room(size), "-short": size.height < _LOW, "-abreast": size.width >= _ABREAST}

    def show(self, name: str, result: Any) -> None:  # noqa: ANN401
        """Hand a result to its widgets."""
        if name == "steps":
            self._show_steps(result)
        else:
            self._show_triage(result)

    def _show_triage(self, result: TriageResult) -> None:
        is_first, self._triage = self._triage is None, result
        self.query_one(StepBarLine).show(result.bar)
        self._say_verdict()
        self._grid.has_scores = has_scores(result)
        self._regroup()
        self._grid.show(result.ranking)
        self._own.order(result.ranking)
        if is_first and (worst := worst_rank(result)) is not None:
            self._grid.move_to(worst)
        if is_first and self.session.trace.job.is_log:
            self.set_focus(self._strip)
        self._list_findings()
        self._strip.choose(self.session.chosen_steps)
        self._show_parts()
        self._describe_again()
        self.set_timer(_AHEAD_AFTER_S, self._ask_ahead)

    def _say_verdict(self) -> None:
        """Show who, why, and the gain; with room also the waiting."""
        result = self._triage
        if result is None:
            return
        said = [Paragraph(result.summary, verdict_style(result.verdict))]
        if gain := gain_in_words(result):
            said.append(Paragraph(gain))
        if not self.has_class("-short"):
            said.append(Paragraph(triage_totals(result), "dim"))
        self.query_one("#verdict", Paragraphs).show(*said)

    def _show_steps(self, result: StepsResult) -> None:
        self._strip.show(result.summary)
        self._own.show(result.steps)
        short = thinned(result.parts_every) or "of each rank, recorded step by step; the median of its last 20"
        self.heading("own").say([(short, None)])
        self._show_parts()
        self._strip.choose(self.session.chosen_steps)
        slow = [row.step for row in result.summary if row.slow]
        slow_steps = f"{plural(len(slow), 'slow step')}: {spans(tuple(slow))}" if slow else "no slow step"
        summary = slow_steps if result.summary else "none is recorded"
        self.heading("steps").say([(summary, None)], [(f"{ON_DEVICES} ", None)] if result.timed_on == "device" else [])
        self._describe_again()

    def _list_findings(self) -> None:
        if self._triage is None:
            return
        found = self._triage.findings
        kept = tuple(
            (number, finding)
            for number, finding in enumerate(found, 1)
            if self._kept is None or not (about := finding.ranks or finding.seen_on) or self._kept & set(about)
        )
        warnings = warnings_in_words(self.session.trace.job.warnings, self._triage.warnings)
        absorbed = [
            line
            for line, one in zip(absorbed_lines(self._triage), self._triage.absorbed, strict=True)
            if self._kept is None or self._kept & set(one.ranks)
        ]
        others = [*log_lines(self._triage.log), *open_lines(self._triage), *absorbed]
        self._findings.show_findings(kept, warnings, others)
        styles, glyphs = styles_of(self.look), self.look.glyphs
        noted = [(f"{glyphs.alarm} {plural(len(warnings), 'warning')} at the end", styles.base)] if warnings else []
        listed = "costliest first" if found else "none" if self._triage.log is None else "what the log says"
        free = f"; {plural(len(absorbed), 'delay')} absorbed" if absorbed else ""
        self.heading("findings").say([(f"{listed}{free}", None)], noted)

    # The rank under the cursor.

    @property
    def _finding(self) -> Finding | None:
        """Return the finding under the cursor, if the findings have the focus."""
        return self._findings.finding if self._findings.has_focus else None

    @property
    def finding_number(self) -> int | None:
        """Return its number in the triage, from 1."""
        chosen = self._findings.chosen if self._findings.has_focus else None
        return None if chosen is None or chosen.finding is None else chosen.number

    @property
    def rank(self) -> int | None:
        """Return the finding's rank if the findings have the focus, else the grid's."""
        found = self._finding
        if found is not None and found.ranks:
            return found.ranks[0]
        return self._grid.rank

    @property
    def moment(self) -> Place:
        """Return the finding in its slowest step if the findings have the focus, else the grid's rank."""
        found = self._finding
        if (under := self._map.under) is not None and self._map.has_focus:
            return Place("timeline", under[0], None, under[1] if under[1] in self.session.trace.job.steps else None)
        if found is None or not found.steps:
            return super().moment
        step = self.session.trace.job.slowest_of(found.steps)
        return Place("timeline", self.rank if found.ranks else None, found.operator if found.ranks else None, step)

    @property
    def place_under_cursor(self) -> Place:
        """Return the rank without a step, which is the subject here."""
        on_rank = self.rank is not None and not isinstance(self.focused, StepStrip)
        return Place("rank", rank=self.rank) if on_rank else self.place

    def follow(self, rank: int) -> None:
        """Move the cursor with the user."""
        self._grid.move_to(rank)
        self._map.move_to(rank)

    def open_rank(self) -> None:
        """Go to the screen of the rank that the finding is about."""
        if self._findings.finding is not None:
            super().open_rank()

    def on_step_strip_narrowed(self, message: StepStrip.Narrowed) -> None:
        """Narrow everything to these steps; a log is judged as a whole."""
        if not self.session.trace.job.is_log:
            self.narrow(message.steps)

    def about_cursor(self) -> str:
        """Describe the thing under the focused part's cursor."""
        focused: Widget | None = self.focused
        if isinstance(focused, StepStrip):
            return self._about_step(focused)
        if isinstance(focused, RankGrid):
            return self._about_rank(focused)
        if isinstance(focused, LatenessMap):
            return focused.about()
        return self._about_finding(focused) if isinstance(focused, Findings) else self.described

    def _describe_again(self) -> None:
        """Describe the thing under the cursor, whose figures changed; other messages stay."""
        if not self.query_one(StatusLine).is_message:
            self.describe_cursor()

    def _about_rank(self, grid: RankGrid) -> str:
        row = self._row(grid.rank)
        if row is None:
            return ""
        cell = f" (of {spans(grid.ranks)})" if len(grid.ranks) > 1 else ""
        flag = f"{self.look.glyphs.alarm} {self._flag}" if row.flagged else ""
        assert self._triage is not None  # it has the row
        if grid.has_scores:
            figures = [
                f"score {score(row.score)} {flag}".rstrip(),
                f"self time {signed_duration(row.self_time_excess_us)} a step",
                "" if row.wait_imposed_us is None else f"others wait {duration(row.wait_imposed_us)}",
            ]
        else:
            figures = [flag, stands_where(self._triage, row.rank)]
        return self.dotted(
            f"rank {row.rank}{cell}",
            row.host or "",
            place_in_words(row.rank, self.session.trace.job.layout) or ("" if row.role == "all" else row.role),
            *figures,
        )

    def _about_finding(self, findings: Findings) -> str:
        """Return how much of it is below, or above, the view."""
        lines = findings.lines_in_view
        if findings.finding is None or lines is None:
            return ""
        first, last, count_of = lines
        return f"lines {first}-{last} of {count_of}" + ("; down reads on" if last < count_of else "")

    def _about_step(self, strip: StepStrip) -> str:
        row, selected = strip.step, strip.selected
        if row is None:
            return ""
        slow = f" {self.look.glyphs.alarm} slow" if row.slow else ""
        text = f"step {row.step}: {duration(row.max_us)}"
        if row.slowest_rank >= 0:  # a log does not name ranks
            text += f" on rank {row.slowest_rank}, median {duration(row.median_us)}"
        return self.dotted(text + slow, f"range {spans(selected)}" if len(selected) > 1 else "")

    def _row(self, rank: int | None) -> RankedRank | None:
        ranking = self._triage.ranking if self._triage else ()
        return next((row for row in ranking if row.rank == rank), None)

    def figures_under_cursor(self) -> "Figures":
        """Return the rank's figures compared with its peers'."""
        from kair_tui.tui.figure_words import compared_with_peers

        row = self._row(self.rank)
        return () if row is None or self._triage is None else compared_with_peers(row, self._triage)

    def copied(self) -> str:
        """Return the finding under the cursor; else the verdict, the thing under the cursor, and the commands."""
        if self._triage is not None and (found := self._finding) is not None:
            from kair_tui.render.copied import finding_as_text  # few copy any

            def ask(analysis: str, *options: str) -> str:
                return shlex.join([*shlex.split(self.session.command(self.session.question(analysis))), *options])

            return finding_as_text(self._triage, found, ask)
        summary = [self._triage.summary] if self._triage else []
        row = self._row(self.rank)
        about = [self._about_rank(self._grid)] if row else []
        return "\n".join([*summary, *about, *self.commands()])

    # Grouping of ranks.

    def offers(self, action: str, of: str = "") -> bool:
        """Offer rows and columns only if the recording has them."""
        if action == "regroup":
            layout = self.session.trace.job.layout
            return layout is not None and bool(layout.pipeline_stage or layout.dp_rank)
        if action == "lateness" and self.session.trace.job.is_log:
            return False
        return super().offers(action, of)

    def action_regroup(self) -> None:
        """Group by host, or in rows and columns."""
        self._by_position = not self._by_position
        self._regroup()

    def _regroup(self) -> None:
        if self._triage is None:
            return
        ranking = self._triage.ranking
        groups: Sequence[Group] = ()
        if self._by_position:
            groups = by_position((row.rank for row in ranking), self.session.trace.job.layout)
        grouping = position_words(groups) if groups else "host"
        if not groups:
            groups = by_host((row.rank for row in ranking), {row.rank: row.host for row in ranking})
        if self._worst_first:
            scores: dict[int, float] = {row.rank: row.score for row in ranking}
            groups = sorted(groups, key=lambda group: -max(scores[rank] for rank in group.ranks))
        self._grid.group(groups, aligned=grouping != "host")
        self._groups = groups
        self._group_map()
        styles, glyphs = styles_of(self.look), self.look.glyphs
        legend: Remark = []
        if self._grid.has_scores:
            legend = [("score ", None), *level_legend(self.look, [f"{limit:g}" for limit in LIMITS])]
        self._show_parts()
        marked = [] if self.look.plain else [(f"{glyphs.alarm} {self._flag}", styles.alarm)]
        self.heading("grid").say([(f"by {grouping}", None)], [*legend, *marked])

    @property
    def _flag(self) -> str:
        """Return the meaning of a rank's mark."""
        return "slow" if self._grid.has_scores else "accused"

    # Questions asked ahead.

    def _ask_ahead(self) -> None:
        """Ask in a thread that continues while the user is elsewhere, and yields to their questions."""
        if self._asked_ahead_of is self.session.trace or self.session.steps is not None or not self.is_whole:
            return
        self._asked_ahead_of = self.session.trace
        self.kair.in_thread(self.app, self._work_ahead, group="ahead")

    def _work_ahead(self) -> None:
        """Ask, in the thread. Errors are shown when the user asks the same."""
        worker: Worker[Any] = get_current_worker()
        session, trace, triage = self.session, self.session.trace, self._triage
        if triage is None:
            return

        def wanted() -> bool:
            is_open = self.kair.session is session and self.app.return_code is None
            return is_open and session.trace is trace and not worker.is_cancelled

        for question in asked_ahead(session, triage):
            while self._somebody_waits() and wanted():
                sleep(_GIVES_WAY_S)
            if not wanted():
                return
            with suppress(Exception, Cancelled):
                session.ask(question, wanted)

    def _somebody_waits(self) -> bool:
        front = self.app.screen_stack[-1] if self.app.screen_stack else None
        return bool(getattr(front, "waiting", ()))

    # Lateness map.

    @property
    def _has_room_for_both(self) -> bool:
        return self.app.size.height >= _ROOM_FOR_BOTH

    @property
    def shows_map(self) -> bool:
        """Return whether to show the map; a single step has none."""
        return self._has_room_for_both if self._map_wanted is None else self._map_wanted

    def action_lateness(self) -> None:
        """Show the map instead of the ranks, or next to them if there is room; or remove it."""
        self._map_wanted = not self.shows_map
        self._show_parts()
        self.set_focus(self._map if self._map_wanted else self._grid)
        self.describe_cursor()

    def action_go(self, name: str) -> None:
        """Go to another screen; this one is reset, with the focus on the ranks."""
        if name != self.place.screen:
            super().action_go(name)
            return
        self._map_wanted = None
        self._show_parts()
        self.set_focus(self._grid)
        self.describe_cursor()

    def _show_parts(self) -> None:
        """Show the ranks, the map, or both."""
        if not self.is_whole:
            return
        of_log = self.session.trace.job.is_log  # it has no ranks
        with_map = self.shows_map and not of_log
        with_grid = not of_log and (not with_map or self._has_room_for_both)
        shown: dict[Widget, bool] = {self._map: with_map, self.heading("late"): with_map}
        shown |= {self._grid: with_grid, self.heading("grid"): with_grid}
        stands = self._triage is not None and any(CAUSES[one.cause].stops_job for one in self._triage.findings)
        with_own = self._own.has_any and not stands  # nobody takes a step any more
        shown |= {self._own: with_own, self.heading("own"): with_own}
        for part, is_shown in shown.items():
            part.display = is_shown
        if with_map:
            self._ask_map()

    def _ask_map(self) -> None:
        """Compute the map in a thread, after triage, which has reduced the steps for it."""
        session = self.session
        before = self._map_asked
        is_asked = before is not None and before[0] is session.trace and before[1] == session.steps
        if self._triage is None or "triage" in self.waiting or is_asked:
            return
        self._map_asked = session.trace, session.steps
        if (known := session.known_lateness()) is not None:
            self._show_map(known)
            return
        self.heading("late").say([(f"working it out {self.look.glyphs.ellipsis}", None)])
        self.work_out(session.lateness, partial(self._map_known, session.steps), group="lateness")

    def _map_known(self, steps: tuple[int, ...] | None, late: Lateness | None, error: Exception | None) -> None:
        """Show the map if it is still wanted."""
        if steps != self.session.steps:
            return
        if error is not None:
            self._map.show(None, ())
            self.complain(error)
        else:
            self._show_map(late)

    def _show_map(self, late: Lateness | None) -> None:
        had_cursor = self._map.has_map
        self._map.show(late, self._groups_of_map())
        if not had_cursor and self._grid.rank is not None:
            self._map.move_to(self._grid.rank)
        of = ", every step" if late is not None and not late.sampled else ""
        compared = f"than the role's median{of}" if self._map.has_map else "no step to compare ranks in"
        self.heading("late").say([(compared, None)], [*self._map.legend(), ("of a step ", None)])
        self._describe_again()

    def _group_map(self) -> None:
        if self._map.has_map:
            self._map.group(self._groups_of_map())

    def _groups_of_map(self) -> Sequence[Group]:
        """Return the groups of ranks, without filtered ones."""
        kept = self._kept
        if kept is None:
            return self._groups
        return [Group(one.label, tuple(rank for rank in one.ranks if rank in kept)) for one in self._groups]

    def on_heat_moved(self) -> None:
        """Show who was how late; the cursor over the ranks follows."""
        under = self._map.under
        # The cursor over the ranks shows it as well, and is already there.
        if under is not None and self._map.has_focus and self._grid.rank != under[0]:
            self._grid.move_to(under[0])

    # Filter and sort.

    def filter_by(self, wanted: Filter) -> str:
        """Blank ranks that do not match, and findings without a match; return their number."""
        ranking = self._triage.ranking if self._triage else ()
        kept = frozenset(row.rank for row in ranking if wanted.matches(_fields(row)))
        self._kept = kept if wanted.terms else None
        self._grid.hide(lambda rank: self._kept is not None and rank not in self._kept)
        self._group_map()
        self._list_findings()
        return f"{count(len(kept))} of {plural(len(ranking), 'rank')}"

    def sort_by(self, name: str, descending: bool) -> None:
        """Sort groups in the order of their ranks, or with the highest score first."""
        self._worst_first = (name == "score") != descending
        self._regroup()


def _fields(row: RankedRank) -> dict[str, object]:
    return {
        "rank": row.rank,
        "host": row.host,
        "role": row.role,
        "score": row.score,
        "flagged": "slow" if row.flagged else "",
        "own_us": row.self_time_excess_us,
        "imposed_us": row.wait_imposed_us,
    }
