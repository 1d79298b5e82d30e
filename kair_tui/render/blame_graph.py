"""The merged blame graph for people: labelled, and drawn with small parts joined.

Also the neighbourhood of a root cause (the ranks it delayed, who waited for those, what else delayed them), and the
merged graph as lines, rank by rank, the strongest first and the weak ones folded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from kair.app.waiting_graph import OTHERS, rank_id, waiting_graph
from kair_engine.results.blame import STEP_BEGIN, BlameResult
from kair_tui.render.blame_paths import WORTH_NAMING, blame_headline, operator_name
from kair_tui.render.text import spaced
from kair_tui.render.units import count, duration, percent, plural, ranks_in_words, spans, whole_percent

if TYPE_CHECKING:
    from networkx import DiGraph

    from kair_tui.render.view import GraphFormat


MOST_RANKS: Final = 8
"""Ranks that others waited for that are drawn separately; in a job with no more, all are."""
MOST_CAUSES: Final = 12
LEAST: Final = 0.01
"""Share of all waiting: thinner lines are not drawn, but their sum is stated."""
_GREY, _OCHRE = "#6b7480", "#8a6d1a"
_BLAMED: Final = {"fillcolor": "#f3e2b3", "color": _OCHRE, "penwidth": "2"}
"""Much of the waiting came from here. Not red: that accuses, which only a test of triage does."""
_FONT: Final = {"fontname": "Helvetica"}
_ALL_NODES: Final = {**_FONT, "fontsize": "11", "style": "filled", "fillcolor": "#f4f4f2", "color": _GREY}
_ALL_EDGES: Final = {**_FONT, "fontsize": "9", "color": _GREY}
_LEGEND: Final = "solid: waited for; dashed: made late by, with its part of that waiting"

Attributes = dict[str, Any]


def graph(result: BlameResult, form: GraphFormat) -> DiGraph:
    """Return the graph that `-o dot` draws; else everything, with a title and labels."""
    whole = waiting_graph(result)
    whole.graph["title"] = blame_headline(result)
    for _, of in whole.nodes(data=True):
        of["label"] = _label(of)
    for _, _, of in whole.edges(data=True):
        of["label"] = duration(_time(of))
    return drawing(whole) if form == "dot" else whole


def drawing(whole: DiGraph) -> DiGraph:
    """Return the graph as DOT draws it: the same sums, with few enough nodes to read."""
    import networkx as nx

    place = _places(whole)
    edges = _merged(whole, place)
    drawn = {ends: of for ends, of in edges.items() if of["share"] >= LEAST}
    # In a healthy job every line may be thin.
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
    """Return an edge's time, in µs."""
    time: float = of["waited_us" if of["kind"] == "waited" else "blamed_us"]
    return time


# Joining of small parts.


def _places(whole: DiGraph) -> dict[str, str]:
    """Return for every node the drawn one: weak ranks share one, weak causes one per rank."""
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
    """Return the edges between drawn nodes; their times and shares are sums."""
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
    """Return one node for several ranks, or for several causes."""
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


# Drawing.


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


ALIKE: Final = 0.9
"""Ranks that waited at least this share of what the first of them waited are listed together."""
MOST_GROUPS: Final = 6
MOST_OTHER_CAUSES: Final = 3

_Edge = tuple[str, dict[str, Any]]
"""The node at its other end, and its figures."""


@dataclass(frozen=True)
class WaitingLine:
    """A line about waiting: who waited, who was waited for, or what made ranks late."""

    role: Literal["cause", "late", "waited", "also", "because", "awaited", "several"]
    text: str
    detail: str
    """Further details."""
    time_us: float
    share: float
    """Share of all waiting."""
    rank: int | None
    """Where it leads: among ranks that waited, the one that waited longest; among several that made them late, the
    first; None if unknown."""
    ranks: tuple[int, ...] = ()
    """The ranks that waited, or were waited for, if known individually."""
    is_last: tuple[bool, ...] = ()
    """For each level from the top to its own: whether nothing follows there."""
    below: tuple[WaitingLine, ...] = ()
    """For a rank that was waited for, by whom, and what made it late; for several weak ones their lines."""


