"""Implements the published model, of recordings with operation types and pipeline stages [W].

Attributes the slowdown of a pipeline job: to operation types, data-parallel ranks, stages and workers [W §4].

Ranks that are ideal and run the same program are alike. So each rank, recorded in part, is paired with a copy of it
that is wholly ideal and stands for all the others: two lanes instead of as many as there are ranks.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.causes import FixKind, RemedyName
from kair_engine.results.whatif import Fix, Remedy
from kair_engine.trace.loading import load_step
from kair_engine.trace.model import KairWarning, Trace
from kair_engine.whatif.model import (
    Attribution,
    Baseline,
    Counterfactual,
    DrawnStep,
    Foreseen,
    Model,
    MovedStep,
    Parts,
    Removed,
    ReplayedSteps,
    Transplanted,
)
from kair_engine.whatif.pipeline.dependencies import AlikeSteps
from kair_engine.whatif.pipeline.remedies import (
    FixedDurations,
    forward_pauses,
    irregular_causes,
    last_stage_excess,
    remedies,
    without_collections,
)
from kair_engine.whatif.pipeline.rows import (
    Choice,
    Microbatches,
    both,
    everything,
    forward_backward,
    microbatches,
    of_dp_rank,
    of_stage,
    of_types,
)
from kair_engine.whatif.pipeline.times import (
    AT_ONCE,
    PipelineTimes,
    delays_as_elsewhere,
    launch_steps,
    parts_of,
    ranks_of_workers,
    recorded_steps,
    replay_warnings,
    replayable,
    replayed_with_delays,
    step_times,
)
from kair_engine.whatif.prices import SLOWEST_SHARE, OfParts, Symptoms, largest_first, ratios


class PipelineModel(Model):
    """See `Model`. Its replays have no launch delays but those that are asked for."""

    kinds: tuple[FixKind, ...] = ("compute", "communication", "gc")
    ideal_is_published = True
    remedy_names = ("even_stages", "sorted_microbatches")
    same = Baseline.UNDELAYED, Baseline.RECORDED

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._times, self._left_out = replayable(trace)
        self._rows = self._times.rows
        super().__init__(trace.job, self._rows.steps)
        self._rank_of = ranks_of_workers(trace, self._rows)
        self._measured = recorded_steps(self._rows)
        self._durations = FixedDurations(trace.job, self._times, self._rank_of)

    @cached_property
    def _batches(self) -> Microbatches:
        return microbatches(self._rows)

    @cached_property
    def _pauses(self) -> tuple[Ints, Floats]:
        return forward_pauses(self._times, self._batches)

    @property
    def last_stage(self) -> tuple[int, ...]:
        """The ranks of the last of several pipeline stages."""
        last = self._rows.pp_size - 1
        return tuple(rank for (_, stage), rank in self._rank_of.items() if stage == last > 0)

    def require(self, fix: Fix) -> None:
        """Raise UsageError where no operation of the chosen steps fits the fix."""
        self._durations.fitting(fix)

    def parts(self) -> Iterator[Parts]:
        """Yield what all steps are made of: their operations."""
        yield self._durations.parts()

    def attribute(self, fixes: Sequence[tuple[Fix, ...]]) -> Attribution:
        """Who costs what, and the step times with fixes made."""
        done = self.replay([*Baseline, *fixes])
        parts, workers = attribute(self._times)
        ideal = float(done.times[3].mean())
        of_stages, of_dp_ranks = (
            ratios(np.stack([*of.values()]).mean(axis=-1), ideal) for of in (parts.stages, parts.dp_ranks)
        )
        approximate, ranks = np.minimum(of_dp_ranks[:, None], of_stages), self._rank_of
        by_rank = {rank: float(approximate[place]) for place, rank in ranks.items()}
        # Of equal ones the lowest rank.
        slowest = sorted(by_rank, key=lambda rank: (-by_rank[rank], rank))[: math.ceil(len(ranks) * SLOWEST_SHARE)]
        too_many = KairWarning("too_many_workers", "ranks do not run alike and are too many for a replay of each")
        if workers is not None:
            parts = replace(parts, ranks={rank: workers[place] for place, rank in ranks.items()})
        return Attribution(
            replayed=done,
            parts=parts,
            by_rank_approximate=largest_first(by_rank),
            heatmap=(approximate if workers is None else ratios(workers.mean(axis=-1), ideal)).T,
            slowest=tuple(slowest),
            warnings=(too_many,) if workers is None else (),
        )

    def removed(self, found: Attribution, next_asked: Sequence[Counterfactual] = ()) -> Removed:  # noqa: ARG002
        """Return what the fix of each part saves: as `kair whatif --fix` prices it."""
        fixed, excess = self._durations.of((Fix(),)), self._durations.excess_ns()
        kinds, stages, dp_ranks = found.parts.kinds, found.parts.stages, found.parts.dp_ranks
        costliest = sorted(excess, key=lambda rank: (-excess[rank], rank))
        affordable = _LARGEST_REMOVED // max(len(self._rows), 1) - len(kinds) - len(dp_ranks)
        most = min(max(affordable, _FEWEST_REMOVED), _MOST_REMOVED)
        chosen, place, types = costliest[:most], {rank: at for at, rank in self._rank_of.items()}, of_types(self._rows)
        of_ranks = [both(of_dp_rank(place[rank][0]), of_stage(place[rank][1])) for rank in chosen]
        # None of these fixes is about two ranks of a stage: each time the others of it are the peers.
        choices = [*(types[kind] for kind in kinds), *map(of_dp_rank, dp_ranks), *of_ranks]
        times = iter(self._times.steps_with_some(choices, fixed))
        # A whole stage has no peers in it: as with `--fix`, the published ideal stands for them.
        of_stages = np.minimum(self._times.own_ns, self._times.ideal_ns)
        parts = OfParts(
            kinds=dict(zip(kinds, times, strict=False)),
            stages=dict(zip(stages, self._times.steps_with_some([*map(of_stage, stages)], of_stages), strict=True)),
            dp_ranks=dict(zip(dp_ranks, times, strict=False)),
            ranks=dict(zip(chosen, times, strict=True)),
        )
        return Removed(parts, {rank: excess[rank] for rank in sorted(costliest[most:])})

    def symptoms(self, replayed: ReplayedSteps) -> Symptoms:
        """Return what speaks for a cause."""
        now, ideal = _means(replayed)
        irregular = irregular_causes(self._times, self._pauses, self._rank_of, replayed_ns=now, ideal_ns=ideal)
        return Symptoms(
            *forward_backward(self._rows, self._batches, self._times.own_ns),
            last_stage_excess(self._times),
            tuple(irregular),
        )

    def waits_if_ideal(self) -> Mapping[int, float]:
        """Per rank, ns."""
        from kair_engine.whatif.pipeline.ideal_waiting import waits_in_ideal  # of all questions few need it

        return waits_in_ideal(self._times, self._rank_of)

    def launch_delays(self, replayed: ReplayedSteps) -> OfParts[Floats] | None:
        """Step times with the launch delays of one part alone."""
        return launch_steps(self._times, replayed.times[1], replayed.measured)

    def remedies(self, recorded: Floats) -> tuple[Remedy, ...]:
        """Return what would help where no rank is at fault."""
        return tuple(remedies(self._times, recorded))

    def without_gc(self, worth_ns: float) -> tuple[float, float]:  # noqa: ARG002 - a replay costs little
        """Return (the mean step without garbage collections, the longest of them), ns.

        Infinite where there was none.
        """
        durations, longest = without_collections(self._times, self._pauses)
        return (float(self._times.steps_with(durations).mean()), longest) if longest > 0 else (math.inf, math.inf)

    def price_remedies(self, names: Sequence[RemedyName]) -> tuple[Remedy, ...]:
        """Price published remedies by name. Raises UsageError where the recording cannot carry one."""
        if not names:
            return ()
        from kair_engine.whatif.pipeline.schedules import PUBLISHED  # few ask for it

        now_ns = float(self.replay([Baseline.RECORDED]).times[0].mean())
        return tuple(PUBLISHED[name](name, self._times, now_ns) for name in names)

    def warnings_of(self, replayed: ReplayedSteps) -> tuple[KairWarning, ...]:
        """Return what of the recording the replay could not take as it should."""
        return (*self._left_out, *replay_warnings(self._times, replayed.times[2], replayed.measured))

    def timelines(self) -> Iterator[DrawnStep]:
        """Lay out every step as recorded, without launch delays, and ideal."""
        from kair_engine.whatif.pipeline.timeline import drawn_steps  # few ask for it

        return drawn_steps(self._times, self._trace, self._rank_of)

    def moved(self, fixes: Sequence[Fix]) -> MovedStep:
        """Where the operations of the first step would lie with all of `fixes` made, without launch delays."""
        from kair_engine.whatif.pipeline.timeline import moved_step  # few ask for it

        if len(self.steps) > 1:
            return PipelineModel(self._trace.select(self.steps[:1])).moved(fixes)
        ops = load_step(self._trace, self.steps[0])
        return moved_step(self._times, ops, self._rank_of, self._durations.of(fixes))

    def _replayed(self, missing: list[Counterfactual], foreseen: Foreseen | None) -> ReplayedSteps:  # noqa: ARG002 - one more costs its own replay alone
        return ReplayedSteps(self.steps, self._measured, np.stack([self._steps(one) for one in missing]))

    def _steps(self, counterfactual: Counterfactual) -> Floats:
        """Each step's time."""
        if counterfactual is Baseline.DELAYED:
            return replayed_with_delays(self._times)
        if counterfactual is Baseline.IDEAL:
            return self._times.steps_with(self._times.ideal_ns)
        if isinstance(counterfactual, Transplanted):
            durations, steps = self._durations.transplanted(counterfactual), counterfactual.undelayed
            return self._times.steps_with(durations, None if steps is None else delays_as_elsewhere(self._times, steps))
        fixes = counterfactual if isinstance(counterfactual, tuple) else ()
        return self._times.steps_with(self._durations.of(fixes))


