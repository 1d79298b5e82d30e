"""Who waited for whom, rank by rank: the merged graph as lines, the strongest first and the lesser ones folded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from kair_engine.blame.waiting_graph import OTHERS
from kair_engine.results.blame import STEP_BEGIN
from kair_tui.render.units import count, duration, plural, spans, whole_percent
from kair_tui.render.views.blame.neighbours import WaitingLine, times, waiting_groups

if TYPE_CHECKING:
    from networkx import DiGraph

LEAST: Final = 0.01
"""Of all waiting: ranks that were waited for less are folded; of a rank's, edges that are less are put together."""
FEWEST_ALONE: Final = 4
MOST_ALONE: Final = 24
"""Ranks with a line of their own, however much they were waited for."""
MOST_CAUSES: Final = 4


@dataclass(frozen=True)
class Edge(WaitingLine):
    """What stands under a rank: ranks that waited for it, or what made it late.

    It leads to the rank at its other end; of several to the one that waited longest, to None where that is not known.
    """

    role: Literal["waited", "late"]


@dataclass(frozen=True)
class Awaited:
    """A rank that others waited for; with no rank several lesser ones together."""

    rank: int | None
    text: str
    detail: str
    time_us: float
    share: float
    edges: tuple[Edge, ...] = ()
    by_rank: int | None = None
    """The rank that made it late more than any other, or all of them did so."""
    members: tuple[Awaited, ...] = ()
    """Those that were put together."""


def rank_graph(graph: DiGraph) -> tuple[Awaited, ...]:
    """Every rank that was waited for, the longest first. `graph` is that of `blame -o node-link`, with its labels.

    Lesser ranks are put together by the rank that made them late, where that is another. The times of all add up to
    the waiting that is attributed, those of a rank's waiters to the rank's, and so do those of what made it late (not
    where the answer was narrowed to a rank or an operator).
    """
    ranks = [node for node, of in graph.nodes(data=True) if of["kind"] == "rank"]
    awaited = [one for one in (_awaited(graph, node) for node in ranks) if one.time_us > 0]
    awaited.sort(key=_longest_first)
    alone = max(sum(one.share >= LEAST for one in awaited[:MOST_ALONE]), min(len(awaited), FEWEST_ALONE))
    # A line that stands for one rank saves none.
    alone += len(awaited) == alone + 1
    return tuple(sorted(awaited[:alone] + list(_together(awaited[alone:])), key=_longest_first))


def _longest_first(one: Awaited) -> tuple[bool, float, int]:
    """What is left over stands last."""
    return one.rank is None and one.by_rank is None, -one.time_us, -1 if one.rank is None else one.rank


def _awaited(graph: DiGraph, node: str) -> Awaited:
    waited = [of for _, _, of in graph.in_edges(node, data=True) if of["kind"] == "waited"]
    waiters = graph.in_degree(node) - graph.has_edge(OTHERS, node)
    others = " and others" if graph.has_edge(OTHERS, node) else ""
    text = f"was waited for by {plural(waiters, 'rank')}{others}" if waiters else "was waited for by ranks together"
    time = sum(of["waited_us"] for of in waited)
    by: dict[int, float] = defaultdict(float)
    for _, cause, of in graph.out_edges(node, data=True):
        if of["kind"] == "made_late":
            by[graph.nodes[cause]["rank"]] += of["blamed_us"]
    return Awaited(
        rank=graph.nodes[node]["rank"],
        text=text,
        detail=_itself(graph, node),
        time_us=time,
        share=sum(of["share"] for of in waited),
        edges=(*_waiters(graph, node, LEAST * time), *_causes(graph, node, LEAST * time)),
        by_rank=max(by, key=lambda rank: by[rank], default=None),
    )


def _itself(graph: DiGraph, node: str) -> str:
    """What the rank waited for others: the way on through the graph."""
    own = [(other, of) for _, other, of in graph.out_edges(node, data=True) if of["kind"] == "waited"]
    if not own:
        return "waited for no other rank itself"
    most, of = max(own, key=lambda edge: edge[1]["waited_us"])
    whole = duration(sum(of["waited_us"] for _, of in own))
    return f"itself waited {whole}, most for rank {graph.nodes[most]['rank']} ({duration(of['waited_us'])})"