def neighbourhood(graph: DiGraph, cause: str) -> tuple[WaitingLine, ...]:
    """Return the lines around a root cause of the blame graph: itself on top, on every level the largest first."""
    of = graph.nodes[cause]
    often = times(of["synchronisations"])
    lines = [WaitingLine("cause", of["label"], often, of["blamed_us"], of["share"], of["rank"])]
    late = _largest(graph.in_edges(cause, data=True), "blamed_us", end=0)
    for rank, edge in late:
        is_last = rank == late[-1][0]
        lines.append(replace(_late(graph, rank, edge), is_last=(is_last,)))
        below = [*_waiting(graph, rank, _waited_for_it), *_other_causes(graph, rank, cause)]
        lines += [replace(line, is_last=(is_last, line is below[-1])) for line in below]
    return tuple(lines)


def _late(graph: DiGraph, rank: str, edge: dict[str, Any]) -> WaitingLine:
    number, waited = graph.nodes[rank]["rank"], duration(graph.in_degree(rank, weight="waited_us"))
    detail = f"part of the {waited} that others waited for rank {number}"
    return WaitingLine("late", f"made rank {number} late", detail, edge["blamed_us"], edge["share"], number)


def _largest(edges: Any, figure: str, *, end: int) -> list[_Edge]:  # noqa: ANN401
    """Return the edges with the figure, as the node at the chosen end with the rest."""
    return sorted(((edge[end], edge[2]) for edge in edges if figure in edge[2]), key=lambda edge: -edge[1][figure])


def _waiting(graph: DiGraph, rank: str, who: Callable[[Sequence[int]], str]) -> Iterator[WaitingLine]:
    """Yield who waited for a rank; those that waited nearly equally long together, and the rest last."""
    groups: list[list[_Edge]] = []
    edges = _largest(graph.in_edges(rank, data=True), "waited_us", end=0)
    for edge in (edge for edge in edges if edge[0] != OTHERS):
        is_alike = groups and edge[1]["waited_us"] >= ALIKE * groups[-1][0][1]["waited_us"]
        if is_alike or len(groups) == MOST_GROUPS:
            groups[-1].append(edge)
        else:
            groups.append([edge])
    for group in (*groups, *([edge] for edge in edges if edge[0] == OTHERS)):
        yield _group(graph, group, graph.nodes[rank]["rank"], who)


def _group(graph: DiGraph, group: Sequence[_Edge], awaited: int, who: Callable[[Sequence[int]], str]) -> WaitingLine:
    ranks = tuple(sorted(graph.nodes[node]["rank"] for node, _ in group if "rank" in graph.nodes[node]))
    waited = [of["waited_us"] for _, of in group]
    alike = waited[-1] >= ALIKE * waited[0]
    each = f"about {duration(sum(waited) / len(waited))}" if alike else f"up to {duration(waited[0])}"
    often = sorted({of["collectives"] for _, of in group})
    how_often = times(often[-1], f"{often[0]} to " if len(often) > 1 else "")
    shortest, longest = duration(waited[-1]), duration(waited[0])
    how_long = shortest if shortest == longest else f"{shortest} to {longest}"
    several = len(ranks) > 1
    detail = f"{_who(ranks)} waited {how_long}{' each' if several else ''} for rank {awaited} {how_often}"
    text = who(ranks) + (f", {each} each" if several else "")
    leads_to = graph.nodes[group[0][0]].get("rank")
    return WaitingLine("waited", text, detail, sum(waited), _sum(group, "share"), leads_to, ranks)


def _waited_for_it(ranks: Sequence[int]) -> str:
    return f"{_who(ranks, 4)} waited for it"


def _who(ranks: Sequence[int], limit: int = 8) -> str:
    return ranks_in_words(tuple(ranks), limit) if ranks else "other ranks"


def _sum(edges: Sequence[_Edge], figure: str) -> float:
    return float(sum(of[figure] for _, of in edges))


