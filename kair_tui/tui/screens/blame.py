"""The blame screen: where the waiting comes from, the paths that lead to each root cause, the graph of all ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.geometry import Size

from kair.app.question import Question
from kair_engine.results.blame import STEP_BEGIN, STEP_END, BlamePath, BlameResult, RootCause
from kair_engine.results.triage import TriageResult
from kair_tui.render.blame import COLUMNS
from kair_tui.render.blame_paths import (
    Key,
    blame_headline,
    cause_operator,
    each,
    key_of,
    merged,
    path_end,
    paths_by_cause,
    stops,
    together,
)
from kair_tui.render.text import short_name
from kair_tui.render.units import count, duration, plural
from kair_tui.tui.frame.view import ViewScreen
from kair_tui.tui.screens.who_waited import (
    WhoWaited,
    about_answer,
    about_cause,
    about_line,
    about_stop,
)
from kair_tui.tui.session import Place, Session
from kair_tui.tui.widgets.bars import RankBars
from kair_tui.tui.widgets.blame_tree import LATE, SHARE, TIME, WIDE, BlameTree
from kair_tui.tui.widgets.lines import Heading, Paragraphs
from kair_tui.tui.widgets.rank_graph import Neighbours, RankGraph
from kair_tui.tui.widgets.styles import styles_of
from kair_tui.tui.widgets.table import Table

MOST_PATHS: Final = 1000
Below = Literal["paths", "cause", "ranks"]
"""Shown under or next to the root causes: paths, who waited because of a cause, or all ranks as a graph."""
_SHORT: Final = 24
_BESIDE: Final = 140
"""Columns from which the paths stand next to the root causes."""
_LOW: Final = 25
"""Lines below which none is left blank."""
_FROM: Final = 0.4
"""Largest share of the screen's height for the root causes, if the paths are below."""
_AROUND_CAUSES: Final = 3
"""Lines in addition to the rows: a heading, the columns' titles and the bars."""


