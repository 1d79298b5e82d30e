"""The merged blame graph for people: with labels, and as it is drawn, small parts put together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from kair_engine.blame.waiting_graph import OTHERS, rank_id, waiting_graph
from kair_engine.results.blame import BlameResult
from kair_tui.render.text import spaced
from kair_tui.render.units import duration, percent, plural, spans, whole_percent
from kair_tui.render.words.blame import WORTH_NAMING, blame_headline, operator_name

if TYPE_CHECKING:
    from networkx import DiGraph

    from kair_tui.render.graphs import GraphFormat

MOST_RANKS: Final = 8
"""Drawn one by one, of ranks that others waited for; of a job with no more, all."""
MOST_CAUSES: Final = 12
LEAST: Final = 0.01
"""Of all waiting: lines below that are not drawn, and their sum is told."""
_GREY, _OCHRE = "#6b7480", "#8a6d1a"
_BLAMED: Final = {"fillcolor": "#f3e2b3", "color": _OCHRE, "penwidth": "2"}
"""Where much of the waiting came from. Not red: that accuses, which only a test of triage does."""
_FONT: Final = {"fontname": "Helvetica"}
_ALL_NODES: Final = {**_FONT, "fontsize": "11", "style": "filled", "fillcolor": "#f4f4f2", "color": _GREY}
_ALL_EDGES: Final = {**_FONT, "fontsize": "9", "color": _GREY}
_LEGEND: Final = "solid: waited for; dashed: was late because of, with the part of that waiting"

Attributes = dict[str, Any]


def graph(result: BlameResult, form: GraphFormat) -> DiGraph:
    """What `-o dot` draws; else everything, with a title and labels."""
    whole = waiting_graph(result)
    whole.graph["title"] = blame_headline(result)
    for _, of in whole.nodes(data=True):
        of["label"] = _label(of)
    for _, _, of in whole.edges(data=True):
        of["label"] = duration(_time(of))
    return drawing(whole) if form == "dot" else whole


def drawing(whole: DiGraph) -> DiGraph:
    """The graph as DOT draws it: the same sums, with few enough nodes that they can be read."""
    import networkx as nx

    place = _places(whole)
    edges = _merged(whole, place)
    drawn = {ends: of for ends, of in edges.items() if of["share"] >= LEAST}
    # Of a healthy job every line may be thin.
    drawn = drawn or edges
    kept = {node for ends in drawn for node in ends}
    nodes = {node: of for node, of in _nodes(whole, place).items() if node in kept}
    left_out = sum(of["share"] for ends, of in edges.items() if ends not in drawn and of["kind"] == "waited")
    small = f"; lines under {whole_percent(LEAST)} are left out, {percent(left_out)} of the waiting" if left_out else ""
    title = (whole.graph["title"], f"{_LEGEND}{small}")
    picture: DiGraph = nx.DiGraph(rankdir="LR", labelloc="t", label=title, **_FONT, node=_ALL_NODES, edge=_ALL_EDGES)
    picture.add_nodes_from((node, _drawn_node(of)) for node, of in nodes.items())
    picture.add_edges_from((*ends, _drawn_edge(of)) for ends, of in drawn.items())
    return picture


def _label(of: Mapping[str, Any]) -> str:
    if of["kind"] == "rank":
        return f"rank {of['rank']}"
    if of["kind"] == "others":
        return "other ranks"
    cause = "" if of["cause"] == "unknown" else f" ({spaced(of['cause'])})"
    return operator_name(of.get("operator"), is_edge=of["is_edge"]) + cause


def _time(of: Mapping[str, Any]) -> float:
    """An edge's, in µs."""
    time: float = of["waited_us" if of["kind"] == "waited" else "blamed_us"]
    return time


# What is put together.


def _places(whole: DiGraph) -> dict[str, str]:
    """For every node the one that it is drawn in: lesser ranks in one for all, lesser causes in one for their rank."""
    ranks, causes = _of_kind(whole, "rank"), _of_kind(whole, "cause")
    awaited = {node: whole.in_degree(node, weight="share") for node in ranks}
    named = sorted(causes, key=lambda node: -causes[node]["share"])[:MOST_CAUSES]
    alone = set(ranks)
    if len(ranks) > MOST_RANKS:
        largest = sorted(ranks, key=lambda node: -awaited[node])[:MOST_RANKS]
        alone = {node for node in largest if awaited[node] >= LEAST}
        alone |= {rank_id(causes[node]["rank"]) for node in named if causes[node]["share"] >= LEAST}
    place = {node: node if node in alone else OTHERS for node in ranks}
    place |= {node: node if node in named else f"{place[rank_id(causes[node]['rank'])]}_lesser" for node in causes}
    return place | dict.fromkeys(_of_kind(whole, "others"), OTHERS)


def _of_kind(whole: DiGraph, kind: str) -> dict[str, Attributes]:
    return {node: of for node, of in whole.nodes(data=True) if of["kind"] == kind}


def _merged(whole: DiGraph, place: Mapping[str, str]) -> dict[tuple[str, str], Attributes]:
    """The edges between what is drawn; their times and shares are the sums."""
    found: dict[tuple[str, str], Attributes] = {}
    for one, other, of in whole.edges(data=True):
        edge = found.setdefault((place[one], place[other]), {"kind": of["kind"], "time": 0.0, "share": 0.0})
        edge["time"] += _time(of)
        edge["share"] += of["share"]
    return found


def _nodes(whole: DiGraph, place: Mapping[str, str]) -> dict[str, Attributes]:
    members: dict[str, list[Attributes]] = defaultdict(list)
    for node, of in whole.nodes(data=True):
        members[place[node]].append(of)
    return {node: of[0] if node in whole and node != OTHERS else _together(of) for node, of in members.items()}


def _together(members: Iterable[Attributes]) -> Attributes:
    """One node for several ranks, or for several causes."""
    members = list(members)
    ranks = tuple(sorted({of["rank"] for of in members if "rank" in of}))
    share = sum(of.get("share", 0.0) for of in members)
    blamed = sum(of.get("blamed_us", 0.0) for of in members)
    if members[0]["kind"] == "cause":
        whose = f"rank {ranks[0]}" if len(ranks) == 1 else "other ranks"
        label = f"{plural(len(members), 'lesser cause')} of {whose}"
        return {"kind": "cause", "label": label, "share": share, "blamed_us": blamed}
    label = f"ranks {spans(ranks)}" if len(ranks) > 1 else f"rank {ranks[0]}" if ranks else "other ranks"
    return {"kind": "others", "label": label, "share": share, "blamed_us": blamed}


# How it is drawn.


def _drawn_node(of: Attributes) -> Attributes:
    is_cause, share = of["kind"] == "cause", of.get("share", 0.0)
    is_one = "rank" in of
    lines = [of["label"]]
    if is_cause and is_one:
        lines.append(f"on rank {of['rank']}")
    if share >= LEAST:
        lines.append(f"{'' if is_cause else 'blamed '}{duration(of['blamed_us'])}, {percent(share)}")
    shape = {"shape": "box", "style": "filled,rounded"} if is_cause else {}
    return {"label": tuple(lines), **shape, **(_BLAMED if is_one and share >= WORTH_NAMING else {})}


def _drawn_edge(of: Attributes) -> Attributes:
    colour = {} if of["kind"] == "waited" else {"color": _OCHRE, "style": "dashed"}
    return {"label": duration(of["time"]), "penwidth": f"{1 + 5 * of['share']:.2f}", **colour}
