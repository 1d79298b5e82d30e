"""Stage 3 for people: the root causes of waiting, and the paths that lead to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kair_engine.results.blame import BlamePath, BlameResult, PathNode, RootCause
from kair_tui.render.answer import DIM, Cell, Column, Styled
from kair_tui.render.blame_paths import (
    Culprit,
    MergedPath,
    blame_headline,
    blame_totals,
    cause_operator,
    causes_together,
    culprit_text,
    each,
    hops_in_words,
    listed_stops,
    merged,
    path_end,
    stop_in_words,
    stops,
    together,
)
from kair_tui.render.text import short_name, spaced
from kair_tui.render.units import count, duration, percent, plural, ranks_in_words, spans
from kair_tui.render.view import View

if TYPE_CHECKING:
    from networkx import DiGraph

    from kair_tui.render.page import Branch, Page
    from kair_tui.render.view import GraphFormat

PATHS_SHOWN = 3
CAUSES_SHOWN = 20
NAME_IN_TREE = 48
RANKS_SHOWN = 10


COLUMNS = (
    Column[RootCause]("rank", "rank", culprit_text, weight=9),
    Column[RootCause](
        "operator",
        "operator",
        cause_operator,
        align="left",
        weight=9,
        full=lambda row: row.operator or cause_operator(row),
    ),
    Column[RootCause]("cause", "cause", lambda row: spaced(row.cause), align="left", weight=8),
    Column[RootCause]("is_edge", "edge", lambda row: "idle" if row.is_edge else "", align="left", detail=True),
    Column[RootCause]("blamed_us", "blamed", lambda row: duration(row.blamed_us), weight=8),
    Column[RootCause]("share", "share", lambda row: percent(row.share), weight=7),
    Column[RootCause]("synchronisations", "syncs", lambda row: count(row.synchronisations), weight=5),
    Column[RootCause]("steps", "steps", lambda row: spans(row.steps, 3), align="left", weight=3),
)

_CULPRITS = (
    Column[Culprit]("rank", "rank", culprit_text, weight=9),
    Column[Culprit]("blamed_us", "blamed", lambda row: duration(row.blamed_us), weight=8),
    Column[Culprit]("share", "share", lambda row: percent(row.share), weight=8),
    Column[Culprit]("arrived_last", "arrived last", lambda row: count(row.arrived_last), weight=8),
)


def _body(result: BlameResult, page: Page) -> None:
    if result.root_causes:
        page.table(COLUMNS, causes_together(result), limit=CAUSES_SHOWN)
        page.line()
    if result.by_rank:
        page.table(_CULPRITS, together(result), limit=RANKS_SHOWN)
        page.line()
    page.line(blame_totals(result))
    if result.paths:
        page.line()
        found = merged(result.paths)
        _paths(found if page.options.wide else found[:PATHS_SHOWN], page, whole=page.options.wide)
        if not page.options.wide and len(found) > PATHS_SHOWN:
            left = plural(len(found) - PATHS_SHOWN, "more sort of path", "more sorts of paths")
            page.line(f"… and {left} (-o tree shows every path)", DIM)


def _paths(found: Sequence[MergedPath], page: Page, *, whole: bool) -> None:
    for one in found:
        page.tree(symptom(one, wide=page.options.wide), partial(_grow, one.path, page, whole))


def _grow(path: BlamePath, page: Page, whole: bool, root: Branch, safe: Callable[[Cell], Any]) -> None:
    chain, branch = stops(path), root
    for at, hops in listed_stops(path, whole=whole):
        folded = Styled(f"⋮ {hops_in_words(chain[at : at + hops])}", DIM) if hops else None
        branch = branch.add(safe(folded or stop_text(path, at, wide=page.options.wide)))


def symptom(one: MergedPath, *, wide: bool = False) -> str:
    """Return who waited, in what, when and how long; or what stands out there."""
    node, path = one.path.symptom, one.path
    when = f"at {duration(node.start_us)} of step {path.step}"
    if one.count > 1:
        step = f"step {path.step}" if len(one.steps) == 1 else f"steps {spans(one.steps, 3)}"
        when = f"{count(one.count)} times in {step}"
    who = ranks_in_words(one.ranks, 3)
    if not path.waited_us:
        return f"{who}: {_name(node, wide=wide)} stands out {when}"
    return f"{who} waited in {_name(node, wide=wide)} {when} ({duration(one.waited_us)} of all ranks' waiting)"


def stop_text(path: BlamePath, at: int, *, wide: bool = False) -> str:
    """Return one stop under the symptom: how it delayed the one before, what ran there, and at the end why."""
    chain = stops(path)
    node, before = chain[at], chain[at - 1] if at else path.symptom
    is_last = node is path.chain[-1]
    lead = stop_in_words(before, node, is_first=at == 0, is_last=is_last)
    late = node.lateness_us
    begun = f"{duration(abs(late))} {'late' if late > 0 else 'early'}" if late else "on time"
    text = f"{lead}{_name(node, wide=wide)} ({node.kind}): {duration(node.duration_us)}, began {begun}"
    if wide:
        text += f" at {duration(node.start_us)}"
    return f"{text} ← {path_end(node, path)}" if is_last else text


def _name(node: PathNode, *, wide: bool) -> str:
    return node.operator if wide else short_name(node.operator, NAME_IN_TREE)


def _graph(result: BlameResult, form: GraphFormat) -> DiGraph:
    from kair_tui.render.blame_graph import graph  # networkx, which no other format needs

    return graph(result, form)


VIEW = View[BlameResult, RootCause](
    main="root_causes",
    columns=COLUMNS,
    headline=blame_headline,
    body=_body,
    records=(
        ("root_causes", "root_cause"),
        ("by_rank", "rank"),
        ("by_host", "host"),
        ("by_group", "group"),
        ("paths", "path"),
        ("waiting", "waiting"),
        ("made_late", "late"),
    ),
    tree=lambda result, page: _paths(each(result.paths), page, whole=True),
    graph=_graph,
)
