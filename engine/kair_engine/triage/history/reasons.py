"""Why ranks are slow by the columns of the history: which of them makes up half of what they take longer."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.causes import Cause
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import FALSE_ALARM_RATE
from kair_engine.localize.peers import USUAL_OF_WORK, WIDE_OF_WORK, Means, Spread, above_others
from kair_engine.results.evidence_kinds import (
    Asleep,
    CollectsGarbage,
    Compiles,
    ComputesMore,
    Evidence,
    NoCore,
    SampleTime,
)
from kair_engine.stats import TRIM, trimmed_mean
from kair_engine.triage.history.rows import COMPILE, LOOP, StepHistory
from kair_engine.triage.history.slow import Slow, beside
from kair_engine.triage.job_wide import RUNQUEUE_WAIT_RATIO
from kair_engine.triage.ranks.diagnosis import MIN_EXPLAINED
from kair_engine.triage.ranks.kernel_times import BesidePeers

_COUNTED: Final = ("cpu", "delay", "asleep", "gc", COMPILE)
"""Columns that are evidence."""


@dataclass(frozen=True)
class Reason:
    """The cause, the part of the step that takes longer, and what speaks for the cause."""

    cause: Cause
    scope: str | None
    evidence: tuple[Evidence, ...]
    is_shared: bool = False
    """Whether it is a lack of cores that all ranks have: then these are not to blame."""


def reason(history: StepHistory, slow: Slow) -> Reason:
    """By what exceeds the peers' in the steps in which the ranks are slow, beyond what it did before."""
    us = history.us_and({"asleep": history.asleep})
    scope, least = _scope(history, slow), MIN_EXPLAINED * slow.excess_us
    more = {name: _more(history, us[name], slow) for name in (COMPILE, "gc", "input", "cpu", "delay", "asleep")}
    evidence = tuple(_evidence(history, us, slow, more, least))
    if (of_sample := _of_samples(history, slow)) is not None:
        evidence = (*evidence, of_sample)
    if more[COMPILE] >= least:
        return Reason("compilation", scope, evidence)
    if more["gc"] >= least:
        return Reason("garbage_collection", scope, evidence)
    if more["input"] >= least:
        return Reason("input", "input", evidence)
    if more["delay"] >= least:
        beside_peers = _without_core(history, slow)
        if beside_peers.lacks_cores:
            return Reason("contention", scope, evidence, is_shared=_all_lack_cores(history, slow))
        # Where cores are short, a little more computing waits for them a lot longer: it has to be more by itself.
        return Reason("compute", scope, evidence, is_shared=not _computes_unusually(history, slow))
    return Reason("host" if scope == LOOP else "input" if scope == "input" else "compute", scope, evidence)


def _without_core(history: StepHistory, slow: Slow) -> BesidePeers:
    ready, of_peers = _of_peers(history, history.us["delay"], slow)
    computed, theirs = _of_peers(history, history.us["cpu"], slow)
    ranks = history.numbers(slow.positions)
    return BesidePeers(ranks, ready * 1e3, computed * 1e3, of_peers * 1e3, theirs * 1e3, slow.excess_us * 1e3, 0)


def _all_lack_cores(history: StepHistory, slow: Slow) -> bool:
    """Whether peers lack cores for nearly as long, or came to since then."""
    delay = history.us["delay"]
    own, peers = _of_peers(history, delay, slow)
    if slow.is_change:
        own_before, peers_before = _of_peers(history, delay, replace(slow, later=~slow.later))
        own, peers = own - own_before, peers - peers_before
    return own < RUNQUEUE_WAIT_RATIO * max(float(peers.max()), 0.0)


def _computes_unusually(history: StepHistory, slow: Slow) -> bool:
    """Whether some of them compute for longer than healthy ranks differ by, whatever they lack."""
    mine = [*slow.positions]
    alike = history.role == history.role[mine[0]]
    computed = history.us["cpu"][slow.later][:, alike]
    usual = float(np.median(computed))
    _, chance = above_others(Means.of(computed), Spread(USUAL_OF_WORK * usual, WIDE_OF_WORK * usual))
    return bool(chance[np.isin(np.flatnonzero(alike), mine)].min() * int(alike.sum()) < FALSE_ALARM_RATE)


def _scope(history: StepHistory, slow: Slow) -> str | None:
    """Return the part that makes up half, the script's own scopes first; None if no part does."""
    of = {name: _more(history, values, slow) for name, values in history.parts.items()}
    for some in (history.scopes, history.parts):
        known = {name: of[name] for name in some}
        largest = max(known, key=lambda name: known[name], default=None)
        if largest is not None and known[largest] >= MIN_EXPLAINED * slow.excess_us:
            return largest
    return None


def _evidence(
    history: StepHistory, us: Mapping[str, Floats], slow: Slow, more: dict[str, float], least: float
) -> Iterator[Evidence]:
    ranks = history.numbers(slow.positions)
    for column in _COUNTED:
        if more[column] >= least:
            own, peers = _of_peers(history, us[column], slow)
            least_us, most_us = float(peers.min()), float(peers.max())
            if column == "delay":
                yield NoCore(own, peers_least_us=least_us, peers_most_us=most_us, ranks=ranks)
            else:
                kind = {"cpu": ComputesMore, "asleep": Asleep, "gc": CollectsGarbage, COMPILE: Compiles}[column]
                yield kind(own, least_us, most_us, ranks=ranks)


def _of_samples(history: StepHistory, slow: Slow) -> Evidence | None:
    """Return what they take for a sample, where they are given other numbers of them than their peers."""
    samples, usual = _of_peers(history, history.us["samples"], slow)
    time, of_peers = _of_peers(history, history.us["self"], slow)
    taken = float(np.median(usual))
    if samples == taken or min(samples, taken) <= 0:
        return None
    usual_us = float(np.median(of_peers)) / taken
    return SampleTime(samples, taken, time / samples, usual_us, ranks=history.numbers(slow.positions))


def _of_peers(history: StepHistory, values: Floats, slow: Slow) -> tuple[float, Floats]:
    """(their mean, each peer's) in the steps in which they are slow."""
    mean = _mean(values[slow.later], slow)
    mine = np.isin(np.arange(values.shape[1]), slow.positions)
    peers = ~mine & (history.role == history.role[slow.positions[0]])
    return float(mean[mine].mean()), mean[peers if peers.any() else ~mine]


def _more(history: StepHistory, values: Floats, slow: Slow) -> float:
    over = beside(history, values, slow.positions)
    after = float(_mean(over[slow.later, None], slow)[0])
    is_change = slow.is_change or (slow.is_intermittent and not slow.later.all())
    return after - (float(_mean(over[~slow.later, None], slow)[0]) if is_change else 0.0)


def _mean(values: Floats, slow: Slow) -> Floats:
    """Of what comes in some steps only, all count."""
    return np.asarray(values.mean(axis=0) if slow.is_intermittent else trimmed_mean(values, TRIM))
