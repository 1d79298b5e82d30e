"""Who is slow by the history of steps, and since when.

Four tests. Stage 1's own (localize/detect.py) compare every rank with its peers over all steps. The test of `kair
steps --scopes` (views/scope_changes.py) finds the step from which on a rank, or a whole role, takes longer than the
others; the same test with two ends finds the steps in which it did, where that is over. What both find must also be
more than healthy ranks come to differ by. Rows have no links and no past of their own: changes get the links' share of
the rate of false alarms, what is over gets the past's. Long steps at equal distances are schedules.py's.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import FALSE_ALARM_RATE, LINK_SHARE, PAST_SHARE
from kair_engine.localize.detect import detect
from kair_engine.localize.peers import Means, above_others
from kair_engine.results import SMALLEST_SHARE
from kair_engine.stats import median, median_of_others
from kair_engine.timeline.batch_sizes import STEPS_OF_A_CHANGE
from kair_engine.triage.history.rows import StepHistory
from kair_engine.triage.history.schedules import schedules
from kair_engine.views.scope_changes import Passage, ScopeSeries, passage, scope_times

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
    until: int | None = None
    """The last step of those that are slow, where it was over before the last step of all."""
    is_intermittent: bool = False
    every: int | None = None
    """So many steps apart; None where that is not by a schedule."""

    @property
    def is_change(self) -> bool:
        """Whether they are as usual before a step, or after one."""
        return (self.since is not None or self.until is not None) and not self.later.all()

    @property
    def is_of_all_steps(self) -> bool:
        """Whether it is priced as a mean over all steps: what comes and goes, or is over."""
        return self.is_intermittent or self.until is not None


def slow_ranks(history: StepHistory, *, changes: bool = True) -> list[Slow]:
    """All slow ranks, each once; `changes=False` skips what began, is over or comes by a schedule.

    Of a rank that is late at times the schedule says in which steps; who is slow in all steps is so besides.
    """
    by_level = list(_by_level(history))
    if not changes:
        return by_level
    found = list(_since(history))
    found += _unnamed([one for one in by_level if not one.is_intermittent], found)
    found += _unnamed(list(_by_schedule(history, by_level)), found)
    return [*found, *_unnamed(by_level, found)]


def _unnamed(found: list[Slow], before: list[Slow]) -> list[Slow]:
    """Return those of which no rank was named before."""
    known = {place for one in before for place in one.positions}
    return [one for one in found if not known & set(one.positions)]


def _by_schedule(history: StepHistory, by_level: list[Slow]) -> Iterator[Slow]:
    at_times = {one.positions[0]: one.p_value for one in by_level if one.is_intermittent}
    found = list(schedules(history, at_times))
    accused = np.isin(np.arange(len(history.ranks)), [one.position for one in found])
    for one in found:
        positions = (one.position,)
        excess = _excess(beside(history, history.own, positions, accused), one.on, is_change=False)
        chance = at_times.get(one.position, one.p_value)
        yield Slow(positions, chance, None, one.on, excess, is_intermittent=True, every=one.every)


def beside(history: StepHistory, values: Floats, positions: tuple[int, ...], slow: Bools | None = None) -> Floats:
    """Return (steps): how far the mean of some ranks lies above the median of the others of their role.

    Where they are the role, or all but few of it, the median of the others of the job. `slow` ranks are nobody's peers.
    """
    left = np.ones(len(history.ranks), np.bool_) if slow is None else ~slow
    left[list(positions)] = False
    peers = left & (history.role == history.role[positions[0]])
    if not peers.any():
        peers = left if left.any() else ~np.isin(np.arange(len(left)), positions)
    return np.asarray(values[:, list(positions)].mean(axis=1) - median(values.compress(peers, axis=1), axis=1))


def _by_level(history: StepHistory) -> Iterator[Slow]:
    looks = history.by_parts()
    every = [(look.steps, one) for look in looks for one in detect(look.table(), look.measured()).anomalies]
    every = [(steps, one) for steps, one in every if one.p_value * len(looks) <= FALSE_ALARM_RATE]
    # Of several signals of the same ranks the last, the finest; but one that knows in which steps says more.
    found = {one.positions: (steps, one) for steps, one in sorted(every, key=lambda of: of[1].kind == "intermittent")}
    accused = np.isin(np.arange(len(history.ranks)), [place for positions in found for place in positions])
    for steps, one in found.values():
        since = None if one.since is None else int(steps[one.since])
        later, is_intermittent = np.ones(len(history.steps), np.bool_), False
        over = beside(history, history.own, one.positions, accused)
        if one.kind == "intermittent":
            hit = np.isin(history.steps, steps[list(one.hit)])
            # Who is as good as always late is late for good, however few of the steps stand out.
            is_intermittent = not hit.all() and bool(np.median(over[~hit]) < SMALLEST_SHARE * history.step_us)
            later = hit if is_intermittent else later
        elif since is not None:
            later = history.steps >= since
        yield Slow(
            tuple(map(int, one.positions)),
            one.p_value * len(looks),
            since,
            later,
            _excess(over, later, is_change=since is not None),
            is_intermittent=is_intermittent,
        )


def _since(history: StepHistory) -> Iterator[Slow]:
    """Ranks of a role that became longer than the others, for good or for a time; then roles."""
    groups = list(_groups(history))
    for members in groups:
        yield from _of_group(history, members, FALSE_ALARM_RATE / len(groups))


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


def _of_group(history: StepHistory, members: list[tuple[int, ...]], rate: float) -> Iterator[Slow]:
    own = _means(history.own, members)
    found = [*_changes(history, members, rate * LINK_SHARE), *_passages(history, own, members, rate * PAST_SHARE)]
    places = sorted({at for at, _, _ in found})
    slow = np.isin(np.arange(len(history.ranks)), [place for at in places for place in members[at]])
    if np.count_nonzero(slow) * 2 > len(slow):
        slow[:] = False  # of most nobody knows who is as usual
    for place in places:
        over = beside(history, history.own, members[place], slow)
        # Whether it is over is what the steps fit better.
        _, later, chance = min((one for one in found if one[0] == place), key=lambda one: _misfit(over, one[1]))
        excess = _excess(over, later, is_change=True)
        itself = _excess(own[:, place], later, is_change=True)
        if itself < _LONGER_BY_ITSELF * excess or not _is_unusual(history, own, later, place):
            continue
        since, until = (None if later[end] else int(history.steps[later][end]) for end in (0, -1))
        yield Slow(members[place], chance * FALSE_ALARM_RATE / rate, since, later, excess, until)


_Span = tuple[int, Bools, float]
"""(which of the members, the steps in which it takes longer, the p-value over the share of its test)."""


def _changes(history: StepHistory, members: list[tuple[int, ...]], most_p: float) -> Iterator[_Span]:
    """Yield what became longer and stays so; of several series of a member the clearest."""
    rows = [row for row in scope_times(_series(history, members), history.step_us) if row.rank is not None]
    rows = [row for row in rows if (row.change_us or 0) > 0 and row.p_value is not None and row.p_value <= most_p]
    first = {int(row.rank or 0): row for row in sorted(rows, key=lambda row: -(row.p_value or 0))}
    for at, row in first.items():
        yield at, history.steps >= (row.since_step or 0), (row.p_value or 0.0) / LINK_SHARE


def _passages(history: StepHistory, own: Floats, members: list[tuple[int, ...]], most_p: float) -> Iterator[_Span]:
    """Yield what was longer for a time, in its own time with or without waits for a core."""
    series = [(np.arange(len(history.steps)), own)]
    if history.tells_cpu:
        ready = (history.own - history.us["delay"])[history.has_parts]
        series.append((np.flatnonzero(history.has_parts), _means(ready, members)))
    beyond = [(at, values - median_of_others(values, axis=1)) for at, values in series]
    tests = len(series) * len(members)
    for at in range(len(members)):
        runs = [_placed(run, of) for of, values in beyond if (run := passage(values[:, at], tests)) is not None]
        run = min(runs, key=lambda one: one.p_value, default=None)
        if run is not None and run.p_value <= most_p and not _is_of_plan(history, run):
            numbers = np.arange(len(history.steps))
            yield at, (numbers >= run.begin) & (numbers < run.end), run.p_value / PAST_SHARE


def _placed(run: Passage, at: Ints) -> Passage:
    """Return a run found in the steps at these places as one of all steps."""
    return run._replace(begin=int(at[run.begin]), end=int(at[run.end - 1]) + 1)


def _is_of_plan(history: StepHistory, run: Passage) -> bool:
    """Whether it begins or ends where ranks were given other numbers of samples."""
    ends = history.steps[[run.begin, run.end]]
    return any(abs(int(end) - step) <= STEPS_OF_A_CHANGE for end in ends for step in history.resized)


def _misfit(values: Floats, within: Bools) -> float:
    """Return how far values lie off one level within some steps and another one outside of them."""
    levels = np.where(within, np.median(values[within]), np.median(values[~within]))
    return float(np.abs(values - levels).sum())


def _is_unusual(history: StepHistory, own: Floats, later: Bools, at: int) -> bool:
    """Return whether a change, also relative to the others', is more than healthy ranks come to differ by."""
    if min(np.count_nonzero(later), np.count_nonzero(~later)) < 2:
        return False
    own = own - median(own, axis=1)[:, None]  # what all do together is nobody's noise
    change = Means.of(own[later]).less(Means.of(own[~later]))
    return bool(above_others(change, history.spread())[1][at] < FALSE_ALARM_RATE)


