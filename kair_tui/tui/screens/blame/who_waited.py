"""Who waited for whom, in the place of paths: around one root cause, or between all ranks."""

from functools import partial
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message

from kair_engine.blame.waiting_graph import cause_id
from kair_engine.results.blame import BlameResult, RootCause
from kair_tui.render.terminal import Look
from kair_tui.render.units import plural
from kair_tui.render.views.blame.neighbours import neighbourhood
from kair_tui.render.views.blame.rank_graph import rank_graph
from kair_tui.tui.frame.screen import BaseScreen
from kair_tui.tui.widgets.lines.heading import Heading
from kair_tui.tui.widgets.lists.neighbours import SHARE, TIME, Neighbours
from kair_tui.tui.widgets.lists.rank_graph import RankGraph
from kair_tui.tui.widgets.styles import styles_of

if TYPE_CHECKING:
    from networkx import DiGraph


class WhoWaited(Vertical):
    """The graph of an answer, made when it is first needed: the neighbourhood of a root cause, or all ranks."""

    DEFAULT_CSS = """
    WhoWaited RankGraph { display: none; }
    WhoWaited.-ranks RankGraph { display: block; }
    WhoWaited.-ranks Neighbours { display: none; }
    """

    class Shown(Message):
        """What was waited for is there."""

    class GraphMade(Message, bubble=False):
        """The graph of an answer is there."""

        def __init__(self, result: BlameResult, graph: "DiGraph") -> None:
            super().__init__()
            self.result, self.graph = result, graph

    def __init__(self, look: Look, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._look = look
        self._result: BlameResult | None = None
        self._cause: RootCause | None = None
        self._graph: DiGraph | None = None
        """Of the answer, from when it is first needed."""
        self._drawn: BlameResult | None = None
        """The answer of which all ranks are listed."""

    def compose(self) -> ComposeResult:
        """The lines under their heading."""
        yield Heading(self._look, "who waited", of="neighbours")
        yield Neighbours(self._look, id="neighbours")
        yield RankGraph(self._look, id="ranks")

    @property
    def neighbours(self) -> Neighbours:
        """What is around a root cause."""
        return self.query_one(Neighbours)

    @property
    def ranks(self) -> RankGraph:
        """All ranks."""
        return self.query_one(RankGraph)

    def accuse(self, ranks: frozenset[int]) -> None:
        """Ranks that a test of triage accuses."""
        self.neighbours.accuse(ranks)
        self.ranks.accuse(ranks)

    def show(self, result: BlameResult, cause: RootCause | None, *, of_all: bool) -> None:
        """What the graph tells of the cause, or `of_all` ranks, once there is one."""
        self.set_class(of_all, "-ranks")
        self.query_one(Heading).of = "ranks" if of_all else "neighbours"
        if result is not self._result:
            self._result, self._graph = result, None
        self._cause = cause
        if self._graph is None:
            screen = self.screen
            assert isinstance(screen, BaseScreen)
            self._say(f"putting the graph together {self._look.glyphs.ellipsis}")
            screen.kair.in_thread(self, partial(self._make_graph, result), group="graph")
        else:
            self._show(result, cause, self._graph)

    def _show(self, result: BlameResult, cause: RootCause | None, graph: "DiGraph") -> None:
        if self.has_class("-ranks"):
            self._show_ranks(result, graph)
        else:
            self._show_around(result, cause, graph)

    def _show_around(self, result: BlameResult, cause: RootCause | None, graph: "DiGraph") -> None:
        node = None if cause is None else cause_id(result, cause)
        lines = () if node is None else neighbourhood(graph, node)
        if lines != self.neighbours.items:  # else the cursor stays
            self.neighbours.show(lines)
        self._say("because of none" if cause is None else f"because of rank {cause.rank}")

    def _show_ranks(self, result: BlameResult, graph: "DiGraph") -> None:
        if result is not self._drawn:
            self._drawn = result
            self.ranks.show_graph(rank_graph(graph))
        awaited = self.ranks.awaited
        self._say(f"for {plural(awaited, 'rank')}, the longest first" if awaited else "for no rank")

    def _say(self, said: str) -> None:
        legend = f"{'time':>{TIME}}{'share':>{SHARE}} "
        self.query_one(Heading).say([(said, styles_of(self._look).base)], [(legend, None)])

    def _make_graph(self, result: BlameResult) -> None:
        """In a thread: networkx takes its time to be imported."""
        from kair_tui.render.views.blame.graph import graph

        self.post_message(self.GraphMade(result, graph(result, "node-link")))

    def on_who_waited_graph_made(self, message: GraphMade) -> None:
        """Shows it if it is still wanted."""
        if message.result is self._result:
            self._graph = message.graph
            self._show(message.result, self._cause, message.graph)
            self.post_message(self.Shown())
