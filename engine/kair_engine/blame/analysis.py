"""Stage 3: whose lateness the others waited for, and what made it late."""

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np

from kair_engine.arrays import Bools, Ints
from kair_engine.blame.step_begins import FIRST_BEGIN, Reason, StepBegins, StepEnds, why_late, with_reasons
from kair_engine.blame.together import Key, by_group, by_host
from kair_engine.blame.walk import Contribution, PairWaiting, Walk, path_node, walk_back
from kair_engine.cancelling import checkpoint
from kair_engine.causes import Cause
from kair_engine.localize.excess import JobRoles
from kair_engine.localize.large_step_detail import LargeStepDetail, excess_and_detail
from kair_engine.localize.rank_times import RankTimes, rank_times
from kair_engine.localize.unnamed_collectives import unnamed_collective_warnings, with_collectives_marked
from kair_engine.progress import counted
from kair_engine.ranks import Rank
from kair_engine.results import Method, StepClock
from kair_engine.results.blame import (
    STEP_BEGIN,
    BlamePath,
    BlameResult,
    MadeLate,
    PathNode,
    PathPart,
    RankBlame,
    RoleInPath,
    RootCause,
)
from kair_engine.stats import median
from kair_engine.timeline.clocks import Synchronisation, synchronise
from kair_engine.timeline.collectives import Collectives, match_warnings
from kair_engine.timeline.graph import ExecutionGraph, Lateness, build, lateness
from kair_engine.trace.batches import derived_once, over_parts
from kair_engine.trace.large_steps import LargeStep, of_steps
from kair_engine.trace.model import KairWarning, Trace, require_rank, require_steps
from kair_engine.trace.operations import Operations

NOISE_RESIDUALS = 3
"""Lateness within this many clock residuals is no lateness."""
NOISE_SHARE = 0.001
"""Lateness below this share of the step is ignored."""
MOST_WALKS, FEWEST_WALKS = 2000, 100
"""Collectives walked back from in all steps and in each, the longest waited for first; the rest count by rank only."""
NAMED_SHARE = 0.1
"""Contributions to a lateness that are smaller than this part of it are put together by cause, without an operator."""
_UNWAITED_NS = 1_000
"""A collective whose members waited less than this in all, each, made nobody wait."""

_UNKNOWN: Final[Cause] = "unknown"


