"""Blame in words: its headline and sums, and the names of root causes.

Blame shows where waiting came from and accuses nobody: only a test of triage does. Also merges similar blame paths,
folds the middle stops of long ones, sorts them by root cause, and names their stops.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from kair_engine.causes import Cause
from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank
from kair_engine.results.blame import (
    STEP_BEGIN,
    STEP_END,
    BlamePath,
    BlameResult,
    GroupBlame,
    GroupKind,
    HostBlame,
    PathNode,
    PathPart,
    RankBlame,
    RootCause,
)
from kair_tui.render.text import short_name, spaced
from kair_tui.render.units import duration, percent, plural, ranks_in_words, spans, waited_of

WORTH_NAMING = 0.1
"""Share of all waiting: ranks below are not in the headline."""
_INSTEAD = 1.05
"""An operation with this ratio to its peers' time is said to take longer."""


def blame_headline(result: BlameResult) -> str:
    """Return the ranks that most of the waiting came from; for an answer about one rank or operator, its share."""
    where = f"step {result.step}" if result.step is not None else f"steps {spans(result.steps)}"
    if result.method == "paper":
        return _deviations(result, where)
    only = _only(result)
    if only:
        came = sum(cause.blamed_us for cause in result.root_causes)
        share = percent(came / result.waiting_us if result.waiting_us else 0.0)
        return f"{share} of the waiting came from {only}: {duration(came)} of {_waited(result)} in {where}"
    waited = duration(result.waiting_us)
    if not result.by_rank:
        collectives = plural(result.collectives, "collective")
        return f"waiting came from no rank: ranks waited {waited} in total in {where} ({collectives})"
    culprits = together(result)
    named = [row for row in culprits if row.share >= WORTH_NAMING] or [result.by_rank[0]]
    *before, last = [_named(row) for row in named[:3]]
    shares = f"{', '.join(before)} and {last}" if before else last
    if result.bubble_us > 0 and result.by_rank[0].share < WORTH_NAMING:
        bubble = percent(result.bubble_us / result.waiting_us)
        return (
            f"no rank is waited for much: of {_waited(result)} in {where}{_of_time(result)}, {bubble} is the "
            "pipeline's bubble, uneven stages included"
        )
    return f"waiting came from {shares}: ranks waited {waited} in total in {where}{_of_time(result)}"


Culprit = RankBlame | HostBlame | GroupBlame
"""Who waiting is blamed on: a rank, or ranks that stand in one line."""
_MOST_OF_HOST: Final = 0.9
"""Of a host's blame: a group that explains so much of it is named in the host's place."""


def together(result: BlameResult) -> list[Culprit]:
    """Return who waiting is blamed on, the most first: a host in place of its ranks where none of them explains most,
    and a group of the layout in place of ranks that are late as one.

    Of all waiting a host or a group has to explain as much as is worth naming.
    """
    of_rank = {row.rank: row for row in result.by_rank}
    hosts = [
        host
        for host in result.by_host
        if host.share >= WORTH_NAMING and 2 * max(of_rank[rank].blamed_us for rank in host.ranks) < host.blamed_us
    ]
    several: list[HostBlame | GroupBlame] = [*hosts]
    for group in result.by_group:
        if group.share >= WORTH_NAMING:
            over = [one for one in several if {*one.ranks} & {*group.ranks}]
            if all(_stands_for(group, one, of_rank) for one in over):
                several = [*(one for one in several if one not in over), group]
    named = {rank for one in several for rank in one.ranks}
    alone = [row for row in result.by_rank if row.rank not in named]
    return sorted([*several, *alone], key=lambda row: -row.blamed_us)


def _stands_for(group: GroupBlame, host: HostBlame | GroupBlame, of_rank: Mapping[Rank, RankBlame]) -> bool:
    """Return whether a group says more than a host: the same blame on fewer ranks, or that of several hosts."""
    shared = {*group.ranks} & {*host.ranks}
    return {*group.ranks} != {*host.ranks} and (
        sum(of_rank[rank].blamed_us for rank in shared) >= _MOST_OF_HOST * host.blamed_us
    )


