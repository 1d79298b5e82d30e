"""What ordinary noise would cost a job on more ranks: how long they would wait for the last of them.

docs/methods.md has the method, and validation/reports/forecast.md how often it is right.
"""

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.errors import UsageError
from kair_engine.forecast.growth import Noise
from kair_engine.forecast.meetings import Meetings, meetings_of, meetings_of_history
from kair_engine.forecast.parts_of_noise import Parts, taken_apart
from kair_engine.frozen import dataclass
from kair_engine.localize.analysis import localize
from kair_engine.ranks import ranks_at
from kair_engine.results.forecast import (
    ForecastResult,
    NoiseCause,
    NoiseForecast,
    NoiseKind,
    WhyNoForecast,
)
from kair_engine.stats import median
from kair_engine.trace.batches import shared_by_stages
from kair_engine.trace.model import KairWarning, Trace, require_steps
from kair_engine.triage.history.analysis import judge
from kair_engine.triage.history.rows import StepHistory

FEWEST_STEPS = 8
"""Steps: of fewer no tail is estimated."""
FEWEST_RANKS = 2
"""Ranks that are left: one waits for nobody."""
FARTHEST = 100
"""Times the recorded ranks: beyond that there is no forecast."""
BEYOND_VALUES = 20.0
"""So many times as many ranks as values in the tail is no forecast either."""
LEVEL = 0.9
"""With which a job of that size lies within the interval."""
DRAWS = 200
"""Recordings that are drawn anew, for the interval."""
SHAPE_UNSURE = 0.2
"""The deviation by which the tail's shape is varied: what lies beyond the values seen need not go on like them."""
UNSEEN_SHAPE = 2 / 3
"""The shape of what is longer than the longest delay seen: its mean is three times that."""
PER_HOST = 8
"""Ranks of a host where none is recorded."""
USUAL_RANKS = (8, 64, 1024)


def forecast(
    trace: Trace,
    history: StepHistory | None = None,
    *,
    ranks: Sequence[int] = USUAL_RANKS,
    per_host: int | None = None,
    left_out: Collection[int] = (),
    draws: int = DRAWS,
    seed: int = 0,
) -> ForecastResult:
    """By the history of steps where there is one, else by the recording.

    Left out are ranks that are slower than noise makes them: those that stage 1 flags, that triage accuses by the
    history, or that the watch of the running job noticed. Raises UsageError for too few ranks or steps, or an unknown
    rank to leave out.
    """
    trace, flagged = shared_by_stages(trace), set[int]()
    if trace.steps and not trace.job.is_recorded_only:
        flagged = {int(row.rank) for row in localize(trace).scores if row.flagged}
    if history is not None and history.can_judge:
        found, steps = meetings_of_history(history), history.steps
        flagged |= {rank for one in judge(history, trace.job)[0] for rank in one.ranks} | set(history.alerts)
    else:
        require_steps(trace)
        if trace.job.is_recorded_only:
            raise UsageError(f"a forecast takes {FEWEST_STEPS} steps or more: {len(trace.steps)} are recorded")
        found, steps = meetings_of(trace), np.array(trace.steps)
    unknown = sorted(set(left_out) - set(found.ranks.tolist()))
    if unknown:
        raise UsageError(f"rank {unknown[0]} is not among those in the steps", "kair info lists them")
    without = np.isin(found.ranks, sorted(flagged | set(left_out)))
    if len(found.ranks) - int(without.sum()) < FEWEST_RANKS:
        out = f", {int(without.sum())} of which are left out as slow" if without.any() else ""
        raise UsageError(f"a forecast takes {FEWEST_RANKS} ranks or more: there are {len(found.ranks)}{out}")
    if len(found.late_ns) < FEWEST_STEPS:
        raise UsageError(
            f"a forecast takes {FEWEST_STEPS} steps or more, recorded of all ranks: there are {len(found.late_ns)}",
            "record more steps, or capture the job: its history has them all",
        )
    kept = found.without(without)
    parts = taken_apart(kept)
    # The most ranks that one host was recorded with.
    size = per_host or (PER_HOST if kept.host is None else int(np.bincount(kept.host).max()))
    together = float(size) if kept.has_hosts else parts.recorded_together
    study = Study(kept, parts, together, draws, np.random.default_rng(seed))
    return ForecastResult(
        forecasts=tuple(study.on(number) for number in sorted(set(ranks))),
        recorded_ranks=len(kept.ranks),
        lost_share=study.lost(kept.waited_ns),
        step_time_us=kept.step_ns / 1e3,
        per_host=size,
        synchronised_by=kept.by,
        meetings=kept.late_ns.shape[1],
        tail_shape=study.noise[0].own.shape,
        level=LEVEL,
        left_out=ranks_at(found.ranks, np.flatnonzero(without)),
        draws=draws,
        seed=seed,
        steps=tuple(steps.tolist()),
        warnings=tuple(_warnings(kept, max(ranks))),
    )


