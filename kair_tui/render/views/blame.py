"""Stage 3 for people: the root causes of waiting, and the paths that lead to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kair_engine.results.blame import BlamePath, BlameResult, PathNode, RankBlame, RootCause
from kair_tui.render.column import ALARM, DIM, Cell, Column, Styled
from kair_tui.render.text import short_name, spaced
from kair_tui.render.units import count, duration, percent, plural, spans
from kair_tui.render.view import View
from kair_tui.render.words.blame import blame_headline, blame_totals, cause_operator

if TYPE_CHECKING:
    from networkx import DiGraph

    from kair_tui.render.graphs import GraphFormat
    from kair_tui.render.page import Branch, Page

PATHS_SHOWN = 3
CAUSES_SHOWN = 20
NAME_IN_TREE = 48
RANKS_SHOWN = 10


def _whole_operator(row: RootCause) -> str:
    return row.operator or cause_operator(row)


COLUMNS = (
    Column[RootCause]("rank", "rank", lambda row: str(row.rank), weight=9),
    Column[RootCause](
        "operator",
        "operator",
        cause_operator,
        align="left",
        weight=9,
        full=_whole_operator,
    ),
    Column[RootCause]("cause", "cause", lambda row: spaced(row.cause), align="left", weight=8),
    Column[RootCause]("is_edge", "edge", lambda row: "idle" if row.is_edge else "", align="left", detail=True),
    Column[RootCause]("blamed_us", "blamed", lambda row: duration(row.blamed_us), weight=8),
    Column[RootCause]("share", "share", lambda row: percent(row.share), weight=7),
    Column[RootCause]("synchronisations", "syncs", lambda row: count(row.synchronisations), weight=5),
    Column[RootCause]("steps", "steps", lambda row: spans(row.steps, 3), align="left", weight=3),
)

_BY_RANK = (
    Column[RankBlame]("rank", "rank", lambda row: str(row.rank), weight=9),
    Column[RankBlame]("blamed_us", "blamed", lambda row: duration(row.blamed_us), weight=8),
    Column[RankBlame]("share", "share", lambda row: percent(row.share), weight=8),
    Column[RankBlame]("arrived_last", "arrived last", lambda row: count(row.arrived_last), weight=8),
)


def _body(result: BlameResult, page: Page) -> None:
    if result.root_causes:
        page.table(COLUMNS, result.root_causes, limit=CAUSES_SHOWN)
        page.line()
    if result.by_rank:
        page.table(_BY_RANK, result.by_rank, limit=RANKS_SHOWN)
        page.line()
    page.line(blame_totals(result))
    if result.paths:
        page.line()
        _paths(result, page, None if page.options.wide else PATHS_SHOWN)


def _tree(result: BlameResult, page: Page) -> None:
    _paths(result, page, None)


def _paths(result: BlameResult, page: Page, limit: int | None) -> None:
    for path in result.paths[:limit]:
        page.tree(symptom(path, wide=page.options.wide), lambda root, safe, path=path: _grow(path, page, root, safe))  # type: ignore[misc]
    left = len(result.paths) - len(result.paths[:limit])
    if left:
        page.line(f"… and {plural(left, 'more path', 'more paths')} (-o tree shows all)", DIM)


def _grow(path: BlamePath, page: Page, root: Branch, safe: Callable[[Cell], Any]) -> None:
    branch = root
    for node in stops(path):
        branch = branch.add(safe(_node(node, path, page)))


def stops(path: BlamePath) -> tuple[PathNode, ...]:
    """What is under the symptom, the root cause last."""
    return tuple(node for node in path.chain if node != path.symptom)


def symptom(path: BlamePath, *, wide: bool = False) -> str:
    """Who waited, in what and when, or what stands out there."""
    node, name = path.symptom, _name(path.symptom, wide=wide)
    if not path.waited_us:
        return f"rank {node.rank}: {name} stands out at {duration(node.start_us)} of step {path.step}"
    return (
        f"rank {node.rank} waited in {name} at {duration(node.start_us)} of step {path.step} "
        f"({duration(path.waited_us)} of all ranks' waiting)"
    )


def _node(node: PathNode, path: BlamePath, page: Page) -> Cell:
    text = (
        f"rank {node.rank} {_name(node, wide=page.options.wide)} ({node.kind}): {duration(node.duration_us)}, "
        f"began {duration(node.lateness_us)} late"
    )
    if page.options.wide:
        text += f" at {duration(node.start_us)}"
    if node.role_in_path == "victim":
        return text
    return Styled(f"{text} ▲ {verdict(node, path)}", ALARM)


def verdict(node: PathNode, path: BlamePath) -> str:
    """`culprit: compute` or `edge: host`, of the stop at a path's end."""
    return f"{node.role_in_path}: {spaced(path.cause)}"


def _name(node: PathNode, *, wide: bool) -> str:
    return node.operator if wide else short_name(node.operator, NAME_IN_TREE)


def _graph(result: BlameResult, form: GraphFormat) -> DiGraph:
    from kair_tui.render.views import blame_graph  # networkx, which no other format needs

    return blame_graph.graph(result, form)


VIEW = View[BlameResult, RootCause](
    main="root_causes",
    columns=COLUMNS,
    headline=blame_headline,
    body=_body,
    records=(
        ("root_causes", "root_cause"),
        ("by_rank", "rank"),
        ("paths", "path"),
        ("waiting", "waiting"),
        ("made_late", "late"),
    ),
    tree=_tree,
    graph=_graph,
)
