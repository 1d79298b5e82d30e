"""Sensitivity of a recording: faults put into it, and the smallest that stage 1 would find.

The smallest fault of each kind that stage 1 finds in drawn recordings of a job, of several lengths.

The smallest fault that is found in enough of many drawn recordings.

Limits of detection: what keeps smaller faults from being found.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from kair_engine.arrays import Bools, Ints
from kair_engine.causes import Cause
from kair_engine.errors import UsageError
from kair_engine.localize.analysis import warnings_of
from kair_engine.localize.anomalies import FALSE_ALARM_RATE, FEWEST_STEPS
from kair_engine.localize.excess import KEPT_SHARE, JobExcess, job_excess
from kair_engine.localize.excess_table import table_of
from kair_engine.localize.links import FEWEST_SIBLINGS, SLOWER_BY, SlowLink
from kair_engine.localize.localization import conclude, step_time_ns
from kair_engine.localize.unnamed_collectives import with_collectives_marked
from kair_engine.progress import counted
from kair_engine.ranks import ranks_at
from kair_engine.results import SMALLEST_SHARE
from kair_engine.results.sensitivity import (
    DetectableFault,
    DetectionLimit,
    FewSteps,
    InjectedFault,
    LongerRecording,
    MoreSteps,
    NoCompute,
    NoInput,
    NoOperator,
    NoPeer,
    NoSiblings,
    OnePeer,
    OneRank,
    Reason,
    SensitivityResult,
    SmallestReported,
    Spread,
    SpreadUnknown,
    TooDifferent,
)
from kair_engine.sensitivity.injection import (
    HOST,
    STALL_LENGTH,
    Draw,
    HealthyLinks,
    RankFault,
    Source,
    draw_steps,
    finds,
    finds_slow_link,
    healthy_links,
    lasting_spread,
    rank_faults,
    source_of,
    with_slow_rank,
    with_stalls,
    without_faults,
)
from kair_engine.sensitivity.untested_links import untested_links
from kair_engine.trace.model import Trace, require_steps
from kair_engine.whatif.analysis import leads

MULTIPLES = (1, 2, 5, 10)
"""Of the recorded steps: the lengths of the recordings that are drawn."""
_MOST_STEPS = 100.0
"""The largest cost that is tried, in times of the step."""

Found = Callable[[int, int, float], bool]
"""Whether in so many steps of the draw of that number the fault of that size is found."""


@dataclass(frozen=True)
class Detection:
    """One kind of fault. Per length of the recording: what the smallest that is found costs per step, None: none is."""

    fault: InjectedFault
    cost_ns: tuple[float | None, ...] = ()
    """Empty where it could not be tried."""
    least_ns: float = 0.0
    """Below this cost nothing is reported."""
    peers: int = 0
    """Of a rank (or link), in the middle."""
    own_ns: float | None = None
    """What a rank (or link) spends on this anyway, in the middle."""
    spread_ns: float | None = None
    """How much ranks (or links) differ for good."""
    operator: str | None = None
    stalls: tuple[int | None, ...] = field(default_factory=lambda: (None,) * len(MULTIPLES))


@dataclass(frozen=True)
class Study:
    """A job, what its recordings are drawn from, and how many; `known` ranks had no fault taken out of them."""

    job: JobExcess
    source: Source
    known: Bools
    draws: int
    probability: float
    random: np.random.Generator

    def detections(self, slow: Sequence[SlowLink], chosen: Collection[InjectedFault]) -> Iterator[Detection]:
        """Return one for each chosen kind of fault; the `slow` links are as fast as their siblings first.

        Each kind has a separate random generator, so that the answer for one does not depend on the others.
        """
        drawn = self._drawn(self.job.role, self.known, self.source.block)
        of_ranks = rank_faults(self.source.table)
        *streams, of_stalls, of_links = self.random.spawn(len(of_ranks) + 2)
        kinds: list[Callable[[], Detection]] = [
            partial(replace(self, random=random)._slow_rank, fault, drawn)
            for fault, random in zip(of_ranks, streams, strict=True)
            if fault.fault in chosen
        ]
        if "stall" in chosen:
            kinds.append(partial(replace(self, random=of_stalls)._stall, drawn))
        if "slow_link" in chosen:
            kinds.append(partial(replace(self, random=of_links)._slow_links, slow))
        for detection in counted(kinds, f"looking for the smallest fault of {len(kinds)} kinds"):
            yield detection()

    @property
    def lengths(self) -> tuple[int, ...]:
        """Steps of the recordings."""
        return tuple(multiple * len(self.job.steps) for multiple in MULTIPLES)

    def _slow_rank(self, fault: RankFault, drawn: Sequence[Draw]) -> Detection:
        able = np.flatnonzero(fault.added_ns > 0)
        if not len(able):
            return Detection(fault.fault)
        victims, unit_ns = self._victims(able), float(np.median(fault.added_ns[able]))

        def found(steps: int, draw: int, size: float) -> bool:
            victim, recording = int(victims[draw]), self.source.recording(drawn[draw], steps)
            return finds(with_slow_rank(recording, fault, victim, size), victim, fault.row)

        candidates = sizes(self._floor_ns / unit_ns, _MOST_STEPS * self.job.step_time_ns / unit_ns)
        parts = self.source.operators[fault.operator] if fault.operator else self.source.classes.of(fault.row)
        return Detection(
            fault.fault,
            tuple(None if size is None else size * unit_ns for size in self._smallest(found, candidates)),
            self._floor_ns,
            self._peers(self.job.role, able),
            own_ns=None if fault.own_ns is None else float(np.median(fault.own_ns[able])),
            spread_ns=lasting_spread(parts, self.job.role, self.known),
            operator=fault.operator,
        )

    def _stall(self, drawn: Sequence[Draw]) -> Detection:
        ranks = np.arange(len(self.job.ranks))
        victims = self._victims(ranks)
        # Which steps they are is chance: the first of a shuffled recording.
        orders = {steps: [self.random.permutation(steps) for _ in drawn] for steps in self.lengths}

        def found(steps: int, draw: int, stalls: float) -> bool:
            victim, hit = int(victims[draw]), orders[steps][draw][: int(stalls)]
            return finds(with_stalls(self.source.recording(drawn[draw], steps), victim, hit), victim, HOST)

        numbers = self._smallest(found, *(range(1, steps + 1) for steps in self.lengths))
        return Detection(
            "stall",
            tuple(
                None if number is None else STALL_LENGTH * self.job.step_time_ns * number / steps
                for number, steps in zip(numbers, self.lengths, strict=True)
            ),
            self._floor_ns,
            self._peers(self.job.role, ranks),
            stalls=tuple(None if number is None else int(number) for number in numbers),
        )

    def _slow_links(self, slow: Sequence[SlowLink]) -> Detection:
        links = healthy_links(self.job, slow, self.random)
        return Detection("slow_link") if links is None else self._slow_link(links)

    def _slow_link(self, links: HealthyLinks) -> Detection:
        drawn = self._drawn(links.family, links.known, links.block)
        victims, own = self._victims(links.comparable), links.own_ns
        # Sizes are in units of what is reported at the least: of a short link many times its self time.
        least = np.maximum(SLOWER_BY * own, self._floor_ns)

        def found(steps: int, draw: int, size: float) -> bool:
            victim = int(victims[draw])
            return finds_slow_link(links, drawn[draw], steps, victim, size * float(least[victim] / own[victim]))

        own_ns, unit_ns = (float(np.median(times[links.comparable])) for times in (own, least))
        return Detection(
            "slow_link",
            tuple(None if size is None else size * unit_ns for size in self._smallest(found, sizes(0.9, 100.0))),
            unit_ns,
            self._peers(links.family, links.comparable),
            own_ns=own_ns,
            spread_ns=lasting_spread(links.ratios, links.family, links.known) * own_ns,
        )

    def _smallest(self, found: Found, *candidates: Sequence[float]) -> list[float | None]:
        """Of each length; `candidates` are the same for all, or one sequence for each."""
        of_lengths = candidates if len(candidates) > 1 else candidates * len(self.lengths)
        smallest, draws = list[float | None](), list(range(self.draws))
        for steps, tried in counted([*zip(self.lengths, of_lengths, strict=True)], "trying longer recordings"):
            guess = next((one for one in reversed(smallest) if one is not None), None)
            size, draws = smallest_found(tried, partial(found, steps), draws, self.probability, guess)
            smallest.append(size)
        return smallest

    @property
    def _floor_ns(self) -> float:
        return SMALLEST_SHARE * self.job.step_time_ns

    def _drawn(self, family: Ints, known: Bools, block: int) -> list[Draw]:
        return [
            draw_steps(len(self.job.steps), self.lengths[-1], family, known, block=block, random=self.random)
            for _ in range(self.draws)
        ]

    def _victims(self, able: Ints) -> Ints:
        """One per draw, each as often as the others or once more."""
        rounds = [self.random.permutation(able) for _ in range(-(-self.draws // len(able)))]
        return np.concatenate(rounds)[: self.draws]

    def _peers(self, family: Ints, places: Ints) -> int:
        _, code, size = np.unique(family, return_inverse=True, return_counts=True)
        return int(np.median(size[code.reshape(-1)][places])) - 1


FEWEST_DRAWS = 20
CAUSE_OF_FAULT: dict[InjectedFault, Cause | None] = {
    "slow_device": "compute",
    "slow_operator": "compute",
    "slow_input": "input",
    "slow_host": "host",
    "stall": None,
    "slow_link": "communication",
}
FAULTS: tuple[InjectedFault, ...] = tuple(CAUSE_OF_FAULT)


def sensitivity(
    trace: Trace,
    *,
    draws: int = 100,
    probability: float = 0.95,
    seed: int = 0,
    chosen: Collection[InjectedFault] = FAULTS,
) -> SensitivityResult:
    """Return the smallest fault of each kind that triage would find, and what more steps would change.

    `draws` recordings like this one are drawn (injection.py), a fault is put on one rank of each, and the smallest
    size that stage 1 finds in `probability` of them is the answer. Only the `chosen` kinds of faults are tried.
    `report` is called with the progress.

    Raises UsageError if the selection holds no step, for fewer than FEWEST_DRAWS draws, and for an impossible
    probability.
    """
    require_steps(trace)
    trace = with_collectives_marked(trace)
    job = job_excess(trace)
    step_ns = step_time_ns(trace, job)
    found = sensitivity_of(job, step_ns=step_ns, draws=draws, probability=probability, seed=seed, chosen=chosen)
    if "slow_link" in chosen:
        found = replace(found, untested_links=untested_links(trace))
    if (ahead := leads(trace)) is None:
        return found
    ranks = trace.job.ranks
    return replace(found, absorbs_us_per_step=ahead.slack_us(ranks), absorbs_once_us=ahead.ahead_us(ranks))


def sensitivity_of(
    job: JobExcess,
    *,
    draws: int,
    probability: float,
    seed: int,
    step_ns: float | None = None,
    chosen: Collection[InjectedFault] = FAULTS,
) -> SensitivityResult:
    """Return the same of a job's excesses; shares are of `step_ns`, or of the median step."""
    step_ns = step_ns or job.step_time_ns
    if draws < FEWEST_DRAWS:
        raise UsageError(f"the number of draws must be {FEWEST_DRAWS} or more, got {draws}")
    if not 0 < probability < 1:
        raise UsageError(f"the probability must be between 0 and 1, got {probability:g}")
    found, too_little = conclude(job), too_few(len(job.ranks), len(job.steps))
    accused = sorted({place for anomaly in found.anomalies for place in anomaly.positions})
    if too_little is None:
        random = np.random.default_rng(seed)
        known = ~np.isin(np.arange(len(job.ranks)), accused)
        source = source_of(without_faults(table_of(job), found.anomalies), known, random)
        study = Study(job, source, known, draws, probability, random)
        detections = study.detections(found.links, chosen)
        faults = tuple(_answer(detection, study.lengths, step_ns) for detection in detections)
    else:
        faults = tuple(_nothing(fault, too_little) for fault in FAULTS if fault in chosen)
    return SensitivityResult(
        faults=faults,
        probability=probability,
        false_alarm_rate=FALSE_ALARM_RATE,
        step_time_us=step_ns / 1e3,
        corrected_ranks=ranks_at(job.ranks, accused),
        corrected_links=tuple(slow.link.name for slow in found.links) if too_little is None else (),
        draws=draws,
        seed=seed,
        steps=tuple(step.step for step in job.steps),
        warnings=warnings_of(found),
    )


