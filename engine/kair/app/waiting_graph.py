"""The merged blame graph: ranks wait for ranks, and those were made late by root causes."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kair_engine.causes import Cause
from kair_engine.results.blame import BlameResult, MadeLate, RootCause

if TYPE_CHECKING:
    from networkx import DiGraph

OTHERS = "others"
"""The node for ranks whose short waits were put together."""

_Key = tuple[int, str | None, Cause, bool]


def waiting_graph(result: BlameResult) -> "DiGraph":
    """Return an answer's waiting as a `networkx.DiGraph`, small enough to look at: nodes are ranks and root causes.

    Nodes by their `kind`:
    `rank` (id `rank2`): rank; blamed_us, share, arrived_last as in `by_rank`;
    `cause` (id `rank2_cause1`, its rank's largest): rank, operator where one is named, cause, is_edge, and over its
    edges blamed_us, share, synchronisations;
    `others`: ranks put together.
    Edges by their `kind`:
    `waited` from a rank to the one that it waited for: waited_us, share, collectives;
    `made_late` from a rank that was waited for to what made it late, on whatever rank: blamed_us, share,
    synchronisations.
    Times are in µs, shares are of all waiting. Either kind of edge adds up to what is attributed, and at every rank to
    the same (not where the answer was narrowed to a rank or an operator). Values are plain and finite; ids and
    order are the same for the same answer.
    """
    import networkx as nx  # 0.1 s that other answers do without

    graph: DiGraph = nx.DiGraph(
        waiting_us=result.waiting_us, attributed_us=result.attributed_us, unattributed_us=result.unattributed_us
    )
    rows = _by_cause(result)
    ids = _ids(rows)
    graph.add_nodes_from(_ranks(result))
    graph.add_nodes_from((ids[key], _cause(key, rows[key], result)) for key in rows)
    if any(row.rank is None for row in result.waiting):
        graph.add_node(OTHERS, kind="others")
    for row in result.waiting:
        waited = {"waited_us": row.waited_us, "share": _share(row.waited_us, result), "collectives": row.collectives}
        graph.add_edge(_waiter(row.rank), rank_id(row.for_rank), kind="waited", **waited)
    for late in result.made_late:
        graph.add_edge(rank_id(late.rank), ids[_key(late)], kind="made_late", **_blamed([late], result))
    return graph


def rank_id(rank: int) -> str:
    """Return a rank's node."""
    return f"rank{rank}"


def cause_id(result: BlameResult, cause: RootCause) -> str | None:
    """Return a root cause's node; None if it made nobody late."""
    return _ids(_by_cause(result)).get(_key(cause))


def _key(row: MadeLate | RootCause) -> _Key:
    return row.by_rank if isinstance(row, MadeLate) else row.rank, row.operator, row.cause, row.is_edge


def _by_cause(result: BlameResult) -> Mapping[_Key, Sequence[MadeLate]]:
    """Whom each root cause made late, the one that explains the most first."""
    rows: dict[_Key, list[MadeLate]] = defaultdict(list)
    for row in result.made_late:
        rows[_key(row)].append(row)
    return dict(sorted(rows.items(), key=lambda item: -sum(row.blamed_us for row in item[1])))


def _ids(rows: Mapping[_Key, Sequence[MadeLate]]) -> dict[_Key, str]:
    counted: Counter[int] = Counter()
    ids = {}
    for key in rows:
        counted[key[0]] += 1
        ids[key] = f"{rank_id(key[0])}_cause{counted[key[0]]}"
    return ids


def _ranks(result: BlameResult) -> Iterator[tuple[str, dict[str, Any]]]:
    """Those that waited, were waited for, or own a root cause."""
    found = {rank for row in result.waiting for rank in (row.rank, row.for_rank) if rank is not None}
    found |= {rank for row in result.made_late for rank in (row.rank, row.by_rank)}
    known = {row.rank: row for row in result.by_rank}
    for rank in sorted(found):
        row = known.get(rank)
        figures = (row.blamed_us, row.share, row.arrived_last) if row else (0.0, 0.0, 0)
        blamed = dict(zip(("blamed_us", "share", "arrived_last"), figures, strict=True))
        yield rank_id(rank), {"kind": "rank", "rank": rank, **blamed}


def _cause(key: _Key, rows: Sequence[MadeLate], result: BlameResult) -> dict[str, Any]:
    rank, operator, cause, is_edge = key
    named = {} if operator is None else {"operator": operator}
    return {"kind": "cause", "rank": rank, **named, "cause": cause, "is_edge": is_edge, **_blamed(rows, result)}


def _blamed(rows: Sequence[MadeLate], result: BlameResult) -> dict[str, Any]:
    blamed = sum(row.blamed_us for row in rows)
    synchronisations = sum(row.synchronisations for row in rows)
    return {"blamed_us": blamed, "share": _share(blamed, result), "synchronisations": synchronisations}


def _waiter(rank: int | None) -> str:
    return OTHERS if rank is None else rank_id(rank)


def _share(us: float, result: BlameResult) -> float:
    return us / result.waiting_us if result.waiting_us else 0.0
