"""Puts consecutive steps together as if they were one: what waits for what then crosses their ends."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from kair_engine.arrays import NONE, Bools, Ints, order_by
from kair_engine.frozen import dataclass
from kair_engine.timeline.clocks import align
from kair_engine.timeline.collectives import Collectives
from kair_engine.timeline.synchronisation import Synchronisation
from kair_engine.trace.operations import HOST, Operations

_COLUMNS = ("lane", "name", "kind", "phase", "occurrence", "duration_ns", "group", "group_seq")


@dataclass(frozen=True)
class Window:
    """Some steps as one."""

    ops: Operations
    """Of all of them. What launches waited for a place in their queue is an operation of the host."""
    sync: Synchronisation
    step: Ints
    """Per operation the place of its step among the steps."""
    row: Ints
    """Per operation its place in its step."""
    place: tuple[Ints, ...]
    """Per step, of each rank of the window its place in the step; NONE where it has no such step."""
    queue_full: Bools
    """Per operation whether it is such a wait."""
    anew: Ints
    """The places of the steps that do not follow the one before: nothing tells what their first operations awaited."""


def window_of(steps: Sequence[Operations], syncs: Sequence[Synchronisation]) -> Window:
    """The steps, whose operations share their codes, one after another."""
    ranks = np.unique(np.concatenate([ops.ranks for ops in steps]))
    rank = np.concatenate([np.searchsorted(ranks, ops.ranks)[ops.rank] for ops in steps])
    origin = min(ops.origin_ns for ops in steps)
    start = np.concatenate([ops.start_ns + (ops.origin_ns - origin) for ops in steps])
    columns = {name: np.concatenate([getattr(ops, name) for ops in steps]) for name in _COLUMNS}
    order = order_by(rank, columns["lane"], start)
    columns = {name: values[order] for name, values in columns.items()}
    rank, start = rank[order], start[order]
    queue_full = np.concatenate([ops.queue_full for ops in steps])[order]
    columns["kind"] = np.where(queue_full, HOST, columns["kind"])
    begin = np.full(len(ranks), np.iinfo(np.int64).max)
    np.minimum.at(begin, rank, start)
    over = np.zeros(len(ranks), dtype=np.int64)
    np.maximum.at(over, rank, start + columns["duration_ns"])
    ops = replace(
        steps[0],
        origin_ns=origin,
        ranks=ranks,
        begin_ns=begin,
        length_ns=over - begin,
        main_lane=_of_ranks(steps, ranks, [ops.main_lane for ops in steps]),
        rank=rank,
        start_ns=start,
        peer=np.concatenate([_positions(ops, ranks) for ops in steps])[order],
        correlation=_apart([ops.correlation for ops in steps])[order],
        input_bytes=None,
        in_device_job=any(ops.has_device for ops in steps),
        remembered=None,
        lane_text=_merged([ops.lane_text for ops in steps]),
        name_text=_merged([ops.name_text for ops in steps]),
        group_text=_merged([ops.group_text for ops in steps]),
        lane=columns["lane"],
        name=columns["name"],
        kind=columns["kind"],
        phase=columns["phase"],
        occurrence=columns["occurrence"],
        duration_ns=columns["duration_ns"],
        group=columns["group"],
        group_seq=columns["group_seq"],
    )
    sizes = [len(of) for of in steps]
    row = np.concatenate([np.arange(size) for size in sizes])[order]
    now = np.empty(len(order), dtype=np.int64)
    now[order] = np.arange(len(order))
    numbers = np.array([of.step for of in steps])
    return Window(
        ops=ops,
        sync=_synchronisation(ops, syncs, sizes, now),
        step=np.repeat(np.arange(len(steps)), sizes)[order],
        row=row,
        place=tuple(_places(of.ranks, ranks) for of in steps),
        queue_full=queue_full,
        anew=np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 2) != 1),
    )


def _synchronisation(
    ops: Operations, syncs: Sequence[Synchronisation], sizes: Sequence[int], now: Ints
) -> Synchronisation:
    """The steps' collectives as those of the window, on one clock."""
    first, instances = np.cumsum([0, *sizes]), np.cumsum([0, *(len(sync.collectives) for sync in syncs)])
    row = np.concatenate([now[sync.collectives.row + at] for sync, at in zip(syncs, first, strict=False)])
    instance = np.concatenate([sync.collectives.instance + at for sync, at in zip(syncs, instances, strict=False)])
    rejected = sum(sync.collectives.rejected for sync in syncs)
    collectives = Collectives(ops, row, instance, rejected)
    return Synchronisation(collectives, align(collectives, len(ops.ranks)))


def _of_ranks(steps: Sequence[Operations], ranks: Ints, values: Sequence[Ints]) -> Ints:
    """Per rank of the window what the first step that it has says of it."""
    result = np.zeros(len(ranks), dtype=np.int64)
    for ops, of_step in zip(reversed(steps), reversed(values), strict=True):
        result[np.searchsorted(ranks, ops.ranks)] = of_step
    return result


def _places(of_step: Ints, ranks: Ints) -> Ints:
    place = np.full(len(ranks), NONE)
    place[np.searchsorted(ranks, of_step)] = np.arange(len(of_step))
    return place


def _positions(ops: Operations, ranks: Ints) -> Ints:
    """The peers, as places among the window's ranks."""
    return np.where(ops.peer == NONE, NONE, np.searchsorted(ranks, ops.ranks)[ops.peer])


def _apart(correlations: Sequence[Ints]) -> Ints:
    """Numbers of launches, which steps can number alike."""
    most = max(int(of.max(initial=0)) for of in correlations) + 1
    return np.concatenate([np.where(of == NONE, NONE, of + at * most) for at, of in enumerate(correlations)])


def _merged(texts: Sequence[Mapping[int, str]]) -> dict[int, str]:
    return {code: text for of_step in texts for code, text in of_step.items()}