def _waiters(graph: DiGraph, node: str, least_us: float) -> Iterator[Edge]:
    groups = sorted(waiting_groups(graph, node), key=lambda group: -group.time_us)
    told = [group for group in groups if group.time_us >= least_us]
    for group in told:
        who = _ranks(group.ranks) if group.ranks else "other ranks"
        each = f", {group.each} each" if len(group.ranks) > 1 else ""
        yield Edge("waited", f"{who}{each}", group.detail, group.time_us, group.share, group.leads_to)
    if rest := groups[len(told) :]:
        ranks = tuple(sorted(rank for group in rest for rank in group.ranks))
        detail = f"{_ranks(ranks)} waited for {duration(max(group.time_us for group in rest))} or less"
        time, share = sum(group.time_us for group in rest), sum(group.share for group in rest)
        yield Edge("waited", f"{_ranks(ranks)}, less", detail, time, share, rest[0].leads_to)


def _ranks(ranks: Sequence[int]) -> str:
    if not ranks:
        return "other ranks"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"{count(len(ranks))} ranks ({spans(tuple(ranks), 4)})"


def _causes(graph: DiGraph, node: str, least_us: float) -> Iterator[Edge]:
    number = graph.nodes[node]["rank"]
    found = [(other, of) for _, other, of in graph.out_edges(node, data=True) if of["kind"] == "made_late"]
    found.sort(key=lambda edge: -edge[1]["blamed_us"])
    told = [edge for edge in found[:MOST_CAUSES] if edge[1]["blamed_us"] >= least_us]
    for other, of in told:
        cause = graph.nodes[other]
        why = _why(cause, own=cause["rank"] == number)
        detail = f"rank {number}: {why} {times(of['synchronisations'])}"
        yield Edge("late", why, detail, of["blamed_us"], of["share"], cause["rank"])
    if rest := [of for _, of in found[len(told) :]]:
        text = f"late because of {plural(len(rest), 'lesser cause')}"
        yield Edge("late", text, f"rank {number} was {text}", _sum(rest, "blamed_us"), _sum(rest, "share"), number)


def _why(cause: dict[str, Any], *, own: bool) -> str:
    """Whose it is comes first: where there is no room, the name's end goes."""
    if cause.get("operator") == STEP_BEGIN:
        return str(cause["label"]) if own else f"rank {cause['rank']} was {cause['label']}"
    whose = "its own" if own else f"rank {cause['rank']}'s"
    return f"late because of {whose} {cause['label']}"


def _sum(edges: Sequence[dict[str, Any]], figure: str) -> float:
    return float(sum(of[figure] for of in edges))


def _together(lesser: Sequence[Awaited]) -> Iterator[Awaited]:
    """Lesser ranks, by the rank that made them late where that is another's doing and much of all waiting."""
    by: dict[int, list[Awaited]] = defaultdict(list)
    for one in lesser:
        if one.by_rank is not None and one.by_rank != one.rank:
            by[one.by_rank].append(one)
    told = {rank: members for rank, members in by.items() if sum(one.share for one in members) >= LEAST}
    for rank, members in told.items():
        yield _as_one(members, f"{plural(len(members), 'rank')}, late mostly because of rank {rank}", rank)
    named = {one.rank for members in told.values() for one in members}
    if rest := [one for one in lesser if one.rank not in named]:
        most = max(one.share for one in rest)
        each = f"under {whole_percent(LEAST)}" if most < LEAST else f"{duration(rest[0].time_us)} or less"
        yield _as_one(rest, f"{plural(len(rest), 'other rank')}, each {each}", None)


def _as_one(members: Sequence[Awaited], text: str, by_rank: int | None) -> Awaited:
    ranks = tuple(sorted(one.rank for one in members if one.rank is not None))
    time, share = sum(one.time_us for one in members), sum(one.share for one in members)
    noun = "rank" if len(ranks) == 1 else "ranks"
    return Awaited(None, text, f"{noun} {spans(ranks, 8)}", time, share, (), by_rank, tuple(members))
