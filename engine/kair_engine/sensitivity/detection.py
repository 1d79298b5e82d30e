"""The smallest fault of each kind that stage 1 finds in drawn recordings of a job, of several lengths."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kair_engine.arrays import Bools, Ints
from kair_engine.localize.anomalies import SMALLEST_SHARE
from kair_engine.localize.excess import JobExcess
from kair_engine.localize.links import SLOWER_BY, SlowLink
from kair_engine.results.sensitivity import InjectedFault
from kair_engine.sensitivity.bootstrap import Draw, Source, draw_steps, lasting_spread
from kair_engine.sensitivity.injection import (
    HOST,
    STALL_LENGTH,
    RankFault,
    finds,
    rank_faults,
    with_slow_rank,
    with_stalls,
)
from kair_engine.sensitivity.link_injection import HealthyLinks, finds_slow_link, healthy_links
from kair_engine.sensitivity.trials import sizes, smallest_found

MULTIPLES = (1, 2, 5, 10)
"""Of the recorded steps: the lengths of the recordings that are drawn."""
_MOST_STEPS = 100.0
"""The largest cost that is tried, in times of the step."""

Found = Callable[[int, float], bool]
"""Whether the fault of that size is found in the draw of that number."""


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
        """One for each chosen kind of fault; the `slow` links are as fast as their siblings first.

        Each kind has random numbers of its own, so that what is said of one does not depend on the others.
        """
        drawn = self._drawn(self.job.role, self.known, self.source.block)
        of_ranks = rank_faults(self.source.table)
        *streams, of_stalls, of_links = self.random.spawn(len(of_ranks) + 2)
        for fault, random in zip(of_ranks, streams, strict=True):
            if fault.fault in chosen:
                yield replace(self, random=random)._slow_rank(fault, drawn)
        if "stall" in chosen:
            yield replace(self, random=of_stalls)._stall(drawn)
        if "slow_link" in chosen:
            links = healthy_links(self.job, slow, of_links)
            yield Detection("slow_link") if links is None else replace(self, random=of_links)._slow_link(links)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Steps of the recordings."""
        return tuple(multiple * len(self.job.steps) for multiple in MULTIPLES)

    def _slow_rank(self, fault: RankFault, drawn: Sequence[Draw]) -> Detection:
        able = np.flatnonzero(fault.added_ns > 0)
        if not len(able):
            return Detection(fault.fault)
        victims, unit_ns = self._victims(able), float(np.median(fault.added_ns[able]))

        def found(steps: int) -> Found:
            def in_draw(draw: int, size: float) -> bool:
                victim = int(victims[draw])
                recording = self.source.recording(drawn[draw], steps)
                return finds(with_slow_rank(recording, fault, victim, size), victim, fault.row)

            return in_draw

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

        def found(steps: int) -> Found:
            def in_draw(draw: int, stalls: float) -> bool:
                victim, hit = int(victims[draw]), orders[steps][draw][: int(stalls)]
                return finds(with_stalls(self.source.recording(drawn[draw], steps), victim, hit), victim, HOST)

            return in_draw

        numbers = [smallest_found(range(1, n + 1), found(n), self.draws, self.probability) for n in self.lengths]
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

    def _slow_link(self, links: HealthyLinks) -> Detection:
        drawn = self._drawn(links.family, links.known, links.block)
        victims, own = self._victims(links.comparable), links.own_ns
        # Sizes are in units of what is reported at the least: of a short link many times its self time.
        least = np.maximum(SLOWER_BY * own, self._floor_ns)

        def found(steps: int) -> Found:
            def in_draw(draw: int, size: float) -> bool:
                victim = int(victims[draw])
                return finds_slow_link(links, drawn[draw], steps, victim, size * float(least[victim] / own[victim]))

            return in_draw

        own_ns, unit_ns = (float(np.median(times[links.comparable])) for times in (own, least))
        return Detection(
            "slow_link",
            tuple(None if size is None else size * unit_ns for size in self._smallest(found, sizes(0.9, 100.0))),
            unit_ns,
            self._peers(links.family, links.comparable),
            own_ns=own_ns,
            spread_ns=lasting_spread(links.ratios, links.family, links.known) * own_ns,
        )

    def _smallest(self, found: Callable[[int], Found], candidates: Sequence[float]) -> list[float | None]:
        return [smallest_found(candidates, found(steps), self.draws, self.probability) for steps in self.lengths]

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
