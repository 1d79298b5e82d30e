"""What the ranks of a simulated job run in a step, and in which order the simulation can go through it."""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from graphlib import TopologicalSorter

from data_parallel import data_parallel_stage, sharded_stage
from device_operations import Operation
from layouts import JobLayout
from mixture_of_experts import expert_stage
from pipeline import pipeline_stage

Place = tuple[int, int]
"""A stage and the index of an operation in its program."""


@dataclass(frozen=True)
class Node:
    """What the simulation times together: an operation of one stage, a send with its receive, a job-wide collective."""

    operation: Operation
    places: tuple[Place, ...]
    """One place, the send's and then the receive's, or one of every stage."""
    after: tuple[tuple[int, ...], ...]
    """For each place the operations of its own rank that must be over."""


@dataclass(frozen=True, eq=False)
class Program:
    """The operations of every stage in launch order, and all stages' nodes so that none precedes what it awaits."""

    layout: JobLayout
    stages: tuple[tuple[Operation, ...], ...]
    nodes: tuple[Node, ...]


@lru_cache(maxsize=32)
def program_of(layout: JobLayout) -> Program:
    """The program of a layout. Raises graphlib.CycleError where its stages would wait for each other for ever."""
    stages = tuple(_stage(layout, stage) for stage in range(layout.pp))
    return Program(layout, stages, _in_order(stages))


def _stage(layout: JobLayout, stage: int) -> tuple[Operation, ...]:
    if layout.kind == "3d":
        return pipeline_stage(layout, stage)
    if layout.kind == "moe":
        return expert_stage(layout)
    return sharded_stage(layout) if layout.kind == "fsdp" else data_parallel_stage(layout)


def _stream_mates(operations: tuple[Operation, ...]) -> list[int | None]:
    """For each operation the one before it on its stream."""
    last: dict[int, int] = {}
    result = []
    for index, operation in enumerate(operations):
        result.append(last.get(operation.stream))
        last[operation.stream] = index
    return result


def _in_order(stages: tuple[tuple[Operation, ...], ...]) -> tuple[Node, ...]:
    after: dict[Place, tuple[int, ...]] = {}
    for stage, operations in enumerate(stages):
        for index, mate in enumerate(_stream_mates(operations)):
            before = operations[index].awaits
            after[stage, index] = before if mate is None or mate in before else (mate, *before)
    members = _members(stages)
    first = {place: places[0] for places in members for place in places}
    sorter: TopologicalSorter[Place] = TopologicalSorter()
    for (stage, index), before in after.items():
        sorter.add(first[stage, index], *(first[stage, earlier] for earlier in before))
    by_first = {places[0]: places for places in members}
    nodes = []
    for stage, index in sorter.static_order():
        places = by_first[stage, index]
        nodes.append(Node(stages[stage][index], places, tuple(after[place] for place in places)))
    return tuple(nodes)


def _members(stages: tuple[tuple[Operation, ...], ...]) -> list[tuple[Place, ...]]:
    """The places that are timed together; of communication between stages, the n-th on one side is that on the others.

    A send comes before its receive.
    """
    alone: list[tuple[Place, ...]] = []
    together: dict[tuple[object, ...], list[Place]] = {}
    turn: Counter[tuple[object, ...]] = Counter()
    for stage, operations in enumerate(stages):
        for index, operation in enumerate(operations):
            if not operation.across_stages:
                alone.append(((stage, index),))
                continue
            call = (stage, operation.dimension)
            places = together.setdefault((operation.dimension, turn[call]), [])
            places.insert(0 if operation.kind == "send" else len(places), (stage, index))
            turn[call] += 1
    return [*alone, *map(tuple, together.values())]
