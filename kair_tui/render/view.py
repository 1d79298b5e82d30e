"""The view of a result: its main table, its first line, and its body for people.

Also a graph as text: DOT for drawing, GraphML and node-link JSON for other programs.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, get_args

from kair_engine.frozen import dataclass
from kair_tui.render.answer import Column
from kair_tui.render.text import clean, json_in_ascii

if TYPE_CHECKING:
    from typing import IO

    from networkx import DiGraph

    from kair_tui.render.page import Page


GraphFormat = Literal["dot", "graphml", "node-link"]
GRAPH_FORMATS: Final[tuple[str, ...]] = get_args(GraphFormat)

# Characters that XML 1.0 cannot express and `clean` permits.
_NO_XML: Final = re.compile("[\ufffe\uffff]")


def graph_text(graph: "DiGraph", form: GraphFormat, *, ascii_only: bool = False) -> str:
    """Return the graph in that format; for DOT its attributes are those of DOT.

    For DOT, `graph.graph["node"]` and `graph.graph["edge"]` apply to all nodes and edges, and a value of several
    strings has a line for each.
    """
    writers: dict[GraphFormat, Callable[..., str]] = {"dot": _dot, "graphml": _graphml, "node-link": _node_link}
    return writers[form](graph, ascii_only=ascii_only)


def _dot(graph: "DiGraph", *, ascii_only: bool) -> str:
    """Return the graph as in https://graphviz.org/doc/info/lang.html, with every id and value quoted."""

    def quoted(value: str | Sequence[str]) -> str:
        return _quoted((value,) if isinstance(value, str) else value, ascii_only=ascii_only)

    def attributes(of: Mapping[str, str | Sequence[str]]) -> str:
        return ", ".join(f"{name}={quoted(value)}" for name, value in of.items())

    lines = [
        "digraph kair {",
        *(
            f"  {name} [{attributes(value)}];" if isinstance(value, dict) else f"  {name}={quoted(value)};"
            for name, value in graph.graph.items()
        ),
        *(f"  {quoted(node)} [{attributes(of)}];" for node, of in graph.nodes(data=True)),
        *(f"  {quoted(one)} -> {quoted(other)} [{attributes(of)}];" for one, other, of in graph.edges(data=True)),
        "}",
    ]
    return "".join(f"{line}\n" for line in lines)


def _quoted(lines: Sequence[str], *, ascii_only: bool) -> str:
    """Return lines without escapes, entities or quotes that DOT would interpret."""
    safe = (clean(line, ascii_only=ascii_only) for line in lines)
    harmless = (line.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;") for line in safe)
    return '"' + "\\n".join(harmless) + '"'


def _graphml(graph: "DiGraph", *, ascii_only: bool) -> str:
    import networkx as nx

    plain = nx.DiGraph(**_xml_safe(graph.graph))
    plain.add_nodes_from((node, _xml_safe(of)) for node, of in graph.nodes(data=True))
    plain.add_edges_from((one, other, _xml_safe(of)) for one, other, of in graph.edges(data=True))
    text = "".join(f"{line}\n" for line in nx.generate_graphml(plain))
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii") if ascii_only else text


def _xml_safe(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _NO_XML.sub("", clean(value)) if isinstance(value, str) else value for name, value in attributes.items()
    }


def _node_link(graph: "DiGraph", *, ascii_only: bool) -> str:
    import networkx as nx

    from kair_tui.render.document import encode

    text = encode(nx.node_link_data(graph, edges="edges"), indent=2) + "\n"
    return json_in_ascii(text) if ascii_only else text


Result = TypeVar("Result")
Row = TypeVar("Row")


@dataclass(frozen=True)
class CsvTable(Generic[Result]):
    """Rows made for CSV, if the main table does not contain the answer."""

    row_type: type[Any]
    """A dataclass: its fields are the columns."""
    rows: Callable[[Result], Sequence[Any]]


@dataclass(frozen=True)
class View(Generic[Result, Row]):
    """Everything the formats need to know about one kind of result."""

    main: str | None
    """The field of the main table's rows; None if the result itself is the only row."""
    columns: Sequence[Column[Row]]
    headline: Callable[[Result], str]
    body: Callable[[Result, "Page"], None]
    records: Sequence[tuple[str, str]] = ()
    """NDJSON: (field of the result, name of its records), in order."""
    tree: Callable[[Result, "Page"], None] | None = None
    """Output of `-o tree`; without it, the body."""
    graph: "Callable[[Result, GraphFormat], DiGraph] | None" = None
    """Output of the formats for graphs, if the answer is one."""

    picture: Callable[[Result], str] | None = None
    """Output of `-o svg`, if the answer is a picture."""

    csv: CsvTable[Result] | None = None
    """Output of `-o csv` instead of the main table."""

    line: "Callable[[Result, str], str] | None" = None
    """Output of `-o oneline` for the answer about a job of that name."""

    text: Callable[[Result], str] | None = None
    """Output for people instead of headline and body, if the answer is a text."""

    is_markdown: Callable[[Result], bool] | None = None
    """Whether `text` is Markdown, which a terminal shows drawn; without it, none is."""

    whole: Callable[[Result], Result] | None = None
    """Returns the answer with all rows for JSON, if it holds only the first."""

    stream: "Callable[[Result, Literal['csv', 'parquet'], IO[bytes]], None] | None" = None
    """Writes all rows as CSV or Parquet, if the answer may have more than fit into memory."""

    def rows(self, result: Result) -> Sequence[Row]:
        """Return the main table's rows."""
        if self.main is None:
            only: Any = result
            return (only,)
        rows: Sequence[Row] = getattr(result, self.main)
        return rows