def _answer(detection: Detection, lengths: tuple[int, ...], step_ns: float) -> DetectableFault:
    if not detection.cost_ns:
        return _nothing(detection.fault, MISSING[detection.fault])
    now, *longer = (
        LongerRecording(
            steps,
            smallest_us_per_step=None if cost is None else cost / 1e3,
            smallest_share_of_step=None if cost is None else cost / step_ns,
            stalled_steps=stalls,
        )
        for steps, cost, stalls in zip(lengths, detection.cost_ns, detection.stalls, strict=True)
    )
    limit, own, cost = limit_of(detection, now, longer), detection.own_ns or None, detection.cost_ns[0]
    return DetectableFault(
        fault=detection.fault,
        cause=CAUSE_OF_FAULT[detection.fault],
        operator=detection.operator,
        smallest_us_per_step=now.smallest_us_per_step,
        smallest_share_of_step=now.smallest_share_of_step,
        own_us_per_step=None if own is None else own / 1e3,
        smallest_own_slowdown=None if own is None or cost is None else 1 + cost / own,
        spread_us_per_step=None if detection.spread_ns is None else detection.spread_ns / 1e3,
        stalled_steps=now.stalled_steps,
        longer=tuple(longer),
        limited_by=limit,
        because=reason_of(detection, limit, now, longer, step_ns=step_ns),
    )