def _series(history: StepHistory, members: list[tuple[int, ...]]) -> list[ScopeSeries]:
    """Return what is tested for changes: own time, without waits for a core too; what the kernel measured; single
    columns.
    """
    us, places = history.us, np.arange(len(members))
    every, recorded = np.ones(len(history.steps), np.bool_), history.has_parts
    known = {"self": (history.own, every), "garbage collection": (us["gc"], every), "input": (us["input"], recorded)}
    if history.tells_cpu:
        parts = {"ready": history.own - us["delay"], "computing": us["cpu"], "run queue": us["delay"]}
        known |= {name: (values, recorded) for name, values in parts.items()}
    found = []
    for name, (values, among) in known.items():
        of = _means(values[among], members).T
        if of.max(initial=0.0) > 0:
            found.append(ScopeSeries(name, places, history.steps[among], of, resized=history.resized))
    return found


def _means(values: Floats, members: Sequence[tuple[int, ...]]) -> Floats:
    """Return (steps × members): the means of (steps × ranks) over the ranks of each member."""
    sizes = [len(some) for some in members]
    together = values[:, [place for some in members for place in some]]
    return np.asarray(np.add.reduceat(together, np.cumsum([0, *sizes[:-1]]), axis=1) / sizes)


def _excess(over: Floats, later: Bools, *, is_change: bool) -> float:
    after = float(np.median(over[later])) if later.any() else 0.0
    return after - (float(np.median(over[~later])) if is_change and not later.all() else 0.0)
