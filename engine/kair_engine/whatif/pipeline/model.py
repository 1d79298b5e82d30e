"""Implements the published model, of recordings with operation types and pipeline stages [W]."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kair_engine.arrays import Bools, Floats
from kair_engine.causes import FixKind, RemedyName
from kair_engine.results.fix import Fix
from kair_engine.results.whatif import PartEffect, Remedy
from kair_engine.trace.model import KairWarning, Trace
from kair_engine.whatif.model import (
    Attribution,
    Baseline,
    Counterfactual,
    Foreseen,
    Parts,
    ReplayedSteps,
    Symptoms,
    Transplanted,
)
from kair_engine.whatif.pipeline.attribution import attribute, explained, slowest_workers
from kair_engine.whatif.pipeline.choices import Choice
from kair_engine.whatif.pipeline.fixed_durations import FixedDurations
from kair_engine.whatif.pipeline.irregular import irregular_causes
from kair_engine.whatif.pipeline.launches import launch_steps, replayed_with_delays
from kair_engine.whatif.pipeline.microbatches import forward_backward, microbatches
from kair_engine.whatif.pipeline.remedies import last_stage_excess, remedies
from kair_engine.whatif.pipeline.replayable import ranks_of_workers, replay_warnings, replayable
from kair_engine.whatif.pipeline.rows import PipelineRows
from kair_engine.whatif.pipeline.times import recorded_steps
from kair_engine.whatif.ratios import OfParts, largest_first
from kair_engine.whatif.replay_cache import ReplayCache

if TYPE_CHECKING:
    from kair_engine.whatif.replay.trace_events import Event, Slice


class PipelineModel:
    """See `Model`. Its replays have no launch delays but those that are asked for."""

    kinds: tuple[FixKind, ...] = ("compute", "communication", "gc")
    remedy_names: tuple[RemedyName, ...] = ("even_stages", "sorted_microbatches")
    ideal_is_published = True

    def __init__(self, trace: Trace) -> None:
        self.job = trace.job
        self._times, self._left_out = replayable(trace)
        self._rows = self._times.rows
        self.steps = self._rows.steps
        self._rank_of = ranks_of_workers(trace, self._rows)
        self._measured = recorded_steps(self._rows)
        self._durations = FixedDurations(trace.job, self._times, self._rank_of)
        self._remembered = ReplayCache()

    @property
    def last_stage(self) -> tuple[int, ...]:
        """The ranks of the last of several pipeline stages."""
        last = self._rows.pp_size - 1
        return tuple(rank for (_, stage), rank in self._rank_of.items() if stage == last > 0)

    def fits_memory(self) -> bool:
        """All operations are in memory already."""
        return True

    def require(self, fix: Fix) -> None:
        """Raises UsageError where no operation of the chosen steps fits the fix."""
        self._durations.fitting(fix)

    def parts(self) -> Iterator[Parts]:
        """What all steps are made of: their operations."""
        yield self._durations.parts()

    def replay(
        self,
        counterfactuals: Sequence[Counterfactual],
        foreseen: Foreseen | None = None,  # noqa: ARG002 - one more question costs its own replay alone
    ) -> ReplayedSteps:
        """Step times."""
        # Its replays have no delays.
        same = [Baseline.RECORDED if one is Baseline.UNDELAYED else one for one in counterfactuals]
        return self._remembered.of(same, self._replayed)

    def attribute(self, fixes: Sequence[tuple[Fix, ...]]) -> Attribution:
        """Who costs what, and the step times with fixes made."""
        of = attribute(self._times)
        delayed, approximate, ranks = replayed_with_delays(self._times), of.approximate(), self._rank_of
        fixed = [self._steps(one) for one in fixes]
        too_many = KairWarning("too_many_workers", "ranks do not run alike and are too many for a replay of each")
        return Attribution(
            replayed=ReplayedSteps(
                self.steps, self._measured, np.stack([delayed, of.replayed, of.replayed, of.ideal, *fixed])
            ),
            parts=OfParts(
                kinds=of.types,
                stages=dict(enumerate(of.stages)),
                dp_ranks=dict(enumerate(of.dp_ranks)),
                hosts={},
                ranks={} if of.workers is None else {rank: of.workers[place] for place, rank in ranks.items()},
            ),
            by_rank_approximate=largest_first({rank: float(approximate[place]) for place, rank in ranks.items()}),
            heatmap=of.of_workers().T,
            slowest=slowest_workers(approximate, ranks),
            warnings=(too_many,) if of.workers is None else (),
        )

    def effects(self, groups: Sequence[Sequence[int]], replayed: ReplayedSteps) -> list[PartEffect | None]:
        """Of groups of ranks what goes away without each, and what each does alone."""
        told = [0 < len(ranks) < len(self._rank_of) for ranks in groups]
        parts = [self._of_ranks(ranks) for ranks, is_told in zip(groups, told, strict=True) if is_told]
        found = iter(explained(self._times, parts, *_means(replayed)) if parts else ())
        return [next(found) if is_told else None for is_told in told]

    def symptoms(self, replayed: ReplayedSteps) -> Symptoms:
        """What speaks for a cause."""
        batches = microbatches(self._rows)
        now, ideal = _means(replayed)
        irregular = irregular_causes(self._times, batches, self._rank_of, replayed_ns=now, ideal_ns=ideal)
        return Symptoms(
            *forward_backward(self._rows, batches, self._times.own_ns),
            last_stage_excess(self._times),
            tuple(irregular),
        )

    def host_stops(self) -> None:
        """None: threads are not recorded."""
        return

    def launch_delays(self, replayed: ReplayedSteps) -> OfParts[Floats] | None:
        """Step times with the launch delays of one part alone."""
        return launch_steps(self._times, replayed.times[1], replayed.measured)

    def remedies(self, recorded: Floats) -> tuple[Remedy, ...]:
        """What would help where no rank is at fault."""
        return tuple(remedies(self._times, recorded))

    def warnings_of(self, replayed: ReplayedSteps) -> tuple[KairWarning, ...]:
        """What of the recording the replay could not take as it should."""
        return (*self._left_out, *replay_warnings(self._times, replayed.times[0], replayed.measured))

    def timeline(self) -> "Iterator[Event | Slice]":
        """Trace events of the job as recorded, and of the ideal one."""
        from kair_engine.whatif.pipeline.timeline import pipeline_timeline  # few ask for it

        return pipeline_timeline(self._times, self._rank_of)

    def _replayed(self, counterfactuals: Sequence[Counterfactual]) -> ReplayedSteps:
        return ReplayedSteps(self.steps, self._measured, np.stack([self._steps(one) for one in counterfactuals]))

    def _steps(self, counterfactual: Counterfactual) -> Floats:
        """Each step's time."""
        if counterfactual is Baseline.DELAYED:
            return replayed_with_delays(self._times)
        if counterfactual is Baseline.IDEAL:
            return self._times.steps_with(self._times.ideal_ns)
        if isinstance(counterfactual, Transplanted):
            return self._times.steps_with(self._durations.transplanted(counterfactual))
        fixes = counterfactual if isinstance(counterfactual, tuple) else ()
        return self._times.steps_with(self._durations.of(fixes))

    def _of_ranks(self, ranks: Sequence[int]) -> Choice:
        chosen = np.zeros((self._rows.dp_size, self._rows.pp_size), dtype=bool)
        for place, rank in self._rank_of.items():
            chosen[place] = rank in ranks

        def choose(rows: PipelineRows) -> Bools:
            return np.asarray(chosen[rows.dp, rows.stage])

        return choose


def _means(replayed: ReplayedSteps) -> tuple[float, float]:
    """The mean step as recorded, and ideal."""
    _, recorded, _, ideal, *_ = replayed.times
    return float(recorded.mean()), float(ideal.mean())
