"""The history of a job's steps by its collectives: what every rank waited in each, and what it took by itself.

A step is the cycle of collectives that recurs. What a rank takes by itself is the step without its waits: the logs do
not show what it did.
"""

from collections import Counter
from typing import Final

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints, order_by
from kair_engine.frozen import dataclass
from kair_engine.stats import role_medians
from kair_engine.trace.inspector_calls import RECV, InspectorCalls
from kair_engine.trace.model import KairWarning, short_warning
from kair_engine.triage.history.rows import StepHistory, step_history
from kair_engine.triage.inspector.lateness import gained_us
from kair_engine.triage.inspector.meetings import Meetings, meetings_of, window_of, windows_of
from kair_engine.triage.inspector.who import Who, who_is_who

_LARGEST: Final = 20.0
"""Times what is spent in collectives: a step is taken to be as long where that is not known."""
_FEWEST_TOLD: Final = 0.5
"""Of a rank's collectives in a window: of fewer its waits are not added up."""
_SHORTEST: Final = 0.3
"""Of what the median rank spends in collectives: a step that seems shorter is one that was not measured."""
_DUMP: Final = 0.05
"""Of the time in which lines were written: what was written within as much was written at once."""
_OF_A_ROLE: Final = 0.25
"""Calls a step from which on a kind of them is what a role does."""


@dataclass(frozen=True)
class InspectorLog:
    """What the logs come to."""

    who: Who
    history: StepHistory
    meetings: Meetings
    window: Ints
    """Per collective the step that it is in."""
    windows: int
    """Steps that the logs hold."""
    is_measured: bool
    """Whether the logs say how long a step takes."""
    busy_us: float
    """What the median rank spends in the collectives of a step."""
    missing_us: float
    """Per step and rank, on average: what goes by in transfers with ranks whose logs are missing."""
    warnings: tuple[KairWarning, ...]


def log_of(calls: InspectorCalls) -> InspectorLog:
    """Return what the logs come to."""
    last = np.zeros(len(calls.members), np.int64)
    np.maximum.at(last, calls.member, calls.written_us)
    who = who_is_who(calls.members, last)
    found = meetings_of(calls, who)
    windows = windows_of(found, len(who.ranks))
    window = window_of(found, windows) if windows else np.zeros(len(found.of_collectives), np.int64)
    waited, transfer, told = _waited(calls, found, window, windows, len(who.ranks))
    step, measured = _steps(calls, found, window, waited + transfer)
    step = np.maximum(step, waited.max(axis=1, initial=0.0))
    role_of = _roles(calls, who, windows)
    codes = {name: code for code, name in enumerate(sorted(set(role_of)))}
    role = np.array([codes[name] for name in role_of], np.int64)
    # A communicator that is slow on all its members makes nobody late: only what is waited is not a rank's own.
    slower = transfer - role_medians(transfer, role) if len(transfer) else transfer
    own = np.maximum(step[:, None] - waited - slower, 0.0)
    at_step, at_rank = np.nonzero(told)
    numbers = np.array(who.ranks, np.int64)
    history = step_history(
        numbers[at_rank],
        at_step,
        {"step": np.repeat(step, told.sum(axis=1)), "self": own[told], "waited": waited[told]},
        role_of={int(rank): name for rank, name in zip(numbers, role_of, strict=True)},
        host_of=who.hosts,
    )
    missing = _missing_us(found, windows, len(who.ranks))
    busy = float(np.median(waited + transfer)) if windows else 0.0
    warnings = tuple(_warnings(who, found, windows, measured=measured))
    return InspectorLog(who, history, found, window, windows, measured, busy, missing, warnings)


def _waited(
    calls: InspectorCalls, found: Meetings, window: Ints, windows: int, ranks: int
) -> tuple[Floats, Floats, Bools]:
    """Return (windows × ranks) what was waited and transferred, µs, and whether enough of it is known."""
    shape = windows, ranks
    if not windows:
        return np.zeros(shape), np.zeros(shape), np.zeros(shape, np.bool_)
    cell = window[found.collective] * ranks + found.rank
    spent = gained_us(found, window)
    if calls.is_traced:
        spent = _alone(found.rank, calls.began_us[found.row] + found.waited_us - spent, spent)

    def added(weights: Floats | None) -> Floats:
        return np.bincount(cell, weights, windows * ranks).reshape(shape).astype(np.float64)

    waited, transfer, recorded = added(spent), added(found.of_collectives[found.collective]), added(None)
    should = np.zeros(shape)
    for one in found.streams:
        should[:, one.ranks] += np.bincount(window[one.begin : one.end], minlength=windows)[:, None]
    told = (recorded >= _FEWEST_TOLD * should) & (should > 0)
    more = should / np.maximum(recorded, 1)  # for those of a window that a rank's log lacks
    receiver, part, waited_for_sender = found.of_receives
    received = np.bincount((part * windows).astype(np.int64) * ranks + receiver, waited_for_sender, windows * ranks)
    return waited * more + received.reshape(shape), transfer * more, told


