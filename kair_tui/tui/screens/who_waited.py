"""Who waited for whom, instead of paths: around one root cause, or between all ranks.

Also the blame screen's texts about the whole answer and the thing under the cursor.
"""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Vertical

from kair.app.waiting_graph import cause_id
from kair_engine.results.blame import BlamePath, BlameResult, PathNode, RootCause
from kair_tui.render.blame_graph import WaitingLine, neighbourhood, rank_graph
from kair_tui.render.blame_paths import blame_headline, blame_totals, cause_operator, path_end
from kair_tui.render.terminal import Look
from kair_tui.render.text import spaced
from kair_tui.render.units import duration, percent, plural, ranks_in_words, signed_duration, spans
from kair_tui.render.warnings import warnings_in_words
from kair_tui.tui.frame.screen import BaseScreen
from kair_tui.tui.session import Place
from kair_tui.tui.widgets.drawn import CursorMoved
from kair_tui.tui.widgets.lines import Heading, Paragraph
from kair_tui.tui.widgets.rank_graph import SHARE, TIME, Neighbours, RankGraph
from kair_tui.tui.widgets.styles import styles_of

if TYPE_CHECKING:
    from networkx import DiGraph


class WhoWaited(Vertical):
    """The graph of an answer, made on demand: the neighbourhood of a root cause, or all ranks."""

    DEFAULT_CSS = """
    WhoWaited RankGraph { display: none; }
    WhoWaited.-ranks RankGraph { display: block; }
    WhoWaited.-ranks Neighbours { display: none; }
    """

    class Shown(CursorMoved):
        """The awaited graph is there."""

    def __init__(self, look: Look, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._look = look
        self.neighbours = Neighbours(look, id="neighbours")
        """The surroundings of a root cause."""
        self.ranks = RankGraph(look, id="ranks")
        self._result: BlameResult | None = None
        self._cause: RootCause | None = None
        self._graph: DiGraph | None = None
        """Of the answer, once needed."""
        self._drawn: BlameResult | None = None
        """The answer whose ranks are all listed."""

    @property
    def lines(self) -> Neighbours | RankGraph:
        """Return the list that is shown."""
        return self.ranks if self.has_class("-ranks") else self.neighbours

    def compose(self) -> ComposeResult:
        """Yield the lines under their heading."""
        yield Heading(self._look, "who waited", of="neighbours")
        yield self.neighbours
        yield self.ranks

    def accuse(self, ranks: frozenset[int]) -> None:
        """Set the ranks that triage accuses."""
        self.neighbours.accuse(ranks)
        self.ranks.accuse(ranks)

    def show(self, result: BlameResult, cause: RootCause | None, *, of_all: bool) -> None:
        """Show the graph around the cause, or of all ranks if `of_all`, once there is one."""
        self.set_class(of_all, "-ranks")
        self.query_one(Heading).of = "ranks" if of_all else "neighbours"
        if result is not self._result:
            self._result, self._graph = result, None
        self._cause = cause
        if self._graph is None:
            screen = self.screen
            assert isinstance(screen, BaseScreen)
            self._say(f"putting the graph together {self._look.glyphs.ellipsis}")
            screen.work_out(partial(_graph_of, result), partial(self._made, result), group="graph")
        else:
            self._show(result, cause, self._graph)

    def _show(self, result: BlameResult, cause: RootCause | None, graph: "DiGraph") -> None:
        if self.has_class("-ranks"):
            if result is not self._drawn:
                self._drawn = result
                self.ranks.show_graph(rank_graph(graph))
            awaited = self.ranks.awaited
            self._say(f"for {plural(awaited, 'rank')}, the longest first" if awaited else "for no rank")
            return
        node = None if cause is None else cause_id(result, cause)
        lines = () if node is None else neighbourhood(graph, node)
        if lines != self.neighbours.items:  # else the cursor stays
            self.neighbours.show(lines)
        self._say("because of none" if cause is None else f"because of rank {cause.rank}")

    def _say(self, said: str) -> None:
        legend = f"{'time':>{TIME}}{'share':>{SHARE}} "
        self.query_one(Heading).say([(said, styles_of(self._look).base)], [(legend, None)])

    def _made(self, result: BlameResult, graph: "DiGraph | None", error: Exception | None) -> None:
        """Show it if it is still wanted."""
        if error is not None:
            raise error
        if graph is not None and result is self._result:
            self._graph = graph
            self._show(result, self._cause, graph)
            self.post_message(self.Shown())


def _graph_of(result: BlameResult) -> "DiGraph":
    """Return the graph, in a thread: importing networkx takes time."""
    from kair_tui.render.blame_graph import graph

    return graph(result, "node-link")


def about_answer(
    result: BlameResult, place: Place, accused: frozenset[int] | None, look: Look, *, alone: bool, short: bool
) -> Iterator[Paragraph]:
    """Yield the sum, the ranks accused by triage (None: not known yet), and how the answer was narrowed."""
    first = "only one rank: no other rank could wait for it" if alone else blame_headline(result)
    yield Paragraph(first, "strong")
    if accused:
        named = ranks_in_words(tuple(sorted(accused)))
        yield Paragraph(f"triage accuses {named}", "alarm", f"{look.glyphs.alarm} ")
    if result.collectives and not short:
        yield Paragraph(blame_totals(result), "dim")
    if accused is not None and not accused and result.waiting_us:
        healthy = "triage accuses no rank: in every healthy job, too, somebody arrives last"
        yield Paragraph(healthy, "dim")
    if narrowed := _narrowed(result, place):
        yield Paragraph(narrowed, "dim")
    for warning in warnings_in_words(result.warnings):
        yield Paragraph(f"warning: {warning.message}", "dim")


def _narrowed(result: BlameResult, place: Place) -> str:
    to = [] if place.rank is None else [f"rank {place.rank}"]
    to += [] if place.operator is None else [f"operators with {place.operator!r}"]
    if not to:
        return ""
    none = "" if result.root_causes else ": nobody waited for that"
    return f"only {' and '.join(to)}{none} (r shows the whole job)"


def about_cause(row: RootCause | None) -> tuple[str, ...]:
    """Return the description of a root cause."""
    if row is None:
        return ()
    return (
        f"rank {row.rank}",
        cause_operator(row),
        spaced(row.cause),
        f"{duration(row.blamed_us)}, {percent(row.share)} of all waiting",
        f"{'step' if len(row.steps) == 1 else 'steps'} {spans(row.steps, 3)}",
    )


def about_stop(path: BlamePath | None, node: PathNode | None) -> tuple[str, ...]:
    """Return the description of a stop of a path."""
    if path is None or node is None:
        return ()
    return (
        f"rank {node.rank}",
        node.operator,
        f"began {signed_duration(node.lateness_us)} at {duration(node.start_us)} of step {path.step}",
        f"took {duration(node.duration_us)}",
        path_end(node, path) if node is path.chain[-1] else "",
        f"ranks waited {duration(path.waited_us)} in total" if node is path.symptom else "",
    )


def about_line(line: WaitingLine | None) -> tuple[str, ...]:
    """Return the description of a line about waiting."""
    if line is None:
        return ()
    first = f"rank {line.rank}" if line.role == "awaited" else ""
    if line.role in ("cause", "late", "also"):
        first = line.text
    return (first, line.detail, f"{duration(line.time_us)}, {percent(line.share)} of all waiting")