@dataclass(frozen=True)
class Study:
    """A job's noise, taken apart, and what its forecasts are drawn with."""

    of: Meetings
    parts: Parts
    together: float
    """Ranks that share noise: those of a host, or as many as are late together where not several hosts are known."""
    draws: int
    random: np.random.Generator

    @cached_property
    def noise(self) -> list[Noise]:
        """As recorded."""
        steps, _, ranks = self.parts.own.shape
        return self.parts.noise(np.arange(steps), np.arange(ranks))

    @cached_property
    def _scale(self) -> float:
        """The measured waiting over what the distributions predict for the recorded ranks. It corrects that noise is
        measured from a middle to which each rank contributes.
        """
        expected = _waiting(self.noise, self.parts.lasting, self.parts.recorded_together)
        return self.of.waited_ns / expected if expected > 0 else 1.0

    def on(self, ranks: int) -> NoiseForecast:
        """Return the job on so many."""
        why = self._why_none(ranks)
        if why is not None:
            return NoiseForecast(ranks, why_none=why)
        drawn = np.array([self._drawn(ranks) for _ in range(self.draws)]) * self._scale
        waited = drawn.sum(axis=1)
        # Rare delays are in few of the draws: their mean counts. If few ranks show the spread, it is too large.
        parts = np.append(drawn[:, :2].mean(axis=0), median(drawn[:, 2], axis=0))
        # What nobody has seen widens the interval, and is no part of the forecast.
        shares = np.array([self.lost(float(one)) for one in waited])
        least, most = np.quantile(shares, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
        middle = min(max(self.lost(float(parts.sum())), least), most)
        length = self.of.step_ns - self.of.waited_ns
        return NoiseForecast(
            ranks,
            middle,
            least,
            most,
            length / (1 - middle) / 1e3,
            tuple(_causes(middle, parts / max(float(parts.sum()), 1e-9), self._by_cause(ranks))),
        )

    def lost(self, waited_ns: float) -> float:
        """Return the share of a step in which so long is waited."""
        return waited_ns / max(self.of.step_ns - self.of.waited_ns + waited_ns, 1e-9)

    def _why_none(self, ranks: int) -> WhyNoForecast | None:
        if ranks > FARTHEST * len(self.of.ranks):
            return "too_far"
        own = self.noise[0].own
        return "few_values" if ranks > BEYOND_VALUES * own.share_above * len(own.ordered) else None

    def _drawn(self, ranks: int) -> Floats:
        """(own noise, hosts', what lasts, what was not seen): what is waited by each, of one recording drawn anew.

        Blocks of steps, and ranks, are drawn with replacement. How much ranks differ for good is known of few: the
        variance follows χ², and the ranks' differences are drawn.
        """
        recorded = self.parts.own.shape[2]
        degrees = recorded - 1
        heavier = float(self.random.normal(0, SHAPE_UNSURE))
        noise = self.parts.noise(self._steps(), np.asarray(self.random.integers(0, recorded, recorded)), heavier)
        factor = float(np.sqrt(degrees / self.random.chisquare(degrees)))
        differ = self.parts.spread[:, None] * factor * self.random.standard_normal(ranks)
        alone = _waiting([Noise(one.own) for one in noise], np.zeros((len(noise), ranks)), self.together)
        with_hosts = alone
        if self.parts.shared is not None:
            with_hosts = max(_waiting(noise, np.zeros((len(noise), ranks)), self.together), alone)
        both = max(_waiting(noise, differ, self.together), with_hosts) if differ.any() else with_hosts
        return np.array([alone, with_hosts - alone, both - with_hosts, self._unseen(ranks, both / len(noise))])

    def _unseen(self, ranks: int, last_ns: float) -> float:
        """Return what delays may cost of which none was recorded, beyond the last rank's usual lateness.

        None in N steps of ranks leaves their rate Γ(1/2) / N (Jeffreys); they are longer than the longest that was
        seen, as a power tail has it, and no longer than a step.
        """
        steps, _, recorded = self.parts.own.shape
        rate = self.random.gamma(0.5) / (steps * recorded)
        length = float(self.parts.own.max()) * self.random.random() ** -UNSEEN_SHAPE
        happens = 1 - np.exp(-rate * ranks)
        waiting = 1 - 1 / ranks
        return float(happens * waiting * max(min(length, self.of.step_ns) - last_ns, 0.0))

    def _steps(self) -> Ints:
        """As many as were recorded, in blocks that run on from the last to the first."""
        steps, block = len(self.parts.own), self.parts.block
        begins = self.random.integers(0, steps, -(-steps // block))
        return np.asarray(((begins[:, None] + np.arange(block)).ravel() % steps)[:steps])

    def _by_cause(self, ranks: int) -> dict[NoiseKind, float]:
        """Of the lateness of the last rank, which part is by which cause.

        A recorded step of a rank is the last of n with the chance by which its place among all of them is that of their
        maximum; of many ranks the latest few percent count, since the very latest alone would say little.
        """
        beyond = {name: _apart(values) for name, values in self.of.parts_ns.items()}
        total = np.sum(list(beyond.values()), axis=0).ravel()
        values = len(total)
        of_last = min(ranks, max(values // 10, 2))
        weight = np.empty(values)
        weight[np.argsort(total, kind="stable")] = np.diff((np.arange(values + 1) / values) ** of_last)
        late = {name: max(float(weight @ one.ravel()) - float(one.mean()), 0.0) for name, one in beyond.items()}
        whole = sum(late.values())
        return {name: one / whole for name, one in late.items() if one > 0} if whole > 0 else {}


def _waiting(noise: Sequence[Noise], differ: Floats, per_host: float) -> float:
    """Per step, over its meetings; `differ` is (meetings × ranks)."""
    return sum(one.waiting(of, per_host) for one, of in zip(noise, differ, strict=True))


def _apart(values: Floats) -> Floats:
    """Return (steps × ranks) without what all ranks share in a step, and without what each has in every step."""
    from_middle = values - median(values, axis=1)[:, None]
    return np.asarray(from_middle - median(from_middle, axis=0))


def _causes(lost: float, of_kinds: Floats, of_own: dict[NoiseKind, float]) -> Iterator[NoiseCause]:
    own, of_hosts, lasting = of_kinds.tolist()
    shares: dict[NoiseKind, float] = {name: own * share for name, share in of_own.items()} | {
        "shared_by_host": of_hosts,
        "lasting": lasting,
    }
    for name, share in sorted(shares.items(), key=lambda one: -one[1]):
        if share > 0:
            yield NoiseCause(name, lost * share)


def _warnings(of: Meetings, most: int) -> Iterator[KairWarning]:
    if len(of.ranks) < 4:
        yield KairWarning(
            "few_peers", f"{len(of.ranks)} ranks: one late rank can hardly be separated from one early rank"
        )
    if not of.has_hosts:
        known = "hosts are not known" if of.host is None else "all ranks are on one host"
        if most > len(of.ranks):
            yield KairWarning(
                "one_host", f"{known}: what a host costs is estimated only from ranks that are late in the same steps"
            )
    if of.by == "own_times":
        yield KairWarning(
            "no_collectives", "not all ranks meet in collectives: more is waited than this forecast, by own times, says"
        )
