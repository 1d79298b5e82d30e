"""What a recording can show: faults put into it, and the smallest that stage 1 would find."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kair_engine.anomalies import FALSE_ALARM_RATE, FEWEST_STEPS, SMALLEST_SHARE
from kair_engine.arrays import Floats, Ints
from kair_engine.errors import UsageError
from kair_engine.excess import JobExcess, job_excess
from kair_engine.excess_table import table_of
from kair_engine.injection import (
    STALL_LENGTH,
    RankFault,
    finds,
    finds_stalls,
    rank_faults,
    with_slow_rank,
    with_stalls,
)
from kair_engine.limits import MISSING, limit_of, reason_of, too_few
from kair_engine.link_injection import HealthyLinks, finds_slow_link, healthy_links
from kair_engine.links import SLOWER_BY, SlowLink
from kair_engine.model import Trace
from kair_engine.redrawing import Draw, Source, draws, lasting_spread, source_of
from kair_engine.results import Cause, DetectableFault, InjectedFault, LongerRecording, SensitivityResult
from kair_engine.stages.localize import conclude, notices, require_steps
from kair_engine.trials import sizes, smallest_found
from kair_engine.without_faults import without_faults

MULTIPLES = (1, 2, 5, 10)
"""Of the recorded steps: the recordings that are drawn."""
FEWEST_DRAWS = 20
_MOST_STEPS_OF_TIME = 100.0
"""The largest cost that is tried, in steps' time per step."""
_CAUSES: dict[InjectedFault, Cause | None] = {
    "slow_device": "compute",
    "slow_operator": "compute",
    "slow_input": "input",
    "slow_host": "host",
    "stall": None,
    "slow_link": "communication",
}


def sensitivity(trace: Trace, *, draws: int = 100, probability: float = 0.95, seed: int = 0) -> SensitivityResult:
    """The smallest fault of each kind that triage would find, and what more steps would change.

    `draws` recordings like this one are drawn (redrawing.py), a fault is put on one rank of each, and the smallest
    size that stage 1 finds in `probability` of them is the answer. Raises UsageError where the selection holds no
    step, for fewer than FEWEST_DRAWS draws, and for a probability that is none.
    """
    require_steps(trace)
    if draws < FEWEST_DRAWS:
        raise UsageError(f"{draws} draws are too few to tell a probability from: use {FEWEST_DRAWS} or more")
    if not 0 < probability < 1:
        raise UsageError(f"a probability lies between 0 and 1, unlike {probability:g}")
    return sensitivity_of(job_excess(trace), draws=draws, probability=probability, seed=seed)


def sensitivity_of(job: JobExcess, *, draws: int, probability: float, seed: int) -> SensitivityResult:
    """The same of a job's excesses."""
    found, too_little = conclude(job), too_few(len(job.ranks), len(job.steps))
    accused = sorted({place for anomaly in found.anomalies for place in anomaly.ranks})
    if too_little is None:
        table = without_faults(table_of(job), found.anomalies)
        random = np.random.default_rng(seed)
        known = ~np.isin(np.arange(len(job.ranks)), accused)
        study = _Study(job, known, source_of(table, known, random), draws, probability, random)
        faults = tuple(study.faults(found.links))
    else:
        faults = tuple(_nothing(fault, too_little) for fault in _CAUSES)
    return SensitivityResult(
        faults=faults,
        probability=probability,
        false_alarm_rate=FALSE_ALARM_RATE,
        step_time_us=job.step_time_ns / 1e3,
        corrected_ranks=tuple(int(job.ranks[place]) for place in accused) if too_little is None else (),
        corrected_links=tuple(slow.link.name for slow in found.links) if too_little is None else (),
        draws=draws,
        seed=seed,
        steps=tuple(step.step for step in job.steps),
        warnings=notices(found),
    )