def _alone(rank: Ints, began_us: Floats, waited_us: Floats) -> Floats:
    """Return of each wait the part in which its rank was in no wait that began before: they may be at once."""
    order = order_by(rank, began_us.astype(np.int64))
    first, ends = began_us[order], began_us[order] + waited_us[order]
    bounds = np.flatnonzero(np.diff(rank[order], prepend=-1))
    before = np.empty(len(order))
    for begin, end in zip(bounds, [*bounds[1:], len(order)], strict=True):
        before[begin:end] = np.concatenate(([0.0], np.maximum.accumulate(ends[begin:end])[:-1]))
    alone = np.empty(len(order))
    alone[order] = np.maximum(ends - np.maximum(first, before), 0.0)
    return alone


def _steps(calls: InspectorCalls, found: Meetings, window: Ints, busy: Floats) -> tuple[Floats, bool]:
    """Return how long each window took, µs, and whether that was measured."""
    windows = len(busy)
    if windows < 2:
        return np.full(windows, _LARGEST * float(busy.max(initial=0.0))), False
    usual = float(np.median(busy))
    first = np.full((windows, busy.shape[1]), np.inf)
    time = calls.began_us if calls.is_traced else calls.written_us
    np.minimum.at(first, (window[found.collective], found.rank), time[found.row].astype(np.float64))
    if calls.is_traced:
        known = np.isfinite(first)
        took = np.diff(np.where(known, first, np.nan), axis=0)
        has = (~np.isnan(took)).any(axis=1)
        steps = np.full(windows, np.nan)
        steps[:-1][has] = np.nanmedian(took[has], axis=1)
        steps = np.where(steps > 0, steps, np.nan)
        if not np.isnan(steps).all() and np.nanmedian(steps) >= _SHORTEST * usual:
            return np.where(np.isnan(steps), np.nanmedian(steps), steps), True
    lengths = [length for at in range(first.shape[1]) if (length := _between_dumps(first[:, at])) is not None]
    length = float(np.median(lengths)) if lengths else 0.0
    if length >= _SHORTEST * usual > 0:
        return np.full(windows, length), True
    return np.full(windows, _LARGEST * usual), False


def _between_dumps(first_us: Floats) -> float | None:
    """Return how long a window takes by when the first lines of each were written; None of fewer than three dumps."""
    known = np.flatnonzero(np.isfinite(first_us))
    at = np.maximum.accumulate(first_us[known])
    if len(at) < 2 or not (apart := _DUMP * (at[-1] - at[0])):
        return None
    begin, end = int(np.argmax(at > at[0] + apart)), int(np.argmax(at > at[-1] - apart))
    if known[end] <= known[begin] or not begin:
        return None
    return float((at[end] - at[begin]) / (known[end] - known[begin]))


def _roles(calls: InspectorCalls, who: Who, windows: int) -> list[str]:
    """Return per rank the name of what it does: equal for ranks that make the same calls, step by step."""
    place, kinds = who.place[calls.member], len(calls.kinds)
    known = place >= 0
    pairs = Counter((calls.member[known] * np.int64(kinds) + calls.kind[known]).tolist())
    does: list[set[tuple[object, ...]]] = [set() for _ in who.ranks]
    for pair, times in pairs.items():
        member, kind = calls.members[int(pair) // kinds], calls.kinds[int(pair) % kinds]
        if times >= max(_OF_A_ROLE * windows, 1):
            way = (kind.peer > member.rank) if kind.name == RECV else None
            does[int(who.place[int(pair) // kinds])].add((kind.name, kind.size, member.size, way))
    names = {frozenset(one): "" for one in does}
    if len(names) < 2:
        return ["all"] * len(does)
    numbered = {one: f"program {number}" for number, one in enumerate(names)}
    return [numbered[frozenset(one)] for one in does]


def _missing_us(found: Meetings, windows: int, ranks: int) -> float:
    of = [one for one in found.streams if len(one.ranks) < one.size]
    total = sum(float(found.of_collectives[one.begin : one.end].sum()) * len(one.ranks) for one in of)
    return total / max(windows * ranks, 1)


def _warnings(who: Who, found: Meetings, windows: int, *, measured: bool) -> list[KairWarning]:
    told = []
    if who.is_numbered:
        text = "no communicator has all processes: ranks are numbered by host and process id, as launchers do"
        told.append(short_warning("rank_from_order", text))
    if who.left_out:
        text = f"{who.left_out} processes of other runs, or without a collective with others, are left out"
        told.append(short_warning("left_out", text))
    if windows:
        every = found.cycles // windows
        cycle = "one cycle" if every == 1 else f"{every} cycles"
        told.append(short_warning("steps_of_collectives", f"a step is {cycle} of the collectives that recur"))
    if windows and not measured:
        text = (
            "the logs do not say how long a step takes: findings take it as 20 times the time in collectives, open "
            "items as once that time; NCCL_INSPECTOR_DUMP_VERBOSE=1 records it"
        )
        told.append(short_warning("unknown_step_time", text))
    if found.is_partial:
        text = (
            "logs lack operations of some communicators, so waiting cannot be added up: set "
            "NCCL_INSPECTOR_DUMP_COLL_RING_SIZE higher, or dump more often"
        )
        told.append(short_warning("lost_operations", text))
    return told