def _nothing(fault: InjectedFault, because: Reason) -> DetectableFault:
    return DetectableFault(fault=fault, cause=CAUSE_OF_FAULT[fault], because=because)


_LEAP = 4
"""Candidates that the search begins below the guess and leaps by, then twice as many."""


class Smallest(NamedTuple):
    """What a search found."""

    size: float | None
    """None where no candidate is found often enough."""
    draws: list[int]
    """Those in which the fault is hardest to find come first."""


def smallest_found(
    candidates: Sequence[float],
    found: Callable[[int, float], bool],
    draws: Sequence[int],
    probability: float,
    guess: float | None = None,
) -> Smallest:
    """Return the smallest candidate (in ascending order) that is found in that share of the draws.

    Whoever is found is found at all larger sizes. What too many of a few draws miss is too small: so the draws that
    come first, the hardest, say where all are asked, and only those that miss the fault there are asked again.
    """
    may_miss, count = len(draws) - math.ceil(probability * len(draws)), len(candidates)
    missed, hit = dict.fromkeys(draws, -1), dict.fromkeys(draws, count)
    """Of each draw the largest candidate that it missed and the smallest that it showed."""

    def missing(some: Sequence[int], at: int, enough: int) -> list[int]:
        """Return the draws that miss a candidate, until so many do; those that missed the largest are asked first."""
        result = [draw for draw in some if missed[draw] >= at]
        undecided = (draw for draw in some if missed[draw] < at < hit[draw])
        for draw in sorted(undecided, key=missed.__getitem__, reverse=True):
            if len(result) >= enough:
                break
            if found(draw, candidates[at]):
                hit[draw] = at
            else:
                missed[draw] = at
                result.append(draw)
        return result

    def enough_for(some: Sequence[int], low: int, at: int, leap: int) -> int:
        """Return the first candidate beyond `low` that few enough of the draws miss, looking at `at` first."""
        high = count
        while high - low > 1:
            if len(missing(some, at, may_miss + 1)) > may_miss:
                low = at
            else:
                high = at
            upwards = min(low + leap, count - 1)
            at = upwards if high == count else (low + high) // 2 if low >= 0 else max(high - leap, 0)
            leap *= 2
        return high

    near = 0 if guess is None else bisect_left(candidates, guess)
    at = enough_for(draws[: 2 * (may_miss + 1)], -1, min(max(near - _LEAP, 0), count - 1), _LEAP)
    if at < count and len(others := missing(draws, at, len(draws))) > may_miss:
        at = enough_for(others, at, min(at + 1, count - 1), 2)
    hardest_first = sorted(draws, key=lambda draw: (missed[draw], hit[draw]), reverse=True)
    return Smallest(candidates[at] if at < count else None, hardest_first)


