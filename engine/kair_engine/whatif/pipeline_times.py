"""Step times of a pipeline job under many scenarios: some operations as recorded, all others ideal, or the reverse."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints
from kair_engine.whatif.pipeline_model import PipelineModel
from kair_engine.whatif.pipeline_rows import COMMUNICATION, OPTIMIZER, TYPES, PipelineRows
from kair_engine.whatif.replay import Graph, Plan, plan, replay

NEGATIVE_NS = 10e6
"""Less than nothing by more than this is a wrong edge or clock, and taken for nothing [W]."""
AT_ONCE = 4_000_000
"""Durations that are replayed together: what fits the caches is faster, and bounds memory."""


@dataclass(frozen=True)
class PipelineTimes:
    """A model with its recorded and its ideal durations."""

    rows: PipelineRows
    model: PipelineModel
    order: Plan
    own_ns: Floats
    """As recorded; of communications the transfer alone."""
    ideal_ns: Floats

    def steps_if(self, recorded: Sequence[Bools]) -> Floats:
        """(scenarios × steps): every step's time where a scenario's rows are as recorded and all others ideal."""
        at_once = max(1, AT_ONCE // max(len(self.rows), 1))
        parts = [self._steps(recorded[begin : begin + at_once]) for begin in range(0, len(recorded), at_once)]
        return np.concatenate(parts) if parts else np.zeros((0, len(self.rows.steps)))

    def _steps(self, recorded: Sequence[Bools]) -> Floats:
        durations = np.where(np.stack(recorded, axis=1), self.own_ns[:, None], self.ideal_ns[:, None])
        return step_times(self.rows, replay(self.order, durations))


def pipeline_times(rows: PipelineRows, model: PipelineModel) -> PipelineTimes:
    """Prepares the replay; the ideal of an operation is its type's mean, of a communication the median [W]."""
    own = transfer_ns(rows, model.graph)
    ideal = np.empty(len(rows))
    for code in np.unique(rows.type):
        chosen = rows.type == code
        ideal[chosen] = np.median(own[chosen]) if TYPES[code] in COMMUNICATION else own[chosen].mean()
    return PipelineTimes(rows, model, plan(model.graph), own, ideal)


def transfer_ns(rows: PipelineRows, graph: Graph) -> Floats:
    """Per row its own time: the duration, or of a communication what is left once all members have begun."""
    own = rows.end_ns - rows.start_ns
    member = np.flatnonzero(graph.group != NONE)
    latest = np.full(int(graph.group.max(initial=NONE)) + 1, -np.inf)
    np.maximum.at(latest, graph.group[member], rows.start_ns[member])
    own[member] = rows.end_ns[member] - latest[graph.group[member]]
    own[member] = np.where(own[member] <= -NEGATIVE_NS, 0.0, own[member])
    return own


def step_times(rows: PipelineRows, end: Floats) -> Floats:
    """(scenarios × steps): when the last optimizer of each step has ended."""
    last = closing(rows)
    result = np.full((len(rows.steps), end.shape[1]), -np.inf)
    order = last[np.argsort(rows.step[last], kind="stable")]
    begins = np.flatnonzero(np.diff(rows.step[order], prepend=NONE))
    result[rows.step[order[begins]]] = np.maximum.reduceat(end[order], begins, axis=0)
    return result.T


def closing(rows: PipelineRows) -> Ints:
    """The operations whose end is the step's: optimizers; everything of a data-parallel rank that recorded none."""
    cell = rows.step * rows.dp_size + rows.dp
    optimizer = rows.type == TYPES.index(OPTIMIZER)
    has = np.bincount(cell[optimizer], minlength=int(cell.max(initial=NONE)) + 1) > 0
    return np.flatnonzero(optimizer | ~has[cell])


def recorded_steps(rows: PipelineRows) -> Floats:
    """Each step's time as recorded: from its first operation's begin to its last one's end."""
    result = np.zeros(len(rows.steps))
    np.maximum.at(result, rows.step, rows.end_ns)
    return result


def launch_delays(rows: PipelineRows, graph: Graph) -> Floats:
    """How long each operation began after all that it depends on had ended."""
    ready = np.full(len(rows), -np.inf)
    np.maximum.at(ready, graph.after, rows.end_ns[graph.before])
    delay = rows.start_ns - np.where(np.isinf(ready), 0.0, ready)
    return np.where(delay <= -NEGATIVE_NS, 0.0, delay)
