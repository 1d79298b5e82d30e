"""Steps that run the same operations with the same dependencies: one plan replays them all, side by side."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kair_engine.arrays import NONE, Bools, Ints
from kair_engine.whatif.pipeline_rows import PipelineRows
from kair_engine.whatif.replay import Graph, Plan, plan


@dataclass(frozen=True)
class AlikeSteps:
    """Some steps, and what their operations and dependencies are."""

    steps: Ints
    """Their codes."""
    begins: Ints
    """Where the rows of each begin."""
    rows: PipelineRows
    """Of the first step. In the others dp rank, stage, type and turn are the same, row by row."""
    graph: Graph
    """Of one step."""

    @cached_property
    def order(self) -> Plan:
        """The plan that replays each of them."""
        return plan(self.graph)

    @cached_property
    def last(self) -> Bools:
        """The places of the operations that end a step."""
        return np.isin(self.order.order, self.rows.closing())

    @cached_property
    def at(self) -> Ints:
        """(places of the plan × steps): the rows."""
        return np.asarray(self.order.order[:, None] + self.begins)


def alike_steps(rows: PipelineRows, graph: Graph) -> tuple[AlikeSteps, ...]:
    """All steps, those together that differ in nothing but times."""
    begins = np.searchsorted(rows.step, np.arange(len(rows.steps) + 1))
    edges, edge_begins = _edges_by_step(rows, graph)
    first_member = np.full(int(graph.group.max(initial=NONE)) + 1, NONE)
    member = np.flatnonzero(graph.group != NONE)[::-1]
    first_member[graph.group[member]] = member
    example: dict[tuple[bytes, ...], tuple[PipelineRows, Graph]] = {}
    found: dict[tuple[bytes, ...], list[int]] = {}
    # Step by step, as arrays of all rows at once would double the memory of the whole analysis.
    for step in range(len(rows.steps)):
        begin, own_edges = begins[step], edges[edge_begins[step] : edge_begins[step + 1]]
        of_step = rows.take(slice(begin, begins[step + 1]))
        group = graph.group[begin : begins[step + 1]]
        one = Graph(
            nodes=len(of_step),
            before=graph.before[own_edges] - begin,
            after=graph.after[own_edges] - begin,
            group=np.where(group == NONE, NONE, first_member[group] - begin),
        )
        key = tuple(of.tobytes() for of in (*_identity(of_step), one.before, one.after, one.group))
        example.setdefault(key, (of_step, one))
        found.setdefault(key, []).append(step)
    return tuple(AlikeSteps(np.array(steps), begins[steps], *example[key]) for key, steps in found.items())


def _identity(rows: PipelineRows) -> tuple[Ints, ...]:
    return rows.dp, rows.stage, rows.type, rows.turn


def _edges_by_step(rows: PipelineRows, graph: Graph) -> tuple[Ints, Ints]:
    """The edges in the order of their steps, and where each step's begin."""
    step = rows.step.astype(np.uint16 if len(rows.steps) < 1 << 16 else np.int64)[graph.before]
    return np.argsort(step, kind="stable"), np.append(0, np.cumsum(np.bincount(step, minlength=len(rows.steps))))