def sizes(least: float, most: float, apart: float = 1.03) -> list[float]:
    """Candidates from `least` to `most`, each 3 % above the last."""
    count = math.ceil(math.log(most / least) / math.log(apart)) + 1
    return [least * apart**at for at in range(count)]


MISSING: Mapping[InjectedFault, Reason] = MappingProxyType(
    {
        "slow_device": NoCompute(),
        "slow_operator": NoOperator(differing_share_of_step=KEPT_SHARE),
        "slow_input": NoInput(),
        "slow_link": NoSiblings(siblings=FEWEST_SIBLINGS - 1),
    }
)
"""Why a fault cannot be put in."""
_HELPS, _NEAR, _WORTH = 0.9, 1.3, 1.1
"""More steps help where they take the smallest fault down by the first factor; what is so near the least that is
reported is limited by that; what comes so near to what ten times the steps show is long enough."""


def too_few(ranks: int, steps: int) -> Reason | None:
    """Why nothing can be said at all; None where there is enough."""
    if ranks == 1:
        return OneRank()
    return FewSteps(steps=steps, fewest_steps=FEWEST_STEPS) if steps < FEWEST_STEPS else None


def limit_of(detection: Detection, now: LongerRecording, longer: Sequence[LongerRecording]) -> DetectionLimit:
    """Return what would have to change for a smaller fault to be found."""
    cost, longest = now.smallest_us_per_step, longer[-1].smallest_us_per_step
    if longest is not None and (cost is None or longest < _HELPS * cost):
        return "steps"
    if cost is not None and cost < _NEAR * detection.least_ns / 1e3:
        return "smallest_share"
    return "peers" if detection.peers < 2 else "ranks"


