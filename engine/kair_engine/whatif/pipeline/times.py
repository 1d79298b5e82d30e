"""Replays pipeline jobs under many scenarios: some operations as recorded, all others ideal, or the reverse.

Replays launch delays: what an operation waits for beyond all that the model knows of, mostly its host.

Makes a pipeline recording ready for replay, and says what of it the replay cannot take.
"""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, dense, order_by, present
from kair_engine.errors import InputError
from kair_engine.stats import median_by
from kair_engine.trace.model import KairWarning, Trace, short_warning
from kair_engine.whatif.pipeline.dependencies import AlikeSteps, alike_steps
from kair_engine.whatif.pipeline.rows import (
    COMMUNICATION,
    TRANSFERS,
    TYPES,
    Choice,
    PipelineRows,
    all_but,
    both,
    first_operations,
    is_type,
    of_dp_rank,
    of_stage,
    of_types,
    read_pipeline,
    turns,
)
from kair_engine.whatif.prices import OfParts, inexact_replay, ratio
from kair_engine.whatif.replay import Graph, replay, side_by_side

NEGATIVE_NS = 10e6
"""Less than nothing by more than this is a wrong edge or clock, and taken for nothing [W]."""
AT_ONCE = 1 << 20
"""Durations that are replayed together: what fits the caches is faster, and bounds memory."""


