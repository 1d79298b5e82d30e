"""Who is slow by the history of steps, and since when.

Two tests. Stage 1's own (localize/detect.py) hold every rank against its peers over all steps. The test of `kair steps
--scopes` (views/scope_changes.py) tells the step from which on a rank, or a whole role, takes longer than the others;
what it finds must also be more than healthy ranks come to differ by. There are no links in rows: the rate of false
alarms that theirs would have is that of changes.
"""

from collections.abc import Iterator

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import FALSE_ALARM_RATE, LINK_SHARE
from kair_engine.localize.detect import detect
from kair_engine.localize.peers import Means, above_others
from kair_engine.results import SMALLEST_SHARE
from kair_engine.stats import median
from kair_engine.triage.history.rows import StepHistory
from kair_engine.views.scope_changes import ScopeSeries, scope_times

_LONGER_BY_ITSELF = 0.5
"""Of what a rank is said to be slower since a step: so much longer it must have become, and not its peers shorter."""


@dataclass(frozen=True)
class Slow:
    """Ranks that are slow together."""

    positions: tuple[int, ...]
    p_value: float
    since: int | None
    """The step in which it began; None where that was before the first, or there is no such step."""
    later: Bools
    """(steps): those that are slow."""
    excess_us: float
    """Per such step, beyond peers, and beyond what it was before."""
    is_intermittent: bool = False


def slow_ranks(history: StepHistory, *, changes: bool = True) -> list[Slow]:
    """Everybody that fails a test, once each; without `changes`, of those of who is slow in steps as they are."""
    begun = list(_since(history)) if changes else []
    found = _by_level(history)
    known = {place for one in begun for place in one.positions}
    return [*begun, *(one for one in found if not known & set(one.positions))]


def beside(history: StepHistory, values: Floats, positions: tuple[int, ...], slow: Bools | None = None) -> Floats:
    """(steps): how far the mean of some ranks lies above the median of the others of their role.

    Where they are the role, or all but few of it, the median of the others of the job. `slow` ranks are nobody's peers.
    """
    left = np.ones(len(history.ranks), np.bool_) if slow is None else ~slow
    left[list(positions)] = False
    peers = left & (history.role == history.role[positions[0]])
    if not peers.any():
        peers = left if left.any() else ~np.isin(np.arange(len(left)), positions)
    return np.asarray(values[:, list(positions)].mean(axis=1) - median(values.compress(peers, axis=1), axis=1))


def _by_level(history: StepHistory) -> Iterator[Slow]:
    anomalies = detect(history.table(), history.measured()).anomalies
    found = {one.positions: one for one in anomalies}  # of several signals of the same ranks the last, the finest
    accused = np.isin(np.arange(len(history.ranks)), [place for positions in found for place in positions])
    for one in found.values():
        later, is_intermittent = np.ones(len(history.steps), np.bool_), False
        over = beside(history, history.own, one.positions, accused)
        if one.kind == "intermittent":
            hit = np.isin(np.arange(len(later)), one.hit)
            # Who is as good as always late is late for good, however few of the steps stand out.
            is_intermittent = not hit.all() and bool(np.median(over[~hit]) < SMALLEST_SHARE * history.step_us)
            later = hit if is_intermittent else later
        elif one.since is not None:
            later = np.arange(len(later)) >= one.since
        since = int(history.steps[one.since]) if one.since is not None else None
        yield Slow(
            tuple(map(int, one.positions)),
            one.p_value,
            since,
            later,
            _excess(over, later, is_change=since is not None),
            is_intermittent=is_intermittent,
        )


def _since(history: StepHistory) -> Iterator[Slow]:
    """Ranks of a role that became longer than the others, then roles."""
    groups = list(_groups(history))
    for members in groups:
        yield from _of_group(history, members, FALSE_ALARM_RATE * LINK_SHARE / len(groups))


def _groups(history: StepHistory) -> Iterator[list[tuple[int, ...]]]:
    """Who is compared: the ranks of each role, and the roles."""
    roles: list[tuple[int, ...]] = [
        tuple(np.flatnonzero(history.role == code).tolist()) for code in np.unique(history.role)
    ]
    for role in roles:
        if len(role) > 1:
            yield [(place,) for place in role]
    if len(roles) > 1:
        yield roles


def _of_group(history: StepHistory, members: list[tuple[int, ...]], most_p: float) -> Iterator[Slow]:
    series = _series(history, members)
    rows = [row for row in scope_times(series, history.step_us) if row.rank is not None and (row.change_us or 0) > 0]
    rows = [row for row in rows if row.p_value is not None and row.p_value <= most_p]
    first = {int(row.rank or 0): row for row in sorted(rows, key=lambda row: -(row.p_value or 0))}
    slow = np.isin(np.arange(len(history.ranks)), [place for at in first for place in members[at]])
    if np.count_nonzero(slow) * 2 > len(slow):
        slow[:] = False  # of most nobody knows who is as usual
    own = np.stack([history.own[:, list(some)].mean(axis=1) for some in members], axis=1)
    for at, row in sorted(first.items()):
        later = history.steps >= (row.since_step or 0)
        over = beside(history, history.own, members[at], slow)
        excess = _excess(over, later, is_change=True)
        itself = _excess(own[:, at], later, is_change=True)
        if itself < _LONGER_BY_ITSELF * excess or not _is_unusual(history, own, later, at):
            continue
        p_value = float(row.p_value or 0.0) / most_p * FALSE_ALARM_RATE
        yield Slow(members[at], p_value, row.since_step, later, excess)


def _is_unusual(history: StepHistory, own: Floats, later: Bools, at: int) -> bool:
    """Whether a change, and what is left of it beside the others, is more than healthy ranks come to differ by."""
    if min(np.count_nonzero(later), np.count_nonzero(~later)) < 2:
        return False
    change = Means.of(own[later]).less(Means.of(own[~later]))
    return bool(above_others(change, history.spread())[1][at] < FALSE_ALARM_RATE)


def _series(history: StepHistory, members: list[tuple[int, ...]]) -> list[ScopeSeries]:
    """What is tested for changes: own time, without waits for a core too; what the kernel measured; single columns."""
    us, places = history.us, np.arange(len(members))
    told = {"self": history.own, "input": us["input"], "garbage collection": us["gc"]}
    if history.tells_cpu:
        told |= {"ready": history.own - us["delay"], "computing": us["cpu"], "run queue": us["delay"]}
    found = []
    for name, values in told.items():
        of = np.stack([values[:, list(some)].mean(axis=1) for some in members])
        if of.max(initial=0.0) > 0:
            numbers: tuple[Ints, Ints] = (places, history.steps)
            found.append(ScopeSeries(name, *numbers, of, resized=history.resized))
    return found


def _excess(over: Floats, later: Bools, *, is_change: bool) -> float:
    after = float(np.median(over[later])) if later.any() else 0.0
    return after - (float(np.median(over[~later])) if is_change and not later.all() else 0.0)