@dataclass(frozen=True)
class SharedCause(RootCause):
    """A root cause of several ranks in one line, summed over them; `rank` is the one that explains most."""

    whose: str = ""
    """The host, or the place in the layout, that the ranks share."""
    ranks: tuple[Rank, ...] = ()


def causes_together(result: BlameResult) -> list[RootCause]:
    """Return the root causes, the largest first; of a host or group in place of its ranks what they share as one."""
    whose = {
        rank: culprit_name(one) for one in together(result) if not isinstance(one, RankBlame) for rank in one.ranks
    }
    shared: dict[tuple[object, ...], list[RootCause]] = defaultdict(list)
    for row in result.root_causes:
        shared[whose.get(row.rank, row.rank), row.operator, row.cause, row.is_edge].append(row)
    return sorted((_as_one_cause(rows, whose) for rows in shared.values()), key=lambda row: -row.blamed_us)


def _as_one_cause(rows: Sequence[RootCause], whose: Mapping[Rank, str]) -> RootCause:
    first = rows[0]
    if len(rows) == 1:
        return first
    return SharedCause(
        first.rank,
        first.operator,
        first.cause,
        first.is_edge,
        sum(row.blamed_us for row in rows),
        sum(row.share for row in rows),
        tuple(sorted({step for row in rows for step in row.steps})),
        sum(row.synchronisations for row in rows),
        whose[first.rank],
        tuple(sorted(row.rank for row in rows)),
    )


_GROUPS: Final[Mapping[GroupKind, str]] = {
    "data_parallel_rank": "data-parallel rank",
    "pipeline_stage": "pipeline stage",
    "tensor_parallel_group": "tensor-parallel group",
}


def _named(row: Culprit) -> str:
    if isinstance(row, RankBlame):
        return f"rank {row.rank} ({percent(row.share)})"
    who = row.host if isinstance(row, HostBlame) else f"{_GROUPS[row.kind]} {_place(row)}"
    return f"{who} ({ranks_in_words(row.ranks)}, {percent(row.share)})"


def _place(group: GroupBlame) -> str:
    """Return its number; of a tensor-parallel group, which has none, its place: `pp 2 dp 1`."""
    return group.name if group.kind == "tensor_parallel_group" else group.name.rpartition(" ")[2]


def culprit_name(row: Culprit) -> str:
    """Return how a rank, a host or a group is called where there is little room."""
    if isinstance(row, RankBlame):
        return str(row.rank)
    return row.host if isinstance(row, HostBlame) else row.name


def culprit_text(row: Culprit | RootCause) -> str:
    """Return how a line of a table calls a rank, or ranks that it stands for: `pp 2: 8-11`."""
    if isinstance(row, SharedCause):
        return f"{row.whose}: {spans(row.ranks, 3)}"
    if isinstance(row, RootCause):
        return str(row.rank)
    return culprit_name(row) if isinstance(row, RankBlame) else f"{culprit_name(row)}: {spans(row.ranks, 3)}"


def _deviations(result: BlameResult, where: str) -> str:
    if not result.by_rank:
        return f"no outlier to walk back from in {where} (the paper's method)"
    first = result.by_rank[0]
    causes = plural(len(result.root_causes), "root cause")
    return f"rank {first.rank}: {causes}, {duration(first.blamed_us)} from the mean over the ranks in {where}"


def blame_totals(result: BlameResult) -> str:
    """Return all waiting, and how much of it has a cause; the paper's method examines none."""
    if result.method == "paper":
        return "the paper's method ranks root causes by how far they deviate from the mean over the ranks: no waiting"
    bubble = ""
    if result.bubble_us > 0:
        bubble = f"pipeline bubble {duration(result.bubble_us)}, uneven stages included (no root cause); "
    return (
        f"waiting {duration(result.waiting_us)} in {plural(result.collectives, 'collective')}: {bubble}"
        f"{duration(result.attributed_us)} with a known cause, {duration(result.unattributed_us)} without"
    )


def _waited(result: BlameResult) -> str:
    return f"the {duration(result.waiting_us)} that ranks waited in total"


def _of_time(result: BlameResult) -> str:
    if not result.ranks_time_us:
        return ""
    share = result.waiting_us / result.ranks_time_us
    return f", {waited_of(share, 'their time')}" + (" (with waits behind computation)" if share <= 1 else "")