class RootCauses(Table[RootCause]):
    """Root causes, each leading to its paths."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "its paths"),
        Binding("w", "screen.below('cause')", "who waited"),
        Binding("v", "screen.below('ranks')", "by rank"),
    ]


class BlameScreen(ViewScreen):
    """The results of `kair blame`, for the whole job or a rank, an operator, a step."""

    DEFAULT_CSS = """
    BlameScreen #about { margin: 1 0; }
    BlameScreen.-low #about { margin: 0; }
    BlameScreen #panes { height: 1fr; layout: vertical; }
    BlameScreen.-abreast #panes { layout: horizontal; }
    BlameScreen #from { min-height: 5; margin-bottom: 1; }
    BlameScreen.-low #from { margin-bottom: 0; }
    BlameScreen.-abreast #from { width: 9fr; height: 100%; margin-right: 2; }
    BlameScreen #left { height: 1fr; }
    BlameScreen #right { height: 1; }
    BlameScreen.-abreast #right { height: 30%; margin-top: 1; }
    BlameScreen #right Heading { display: none; }
    BlameScreen.-abreast #right Heading { display: block; }
    BlameScreen.-abreast #bars { height: 1fr; }
    BlameScreen #to, BlameScreen #around { height: 1fr; }
    BlameScreen.-abreast #to, BlameScreen.-abreast #around { width: 11fr; height: 100%; }
    BlameScreen #around { display: none; }
    BlameScreen.-around #around { display: block; }
    BlameScreen.-around #to { display: none; }
    BlameScreen.-ranks #from { display: none; }
    BlameScreen.-ranks.-abreast #from { display: block; }
    BlameScreen.-nothing #from, BlameScreen.-nothing #to, BlameScreen.-nothing #around { display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "app.focus_next", "next part"),
        Binding("left_square_bracket", "step(-1)", "step before", key_display="[", show=False),
        Binding("right_square_bracket", "step(1)", "step", key_display="[ ]"),
        Binding("w", "below('cause')", "who waited because of a cause, or its paths again", show=False),
        Binding("v", "below('ranks')", "by rank, who waited for whom, or by path again", show=False),
        Binding("a", "all_paths", "all paths"),
        Binding("x", "each_path", "alike paths one by one, or merged", show=False),
        Binding("r", "only_rank", "only this rank, or the whole job again", show=False),
        Binding("F", "frequency", "how often the operator ran", show=False),
    ]
    FIELDS = ("rank", "operator", "cause", "blamed_us", "share", "synchronisations", "steps", "is_edge")
    SORTS = ("share", "rank", "operator", "cause", "synchronisations")
    LARGEST_FIRST = frozenset({"share", "synchronisations"})
    FIRST, ROWS = "#causes", "root cause"

    def __init__(self, session: Session, place: Place) -> None:
        super().__init__(session, place)
        self._blame: BlameResult | None = None
        self._triage: TriageResult | None = None
        self._paths: Mapping[Key, Sequence[BlamePath]] = {}
        self._every_path = self._one_by_one = False
        self._below: Below = "paths"
        self._return_to: Key | None = None

    @property
    def crumb(self) -> str:
        """`blame rank 2 step 7`."""
        place = self.place
        parts = [
            "blame",
            *([] if place.rank is None else [f"rank {place.rank}"]),
            *([] if place.operator is None else [short_name(place.operator, _SHORT)]),
            *([] if place.step is None else [f"step {place.step}"]),
        ]
        return " ".join(parts)

    def questions(self) -> Mapping[str, Question]:
        """Return the waiting, and whether it exceeds that of every job."""
        place = self.place
        steps = self.session.steps if place.step is None else (place.step,)
        blame = Question.of("blame", steps, rank=place.rank, operator=place.operator, limit=MOST_PATHS)
        return {"blame": blame, "triage": self.session.question("triage")}

    def body(self) -> ComposeResult:
        """Yield widgets from the sum to single paths."""
        look = self.look
        yield Paragraphs(look, id="about")
        with Container(id="panes"):
            with Vertical(id="from"):
                with Vertical(id="left"):
                    yield Heading(look, "root causes", of="causes")
                    self._causes = RootCauses(look, COLUMNS, id="causes")
                    yield self._causes
                with Vertical(id="right"):
                    yield Heading(look, "by rank", of="bars")
                    yield RankBars(look, id="bars")
            with Vertical(id="to"):
                yield Heading(look, "paths", of="tree")
                self._tree = BlameTree(look, id="tree")
                yield self._tree
            self._who_waited = WhoWaited(look, id="around")
            yield self._who_waited

    def make_room(self) -> None:
        """Give bars the available room."""
        self._give_room()
        self.call_after_refresh(self._say_paths)

    def room(self, size: Size) -> dict[str, bool]:
        """Return whether paths stand next to the causes, and whether room is short."""
        return {**super().room(size), "-abreast": size.width >= _BESIDE, "-low": size.height < _LOW}

    def _give_room(self) -> None:
        """Give the root causes only the room they need: the rest is for the paths."""
        abreast, part = self.has_class("-abreast"), self.query_one("#from")
        needed = self._causes.count + _AROUND_CAUSES
        part.styles.height = "100%" if abreast else min(needed, max(int(self.size.height * _FROM), 5))

    @property
    def _part_below(self) -> BlameTree | Neighbours | RankGraph:
        parts: dict[Below, BlameTree | Neighbours | RankGraph] = {
            "paths": self._tree,
            "cause": self._who_waited.neighbours,
            "ranks": self._who_waited.ranks,
        }
        return parts[self._below]

    def commands(self) -> Sequence[str]:
        """Return also the command that draws the graph, of all ranks or around the one under the cursor."""
        lines, drawn = super().commands(), self.questions()["blame"]
        if self._below == "ranks":
            return [*lines, f"{self.session.command(drawn)} -o dot"]
        cause = self._causes.chosen if self._below == "cause" else None
        if cause is None:
            return lines
        around = replace(drawn, arguments=(("rank", cause.rank),))
        return [*lines, f"{self.session.command(around)} -o dot"]

    # What is shown.

    def show(self, name: str, result: Any) -> None:  # noqa: ANN401
        """Hand a result to its widgets."""
        if name == "triage":
            self._triage = result
            self._tree.accuse(self._accused)
            self._who_waited.accuse(self._accused)
        else:
            self._show_blame(result)
        self._say_about()

    def _show_blame(self, result: BlameResult) -> None:
        chosen = self._causes.chosen
        self._return_to = None if chosen is None else key_of(chosen)
        self._blame, self._paths = result, paths_by_cause(result)
        self.set_class(not result.root_causes and not result.paths, "-nothing")
        self.query_one(RankBars).show(together(result))
        self.heading("bars").say([("", None)], [("share   blamed  last", None)])
        self._causes.show(result.root_causes, empty="none")
        self._give_room()

    @property
    def _accused(self) -> frozenset[int]:
        """Return the ranks accused by triage: blame itself accuses nobody."""
        findings = () if self._triage is None else self._triage.findings
        return frozenset(rank for finding in findings for rank in finding.ranks)

    def _say_about(self) -> None:
        result = self._blame
        if result is None:
            return
        accused = None if self._triage is None else self._accused
        alone, short = len(self.session.trace.job.ranks) == 1, self.has_class("-low")
        said = about_answer(result, self.place, accused, self.look, alone=alone, short=short)
        self.query_one("#about", Paragraphs).show(*said)

    # Root causes and their paths.

    def on_table_ordered(self) -> None:
        """Return the cursor to its cause after an answer."""
        table = self._causes
        if self._return_to is not None:
            rows = (at for at in range(table.count) if key_of(table.row(at)) == self._return_to)
            table.move_to(next(rows, 0))
            self._return_to = None
        self.heading("causes").say([(table.counted(), None)])
        self._show_paths()
        self._show_around()

    def on_table_moved(self) -> None:
        """Show the paths that lead to the cause under the cursor, or who waited because of it."""
        if not self._every_path:
            self._show_paths()
        self._show_around()

    def on_table_chosen(self) -> None:
        """Go to the part below."""
        self._part_below.focus()

    def _show_paths(self) -> None:
        result, cause = self._blame, self._causes.chosen
        if result is None:
            return
        put_together, paths = each if self._one_by_one else merged, self._chosen_paths(result, cause)
        shown = put_together(paths, None if paths is result.paths else cause)
        none = "none"
        if not self._every_path and cause is not None:
            waits = plural(cause.synchronisations, "wait")
            none = f"its {waits} are shorter than those that paths were made of (w shows who waited)"
        self._tree.show_paths(shown, result.waiting_us, none)
        self._say_paths()

    def _chosen_paths(self, result: BlameResult, cause: RootCause | None) -> Sequence[BlamePath]:
        if self._every_path or not result.root_causes:
            return result.paths
        return () if cause is None else self._paths.get(key_of(cause), ())

    def _say_paths(self) -> None:
        result, cause = self._blame, self._causes.chosen
        if result is None:
            return
        styles, shown = styles_of(self.look), len(self._chosen_paths(result, cause))
        to, of = "to all causes", ""
        if not self._every_path and result.root_causes:
            to = "to none" if cause is None else f"to rank {cause.rank} {cause_operator(cause)}"
            of = f" of {count(len(result.paths))}" if shown else ""
        longest = " longest" if shown and len(result.paths) == MOST_PATHS else ""
        legend = f"{'late':>{LATE}}{'share':>{SHARE}}"
        if self._tree.size.width >= WIDE:
            legend = f"{'took':>{TIME}}{legend}"
        many = f" {self.look.glyphs.dot} {count(shown)}{of}{longest}" if shown else ""
        # Every column keeps its title: without room for all, the cause is cut, which is shown above.
        room = self._tree.size.width - len(f" paths  {many}{legend}") - 2
        to = to if len(to) <= room else to[: max(room - 1, 0)] + self.look.glyphs.ellipsis
        self.heading("tree").say([(to, styles.base), (many, None)], [(legend, None)])

    def action_each_path(self) -> None:
        """Show every path by itself, or similar ones joined again."""
        self._one_by_one = not self._one_by_one
        self._show_paths()

    def action_all_paths(self) -> None:
        """Show paths to all causes, or to the one under the cursor again."""
        self._every_path = not self._every_path
        self._show_paths()

    # Who waited because of the cause under the cursor.

    def action_below(self, what: Below) -> None:
        """Show the graph, around the cause under the cursor or of all ranks, instead of paths; or these again."""
        had_keyboard = self._part_below.has_focus
        was_of_all = self._below == "ranks"
        self._below = "paths" if self._below == what else what
        of_all = self._below == "ranks"
        self.set_class(self._below != "paths", "-around")
        self.set_class(of_all, "-ranks")
        self._show_around()
        if of_all or (had_keyboard and not was_of_all):
            self._part_below.focus()
        elif was_of_all:
            self._causes.focus()
        self.call_after_refresh(self._say_paths)

    def _show_around(self) -> None:
        if self._below != "paths" and self._blame is not None:
            self._who_waited.show(self._blame, self._causes.chosen, of_all=self._below == "ranks")

    # What is under the cursor.

    @property
    def rank(self) -> int | None:
        """Return the rank of the stop if the paths have the focus, else of the root cause."""
        if self._tree.has_focus and self._tree.node is not None:
            return self._tree.node.rank
        around = self._who_waited.lines
        if around.has_focus and around.chosen is not None:
            return around.chosen.rank
        cause = self._causes.chosen
        return self.place.rank if cause is None else cause.rank

    @property
    def _operator(self) -> str | None:
        if self._tree.has_focus and self._tree.node is not None:
            return self._tree.node.operator
        cause = self._causes.chosen
        return None if cause is None or cause.operator in (STEP_BEGIN, STEP_END) else cause.operator

    @property
    def moment(self) -> Place:
        """Return the stop if the paths have the focus, else the root cause in the step that waited longest for it."""
        path, node, cause = self._tree.path, self._tree.node, self._causes.chosen
        if self._tree.has_focus and path is not None and node is not None:
            operator = None if node.operator in (STEP_BEGIN, STEP_END) else node.operator
            return Place("timeline", node.rank, operator, path.step, node.start_us)
        if cause is None:
            return super().moment
        ends_there = self._paths.get(key_of(cause), ())
        step = ends_there[0].step if ends_there else cause.steps[0]
        return Place("timeline", cause.rank, self._operator, step)

    def follow(self, rank: int) -> None:
        """Move the cursor to the rank's largest cause."""
        table = self._causes
        at = next((at for at in range(table.count) if table.row(at).rank == rank), None)
        if at is not None:
            table.move_to(at)

    def about_cursor(self) -> str:
        """Describe the thing under the focused part's cursor."""
        if self._tree.has_focus:
            return self.dotted(*about_stop(self._tree.path, self._tree.node))
        if self._who_waited.lines.has_focus:
            return self.dotted(*about_line(self._who_waited.lines.chosen))
        return self.dotted(*about_cause(self._causes.chosen))

    def copied(self) -> str:
        """Return the sum, the thing under the cursor, the path to it, and the commands."""
        said = [] if self._blame is None else [blame_headline(self._blame)]
        path = self._tree.path
        if self._below in ("ranks", "cause"):
            lines = self._who_waited.lines.items
            said += [f"{'  ' * len(line.is_last)}{line.text} ({duration(line.time_us)})" for line in lines]
        elif path is not None:
            nodes = (path.symptom, *stops(path))
            said += [f"{'  ' * depth}rank {node.rank} {node.operator}" for depth, node in enumerate(nodes)]
            said[-1] += f" ({path_end(path.chain[-1], path)})"
        return "\n".join([*said, *self.commands()])

    # The subject.

    def action_step(self, by: int) -> None:
        """Show one step, the next, and after the last all chosen ones again."""
        steps: list[int | None] = [None, *self.session.chosen_steps]
        at = steps.index(self.place.step) if self.place.step in steps else 0
        self._now(replace(self.place, step=steps[(at + by) % len(steps)]))

    def action_all_steps(self) -> None:
        """Ask about all steps again."""
        self.place = replace(self.place, step=None)
        super().action_all_steps()

    def action_only_rank(self) -> None:
        """Narrow to the rank under the cursor; if already narrowed, widen to the whole job."""
        if self.place.rank is not None or self.place.operator is not None:
            self._now(replace(self.place, rank=None, operator=None))
        elif self.rank is not None:
            self._now(replace(self.place, rank=self.rank))

    def _now(self, place: Place) -> None:
        self.place = place
        self.reask()

    def action_frequency(self) -> None:
        """Show how often the operator under the cursor ran on each rank."""
        if self._operator is None:
            self.say("no operator is named here")
        else:
            self.kair.go(Place("frequency", rank=self.rank, operator=self._operator))
