"""The view of a result: its main table, its first line, and what a person reads beneath.

A graph as text: DOT to draw it, GraphML and node-link JSON for other programs.
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

# What XML 1.0 has no way to write and `clean` lets through.
_NO_XML: Final = re.compile("[\ufffe\uffff]")


def graph_text(graph: "DiGraph", form: GraphFormat, *, ascii_only: bool = False) -> str:
    """Return the graph in that format; for DOT its attributes are those of DOT.

    There `graph.graph["node"]` and `graph.graph["edge"]` are those that all nodes and all edges have, and a value of
    several strings has a line for each.
    """
    writers: dict[GraphFormat, Callable[..., str]] = {"dot": _dot, "graphml": _graphml, "node-link": _node_link}
    return writers[form](graph, ascii_only=ascii_only)


def _dot(graph: "DiGraph", *, ascii_only: bool) -> str:
    """As https://graphviz.org/doc/info/lang.html has it, every id and value in quotes."""

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
    """Lines in which DOT finds no escape, no entity and no end before their end."""
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
    """Rows made for CSV, of an answer whose main table does not tell it."""

    row_type: type[Any]
    """A dataclass: its fields are the columns."""
    rows: Callable[[Result], Sequence[Any]]


@dataclass(frozen=True)
class View(Generic[Result, Row]):
    """Everything the formats need to know about one kind of result."""

    main: str | None
    """The field that holds the main table's rows; None where the result itself is the only row."""
    columns: Sequence[Column[Row]]
    headline: Callable[[Result], str]
    body: Callable[[Result, "Page"], None]
    records: Sequence[tuple[str, str]] = ()
    """NDJSON: (field of the result, what a record of it is called), in the order they come."""
    tree: Callable[[Result, "Page"], None] | None = None
    """What `-o tree` shows; an answer that is no tree shows its body."""
    graph: "Callable[[Result, GraphFormat], DiGraph] | None" = None
    """What the formats for graphs show, of an answer that is one."""

    picture: Callable[[Result], str] | None = None
    """What `-o svg` writes, of an answer that is a picture."""

    csv: CsvTable[Result] | None = None
    """What `-o csv` writes in the main table's place."""

    line: "Callable[[Result, str], str] | None" = None
    """What `-o oneline` writes of the answer about a job of that name."""

    text: Callable[[Result], str] | None = None
    """What people read in the place of headline and body, as it is, of an answer that is a text."""

    whole: Callable[[Result], Result] | None = None
    """Returns the answer with all rows for JSON, of one that holds only the first."""

    stream: "Callable[[Result, Literal['csv', 'parquet'], IO[bytes]], None] | None" = None
    """Writes all rows as CSV or Parquet, of an answer that may have more than fit into memory."""

    def rows(self, result: Result) -> Sequence[Row]:
        """Return the main table's rows."""
        if self.main is None:
            only: Any = result
            return (only,)
        rows: Sequence[Row] = getattr(result, self.main)
        return rows
