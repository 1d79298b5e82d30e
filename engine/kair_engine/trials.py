"""One fault on one rank in each of many drawn recordings: from which size on stage 1 flags that rank."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from kair_engine.anomalies import (
    FALSE_ALARM_RATE,
    PRIOR_OF_STEP,
    PRIOR_OF_WORK,
    SHARES,
    SMALLEST_SHARE,
    STALL_SHARE,
    stalls,
)
from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.detection import EventTest, MeanTest, SizeTest, fewest_events, needed_value, smallest_sizes
from kair_engine.excess import CLASSES, COMPARED_WITH_WORK, JobExcess
from kair_engine.injection import Injection
from kair_engine.outlying import Peers, Spread, pooled_spread
from kair_engine.resampling import Parts, Redraws, take_apart

FLOOR_SHARE = 0.001
SAME_SIGN = 0.8
SMALL_ROLE = 8
"""As in anomalies.py."""


@dataclass(frozen=True)
class Setting:
    """A job without faults, the ranks whose own differences are known, and the drawn recordings."""

    job: JobExcess
    known: Bools
    drawn: tuple[Redraws, ...]
    """The first is as long as the recording."""
    random: np.random.Generator
    _parts: dict[int | str, Parts] = field(default_factory=dict)

    @cached_property
    def roles(self) -> dict[int, Ints]:
        """Role code → its ranks (places)."""
        return {int(code): np.flatnonzero(self.job.role == code) for code in np.unique(self.job.role)}

    @cached_property
    def floor_ns(self) -> float:
        """What is flagged must cost more than this per step."""
        return SMALLEST_SHARE * self.job.step_time_ns

    def of_class(self, row: int) -> Parts:
        """The excess of a class, taken apart."""
        return self._apart(row, np.nan_to_num(self.job.by_step_ns[:, row], nan=0.0))

    def of_operator(self, name: str) -> Parts:
        """The excess of an operator, taken apart."""
        return self._apart(name, self.job.operator_ns(name)[0])

    def _apart(self, key: int | str, values: Floats) -> Parts:
        if key not in self._parts:
            self._parts[key] = take_apart(values, self.job.role, self.known, self.drawn[0], self.random)
        return self._parts[key]


def sizes(setting: Setting, injection: Injection, victims: Ints, drawn: Redraws) -> Floats:
    """Per drawn recording the smallest size at which its victim is flagged; infinite where no size is."""
    if injection.stalled_share is not None:
        return smallest_sizes([_stall_test(setting, injection, victims, drawn)], len(victims))
    tests: list[SizeTest] = [_class_test(setting, injection, victims, drawn)]
    if injection.operator is not None:
        tests.append(_operator_test(setting, injection, victims, drawn))
    tests.append(_event_test(setting, injection, victims, drawn))
    return smallest_sizes(tests, len(victims))


def stalls_needed(setting: Setting, victims: Ints, drawn: Redraws) -> Ints:
    """Per drawn recording, in how many steps its victim must stall to be told from chance."""
    job = setting.job
    events = stalls(job)
    # One cause may delay a whole tensor-parallel group: such events count once.
    shared = _at_once(events, job.unit)
    of_rank = drawn.counts @ events
    place = np.arange(len(victims))
    others = of_rank.sum(axis=1) - of_rank[place, victims]
    of_rank[place, victims] = 0
    looked_at = (len(job.ranks) - 1) * drawn.steps / shared
    alone = [fewest_events(drawn.steps, float(count) / shared, looked_at, len(job.ranks)) for count in others]
    # The rank with the most events is tested first, and the rest only if it was flagged.
    return np.maximum(alone, of_rank.max(axis=1) + 1)


def _class_test(setting: Setting, injection: Injection, victims: Ints, drawn: Redraws) -> MeanTest:
    row, parts = injection.row, setting.of_class(injection.row)
    tests = len(CLASSES) * len(setting.roles) / SHARES["persistent"]
    means = parts.means(drawn)
    needed = np.empty(len(victims))
    for draw, victim in enumerate(victims):
        members = setting.roles[int(setting.job.role[victim])]
        peers = Peers(means[draw, members], _prior_ns(setting.job, row, members), _borrowed(setting, means[draw], members))
        needed[draw] = _asked(peers, int(np.searchsorted(members, victim)), FALSE_ALARM_RATE / tests, setting.floor_ns)
    return MeanTest(
        values=parts.per_step(victims),
        apart=_above_peers(setting, parts, victims),
        added=injection.added_ns.T[victims],
        counts=drawn.counts,
        needed=needed,
        at_least=setting.floor_ns,
        in_share=SAME_SIGN,
    )


def _operator_test(setting: Setting, injection: Injection, victims: Ints, drawn: Redraws) -> MeanTest:
    assert injection.operator is not None and injection.operator_added_ns is not None
    job, parts = setting.job, setting.of_operator(injection.operator)
    typical = job.operator_ns(injection.operator)[1]
    tests = max(len(job.operators), 1) * len(setting.roles) / SHARES["operator"]
    means = parts.means(drawn)
    needed = np.empty(len(victims))
    for draw, victim in enumerate(victims):
        members = setting.roles[int(job.role[victim])]
        prior = np.hypot(PRIOR_OF_WORK * float(np.median(typical[members])), FLOOR_SHARE * job.step_time_ns)
        place = int(np.searchsorted(members, victim))
        needed[draw] = needed_value(Peers(means[draw, members], float(prior)), place, FALSE_ALARM_RATE / tests)
    values = parts.per_step(victims)
    added = np.broadcast_to(injection.operator_added_ns[victims][:, None], values.shape)
    return MeanTest(values, values, added, drawn.counts, np.maximum(needed, setting.floor_ns), setting.floor_ns, 0.0)


def _event_test(setting: Setting, injection: Injection, victims: Ints, drawn: Redraws) -> EventTest:
    job = setting.job
    return EventTest(
        total=_total(job)[victims],
        added=injection.added_ns.T[victims] * _seen(setting, victims)[:, None],
        counts=drawn.counts,
        event=STALL_SHARE * np.array([step.step_time_ns for step in job.steps]),
        needed=stalls_needed(setting, victims, drawn),
        at_least=setting.floor_ns,
    )


def _stall_test(setting: Setting, injection: Injection, victims: Ints, drawn: Redraws) -> EventTest:
    """Every recorded step twice: as often as it occurs with a stall, and as often as without one."""
    whole = _event_test(setting, injection, victims, drawn)
    assert injection.stalled_share is not None
    stalled = round(injection.stalled_share * drawn.steps)
    hit = np.stack([setting.random.multivariate_hypergeometric(counts, stalled) for counts in drawn.counts])
    return EventTest(
        total=np.concatenate((whole.total, whole.total), axis=1),
        added=np.concatenate((whole.added, np.zeros_like(whole.added)), axis=1),
        counts=np.concatenate((hit, drawn.counts - hit), axis=1),
        event=np.concatenate((whole.event, whole.event)),
        needed=whole.needed,
        at_least=whole.at_least,
    )


def _asked(peers: Peers, place: int, p_below: float, floor_ns: float) -> float:
    """The mean at which chance no longer explains the rank and it costs enough."""
    others = np.delete(peers.values, place)
    enough = float(others.mean()) + floor_ns if len(others) else float("inf")
    return max(needed_value(peers, place, p_below), enough)


def _prior_ns(job: JobExcess, row: int, members: Ints) -> float:
    of_step = FLOOR_SHARE if COMPARED_WITH_WORK[row] else PRIOR_OF_STEP
    of_work = PRIOR_OF_WORK if COMPARED_WITH_WORK[row] else 0.0
    return float(np.hypot(of_step * job.step_time_ns, of_work * float(np.median(job.work_ns[row, members]))))


def _borrowed(setting: Setting, mean: Floats, members: Ints) -> Spread | None:
    if len(members) >= SMALL_ROLE:
        return None
    return pooled_spread([mean[other] for other in setting.roles.values() if other is not members])


def _above_peers(setting: Setting, parts: Parts, victims: Ints) -> Floats:
    """(draws × recorded steps): each victim's excess over its role's other ranks' median."""
    usual = parts.moments + parts.standing.mean(axis=0)[:, None]
    above = {}
    for victim in np.unique(victims):
        members = setting.roles[int(setting.job.role[victim])]
        others = members[members != victim]
        above[int(victim)] = np.median(usual[others], axis=0) if len(others) else usual[victim]
    return parts.per_step(victims) - np.stack([above[int(victim)] for victim in victims])


def _total(job: JobExcess) -> Floats:
    """(ranks × steps): all classes together."""
    return np.ascontiguousarray(np.nan_to_num(job.by_step_ns, nan=0.0).sum(axis=1).T)


def _seen(setting: Setting, victims: Ints) -> Floats:
    """How much of a delay shows as excess over the role's median: of a pair half, of a rank alone nothing."""
    size = np.array([len(setting.roles[int(setting.job.role[victim])]) for victim in victims])
    return np.select([size == 1, size == 2], [0.0, 0.5], 1.0)


def _at_once(events: Bools, unit: Ints | None) -> float:
    if unit is None or not events.any():
        return 1.0
    step, rank = np.nonzero(events)
    return len(step) / len(np.unique(np.stack((step, unit[rank])), axis=1).T)
