"""Step times of a pipeline job under many scenarios: some operations as recorded, all others ideal, or the reverse."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, order_by
from kair_engine.whatif.alike_steps import AlikeSteps, alike_steps
from kair_engine.whatif.choices import Choice
from kair_engine.whatif.pipeline_model import PipelineModel, whole_groups
from kair_engine.whatif.pipeline_rows import COMMUNICATION, TYPES, PipelineRows
from kair_engine.whatif.replay import replay_in_place
from kair_engine.whatif.waves import Graph

NEGATIVE_NS = 10e6
"""Less than nothing by more than this is a wrong edge or clock, and taken for nothing [W]."""
AT_ONCE = 1 << 20
"""Durations that are replayed together: what fits the caches is faster, and bounds memory."""


@dataclass(frozen=True)
class PipelineTimes:
    """A model with its recorded and its ideal durations."""

    rows: PipelineRows
    model: PipelineModel
    alike: tuple[AlikeSteps, ...]
    own_ns: Floats
    """As recorded; of communications the transfer alone."""
    ideal_ns: Floats

    @cached_property
    def whole(self) -> Bools:
        """The members of communications that lack none."""
        return whole_groups(self.rows, self.model.graph.group)

    @property
    def stuck(self) -> Ints:
        """The rows that never start: they wait for one another in a circle."""
        return np.concatenate([of.at[np.isin(of.order.order, of.order.stuck)].ravel() for of in self.alike])

    def steps_if(self, recorded: Sequence[Choice]) -> Floats:
        """(scenarios × steps): every step's time where the chosen operations are as recorded and all others ideal."""
        result = np.empty((len(recorded), len(self.rows.steps)))
        for of in self.alike:
            result[:, of.steps] = self.alike_steps_if(of, recorded)
        return result

    def alike_steps_if(self, of: AlikeSteps, recorded: Sequence[Choice]) -> Floats:
        """The same of some steps."""
        result = np.empty((len(recorded), len(of.steps)))
        masks = np.stack([choice(of.rows)[of.in_step] for choice in recorded], axis=2)[..., None]
        # Alike steps have the same types, and those one ideal.
        ideal = self.ideal_ns[of.at[:, :, :1]][:, :, None]
        for steps in parts_of(len(of.steps), AT_ONCE // len(of.rows)):
            own = self.own_ns[of.at[:, :, steps]][:, :, None]
            parts = list(parts_of(len(recorded), AT_ONCE // own.size))
            # One array for all parts: fresh memory has to be paged in, which takes a sixth of the time.
            room = np.empty(own.size * max(part.stop - part.start for part in parts))
            for part in parts:
                mask = masks[:, :, part]
                ends = room[: own.size * mask.shape[2]].reshape(*mask.shape[:3], -1)
                ends[:] = ideal
                np.copyto(ends, own, where=mask)
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


def pipeline_times(rows: PipelineRows, model: PipelineModel) -> PipelineTimes:
    """Prepares the replay; the ideal of an operation is its type's mean, of a communication the median [W]."""
    own = transfer_ns(rows, model.graph)
    ideal = np.zeros(len(TYPES))
    ends = np.cumsum(np.bincount(rows.type, minlength=len(TYPES)))
    for code, of_type in enumerate(np.split(own[order_by(rows.type)], ends[:-1])):
        if len(of_type):
            ideal[code] = np.median(of_type) if TYPES[code] in COMMUNICATION else of_type.mean()
    return PipelineTimes(rows, model, alike_steps(rows, model.graph), own, ideal[rows.type])


def step_times(of: AlikeSteps, durations: Floats, delays: Floats | None = None) -> Floats:
    """When the last optimizer of each step has ended; of durations (places × lanes × any: scenarios, steps).

    The lanes may also be two: of each of several ranks, and of an ideal copy that stands for all others.
    """
    return np.asarray(_replayed(of, durations, delays)[of.last].max(axis=(0, 1)))


def _replayed(of: AlikeSteps, durations: Floats, delays: Floats | None = None) -> Floats:
    """When each operation ends, in the durations' shape; they are overwritten."""
    places, lanes = durations.shape[:2]
    ends = np.ascontiguousarray(durations).reshape(places, -1)
    replay_in_place(
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


def transfer_ns(rows: PipelineRows, graph: Graph) -> Floats:
    """Per row its own time: the duration, or of a communication what is left once all members have begun."""
    own = rows.end_ns - rows.start_ns
    member = np.flatnonzero(graph.group != NONE)
    latest = np.full(int(graph.group.max(initial=NONE)) + 1, -np.inf)
    np.maximum.at(latest, graph.group[member], rows.start_ns[member])
    own[member] = rows.end_ns[member] - latest[graph.group[member]]
    own[member] = np.where(own[member] <= -NEGATIVE_NS, 0.0, own[member])
    return own


def recorded_steps(rows: PipelineRows) -> Floats:
    """Each step's time as recorded: from its first operation's begin to its last one's end."""
    begins = np.searchsorted(rows.step, np.arange(len(rows.steps)))
    return np.asarray(np.maximum.reduceat(rows.end_ns, begins))


def launch_delays(rows: PipelineRows, graph: Graph) -> Floats:
    """How long each operation began after all that it depends on had ended."""
    ready = np.full(len(rows), -np.inf)
    np.maximum.at(ready, graph.after, rows.end_ns[graph.before])
    delay = rows.start_ns - np.where(np.isinf(ready), 0.0, ready)
    return np.where(delay <= -NEGATIVE_NS, 0.0, delay)
