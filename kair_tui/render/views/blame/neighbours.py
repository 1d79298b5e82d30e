"""The neighbourhood of a root cause: the ranks it made late, who waited for those, what else made them late."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from kair_engine.blame.waiting_graph import OTHERS
from kair_tui.render.units import duration, plural, spans

if TYPE_CHECKING:
    from networkx import DiGraph

ALIKE: Final = 0.9
"""Ranks that waited at least this part of what the first of them waited are told together."""
MOST_GROUPS: Final = 6
MOST_OTHER_CAUSES: Final = 3

_Edge = tuple[str, dict[str, Any]]
"""The node at its other end, and its figures."""


@dataclass(frozen=True)
class WaitingLine:
    """A line about waiting: who waited, or what made ranks wait."""

    role: str
    text: str
    detail: str
    """What more there is to know."""
    time_us: float
    share: float
    """Of all waiting."""
    rank: int | None
    """Where it leads."""


@dataclass(frozen=True)
class Neighbour(WaitingLine):
    """A line of the tree."""

    role: Literal["cause", "late", "waited", "also"]
    is_last: tuple[bool, ...] = ()
    """On each level below the top down to its own: whether nothing follows there."""


def neighbourhood(graph: DiGraph, cause: str) -> tuple[Neighbour, ...]:
    """The lines around a root cause of the blame graph: itself on top, on every level the largest first."""
    of = graph.nodes[cause]
    lines = [Neighbour("cause", of["label"], times(of["synchronisations"]), of["blamed_us"], of["share"], of["rank"])]
    late = _largest(graph.in_edges(cause, data=True), "blamed_us", end=0)
    for rank, edge in late:
        is_last = rank == late[-1][0]
        lines.append(replace(_late(graph, rank, edge), is_last=(is_last,)))
        below = [*_waiters(graph, rank), *_other_causes(graph, rank, cause)]
        lines += [replace(line, is_last=(is_last, line is below[-1])) for line in below]
    return tuple(lines)


def _late(graph: DiGraph, rank: str, edge: dict[str, Any]) -> Neighbour:
    number, waited = graph.nodes[rank]["rank"], duration(graph.in_degree(rank, weight="waited_us"))
    detail = f"part of the {waited} that others waited for rank {number}"
    return Neighbour("late", f"made rank {number} late", detail, edge["blamed_us"], edge["share"], number)


def _largest(edges: Any, figure: str, *, end: int) -> list[_Edge]:  # noqa: ANN401
    """The edges that have the figure, as the node at the chosen end with the rest."""
    return sorted(((edge[end], edge[2]) for edge in edges if figure in edge[2]), key=lambda edge: -edge[1][figure])


@dataclass(frozen=True)
class WaitingGroup:
    """Ranks that waited for one rank nearly as long as each other."""

    ranks: tuple[int, ...]
    """None where they are not told one by one."""
    each: str
    """What each waited: `about 40 ms`, `up to 40 ms`."""
    detail: str
    time_us: float
    share: float
    leads_to: int | None
    """The one that waited longest."""


def waiting_groups(graph: DiGraph, rank: str) -> Iterator[WaitingGroup]:
    """Who waited for a rank; those that waited nearly as long together, and the rest in the last."""
    groups: list[list[_Edge]] = []
    edges = _largest(graph.in_edges(rank, data=True), "waited_us", end=0)
    for edge in (edge for edge in edges if edge[0] != OTHERS):
        is_alike = groups and edge[1]["waited_us"] >= ALIKE * groups[-1][0][1]["waited_us"]
        if is_alike or len(groups) == MOST_GROUPS:
            groups[-1].append(edge)
        else:
            groups.append([edge])
    for group in (*groups, *([edge] for edge in edges if edge[0] == OTHERS)):
        yield _group(graph, group, graph.nodes[rank]["rank"])


def _group(graph: DiGraph, group: Sequence[_Edge], awaited: int) -> WaitingGroup:
    ranks = tuple(sorted(graph.nodes[node]["rank"] for node, _ in group if "rank" in graph.nodes[node]))
    waited = [of["waited_us"] for _, of in group]
    alike = waited[-1] >= ALIKE * waited[0]
    each = f"about {duration(sum(waited) / len(waited))}" if alike else f"up to {duration(waited[0])}"
    often = sorted({of["collectives"] for _, of in group})
    how_often = times(often[-1], f"{often[0]} to " if len(often) > 1 else "")
    shortest, longest = duration(waited[-1]), duration(waited[0])
    how_long = shortest if shortest == longest else f"{shortest} to {longest}"
    detail = f"{_who(ranks)} waited {how_long}{' each' if len(ranks) > 1 else ''} for rank {awaited} {how_often}"
    leads_to = graph.nodes[group[0][0]].get("rank")
    return WaitingGroup(ranks, each, detail, sum(waited), sum(of["share"] for _, of in group), leads_to)


def _waiters(graph: DiGraph, rank: str) -> Iterator[Neighbour]:
    for group in waiting_groups(graph, rank):
        each = f", {group.each} each" if len(group.ranks) > 1 else ""
        text = f"{_who(group.ranks, 4)} waited for it{each}"
        yield Neighbour("waited", text, group.detail, group.time_us, group.share, group.leads_to)


def _who(ranks: tuple[int, ...], limit: int = 8) -> str:
    if not ranks:
        return "other ranks"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {spans(ranks, limit)}"


def _other_causes(graph: DiGraph, rank: str, cause: str) -> Iterator[Neighbour]:
    """What else made a rank late: the largest, and the rest of it in one line."""
    found = [edge for edge in _largest(graph.out_edges(rank, data=True), "blamed_us", end=1) if edge[0] != cause]
    number = graph.nodes[rank]["rank"]
    for node, edge in found[:MOST_OTHER_CAUSES]:
        of = graph.nodes[node]
        where = "" if of["rank"] == number else f" on rank {of['rank']}"
        text, often = f"also{where}: {of['label']}", times(edge["synchronisations"])
        yield Neighbour("also", text, often, edge["blamed_us"], edge["share"], of["rank"])
    if rest := [of for _, of in found[MOST_OTHER_CAUSES:]]:
        text, often = f"also: {plural(len(rest), 'lesser cause')}", ""
        time, share = (sum(of[figure] for of in rest) for figure in ("blamed_us", "share"))
        yield Neighbour("also", text, often, time, share, number)


def times(synchronisations: int, beyond: str = "") -> str:
    """How often: `in 4 synchronisations`."""
    return f"in {beyond}{plural(synchronisations, 'synchronisation')}"
