"""A graph as text: DOT to draw it, GraphML and node-link JSON for other programs."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from kair_tui.render.text import clean, json_in_ascii

if TYPE_CHECKING:
    from networkx import DiGraph

GraphFormat = Literal["dot", "graphml", "node-link"]
GRAPH_FORMATS: Final[tuple[str, ...]] = get_args(GraphFormat)

# What XML 1.0 has no way to write and `clean` lets through.
_NO_XML: Final = re.compile("[\ufffe\uffff]")


def graph_text(graph: "DiGraph", form: GraphFormat, *, ascii_only: bool = False) -> str:
    """The graph in that format; for DOT its attributes are those of DOT.

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