@dataclass
class Tally:
    """What several steps' walks add up to; `walks` are made in each step at most.

    With `keep_paths` also the paths themselves, and who waited for whom.
    """

    walks: int
    keep_paths: bool
    blamed: dict[Key, float] = field(default_factory=lambda: defaultdict(float))
    steps: dict[Key, set[int]] = field(default_factory=lambda: defaultdict(set))
    syncs: dict[Key, int] = field(default_factory=lambda: defaultdict(int))
    by_rank: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    last: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    late: dict[tuple[int, Key], float] = field(default_factory=lambda: defaultdict(float))
    """The same waiting by the rank that was waited for and the root cause."""
    late_syncs: dict[tuple[int, Key], int] = field(default_factory=lambda: defaultdict(int))
    waits: PairWaiting = field(default_factory=PairWaiting)
    paths: list[BlamePath] = field(default_factory=list)
    ranks_time: float = 0.0
    waiting: float = 0.0
    unattributed: float = 0.0
    bubble: float = 0.0
    """Of the waiting, what nobody's lateness made."""
    collectives: int = 0
    rejected: int = 0
    steps_seen: int = 0
    begins: StepBegins | None = None
    """Of the first step. Why ranks began it late is shown by the step before, which is among the others' steps."""
    began_late_ns: dict[Rank, float] = field(default_factory=dict)
    """By how much they did, at most."""
    ends: StepEnds | None = None
    """Of the last step."""

    @classmethod
    def of(cls, trace: Trace, *, keep_paths: bool) -> "Tally":
        """Return an empty one for the chosen steps."""
        return cls(max(MOST_WALKS // max(len(trace.steps), 1), FEWEST_WALKS), keep_paths)

    def empty(self) -> "Tally":
        """Another one for some of the same steps."""
        return Tally(self.walks, self.keep_paths)

    def add(self, other: "Tally") -> None:
        """Add what other steps came to, those after these."""
        other.tell_first(self.ends)
        self.ends = other.ends
        sums = ("blamed", "syncs", "by_rank", "last", "late", "late_syncs")
        for mine, more in ((getattr(self, name), getattr(other, name)) for name in sums):
            for key, value in more.items():
                mine[key] += value
        for cause, steps in other.steps.items():
            self.steps[cause] |= steps
        self.waits.merge(other.waits)
        self.paths += other.paths
        for name in ("steps_seen", "ranks_time", "waiting", "unattributed", "bubble", "collectives", "rejected"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def tell_first(self, before: StepEnds | None) -> None:
        """Say why ranks began the first of these steps late, given what they did at the end of the step before."""
        for rank, late_ns in self.began_late_ns.items():
            assert self.begins is not None
            reason = why_late(before, self.begins, rank, late_ns) or Reason(STEP_BEGIN, "unknown", is_edge=True)
            old: Key = (rank, FIRST_BEGIN, _UNKNOWN, True)
            new: Key = (rank, *reason)
            self.blamed[new] += self.blamed.pop(old)
            self.syncs[new] += self.syncs.pop(old)
            for late in [late for late, key in self.late if key == old]:
                self.late[late, new] += self.late.pop((late, old))
                self.late_syncs[late, new] += self.late_syncs.pop((late, old))
            self.steps[new] |= self.steps.pop(old)
            self.paths = [_renamed(path, old, new) for path in self.paths]
        self.began_late_ns = {}


def _renamed(path: BlamePath, old: Key, new: Key) -> BlamePath:
    parts = tuple(
        PathPart(*new, part.share) if (part.rank, part.operator, part.cause, part.is_edge) == old else part
        for part in path.parts
    )
    end = path.chain[-1]
    if (
        parts == path.parts
        or new[1] == STEP_BEGIN
        or (end.rank, path.cause, end.role_in_path) != (new[0], _UNKNOWN, "edge")
    ):
        return replace(path, parts=parts)
    end = replace(end, operator=str(new[1]), role_in_path="edge" if new[3] else "culprit")
    return replace(path, parts=parts, chain=(*path.chain[:-1], end), cause=new[2])


def blame(
    trace: Trace,
    *,
    rank: int | None = None,
    operator: str | None = None,
    method: Method = "robust",
    limit: int = 20,
    clock: StepClock = "rank",
) -> BlameResult:
    """Explains the waiting in the chosen steps: blame paths, and root causes ranked by blamed time.

    Every collective's waiting is laid at the member that arrived last, and divided among what made that one
    late. `rank` narrows to that rank's root causes, `operator` to collectives or root causes whose name
    contains it. `paper` walks on one rank from stage 2's outliers, two-sided, as the text of [K] reads; its
    `clock` says when a step begins. Raises UsageError for a rank that left no trace.
    """
    require_steps(trace)
    if rank is not None:
        require_rank(trace, rank)
    if method == "paper":
        from kair_engine.blame.paper import blame_paper  # it imports this module

        return blame_paper(trace, rank=rank, operator=operator, limit=limit, clock=clock)
    trace = with_collectives_marked(trace)
    return blame_of(trace, derived_once(trace, "blame", lambda: _tallied(trace)), rank, operator, limit)


def _tallied(trace: Trace) -> Tally:
    tally = Tally.of(trace, keep_paths=True)
    for part in over_parts(trace, partial(_tally_part, empty=tally.empty(), of=JobRoles.of(trace))):
        tally.add(part)
    return tally


def _tally_part(part: Trace, *, empty: Tally, of: JobRoles) -> Tally:
    tally = empty.empty()

    def add(ops: Operations) -> None:
        tally_step(tally, synchronise(ops), of.role_in(ops))

    def add_large(step: LargeStep, times: list[RankTimes]) -> None:
        tally_detail(tally, excess_and_detail(step, times, of)[1], of)

    deque(of_steps(part, add, rank_times, add_large), maxlen=0)
    return tally


def tally_detail(tally: Tally, seen: LargeStepDetail, of: JobRoles) -> None:
    """Add a large step's waiting; what made those ranks late that are not looked at closely stays unknown."""
    tally_step(tally, seen.sync, of.role_in(seen.sync.collectives.ops), seen.shown)


def tally_step(tally: Tally, sync: Synchronisation, role: Ints, shown: Bools | None = None) -> None:
    """Add one step's waiting and what explains it; `role` is a code per rank of the step.

    `shown` says of which ranks all operations are there; None: of all.
    """
    collectives, ops = sync.collectives, sync.collectives.ops
    graph = build(ops, sync)
    late = lateness(graph, role)
    noise = max(NOISE_RESIDUALS * (graph.sync.clocks.residual_ns or 0), NOISE_SHARE * ops.step_time_ns)
    tally.collectives += len(collectives)
    tally.rejected += collectives.rejected
    made = waits_made_late(collectives, role, late)
    of_instance = collectives.added_up(made)
    order = np.argsort(-of_instance, kind="stable")
    explained = order[of_instance[order] >= _UNWAITED_NS * collectives.sizes[order]]
    walks = _walks(ops, role)
    begins = StepBegins.of(ops, role)
    if is_first := shown is None and not tally.steps_seen:
        tally.begins = begins
    traced: list[int] = explained[: tally.walks].tolist()
    # The earliest first: later ones lead back to where those began.
    lasts = np.unique(collectives.row[collectives.last[traced]])
    lasts = lasts[np.argsort(ops.start_ns[lasts], kind="stable")]
    for last in counted(lasts.tolist(), f"tracing {len(traced):,} waits of step {ops.step} back"):
        checkpoint()
        if last not in walks:
            walks[last] = walk_back(graph, late, last, noise, walks)
    for instance in traced:
        last = int(collectives.row[collectives.last[instance]])
        walk = with_reasons(walks[last], ops, tally.ends, begins, is_first=is_first)
        culprit = int(ops.ranks[ops.rank[last]])
        parts = tuple(_divide(graph, culprit, walk, shown))
        for key, share in parts:
            if key[1] == FIRST_BEGIN:
                late_ns = next(c.late_ns for c in walk.contributions if c.named == FIRST_BEGIN)
                tally.began_late_ns[key[0]] = max(late_ns, tally.began_late_ns.get(key[0], 0.0))
            _lay(tally, culprit, key, float(share * of_instance[instance]), step=ops.step, collectives=1)
        if tally.keep_paths:
            waited_us = float(of_instance[instance]) / 1e3
            tally.paths.append(replace(_path(graph, late, int(instance), walk, parts), waited_us=waited_us))
    _count(tally, collectives, explained, of_instance)
    tally.steps_seen += 1
    tally.ends = StepEnds.of(ops) if shown is None else None
    if tally.keep_paths:
        tally.waits.add(collectives, explained, made)


def waits_made_late(collectives: Collectives, role: Ints, late: Lateness) -> Ints:
    """Return, per member, how long (ns) it waited because the last one was late.

    If all ranks run one program, that is the whole wait: the last one should have come with the others. If ranks with
    different programs meet, such as the stages of a pipeline, some wait though nobody is late: the bubble. There it is
    at most how much later than its peers the last one came; if that rank has no peers, it is the whole wait.
    """
    if not len(collectives):
        return collectives.wait_ns
    of_member = role[collectives.ops.rank[collectives.row]]
    first = collectives.starts
    several = np.minimum.reduceat(of_member, first) != np.maximum.reduceat(of_member, first)
    lateness = np.nan_to_num(late.begin[collectives.row[collectives.last]], nan=np.inf).clip(0)
    most = np.where(several, lateness, np.inf)[collectives.instance]
    return np.minimum(collectives.wait_ns, most).astype(np.int64)


def _walks(ops: Operations, role: Ints) -> dict[int, Walk]:
    """Walk of this step by their first row, where the step is kept: triage's are blame's, among the same roles."""
    if ops.remembered is None:
        return {}
    known: dict[int, Walk] = ops.remembered.setdefault(f"walks among {role.tobytes().hex()}", {})
    return known


def _lay(tally: Tally, late: int, key: Key, waited_ns: float, *, step: int, collectives: int) -> None:
    """Lays the waiting for the rank `late` at the door of what made it late."""
    tally.late[late, key] += waited_ns
    tally.late_syncs[late, key] += collectives
    tally.blamed[key] += waited_ns
    tally.by_rank[key[0]] += waited_ns
    tally.steps[key].add(step)
    tally.syncs[key] += collectives


def _count(tally: Tally, collectives: Collectives, explained: Ints, waits: Ints) -> None:
    """Add up a step's waiting; of the short waits that nobody walked back from, only whom they waited for.

    `waits` is per collective what somebody's lateness made; the rest is bubble.
    """
    ops = collectives.ops
    tally.ranks_time += ops.step_time_ns * len(ops.ranks)
    tally.waiting += float(collectives.total_wait_ns.sum())
    tally.bubble += float(collectives.total_wait_ns.sum() - waits.sum())
    tally.unattributed += float(waits.sum() - waits[explained].sum())
    culprit = ops.rank[collectives.row[collectives.last]]
    for rank, times in zip(*np.unique(culprit[explained], return_counts=True), strict=True):
        tally.last[int(ops.ranks[rank])] += int(times)
    rest = explained[tally.walks :]
    for rank in np.unique(culprit[rest]):
        of_rank = rest[culprit[rest] == rank]
        key: Key = (Rank(int(ops.ranks[rank])), None, "unknown", False)
        _lay(tally, key[0], key, float(waits[of_rank].sum()), step=ops.step, collectives=len(of_rank))


def _divide(graph: ExecutionGraph, culprit: int, walk: Walk, shown: Bools | None) -> Iterator[tuple[Key, float]]:
    """Root causes of one late arrival with their shares, which add up to 1."""
    ops = graph.ops
    total = sum(c.late_ns for c in walk.contributions)
    if total <= 0:
        yield (Rank(culprit), None, "unknown", False), 1.0
        return
    small: dict[tuple[Rank, Cause], float] = defaultdict(float)
    for c in walk.contributions:
        place = int(ops.rank[c.row])
        owner = Rank(int(ops.ranks[place]))
        if shown is not None and not shown[place]:
            small[owner, "unknown"] += c.late_ns / total
        elif c.late_ns >= NAMED_SHARE * total:
            operator = c.named or ops.operator(c.row)
            yield (owner, operator, c.cause, c.is_edge), c.late_ns / total
        else:
            small[owner, c.cause] += c.late_ns / total
    for (owner, cause), share in small.items():
        yield (owner, None, cause, False), share


def _path(
    graph: ExecutionGraph, late: Lateness, instance: int, walk: Walk, parts: tuple[tuple[Key, float], ...]
) -> BlamePath:
    collectives = graph.sync.collectives
    members: Ints = np.flatnonzero(collectives.instance == instance)
    victim = int(collectives.row[members[np.argmax(collectives.wait_ns[members])]])
    largest = walk.contributions[0] if walk.contributions else None
    rows = _stops(graph, walk, largest)
    chain = [_node(graph, late, row, "victim") for row in rows]
    if largest is not None:
        end = _end(graph, late, largest.row, "edge" if largest.is_edge else "culprit")
        # Of lateness that was there before, for no known reason, the path shows where in the step it was seen first.
        chain.append(
            end if largest.named is None or largest.cause == _UNKNOWN else replace(end, operator=largest.named)
        )
    else:
        chain[-1] = _end(graph, late, rows[-1], "culprit")
    return BlamePath(
        symptom=_node(graph, late, victim, "victim"),
        chain=tuple(chain),
        cause=largest.cause if largest is not None else "unknown",
        waited_us=float(collectives.total_wait_ns[instance]) / 1e3,
        step=graph.ops.step,
        lost_us=float(largest.late_ns) / 1e3 if largest is not None else 0.0,
        parts=tuple(PathPart(*key, float(share)) for key, share in sorted(parts, key=lambda part: -part[1])),
    )


def _stops(graph: ExecutionGraph, walk: Walk, largest: Contribution | None) -> list[int]:
    """Return the rows worth showing before the largest cause.

    These are each rank's first on the path, and the first of its host.
    """
    ops = graph.ops
    rows: list[int] = []
    shown: set[tuple[int, bool]] = set()
    for row in walk.path:
        if largest is not None and row == largest.row:
            break
        stop = int(ops.rank[row]), bool(ops.on_stream[row])
        if stop not in shown:
            shown.add(stop)
            rows.append(row)
    return rows or [walk.path[0]]


def _node(graph: ExecutionGraph, late: Lateness, row: int, role: RoleInPath) -> PathNode:
    begun = float(late.begin[row])
    return path_node(graph.ops, row, 0.0 if np.isnan(begun) else begun, role)


def _end(graph: ExecutionGraph, late: Lateness, row: int, role: RoleInPath) -> PathNode:
    peers = late.peers(row)
    expected_us = float(median(graph.ops.duration_ns[peers].astype(float))) / 1e3 if len(peers) > 1 else None
    return replace(_node(graph, late, row, role), expected_us=expected_us)


def blame_of(
    trace: Trace, tally: Tally, rank: int | None = None, operator: str | None = None, limit: int = 20
) -> BlameResult:
    """Return the answer from what all steps added up to."""
    causes = [
        RootCause(
            rank=key[0],
            operator=key[1],
            cause=key[2],
            is_edge=key[3],
            blamed_us=blamed / 1e3,
            share=blamed / tally.waiting if tally.waiting else 0.0,
            steps=tuple(sorted(tally.steps[key])),
            synchronisations=tally.syncs[key],
        )
        for key, blamed in tally.blamed.items()
        if (rank is None or key[0] == rank) and (operator is None or operator in (key[1] or ""))
    ]
    causes.sort(key=lambda cause: (-cause.blamed_us, cause.rank, cause.operator or ""))
    paths = [path for path in tally.paths if _concerns(path, rank, operator)]
    paths.sort(key=lambda path: -path.waited_us)
    # What was laid at a rank for no known reason is as unexplained as what nobody walked back from.
    unknown = tally.unattributed + sum(blamed for key, blamed in tally.blamed.items() if key[2] == "unknown")
    culprits = sorted(tally.by_rank.items(), key=lambda item: (-item[1], item[0]))
    by_rank = tuple(_rank_blame(tally, culprit) for culprit, _ in culprits)
    made_late = _made_late(tally, rank, operator)
    asked = None if rank is None and operator is None else {row.rank for row in made_late}
    return BlameResult(
        step=trace.steps[0] if len(trace.steps) == 1 else None,
        steps=trace.steps,
        method="robust",
        paths=tuple(paths[:limit]),
        root_causes=tuple(causes),
        by_rank=by_rank,
        by_host=by_host(by_rank, trace.job.hosts),
        by_group=by_group(by_rank, tally.blamed, trace.job.layout, trace.job.ranks),
        waiting=tally.waits.listed(asked, rank if operator is None else None),
        made_late=made_late,
        waiting_us=tally.waiting / 1e3,
        attributed_us=max(tally.waiting - tally.bubble - unknown, 0.0) / 1e3,
        bubble_us=tally.bubble / 1e3,
        unattributed_us=unknown / 1e3,
        collectives=tally.collectives,
        warnings=_warnings(trace, tally),
        ranks_time_us=tally.ranks_time / 1e3,
        only_rank=None if rank is None else Rank(rank),
        only_operator=operator,
    )


def _made_late(tally: Tally, rank: int | None, operator: str | None) -> tuple[MadeLate, ...]:
    """Return the largest first.

    Of a rank that is asked for, what made others late there, and what made it late itself.
    """
    rows = [
        MadeLate(Rank(late), *key, blamed_us=blamed / 1e3, synchronisations=tally.late_syncs[late, key])
        for (late, key), blamed in tally.late.items()
        if (rank is None or rank in (late, key[0])) and (operator is None or operator in (key[1] or ""))
    ]
    return tuple(sorted(rows, key=lambda row: (-row.blamed_us, row.rank, row.by_rank, row.operator or "", row.cause)))


def _rank_blame(tally: Tally, culprit: int) -> RankBlame:
    blamed = tally.by_rank[culprit]
    return RankBlame(
        rank=Rank(culprit),
        blamed_us=blamed / 1e3,
        share=blamed / tally.waiting if tally.waiting else 0.0,
        arrived_last=tally.last[culprit],
    )


def _concerns(path: BlamePath, rank: int | None, operator: str | None) -> bool:
    nodes = (path.symptom, *path.chain)
    return (rank is None or any(node.rank == rank for node in nodes)) and (
        operator is None or any(operator in node.operator for node in nodes)
    )


def _warnings(trace: Trace, tally: Tally) -> tuple[KairWarning, ...]:
    result = match_warnings(tally.collectives, tally.rejected) if len(trace.job.ranks) > 1 else ()
    return (*result, *unnamed_collective_warnings(trace))