def _other_causes(graph: DiGraph, rank: str, cause: str) -> Iterator[WaitingLine]:
    """Yield what else made a rank late: the largest cause, and the rest in one line."""
    found = [edge for edge in _largest(graph.out_edges(rank, data=True), "blamed_us", end=1) if edge[0] != cause]
    number = graph.nodes[rank]["rank"]
    for node, edge in found[:MOST_OTHER_CAUSES]:
        of = graph.nodes[node]
        where = "" if of["rank"] == number else f" on rank {of['rank']}"
        text, often = f"also{where}: {of['label']}", times(edge["synchronisations"])
        yield WaitingLine("also", text, often, edge["blamed_us"], edge["share"], of["rank"])
    if rest := found[MOST_OTHER_CAUSES:]:
        text = f"also: {plural(len(rest), 'lesser cause')}"
        yield WaitingLine("also", text, "", _sum(rest, "blamed_us"), _sum(rest, "share"), number)


def times(synchronisations: int, beyond: str = "") -> str:
    """Return how often: `in 4 synchronisations`."""
    return f"in {beyond}{plural(synchronisations, 'synchronisation')}"


LEAST_LISTED: Final = 0.01
"""Share of all waiting: ranks that were waited for less are folded, and a rank's smaller edges are joined."""
FEWEST_ALONE: Final = 4
MOST_ALONE: Final = 24
"""Ranks that get their own line, however much they were waited for."""
MOST_CAUSES_OF_A_RANK: Final = 4


def rank_graph(graph: DiGraph) -> tuple[WaitingLine, ...]:
    """Return every rank that was waited for, the longest first. `graph` is that of `blame -o node-link`, with labels.

    Weak ranks are joined by the rank that made them late, if that is another one. The times of all add up to the
    attributed waiting, those of a rank's waiters to the rank's, and so do those of its causes (unless the answer was
    narrowed to a rank or an operator).
    """
    ranks = [node for node, of in graph.nodes(data=True) if of["kind"] == "rank"]
    awaited = [one for one in (_awaited(graph, node) for node in ranks) if one.time_us > 0]
    awaited.sort(key=_longest_first)
    alone = max(sum(one.share >= LEAST_LISTED for one in awaited[:MOST_ALONE]), min(len(awaited), FEWEST_ALONE))
    # A line that stands for one rank saves none.
    alone += len(awaited) == alone + 1
    return tuple(sorted(awaited[:alone] + list(_lesser_together(graph, awaited[alone:])), key=_longest_first))


def _longest_first(one: WaitingLine) -> tuple[bool, float, int]:
    """Return a sort key by length; the remainder is last."""
    return one.rank is None, -one.time_us, -1 if one.role == "several" else one.ranks[0]


def _awaited(graph: DiGraph, node: str) -> WaitingLine:
    waited = _largest(graph.in_edges(node, data=True), "waited_us", end=0)
    waiters = graph.in_degree(node) - graph.has_edge(OTHERS, node)
    others = " and others" if graph.has_edge(OTHERS, node) else ""
    by = f"by {plural(waiters, 'rank')}{others}" if waiters else "by ranks together"
    rank, time = graph.nodes[node]["rank"], _sum(waited, "waited_us")
    edges = [*_waiters(graph, node, LEAST_LISTED * time), *_causes(graph, node, LEAST_LISTED * time)]
    return WaitingLine(
        "awaited",
        f"rank {rank} was waited for {by}",
        _itself(graph, node),
        time,
        _sum(waited, "share"),
        rank,
        (rank,),
        below=tuple(replace(edge, is_last=(edge is edges[-1],)) for edge in edges),
    )


def _itself(graph: DiGraph, node: str) -> str:
    """Return what the rank waited for others: the way on through the graph."""
    own = _largest(graph.out_edges(node, data=True), "waited_us", end=1)
    if not own:
        return "waited for no other rank itself"
    most, of = own[0]
    whole = duration(_sum(own, "waited_us"))
    return f"itself waited {whole}, most for rank {graph.nodes[most]['rank']} ({duration(of['waited_us'])})"