def _means(replayed: ReplayedSteps) -> tuple[float, float]:
    """Return the mean step as recorded, and ideal."""
    _, recorded, _, ideal, *_ = replayed.times
    return float(recorded.mean()), float(ideal.mean())


_LARGEST = 300_000_000
"""Operations × scenarios that are replayed one by one where ranks do not run alike."""
_LARGEST_REMOVED = 40_000_000
"""Operations × fixes of parts that are replayed."""
_FEWEST_REMOVED, _MOST_REMOVED = 16, 64
"""Ranks whose fix is replayed by itself, whatever the size of the job: the analysis takes half as long again for it."""


def attribute(times: PipelineTimes) -> tuple[OfParts[Floats], Floats | None]:
    """Replay steps where only one part is as recorded, all else ideal; (dp ranks × stages × steps) of workers.

    None of workers where that takes too long.
    """
    types = of_types(times.rows)
    stages = range(times.rows.pp_size)
    steps = iter(times.steps_if([*types.values(), *map(of_stage, stages)]))
    dp_ranks, workers = _by_worker(times)
    kinds = dict(zip(types, steps, strict=False))
    return OfParts(kinds, dict(zip(stages, steps, strict=True)), dict(enumerate(dp_ranks))), workers


def _by_worker(times: PipelineTimes) -> tuple[Floats, Floats | None]:
    """Step times with every data-parallel rank, and every worker, as recorded among ideal others."""
    rows, dps, pps = times.rows, times.rows.dp_size, times.rows.pp_size
    dp_ranks, workers = np.empty((dps, len(rows.steps))), np.empty((dps, pps, len(rows.steps)))
    stages = [of_stage(stage) for stage in range(pps)]
    too_many = False
    for of in times.alike:
        if of.lanes > 1:
            found = _beside_ideal(times, of, [everything, *stages])
            dp_ranks[:, of.steps], workers[:, :, of.steps] = found[0], found[1:].transpose(1, 0, 2)
            continue
        each = [of_dp_rank(dp) for dp in range(dps)]
        dp_ranks[:, of.steps] = times.alike_steps_if(of, each)
        too_many |= dps * pps * len(of.rows) * len(of.steps) > _LARGEST
        if not too_many:
            single = [both(dp, stage) for dp in each for stage in stages]
            workers[:, :, of.steps] = times.alike_steps_if(of, single).reshape(dps, pps, -1)
    return dp_ranks, None if too_many else workers


def _beside_ideal(times: PipelineTimes, of: AlikeSteps, recorded: list[Choice]) -> Floats:
    """Return (scenarios × dp ranks × steps): every rank with the chosen rows as recorded, paired with an ideal one."""
    example, size = of.rows.take(slice(0, of.lane.nodes)), of.lane.nodes
    masks = np.stack([choice(example)[of.order.order] for choice in recorded], axis=1)[:, :, None, None]
    ideal = times.ideal_ns[of.at[:, 0, 0]][:, None, None, None]
    result = np.empty((len(recorded), of.lanes, len(of.steps)))
    for dps in parts_of(of.lanes, AT_ONCE // (2 * len(recorded) * size * len(of.steps))):
        own = times.own_ns[of.at[:, dps]][:, None]
        ends = np.empty((size, 2, len(recorded), *own.shape[2:]))
        ends[:, 0], ends[:, 1] = np.where(masks, own, ideal), ideal
        result[:, dps] = step_times(of, ends)
    return result