@dataclass(frozen=True)
class PipelineTimes:
    """A model with its recorded and its ideal durations."""

    rows: PipelineRows
    alike: tuple[AlikeSteps, ...]
    own_ns: Floats
    """As recorded; of communications the transfer alone."""
    ideal_ns: Floats

    @cached_property
    def graph(self) -> Graph:
        """What waits for what in all steps."""
        of_steps = {begin: of.graph for of in self.alike for begin in of.begins.tolist()}
        return side_by_side([of_steps[begin] for begin in sorted(of_steps)])

    @cached_property
    def members(self) -> Ints:
        """Per row how many members its communication has; 0 of those without."""
        result = np.zeros(len(self.rows), dtype=np.int64)
        for of in self.alike:
            result[of.every] = of.graph.members
        return result

    @cached_property
    def whole(self) -> Bools:
        """The members of communications that have as many as any of their type, two at least."""
        most = np.zeros(len(TYPES), dtype=np.int64)
        np.maximum.at(most, self.rows.type, self.members)
        return np.asarray((self.members > 1) & (self.members == most[self.rows.type]))

    @property
    def unpaired(self) -> int:
        """Sends and receives whose other end is missing: they wait for nobody."""
        return sum(of.unpaired * len(of.steps) for of in self.alike)

    @property
    def stuck(self) -> Ints:
        """The rows that never start: they wait for one another in a circle."""
        return np.concatenate([of.at[np.isin(of.order.order, of.order.stuck)].ravel() for of in self.alike])

    def steps_if(self, recorded: Sequence[Choice]) -> Floats:
        """(scenarios × steps): every step's time where the chosen operations are as recorded and all others ideal."""
        return self._steps_choosing(recorded, self.own_ns, self.ideal_ns)

    def steps_with_some(self, changed: Sequence[Choice], durations: Floats) -> Floats:
        """(scenarios × steps): every step's time where the chosen operations take these durations of all rows.

        All others are as recorded.
        """
        return self._steps_choosing(changed, durations, self.own_ns)

    def _steps_choosing(self, chosen: Sequence[Choice], durations: Floats, otherwise: Floats) -> Floats:
        result = np.empty((len(chosen), len(self.rows.steps)))
        for of in self.alike:
            result[:, of.steps] = self._alike_steps_choosing(of, chosen, durations, otherwise)
        return result

    def alike_steps_if(self, of: AlikeSteps, recorded: Sequence[Choice]) -> Floats:
        """As `steps_if`, of some steps."""
        return self._alike_steps_choosing(of, recorded, self.own_ns, self.ideal_ns)

    def _alike_steps_choosing(
        self, of: AlikeSteps, chosen: Sequence[Choice], durations: Floats, otherwise: Floats
    ) -> Floats:
        result = np.empty((len(chosen), len(of.steps)))
        masks = np.stack([choice(of.rows)[of.in_step] for choice in chosen], axis=2)[..., None]
        for steps in parts_of(len(of.steps), AT_ONCE // len(of.rows)):
            ours, others = (of_row[of.at[:, :, steps]][:, :, None] for of_row in (durations, otherwise))
            parts = list(parts_of(len(chosen), AT_ONCE // ours.size))
            # One array for all parts: fresh memory has to be paged in, which takes a sixth of the time.
            room = np.empty(ours.size * max(part.stop - part.start for part in parts))
            for part in parts:
                mask = masks[:, :, part]
                ends = room[: ours.size * mask.shape[2]].reshape(*mask.shape[:3], -1)
                ends[:] = others
                np.copyto(ends, ours, where=mask)
                result[part, steps] = step_times(of, ends)
        return result

    def steps_with(self, durations: Floats, delays: Floats | None = None) -> Floats:
        """Every step's time with these durations, and delays, of all rows."""
        result = np.empty(len(self.rows.steps))
        for of in self.alike:
            result[of.steps] = step_times(of, durations[of.at], None if delays is None else delays[of.at])
        return result

    def ends(self, durations: Floats) -> Floats:
        """When each row ends with these durations of all rows; NaN of those that never start."""
        result = np.empty(len(self.rows))
        for of in self.alike:
            result[of.at] = _replayed(of, durations[of.at])
        return result


def pipeline_times(rows: PipelineRows) -> PipelineTimes:
    """Prepare the replay; the ideal of an operation is its type's mean, of a communication the median [W]."""
    alike = alike_steps(rows)
    own = transfer_ns(rows, alike)
    ideal = np.zeros(len(TYPES))
    ends = np.cumsum(np.bincount(rows.type, minlength=len(TYPES)))
    for code, of_type in enumerate(np.split(own[order_by(rows.type)], ends[:-1])):
        if len(of_type):
            ideal[code] = np.median(of_type) if TYPES[code] in COMMUNICATION else of_type.mean()
    return PipelineTimes(rows, alike, own, ideal[rows.type])


def step_times(of: AlikeSteps, durations: Floats, delays: Floats | None = None) -> Floats:
    """When the last optimizer of each step has ended; of durations (places × lanes × any: scenarios, steps).

    The lanes may also be two: of each of several ranks, and of an ideal copy that stands for all others.
    """
    return np.asarray(_replayed(of, durations, delays)[of.last].max(axis=(0, 1)))


def _replayed(of: AlikeSteps, durations: Floats, delays: Floats | None = None) -> Floats:
    """When each operation ends, in the durations' shape; they are overwritten."""
    places, lanes = durations.shape[:2]
    ends = np.ascontiguousarray(durations).reshape(places, -1)
    replay(
        of.order,
        ends,
        delays=None if delays is None else delays.reshape(places, -1),
        lanes=lanes,
        across=of.across[of.order.order],
    )
    return ends.reshape(durations.shape)


def parts_of(count: int, at_once: int) -> Iterator[slice]:
    """0 … count-1 in slices of so many, at least one."""
    return (slice(begin, min(begin + max(at_once, 1), count)) for begin in range(0, count, max(at_once, 1)))


def transfer_ns(rows: PipelineRows, alike: Sequence[AlikeSteps]) -> Floats:
    """Per row its self time: the duration, or of a communication what is left once all members have begun."""
    own = rows.end_ns - rows.start_ns
    for of in alike:
        group = of.graph.group
        by_group = order_by(group)[np.count_nonzero(group == NONE) :]
        size = of.graph.members[by_group]
        for members in present(size).tolist():
            at = of.begins[:, None, None] + by_group[size == members].reshape(-1, members)
            left = rows.end_ns[at] - rows.start_ns[at].max(axis=2, keepdims=True)
            own[at] = np.where(left <= -NEGATIVE_NS, 0.0, left)
    return own


def recorded_steps(rows: PipelineRows) -> Floats:
    """Each step's time as recorded: from its first operation's begin to its last one's end."""
    begins = np.searchsorted(rows.step, np.arange(len(rows.steps)))
    return np.asarray(np.maximum.reduceat(rows.end_ns, begins))


def launch_delays(times: PipelineTimes) -> Floats:
    """Per row how long it began after all that it depends on had ended."""
    rows, ready = times.rows, np.full(len(times.rows), -np.inf)
    for of in times.alike:
        by_after = order_by(of.graph.after)
        before, after = of.graph.before[by_after], of.graph.after[by_after]
        turn = turns(after)
        for number in range(int(turn.max(initial=NONE)) + 1):
            at, of_turn = of.begins[:, None] + after[turn == number], of.begins[:, None] + before[turn == number]
            ready[at] = np.maximum(ready[at], rows.end_ns[of_turn])
    delay = rows.start_ns - np.where(np.isinf(ready), 0.0, ready)
    return np.where(delay <= -NEGATIVE_NS, 0.0, delay)


def delays_as_elsewhere(times: PipelineTimes, steps: AbstractSet[int]) -> Floats:
    """Per row its delay; in some steps no longer than the same operation's in the others, in the median."""
    rows, delays = times.rows, launch_delays(times)
    of = np.isin(np.array(rows.steps)[rows.step], sorted(steps))
    same = dense(np.stack((rows.dp, rows.stage, rows.type, rows.turn)).astype(np.int64))
    usual = np.full(int(same.max(initial=0)) + 1, np.inf)
    usual[same[~of]] = median_by(same[~of], delays[~of])
    return np.where(of, np.minimum(delays, usual[same]), delays)


THRESHOLD = 1.03
"""Below this launch delays are not taken apart [W]."""
_LARGEST = 300_000_000
"""Operations × scenarios."""


def replayed_with_delays(times: PipelineTimes) -> Floats:
    """Each step's time, replayed as recorded, with launch delays: what was measured, if the model holds."""
    delays = launch_delays(times)
    return times.steps_with(times.own_ns, delays)


def launch_steps(times: PipelineTimes, replayed: Floats, measured: Floats) -> OfParts[Floats] | None:
    """Step times (steps), ns, with the launch delays of one part alone, all durations as recorded.

    Return None where launch delays cost too little, or taking them apart takes too long.
    """
    rows = times.rows
    scenarios = rows.dp_size + rows.pp_size + len(TYPES)
    if ratio(float(measured.mean()), float(replayed.mean())) < THRESHOLD or scenarios * len(rows) > _LARGEST:
        return None
    delays = launch_delays(times)

    def steps(choice: Choice) -> Floats:
        return times.steps_with(times.own_ns, np.where(choice(rows), delays, 0.0))

    others = all_but(first_operations)
    types = {name: both(choice, others) for name, choice in of_types(rows).items()} | {"first-op": first_operations}
    return OfParts(
        kinds={name: steps(choice) for name, choice in types.items() if choice(rows).any()},
        stages={stage: steps(of_stage(stage)) for stage in range(rows.pp_size)},
        dp_ranks={dp: steps(of_dp_rank(dp)) for dp in range(rows.dp_size)},
    )


def replayable(trace: Trace) -> tuple[PipelineTimes, tuple[KairWarning, ...]]:
    """Return the chosen steps, and what of them is left out: steps that wait in a circle, and those that took no time.

    Raises InputError where none is left, or the recording has no operation of a known type.
    """
    rows = read_pipeline(trace)
    if not len(rows):
        raise InputError("the recording has none of the operation types of a training step")
    times = pipeline_times(rows)
    stuck, took = times.stuck, recorded_steps(rows)
    circular, empty = np.zeros(len(took), dtype=bool), (took == 0) & took.any()
    circular[rows.step[stuck]] = True
    if not (circular | empty).any():
        return times, ()
    kinds = ", ".join(sorted({TYPES[code] for code in rows.type[stuck].tolist()})[:5])
    if (circular | empty).all():
        raise InputError(
            f"no step of the recording can be replayed: its operations wait for one another in a circle ({kinds})"
        )
    warnings = []
    if circular.any():
        text = f"{int(circular.sum())} of {len(took)} steps are left out: operations wait for one another in a circle"
        warnings.append(short_warning("circular_dependencies", f"{text} ({kinds})"))
    if empty.any():
        warnings.append(
            short_warning("empty_steps", f"{int(empty.sum())} of {len(took)} steps are left out: they took no time")
        )
    kept = [step for step, left_out in zip(rows.steps, circular | empty, strict=True) if not left_out]
    rows = read_pipeline(trace.select(kept))
    return pipeline_times(rows), tuple(warnings)


def ranks_of_workers(trace: Trace, rows: PipelineRows) -> dict[tuple[int, int], int]:
    """(dp rank, stage) → rank, of the workers in the chosen steps."""
    layout = trace.job.layout
    if layout is None:
        return {}
    recorded = np.zeros((rows.dp_size, rows.pp_size), dtype=bool)
    recorded[rows.dp, rows.stage] = True
    # The last worker of all may be in none of these steps, or in none of their operations that are known.
    present = set(zip(*(place.tolist() for place in np.nonzero(recorded)), strict=True))
    places = {(layout.dp_rank.get(rank, 0), layout.pipeline_stage.get(rank, 0)): rank for rank in trace.job.ranks}
    return {place: rank for place, rank in places.items() if place in present}


def replay_warnings(times: PipelineTimes, undelayed: Floats, measured: Floats) -> Iterator[KairWarning]:
    """Yield what of the recording the replay could not take as it should, and how far it is off."""
    rows = times.rows
    if rows.unknown:
        listed = ", ".join(rows.unknown[:5])
        yield KairWarning("unknown_operation_types", f"operations of unknown types are left out: {listed}")
    if times.unpaired:
        text = f"{times.unpaired} sends and receives have no other end in the recording: they wait for nobody"
        yield KairWarning("unpaired_transfers", text)
    partly = _lacking_members(times)
    if len(partly):
        kinds = ", ".join(sorted({TYPES[code] for code in rows.type[partly].tolist()}))
        text = (
            f"{len(partly)} operations ({kinds}) lack members that others of their type have: only those recorded meet"
        )
        yield KairWarning("incomplete_groups", text)
    yield from inexact_replay(rows.steps, undelayed, measured)


def _lacking_members(times: PipelineTimes) -> Ints:
    """Of collectives: sends and receives without their other end are counted by the model."""
    kind = times.rows.type
    partly = np.flatnonzero((times.members > 0) & ~times.whole & ~is_type(kind, *TRANSFERS))
    several = np.zeros(len(TYPES), dtype=bool)
    several[kind[times.whole]] = True
    return partly[several[kind[partly]]]