def _only(result: BlameResult) -> str:
    only = [] if result.only_operator is None else [f"operators with {result.only_operator!r}"]
    only += [] if result.only_rank is None else [f"rank {result.only_rank}"]
    return " on ".join(only)


def path_end(node: PathNode, path: BlamePath) -> str:
    """Return the loss at the end of a path, and its cause: `compute: 23.9 ms instead of 4.09 ms`."""
    cause = spaced(path.cause)
    if node.role_in_path == "edge":
        return f"{cause}: {duration(path.lost_us)} lost there" if path.lost_us else cause
    expected = node.expected_us
    if expected is not None and node.duration_us >= _INSTEAD * expected:
        return f"{cause}: {duration(node.duration_us)} instead of {duration(expected)}"
    return f"{cause}: {duration(path.lost_us)} lost in it" if path.lost_us else cause


def part_in_words(part: PathPart) -> tuple[str, str]:
    """Return a root cause that is not at a path's end: (rank and operator, its share of the lateness)."""
    what = f"rank {part.rank} {operator_name(part.operator, is_edge=part.is_edge)}"
    return what, f"{spaced(part.cause)}: {percent(part.share)} of how late that was"


def stop_in_words(before: PathNode, node: PathNode, *, is_first: bool, is_last: bool) -> str:
    """Return the text before a stop's operator: `rank 3 came last to `, and then what the stop `before` waited for."""
    rank = f"rank {node.rank}"
    if is_last and (node.role_in_path == "edge" or not is_first):
        return f"{rank} "
    if is_first and node.kind == "collective":
        return f"{rank} came last to "
    if node.rank != before.rank:
        return f"waited for {rank}{_WAITED_FOR.get(node.kind, ': ')}"
    return f"{rank} {'was held up by' if node.kind in _ON_HOST else 'came after'} "


_WAITED_FOR = {"send": "'s send, ", "recv": "'s receive, ", "collective": " in "}
_ON_HOST = frozenset({"host", "sync", "input", "gc"})


def hops_in_words(hops: Sequence[PathNode]) -> str:
    """Return the folded stops: `18 hops, ranks 44 → 237`."""
    first, last = hops[0].rank, hops[-1].rank
    which = f"rank {first}" if first == last else f"ranks {first} → {last}"
    return f"{plural(len(hops), 'hop')}, {which}"


def cause_operator(row: RootCause) -> str:
    """Return the operator of a root cause for people, or its substitute."""
    return operator_name(row.operator, is_edge=row.is_edge)


def operator_name(operator: str | None, *, is_edge: bool) -> str:
    """Return an operator's name for people; None stands for many that are too small to be named."""
    if operator is None:
        return "smaller idle times" if is_edge else "smaller delays"
    if operator == STEP_BEGIN:
        return "already late when the step began"
    if operator == STEP_END:
        return "idle at the end of the step before"
    return f"idle before {short_name(operator)}" if is_edge else short_name(operator)


MOST_STOPS = 5
"""Stops of a path that is shown whole; longer ones fold the stops in the middle."""
_BEFORE_FOLD, _AFTER_FOLD = 1, 2


@dataclass(frozen=True)
class MergedPath:
    """Paths from waits in the same operator to the same end."""

    path: BlamePath
    """The path with the longest wait."""
    waited_us: float
    """Waiting of all of them together; for a question about one root cause, its part."""
    ranks: tuple[int, ...]
    """The rank that waited longest in each path, sorted."""
    steps: tuple[int, ...]
    count: int
    part: PathPart | None = None
    """The queried root cause within `path`; None if it is at its end, or none was queried."""


def stops(path: BlamePath) -> tuple[PathNode, ...]:
    """Return the stops below the symptom, the origin last."""
    return tuple(node for node in path.chain if node != path.symptom)


def merged(paths: Sequence[BlamePath], cause: RootCause | None = None) -> tuple[MergedPath, ...]:
    """Return similar paths joined, the longest waiting first; with `cause` only its part of each path counts."""
    alike: dict[tuple[str, Key], list[BlamePath]] = defaultdict(list)
    for path in paths:
        alike[short_name(path.symptom.operator), end_of(path)].append(path)
    return _by_waiting([_merge(members, cause) for members in alike.values()])