@dataclass(frozen=True)
class _Study:
    """A healthy job, and how many recordings of it are drawn."""

    job: JobExcess
    known: Floats
    source: Source
    count: int
    probability: float
    random: np.random.Generator

    def faults(self, slow: Sequence[SlowLink]) -> Iterator[DetectableFault]:
        """Every fault's answer."""
        drawn = self._draws(self.job.role, self.known)
        for fault in rank_faults(self.source.table):
            yield self._slow_rank(fault, drawn)
        yield self._stall(drawn)
        links = healthy_links(self.job, slow, self.random)
        yield _nothing("slow_link", MISSING["slow_link"]) if links is None else self._slow_link(links)

    @property
    def recorded(self) -> int:
        """Steps."""
        return len(self.job.steps)

    def _slow_rank(self, fault: RankFault, drawn: Sequence[Draw]) -> DetectableFault:
        able = np.flatnonzero(fault.added_ns > 0)
        if not len(able):
            return _nothing(fault.fault, MISSING[fault.fault])
        victims, unit_ns = self._victims(able), float(np.median(fault.added_ns[able]))

        def found(steps: int) -> Callable[[int, float], bool]:
            def of_draw(draw: int, size: float) -> bool:
                victim = int(victims[draw])
                recording = self.source.recording(drawn[draw], steps)
                return finds(with_slow_rank(recording, fault, victim, size), fault, victim)

            return of_draw

        parts = self.source.operators[fault.operator] if fault.operator else self.source.classes.of(fault.row)
        return self._answer(
            fault.fault,
            self._smallest(found, sizes(self._floor_ns / unit_ns, _MOST_STEPS_OF_TIME * self.job.step_time_ns / unit_ns)),
            unit_ns=unit_ns,
            own_ns=None if fault.own_ns is None else float(np.median(fault.own_ns[able])),
            operator=fault.operator,
            spread_ns=lasting_spread(parts, self.job.role, self.known),
            peers=self._peers(able),
        )

    def _stall(self, drawn: Sequence[Draw]) -> DetectableFault:
        ranks = np.arange(len(self.job.ranks))
        victims = self._victims(ranks)
        orders = {steps: [self.random.permutation(steps) for _ in drawn] for steps in self._lengths()}

        def found(steps: int) -> Callable[[int, float], bool]:
            def of_draw(draw: int, stalls: float) -> bool:
                victim, hit = int(victims[draw]), orders[steps][draw][: int(stalls)]
                return finds_stalls(with_stalls(self.source.recording(drawn[draw], steps), victim, hit), victim)

            return of_draw

        numbers = [
            smallest_found(range(1, steps + 1), found(steps), self.count, self.probability)
            for steps in self._lengths()
        ]
        shares = [None if n is None else n / steps for n, steps in zip(numbers, self._lengths(), strict=True)]
        unit_ns = STALL_LENGTH * self.job.step_time_ns
        return self._answer("stall", shares, unit_ns=unit_ns, stalls=numbers, peers=self._peers(ranks))

    def _slow_link(self, links: HealthyLinks) -> DetectableFault:
        drawn = self._draws(links.family, links.known)
        victims = self._victims(links.comparable)
        own = links.own_ns
        # Sizes are in units of what is reported at the least: of a short link many times its own time.
        least = np.maximum(SLOWER_BY * own, self._floor_ns)

        def found(steps: int) -> Callable[[int, float], bool]:
            def of_draw(draw: int, size: float) -> bool:
                victim = int(victims[draw])
                return finds_slow_link(links, drawn[draw], steps, victim, size * float(least[victim] / own[victim]))

            return of_draw

        own_ns, unit_ns = (float(np.median(times[links.comparable])) for times in (own, least))
        return self._answer(
            "slow_link",
            self._smallest(found, sizes(0.9, 100.0)),
            unit_ns=unit_ns,
            own_ns=own_ns,
            spread_ns=lasting_spread(links.ratios, links.family, links.known) * own_ns,
            peers=int(np.median(np.bincount(links.family)[links.family[links.comparable]])) - 1,
            least_ns=unit_ns,
        )

    def _smallest(
        self, found: Callable[[int], Callable[[int, float], bool]], candidates: Sequence[float]
    ) -> list[float | None]:
        return [smallest_found(candidates, found(steps), self.count, self.probability) for steps in self._lengths()]

    def _answer(
        self,
        fault: InjectedFault,
        smallest: Sequence[float | None],
        *,
        unit_ns: float,
        peers: int,
        own_ns: float | None = None,
        operator: str | None = None,
        spread_ns: float | None = None,
        stalls: Sequence[float | None] = (None,) * len(MULTIPLES),
        least_ns: float | None = None,
    ) -> DetectableFault:
        """`smallest` holds a size per length, in units of `unit_ns` per step."""
        step_ns = self.job.step_time_ns
        costs = [None if size is None else size * unit_ns for size in smallest]
        now, *longer = (
            LongerRecording(
                steps,
                None if cost is None else cost / 1e3,
                None if cost is None else cost / step_ns,
                None if number is None else int(number),
            )
            for steps, cost, number in zip(self._lengths(), costs, stalls, strict=True)
        )
        limit = limit_of(now, longer, least_us=(least_ns or self._floor_ns) / 1e3, peers=peers)
        known_own = own_ns is not None and own_ns > 0
        return DetectableFault(
            fault=fault,
            cause=_CAUSES[fault],
            operator=operator,
            smallest_us_per_step=now.smallest_us_per_step,
            smallest_share_of_step=now.smallest_share_of_step,
            own_us_per_step=own_ns / 1e3 if own_ns is not None and known_own else None,
            smallest_own_slowdown=(
                1 + costs[0] / own_ns if own_ns is not None and known_own and costs[0] is not None else None
            ),
            spread_us_per_step=None if spread_ns is None else spread_ns / 1e3,
            stalled_steps=now.stalled_steps,
            longer=tuple(longer),
            limited_by=limit,
            reason=reason_of(fault, limit, now, longer, spread_ns=spread_ns, step_ns=step_ns, peers=peers),
        )

    @property
    def _floor_ns(self) -> float:
        return SMALLEST_SHARE * self.job.step_time_ns

    def _lengths(self) -> list[int]:
        return [multiple * self.recorded for multiple in MULTIPLES]

    def _draws(self, family: Ints, known: Floats) -> list[Draw]:
        return draws(self.count, self.recorded, self._lengths()[-1], family, known, self.random)

    def _victims(self, able: Ints) -> Ints:
        """One per draw, each as often as the others or once more."""
        rounds = [self.random.permutation(able) for _ in range(-(-self.count // len(able)))]
        return np.concatenate(rounds)[: self.count]

    def _peers(self, places: Ints) -> int:
        """Of a rank, in the middle."""
        _, code, size = np.unique(self.job.role, return_inverse=True, return_counts=True)
        return int(np.median(size[code.reshape(-1)][places])) - 1


def _nothing(fault: InjectedFault, reason: str) -> DetectableFault:
    return DetectableFault(fault, _CAUSES[fault], None, None, None, None, None, None, None, (), None, reason)