def _waiters(graph: DiGraph, node: str, least_us: float) -> Iterator[WaitingLine]:
    groups = sorted(_waiting(graph, node, _ranks), key=lambda group: -group.time_us)
    shown = [group for group in groups if group.time_us >= least_us]
    yield from shown
    if rest := groups[len(shown) :]:
        ranks = tuple(sorted(rank for group in rest for rank in group.ranks))
        detail = f"{_ranks(ranks)} waited for {duration(rest[0].time_us)} or less"
        time, share = sum(group.time_us for group in rest), sum(group.share for group in rest)
        yield WaitingLine("waited", f"{_ranks(ranks)}, less", detail, time, share, rest[0].rank, ranks)


def _ranks(ranks: Sequence[int]) -> str:
    if not ranks:
        return "other ranks"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"{count(len(ranks))} ranks ({spans(tuple(ranks), 4)})"


def _causes(graph: DiGraph, node: str, least_us: float) -> Iterator[WaitingLine]:
    number = graph.nodes[node]["rank"]
    found = _largest(graph.out_edges(node, data=True), "blamed_us", end=1)
    shown = [edge for edge in found[:MOST_CAUSES_OF_A_RANK] if edge[1]["blamed_us"] >= least_us]
    for other, of in shown:
        cause = graph.nodes[other]
        why = _why(cause, own=cause["rank"] == number)
        detail = f"rank {number}: {why} {times(of['synchronisations'])}"
        yield WaitingLine("because", why, detail, of["blamed_us"], of["share"], cause["rank"])
    if rest := found[len(shown) :]:
        text = f"late because of {plural(len(rest), 'lesser cause')}"
        detail = f"rank {number} was {text}"
        yield WaitingLine("because", text, detail, _sum(rest, "blamed_us"), _sum(rest, "share"), number)


def _why(cause: dict[str, Any], *, own: bool) -> str:
    """Return why; the owner comes first, because a long name is cut at its end."""
    if cause.get("operator") == STEP_BEGIN:
        return str(cause["label"]) if own else f"rank {cause['rank']} was {cause['label']}"
    whose = "its own" if own else f"rank {cause['rank']}'s"
    return f"late because of {whose} {cause['label']}"


def _lesser_together(graph: DiGraph, lesser: Sequence[WaitingLine]) -> Iterator[WaitingLine]:
    """Yield weak ranks, joined by the rank that made them late if another's fault is large among all waiting."""
    by: dict[int, list[WaitingLine]] = defaultdict(list)
    for one in lesser:
        late: dict[int, float] = defaultdict(float)
        for cause, of in _largest(graph.out_edges(rank_id(one.ranks[0]), data=True), "blamed_us", end=1):
            late[graph.nodes[cause]["rank"]] += of["blamed_us"]
        most = max(late, key=lambda rank: late[rank], default=one.rank)
        if most is not None and most != one.rank:
            by[most].append(one)
    joined = {rank: members for rank, members in by.items() if sum(one.share for one in members) >= LEAST_LISTED}
    for rank, members in joined.items():
        yield _as_one(members, f"{plural(len(members), 'rank')}, late mostly because of rank {rank}", rank)
    named = {one.rank for members in joined.values() for one in members}
    if rest := [one for one in lesser if one.rank not in named]:
        largest = max(one.share for one in rest)
        under = largest < LEAST_LISTED
        each = f"under {whole_percent(LEAST_LISTED)}" if under else f"{duration(rest[0].time_us)} or less"
        yield _as_one(rest, f"{plural(len(rest), 'other rank')}, each {each}", None)


def _as_one(members: Sequence[WaitingLine], text: str, by_rank: int | None) -> WaitingLine:
    ranks = tuple(sorted(rank for one in members for rank in one.ranks))
    time, share = sum(one.time_us for one in members), sum(one.share for one in members)
    detail = f"{'rank' if len(ranks) == 1 else 'ranks'} {spans(ranks, 8)}"
    return WaitingLine("several", text, detail, time, share, by_rank, ranks, below=tuple(members))