def each(paths: Sequence[BlamePath], cause: RootCause | None = None) -> tuple[MergedPath, ...]:
    """Return every path by itself, in the same order."""
    return _by_waiting([_merge([path], cause) for path in paths])


def listed_stops(path: BlamePath, *, whole: bool) -> Iterator[tuple[int, int]]:
    """Yield (index in `stops(path)`, 0) for each stop; a long path has the first of its middle stops, and their number.

    A `whole` path has no folded stops.
    """
    length = len(stops(path))
    folds = length > MOST_STOPS and not whole
    away = range(_BEFORE_FOLD, length - _AFTER_FOLD) if folds else range(0)
    for at in range(length):
        if at not in away:
            yield at, 0
        elif at == away.start:
            yield at, len(away)


def _by_waiting(found: Sequence[MergedPath]) -> tuple[MergedPath, ...]:
    return tuple(sorted(found, key=lambda one: -one.waited_us))


def _merge(members: Sequence[BlamePath], cause: RootCause | None) -> MergedPath:
    waited = [_waited_on(path, cause) for path in members]
    path = members[waited.index(max(waited))]
    return MergedPath(
        path=path,
        waited_us=sum(waited),
        ranks=tuple(sorted({path.symptom.rank for path in members})),
        steps=tuple(sorted({path.step for path in members})),
        count=len(members),
        part=None if cause is None or key_of(cause) == end_of(path) else _part(path, cause),
    )


def _waited_on(path: BlamePath, cause: RootCause | None) -> float:
    if cause is None or not path.parts:
        return path.waited_us
    part = _part(path, cause)
    return path.waited_us * part.share if part is not None else 0.0


def _part(path: BlamePath, cause: RootCause) -> PathPart | None:
    """Return the joined shares of a root cause that occurs more than once."""
    found = [part for part in path.parts if key_of(part) == key_of(cause)]
    return replace(found[0], share=sum(part.share for part in found)) if found else None


_NCCL: Final = re.compile(r"^nccl(Dev)?Kernel_(?=\w)")

Key = tuple[int, str | None, Cause, bool]
"""Identifies a root cause: rank, operator, cause, whether it is an edge."""


def key_of(cause: RootCause | PathPart) -> Key:
    """Return the key of a root cause."""
    return cause.rank, cause.operator, cause.cause, cause.is_edge


def paths_by_cause(result: BlameResult) -> Mapping[Key, Sequence[BlamePath]]:
    """Return the paths that each root cause is part of.

    Paths without known parts belong to the root cause at their end.
    """
    known = {key_of(cause) for cause in result.root_causes}
    found: dict[Key, list[BlamePath]] = defaultdict(list)
    for path in result.paths:
        if path.parts:
            for key in dict.fromkeys(map(key_of, path.parts)):
                found[key].append(path)
        else:
            key = end_of(path)
            found[key if key in known else (key[0], None, path.cause, False)].append(path)
    return found


def end_of(path: BlamePath) -> Key:
    """Return the key of the root cause at a path's end."""
    return path.chain[-1].rank, _operator(path), path.cause, _is_edge(path)


def short_operator(name: str) -> str:
    """Return a name as short as a tree needs: kernels of NCCL without their common prefix."""
    return _NCCL.sub("", short_name(name))


def stop_name(node: PathNode, path: BlamePath) -> str:
    """Return the operator for people; for an edge, the idle time before it."""
    name = short_operator(node.operator)
    if node.role_in_path != "edge" or node.operator == STEP_END:
        return operator_name(STEP_END, is_edge=True) if node.operator == STEP_END else name
    return f"late when the step began, at {name}" if _operator(path) == STEP_BEGIN else f"idle before {name}"


def _is_edge(path: BlamePath) -> bool:
    return path.chain[-1].role_in_path == "edge"


def _operator(path: BlamePath) -> str:
    """Return the operator in the terms of root causes: lateness of unknown cause was there when the step began."""
    return STEP_BEGIN if _is_edge(path) and path.cause == "unknown" else path.chain[-1].operator
