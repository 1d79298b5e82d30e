"""Neighbours of a root cause: the part of the blame screen that stands in the place of paths."""

from functools import partial
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message

from kair_engine.blame.waiting_graph import cause_id
from kair_engine.results.blame import BlameResult, RootCause
from kair_tui.render.terminal import Look
from kair_tui.render.views.blame.neighbours import neighbourhood
from kair_tui.tui.frame.screen import BaseScreen
from kair_tui.tui.widgets.lines.heading import Heading
from kair_tui.tui.widgets.lists.neighbours import SHARE, TIME, Neighbours
from kair_tui.tui.widgets.styles import styles_of

if TYPE_CHECKING:
    from networkx import DiGraph


class WhoWaited(Vertical):
    """The neighbourhood of one root cause of an answer, whose graph is made when it is first needed."""

    class Shown(Message):
        """The neighbourhood is there that was waited for."""

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

    def compose(self) -> ComposeResult:
        """The lines under their heading."""
        yield Heading(self._look, "who waited", of="neighbours")
        yield Neighbours(self._look, id="neighbours")

    @property
    def neighbours(self) -> Neighbours:
        """The lines."""
        return self.query_one(Neighbours)

    def show(self, result: BlameResult, cause: RootCause | None) -> None:
        """What the graph tells of the cause, once there is one."""
        if result is not self._result:
            self._result, self._graph = result, None
        self._cause = cause
        if self._graph is None:
            screen = self.screen
            assert isinstance(screen, BaseScreen)
            screen.kair.in_thread(self, partial(self._make_graph, result), group="graph")
        else:
            self._show(result, cause, self._graph)

    def _show(self, result: BlameResult, cause: RootCause | None, graph: "DiGraph") -> None:
        node = None if cause is None else cause_id(result, cause)
        lines = () if node is None else neighbourhood(graph, node)
        if lines != self.neighbours.items:  # else the cursor stays
            self.neighbours.show(lines)
        said = "because of none" if cause is None else f"because of rank {cause.rank}"
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
