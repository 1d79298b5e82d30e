"""Finds why a rank began a step late: what its host did at the end of the step before.

Between a step's last operation and the next step's first one a rank runs no operation in which peers could be compared.
Loops log, save and evaluate there. If the rank took longer for it than its peers, by most of what it is late, that is
its host's time.
"""

from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints
from kair_engine.blame.walk import Contribution, Walk, cause_of
from kair_engine.causes import Cause
from kair_engine.frozen import dataclass
from kair_engine.results.blame import STEP_END
from kair_engine.timeline.roles import main_lane_rows
from kair_engine.trace.operations import SCOPE, STEP_SCOPE, SYNC, Operations

FIRST_BEGIN: Final = "begin of the first step"
"""Stands for the operator where a rank was late already when the first of some steps began, until somebody who knows
the step before says why."""
MOST: Final = 0.5
"""More than this part of a lateness has to be there for it to be the reason, and of an idle time in an operation for it
to be that one's."""


class Reason(NamedTuple):
    """What a rank did before a step that it began late."""

    operator: str
    """The operation or scope that it spent the time in, or STEP_END."""
    cause: Cause
    is_edge: bool


@dataclass(frozen=True)
class StepBegins:
    """When each rank began a step, on its own clock."""

    step: int
    ranks: Ints
    begin_ns: Ints
    """Absolute."""
    role: Ints

    @classmethod
    def of(cls, ops: Operations, role: Ints) -> "StepBegins":
        """`role` has a code per rank of the step."""
        return cls(ops.step, ops.ranks, ops.begin_ns + ops.origin_ns, role)


@dataclass(frozen=True)
class StepEnds:
    """When each rank had run the last operation of a step, on its own clock, and in what it spent the time since."""

    step: int
    ranks: Ints
    since_ns: Ints
    """Absolute."""
    reasons: tuple[Reason, ...]

    @classmethod
    def of(cls, ops: Operations) -> "StepEnds":
        """Those of a step with all of its operations."""
        main = main_lane_rows(ops) & ~ops.on_stream & ~ops.communication
        ran = (ops.on_stream & ~ops.of_side_streams) if ops.has_device else main
        last = ops.begin_ns.copy()
        rows = np.flatnonzero((ran & (ops.kind != SCOPE)) | ops.communication)
        np.maximum.at(last, ops.rank[rows], ops.end_ns[rows])
        named = _longest_since(ops, np.flatnonzero(main & (ops.kind != SYNC)), last)
        return cls(ops.step, ops.ranks, last + ops.origin_ns, tuple(_reason(ops, row) for row in named.tolist()))


def _longest_since(ops: Operations, rows: Ints, since_ns: Ints) -> Ints:
    """Per rank the innermost of `rows` that lies mostly in the time since then, and is most of it; else NONE."""
    over = ops.begin_ns + ops.length_ns
    steps = [code for code, name in ops.name_text.items() if name == STEP_SCOPE]
    rows = rows[(ops.end_ns[rows] > since_ns[ops.rank[rows]]) & ~np.isin(ops.name[rows], steps)]
    rank = ops.rank[rows]
    inside = np.minimum(ops.end_ns[rows], over[rank]) - np.maximum(ops.start_ns[rows], since_ns[rank])
    mostly = (inside > MOST * ops.duration_ns[rows]) & (inside > MOST * (over - since_ns)[rank])
    rows = rows[mostly]
    rows = rows[np.argsort(-ops.duration_ns[rows], kind="stable")]
    found = np.full(len(ops.ranks), NONE)
    found[ops.rank[rows]] = rows  # the shortest comes last
    return found


def _reason(ops: Operations, row: int) -> Reason:
    if row == NONE:
        return Reason(STEP_END, "host", is_edge=True)
    return Reason(ops.operator(row), "host" if ops.kind[row] == SCOPE else cause_of(ops, row), is_edge=False)


def why_late(ends: StepEnds | None, begins: StepBegins, rank: int, late_ns: float) -> Reason | None:
    """Return why a rank began a step so late; None where the step before does not explain it."""
    if ends is None or ends.step != begins.step - 1:
        return None
    place = np.minimum(np.searchsorted(ends.ranks, begins.ranks), len(ends.ranks) - 1)
    idle: Floats = np.where(ends.ranks[place] == begins.ranks, begins.begin_ns - ends.since_ns[place], 0).clip(0.0)
    at = int(np.searchsorted(begins.ranks, rank))
    peers = begins.role == begins.role[at]
    peers[at] = False
    usual = float(np.median(idle[peers])) if peers.any() else 0.0
    return ends.reasons[int(place[at])] if idle[at] - usual > MOST * late_ns else None


def with_reasons(walk: Walk, ops: Operations, ends: StepEnds | None, begins: StepBegins, *, is_first: bool) -> Walk:
    """Return the walk with the reasons of lateness that was there when the step began, as far as `ends` has them.

    `is_first`: the step before is not among those that are looked at together; FIRST_BEGIN stands for its reason.
    """

    def told(one: Contribution) -> Contribution:
        if one.named is None:
            return one
        if is_first:
            return one._replace(named=FIRST_BEGIN)
        reason = why_late(ends, begins, int(ops.ranks[ops.rank[one.row]]), one.late_ns)
        if reason is None:
            return one
        return one._replace(named=reason.operator, cause=reason.cause, is_edge=reason.is_edge)

    return replace(walk, contributions=tuple(map(told, walk.contributions)))