def reason_of(
    detection: Detection,
    limit: DetectionLimit,
    now: LongerRecording,
    longer: Sequence[LongerRecording],
    *,
    step_ns: float,
) -> Reason:
    """Return the limit with its figures; `step_ns` is the step's time."""
    if limit == "steps":
        return _enough(now, longer)
    if limit == "smallest_share":
        of_self = SLOWER_BY if detection.fault == "slow_link" else None
        return SmallestReported(share_of_step=SMALLEST_SHARE, share_of_self_time=of_self)
    if limit == "peers":
        return OnePeer() if detection.peers else NoPeer()
    if now.smallest_us_per_step is None:
        return TooDifferent()
    if not detection.spread_ns:
        return SpreadUnknown(healthy=detection.peers + 1)
    return Spread(spread_us=detection.spread_ns / 1e3, share_of_step=detection.spread_ns / step_ns)


def _enough(now: LongerRecording, longer: Sequence[LongerRecording]) -> MoreSteps:
    """Return the shortest longer recording that shows about as much as the longest."""
    found = [one for one in longer if one.smallest_us_per_step is not None]
    best = found[-1].smallest_us_per_step or 0.0
    enough = next(one for one in found if (one.smallest_us_per_step or 0.0) <= _WORTH * best)
    return MoreSteps(
        steps=enough.steps,
        recorded_steps=now.steps,
        share_of_step=enough.smallest_share_of_step or 0.0 if enough.stalled_steps is None else None,
        stalled_steps=enough.stalled_steps,
        recorded_stalled_steps=now.stalled_steps,
    )
